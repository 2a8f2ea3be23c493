"""Rows of published serving results, predicted: tokens per second of all GPUs, times to the first token and a token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from flopwise.backtests.names import named_model
from flopwise.backtests.prediction import Prediction, number, skipped
from flopwise.backtests.serving_cells import (
    Place,
    row_cache_format,
    row_device,
    row_format,
    row_lengths,
    row_place,
    row_requests,
)
from flopwise.backtests.serving_engines import row_engine
from flopwise.cost.cluster import Cluster, cluster
from flopwise.errors import FlopwiseError, SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts, Resolution
from flopwise.serving.estimate import estimate
from flopwise.serving.job import Ranged, ServeEstimate, ServeJob
from flopwise.serving.memory import ServingLayout

Row = Mapping[str, str]

UNITS = {"output_tokens_per_s": "tokens/s", "tpot_s": "s", "ttft_s": "s"}
PROMPT_ONLY = ("prefill_throughput", "prefill_latency")
OFFLINE = ("offline_max_throughput", "mlperf_offline")
ONLINE = ("serving_concurrency", "serving_qps")
STREAM = "single_stream_decode"
MODES = (*OFFLINE, "fixed_batch", "serving_concurrency", "serving_qps", STREAM, *PROMPT_ONLY)


def measured_quantities(row: Row) -> dict[str, float]:
    """What the row measured, in SI units; throughput of output tokens, all GPUs together.

    Sources that print a total of input and output tokens mean the same requests: the output's share is taken.
    """
    inputs, outputs = number(row, "input_len"), number(row, "output_len")
    rate = number(row, "output_tokens_per_s_total")
    per_gpu, both, requests = (
        number(row, c) for c in ("output_tokens_per_s_per_gpu", "total_tokens_per_s", "requests_per_s")
    )
    if rate is None and per_gpu is not None:
        rate = per_gpu * (number(row, "n_gpus") or 1.0)
    if rate is None and requests is not None and outputs:
        rate = requests * outputs
    if rate is None and both is not None and inputs and outputs:
        rate = both * outputs / (inputs + outputs)
    found = {"output_tokens_per_s": rate}
    for name, columns in (
        ("tpot_s", ("tpot_ms_mean", "tpot_ms_p50", "itl_ms_mean")),
        ("ttft_s", ("ttft_ms_mean", "ttft_ms_p50")),
    ):
        value = next((v for c in columns if (v := number(row, c)) is not None), None)
        found[name] = None if value is None else value / 1e3
    return {name: value for name, value in found.items() if value is not None}


def asked_quantities(row: Row) -> tuple[str, ...]:
    """What is predicted of a row that measured nothing: what its mode is about."""
    mode = row.get("mode", "")
    if mode in PROMPT_ONLY:
        return ("ttft_s",)
    return ("output_tokens_per_s",) if mode in (*OFFLINE, STREAM) else tuple(UNITS)


@lru_cache(maxsize=256)
def _cluster(gpu: Resolution, *, alone: bool) -> Cluster:
    """Machines of that device; one that works alone needs no link."""
    return cluster(gpu.accelerator, gpus_per_node=1 if alone else None, ambiguous=gpu.note)


def row_job(row: Row, facts: Facts) -> tuple[ServeJob, Place]:
    """The job of a row, and how many replicas of it there are.

    Raises:
        FlopwiseError: a name is not known, or a cell is missing.
    """
    mode = row.get("mode", "")
    if mode not in MODES:
        raise SpecError(f"mode {mode[:60]!r} is unknown; known: {', '.join(MODES)}")
    gpu = row_device(row, facts)
    model = named_model(row.get("model", ""), facts)
    software = row_engine(row, facts, device_year=gpu.accelerator.year, model_type=model.model_type)
    place = row_place(row, model, software)
    weights = row_format(row, software, facts)
    if weights.name == "bf16" and "bf16" not in gpu.accelerator.peak and "fp16" in gpu.accelerator.peak:
        weights = facts.weight_format("fp16")
    if mode in OFFLINE and number(row, "input_len") is None:
        raise SpecError("input_len is missing")
    sent = row_requests(row) if mode in ONLINE else None
    at_once = None if mode in OFFLINE else _in_flight(row, mode, sent)
    rate = None
    if mode == "serving_qps" and row.get("request_rate", "").strip().lower() not in {"", "inf"}:
        rate = number(row, "request_rate")
    inputs, outputs = row_lengths(row)
    outputs = 1 if mode in PROMPT_ONLY else outputs
    tool = mode == "fixed_batch" and software.name.startswith(
        "llama.cpp"
    )  # llama-bench: -b is the prompt tokens of one step
    job = ServeJob(
        model=_reaching(model, inputs + outputs),
        cluster=_cluster(gpu, alone=place.tp * place.pp * place.dp == 1),
        layout=ServingLayout(tp=place.tp, pp=place.pp, ep=place.ep, dp=place.dp),
        weights=weights,
        kv_dtype=row_cache_format(row, software, weights, facts),
        engine=software,
        input_tokens=inputs,
        output_tokens=outputs,
        concurrency=None if at_once is None else 1 if tool else max(1, -(-at_once // place.replicas)),
        requests=None if sent is None else max(1, sent // place.replicas),
        arrivals_per_s=None if rate is None else rate / place.replicas,
        static=mode in ("fixed_batch", *PROMPT_ONLY),
        prefill_tokens=at_once if tool else None,
    )
    return job, place


@lru_cache(maxsize=256)
def _reaching(model: Model, tokens: int) -> Model:
    """The model with a context of at least `tokens`: what was measured was possible."""
    if model.max_position is None or model.max_position >= tokens:
        return model
    return replace(model, max_position=tokens)


def _in_flight(row: Row, mode: str, sent: int | None) -> int | None:
    """Requests at once; None where the rate decides. No more than are `sent`: all of them where none waits."""
    if mode == "serving_qps":
        return sent if row.get("request_rate", "").strip().lower() == "inf" else None
    stated = number(row, "batch" if mode == "fixed_batch" else "concurrency") or number(row, "batch")
    if stated is None and mode in ("fixed_batch", "serving_concurrency"):
        raise SpecError("neither batch nor concurrency is stated")
    return min(int(stated or 1), sent or int(stated or 1))


def _figure(result: ServeEstimate, quantity: str, mode: str, replicas: int) -> Ranged:
    """One quantity of an estimate; one stream's speed is that of its tokens, the prompt apart."""
    if quantity == "ttft_s":
        return result.ttft_s
    if result.tpot_s is None:
        raise SpecError(f"{result.job.model.name} does not generate tokens")
    tpot = result.tpot_s
    if quantity == "tpot_s":
        return tpot
    if mode == STREAM:
        return replace(tpot, value=1 / tpot.value, low=1 / tpot.high, high=1 / tpot.low)
    rate = result.output_tokens_per_s
    assert rate is not None
    return replace(rate, value=rate.value * replicas, low=rate.low * replicas, high=rate.high * replicas)


def predict_row(row: Row, facts: Facts) -> list[Prediction]:
    """One prediction for each quantity that the row measured (that its mode is about, where it measured none)."""
    measured = measured_quantities(row)
    asked = tuple(measured) or asked_quantities(row)
    name, mode = row.get("id", ""), row.get("mode", "")
    try:
        job, place = row_job(row, facts)
        result = estimate(job)
        figures = {q: _figure(result, q, mode, place.replicas) for q in asked}
    except FlopwiseError as error:
        return [skipped(name, UNITS[q], str(error), measured.get(q), q) for q in asked]
    return [
        Prediction(
            id=name,
            unit=UNITS[q],
            quantity=q,
            measured=measured.get(q),
            predicted=figure.value,
            low=figure.low,
            high=figure.high,
            band=figure.band,
        )
        for q, figure in figures.items()
    ]
