"""The machines of each workload, and what those that carry most of it are expected to do: an estimate in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flopwise.errors import FlopwiseError
from flopwise.fleet.model import ChosenWorkload, ExpectedFigures
from flopwise.fleet.searches import forked
from flopwise.fleet.spec import API
from flopwise.ops.cache import kv_bytes_per_token
from flopwise.ops.flops import backward_flops, causal_forward_flops, operations
from flopwise.ops.tensors import parameters
from flopwise.search.deployments import answers_in_one_pass
from flopwise.search.serving_option import candidate_job as serving_job
from flopwise.search.training_option import candidate_job as training_job
from flopwise.serving.estimate import estimate as serving_estimate
from flopwise.serving.job import serving_band
from flopwise.training.estimate import estimate as training_estimate
from flopwise.training.memory import memory_band

if TYPE_CHECKING:
    from flopwise.cost.intervals import ErrorBand
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.fleet.allocate import AllocationProblem
    from flopwise.fleet.model import Allocation, MonthlyOption, PlannedWorkload, Taken
    from flopwise.training.estimate import TrainEstimate

WORTH_SHARING = 40
"""Estimates from which other processes are worth starting."""
BOUNDS = {
    "compute": "compute-bound: matrix products",
    "memory": "memory-bound: bandwidth of the device",
    "communication": "bound by communication between devices",
    "host": "bound by the host: kernel launches",
    "bubble": "bound by the pipeline's bubble",
}


def chosen_workloads(made: AllocationProblem, allocation: Allocation, facts: Facts) -> list[ChosenWorkload]:
    """Each workload with its machines and the figures of those that carry most of it, estimated in full."""
    parts: list[list[Taken]] = [[] for _ in made.items]
    for taken in allocation.taken:
        if taken.role == "primary":
            parts[taken.option.workload].append(taken)
    mains = [max(own, key=lambda taken: taken.count * taken.option.usd_each) for own in parts]
    keys = [(id(item.plan), id(main.option.candidate)) for item, main in zip(made.items, mains, strict=True)]
    first = {key: number for number, key in reversed(list(enumerate(keys)))}
    todo = list(first.values())
    estimates = forked(
        lambda n: _expected_figures(made.items[todo[n]], mains[todo[n]].option, facts), len(todo), WORTH_SHARING
    )
    known = dict(zip(first, estimates, strict=True))
    return [
        ChosenWorkload(planned=item, main=main, figures=known[key], parts=tuple(own))
        for item, main, key, own in zip(made.items, mains, keys, parts, strict=True)
    ]


def _expected_figures(item: PlannedWorkload, option: MonthlyOption, facts: Facts) -> ExpectedFigures | None:
    """The estimate of the option that was chosen; None for machines to work on, and for an API's."""
    if item.workload is None or option.purchase == API:
        return None
    model = facts.model(item.workload.model)
    if item.job.trains:
        return _training_figures(item, option, facts, model)
    return _serving_figures(item, option, facts, model)


def _training_figures(item: PlannedWorkload, option: MonthlyOption, facts: Facts, model: Model) -> ExpectedFigures:
    assert item.workload is not None
    estimate = training_estimate(training_job(item.workload, model, facts, option.offer, option.candidate))
    candidate, band = option.candidate, estimate.band
    memory = memory_band(estimate.job.recipe, facts.calibration)
    low, high = estimate.low * estimate.num_gpus, estimate.high * estimate.num_gpus
    figures = {
        "run_s": _with_ends(candidate.seconds, candidate.seconds / band.high, candidate.seconds / band.low),
        "tokens_per_s": _with_ends(estimate.tokens_per_s, low, high),
        "mfu_frac": estimate.mfu_frac,
        "step_s": estimate.step_s,
    }
    return ExpectedFigures(
        parameters=int(parameters(model)), memory_bytes=candidate.memory_bytes * candidate.num_gpus,
        memory_frac=candidate.memory_bytes / candidate.capacity_bytes,
        memory_high_frac=candidate.memory_bytes * memory.high / candidate.capacity_bytes,
        intensity=_training_intensity(estimate, model), pattern=_pattern(estimate.bound), time_low=1 / band.high,
        time_high=1 / band.low, figures=figures, breakdown=dict(estimate.breakdown),
    )  # fmt: skip


