"""What a backtest says of one measured quantity, and how the cells of a row are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from flopwise.cost.intervals import ErrorBand
from flopwise.errors import SpecError
from flopwise.training.layout import TARGET_SETS

Row = Mapping[str, str]
Value = TypeVar("Value")
MOST = 10**8
"""The largest whole number that a cell may hold: tokens, sequences, GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One quantity of one row: measured, predicted with its 10-90 % interval, or skipped with a reason."""

    id: str
    unit: str
    quantity: str = ""
    measured: float | None = None
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    skipped: str | None = None
    band: ErrorBand | None = None  # where the interval is from

    @property
    def error(self) -> float | None:
        """Predicted / measured - 1, or None."""
        if self.predicted is None or not self.measured:
            return None
        return self.predicted / self.measured - 1


def no_prediction(row_id: str, unit: str, reason: str, measured: float | None = None, quantity: str = "") -> Prediction:
    """A row that cannot be predicted, and why."""
    return Prediction(id=row_id, unit=unit, measured=measured, skipped=reason, quantity=quantity)


def number(row: Row, column: str) -> float | None:
    """A cell as a finite positive number, or None."""
    try:
        value = float(row.get(column) or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def whole(row: Row, column: str, default: int) -> int:
    """A cell as a whole number of at least 1; the default where it is empty or zero.

    Raises:
        SpecError: it is something else.
    """
    text = (row.get(column) or "").strip()
    try:
        value = float(text or 0)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MOST:
        raise SpecError(f"{column} is {text[:30]!r}; allowed: a whole number from 1 to {MOST:,}")
    return max(1, int(value)) if value else default


def flag(row: Row, column: str, *, default: bool) -> bool:
    """A cell as yes or no, or the default."""
    text = (row.get(column) or "").strip().lower()
    if text in {"true", "yes", "1"}:
        return True
    return False if text in {"false", "no", "0"} else default


def choice(row: Row, column: str, values: Mapping[str, Value], default: Value) -> Value:
    """The value that a cell names, or the default where it is empty.

    Raises:
        SpecError: it names none.
    """
    text = (row.get(column) or "").strip().lower()
    if text and text not in values:
        raise SpecError(f"{column} is {text[:40]!r}; allowed: {', '.join(values)}")
    return values[text] if text else default


def lora_targets(text: str) -> tuple[str, ...]:
    """Adapted projections: the name of a set of them, or one by one as in "q k v"."""
    return TARGET_SETS.get(text) or tuple(text.split())


def with_interval(
    row_id: str, unit: str, measured: float | None, predicted: float, band: ErrorBand, *, quantity: str = ""
) -> Prediction:
    """A prediction with the 10-90 % interval of its class."""
    low, high = band.interval(predicted)
    return Prediction(
        id=row_id,
        unit=unit,
        quantity=quantity,
        measured=measured,
        predicted=predicted,
        low=float(low),
        high=float(high),
        band=band,
    )
