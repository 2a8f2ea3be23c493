"""One training job of a network that is known by its samples: convolutional layers, or published figures alone.

The step is that of `flopwise.training.samples` with gradients exchanged and weights updated; the run is as of any job.
"""

from __future__ import annotations

import math
from dataclasses import field

import numpy as np

from flopwise.cost.cluster import Cluster
from flopwise.cost.collectives import all_reduce_s
from flopwise.cost.convolutions import ELEM_BYTES, update_s
from flopwise.cost.energy import device_watts
from flopwise.cost.intervals import ErrorBand
from flopwise.errors import SpecError
from flopwise.facts.catalog import Facts
from flopwise.facts.software import Optimizer, TrainingStack
from flopwise.ops.convolutions import kept_sample
from flopwise.training.job import DEFAULT_CONDITIONS, Conditions
from flopwise.training.memory import reported_bytes
from flopwise.training.run import StepRun, step_among_others
from flopwise.training.samples import (
    TRAINING_PASSES,
    DeviceRate,
    SampledWorkload,
    counted_flops,
    device_rate,
    num_parameters,
    rate_band,
)
from flopwise.training.step import shown_message_s
from flopwise.training.stragglers import STRAGGLERS, waiting_frac
from flopwise.values import dataclass

PARAMETER_BYTES = 4.0
"""Of weights, gradients and each state: automatic mixed precision keeps all of them in 32 bits."""
BUCKET_BYTES = 25 * 2**20
"""Of gradients that are sent together: `bucket_cap_mb` of PyTorch's DistributedDataParallel."""
EVERY_REPLICA = "every device has all weights, gradients and states: only layers of tokens are sharded (ZeRO, FSDP)"
GRADIENTS, WEIGHTS, STATES = "gradients", "weights", "optimizer states"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRecipe:
    """What one device does in a pass: `batch` samples of `work` in a precision, its weights updated by an optimizer."""

    work: SampledWorkload
    batch: int
    precision: str  # of the products
    optimizer: Optimizer
    stack: TrainingStack


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledJob:
    """What is estimated: data-parallel steps, each of `micro_steps` passes on every device."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledMemory:
    """Bytes on one device, item by item; `counts_activations`: whether those are among them."""

    items: dict[str, float]
    total_bytes: float  # what the driver would report
    floor_bytes: float  # weights and states, which are counted exactly
    counts_activations: bool
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledEstimate:
    """What a job takes; seconds of one step, samples of all devices per second, fractions to 1. None: not known."""

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


def sampled_estimate(job: SampledJob, facts: Facts) -> SampledEstimate:
    """Estimate one job.

    Source: `device_rate`; gradients of `BUCKET_BYTES` summed by `all_reduce_s` behind the backward pass.
    Assumes: the backward pass takes twice the forward; the host and the data keep up.
    Raises: MissingFactError: a fact that the rate needs is not known; SpecError: the precision cannot be.
    """
    recipe, cluster, gpus = job.recipe, job.cluster, job.num_gpus
    work = recipe.work
    rate = device_rate(work, cluster, facts, batch=recipe.batch, precision=recipe.precision)
    seconds, count = dict(rate.parts), num_parameters(work)
    passes_s = job.micro_steps * (recipe.batch / rate.samples_per_s - seconds.get("update", 0.0))
    forward_s = passes_s / TRAINING_PASSES
    parts = {"forward": forward_s, "backward": passes_s - forward_s, "recompute": 0.0, "optimizer": 0.0}
    if rate.parts and count is not None:
        parts["optimizer"] = float(update_s(cluster.rates, count, recipe.optimizer.states))
    message_s, notes = _message_s(job, count)
    hidden_behind_s = parts["backward"] / job.micro_steps
    parts["data_parallel"] = float(
        shown_message_s(
            message_s, hidden_behind_s, hide=recipe.stack.dp_overlap, first=1.0 / _buckets(count or 0.0),
            contention=cluster.rates.value["train_contention"],
        )
    )  # fmt: skip
    alone_s = passes_s + parts["optimizer"]
    parts[STRAGGLERS] = float(waiting_frac(gpus, job.conditions.jitter_frac)) * sum(parts.values())
    step_s, band = sum(parts.values()), rate_band(rate, facts.calibration)
    per_gpu = job.samples_per_gpu / step_s
    low, high = band.interval(per_gpu)
    floor_s = _least_flops(work) * job.samples_per_gpu / rate.peak_flops_per_s
    counted = counted_flops(work.model, None) if work.model is not None else None
    watts = _watts(job, parts, seconds)
    return SampledEstimate(
        job=job, rate=rate, step_s=step_s, breakdown=tuple(parts.items()), samples_per_s=per_gpu * gpus,
        samples_per_s_per_gpu=per_gpu, low=float(low), high=float(high), lower_bound_s=floor_s,
        upper_bound_s=(alone_s + message_s + parts[STRAGGLERS]) / band.low,
        mfu_frac=None if counted is None else per_gpu * counted / rate.peak_flops_per_s, bound=_bound(parts, seconds),
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
    note = f"gradients in 32 bits, {pieces} messages a step behind the backward pass (DistributedDataParallel)"
    return pieces * float(np.ravel(each)[0]), (note,)


def _bound(parts: dict[str, float], seconds: dict[str, float]) -> str | None:
    """What most of the step's time goes to; None where only the whole is known."""
    if not seconds:
        return None
    moving = seconds["pointwise"] / (seconds["pointwise"] + seconds["convolutions"])
    busy = parts["forward"] + parts["backward"]
    shares = {
        "compute": (1.0 - moving) * busy, "memory bandwidth": moving * busy + parts["optimizer"],
        "communication": parts["data_parallel"],
    }  # fmt: skip
    return max(shares, key=lambda name: shares[name])


