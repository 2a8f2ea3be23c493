"""One training job of a network that is known by its samples: convolutional layers, or published figures alone.

The step is that of `flopwise.training.samples` with gradients exchanged and weights updated; the run is as of any job.
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import TYPE_CHECKING, Self

import numpy as np

from flopwise.cost.cluster import Cluster
from flopwise.cost.collectives import all_reduce_s
from flopwise.cost.convolutions import update_s, usable_precision
from flopwise.cost.intervals import ErrorBand
from flopwise.cost.money import num_instances
from flopwise.cost.rates import Rates
from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.catalog import Facts
from flopwise.ops.types import Floats
from flopwise.options import OptionError, Spec, changed_options
from flopwise.training.estimate import COMMUNICATION, step_watts
from flopwise.training.job import DEFAULT_CONDITIONS, Conditions
from flopwise.training.run import StepRun, step_in_run_of
from flopwise.training.sample_rate import REFERENCE_STACK, DeviceRate, device_rate, rate_band
from flopwise.training.sampled_memory import PARAMETER_BYTES, SampledRecipe, sampled_memory, saved_bytes, state_bytes
from flopwise.training.samples import TRAINING_PASSES, SampledWorkload, counted_flops, num_parameters
from flopwise.training.start import staging_s, with_paid_start
from flopwise.training.step import exposed_message_s
from flopwise.training.stragglers import STRAGGLERS, waiting_frac
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from flopwise.training.run_spec import RunConditionsSpec
    from flopwise.training.spec import DataSpec, TrainingSpec

TF32 = "tf32"
"""What runs in other formats where a device lacks it: `usable_precision`."""
SAMPLED_OPTIONS = {"samples", "epochs", "global_batch", "micro_batch", "dp", "precision", "optimizer", "stack"}
"""What can be said of training a network without token layers, beside its machines and its run."""
BUCKET_BYTES = 25 * 2**20
"""Bytes of gradients that are sent together: `bucket_cap_mb` of PyTorch's DistributedDataParallel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledJob:
    """The input of an estimate: data-parallel steps, each of `micro_steps` passes on every device."""

    recipe: SampledRecipe
    cluster: Cluster
    num_gpus: int
    micro_steps: int = 1  # passes whose gradients are added up before a step
    samples: float | None = None  # of the whole run; None: a step alone
    conditions: Conditions = DEFAULT_CONDITIONS

    @property
    def samples_per_gpu(self) -> int:
        """Samples of one step on each device."""
        return self.recipe.batch * self.micro_steps

    @property
    def global_batch(self) -> int:
        """Samples of one step on all devices."""
        return self.num_gpus * self.samples_per_gpu

    @classmethod
    def of(
        cls, work: SampledWorkload, data: DataSpec, spec: TrainingSpec, machines: MachineSpec, run: RunConditionsSpec,
        facts: Facts, gpus: int | None,
    ) -> tuple[SampledJob, tuple[str, ...]]:  # fmt: skip
        """The job that is asked about, and what was assumed of it.

        Raises:
            SpecError: batches that do not divide, a run without a length, or a choice that does not exist.
        """
        number = num_replicas(work, spec, machines.num_gpus(gpus))
        cluster = machines.cluster(number, facts)
        recipe, notes = sampled_recipe(work, spec, facts, cluster.rates)
        recipe, micro_steps, batch_note = sampled_batches(
            recipe, cluster.accelerator, number, spec.micro_batch, data.global_batch
        )
        job = cls(recipe=recipe, cluster=cluster, num_gpus=number, micro_steps=micro_steps)
        if data.samples is None and (named := [*changed_options(run), *(["epochs"] if data.epochs != 1 else [])]):
            names = ", ".join(name.replace("_", " ") for name in named)
            raise SpecError(f"{names}: of a whole run; give its length (--samples)")
        conditions, run_notes = run.conditions(cluster, facts)
        if data.samples is not None:
            conditions = with_paid_start(conditions, _start_s(job, data.samples, facts), cluster, facts)
            job, run_notes = replace(job, samples=data.samples * data.epochs), (*run_notes, *run.write_assumptions)
        return replace(job, conditions=conditions), (*batch_note, *notes, *run_notes, *cluster.assumptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledEstimate:
    """The estimate of a job; seconds of one step, samples of all devices per second, fractions to 1. None: unknown."""

    job: SampledJob
    rate: DeviceRate  # of one device by itself
    step_s: float
    breakdown: tuple[tuple[str, float], ...]  # the lines add up to step_s
    samples_per_s: float
    samples_per_s_per_gpu: float
    low: float  # of samples_per_s_per_gpu, 10 %
    high: float  # 90 %
    lower_bound_s: float
    upper_bound_s: float
    mfu_frac: float | None
    bound: str | None
    efficiency_frac: float  # of what as many devices by themselves would do
    band: ErrorBand
    run: StepRun | None
    assumptions: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, job: SampledJob, facts: Facts) -> Self:
        """Estimate one job.

        Source: `device_rate`; gradients of `BUCKET_BYTES` summed by `all_reduce_s` behind the backward pass.
        Assumes: the backward pass takes twice the forward; the data keep up.
        Raises: MissingFactError: a fact that the rate needs is not known; SpecError: the precision cannot be.
        """
        recipe, cluster, gpus = job.recipe, job.cluster, job.num_gpus
        work = recipe.work
        rate = device_rate(work, cluster, facts, batch=recipe.batch, precision=recipe.precision, stack=recipe.stack)
        seconds, count = dict(rate.parts), num_parameters(work)
        launch_s = job.micro_steps * seconds.get("launch", 0.0)
        passes_s = job.micro_steps * (recipe.batch / rate.samples_per_s - seconds.get("update", 0.0)) - launch_s
        forward_s = passes_s / TRAINING_PASSES
        parts = {"forward": forward_s, "backward": passes_s - forward_s, "recompute": 0.0, "optimizer": 0.0}
        parts["launch"] = launch_s
        if rate.parts and count is not None:
            parts["optimizer"] = float(update_s(cluster.rates, count, state_bytes(recipe.optimizer)))
        message_s, notes = _message_s(job, count)
        hidden_behind_s = (parts["backward"] + launch_s * (1.0 - 1.0 / TRAINING_PASSES)) / job.micro_steps
        parts["data_parallel"] = float(
            exposed_message_s(
                message_s, hidden_behind_s, hide=recipe.stack.dp_overlap, first=1.0 / _buckets(count or 0.0),
                contention=cluster.rates.value["train_contention"],
            )
        )  # fmt: skip
        alone_s = passes_s + launch_s + parts["optimizer"]
        parts[STRAGGLERS] = float(waiting_frac(gpus, job.conditions.jitter_frac)) * sum(parts.values())
        step_s = sum(parts.values())
        per_gpu = job.samples_per_gpu / step_s
        floor_s = _least_flops(work) * job.samples_per_gpu / rate.peak_flops_per_s
        band = rate_band(rate, facts.calibration).up_to(step_s / floor_s if floor_s else math.inf)
        low, high = band.interval(per_gpu)
        counted = counted_flops(work.model, None) if work.model is not None else None
        mfu = None if counted is None else per_gpu * counted / rate.peak_flops_per_s
        watts = _watts(job, parts, seconds)
        return cls(
            job=job, rate=rate, step_s=step_s, breakdown=tuple(parts.items()), samples_per_s=per_gpu * gpus,
            samples_per_s_per_gpu=per_gpu, low=float(low), high=float(high), lower_bound_s=floor_s,
            upper_bound_s=(alone_s + message_s + parts[STRAGGLERS]) / band.low,
            mfu_frac=mfu, bound=_bound(parts, seconds),
            efficiency_frac=alone_s / step_s, band=band, run=_run(job, parts, count, watts),
            assumptions=(*rate.notes, *notes),
        )  # fmt: skip


