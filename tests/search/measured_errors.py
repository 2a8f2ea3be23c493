"""The odds that measured errors give, calculated from `data/intervals.json` alone.

Measured / predicted is lognormal on either side of its median, through its measured 10th and 90th percentiles (a
two-piece normal distribution of the logarithm).
"""

from __future__ import annotations

import json
import math
from statistics import NormalDist

from flopwise.data import DATA

BANDS: dict[str, dict[str, float]] = json.loads((DATA / "intervals.json").read_text(encoding="utf-8"))["bands"]
NORMAL = NormalDist()


def at_most(ratio: float, band: str) -> float:
    """Probability that measured / predicted is at most `ratio`; of the nearest class above a band without rows."""
    while band not in BANDS:
        band = band.rpartition(".")[0]
    low, middle, high = (BANDS[band][name] for name in ("low", "median", "high"))
    side = high / middle if ratio >= middle else middle / low
    return NORMAL.cdf(math.log(ratio / middle) / (math.log(side) / NORMAL.inv_cdf(0.9)))