def _watts(job: SampledJob, parts: dict[str, float], seconds: dict[str, float]) -> float | None:
    """Mean draw of one device over the step, in W; None where its limit is not known. Source: `device_watts`."""
    if job.cluster.accelerator.tdp_w is None:
        return None
    step_s, busy = sum(parts.values()), parts["forward"] + parts["backward"]
    moving = seconds["pointwise"] / (seconds["pointwise"] + seconds["convolutions"]) if seconds else 0.0
    memory_s = moving * busy + parts["optimizer"]
    return float(
        device_watts(
            float(job.cluster.accelerator.figure("tdp_w")), (1.0 - moving) * busy / step_s, memory_s / step_s,
            parts["data_parallel"] / step_s,
        )
    )  # fmt: skip


def _run(job: SampledJob, parts: dict[str, float], count: float | None, watts: float | None) -> StepRun | None:
    """The whole run, whose checkpoints hold weights and states; None without a length."""
    if job.samples is None:
        return None
    steps = job.samples / job.global_batch
    if steps < 1:
        said = f"a run of {job.samples:,.0f} samples is shorter than the {job.global_batch:,} of one step"
        raise SpecError(f"{said}; give a smaller global batch")
    nbytes = (count or 0.0) * (PARAMETER_BYTES + state_bytes(job.recipe.optimizer))
    one = step_among_others(parts, float(job.samples_per_gpu), job.conditions)
    return StepRun.of_steps(steps, one, nbytes, job.cluster, job.num_gpus, job.conditions, watts)


def state_bytes(optimizer: Optimizer) -> float:
    """Bytes of an optimizer's states for each parameter. Source: data/optimizers.csv. Assumes: states in 32 bits."""
    return optimizer.states * PARAMETER_BYTES + optimizer.packed_bytes


def sampled_memory(recipe: SampledRecipe, device_kind: str = "gpu") -> SampledMemory | None:
    """Bytes on each device in a step; None where the parameters are not known.

    Weights, gradients and states in 32 bits; what layers keep as `kept_sample` counts it, in the products' format, and
    in 16 bits a copy of the weights; the sample as it is fed, in 32 bits and in that format; the gradients of the
    widest result and of its input while both are there.

    Source: `kept_sample`; documentation of torch.amp. data/stacks.json for what the software adds.
    Assumes: every replica has all of it; workspaces of cuDNN are not counted; norms and biases keep nothing else.
    """
    count, layers = num_parameters(recipe.work), recipe.work.layers
    if count is None:
        return None
    elem, states = ELEM_BYTES.get(recipe.precision, 2.0), state_bytes(recipe.optimizer)
    items = {WEIGHTS: PARAMETER_BYTES * count, GRADIENTS: PARAMETER_BYTES * count, STATES: states * count}
    floor = items[WEIGHTS] + items[STATES]
    if elem < PARAMETER_BYTES:
        items["weights in 16 bits"] = elem * count
    notes = [EVERY_REPLICA, "workspaces of cuDNN are not counted"]
    if layers is None:
        notes = [EVERY_REPLICA, f"{recipe.work.name}: no layers are known, so activations are not counted"]
    else:
        kept = kept_sample(layers)
        fed = PARAMETER_BYTES + (elem if elem < PARAMETER_BYTES else 0.0)
        items["activations"] = recipe.batch * kept.nbytes(elem)
        items["samples"] = recipe.batch * kept.input_elements * fed
        items["gradients of activations"] = 2.0 * recipe.batch * kept.widest * elem
    allocated = sum(items.values())
    total = float(reported_bytes(allocated, recipe.stack, device_kind))
    items["allocator, driver context and communicators"] = total - allocated
    return SampledMemory(
        items=items,
        total_bytes=total,
        floor_bytes=floor,
        counts_activations=layers is not None,
        assumptions=tuple(notes),
    )
