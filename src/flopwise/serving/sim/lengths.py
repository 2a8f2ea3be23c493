"""How long prompts and answers are: one function for each distribution, from a count and a generator to tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flopwise.errors import SpecError

Tokens = NDArray[np.int64]
Rng = np.random.Generator

NINETY_FIVE = 1.6448536269514722
"""The standard normal's 95th percentile."""
MOST_TOKENS = 2**31
"""Tokens of one prompt or answer that a trace may hold."""


def fixed_lengths(tokens: float, count: int, rng: Rng) -> Tokens:
    """`count` times `tokens`. Raises: SpecError: less than a token. Source: definition."""
    del rng
    return np.full(count, round(_positive("length", tokens)), dtype=np.int64)


def uniform(low: float, high: float, count: int, rng: Rng) -> Tokens:
    """Any length between `low` and `high`, both included, as load generators with a range ratio draw them.

    Source: definition. Raises: SpecError: less than a token, or high below low.
    """
    low, high = _positive("shortest", low), _positive("longest", high)
    if high < low:
        raise SpecError(f"lengths from {low:g} to {high:g}: the longest is below the shortest")
    return rng.integers(round(low), round(high), count, endpoint=True)


def sigma_of(mean: float, *, cv: float | None = None, p95: float | None = None) -> float:
    """Sigma of a lognormal distribution with this mean and coefficient of variation, or 95th percentile.

    Source: cv^2 = exp(sigma^2) - 1; p95 = mean exp(1.645 sigma - sigma^2 / 2), the smaller root.
    Raises: SpecError: neither or both are given, or no lognormal has them.
    """
    mean = _positive("mean length", mean)
    if (cv is None) == (p95 is None):
        raise SpecError("a lognormal length needs its mean and either cv or p95")
    if cv is not None:
        if not (math.isfinite(cv) and 0 <= cv <= 100):
            raise SpecError(f"cv {cv:g} is out of range; allowed: 0 to 100")
        return math.sqrt(math.log1p(cv * cv))
    assert p95 is not None
    most = mean * math.exp(NINETY_FIVE**2 / 2)
    if not mean <= p95 <= most:
        raise SpecError(f"no lognormal of mean {mean:g} has a p95 of {p95:g}; allowed: {mean:g} to {most:.4g}")
    return NINETY_FIVE - math.sqrt(max(0.0, NINETY_FIVE**2 - 2 * math.log(p95 / mean)))


def lognormal(mean: float, count: int, rng: Rng, *, cv: float | None = None, p95: float | None = None) -> Tokens:
    """Skewed lengths with this mean and spread, at least 1 token each.

    Source: the shape of published traces of chat and code services (Splitwise, arXiv:2311.18677, figure 3).
    Assumes: rounding to whole tokens and to at least one moves the mean of short lengths a little.
    Raises: as `sigma_of`.
    """
    sigma = sigma_of(mean, cv=cv, p95=p95)
    drawn = rng.lognormal(math.log(mean) - sigma * sigma / 2, sigma, count)
    return np.clip(np.rint(drawn), 1, MOST_TOKENS).astype(np.int64)


def empirical(prompts: Tokens, outputs: Tokens, count: int, rng: Rng) -> tuple[Tokens, Tokens]:
    """Pairs of prompt and answer drawn together, with replacement, from measured ones; shapes (count,).

    Source: bootstrap. Raises: SpecError: no pairs, or columns of different lengths.
    """
    if not len(prompts) or len(prompts) != len(outputs):
        raise SpecError(f"{len(prompts)} prompts and {len(outputs)} answers: an empirical distribution needs pairs")
    picked = rng.integers(0, len(prompts), count)
    return np.asarray(prompts)[picked], np.asarray(outputs)[picked]


def _positive(name: str, tokens: float) -> float:
    if not (math.isfinite(tokens) and 1 <= tokens <= MOST_TOKENS):
        raise SpecError(f"{name} {tokens:g} is out of range; allowed: 1 to {MOST_TOKENS:,} tokens")
    return tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A length distribution as users write it: `512`, `200:800` (uniform), `lognormal:512:cv=1.2`."""

    mean: float
    low: float | None = None
    high: float | None = None
    cv: float | None = None
    p95: float | None = None

    def draw(self, count: int, rng: Rng) -> Tokens:
        """`count` lengths."""
        if self.low is not None and self.high is not None:
            return uniform(self.low, self.high, count, rng)
        if self.cv is None and self.p95 is None:
            return fixed_lengths(self.mean, count, rng)
        return lognormal(self.mean, count, rng, cv=self.cv, p95=self.p95)

    @staticmethod
    def parse(text: str) -> Lengths:
        """`512`; `200:800`: any length between; `lognormal:512:cv=1.2` or `lognormal:512:p95=1500`.

        Raises: SpecError: anything else, or lengths that cannot be.
        """
        found = _parse(text.strip())
        if found is None:
            raise SpecError(
                f"length {text[:60]!r} is not known; allowed: 512 (all alike), 200:800 (any between), "
                "lognormal:512:cv=1.2, lognormal:512:p95=1500"
            )
        found.draw(0, np.random.default_rng(0))
        return found


def _parse(text: str) -> Lengths | None:
    """The length distribution that `text` names, its values unchecked; None if its form is unknown."""
    head, _, rest = text.partition(":")
    try:
        if head == "lognormal":
            mean, _, spread = rest.partition(":")
            key, _, value = (spread or "cv=1").partition("=")
            if key == "cv":
                return Lengths(mean=float(mean), cv=float(value))
            return Lengths(mean=float(mean), p95=float(value)) if key == "p95" else None
        if rest:
            low, high = float(head), float(rest)
            return Lengths(mean=(low + high) / 2, low=low, high=high)
        return Lengths(mean=float(head))
    except ValueError:
        return None
