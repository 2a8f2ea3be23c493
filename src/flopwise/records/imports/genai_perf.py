"""Exports of genai-perf and its successor AIPerf: the statistics, and the record of each request.

Source: `profile_export_genai_perf.json`, `profile_export_aiperf.json` (each metric with unit, avg and percentiles,
`input_config`), `profile_export.json` of perf_analyzer (experiments with requests; nanoseconds), `profile_export.jsonl`
of AIPerf (a line a request), as NVIDIA's documents describe them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
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
    time_of,
)

_METRICS = {
    "time_to_first_token": "ttft_s", "inter_token_latency": "itl_s", "request_latency": "e2e_s",
    "request_throughput": "requests_per_s", "output_token_throughput": "tokens_per_s",
}  # fmt: skip
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}


def recognises(source: Source) -> bool:
    """True if the file has one of the three formats."""
    document = mapping_of(source.document)
    raw = bool(objects_of(document.get("experiments"))) and "requests" in document["experiments"][0]
    return (
        raw
        or _is_lines(source)
        or "avg" in mapping_of(document.get("request_latency") or document.get("request_throughput"))
    )


def _is_lines(source: Source) -> bool:
    """True if it has AIPerf's records of requests, one line of JSON each."""
    first = mapping_of(source.documents[0] if source.documents else None)
    return "request_start_ns" in mapping_of(first.get("metadata")) and "metrics" in first


def read_runs(source: Source) -> list[RawRun]:
    """One run of statistics, or one for each experiment."""
    if _is_lines(source):
        run = RawRun(name=source.path.stem, task="serve")
        lines = [one for document in source.documents for one in requests_of(document)]
        _add_requests(run, [one if one is not None and math.isfinite(sum(one[:4])) else None for one in lines])
        return [run]
    document = source.document
    if "experiments" in document:
        experiments = objects_of(document["experiments"])
        return [
            _experiment(one, source, "" if len(experiments) == 1 else f"-{n + 1}") for n, one in enumerate(experiments)
        ]
    return [_statistics(document, source)]


def _statistics(document: Mapping[str, Any], source: Source) -> RawRun:
    config = mapping_of(document.get("input_config"))
    ended_at_s = time_of(document.get("end_time")) or source.changed_at_s
    run = RawRun(
        name=source.path.stem, task="serve", ended_at_s=ended_at_s,
        started_at_s=time_of(document.get("start_time")) or ended_at_s,
    )  # fmt: skip
    for name, metric in _METRICS.items():
        figure = mapping_of(document.get(name))
        value = number_of(figure.get("avg"))
        if value is not None:
            run.add(metric, value * _scale(figure, metric), ended_at_s)
    for name, setting in (("input_sequence_length", "input_tokens"), ("output_sequence_length", "output_tokens")):
        if mean := number_of(mapping_of(document.get(name)).get("avg")):
            run.settings[setting] = max(1, round(mean))
    flat = dict(_flat(config))
    run.model = next((str(flat[key]) for key in flat if key.split(".")[-1] in {"model", "model_names"}), None)
    in_flight = next((flat[k] for k in flat if k.split(".")[-1] == "concurrency" and number_of(flat[k])), None)
    rate = next((flat[k] for k in flat if k.split(".")[-1] == "request_rate" and number_of(flat[k])), None)
    if in_flight:
        run.settings["concurrency"] = int(number_of(in_flight) or 1)
    elif rate:
        run.settings["rate"] = number_of(rate)
    run.notes.append("the file has means only, no single requests, so there is no noise interval")
    return run


def _scale(figure: Mapping[str, Any], metric: str) -> float:
    """Seconds per unit of a time; milliseconds if the file names no unit."""
    unit = str(figure.get("unit") or "ms").lower()
    return _UNITS.get(unit, 1e-3) if metric in {"ttft_s", "itl_s", "e2e_s"} else 1.0


