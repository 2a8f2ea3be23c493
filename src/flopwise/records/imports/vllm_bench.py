"""Results of vLLM's load generator: `vllm bench serve --save-result [--save-detailed]`, `benchmark_serving.py`.

Source: vLLM 0.32, `vllm/benchmarks/serve.py`; SGLang's `bench_serving` writes the same figures. Detailed results have
each request: `ttfts`, `itls` (a list per request), `output_lens`, `start_times` (of a clock without a date).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
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
from flopwise.records.model import Event

_SUMMARIES = {"ttft_s": "mean_ttft_ms", "itl_s": "mean_tpot_ms", "e2e_s": "mean_e2el_ms"}
_OTHER_NAMES = {"itl_s": ("mean_itl_ms",), "e2e_s": ("mean_e2e_latency_ms",)}


def recognises(source: Source) -> bool:
    """True if the file is such a result, or a list of them."""
    return any({"request_throughput", "completed", "duration"} <= {*one} for one in _results(source))


def _results(source: Source) -> list[Mapping[str, Any]]:
    document = source.document
    return objects_of(document) or ([document] if mapping_of(document) else [])


def read_runs(source: Source) -> list[RawRun]:
    """A run for each result."""
    results = _results(source)
    return [_run(result, source, "" if len(results) == 1 else f"-{place + 1}") for place, result in enumerate(results)]


def _run(result: Mapping[str, Any], source: Source, ending: str) -> RawRun:
    length_s = number_of(result.get("duration")) or 0.0
    ended_at_s = _date(result.get("date")) or source.changed_at_s
    run = RawRun(
        name=f"{source.path.stem}{ending}", task="serve", started_at_s=ended_at_s - length_s, ended_at_s=ended_at_s,
        model=str(result["model_id"]) if result.get("model_id") else None,
    )  # fmt: skip
    run.settings |= _settings(result)
    run.add("requests_per_s", result.get("request_throughput"), ended_at_s)
    run.add("tokens_per_s", result.get("output_throughput"), ended_at_s)
    if not _add_requests(run, result):
        for metric, key in _SUMMARIES.items():
            named = next((name for name in (key, *_OTHER_NAMES.get(metric, ())) if name in result), key)
            value = number_of(result.get(named))
            if value:
                run.add(metric, value / 1e3, ended_at_s)
        run.notes.append("the file has means only (--save-detailed adds requests), so there is no noise interval")
    if failed := number_of(result.get("failed")):
        run.events.append(Event(ended_at_s, "failed requests", f"{failed:,.0f} requests failed"))
    return run


def _settings(result: Mapping[str, Any]) -> dict[str, object]:
    """Lengths, load and engine in the file; the load is the requests in flight, else the rate."""
    done = number_of(result.get("completed")) or 0.0
    settings: dict[str, object] = {}
    for name, total in (("input_tokens", "total_input_tokens"), ("output_tokens", "total_output_tokens")):
        tokens = number_of(result.get(total))
        if tokens and done:
            settings[name] = max(1, round(tokens / done))
    if done and "output_tokens" in settings:
        settings["requests"] = int(done)  # a run with an end
    in_flight, rate = number_of(result.get("max_concurrency")), number_of(result.get("request_rate"))
    if in_flight:
        settings["concurrency"] = int(in_flight)
    elif rate and rate < float("inf"):
        settings["rate"] = rate
    elif prompts := number_of(result.get("num_prompts")):
        settings["concurrency"] = int(prompts)  # all of them at once
    backend = str(result.get("backend") or "")
    if backend in {"vllm", "sglang", "tensorrt-llm"}:
        settings["engine"] = backend
    return settings


def requests_of(document: Mapping[str, Any]) -> Iterator[LoadRequest | None]:
    """The requests of one result; None for those that failed."""
    first, gaps = document.get("ttfts"), document.get("itls")
    if not isinstance(first, list) or not isinstance(gaps, list) or len(first) != len(gaps):
        return
    for place, (ttft, own) in enumerate(zip(first, gaps, strict=True)):
        seconds = scaled_number(ttft)
        if _at(document.get("errors"), place) or not seconds > 0:
            yield None
            continue
        whole = [value for gap in (own if isinstance(own, list) else ()) if (value := number_of(gap)) is not None]
        start, latency, output, prompt = (
            scaled_number(_at(document.get(name), place))
            for name in ("start_times", "latencies", "output_lens", "input_lens")
        )
        e2e_s = latency if latency > 0 else seconds + sum(whole)
        yield LoadRequest(start, seconds, e2e_s, output if output > 0 else len(whole) + 1.0, prompt)


def users_of(document: Mapping[str, Any]) -> set[int | None]:
    """Clients of a closed loop, the maximum number of requests in flight; None for requests at a rate."""
    at_a_rate = number_of(document.get("request_rate")) not in (None, math.inf)
    return {None if at_a_rate else step_of(document.get("max_concurrency")) or None}


def _add_requests(run: RawRun, result: Mapping[str, Any]) -> bool:
    """Add each request; False if the file has none."""
    requests = list(requests_of(result))
    begun = run.started_at_s
    assert begun is not None
    zero = min((one.start_s for one in requests if one is not None and not math.isnan(one.start_s)), default=0.0)
    for place, one in enumerate(requests):
        if one is not None:
            run.add_request(one, begun + (0.0 if math.isnan(one.start_s) else one.start_s - zero), place)
    return bool(requests)


def _at(values: object, place: int) -> object:
    return values[place] if isinstance(values, list) and place < len(values) else None


def _date(value: object) -> float | None:
    """Seconds since 1970 from `20261122-140501`, which has no time zone and is read as UTC, or from ISO 8601."""
    try:
        return datetime.strptime(str(value), "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return time_of(value) if value else None
