"""How sure a prediction is: 10-90 % intervals from measured errors, and the odds of meeting a target.

`data/intervals.json` holds, for each class of prediction, the 10th and 90th percentile of measured / predicted.
Between and beyond them the error is taken as a two-sided lognormal through these points and the median.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np

from flopwise.cost.rates import VARIANTS, families
from flopwise.errors import MissingFactError
from flopwise.facts.calibration import FEW_ROWS, Calibration, ErrorQuantiles
from flopwise.ops.types import Array, Floats
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.facts.accelerators import Accelerator

Z90 = 1.2815515655446004
"""The 90th percentile of a standard normal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBand(ErrorQuantiles):
    """The measured quantiles of a class of prediction, for one prediction: as wide as measured, or wider.

    Source: data/intervals.json. Assumes: a lognormal on either side of the median.
    """

    spread: float = 1.0  # how often wider than measured, for cases far from those measured
    exact_name: str = ""  # the class that was asked for, where this is one above it
    family: str = ""  # of the devices that it is asked for
    family_rows: int | None = None  # rows that were measured on those; None: not a matter of devices
    reach: tuple[float, float] = (1.0, 1.0)  # of inputs that nobody stated: the estimate at their ends over its own

    @property
    def evidence(self) -> str:
        """The measurements behind it, in words: those of its class, and of these those on the family of devices.

        Source: data/coverage.json. Assumes: a device is of the family that its rates are taken from.
        """
        if self.family_rows is None:
            return f"{self.rows:,} measured runs"
        if not self.family_rows:
            return f"no measured run of this kind on this architecture ({self.family})"
        return f"{self.family_rows:,} of {self.rows:,} measured runs on this architecture ({self.family})"

    @property
    def log_median(self) -> float:
        """The logarithm of the median."""
        return math.log(self.median)

    @property
    def sides(self) -> tuple[float, float]:
        """Standard deviation of the logarithm below and above the median."""
        lower, upper = math.log(self.median / self.low) / Z90, math.log(self.high / self.median) / Z90
        return max(lower, 1e-6), max(upper, 1e-6)

    def interval(
        self, predicted: Floats, *, floor: Floats | None = None, ceiling: Floats | None = None
    ) -> tuple[Floats, Floats]:
        """(low, high): where the true value lies with 80 % probability; shape of `predicted`.

        `floor` and `ceiling` are what physics allows at least and at most: no end lies beyond them. `predicted` lies
        inside, too, where nine of ten measurements of a class are on one side of it.

        Source: quantiles of the backtest.
        Assumes: the case resembles those measured.
        """
        ends = (predicted * min(self.low, 1.0), predicted * max(self.high, 1.0))
        if floor is None and ceiling is None:
            return ends
        if not any(isinstance(each, np.ndarray) for each in (predicted, floor, ceiling)):  # as numpy does, but quicker
            least, most = (-math.inf if floor is None else floor), (math.inf if ceiling is None else ceiling)
            lower, upper = (min(max(float(end), float(least)), float(most)) for end in ends)
            return lower, upper
        low, high = (np.clip(end, floor, ceiling) for end in ends)
        return low, high

    def probability_at_most(self, predicted: Floats, limit: Floats, *, floor: Floats | None = None) -> Floats:
        """As the function of that name, of these errors."""
        return probability_at_most(self, predicted, limit, floor=floor)

    def quantile(self, probability: float) -> float:
        """The factor on a prediction that the true value stays below with this probability.

        Source and assumptions: the inverse of `probability_at_most`.
        """
        if probability == 0.9:
            return self.high
        from statistics import NormalDist  # noqa: PLC0415 - only searches ask

        score = NormalDist().inv_cdf(probability)
        side = self.high / self.median if score >= 0 else self.median / self.low
        return self.median * math.exp(score * math.log(side) / Z90)

    def wider(self, factor: float, why: str) -> ErrorBand:
        """The band with its spread multiplied, for a case far from those measured.

        Source: the caller's. Assumes: the median holds.
        """
        return replace(
            self,
            low=self.median * (self.low / self.median) ** factor,
            high=self.median * (self.high / self.median) ** factor,
            source=f"{self.source}; widened {factor:g}x: {why}",
            spread=self.spread * factor,
        )

    def between(self, low: float, high: float) -> ErrorBand:
        """The band of an estimate that lies between `low` and `high` times itself before it errs as measured.

        Source: the ends of the measured errors at the ends of what is not known. Assumes: the median holds.
        """
        below, above = self.reach
        return replace(self, low=self.low * low, high=self.high * high, reach=(below * low, above * high))

    def up_to(self, most: float) -> ErrorBand:
        """The band of an estimate of what physics allows at most `most` times: no quantile lies beyond that.

        Source: the caller's. Assumes: the estimate itself is possible.
        """
        if self.high <= max(most, 1.0):
            return self
        low, median, high = (min(end, max(most, 1.0)) for end in (self.low, self.median, self.high))
        return replace(self, low=low, median=median, high=high)

    def no_surer_than(self, others: Iterable[ErrorQuantiles], family: str) -> ErrorBand:
        """The band of devices of `family`, of which no run is measured: neither side is narrower than any of `others`.

        Source: the caller's. Assumes: software without rows errs at least as the worst of what has rows.
        """
        bands = (self, *others)
        below, above = max(one.median / one.low for one in bands), max(one.high / one.median for one in bands)
        low, high = self.median / below, self.median * above
        return replace(self, low=low, high=high, family=family, family_rows=0)


