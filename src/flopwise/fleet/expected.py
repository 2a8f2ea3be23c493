"""What a candidate is expected to do: its figures with their intervals, its memory, and what bounds it."""

from __future__ import annotations

from typing import Any

from flopwise.cost.intervals import ErrorBand
from flopwise.errors import FlopwiseError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.offers import Offer
from flopwise.ops.cache import kv_bytes_per_token
from flopwise.ops.flops import backward_flops, causal_forward_flops, operations
from flopwise.ops.tensors import parameters
from flopwise.search.answer import Candidate
from flopwise.search.deployments import latency_percentiles
from flopwise.search.replica import answers_in_one_pass
from flopwise.search.replica import candidate_job as serving_job
from flopwise.search.run_job import candidate_job as training_job
from flopwise.search.serving_option import RequestLinkNeed, link_needs
from flopwise.search.spec import TRAINING
from flopwise.search.workload import Resolved
from flopwise.serving.estimate import estimate as serving_estimate
from flopwise.serving.job import latency_band, serving_band
from flopwise.storage.needs import StorageNeed, run_storage_needs, service_storage_needs
from flopwise.training.estimate import estimate as training_estimate
from flopwise.training.memory import memory_band
from flopwise.training.network import LinkNeed, network_needs
from flopwise.training.start import OBJECT_STORE
from flopwise.values import dataclass

