"""How long prompts and answers are: `512`, `200:800` (uniform), `lognormal:512:cv=1.2`, `sharegpt-prompts:220`."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flopwise.errors import SpecError
from flopwise.values import dataclass

Tokens = NDArray[np.int64]
Rng = np.random.Generator

NINETY_FIVE = 1.6448536269514722
"""The standard normal's 95th percentile."""
MOST_TOKENS = 2**31
"""Tokens of one prompt or answer that a trace may hold."""
SHAPES = {
    "sharegpt-prompts": (
        0.019, 0.039, 0.048, 0.058, 0.077, 0.105, 0.130, 0.167, 0.217, 0.283, 0.372, 0.589, 0.860, 1.171, 1.476,
        1.634, 1.892, 2.319, 2.955, 3.343, 4.507,
    ),
    "sharegpt-answers": (
        0.009, 0.039, 0.056, 0.080, 0.102, 0.137, 0.195, 0.314, 0.484, 0.699, 0.869, 0.994, 1.134, 1.298, 1.443,
        1.581, 1.791, 2.001, 2.264, 2.646, 3.741,
    ),
}  # fmt: skip
"""Quantiles, from least to most in steps of a twentieth, of the tokens over their mean of what vLLM's serving benchmark
draws from ShareGPT.

Source: the 320 prompts and answers of each run of LambdaLabsML/vllm-benchmark (results/prompt_320, 2024-09): prompts in
Llama 3's tokens, answers as the mean of Llama 3's and Mistral's; answers without a token are left out.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """All alike, any length between `low` and `high`, a lognormal with `cv` or `p95`, or one of `SHAPES`."""

    mean: float
    low: float | None = None
    high: float | None = None
    cv: float | None = None
    p95: float | None = None
    shape: str | None = None

    @property
    def most(self) -> float | None:
        """The longest; None where no length is impossible."""
        if self.shape is not None:
            return self.mean * SHAPES[self.shape][-1]
        return self.high if self.cv is None and self.p95 is None else None

    @property
    def is_number(self) -> bool:
        """True if all are alike because one number is given, not a range of one length."""
        return all(figure is None for figure in (self.low, self.cv, self.p95, self.shape))

    def draw(self, count: int, rng: Rng) -> Tokens:
        """`count` lengths; between `low` and `high` both are included, as in load generators with a range ratio.

        Raises: SpecError: less than a token, too many, or high below low; as `lognormal`.
        """
        if self.low is not None and self.high is not None:
            low, high = _possible("shortest", self.low), _possible("longest", self.high)
            if high < low:
                raise SpecError(f"lengths from {low:g} to {high:g}: the longest is below the shortest")
            return rng.integers(round(low), round(high), count, endpoint=True)
        if self.shape is not None:
            return _quantile_lengths(self.mean, SHAPES[self.shape], count, rng)
        if self.cv is None and self.p95 is None:
            return np.full(count, round(_possible("length", self.mean)), dtype=np.int64)
        return lognormal(self.mean, count, rng, cv=self.cv, p95=self.p95)

    @staticmethod
    def parse(text: str) -> Lengths:
        """`512`; `200:800`: any length between; `lognormal:512:cv=1.2` or `lognormal:512:p95=1500`; `SHAPES` by mean.

        Raises: SpecError: anything else, or lengths that cannot be.
        """
        lengths = _parse(text.strip())
        if lengths is None:
            raise SpecError(
                f"length {text[:60]!r} is not known; allowed: 512 (constant), 200:800 (uniform), "
                f"lognormal:512:cv=1.2, lognormal:512:p95=1500, {', '.join(f'{name}:220' for name in SHAPES)}"
            )
        lengths.draw(0, np.random.default_rng(0))
        return lengths


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
        if head in SHAPES:
            return Lengths(mean=float(rest), shape=head)
        if rest:
            low, high = float(head), float(rest)
            return Lengths(mean=(low + high) / 2, low=low, high=high)
        return Lengths(mean=float(head))
    except ValueError:
        return None


def lognormal(mean: float, count: int, rng: Rng, *, cv: float | None = None, p95: float | None = None) -> Tokens:
    """Skewed lengths with this mean and coefficient of variation, or 95th percentile; at least 1 token each.

    Source: the shape of published traces of chat and code services (Splitwise, arXiv:2311.18677, figure 3);
    cv^2 = exp(sigma^2) - 1; p95 = mean exp(1.645 sigma - sigma^2 / 2), the smaller root.
    Assumes: rounding to whole tokens and to at least one moves the mean of short lengths a little.
    Raises: SpecError: neither or both are given, or no lognormal has them.
    """
    mean = _possible("mean length", mean)
    if (cv is None) == (p95 is None):
        raise SpecError("a lognormal length needs its mean and either cv or p95")
    if cv is not None:
        if not (math.isfinite(cv) and 0 <= cv <= 100):
            raise SpecError(f"cv {cv:g} is out of range; allowed: 0 to 100")
        sigma = math.sqrt(math.log1p(cv * cv))
    else:
        assert p95 is not None
        most = mean * math.exp(NINETY_FIVE**2 / 2)
        if not mean <= p95 <= most:
            raise SpecError(f"no lognormal of mean {mean:g} has a p95 of {p95:g}; allowed: {mean:g} to {most:.4g}")
        sigma = NINETY_FIVE - math.sqrt(max(0.0, NINETY_FIVE**2 - 2 * math.log(p95 / mean)))
    lengths = rng.lognormal(math.log(mean) - sigma * sigma / 2, sigma, count)
    return np.clip(np.rint(lengths), 1, MOST_TOKENS).astype(np.int64)


def _quantile_lengths(mean: float, quantiles: tuple[float, ...], count: int, rng: Rng) -> Tokens:
    """`count` lengths with this mean; `quantiles` over it are evenly spaced, from the least to the most."""
    shares = np.linspace(0.0, 1.0, len(quantiles))
    lengths = _possible("mean length", mean) * np.interp(rng.random(count), shares, quantiles)
    return np.clip(np.rint(lengths), 1, MOST_TOKENS).astype(np.int64)


def _possible(name: str, tokens: float) -> float:
    if not (math.isfinite(tokens) and 1 <= tokens <= MOST_TOKENS):
        raise SpecError(f"{name} {tokens:g} is out of range; allowed: 1 to {MOST_TOKENS:,} tokens")
    return tokens