class Lognormal(Protocol):
    """Measured / predicted with a spread of its own on either side of the median; of one prediction, or in columns.

    Source: data/intervals.json. Assumes: as `ErrorBand`.
    """

    @property
    def median(self) -> Floats:
        """The median."""

    @property
    def log_median(self) -> Floats:
        """Its logarithm."""

    @property
    def sides(self) -> tuple[Floats, Floats]:
        """Standard deviation of the logarithm below and above the median."""


@dataclass(frozen=True, slots=True)
class LognormalColumns:
    """The errors of many predictions, in columns.

    Source and assumptions: `ErrorBand`. Assumes: as there.
    """

    median: Array
    log_median: Array
    sides: tuple[Array, Array]

    @classmethod
    def of(cls, bands: Sequence[ErrorBand], rows: Array) -> LognormalColumns:
        """The columns of several bands in sequence, each repeated for its number of rows."""
        figures = np.array([(band.median, band.log_median, *band.sides) for band in bands], dtype=float).reshape(-1, 4)
        median, log_median, lower, upper = np.repeat(figures.T, rows, axis=1)
        return cls(median, log_median, (lower, upper))


def probability_at_most(errors: Lognormal, predicted: Floats, limit: Floats, *, floor: Floats | None = None) -> Floats:
    """Probability that the true value is at most `limit`; broadcasts. 0 below `floor`, the physical bound.

    Source: lognormal through the quantiles, with a spread of its own on either side of the median.
    Assumes: the case resembles those measured.
    """
    if floor is not None:
        return np.where(np.asarray(limit) < floor, 0.0, probability_at_most(errors, predicted, limit))
    ratio = np.log(np.asarray(limit, dtype=float) / np.asarray(predicted, dtype=float) / errors.median)
    lower, upper = errors.sides
    return _normal_cdf(ratio / np.where(ratio >= 0, upper, lower))


@dataclass(frozen=True, slots=True)
class WholeBand:
    """The errors of a time that is the sum of two: a first part, with its band, and the rest, with another.

    Both errors are taken to move together: at a score z (a standard normal) the whole takes
    first x m1 exp(s1 z) + rest x m2 exp(s2 z), with each band's median m and its side's spread s. So quantiles add up,
    and the whole is never likelier to be short than one of its parts.

    Source: quantiles of comonotonic sums add (Dhaene et al. 2002, Insurance: Mathematics and Economics 31, theorem 5).
    Assumes: errors move together. On the 559 rows of benchmarks/truth/serving.csv with both a TTFT and a TPOT their
    rank correlation is 0.22 only, so the interval is rather wide: it holds 86 % of TTFT + (n - 1) x TPOT there, 82 %
    would with independent errors, 77 % with TPOT's error alone.
    """

    first: ErrorBand
    rest: ErrorBand

    def interval(
        self, first: float, whole: float, *, floors: tuple[float, float] = (0.0, 0.0)
    ) -> tuple[float, float]:  # fmt: skip
        """(low, high) of the whole with 80 % probability; `first` is a part of it, `floors` the bounds of both parts.

        Source and assumptions: as the class.
        """
        parts = ((self.first, first, floors[0]), (self.rest, max(whole - first, 0.0), floors[1]))
        ends = [band.interval(seconds, floor=floor) for band, seconds, floor in parts]
        low, high = (float(a + b) for a, b in zip(*ends, strict=True))
        return low, high

    def probability_at_most(
        self, first: Floats, whole: Floats, limit: Floats, *, floor: Floats | None = None
    ) -> Floats:  # fmt: skip
        """As `whole_probability_at_most`, of these errors."""
        return whole_probability_at_most(self.first, self.rest, first, whole, limit, floor=floor)


NEWTON_STEPS = 8
"""Of the score of a sum: the first is at most log 2 off, and each squares what is left."""


