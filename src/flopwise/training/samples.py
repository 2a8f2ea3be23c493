"""What is trained, sample by sample, for any network: FLOP and bytes of a sample, and how fast one device goes through.

Networks with layers of tokens are timed by the training estimate, convolutional ones by their layers; what is known by
published figures only gets the share of the peak that published runs reached.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flopwise.cost.convolutions import convolution_step_s, usable_precision
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts import defaults
from flopwise.facts.architecture import Linear, Model
from flopwise.facts.catalog import Facts
from flopwise.facts.samples import ConvolutionLayer, Sample
from flopwise.ops.flops import causal_forward_flops
from flopwise.training.estimate import TrainJob, estimate
from flopwise.training.layout import Layout, Precision, Recipe

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster

ASSUMED_FRAC = 0.25
"""Of the 16-bit peak: the middle of what runs of convolutional networks report (Kurth et al. 2018: 17 to 31 % on V100;
Ibrahim et al. 2021: 28 to 40 %), for networks of which no layers are known."""
SMALL_VOCABULARY = 2**16
"""Tokens of vocabularies up to this are stored in two bytes, others in four (Megatron's and Levanter's data sets)."""
REFERENCE_STACK = "fsdp-eager"
"""How the reference implementations of benchmarks run: eagerly, nothing fused."""
TRAINING_PASSES = 3.0
"""Forward, and backward twice that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
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
class Rate:
    """How fast one device trains: samples/s and the FLOP/s that makes, of a peak in FLOP/s."""

    samples_per_s: float
    peak_flops_per_s: float
    precision: str
    origin: str  # `layers`, `training estimate`, `published share`, `given`
    batch: int | None = None
    parts: tuple[tuple[str, float], ...] = ()  # seconds of a step
    notes: tuple[str, ...] = ()


def workload_of_sample(row: Sample, model: Model, facts: Facts, *, seq: int | None = None) -> Workload:
    """The benchmark workload in `row`, which trains `model`.

    Raises:
        MissingFactError: nobody has written down its FLOP.
    """
    tokens = seq or row.tokens
    flops = row.flops_per_sample
    notes: tuple[str, ...] = ()
    counted = counted_flops(model, tokens)
    if flops is None:
        if counted is None:
            raise MissingFactError(f"{row.name}: the FLOP of a sample are not known; give --flops-per-sample")
        flops = counted
    elif counted is not None and not 0.9 < flops / counted < 1.1:
        ratio = flops / counted
        notes = (
            f"FLOP of a sample as the source profiled them, {ratio:.2f}x what {model.name} counts ({counted:.4g})",
        )
    return Workload(
        name=row.name,
        sample=row.sample,
        flops_per_sample=flops,
        sample_bytes=row.sample_bytes,
        record_bytes=row.record_bytes,
        source=f"{row.source} ({row.date}, {row.confidence} confidence)",
        model=model,
        tokens=tokens if model.stacks else None,
        batch=row.batch,
        precision=row.precision,
        layers=facts.convolutions(model.name),
        achieved_frac=row.achieved_frac,
        notes=notes,
    )


def workload_of_model(
    model: Model, facts: Facts, *, seq: int | None = None, token_bytes: float | None = None
) -> Workload:
    """What training `model` reads and does for each sample: a sequence of `seq` tokens, an image, or as published.

    Raises:
        MissingFactError: the size of a sample or its FLOP are not known.
    """
    if model.stacks:
        return _layered(model, seq, token_bytes)
    held = model.published
    flops = counted_flops(model, None)
    if held is None or flops is None:
        raise MissingFactError(f"{model.name}: the FLOP of a sample are not known; give --flops-per-sample")
    if held.sample_bytes is None:
        raise MissingFactError(f"{model.name}: the size of a sample is not known; give --sample-bytes")
    row = facts.sample_of_model(model.name)
    return Workload(
        name=model.name,
        sample=held.sample,
        flops_per_sample=flops,
        sample_bytes=held.sample_bytes,
        record_bytes=row.record_bytes if row else None,
        source=f"{model.source} ({model.date}, {model.confidence} confidence)",
        model=model,
        batch=row.batch if row else None,
        precision=row.precision if row else None,
        layers=facts.convolutions(model.name),
        achieved_frac=row.achieved_frac if row else None,
    )


def counted_flops(model: Model, tokens: int | None) -> float | None:
    """FLOP of training on one sample, counted or as the catalog has them; None where neither is known."""
    if model.stacks:
        length = model.stacks[0].tokens_per_sample or tokens
        return None if length is None else TRAINING_PASSES * float(causal_forward_flops(model, 1, length))
    held = model.published
    if held is None:
        return None
    if held.training_flops_per_sample is None and held.forward_flops_per_sample is not None:
        return TRAINING_PASSES * held.forward_flops_per_sample
    return held.training_flops_per_sample


