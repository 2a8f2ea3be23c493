"""How good many predictions are: the figures of a backtest, as a whole and by group."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from flopwise.backtests.prediction import Prediction
from flopwise.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors are fractions (predicted / measured - 1); None where no row has both figures.

    `coverage` is the share of measured values inside the 10-90 % interval: 0.8 when intervals are honest.
    """

    rows: int
    predicted_rows: int
    skipped_rows: int
    median_abs_error: float | None
    p90_abs_error: float | None
    bias: float | None  # the median error with its sign
    coverage: float | None


def summarize(predictions: Iterable[Prediction]) -> Errors:
    """The figures of `predictions`."""
    members = list(predictions)
    errors = np.array([p.error for p in members if p.error is not None], dtype=float)
    inside = [
        p.low <= p.measured <= p.high
        for p in members
        if p.error is not None and p.measured is not None and p.low is not None and p.high is not None
    ]
    predicted = sum(1 for p in members if p.predicted is not None)
    return Errors(
        rows=len(members),
        predicted_rows=predicted,
        skipped_rows=len(members) - predicted,
        median_abs_error=float(np.median(np.abs(errors))) if errors.size else None,
        p90_abs_error=float(np.quantile(np.abs(errors), 0.9)) if errors.size else None,
        bias=float(np.median(errors)) if errors.size else None,
        coverage=sum(inside) / len(inside) if inside else None,
    )


def reasons(predictions: Iterable[Prediction]) -> list[tuple[str, int]]:
    """Why rows were skipped or are not scored, most frequent first."""
    return sorted(
        Counter(why for p in predictions if (why := p.skipped or p.not_scored)).items(),
        key=lambda pair: (-pair[1], pair[0]),
    )


def worst(predictions: Sequence[Prediction], count: int) -> list[Prediction]:
    """The `count` predictions that are farthest off, as a ratio either way."""

    def distance(p: Prediction) -> float:
        return -math.inf if p.error is None else abs(math.log(max(1 + p.error, 1e-300)))

    return [p for p in sorted(predictions, key=distance, reverse=True)[:count] if p.error is not None]
