"""Samples a second that one device trains on when nothing keeps it waiting.

Networks with token layers are timed by the training estimate, convolutional ones by their layers; what is known by
published figures only gets the share of the peak that published runs reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.cost.convolutions import (
    ELEM_BYTES,
    FUSED_PASSES,
    JOINED_PASSES,
    MOMENTUM_BYTES,
    Parts,
    convolution_step_s,
    usable_precision,
)
from flopwise.cost.intervals import ErrorBand, error_band
from flopwise.errors import SpecError
from flopwise.facts import defaults
from flopwise.facts.architecture import Model
from flopwise.facts.calibration import Calibration
from flopwise.facts.catalog import Facts
from flopwise.facts.software import TrainingStack
from flopwise.training.estimate import estimate
from flopwise.training.job import TrainJob
from flopwise.training.layout import Layout, Recipe
from flopwise.training.sampled_memory import state_bytes
from flopwise.training.samples import SampledWorkload
from flopwise.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flopwise.cost.cluster import Cluster
    from flopwise.facts.samples import ConvolutionLayer

ASSUMED_FRAC = 0.25
"""Share of the 16-bit peak: the middle of what runs of convolutional networks report (Kurth et al. 2018: 17 to 31 % on
V100; Ibrahim et al. 2021: 28 to 40 %), for networks of which no layers are known."""
REFERENCE_STACK = "fsdp-eager"
"""How the reference implementations of benchmarks run: eagerly, nothing fused."""
RECORD_STACK = "nemo"
"""How submissions to MLPerf Training run: kernels joined wherever a library can."""
CHANNELS_FIRST = (REFERENCE_STACK, "fsdp-compile")
"""Stacks of PyTorch, whose tensors of images have their channels first unless they are told otherwise."""
REFERENCE_STACKS = (REFERENCE_STACK, "xla", "in-house")
"""And on devices that it does not run on: the first that does launches their kernels."""
WIDER_BY_SHARE = 2.0
"""Spread of the interval where the achieved rate is a published share of the peak."""
SHARE = "published share"
"""Origin of a rate of which nothing but the share of the peak is known that published runs reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRate:
    """The training speed of one device: samples/s and the FLOP/s that makes, of a peak in FLOP/s."""

    samples_per_s: float
    peak_flops_per_s: float
    precision: str
    origin: str  # `layers`, `training estimate`, `published share`, `given`
    batch: int | None = None
    parts: tuple[tuple[str, float], ...] = ()  # seconds of a step
    notes: tuple[str, ...] = ()


def device_rate(
    work: SampledWorkload, cluster: Cluster, facts: Facts, *, batch: int | None = None, precision: str | None = None,
    stack: TrainingStack | None = None,
) -> DeviceRate:  # fmt: skip
    """The training speed of one device on `work` when nothing keeps it waiting, `batch` samples a step.

    `stack`: None: the reference implementation's, with what records of speed run noted beside it.

    Raises:
        MissingFactError: the device lacks a rate.
        SpecError: the precision or the batch cannot be.
    """
    size = batch if batch is not None else work.batch or 1
    dtype = precision or work.precision or "bf16"
    if size < 1:
        raise SpecError(f"batch {size}; give 1 or more")
    if work.layers is not None:
        if stack is None or not stack.runs_on(cluster.accelerator):
            stack = next(known for known in map(facts.stack, REFERENCE_STACKS) if known.runs_on(cluster.accelerator))
        return _rate_by_layers(work.layers, cluster, facts, size, usable_precision(cluster.rates, dtype), stack)
    if work.model is not None and work.model.stacks:
        return _training_rate(work, work.model, cluster, facts, size, dtype)
    return share_rate(work, cluster, dtype)