BOUNDS = {
    "compute": "compute-bound: matrix products",
    "memory": "memory-bound: bandwidth of the device",
    "communication": "bound by communication between devices",
    "host": "bound by the host: kernel launches",
    "bubble": "bound by the pipeline's bubble",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedFigures:
    """Figures of one option; `time_low` and `time_high` are factors on its time (or on its machines, for services)."""

    parameters: int
    memory_bytes: float  # of all devices of one copy
    memory_frac: float  # of the fullest device
    memory_high_frac: float  # the same, upper end of its interval
    engine_bytes: float | None = None  # of a device that the inference engine takes for itself; None of training
    intensity: float | None
    pattern: str
    time_low: float
    time_high: float
    figures: dict[str, Any]
    breakdown: dict[str, float]
    network: tuple[LinkNeed, ...] | tuple[RequestLinkNeed, ...] = ()  # what its links have to carry
    storage: tuple[StorageNeed, ...] = ()  # what storage has to deliver and take


def expected_figures(workload: Resolved, candidate: Candidate, offer: Offer, facts: Facts) -> ExpectedFigures:
    """The expected figures of a workload's candidate on the machines of an offer, estimated in full."""
    if workload.task in TRAINING:
        return _training_figures(workload, candidate, offer, facts)
    return _serving_figures(workload, candidate, offer, facts)


def _training_figures(workload: Resolved, candidate: Candidate, offer: Offer, facts: Facts) -> ExpectedFigures:
    """Figures of a run. Its intensity is FLOP of forward and backward over thrice the bytes of the forward pass."""
    model = facts.model(workload.model)
    estimate = training_estimate(training_job(workload, model, facts, offer, candidate))
    band, gpus = estimate.band, estimate.num_gpus
    memory = memory_band(estimate.job.recipe, facts.calibration, estimate.job.cluster.accelerator)
    batch, seq = int(estimate.job.layout.micro_batch), int(estimate.job.recipe.seq_len)
    flops = float(causal_forward_flops(model, batch, seq)) + float(backward_flops(model, batch, seq))
    figures = {
        "run_s": _run_s(candidate, band),
        "start_s": candidate.start_s,
        "tokens_per_s": _ends(estimate.tokens_per_s, estimate.low * gpus, estimate.high * gpus),
        "mfu_frac": estimate.mfu_frac,
        "step_s": estimate.step_s,
    }
    return ExpectedFigures(
        parameters=int(parameters(model)), memory_bytes=candidate.memory_bytes * candidate.num_gpus,
        memory_frac=candidate.memory_bytes / candidate.capacity_bytes,
        memory_high_frac=candidate.memory_bytes * memory.high / candidate.capacity_bytes,
        intensity=flops / (3 * sum(float(o.bytes) for o in operations(model, batch, seq))),
        pattern=_pattern(estimate.bound), time_low=1 / band.high, time_high=1 / band.low, figures=figures,
        breakdown=dict(estimate.breakdown), network=network_needs(estimate.step),
        storage=run_storage_needs(estimate.job, estimate.tokens_per_s, epochs=workload.data.epochs),
    )  # fmt: skip


def _serving_figures(workload: Resolved, candidate: Candidate, offer: Offer, facts: Facts) -> ExpectedFigures:
    """Figures of a service, or of a batch."""
    model = facts.model(workload.model)
    job = serving_job(workload, model, facts, offer, candidate)
    one_pass = answers_in_one_pass(model, workload)
    bands = {name: serving_band(job, name) for name in ("ttft", "throughput", *(() if one_pass else ("tpot",)))}
    try:
        estimate = serving_estimate(job)
        pattern, breakdown = _pattern(estimate.bound), dict(estimate.breakdown)
        weights = float(estimate.memory.items["weights"]) * estimate.num_gpus
        engine_bytes = float(estimate.memory.usable_bytes) if job.engine.memory_rule != "all" else None
    except FlopwiseError:
        pattern, breakdown, weights, engine_bytes = "not estimated alone", {}, candidate.memory_bytes, None
    through, known = bands["throughput"], candidate.figures
    figures: dict[str, Any] = {"requests_per_s": _with_band(float(known["requests_per_s_capacity"] or 0.0), through)}
    percentiles = latency_percentiles(workload)
    for name in ("ttft", "tpot"):
        value = known.get(f"{name}_s")
        if value is not None and name in bands:
            figures[f"{name}_s"] = _with_band(value, bands[name]) | {"percentile": percentiles[name]}
    whole_s = float(known["e2e_s"] or 0.0)
    ends = latency_band(job).interval(float(known["ttft_s"] or whole_s), whole_s)
    figures["latency_s"] = _ends(whole_s, *ends) | {"percentile": percentiles["latency"]}
    tokens = known.get("output_tokens_per_s")
    if tokens is not None:
        figures["output_tokens_per_s"] = _with_band(tokens, through)
    if workload.task == "batch":
        figures |= {"run_s": _run_s(candidate, through), "start_s": candidate.start_s}
    batch = 0.0 if one_pass else float(candidate.layout["max_batch"])
    return ExpectedFigures(
        parameters=int(parameters(model)), memory_bytes=candidate.memory_bytes * job.num_gpus,
        memory_frac=candidate.memory_bytes / candidate.capacity_bytes,
        memory_high_frac=min(1.0, candidate.memory_bytes / candidate.capacity_bytes), engine_bytes=engine_bytes,
        intensity=_serving_intensity(workload, model, weights, batch), pattern=pattern, time_low=1 / through.high,
        time_high=1 / through.low, figures=figures, breakdown=breakdown,
        network=link_needs(workload, model, facts, offer, candidate),
        storage=service_storage_needs(job, facts.storage(OBJECT_STORE), candidate.num_instances),
    )  # fmt: skip


def _serving_intensity(workload: Resolved, model: Model, weights: float, batch: float) -> float:
    """FLOP of a request over the bytes it has the devices read: weights shared with its batch, its own cache.

    `batch`: 0 where requests are answered in one pass.
    """
    inputs, outputs = workload.input_tokens, workload.output_tokens
    flops = float(causal_forward_flops(model, 1, inputs))
    moved = sum(float(o.bytes) for o in operations(model, 1, inputs))
    if batch:
        each = float(kv_bytes_per_token(model, 2.0))
        flops *= 1 + outputs / inputs
        moved += outputs * (weights / batch + each * (inputs + outputs / 2))
    return flops / moved


def _pattern(bound: str) -> str:
    first = bound.split(maxsplit=1)[0].strip(",;:").lower() if bound else ""
    return BOUNDS.get(first, bound)


def _run_s(candidate: Candidate, band: ErrorBand) -> dict[str, float]:
    return _ends(candidate.seconds, candidate.seconds / band.high, candidate.seconds / band.low)


def _with_band(value: float, band: ErrorBand) -> dict[str, Any]:
    low, high = band.interval(value)
    return _ends(value, float(low), float(high))


def _ends(value: float, low: float, high: float) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high}
