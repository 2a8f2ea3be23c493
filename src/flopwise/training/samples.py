"""FLOP and bytes of a sample, for any network, and the samples a second that one device trains on.

Networks with layers of tokens are timed by the training estimate, convolutional ones by their layers; what is known by
published figures only gets the share of the peak that published runs reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flopwise.cost.intervals import ErrorBand, error_band
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts import defaults
from flopwise.facts.architecture import Model
from flopwise.facts.calibration import Calibration
from flopwise.facts.catalog import Facts
from flopwise.facts.samples import ConvolutionLayer, TrainingSample
from flopwise.facts.spec import SourceSpec
from flopwise.ops.flops import causal_forward_flops
from flopwise.ops.tensors import parameters
from flopwise.training.job import TrainJob
from flopwise.training.layout import Layout, Recipe
from flopwise.training.storage import stored_token_bytes

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster

ASSUMED_FRAC = 0.25
"""Of the 16-bit peak: the middle of what runs of convolutional networks report (Kurth et al. 2018: 17 to 31 % on V100;
Ibrahim et al. 2021: 28 to 40 %), for networks of which no layers are known."""
REFERENCE_STACK = "fsdp-eager"
"""How the reference implementations of benchmarks run: eagerly, nothing fused."""
OF_BENCHMARKS = ("record_bytes", "batch", "precision", "achieved_frac")
"""What a workload has from the row of its benchmark alone."""
TRAINING_PASSES = 3.0
"""Forward, and backward twice that."""
WIDER_BY_SHARE = 2.0
"""Spread of the interval where the achieved rate is a published share of the peak."""
SHARE = "published share"
"""Origin of a rate of which nothing but the share of the peak is known that published runs reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledWorkload:
    """One sample of what is trained, and where its figures are from. None: not known."""

    name: str
    sample: str  # what one sample is
    flops_per_sample: float  # forward and backward
    sample_bytes: float  # as fed
    record_bytes: float | None = None  # as stored, where that differs
    source: str
    model: Model | None = None
    tokens: int | None = None
    batch: int | None = None
    precision: str | None = None
    layers: tuple[ConvolutionLayer, ...] | None = None
    achieved_frac: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRate:
    """How fast one device trains: samples/s and the FLOP/s that makes, of a peak in FLOP/s."""

    samples_per_s: float
    peak_flops_per_s: float
    precision: str
    origin: str  # `layers`, `training estimate`, `published share`, `given`
    batch: int | None = None
    parts: tuple[tuple[str, float], ...] = ()  # seconds of a step
    notes: tuple[str, ...] = ()


def workload_of_sample(row: TrainingSample, model: Model, facts: Facts, *, seq: int | None = None) -> SampledWorkload:
    """The benchmark workload in `row`, which trains `model`.

    Raises:
        MissingFactError: nobody has written down its FLOP.
    """
    tokens = seq or row.tokens
    notes: tuple[str, ...] = ()
    profiled, counted = row.flops_per_sample, counted_flops(model, tokens)
    flops = counted if profiled is None else profiled
    if flops is None:
        raise MissingFactError(f"{row.name}: the FLOP of a sample are not known; give --flops-per-sample")
    if counted is not None and not 0.9 < flops / counted < 1.1:
        times = f"{flops / counted:.2f}x what {model.name} counts ({counted:.4g})"
        notes = (f"FLOP of a sample as the source profiled them, {times}",)
    return SampledWorkload(
        name=row.name, sample=row.sample, flops_per_sample=flops, sample_bytes=row.sample_bytes,
        source=f"{row.source} ({row.date}, {row.confidence} confidence)", model=model,
        tokens=tokens if model.stacks else None, layers=facts.convolutions(model.name), notes=notes,
        **{name: getattr(row, name) for name in OF_BENCHMARKS},
    )  # fmt: skip


def workload_of_model(
    model: Model, facts: Facts, *, seq: int | None = None, token_bytes: float | None = None
) -> SampledWorkload:
    """What training `model` reads and does for each sample: a sequence of `seq` tokens, an image, or as published.

    Raises:
        MissingFactError: the size of a sample or its FLOP are not known.
    """
    if model.stacks:
        return _workload_of_layers(model, seq, token_bytes)
    published = model.published
    flops = counted_flops(model, None)
    if published is None or flops is None:
        raise MissingFactError(f"{model.name}: the FLOP of a sample are not known; give --flops-per-sample")
    if published.sample_bytes is None:
        raise MissingFactError(f"{model.name}: the size of a sample is not known; give --sample-bytes")
    row = next((row for row in facts.samples.values() if row.model == model.name), None)  # the benchmark that trains it
    of_benchmark: Any = {name: row and getattr(row, name) for name in OF_BENCHMARKS}
    return SampledWorkload(
        name=model.name, sample=published.sample, flops_per_sample=flops, sample_bytes=published.sample_bytes,
        source=f"{model.source} ({model.date}, {model.confidence} confidence)", model=model,
        layers=facts.convolutions(model.name), **of_benchmark,
    )  # fmt: skip


