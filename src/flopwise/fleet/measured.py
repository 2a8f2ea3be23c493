"""What the chosen way of a workload is expected to do: one full estimate with its intervals, intensity and bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flopwise.errors import FlopwiseError
from flopwise.fleet.spec import API
from flopwise.ops.cache import kv_bytes_per_token
from flopwise.ops.flops import backward_flops, causal_forward_flops, operations
from flopwise.ops.tensors import parameters
from flopwise.search.deployments import answers_in_one_pass
from flopwise.search.serving_option import candidate_job as serving_job
from flopwise.search.training_option import candidate_job as training_job
from flopwise.serving.bands import serving_band
from flopwise.serving.estimate import estimate as served
from flopwise.training.estimate import estimate as trained
from flopwise.training.memory import memory_band

if TYPE_CHECKING:
    from flopwise.cost.intervals import ErrorBand
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.fleet.candidates import Carried
    from flopwise.fleet.way import Way
    from flopwise.training.estimate import TrainEstimate

BOUNDS = {
    "compute": "compute-bound: matrix products",
    "memory": "memory-bound: bandwidth of the device",
    "communication": "bound by communication between devices",
    "host": "bound by the host: kernel launches",
    "bubble": "bound by the pipeline's bubble",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Figures of one way; `time_low` and `time_high` are factors on its time (or on its machines, for services)."""

    parameters: int
    memory_bytes: float  # of all devices of one copy
    memory_frac: float  # of the fullest device
    memory_high_frac: float  # the same, upper end of its interval
    intensity: float | None
    pattern: str
    time_low: float
    time_high: float
    figures: dict[str, Any]
    breakdown: dict[str, float]
    notes: tuple[str, ...]


def measured(item: Carried, found: Way, facts: Facts) -> Measured | None:
    """The estimate of the way that was chosen; None for machines to work on, and for an API's."""
    if item.wanted is None or found.purchase == API:
        return None
    model = facts.model(item.wanted.model)
    if item.placed.job.task in {"pretrain", "finetune"}:
        return _trained(item, found, facts, model)
    return _served(item, found, facts, model)


def _trained(item: Carried, found: Way, facts: Facts, model: Model) -> Measured:

    assert item.wanted is not None
    told = trained(training_job(item.wanted, model, facts, found.offer, found.candidate))
    held, band = found.candidate, told.band
    memory = memory_band(told.job.recipe, facts.calibration)
    low, high = told.low * told.num_gpus, told.high * told.num_gpus
    figures = {
        "run_s": _ranged(held.seconds, held.seconds / band.high, held.seconds / band.low),
        "tokens_per_s": _ranged(told.tokens_per_s, low, high),
        "mfu_frac": told.mfu_frac,
        "step_s": told.step_s,
    }
    return Measured(
        parameters=int(parameters(model)),
        memory_bytes=held.memory_bytes * held.num_gpus,
        memory_frac=held.memory_bytes / held.capacity_bytes,
        memory_high_frac=held.memory_bytes * memory.high / held.capacity_bytes,
        intensity=_training_intensity(told, model),
        pattern=_pattern(told.bound),
        time_low=1 / band.high,
        time_high=1 / band.low,
        figures=figures,
        breakdown=dict(told.breakdown),
        notes=told.assumptions,
    )


def _training_intensity(told: TrainEstimate, model: Model) -> float:
    """FLOP of forward and backward over the bytes that their operations move, thrice those of the forward pass."""
    batch, seq = int(told.job.layout.micro_batch), int(told.job.recipe.seq_len)
    moved = 3 * sum(float(o.bytes) for o in operations(model, batch, seq))
    return (float(causal_forward_flops(model, batch, seq)) + float(backward_flops(model, batch, seq))) / moved


def _served(item: Carried, found: Way, facts: Facts, model: Model) -> Measured | None:

    assert item.wanted is not None
    held, wanted = found.candidate, item.wanted
    job = serving_job(wanted, model, facts, found.offer, held)
    one_pass = answers_in_one_pass(model, wanted)
    bands = {name: serving_band(job, name) for name in ("ttft", "throughput", *(() if one_pass else ("tpot",)))}
    try:
        told = served(job)
        pattern, breakdown, notes = _pattern(told.bound), dict(told.breakdown), told.assumptions
        weights = float(told.memory.items["weights"]) * told.num_gpus
    except FlopwiseError as error:
        pattern, breakdown, notes, weights = "not estimated alone", {}, (str(error),), held.memory_bytes
    rate = float(held.figures["requests_per_s_capacity"] or 0.0)
    figures: dict[str, Any] = {"requests_per_s": _banded(rate, bands["throughput"])}
    for name in ("ttft", "tpot"):
        value = held.figures.get(f"{name}_s")
        if value is not None and name in bands:
            figures[f"{name}_s"] = _banded(value, bands[name])
    latency = float(held.figures["e2e_s"] or 0.0)
    figures["latency_s"] = _banded(latency, bands["ttft" if one_pass else "tpot"])
    percentile = next((t.percentile for t in (wanted.latency, wanted.ttft, wanted.tpot) if t is not None), "p95")
    figures["percentile"] = percentile
    tokens = held.figures.get("output_tokens_per_s")
    if tokens is not None:
        figures["output_tokens_per_s"] = _banded(tokens, bands["throughput"])
    if item.placed.ends:
        band = bands["throughput"]
        figures["run_s"] = _ranged(held.seconds, held.seconds / band.high, held.seconds / band.low)
    return Measured(
        parameters=int(parameters(model)),
        memory_bytes=held.memory_bytes * job.num_gpus,
        memory_frac=held.memory_bytes / held.capacity_bytes,
        memory_high_frac=min(1.0, held.memory_bytes / held.capacity_bytes),
        intensity=_serving_intensity(item, model, weights, float(held.layout["max_batch"]), one_pass=one_pass),
        pattern=pattern,
        time_low=1 / bands["throughput"].high,
        time_high=1 / bands["throughput"].low,
        figures=figures,
        breakdown=breakdown,
        notes=tuple(notes),
    )


def _serving_intensity(item: Carried, model: Model, weights: float, batch: float, *, one_pass: bool) -> float:
    """FLOP of a request over the bytes it has the devices read: weights shared with its batch, its own cache."""
    assert item.wanted is not None
    inputs, outputs = item.wanted.input_tokens, item.wanted.output_tokens
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


def _banded(value: float, band: ErrorBand) -> dict[str, float]:
    low, high = band.interval(value)
    return _ranged(value, float(low), float(high))


def _ranged(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high}