def _rate_by_layers(
    layers: Sequence[ConvolutionLayer], cluster: Cluster, facts: Facts, size: int, dtype: str, stack: TrainingStack
) -> DeviceRate:  # fmt: skip
    """The rate that the layers of a network add up to, and of records' software where that is faster.

    And of tensors with channels first, between kernels that take them so and kernels that want them turned.
    """

    def parts_of(software: TrainingStack, norm_passes: Mapping[str, float], *, transposed: bool = False) -> Parts:
        return convolution_step_s(
            cluster.rates, layers, size, dtype, software.launch_s, _update_bytes(layers, facts),
            norm_passes=norm_passes, transposed=transposed,
        )  # fmt: skip

    parts = parts_of(stack, JOINED_PASSES if stack.joins_norms else FUSED_PASSES)
    record = facts.stacks[RECORD_STACK]
    notes: tuple[str, ...] = ()
    normed = ELEM_BYTES[dtype] == 2.0 and any("norm" in layer.then for layer in layers)
    if normed and not stack.joins_norms and record.runs_on(cluster.accelerator):
        faster = float(parts.seconds) / float(parts_of(record, JOINED_PASSES).seconds)
        joined = f"joined with convolutions, as in records, they make a step {faster:.2f} times as fast"
        notes = (f"norms are kernels of their own, as {stack.name} runs them; {joined} (train --stack {record.name})",)
    if normed and stack.name in CHANNELS_FIRST:
        ends = [float(parts_of(stack, {}, transposed=turned).seconds) for turned in (False, True)]
        slower = " to ".join(f"{end / float(parts.seconds):.2f}" for end in ends)
        first = "channels first, as PyTorch has images by default"
        notes += (f"channels come last; {first}, a step takes {slower} times as long",)
    return DeviceRate(
        samples_per_s=size / float(parts.seconds), peak_flops_per_s=cluster.rates.peak_flops_per_s(dtype),
        precision=dtype, origin="layers", batch=size, notes=notes,
        parts=tuple((name.removesuffix("_s"), float(getattr(parts, name))) for name in parts._fields),
    )  # fmt: skip


def _update_bytes(layers: Sequence[ConvolutionLayer], facts: Facts) -> float:
    """Bytes of optimizer states a parameter: AdamW's where a network has attention, else momentum."""
    attends = any(layer.keys is not None for layer in layers)
    return state_bytes(facts.optimizer(defaults.OPTIMIZER)) if attends else MOMENTUM_BYTES


def rate_band(rate: DeviceRate, calibration: Calibration) -> ErrorBand:
    """The error band of a rate that is no training estimate.

    Source: data/intervals.json, `io`. Assumes: a published share of the peak is as much less certain as
    `WIDER_BY_SHARE`.
    """
    band = error_band("io", calibration)
    if rate.origin == SHARE:
        return band.wider(WIDER_BY_SHARE, "the achieved rate is a published share of the peak")
    return band


def _training_rate(
    work: SampledWorkload, model: Model, cluster: Cluster, facts: Facts, batch: int, precision: str
) -> DeviceRate:
    assert work.tokens is not None
    named = "fp32" if precision == "tf32" else precision
    recipe = Recipe(
        seq_len=work.tokens, global_batch=batch, precision=named, optimizer=facts.optimizer(defaults.OPTIMIZER),
        stack=facts.stacks[REFERENCE_STACK],
    )  # fmt: skip
    step = estimate(TrainJob(model=model, recipe=recipe, layout=Layout(micro_batch=batch), cluster=cluster))
    return DeviceRate(
        samples_per_s=batch / step.step_s, peak_flops_per_s=cluster.rates.peak_flops_per_s(named), precision=named,
        origin="training estimate", batch=batch, parts=step.breakdown,
    )  # fmt: skip


def share_rate(work: SampledWorkload, cluster: Cluster, precision: str, share: float | None = None) -> DeviceRate:
    """The rate of a device that achieves `share` of its peak, by default the share that published runs reached.

    Raises:
        MissingFactError: the device lacks that rate.
    """
    dtype = usable_precision(cluster.rates, precision) if precision == "tf32" else precision
    peak = cluster.rates.peak_flops_per_s(dtype)
    notes: tuple[str, ...] = ()
    taken = share if share is not None else work.achieved_frac
    if taken is None:
        taken = ASSUMED_FRAC
        notes = (f"{work.name}: no layers are known; {100 * ASSUMED_FRAC:.0f} % of the peak is assumed (--efficiency)",)
    return DeviceRate(
        samples_per_s=taken * peak / work.flops_per_sample, peak_flops_per_s=peak,
        precision=cluster.rates.peak_dtype(dtype), origin="given" if share is not None else SHARE,
        notes=notes,
    )  # fmt: skip
