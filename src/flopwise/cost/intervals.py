"""How sure a prediction is: 10-90 % intervals from measured errors, and the odds of meeting a target.

`data/intervals.json` holds, for each class of prediction, the 10th and 90th percentile of measured / predicted.
Between and beyond them the error is taken as a two-sided lognormal through these points and the median.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

import numpy as np

from flopwise.errors import MissingFactError
from flopwise.facts.calibration import Calibration, ErrorQuantiles
from flopwise.ops.types import Floats

Z90 = 1.2815515655446004
"""The 90th percentile of a standard normal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBand(ErrorQuantiles):
    """The measured quantiles of a class of prediction, for one prediction: as wide as measured, or wider."""

    spread: float = 1.0  # how often wider than measured, for cases far from those measured
    asked: str = ""  # the class that was asked for, where this is one above it

    def interval(
        self, predicted: Floats, *, floor: Floats | None = None, ceiling: Floats | None = None
    ) -> tuple[Floats, Floats]:
        """(low, high): where the true value lies with 80 % probability; shape of `predicted`.

        `floor` and `ceiling` are what physics allows at least and at most: no end lies beyond them.

        Source: quantiles of the backtest.
        Assumes: the case resembles those measured.
        """
        ends = (predicted * self.low, predicted * self.high)
        if floor is None and ceiling is None:
            return ends
        low, high = (np.clip(end, floor, ceiling) for end in ends)
        return low, high

    def probability_at_most(self, predicted: Floats, limit: Floats, *, floor: Floats | None = None) -> Floats:
        """Probability that the true value is at most `limit`; broadcasts. 0 below `floor`, what physics allows.

        Source: lognormal through the quantiles, with a spread of its own on either side of the median.
        Assumes: as `interval`.
        """
        if floor is not None:
            return np.where(np.asarray(limit) < floor, 0.0, self.probability_at_most(predicted, limit))
        ratio = np.log(np.asarray(limit, dtype=float) / np.asarray(predicted, dtype=float) / self.median)
        upper = math.log(self.high / self.median) / Z90
        lower = math.log(self.median / self.low) / Z90
        score = ratio / np.where(ratio >= 0, max(upper, 1e-6), max(lower, 1e-6))
        return _normal_cdf(score)

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

        Source: judgement: no measurement reaches there. Assumes: the median holds.
        """
        return replace(
            self,
            low=self.median * (self.low / self.median) ** factor,
            high=self.median * (self.high / self.median) ** factor,
            source=f"{self.source}; widened {factor:g}x: {why}",
            spread=self.spread * factor,
        )


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
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        if errors := calibration.errors.get(".".join(parts[:count])):
            return ErrorBand(**asdict(errors), asked=name)
    raise MissingFactError(f"no measured errors for {name!r}; known classes: {', '.join(calibration.errors)}")
