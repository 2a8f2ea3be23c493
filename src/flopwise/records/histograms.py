"""Prometheus histograms: their growth between two readings, and quantiles from their buckets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from flopwise.values import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Bounded(NamedTuple):
    """A quantile, interpolated, with the ends of its bucket; `high` is infinite in the last bucket."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative counts at each upper end, the number and the sum; `ends` increase, the last one is infinite."""

    ends: tuple[float, ...]
    below: tuple[float, ...]
    total: float  # sum of the observations

    @property
    def count(self) -> float:
        """Number of observations."""
        return self.below[-1] if self.below else 0.0

    @property
    def mean(self) -> float:
        """Exact mean of the observations; NaN if there are none."""
        return self.total / self.count if self.count > 0 else float("nan")

    def since(self, before: Histogram) -> Histogram:
        """The growth since `before`; all observations if the counter restarted or has other buckets."""
        if before.ends != self.ends or any(b > a for a, b in zip(self.below, before.below, strict=True)):
            return self
        below = tuple(a - b for a, b in zip(self.below, before.below, strict=True))
        return Histogram(self.ends, below, self.total - before.total)

    def plus(self, other: Histogram) -> Histogram:
        """The sum of both; if their buckets differ, the larger of the two."""
        if self.ends != other.ends:
            return self if self.count >= other.count else other
        below = tuple(a + b for a, b in zip(self.below, other.below, strict=True))
        return Histogram(self.ends, below, self.total + other.total)

    def quantile(self, share: float) -> Bounded | None:
        """The value that a share of the observations does not exceed; None if there are none.

        Linear between the ends of a bucket, the first one from 0. Above the last finite end it is that end.

        Source: histogram_quantile of Prometheus; only the ends of the bucket are exact.
        Assumes: observations are spread evenly in a bucket.
        """
        if self.count <= 0:
            return None
        wanted = share * self.count
        low, under = 0.0, 0.0
        for end, below in zip(self.ends, self.below, strict=True):
            if below >= wanted and below > under:
                if not math.isfinite(end):
                    return Bounded(low, low, float("inf"))
                return Bounded(low + (end - low) * (wanted - under) / (below - under), low, end)
            low, under = end, below
        return Bounded(low, low, float("inf"))

    def draws(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Random values with the distribution and the mean of the observations.

        Assumes: observations are spread evenly in a bucket; the last bucket is as wide as the one before.
        """
        import numpy as np  # noqa: PLC0415 - `watch` reads histograms and draws nothing

        shares = rng.permutation((np.arange(count) + 0.5) / count)
        finite = [end for end in self.ends if math.isfinite(end)]
        widths = [b - a for a, b in pairwise([0.0, *finite])]
        top = finite[-1] + widths[-1] if finite else 1.0
        edges = np.array([0.0, *finite, top])
        reached = np.array([0.0, *self.below]) / max(self.count, 1.0)
        values = np.interp(shares, reached, edges[: len(reached)])
        mean = float(values.mean()) if count else 0.0
        return np.asarray(values * (self.mean / mean)) if mean > 0 and math.isfinite(self.mean) else values


def histogram(buckets: Sequence[tuple[float, float]], total: float, count: float) -> Histogram:
    """A histogram of (upper end, observations up to it), in any order."""
    by_end = dict(sorted(buckets))
    by_end.setdefault(float("inf"), count)
    return Histogram(tuple(by_end), tuple(by_end.values()), total)
