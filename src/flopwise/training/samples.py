"""FLOP and bytes of a sample, for any network: counted from its layers, or as published."""

from __future__ import annotations

from typing import Any

from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.samples import ConvolutionLayer, TrainingSample
from flopwise.facts.spec import ModelName, SourceSpec
from flopwise.ops.flops import causal_forward_flops, runs
from flopwise.ops.tensors import parameters
from flopwise.training.storage import holds_text_alone, stored_token_bytes
from flopwise.units import format_flops
from flopwise.values import dataclass

OF_BENCHMARKS = ("record_bytes", "batch", "precision", "achieved_frac")
"""What a workload has from the row of its benchmark alone."""
TEXT_ONLY = "samples are text only: images and sound beside it are read as well (--sample-bytes has all)"
"""What is assumed of a model with towers that a pass over text does not run."""
TRAINING_PASSES = 3.0
"""Forward, and backward twice that."""


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
        times = f"{flops / counted:.2f} times the {format_flops(counted)} of the layers of {model.name}"
        notes = (f"FLOP of a sample as the source profiled them: {times}",)
    return SampledWorkload(
        name=row.name, sample=row.sample, flops_per_sample=flops, sample_bytes=row.sample_bytes,
        source=f"{row.source} ({row.date}, {row.confidence} confidence)", model=model,
        tokens=tokens if model.stacks else None, layers=facts.convolutions(model.name), notes=notes,
        **{name: getattr(row, name) for name in OF_BENCHMARKS},
    )  # fmt: skip


def workload_of_model(
    model: Model, facts: Facts, *, seq: int | None = None, token_bytes: float | None = None
) -> SampledWorkload:
    """The work and reads of training `model` for each sample: a sequence of `seq` tokens, an image, or as published.

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


def benchmark_and_model(name: ModelName, source: SourceSpec) -> tuple[TrainingSample | None, Model]:
    """The benchmark's workload of that name, None where there is none, and the model that is trained.

    Raises:
        SpecError: as `SourceSpec.model`.
    """
    row = source.catalog.sample(name) if isinstance(name, str) else None
    return row, source.model(name if row is None else row.model)


def network_of_samples(name: ModelName, source: SourceSpec) -> SampledWorkload | None:
    """The work of a training sample of a model without token layers, where it is known; else None.

    Raises:
        SpecError: as `SourceSpec.model`.
    """
    row, model = benchmark_and_model(name, source)
    known = model.published is not None and model.published.sample_bytes and counted_flops(model, None)
    if model.stacks or not (known or row):
        return None
    facts = source.catalog
    return workload_of_model(model, facts) if row is None else workload_of_sample(row, model, facts)


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
    each = stored_token_bytes(model, tokens)
    if fixed is not None:
        what, note = f"one decoded image of {tokens:,} patches", "; 8 bits a channel; stored images are smaller"
    else:
        what, note = f"one sequence of {tokens:,} tokens", ""
        if token_bytes:
            each = token_bytes
        elif holds_text_alone(model):
            note = f"; tokens of {each:g} bytes, for a vocabulary of {model.vocab:,}"
        else:
            what, note = f"{what} and its sound", "; sound of 16 kHz in 16 bits; compressed files are smaller"
    nbytes, seeing = tokens * each, model.sees or any(not runs(model, stack) for stack in model.stacks)
    return SampledWorkload(
        name=model.name, sample=what, flops_per_sample=flops, sample_bytes=nbytes,
        source=f"counted from the layers{note}", model=model, tokens=tokens, notes=(TEXT_ONLY,) * seeing,
    )  # fmt: skip


def num_parameters(work: SampledWorkload) -> float | None:
    """Parameters of the model that is trained; None where they are not known."""
    model = work.model
    if model is None:
        return None
    if model.stacks:
        return float(parameters(model))
    return None if model.published is None or model.published.parameters is None else float(model.published.parameters)
