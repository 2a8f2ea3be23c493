"""The steady steps of a run, without warm-up and pauses, and the standard error of their level.

The rule, on the times of log lines (each stands for the steps since the previous line):

- The level is the median of the second half, its spread 1.4826 x the median absolute deviation from it (the standard
  deviation, were the times normally distributed).
- Warm-up is the first lines, until a line and most of the `SETTLED` lines from it on are no more than 3 spreads (at
  least 5 %) above the level; at most half of the run.
- A pause is a later line that is more than 6 spreads (at least 20 %) above the level. The pause is its time beyond the
  median: of an evaluation or a checkpoint if one is recorded in the line, else of unknown kind.
- Where step times leave evaluations and checkpoints out, as those of callbacks do, such a pause is the time between two
  lines that is not of their steps, if it is as long and one is recorded in it.

The level, the spread and both thresholds are robust statistics: up to half of the lines may be pauses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flopwise.records.model import Event
from flopwise.values import dataclass

NORMAL = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation: 1 / 0.6745."""
SETTLED = 5
WARM, WARM_FRAC = 3.0, 0.05
PAUSE, PAUSE_FRAC = 6.0, 0.2
RULE = (
    "steady state: without the first lines until most of 5 are within 3 spreads (at least 5 %) of the median of the "
    "second half, and without those more than 6 spreads (at least 20 %) above it; a spread is 1.4826 x the median "
    "absolute deviation"
)
PAUSES = {"evaluation": "evaluation", "eval": "evaluation", "checkpoint": "checkpoint", "save": "checkpoint"}
"""Kinds of pauses, by the kinds of events that record them."""
DRAWS, MOST_DRAWN, BATCHES = 1000, 2000, 30
Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """A median or mean with its standard error; no error for a single value."""

    value: float
    error: float | None
    count: int
    statistic: str  # median or mean

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the statistic."""
        return None if self.error is None else (self.value - 1.96 * self.error, self.value + 1.96 * self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """All pauses of one kind: their number, and their time beyond the steps in them, in seconds."""

    kind: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadySteps:
    """The steady level of a run's step times, and the excluded lines."""

    level: Statistic
    kept: NDArray[np.bool_]  # which lines are steady
    warm_up_lines: int
    warm_up_s: float  # beyond the level
    pauses: tuple[Pause, ...]
    whole_s: float  # of all lines, including warm-up and pauses


def level(values: Sequence[float] | Column, statistic: str = "median") -> Statistic | None:
    """The median or mean of finite values, with a standard error from a block bootstrap; None without values.

    Up to `MOST_DRAWN` values: blocks of neighbours are resampled `DRAWS` times, with a fixed seed. For more values: the
    standard deviation of the statistic over `BATCHES` parts of the run, over the root of their number. Both include
    slow drifts.

    Source: Kuensch 1989, "The jackknife and the bootstrap for general stationary observations" (Annals of Statistics
    17); batch means, Law and Kelton 2000, "Simulation Modeling and Analysis", section 9.5.3.
    Assumes: values further apart than a block (the cube root of their number) or a part are independent.
    """
    data = np.asarray(values, dtype=float)
    data = data[np.isfinite(data)]
    if not data.size:
        return None
    center = np.median if statistic == "median" else np.mean
    value = float(center(data))
    if data.size < 3:  # two values do not determine a spread
        return Statistic(value=value, error=None, count=data.size, statistic=statistic)
    if data.size > MOST_DRAWN:
        each = [float(center(batch)) for batch in np.array_split(data, BATCHES)]
        return Statistic(
            value=value, error=float(np.std(each, ddof=1) / BATCHES**0.5), count=data.size, statistic=statistic
        )
    length = math.ceil(data.size ** (1 / 3))
    starts = np.random.default_rng(0).integers(0, data.size, size=(DRAWS, math.ceil(data.size / length), 1))
    places = ((starts + np.arange(length)) % data.size).reshape(DRAWS, -1)[
        :, : data.size
    ]  # the end joins the beginning
    drawn = center(data[places], axis=1)
    return Statistic(value=value, error=float(np.std(drawn)), count=data.size, statistic=statistic)


