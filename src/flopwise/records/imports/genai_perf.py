"""Exports of genai-perf and its successor AIPerf: the statistics, and perf_analyzer's record of each request.

Source: `profile_export_genai_perf.json`, `profile_export_aiperf.json` (each metric with unit, avg and percentiles,
`input_config`), `profile_export.json` (experiments with requests; nanoseconds), as NVIDIA's documents describe them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flopwise.records.imports.raw import RawRun, Source, mapping_of, number_of, objects_of, time_of

_METRICS = {
    "time_to_first_token": "ttft_s", "inter_token_latency": "itl_s", "request_latency": "e2e_s",
    "request_throughput": "requests_per_s", "output_token_throughput": "tokens_per_s",
}  # fmt: skip
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}


def recognises(source: Source) -> bool:
    """Whether the file is one of the two."""
    document = mapping_of(source.document)
    raw = bool(objects_of(document.get("experiments"))) and "requests" in document["experiments"][0]
    return raw or "avg" in mapping_of(document.get("request_latency") or document.get("request_throughput"))


def read_runs(source: Source) -> list[RawRun]:
    """One run of statistics, or one for each experiment."""
    document = source.document
    if "experiments" in document:
        found = objects_of(document["experiments"])
        return [_experiment(one, source, "" if len(found) == 1 else f"-{n + 1}") for n, one in enumerate(found)]
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
    run.notes.append("means alone, without the requests: no interval of the noise")
    return run


def _scale(figure: Mapping[str, Any], metric: str) -> float:
    """Seconds in one unit of a time; milliseconds where none is named."""
    unit = str(figure.get("unit") or "ms").lower()
    return _UNITS.get(unit, 1e-3) if metric in {"ttft_s", "itl_s", "e2e_s"} else 1.0


def _flat(config: Mapping[str, Any], lead: str = "") -> Iterator[tuple[str, object]]:
    """The values of a nested mapping by their paths; of a list its first."""
    for name, value in config.items():
        held = value[0] if isinstance(value, list) and value else value
        if isinstance(held, dict):
            yield from _flat(held, f"{lead}{name}.")
        elif held is not None:
            yield f"{lead}{name}", held


def _experiment(one: Mapping[str, Any], source: Source, ending: str) -> RawRun:
    """Of each request the first answer and the gaps between answers; an answer counts as one token."""
    run = RawRun(name=f"{source.path.stem}{ending}", task="serve")
    how = mapping_of(one.get("experiment"))
    value = number_of(how.get("value"))
    if value:
        run.settings["concurrency" if how.get("mode") == "concurrency" else "rate"] = (
            int(value) if how.get("mode") == "concurrency" else value
        )
    starts, ends, tokens = list[float](), list[float](), 0
    for number, request in enumerate(objects_of(one.get("requests"))):
        start = number_of(request.get("timestamp"))
        answers = request.get("response_timestamps")
        times = [t for at in (answers if isinstance(answers, list) else ()) if (t := number_of(at)) is not None]
        if start is None or not times:
            continue
        at_s, last_s = start / 1e9, max(times) / 1e9
        starts.append(at_s)
        ends.append(last_s)
        tokens += len(times)
        run.add("ttft_s", (times[0] - start) / 1e9, at_s, number)
        run.add("e2e_s", (max(times) - start) / 1e9, at_s, number)
        if len(times) > 1:
            run.add("itl_s", (max(times) - times[0]) / 1e9 / (len(times) - 1), at_s, number)
    if starts:
        run.started_at_s, run.ended_at_s = min(starts), max(ends)
        length_s = max(ends) - min(starts)
        if length_s > 0:
            run.add("requests_per_s", len(starts) / length_s, max(ends))
            run.add("tokens_per_s", tokens / length_s, max(ends))
        run.settings.setdefault("output_tokens", max(1, round(tokens / len(starts))))
    run.notes.append("the record has no tokens: each streamed answer is taken for one")
    return run