def _least_flops(work: SampledWorkload) -> float:
    """Operations that a sample's training has at least: without gradients of inputs, as far as layers are not known."""
    if work.layers is not None:
        return TRAINING_PASSES * sum(layer.flops for layer in work.layers) - work.layers[0].flops
    counted = None if work.model is None else counted_flops(work.model, None)
    return (TRAINING_PASSES - 1.0) / TRAINING_PASSES * (counted or 0.0)


def _buckets(count: float) -> int:
    return max(1, math.ceil(PARAMETER_BYTES * count / BUCKET_BYTES))


def _message_s(job: SampledJob, count: float | None) -> tuple[float, tuple[str, ...]]:
    """Seconds of summing gradients over all devices once, and what was assumed."""
    if job.num_gpus == 1:
        return 0.0, ()
    if count is None:
        return 0.0, ("its parameters are not known, so the time of exchanging gradients is not in the step",)
    pieces = _buckets(count)
    each = all_reduce_s(job.cluster.fabric, PARAMETER_BYTES * count / pieces, np.array([job.num_gpus]))
    note = (
        f"gradients in 32 bits, {pieces} messages per step, hidden behind the backward pass (DistributedDataParallel)"
    )
    return pieces * float(np.ravel(each)[0]), (note,)


def _bound(parts: dict[str, float], seconds: dict[str, float]) -> str | None:
    """The term with most of the step's time; None where only the whole is known."""
    if not seconds:
        return None
    moving = _moving_frac(seconds)
    busy = parts["forward"] + parts["backward"]
    shares = {
        "compute": (1.0 - moving) * busy, "memory bandwidth": moving * busy + parts["optimizer"],
        "communication": parts["data_parallel"], "host": parts["launch"],
    }  # fmt: skip
    return max(shares, key=lambda name: shares[name])