def stored_token_bytes(model: Model) -> float:
    """Bytes of a sample's record for each token: 2 or 4 for text; the decoded pixels of an image's patch."""
    if model.stacks[0].tokens_per_sample is not None:
        stem = next((i for i in model.stacks[0].before if isinstance(i, Linear)), None)
        if stem is None:
            raise MissingFactError(f"{model.name}: the size of a sample is not known; give its bytes")
        return float(stem.inputs)
    return 2.0 if model.vocab <= SMALL_VOCABULARY else 4.0


def _layered(model: Model, seq: int | None, token_bytes: float | None) -> Workload:
    fixed = model.stacks[0].tokens_per_sample
    tokens = fixed or seq
    if tokens is None:
        raise SpecError(f"{model.name}: the length of a sequence is not given")
    flops = TRAINING_PASSES * float(causal_forward_flops(model, 1, tokens))
    if fixed is None:
        each = token_bytes or stored_token_bytes(model)
        said = "" if token_bytes else f"; tokens of {each:g} bytes, for a vocabulary of {model.vocab:,}"
        what, nbytes = f"one sequence of {tokens:,} tokens", tokens * each
    else:
        what, said = f"one decoded image of {tokens:,} patches", "; 8 bits a channel; stored images are smaller"
        nbytes = tokens * stored_token_bytes(model)
    return Workload(
        name=model.name,
        sample=what,
        flops_per_sample=flops,
        sample_bytes=nbytes,
        source=f"counted from the layers{said}",
        model=model,
        tokens=tokens,
        batch=None,
        precision=None,
    )


def device_rate(
    work: Workload, cluster: Cluster, facts: Facts, *, batch: int | None = None, precision: str | None = None
) -> Rate:
    """How fast one device trains on `work` when nothing keeps it waiting, `batch` samples a step.

    Raises:
        MissingFactError: the device lacks a rate.
        SpecError: the precision or the batch cannot be.
    """
    size = batch if batch is not None else work.batch or 1
    dtype = precision or work.precision or "bf16"
    if size < 1:
        raise SpecError(f"batch {size}; give 1 or more")
    if work.layers is not None:
        dtype = usable_precision(cluster.rates, dtype)
        parts = convolution_step_s(cluster.rates, work.layers, size, dtype)
        return Rate(
            samples_per_s=size / float(parts.seconds),
            peak_flops_per_s=cluster.rates.peak_flops_per_s(dtype),
            precision=dtype,
            origin="layers",
            batch=size,
            parts=tuple((name.removesuffix("_s"), float(getattr(parts, name))) for name in parts._fields),
        )
    if work.model is not None and work.model.stacks:
        return _estimated(work, work.model, cluster, facts, size, dtype)
    return share_rate(work, cluster, dtype)


def _estimated(work: Workload, model: Model, cluster: Cluster, facts: Facts, batch: int, precision: str) -> Rate:
    assert work.tokens is not None
    named: Precision = "fp32" if precision in ("fp32", "tf32") else precision  # type: ignore[assignment]  # a name of the table of rates
    recipe = Recipe(
        seq_len=work.tokens,
        global_batch=batch,
        precision=named,
        optimizer=facts.optimizer(defaults.OPTIMIZER),
        stack=facts.stack(REFERENCE_STACK),
    )
    found = estimate(TrainJob(model=model, recipe=recipe, layout=Layout(micro_batch=batch), cluster=cluster))
    return Rate(
        samples_per_s=batch / found.step_s,
        peak_flops_per_s=cluster.rates.peak_flops_per_s(named),
        precision=named,
        origin="training estimate",
        batch=batch,
        parts=found.breakdown,
    )


def share_rate(work: Workload, cluster: Cluster, precision: str, share: float | None = None) -> Rate:
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
    return Rate(
        samples_per_s=taken * peak / work.flops_per_sample,
        peak_flops_per_s=peak,
        precision=cluster.rates.peak_dtype(dtype),
        origin="given" if share is not None else "published share",
        notes=notes,
    )


def renamed(work: Workload, **figures: float | None) -> Workload:
    """`work` with figures of the user's own: those that are None stay.

    Raises:
        SpecError: a figure is not above zero.
    """
    given = {name: value for name, value in figures.items() if value is not None}
    for name, value in given.items():
        if not 0 < value < float("inf"):
            raise SpecError(f"{name} {value}; give a finite number above 0")
    return replace(work, **given)  # type: ignore[arg-type]  # fields by name
