"""Requests as a load generator measured them, one by one: when they came, how long they were, what they waited.

Read are results of guidellm, of vLLM's `bench serve --save-detailed`, of AIPerf (its JSON lines) and of genai-perf.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flopwise.errors import SpecError
from flopwise.files import read_at_most

MOST_BYTES = 512 * 2**20
MOST_TOKENS = 2**31 - 1
_GIVE = "guidellm's JSON, vLLM's `bench serve --save-result --save-detailed`, AIPerf's profile_export.jsonl"


class _Row(NamedTuple):
    """One request; times in seconds, None where the file does not say."""

    start_s: float
    ttft_s: float
    e2e_s: float
    output: float
    prompt: float | None
    cached: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRequests:
    """Columns of one length, by time of arrival, which counts from the first request's."""

    arrival_s: NDArray[np.float64]
    prompt: NDArray[np.int64]  # 0: not known
    output: NDArray[np.int64]
    cached: NDArray[np.int64]  # tokens of the prompt that were cached already; 0 where that is not known
    ttft_s: NDArray[np.float64]
    e2e_s: NDArray[np.float64]
    began_at_s: float  # seconds since 1970; or of another clock, where the file says no date
    failed: int = 0  # requests that got no whole answer; they stand in no column
    drawn: bool = False  # from an engine's counters: the times are the means of their interval, NaN where it has none

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def itl_s(self) -> NDArray[np.float64]:
        """Mean time between the tokens of each answer; NaN for those of one token."""
        gaps = self.output - 1
        return np.where(gaps > 0, (self.e2e_s - self.ttft_s) / np.maximum(gaps, 1), np.nan)

    def take(self, rows: NDArray[np.bool_]) -> MeasuredRequests:
        """Some of them."""
        names = ("arrival_s", "prompt", "output", "cached", "ttft_s", "e2e_s")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})


def read_requests(path: Path) -> MeasuredRequests:
    """The requests of a load generator's file.

    Raises:
        SpecError: it cannot be read, is of no known format, or holds sums alone.
    """
    try:
        data = read_at_most(path, MOST_BYTES)
    except OSError as fault:
        raise SpecError(f"{path}: cannot be read ({fault.strerror or fault})") from None
    if len(data) > MOST_BYTES:
        raise SpecError(f"{path}: larger than {MOST_BYTES:,} bytes")
    documents = _documents(data)
    rows, failed = list[_Row](), 0
    for document in documents:
        for reader in (_guidellm, _vllm, _genai_perf, _aiperf):
            found = list(reader(document))
            if found:
                whole = [row for row in found if row is not None and _is_sound(row)]
                rows += whole
                failed += len(found) - len(whole)
                break
    if not rows:
        raise SpecError(
            f"{path}: no requests with their times ({failed:,} failed); sums alone make no trace. Give {_GIVE}"
        )
    return _columns(rows, failed)


def _documents(data: bytes) -> list[Mapping[str, Any]]:
    """The JSON of a file, or of each of its lines."""
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError):
        whole = []
        for line in data.splitlines():
            try:
                whole.append(json.loads(line) if line.strip() else None)
            except (ValueError, RecursionError):
                return []
    found = whole if isinstance(whole, list) else [whole]
    return [one for one in found if isinstance(one, dict)]


def _is_sound(row: _Row) -> bool:
    numbers = (row.start_s, row.ttft_s, row.e2e_s, row.output, row.prompt or 0.0, row.cached or 0.0)
    return (
        all(math.isfinite(n) for n in numbers) and 0 < row.ttft_s <= row.e2e_s * (1 + 1e-9) + 1e-9
        and 1 <= row.output <= MOST_TOKENS and 0 <= (row.prompt or 0) <= MOST_TOKENS
    )  # fmt: skip


def _columns(rows: Iterable[_Row], failed: int) -> MeasuredRequests:
    ordered = sorted(rows, key=lambda row: row.start_s)
    first = ordered[0].start_s
    return MeasuredRequests(
        arrival_s=np.array([row.start_s - first for row in ordered]),
        prompt=np.array([round(row.prompt or 0) for row in ordered], dtype=np.int64),
        output=np.array([round(row.output) for row in ordered], dtype=np.int64),
        cached=np.array([round(row.cached or 0) for row in ordered], dtype=np.int64),
        ttft_s=np.array([row.ttft_s for row in ordered]), e2e_s=np.array([row.e2e_s for row in ordered]),
        began_at_s=first, failed=failed,
    )  # fmt: skip


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _guidellm(document: Mapping[str, Any]) -> Iterator[_Row | None]:
    """Source: guidellm 0.8.1, `GenerativeRequestStats` of each benchmark."""
    for benchmark in _objects(document.get("benchmarks")):
        requests = benchmark.get("requests")
        if not isinstance(requests, dict):
            continue
        for one in _objects(requests.get("successful")):
            cached = _number(one.get("cached_tokens"))
            yield _Row(
                _number(one.get("request_start_time")), _number(one.get("time_to_first_token_ms")) / 1e3,
                _number(one.get("request_latency")), _number(one.get("output_tokens")),
                _number(one.get("prompt_tokens")), None if math.isnan(cached) else cached,
            )  # fmt: skip
        for _ in _objects(requests.get("errored")):
            yield None


def _vllm(document: Mapping[str, Any]) -> Iterator[_Row | None]:
    """Source: vLLM 0.32, `vllm/benchmarks/serve.py`: lists of one length, failed requests with an error and zeros."""
    names = ("start_times", "ttfts", "itls", "input_lens", "output_lens")
    columns = [document.get(name) for name in names]
    if not all(isinstance(column, list) for column in columns):
        return
    for start, ttft, itls, prompt, output in zip(*columns, strict=False):
        gaps = [_number(gap) for gap in itls] if isinstance(itls, list) else [math.nan]
        first = _number(ttft)
        yield _Row(_number(start), first, first + sum(gaps), _number(output), _number(prompt))


def _genai_perf(document: Mapping[str, Any]) -> Iterator[_Row | None]:
    """Source: perf_analyzer's `profile_export.json`; nanoseconds. An answer is a token; prompts are not counted."""
    for experiment in _objects(document.get("experiments")):
        for one in _objects(experiment.get("requests")):
            start, answers = _number(one.get("timestamp")), one.get("response_timestamps")
            if not isinstance(answers, list) or not answers:
                yield None
                continue
            first, last = (_number(answers[place]) - start for place in (0, -1))
            yield _Row(start / 1e9, first / 1e9, last / 1e9, float(len(answers)), None)


_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


def _aiperf(document: Mapping[str, Any]) -> Iterator[_Row | None]:
    """Source: AIPerf's `profile_export.jsonl`: a line a request, each metric with its unit."""
    metrics, about = document.get("metrics"), document.get("metadata")
    if not isinstance(metrics, dict) or not isinstance(about, dict) or "request_start_ns" not in about:
        return

    def value(name: str) -> float:
        held = metrics.get(name)
        if not isinstance(held, dict):
            return math.nan
        return _number(held.get("value")) * _SECONDS.get(str(held.get("unit")), 1.0)

    yield _Row(
        _number(about.get("request_start_ns")) / 1e9, value("time_to_first_token"), value("request_latency"),
        value("output_sequence_length"), value("input_sequence_length"),
    )  # fmt: skip