def _watts(job: SampledJob, parts: dict[str, float], seconds: dict[str, float]) -> float | None:
    """Mean draw of one device over the step, in W; None where its limit is not known. Source: `step_watts`."""
    if job.cluster.accelerator.tdp_w is None:
        return None
    memory_s = _moving_frac(seconds) * (parts["forward"] + parts["backward"])
    lines = {**dict.fromkeys(COMMUNICATION, 0.0), **parts}
    return float(step_watts(float(job.cluster.accelerator.figure("tdp_w")), lines, memory_s))


def _moving_frac(seconds: dict[str, float]) -> float:
    """Share of the passes in which a device moves data; 0 where only the whole is known."""
    return seconds["pointwise"] / (seconds["pointwise"] + seconds["convolutions"]) if seconds else 0.0


def _run(job: SampledJob, parts: dict[str, float], count: float | None, watts: float | None) -> StepRun | None:
    """The whole run, whose checkpoints hold weights and states; None without a length."""
    if job.samples is None:
        return None
    steps = job.samples / job.global_batch
    if steps < 1:
        fault = f"a run of {job.samples:,.0f} samples is shorter than the {job.global_batch:,} of one step"
        raise SpecError(f"{fault}; give a smaller global batch")
    nbytes = saved_bytes(count or 0.0, job.recipe.optimizer)
    one = step_in_run_of(parts, float(job.samples_per_gpu), job.conditions)
    return StepRun.of_steps(steps, one, nbytes, job.cluster, job.num_gpus, job.conditions, watts)


def check_sampled_options(work: SampledWorkload, *specs: Spec) -> None:
    """Refuse what is said of a network without token layers and means nothing to it.

    Raises:
        SpecError: names it.
    """
    options = {name for spec in specs for name in changed_options(spec)}
    if wrong := sorted(options - SAMPLED_OPTIONS):
        names = ", ".join(name.replace("_", " ") for name in wrong)
        more = (
            "; `flopwise io` estimates the storage that it needs" if {"storage", "storage_bandwidth"} & options else ""
        )
        raise SpecError(f"{names}: only for models with token layers; {work.name} is trained on whole samples{more}")


def sampled_recipe(
    work: SampledWorkload, spec: TrainingSpec, facts: Facts, rates: Rates | None
) -> tuple[SampledRecipe, tuple[str, ...]]:
    """The recipe of a device for one sample, and its assumptions; `rates`: of the device, None where none is named.

    Raises:
        SpecError: options that mean nothing to such networks, or a choice that does not exist.
    """
    precision = spec.precision
    if "precision" not in changed_options(spec) and work.precision is not None:
        runs = rates is None or work.precision in rates.peak or work.precision == TF32
        precision = work.precision if runs else precision
    optimizer = facts.optimizer(spec.optimizer)
    if optimizer.newton_schulz_steps:
        raise OptionError(
            "optimizer", f"{optimizer.name} orthogonalises matrices, whose sizes {work.name} does not give"
        )
    usable = usable_precision(rates, precision)
    replaced: tuple[str, ...] = ()
    if rates is not None and usable != precision and precision == spec.precision:
        replaced = (f"{rates.name} has no {precision} units: trained in {usable}",)
    recipe = SampledRecipe(
        work=work, batch=1, precision=usable, optimizer=optimizer,
        stack=facts.stack(spec.stack or REFERENCE_STACK),
    )  # fmt: skip
    return recipe, (*replaced, *work.notes)


