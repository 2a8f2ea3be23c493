"""The odds that measured errors give, calculated from `data/intervals.json` alone.

Measured / predicted is lognormal on either side of its median, through its measured 10th and 90th percentiles (a
two-piece normal distribution of the logarithm).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from statistics import NormalDist

from flopwise.cost.rates import VARIANTS, families
from flopwise.data import DATA
from named import FACTS

BANDS: dict[str, dict[str, float]] = json.loads((DATA / "intervals.json").read_text(encoding="utf-8"))["bands"]
NORMAL = NormalDist()


def spread_on(gpu: str, kind: str) -> float:
    """How many times wider the bands of a kind of prediction are on a device."""
    chip, measured = FACTS.accelerator(gpu), FACTS.calibration.measured[kind]
    own = families(chip)[0]
    family = own if own in measured.families else VARIANTS.get(own, own)
    return measured.spread(family, f"{chip.vendor} {chip.kind}")


TIMED = {"ampere", "hopper", "blackwell", "blackwell-ultra", "blackwell-rtx"}
"""Families whose kernels are in benchmarks/truth/kernels.csv."""


def class_on(gpu: str, name: str) -> str:
    """The class of a server's predictions on one device: a class of its own where no kernel of the family was timed."""
    chip = FACTS.accelerator(gpu)
    family = families(chip)[0]
    return name if VARIANTS.get(family, family) in TIMED else f"{name}.{'far' if chip.vendor == 'NVIDIA' else 'ported'}"


def quantiles(band: str, spread: float) -> tuple[float, float, float]:
    """(10th percentile, median, 90th) of the nearest class at or above `band`, so many times wider."""
    while band not in BANDS:
        band = band.rpartition(".")[0]
    low, middle, high = (BANDS[band][name] for name in ("low", "median", "high"))
    return middle * (low / middle) ** spread, middle, middle * (high / middle) ** spread


def at_most(ratio: float, band: str, spread: float = 1.0) -> float:
    """Probability that measured / predicted is at most `ratio`; of the nearest class above a band without rows."""
    low, middle, high = quantiles(band, spread)
    side = high / middle if ratio >= middle else middle / low
    return NORMAL.cdf(math.log(ratio / middle) / (math.log(side) / NORMAL.inv_cdf(0.9)))


def ratio_at(probability: float, band: str, spread: float = 1.0) -> float:
    """The measured / predicted that is not exceeded with this probability: the inverse of `at_most`."""
    low, middle, high = quantiles(band, spread)
    score = NORMAL.inv_cdf(min(max(probability, 1e-12), 1 - 1e-12))
    return float(middle * (high / middle if score >= 0 else middle / low) ** (score / NORMAL.inv_cdf(0.9)))


def whole_at_most(limit: float, parts: Sequence[tuple[str, float]], spread: float = 1.0) -> float:
    """Probability that (band, seconds) together take at most `limit`, their errors going together: by bisection."""
    held, missed = 0.0, 1.0
    for _ in range(60):
        middle = (held + missed) / 2
        beyond = sum(seconds * ratio_at(middle, band, spread) for band, seconds in parts) > limit
        held, missed = (held, middle) if beyond else (middle, missed)
    return held
