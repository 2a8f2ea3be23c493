"""The formulas that people know by heart, to stand beside the real estimate with how far off they are."""

from __future__ import annotations

from typing import Any

from flopwise.ops.types import Floats
from flopwise.results import attributes
from flopwise.values import dataclass

TRAINING_FACTOR = 6
"""Memory of training over that of the weights alone, in the rule of thumb."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickFormula:
    """The value of a rule of thumb beside the estimate; None where either is unknown.

    Source: definition. Assumes: both speak of the same quantity in the same unit.
    """

    name: str
    formula: str
    unit: str
    value: float
    estimate: float | None

    @property
    def error_frac(self) -> float | None:
        """The relative error of the rule: value / estimate - 1."""
        return None if not self.estimate else self.value / self.estimate - 1.0

    def document(self) -> dict[str, Any]:
        """The rule by key."""
        return attributes(self, "name formula unit value estimate error=error_frac")


def quick_gpus(parameters: Floats, elem_bytes: Floats, hbm_bytes: Floats, *, training: bool) -> Floats:
    """Whole GPUs whose memory holds the weights, six times over for training; broadcasts.

    Source: rule of thumb. Assumes: everything else grows with the weights.
    """
    return -(-parameters * elem_bytes * (TRAINING_FACTOR if training else 1) // hbm_bytes)
