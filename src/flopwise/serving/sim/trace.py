"""Requests as columns: when they come and what they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flopwise.errors import SpecError
from flopwise.ops.types import Array

Column = NDArray[np.int64]
PS = 10**12
"""Picoseconds a second: the simulator's clock."""
LONGEST_S = 4e6
"""Latest time that a trace may speak of: the clock counts to twice that."""
MOST_TOKENS = 2**31
"""Tokens of one prompt or answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTrace:
    """Requests by time of arrival; int64 columns of one length. Built by `trace`, which checks them."""

    arrival_ps: Column
    prompt: Column  # tokens, at least 1
    output: Column  # tokens, at least 1: the first is made by the prompt's last step
    priority: Column  # smaller goes first where the policy looks at it
    prefix: Column  # prompts with one number begin with the same tokens; -1: with none
    prefix_tokens: Column  # how many those are
    deadline_ps: Column  # when the answer must be complete; -1: no such time

    def __len__(self) -> int:
        return len(self.arrival_ps)

    @property
    def duration_s(self) -> float:
        """From the start of the clock to the last arrival."""
        return float(self.arrival_ps[-1]) / PS

    @property
    def requests_per_s(self) -> float:
        """Arrivals over the time between first and last; infinite where all come at once."""
        span = float(self.arrival_ps[-1] - self.arrival_ps[0]) / PS
        return (len(self) - 1) / span if span else float("inf")

    def take(self, rows: Array) -> RequestTrace:
        """Some of the requests: a mask, or row numbers in the order wanted."""
        return RequestTrace(**{name: getattr(self, name)[rows] for name in self.__slots__})

    def arriving(self, arrival_ps: Column) -> RequestTrace:
        """The same requests at other times, which must ascend."""
        return replace(self, arrival_ps=arrival_ps)


Numbers = Sequence[float] | Sequence[int] | Array


def trace(
    arrival_s: Numbers,
    prompt_tokens: Numbers,
    output_tokens: Numbers,
    *,
    priority: Numbers | None = None,
    prefix: Numbers | None = None,
    prefix_tokens: Numbers | None = None,
    deadline_s: Numbers | None = None,
) -> RequestTrace:
    """Requests of these columns; times in seconds, `deadline_s` from the start of the clock (negative: none).

    Raises:
        SpecError: no requests, columns of different lengths, times that are negative, not finite or not in order,
            counts that are not whole or below 1. Names the column and the first row (from 0) that is wrong.
    """
    arrival = _times(arrival_s, "arrival_s")
    rows = len(arrival)
    if not rows:
        raise SpecError("a trace without requests; at least one arrival is needed")
    backwards = np.flatnonzero(np.diff(arrival) < 0)
    if len(backwards):
        at = int(backwards[0])
        raise SpecError(
            f"arrival_s row {at + 1}: {arrival[at + 1] / PS:g} s comes before {arrival[at] / PS:g} s of the row above; "
            "sort the requests by arrival"
        )
    none, shared = np.full(rows, -1, dtype=np.int64), np.zeros(rows, dtype=np.int64)
    built = RequestTrace(
        arrival_ps=arrival,
        prompt=_counts(prompt_tokens, "prompt_tokens", least=1),
        output=_counts(output_tokens, "output_tokens", least=1),
        priority=shared if priority is None else _counts(priority, "priority", least=-MOST_TOKENS),
        prefix=none if prefix is None else _counts(prefix, "prefix", least=-1),
        prefix_tokens=shared if prefix_tokens is None else _counts(prefix_tokens, "prefix_tokens", least=0),
        deadline_ps=none if deadline_s is None else _times(deadline_s, "deadline_s", signed=True),
    )
    for name in built.__slots__:
        if len(getattr(built, name)) != rows:
            raise SpecError(
                f"{name} has {len(getattr(built, name)):,} rows, arrival_s has {rows:,}; give one a request"
            )
    return built


def _first(wrong: Array) -> int:
    return int(np.flatnonzero(wrong)[0])


def _times(values: Numbers, name: str, *, signed: bool = False) -> Column:
    """Seconds as picoseconds."""
    seconds = _numbers(values, name)
    wrong = ~np.isfinite(seconds) | (np.abs(seconds) > LONGEST_S)
    wrong = wrong if signed else wrong | (seconds < 0)
    if np.any(wrong):
        at = _first(wrong)
        raise SpecError(f"{name} row {at}: {seconds[at]:g} is not a time; allowed: 0 to {LONGEST_S:,.0f} s")
    return np.where(seconds < 0, -1, np.rint(seconds * PS)).astype(np.int64)


def _counts(values: Numbers, name: str, *, least: int) -> Column:
    """Whole numbers."""
    given = _numbers(values, name)
    with np.errstate(invalid="ignore"):
        wrong = ~(np.isfinite(given) & (given >= least) & (given < MOST_TOKENS) & (given == np.floor(given)))
    if np.any(wrong):
        at = _first(wrong)
        raise SpecError(
            f"{name} row {at}: {given[at]:g} is out of range; "
            f"allowed: whole numbers from {least:,} to {MOST_TOKENS - 1:,}"
        )
    return given.astype(np.int64)


def _numbers(values: Numbers, name: str) -> Array:
    try:
        column = np.asarray(values)
        if column.dtype.kind not in "iuf":
            column = column.astype(np.float64)
    except (TypeError, ValueError):
        raise SpecError(f"{name}: not a column of numbers") from None
    if column.ndim != 1:
        raise SpecError(f"{name}: {column.ndim} dimensions; a column has one")
    return column
