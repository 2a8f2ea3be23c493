"""Where the figures of a network that is known by its samples come from: its step, its rate, its memory and its run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flopwise.origin import COUNTED, KERNEL, chip_fact, error_ends, interval, price, total
from flopwise.provenance import Figure, setting, term

if TYPE_CHECKING:
    from flopwise.training.sampled import SampledEstimate

PARTS = {
    "forward": "a third of the passes", "backward": "two thirds of the passes",
    "optimizer": "states read and written", "data parallel": "gradients summed behind the backward pass",
    "stragglers": "waiting for the slowest of the devices",
}  # fmt: skip
"""What the lines of a step are."""


def sampled_figures(estimate: SampledEstimate) -> Iterator[Figure]:
    """The step, its rate with the interval, its bounds, and what the run takes."""
    job, rate = estimate.job, estimate.rate
    names = ((name.replace("_", " "), seconds) for name, seconds in estimate.breakdown if seconds)
    parts = [term(name, seconds, "s", f"{KERNEL}: {PARTS.get(name, name)}") for name, seconds in names]
    step = total("step time", "s", parts, note=f"rate of one device: {rate.origin}")
    batch, gpus = setting("global batch", job.global_batch, "samples"), setting("GPUs", job.num_gpus)
    speed = term("samples per second", estimate.samples_per_s, "samples/s", f"{batch.name} / {step.name}", batch, step)
    each = term(
        f"{speed.name} per GPU", estimate.samples_per_s_per_gpu, "samples/s", f"{speed.name} / {gpus.name}", speed, gpus
    )
    yield from (step, speed, each, *interval(each.name, each, estimate.band, estimate.low, estimate.high))
    peak = chip_fact(job.cluster.accelerator, f"peak {rate.precision}", "FLOP/s", rate.peak_flops_per_s)
    floor = f"{COUNTED}: FLOP of the samples of a device / {peak.name}"
    yield term("lower bound of the step", estimate.lower_bound_s, "s", floor, peak)
    if estimate.mfu_frac is not None:
        formula = f"{COUNTED}: FLOP of a sample x {each.name} / {peak.name}"
        yield term("MFU", estimate.mfu_frac, "frac", formula, each, peak)
    run = estimate.run
    if run is None:
        return
    samples = setting("samples", job.samples, "samples")
    took = term("run time", run.seconds, "s", f"{COUNTED}: {samples.name} / {speed.name} / goodput", samples, speed)
    yield took
    yield term("goodput", run.goodput_frac, "frac", f"{COUNTED}: time of steps / time of the run", step)
    hours = term("GPU-hours", run.gpu_hours, "h", f"{COUNTED}: {gpus.name} x {took.name}", gpus, took)
    yield hours
    paid = price(job.cluster)
    taken = {"seconds": took}
    if run.cost_usd is not None:
        inputs = (hours,) if paid is None else (hours, paid)
        formula = f"{COUNTED}: {hours.name} x price of a device, whole machines and their start"
        taken["cost_usd"] = term("cost", run.cost_usd, "USD", formula, *inputs)
        yield taken["cost_usd"]
    if run.energy_joules is not None:
        formula = "power model: devices by what their time goes to, host and cooling, over the run"
        taken["energy_joules"] = term("energy", run.energy_joules, "J", formula, took)
        yield taken["energy_joules"]
    ends = run.ends(estimate.band)
    for key, figure in taken.items():
        for word, error in zip(("low", "high"), reversed(error_ends(estimate.band)), strict=True):
            formula = f"error model: {figure.name} over {error.name}, its start as estimated"
            yield term(f"{figure.name}, {word}", ends[f"{key}_{word}"], figure.unit, formula, figure, error)