def _training_intensity(estimate: TrainEstimate, model: Model) -> float:
    """FLOP of forward and backward over the bytes that their operations move, thrice those of the forward pass."""
    batch, seq = int(estimate.job.layout.micro_batch), int(estimate.job.recipe.seq_len)
    moved = 3 * sum(float(o.bytes) for o in operations(model, batch, seq))
    return (float(causal_forward_flops(model, batch, seq)) + float(backward_flops(model, batch, seq))) / moved


def _serving_figures(item: PlannedWorkload, option: MonthlyOption, facts: Facts, model: Model) -> ExpectedFigures:
    assert item.workload is not None
    candidate, workload = option.candidate, item.workload
    job = serving_job(workload, model, facts, option.offer, candidate)
    one_pass = answers_in_one_pass(model, workload)
    bands = {name: serving_band(job, name) for name in ("ttft", "throughput", *(() if one_pass else ("tpot",)))}
    try:
        estimate = serving_estimate(job)
        pattern, breakdown = _pattern(estimate.bound), dict(estimate.breakdown)
        weights = float(estimate.memory.items["weights"]) * estimate.num_gpus
    except FlopwiseError:
        pattern, breakdown, weights = "not estimated alone", {}, candidate.memory_bytes
    rate = float(candidate.figures["requests_per_s_capacity"] or 0.0)
    figures: dict[str, Any] = {"requests_per_s": _with_band(rate, bands["throughput"])}
    for name in ("ttft", "tpot"):
        value = candidate.figures.get(f"{name}_s")
        if value is not None and name in bands:
            figures[f"{name}_s"] = _with_band(value, bands[name])
    latency = float(candidate.figures["e2e_s"] or 0.0)
    figures["latency_s"] = _with_band(latency, bands["ttft" if one_pass else "tpot"])
    percentile = next((t.percentile for t in (workload.latency, workload.ttft, workload.tpot) if t is not None), "p95")
    figures["percentile"] = percentile
    tokens = candidate.figures.get("output_tokens_per_s")
    if tokens is not None:
        figures["output_tokens_per_s"] = _with_band(tokens, bands["throughput"])
    if item.job.ends:
        band = bands["throughput"]
        figures["run_s"] = _with_ends(candidate.seconds, candidate.seconds / band.high, candidate.seconds / band.low)
    return ExpectedFigures(
        parameters=int(parameters(model)), memory_bytes=candidate.memory_bytes * job.num_gpus,
        memory_frac=candidate.memory_bytes / candidate.capacity_bytes,
        memory_high_frac=min(1.0, candidate.memory_bytes / candidate.capacity_bytes),
        intensity=_serving_intensity(item, model, weights, float(candidate.layout["max_batch"]), one_pass=one_pass),
        pattern=pattern, time_low=1 / bands["throughput"].high, time_high=1 / bands["throughput"].low, figures=figures,
        breakdown=breakdown,
    )  # fmt: skip


def _serving_intensity(item: PlannedWorkload, model: Model, weights: float, batch: float, *, one_pass: bool) -> float:
    """FLOP of a request over the bytes it has the devices read: weights shared with its batch, its own cache."""
    assert item.workload is not None
    inputs, outputs = item.workload.input_tokens, item.workload.output_tokens
    flops = float(causal_forward_flops(model, 1, inputs))
    moved = sum(float(o.bytes) for o in operations(model, 1, inputs))
    if not one_pass:
        each = float(kv_bytes_per_token(model, 2.0))
        flops *= 1 + outputs / inputs
        moved += outputs * (weights / batch + each * (inputs + outputs / 2))
    return flops / moved


def _pattern(bound: str) -> str:
    first = bound.split(maxsplit=1)[0].strip(",;:").lower() if bound else ""
    return BOUNDS.get(first, bound)


def _with_band(value: float, band: ErrorBand) -> dict[str, float]:
    low, high = band.interval(value)
    return _with_ends(value, float(low), float(high))


def _with_ends(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high}
