"""Histograms of Prometheus: what was counted between two readings, and the quantiles that their buckets allow."""

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
    """A quantile: interpolated, and the ends of the bucket that it lies in; `high` is infinite above the last end."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations at or below each upper end, their number and their sum; `ends` rise, the last one is infinite."""

    ends: tuple[float, ...]
    below: tuple[float, ...]
    total: float  # sum of the observations

    @property
    def count(self) -> float:
        """Observations in all."""
        return self.below[-1] if self.below else 0.0

    @property
    def mean(self) -> float:
        """Mean of the observations, which is exact; NaN where there are none."""
        return self.total / self.count if self.count > 0 else float("nan")

    def since(self, before: Histogram) -> Histogram:
        """What was observed after `before`; all of it where the counter began anew, or its buckets are others."""
        if before.ends != self.ends or any(b > a for a, b in zip(self.below, before.below, strict=True)):
            return self
        below = tuple(a - b for a, b in zip(self.below, before.below, strict=True))
        return Histogram(self.ends, below, self.total - before.total)

    def plus(self, other: Histogram) -> Histogram:
        """Both together.

        Of different buckets the larger stays alone.
        """
        if self.ends != other.ends:
            return self if self.count >= other.count else other
        below = tuple(a + b for a, b in zip(self.below, other.below, strict=True))
        return Histogram(self.ends, below, self.total + other.total)

    def quantile(self, share: float) -> Bounded | None:
        """The value that a share of the observations does not exceed; None where there are none.

        Linear between the ends of a bucket, the first one from 0. Above the last finite end it is at least that.

        Source: histogram_quantile of Prometheus, whose value it is; the bucket's ends are what is certain.
        Assumes: observations spread evenly in a bucket.
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
        """Values spread as the observations are, in random order; their mean is the observations' mean.

        Assumes: even inside a bucket; the last one is as wide as the one before.
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
