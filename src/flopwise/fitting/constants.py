"""What a fit may move: constants of the facts, each with what is known beforehand, its bounds, and who shares it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flopwise.facts.catalog import Facts
from flopwise.values import dataclass

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Constant:
    """One number that all of `scopes` share: scopes of a calibrated parameter, or records of stacks or engines."""

    name: str
    scopes: tuple[str, ...]
    prior: float  # what is known of it without these measurements
    low: float
    high: float
    spread: float = 0.5  # how far (of a logarithm) it strays from the prior freely
    table: Literal["calibration", "stacks", "engines"] = "calibration"

    def present_value(self, facts: Facts) -> float:
        """The value in the facts, within the bounds."""
        if self.table == "calibration":
            value = facts.calibration.find(self.name, self.scopes[:1]).value
        else:
            value = float(getattr(getattr(facts, self.table)[self.scopes[0]], self.name))
        return min(max(value, self.low), self.high)


Values = Mapping[Constant, float]