def whole_probability_at_most(
    first_errors: Lognormal, rest_errors: Lognormal, first: Floats, whole: Floats, limit: Floats, *,
    floor: Floats | None = None,
) -> Floats:  # fmt: skip
    """Probability that a sum of two times, of which `first` is one, is at most `limit`; broadcasts. 0 below `floor`.

    The score is solved by Newton's method from above: on its side of the median the logarithm of the sum is convex
    in it, and no part alone reaches the limit at a lower score.

    Source and assumptions: `WholeBand`.
    """
    limits = np.maximum(np.asarray(limit, dtype=float), 1e-300)
    parts = [np.asarray(first, dtype=float), np.maximum(np.asarray(whole, dtype=float) - first, 0.0)]
    errors = (first_errors, rest_errors)
    with np.errstate(divide="ignore"):
        logs = [np.log(part) + each.log_median for part, each in zip(parts, errors, strict=True)]
        target = np.log(limits)
    long = target >= np.logaddexp(*logs)  # beyond the median
    sides = [np.where(long, each.sides[1], each.sides[0]) for each in errors]
    score = np.min([(target - log) / side for log, side in zip(logs, sides, strict=True)], axis=0)
    for _ in range(NEWTON_STEPS):
        terms = [log + side * score for log, side in zip(logs, sides, strict=True)]
        total = np.logaddexp(*terms)
        slope = sum(side * np.exp(term - total) for side, term in zip(sides, terms, strict=True))
        score = score - np.maximum(total - target, 0.0) / slope
    likely = _normal_cdf(score)
    return likely if floor is None else np.where(limits < floor, 0.0, likely)


def _normal_cdf(score: Floats) -> Floats:
    """Standard normal distribution function, to 2e-7.

    Source: Abramowitz and Stegun, formula 26.2.17.
    """
    x = np.abs(score)
    t = 1.0 / (1.0 + 0.2316419 * x)
    poly = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi) * poly
    return np.where(np.asarray(score) >= 0, 1.0 - tail, tail)


def error_band(name: str, calibration: Calibration) -> ErrorBand:
    """The band of one class of prediction (`serving.tpot.moe`), or of the nearest class above it (`serving.tpot`).

    Source: data/intervals.json, fitted by the backtests. Assumes: a class without rows errs as the class above it.

    Raises:
        MissingFactError: no backtest stands behind that class.
    """
    errors = _nearest_errors(name, calibration)
    if errors is None:
        raise MissingFactError(f"no measured errors for {name!r}; known classes: {', '.join(calibration.errors)}")
    return errors


OF_FAMILY = "@"
"""Between a class and the family of devices whose own errors they are, as calibration profiles have: `training@zen`."""


def _nearest_errors(name: str, calibration: Calibration, whose: str = "") -> ErrorBand | None:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        if errors := calibration.errors.get(".".join(parts[:count]) + whose):
            return ErrorBand(**{each.name: getattr(errors, each.name) for each in fields(errors)}, exact_name=name)
    return None


WIDER_WHEN_AMBIGUOUS = 1.5
"""Spread of a band where the device's variant is a guess.

Source: benchmarks/truth on 2026-11-29: errors in throughput of 16 sources of serving whose H100, A100 or V100 may be of
several variants are 1.49 times those of 93 sources that state theirs (medians of the sources' medians, 0.20 and 0.135);
27 rows of training from 5 publishers say 1.27.
"""


OTHER_SOFTWARE = ("tpu", "npu")
"""Kinds of device that run what neither CUDA nor ROCm compiles: no band of theirs is narrower than that of a GPU whose
variant is a guess."""


def device_band(name: str, cluster: Cluster) -> ErrorBand:
    """The band of a class of prediction for the devices of a cluster, wider as measurements there are few.

    A calibration profile's errors of the very family stand before all others.

    Source: `MeasuredFamilies.spread`: what leaving out families and makers costs in the backtests
    (benchmarks/accuracy/fit_coverage.py). Assumes: an unseen family errs as those that were left out; a variant of
    which few runs were measured as its family.

    Raises:
        MissingFactError: no backtest stands behind that class.
    """
    return _chip_band(name, cluster.accelerator, bool(cluster.ambiguous))


@lru_cache(maxsize=4096)
def _chip_band(name: str, chip: Accelerator, ambiguous: bool) -> ErrorBand:
    family = families(chip)[0]
    own_errors = _nearest_errors(name, chip.calibration, f"{OF_FAMILY}{family}")
    band = own_errors or error_band(name, chip.calibration)
    if own_errors is not None:
        band = replace(own_errors, family=family, family_rows=own_errors.rows)
    elif (measured := chip.calibration.measured.get(name.split(".", maxsplit=1)[0])) is not None:
        own = measured.families.get(family)
        if own is None or own.rows < FEW_ROWS:
            family = VARIANTS.get(family, family)
            own = measured.families.get(family)
        spread = measured.spread(family, f"{chip.vendor} {chip.kind}")
        if chip.kind in OTHER_SOFTWARE:
            spread = max(spread, WIDER_WHEN_AMBIGUOUS)
        band = replace(band, family=family, family_rows=0 if own is None else own.classes.get(band.name, 0))
        if spread > 1.0:
            band = band.wider(spread, band.evidence)
    if ambiguous:
        band = band.wider(WIDER_WHEN_AMBIGUOUS, "the device's variant is a guess")
    return band