def num_replicas(work: SampledWorkload, spec: TrainingSpec, counted: int | None) -> int:
    """The replicas of a job on `counted` devices (None: not said), each of which has one.

    Raises:
        SpecError: another number of replicas is given.
    """
    if counted is not None and spec.dp not in (None, counted):
        raise OptionError("dp", f"{spec.dp}; {work.name} has a replica on each of the {counted:,} devices")
    return counted or spec.dp or 1


def sampled_batches(
    recipe: SampledRecipe, device: Accelerator | None, num_gpus: int, micro: int | None, whole: int | None,
    passes: int | None = None,
) -> tuple[SampledRecipe, int, tuple[str, ...]]:  # fmt: skip
    """The recipe with the batch of a pass, the passes of a step on each device, and what was assumed.

    Of `whole`, the samples of a step on all devices, a pass has `micro`, or what comes of so many `passes`, or as many
    as fit; without `whole` it has `micro`, or what the reference has as far as memory goes.

    Raises:
        SpecError: batches that do not divide, or passes that do not make up the whole.
    """
    if whole is None:
        if micro is not None:
            return replace(recipe, batch=micro), passes or 1, ()
        recipe, note = usual_batch(recipe, device)
        return recipe, passes or 1, (note,)
    each, rest = divmod(whole, num_gpus * (passes or 1))
    if rest or not each:
        added = f" and {passes:,} passes" if passes is not None and passes > 1 else ""
        raise OptionError("global_batch", f"{whole:,} does not divide over {num_gpus:,} devices{added}")
    if micro is not None and passes is not None and each != micro:
        made = f"{num_gpus:,} devices x {passes:,} passes x micro-batch {micro:,}"
        raise OptionError("global_batch", f"{whole:,} is not the {num_gpus * passes * micro:,} of {made}")
    if micro is not None and each % micro:
        raise OptionError("micro_batch", f"{micro:,} does not divide the {each:,} samples of a device and step")
    if passes is not None:
        return replace(recipe, batch=each), passes, ()
    parts = [replace(recipe, batch=micro or each // n) for n in range(1, each + 1) if each % n == 0]
    recipe = next((one for one in parts if micro or _fits(one, device)), parts[-1])
    return recipe, each // recipe.batch, ()


def usual_batch(recipe: SampledRecipe, device: Accelerator | None) -> tuple[SampledRecipe, str]:
    """The recipe with the batch of the reference, as far as the device's memory goes, and why it is that one."""
    usual = recipe.work.batch or 1
    halves = [replace(recipe, batch=usual // 2**times) for times in range(usual.bit_length())]
    chosen = next((one for one in halves if _fits(one, device)), halves[-1])
    why = "as the reference trains it" if chosen.batch == usual else f"the most that fits of the reference's {usual:,}"
    return chosen, f"batches of {chosen.batch:,} on each device, {why} (--micro-batch)"


def _fits(recipe: SampledRecipe, device: Accelerator | None) -> bool:
    """True if a step is not known to need more memory than the device has."""
    memory = None if device is None else sampled_memory(recipe, device.kind)
    return device is None or memory is None or memory.total_bytes <= device.hbm_bytes


def _start_s(job: SampledJob, samples: float, facts: Facts) -> Floats:
    """Seconds from a machine that is paid to the first step of an epoch of `samples`."""
    work = job.recipe.work
    machines = num_instances(job.num_gpus, max(1, job.cluster.gpus_per_node))
    nbytes = samples * (work.record_bytes or work.sample_bytes)
    return staging_s(job.recipe.stack.name, len(work.layers or ()), nbytes, machines, facts)