def steady(steps: NDArray[np.int64], at_s: Column, seconds: Column, events: Sequence[Event]) -> SteadySteps | None:
    """The steady step times, by the rule above; None without a finite time."""
    known = np.isfinite(seconds) & (seconds > 0)
    if not known.any():
        return None
    strides = _strides(steps)
    half = seconds[known][known.sum() // 2 :]
    middle = float(np.median(half))
    spread = NORMAL * float(np.median(np.abs(half - middle)))
    slow = ~known | (seconds > middle + max(WARM * spread, WARM_FRAC * middle))
    warm = _warm_up_lines(slow)
    paused = known & (seconds > middle + max(PAUSE * spread, PAUSE_FRAC * middle))
    paused[:warm] = False
    kept = known & ~paused
    kept[:warm] = False
    if not kept.any():
        kept, warm, paused = known.copy(), 0, np.zeros_like(known)
    steady_level = level(seconds[kept])
    assert steady_level is not None
    beyond = np.where(known, np.maximum(seconds - steady_level.value, 0.0), 0.0) * strides
    pauses: dict[str, list[float]] = {}
    for place in np.flatnonzero(paused):
        kind = _kind(
            int(steps[place]), float(at_s[place]), float(seconds[place] * strides[place]), events, strides[place]
        )
        pauses.setdefault(kind, []).append(float(beyond[place]))
    least_s = max(PAUSE * spread, PAUSE_FRAC * middle)
    between_s = _recorded_pauses(steps, at_s, np.where(known, seconds, np.inf) * strides, events, least_s)
    for kind, each_s in between_s.items():
        pauses.setdefault(kind, []).extend(each_s)
    return SteadySteps(
        level=steady_level, kept=kept, warm_up_lines=warm, warm_up_s=float(beyond[:warm].sum()),
        pauses=tuple(Pause(kind=kind, count=len(each), seconds=sum(each)) for kind, each in sorted(pauses.items())),
        whole_s=float((seconds[known] * strides[known]).sum()) + sum(map(sum, between_s.values())),
    )  # fmt: skip


def _recorded_pauses(
    steps: NDArray[np.int64], at_s: Column, line_s: Column, events: Sequence[Event], least_s: float
) -> dict[str, list[float]]:
    """Times of at least `least_s` before lines of `line_s` that are of a recorded evaluation or checkpoint, by kind."""
    pauses: dict[str, list[float]] = {}
    apart_s = np.diff(at_s, prepend=at_s[:1])
    for place in np.flatnonzero(apart_s - line_s > least_s):
        kind = _kind(int(steps[place]), float(at_s[place]), float(apart_s[place]), events, stride=0)
        if kind != "other":
            pauses.setdefault(kind, []).append(float(apart_s[place] - line_s[place]))
    return pauses


def _strides(steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Steps that each line stands for: those since the previous line; 1 if not known, or if the step number falls."""
    strides = np.diff(steps, prepend=steps[:1])
    usual = int(np.median(strides[1:])) if strides.size > 1 else 1
    strides[:1] = max(usual, 1)
    return np.where((steps < 0) | (strides < 1), 1, strides)


def _warm_up_lines(slow: NDArray[np.bool_]) -> int:
    """Number of warm-up lines: those before the first line that is not slow, as are most of the `SETTLED` after it."""
    most = slow.size // 2
    for start in range(most):
        if not slow[start] and slow[start : start + SETTLED].mean() < 0.5:
            return start
    return most if slow.size >= 2 * SETTLED else 0


def _kind(step: int, at_s: float, seconds: float, events: Sequence[Event], stride: int) -> str:
    """The kind of a line's pause: that of an event within its time or its steps."""
    for event in events:
        word = next((word for key, word in PAUSES.items() if event.kind.startswith(key)), None)
        in_time = at_s - seconds <= event.at_s <= at_s
        in_steps = event.step is not None and step >= 0 and step - stride <= event.step <= step
        if word is not None and (in_time or in_steps):
            return word
    return "other"