def _flat(config: Mapping[str, Any], lead: str = "") -> Iterator[tuple[str, object]]:
    """The values of a nested mapping by their paths; for a list its first item."""
    for name, value in config.items():
        entry = value[0] if isinstance(value, list) and value else value
        if isinstance(entry, dict):
            yield from _flat(entry, f"{lead}{name}.")
        elif entry is not None:
            yield f"{lead}{name}", entry


def requests_of(document: Mapping[str, Any]) -> Iterator[LoadRequest | None]:
    """The requests of all experiments, or the one of a line of AIPerf's; None for those that failed."""
    for experiment in objects_of(document.get("experiments")):
        yield from map(_request, objects_of(experiment.get("requests")))
    if "request_start_ns" in mapping_of(document.get("metadata")):
        yield _line(document)


def users_of(document: Mapping[str, Any]) -> set[int | None]:
    """Clients of a closed loop in each experiment; None for requests at a rate, or if it is not known."""
    how = [mapping_of(one.get("experiment")) for one in objects_of(document.get("experiments"))]
    return {step_of(one.get("value")) or None if one.get("mode") == "concurrency" else None for one in how}


def _request(one: Mapping[str, Any]) -> LoadRequest | None:
    """From perf_analyzer's timestamps: an answer counts as one token, and prompt lengths are unknown."""
    start, answers = number_of(one.get("timestamp")), one.get("response_timestamps")
    times = [t for at in (answers if isinstance(answers, list) else ()) if (t := number_of(at)) is not None]
    if start is None or not times:
        return None
    return LoadRequest(start / 1e9, (times[0] - start) / 1e9, (max(times) - start) / 1e9, float(len(times)))


def _line(document: Mapping[str, Any]) -> LoadRequest:
    """From AIPerf's metrics, each with its unit."""
    metrics = mapping_of(document.get("metrics"))

    def value(name: str) -> float:
        metric = mapping_of(metrics.get(name))
        return scaled_number(metric.get("value"), _UNITS.get(str(metric.get("unit")).lower(), 1.0))

    return LoadRequest(
        scaled_number(mapping_of(document["metadata"]).get("request_start_ns"), 1e-9), value("time_to_first_token"),
        value("request_latency"), value("output_sequence_length"), value("input_sequence_length"),
    )  # fmt: skip


def _experiment(one: Mapping[str, Any], source: Source, ending: str) -> RawRun:
    """The time to the first answer and between answers, for each request."""
    run = RawRun(name=f"{source.path.stem}{ending}", task="serve")
    how = mapping_of(one.get("experiment"))
    value = number_of(how.get("value"))
    if value:
        run.settings["concurrency" if how.get("mode") == "concurrency" else "rate"] = (
            int(value) if how.get("mode") == "concurrency" else value
        )
    _add_requests(run, map(_request, objects_of(one.get("requests"))))
    run.notes.append("the record has no token counts: each streamed chunk counts as one token")
    return run


def _add_requests(run: RawRun, requests: Iterable[LoadRequest | None]) -> None:
    """Add each request and the totals."""
    numbered = [(number, one) for number, one in enumerate(requests) if one is not None]
    for number, one in numbered:
        run.add_request(one, one.start_s, number)
    if not numbered:
        return
    ends = [one.start_s + one.e2e_s for _, one in numbered]
    run.started_at_s, run.ended_at_s = min(one.start_s for _, one in numbered), max(ends)
    length_s, tokens = run.ended_at_s - run.started_at_s, sum(one.output for _, one in numbered)
    if length_s > 0:
        run.add("requests_per_s", len(numbered) / length_s, max(ends))
        run.add("tokens_per_s", tokens / length_s, max(ends))
    run.settings.setdefault("output_tokens", max(1, round(tokens / len(numbered))))
    prompts = [one.prompt for _, one in numbered if one.prompt > 0]
    if prompts:
        run.settings.setdefault("input_tokens", max(1, round(sum(prompts) / len(prompts))))
