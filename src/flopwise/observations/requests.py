"""Single requests as a load generator measured them: arrival, lengths and latencies.

Supported are results of guidellm, of vLLM's `bench serve --save-detailed`, of AIPerf (JSON lines) and of genai-perf.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flopwise.errors import SpecError
from flopwise.records.imports import genai_perf, guidellm, vllm_bench
from flopwise.records.imports.raw import LoadRequest, Source
from flopwise.values import dataclass, replace

MOST_TOKENS = 2**31 - 1
_GIVE = "guidellm's JSON, vLLM's `bench serve --save-result --save-detailed`, AIPerf's profile_export.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRequests:
    """Columns of equal length, sorted by arrival; arrivals count from the first request."""

    arrival_s: NDArray[np.float64]
    prompt: NDArray[np.int64]  # 0: not known
    output: NDArray[np.int64]
    cached: NDArray[np.int64]  # tokens of the prompt that were in the cache; 0: none, or not known
    ttft_s: NDArray[np.float64]
    e2e_s: NDArray[np.float64]
    began_at_s: float  # seconds since 1970; or of another clock, where the file has no date
    failed: int = 0  # requests without a complete answer; the columns leave them out
    users: int | None = None  # of a closed loop, where the file gives them
    drawn: bool = False  # generated from an engine's counters: times are means of an interval, NaN where it has none

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def itl_s(self) -> NDArray[np.float64]:
        """Mean time between the tokens of each answer, in seconds; NaN for answers of one token."""
        gaps = self.output - 1
        return np.where(gaps > 0, (self.e2e_s - self.ttft_s) / np.maximum(gaps, 1), np.nan)

    def take(self, rows: NDArray[np.bool_]) -> MeasuredRequests:
        """The requests at `rows`."""
        names = ("arrival_s", "prompt", "output", "cached", "ttft_s", "e2e_s")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})


def read_requests(path: Path) -> MeasuredRequests:
    """The requests of a load generator's file.

    Raises: SpecError: the file cannot be read, has no known format, or has only sums.
    """
    documents = Source(path).documents
    every = (
        (reader, [one for document in documents for one in reader.requests_of(document)])
        for reader in (guidellm, vllm_bench, genai_perf)
    )
    reader, requests = next(((reader, one) for reader, one in every if one), (guidellm, []))
    rows = [one for one in requests if one is not None and _is_sound(one)]
    failed = len(requests) - len(rows)
    if not rows:
        raise SpecError(
            f"{path}: no single requests with times ({failed:,} failed), so there is no trace. Give {_GIVE}"
        )
    users = {number for document in documents for number in reader.users_of(document)}
    return _columns(rows, failed, users.pop() if len(users) == 1 else None)


def _is_sound(row: LoadRequest) -> bool:
    return (
        math.isfinite(row.start_s) and 0 < row.ttft_s <= row.e2e_s * (1 + 1e-9) + 1e-9 < math.inf
        and 1 <= row.output <= MOST_TOKENS and not row.prompt < 0 and not row.prompt > MOST_TOKENS
        and not math.isinf(row.cached)
    )  # fmt: skip


def _columns(rows: Sequence[LoadRequest], failed: int, users: int | None) -> MeasuredRequests:
    ordered = sorted(rows, key=lambda row: row.start_s)
    first = ordered[0].start_s
    prompt, output, cached = (
        np.array([0 if math.isnan(n) else round(n) for n in column], dtype=np.int64)
        for column in zip(*((row.prompt, row.output, row.cached) for row in ordered), strict=True)
    )
    return MeasuredRequests(
        arrival_s=np.array([row.start_s - first for row in ordered]), prompt=prompt, output=output, cached=cached,
        ttft_s=np.array([row.ttft_s for row in ordered]), e2e_s=np.array([row.e2e_s for row in ordered]),
        began_at_s=first, failed=failed, users=users,
    )  # fmt: skip