def network_of_samples(model: Model | str, source: SourceSpec) -> SampledWorkload | None:
    """What training `model` does for each sample, where that is known and layers of tokens are not; else None.

    Raises:
        SpecError: as `SourceSpec.model`.
    """
    facts = source.catalog
    row = facts.sample(model) if isinstance(model, str) else None
    named = source.model(model if row is None else row.model)
    known = named.published is not None and named.published.sample_bytes and counted_flops(named, None)
    if named.stacks or not (known or row):
        return None
    return workload_of_model(named, facts) if row is None else workload_of_sample(row, named, facts)


def counted_flops(model: Model, tokens: int | None) -> float | None:
    """FLOP of training on one sample, counted or as the catalog has them; None where neither is known."""
    if model.stacks:
        length = model.stacks[0].tokens_per_sample or tokens
        return None if length is None else TRAINING_PASSES * float(causal_forward_flops(model, 1, length))
    published = model.published
    if published is None:
        return None
    if published.training_flops_per_sample is None and published.forward_flops_per_sample is not None:
        return TRAINING_PASSES * published.forward_flops_per_sample
    return published.training_flops_per_sample


def _workload_of_layers(model: Model, seq: int | None, token_bytes: float | None) -> SampledWorkload:
    fixed = model.stacks[0].tokens_per_sample
    tokens = fixed or seq
    if tokens is None:
        raise SpecError(f"{model.name}: the length of a sequence is not given")
    flops = TRAINING_PASSES * float(causal_forward_flops(model, 1, tokens))
    if fixed is None:
        each = token_bytes or stored_token_bytes(model)
        note = "" if token_bytes else f"; tokens of {each:g} bytes, for a vocabulary of {model.vocab:,}"
        what, nbytes = f"one sequence of {tokens:,} tokens", tokens * each
    else:
        what, note = f"one decoded image of {tokens:,} patches", "; 8 bits a channel; stored images are smaller"
        nbytes = tokens * stored_token_bytes(model)
    return SampledWorkload(
        name=model.name, sample=what, flops_per_sample=flops, sample_bytes=nbytes,
        source=f"counted from the layers{note}", model=model, tokens=tokens,
    )  # fmt: skip


def device_rate(
    work: SampledWorkload, cluster: Cluster, facts: Facts, *, batch: int | None = None, precision: str | None = None
) -> DeviceRate:
    """How fast one device trains on `work` when nothing keeps it waiting, `batch` samples a step.

    Raises:
        MissingFactError: the device lacks a rate.
        SpecError: the precision or the batch cannot be.
    """
    from flopwise.cost.convolutions import convolution_step_s, usable_precision  # noqa: PLC0415 - memory needs no times

    size = batch if batch is not None else work.batch or 1
    dtype = precision or work.precision or "bf16"
    if size < 1:
        raise SpecError(f"batch {size}; give 1 or more")
    if work.layers is not None:
        dtype = usable_precision(cluster.rates, dtype)
        parts = convolution_step_s(cluster.rates, work.layers, size, dtype)
        return DeviceRate(
            samples_per_s=size / float(parts.seconds), peak_flops_per_s=cluster.rates.peak_flops_per_s(dtype),
            precision=dtype, origin="layers", batch=size,
            parts=tuple((name.removesuffix("_s"), float(getattr(parts, name))) for name in parts._fields),
        )  # fmt: skip
    if work.model is not None and work.model.stacks:
        return _training_rate(work, work.model, cluster, facts, size, dtype)
    return share_rate(work, cluster, dtype)


def rate_band(rate: DeviceRate, calibration: Calibration) -> ErrorBand:
    """The error band of a rate that is no training estimate.

    Source: data/intervals.json, `io`. Assumes: a published share of the peak is as much less certain as
    `WIDER_BY_SHARE`.
    """
    band = error_band("io", calibration)
    if rate.origin == SHARE:
        return band.wider(WIDER_BY_SHARE, "the achieved rate is a published share of the peak")
    return band


def num_parameters(work: SampledWorkload) -> float | None:
    """Parameters of the model that is trained; None where they are not known."""
    model = work.model
    if model is None:
        return None
    if model.stacks:
        return float(parameters(model))
    return None if model.published is None or model.published.parameters is None else float(model.published.parameters)


def _training_rate(
    work: SampledWorkload, model: Model, cluster: Cluster, facts: Facts, batch: int, precision: str
) -> DeviceRate:
    from flopwise.training.estimate import estimate  # noqa: PLC0415 - memory needs no times

    assert work.tokens is not None
    named = "fp32" if precision == "tf32" else precision
    recipe = Recipe(
        seq_len=work.tokens, global_batch=batch, precision=named, optimizer=facts.optimizer(defaults.OPTIMIZER),
        stack=facts.stack(REFERENCE_STACK),
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
    from flopwise.cost.convolutions import usable_precision  # noqa: PLC0415 - memory needs no times

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
