"""`benchmarks.json` of guidellm: a run for each strategy (synchronous, concurrent, constant rate ...).

Source: guidellm 0.8.1, `benchmark/schemas`: `GenerativeBenchmarksReport`, `GenerativeMetrics`, `SchedulerMetrics`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from flopwise.records.imports.raw import (
    LoadRequest,
    RawRun,
    Source,
    mapping_of,
    number_of,
    objects_of,
    scaled_number,
    step_of,
)
from flopwise.records.model import Event

_MEANS = {
    "ttft_s": ("time_to_first_token_ms", 1e-3), "itl_s": ("inter_token_latency_ms", 1e-3),
    "e2e_s": ("request_latency", 1.0), "requests_per_s": ("requests_per_second", 1.0),
    "tokens_per_s": ("output_tokens_per_second", 1.0), "requests_running": ("request_concurrency", 1.0),
}  # fmt: skip
_OF_REQUESTS = ("ttft_s", "itl_s", "e2e_s")


def recognises(source: Source) -> bool:
    """True if the file has this format."""
    document = mapping_of(source.document)
    benchmarks = objects_of(document.get("benchmarks"))
    return (
        bool(benchmarks)
        and "metrics" in benchmarks[0]
        and "time_to_first_token_ms" in mapping_of(benchmarks[0]["metrics"])
    )


def read_runs(source: Source) -> list[RawRun]:
    """A run for each benchmark."""
    document = source.document
    version = mapping_of(document.get("metadata")).get("guidellm_version")
    benchmarks = objects_of(document["benchmarks"])
    runs = [_run(one, source, place, len(benchmarks)) for place, one in enumerate(benchmarks)]
    for run in runs:
        if version:
            run.software["guidellm"] = str(version)
    return runs


def requests_of(document: Mapping[str, Any]) -> Iterator[LoadRequest | None]:
    """The requests of all benchmarks; None for those that failed."""
    for benchmark in objects_of(document.get("benchmarks")):
        yield from _requests(benchmark)


def users_of(document: Mapping[str, Any]) -> set[int | None]:
    """Clients of a closed loop in each benchmark; None where requests came at a rate."""
    counts = set[int | None]()
    for one in objects_of(document.get("benchmarks")):
        strategy = mapping_of(mapping_of(one.get("config")).get("strategy"))
        kind = strategy.get("type_") or mapping_of(one.get("scheduler_metrics")).get("strategy_type")
        users = _load(strategy, str(kind)).get("concurrency")
        counts.add(users if isinstance(users, int) else None)
    return counts


def _requests(benchmark: Mapping[str, Any]) -> Iterator[LoadRequest | None]:
    listed = mapping_of(benchmark.get("requests"))
    for one in objects_of(listed.get("successful")):
        yield LoadRequest(
            scaled_number(one.get("request_start_time")), scaled_number(one.get("time_to_first_token_ms"), 1e-3),
            scaled_number(one.get("request_latency")), scaled_number(one.get("output_tokens")),
            scaled_number(one.get("prompt_tokens")), scaled_number(one.get("cached_tokens")),
            scaled_number(one.get("inter_token_latency_ms"), 1e-3),
        )  # fmt: skip
    yield from (None for _ in objects_of(listed.get("errored")))


def _run(one: Mapping[str, Any], source: Source, place: int, count: int) -> RawRun:
    metrics, config = mapping_of(one.get("metrics")), mapping_of(one.get("config"))
    times = mapping_of(one.get("scheduler_metrics"))
    strategy = mapping_of(config.get("strategy"))
    start = number_of(times.get("measure_start_time") or times.get("start_time") or one.get("start_time"))
    end = number_of(times.get("measure_end_time") or times.get("end_time") or one.get("end_time"))
    kind = str(strategy.get("type_") or times.get("strategy_type") or place + 1)
    run = RawRun(
        name=source.path.stem if count == 1 else f"{source.path.stem}-{kind}-{place + 1}", task="serve",
        started_at_s=start or source.changed_at_s, ended_at_s=end, model=_model(config),
    )  # fmt: skip
    inputs, outputs = (_mean(metrics, name) for name in ("prompt_token_count", "output_token_count"))
    if inputs:
        run.settings["input_tokens"] = max(1, round(inputs))
    if outputs:
        run.settings["output_tokens"] = max(1, round(outputs))
    run.settings |= _load(strategy, kind)
    listed = [request for request in _requests(one) if request is not None]
    for metric, (name, scale) in _MEANS.items():
        value = _mean(metrics, name)
        if value and not (listed and metric in _OF_REQUESTS):
            run.add(metric, value * scale, end or run.started_at_s)
    for number, request in enumerate(listed):
        run.add_request(request, run.started_at_s if math.isnan(request.start_s) else request.start_s, number)
    if not listed:
        run.notes.append("the file has means only, no single requests, so there is no noise interval")
    failed = number_of(mapping_of(metrics.get("request_totals")).get("errored"))
    if failed:
        run.events.append(Event(end or start or source.changed_at_s, "failed requests", f"{failed:,.0f} failed"))
    return run


def _mean(metrics: Mapping[str, Any], name: str) -> float | None:
    """The mean over successful requests."""
    return number_of(mapping_of(mapping_of(metrics.get(name)).get("successful")).get("mean"))


def _load(strategy: Mapping[str, Any], kind: str) -> dict[str, object]:
    """Requests in flight, or the rate, of a strategy; empty if it sends as many as possible."""
    streams, rate = step_of(strategy.get("streams")), number_of(strategy.get("rate"))
    if kind == "synchronous":
        return {"concurrency": 1}
    if kind == "concurrent" and streams:
        return {"concurrency": streams}
    if kind in {"constant", "poisson", "async"} and rate:
        return {"rate": rate}
    most = step_of(strategy.get("max_concurrency"))
    return {"concurrency": most} if most else {}


def _model(config: Mapping[str, Any]) -> str | None:
    backend = mapping_of(config.get("backend"))
    for place in (backend, mapping_of(backend.get("args")), mapping_of(config.get("environment"))):
        for name in ("model", "model_name", "target_model"):
            if isinstance(place.get(name), str) and place[name]:
                return str(place[name])
    return None
