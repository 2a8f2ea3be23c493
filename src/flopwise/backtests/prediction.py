"""What a backtest says of one measured quantity, and helpers to read a measurement file's cells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from flopwise.cost.intervals import ErrorBand
from flopwise.errors import SpecError

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


def skipped(row_id: str, unit: str, reason: str, measured: float | None = None, quantity: str = "") -> Prediction:
    """A row that cannot be predicted, and why."""
    return Prediction(id=row_id, unit=unit, measured=measured, skipped=reason, quantity=quantity)


def number(row: Mapping[str, str], column: str) -> float | None:
    """A cell as a finite positive number, or None."""
    try:
        value = float(row.get(column) or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def whole(row: Mapping[str, str], column: str, default: int) -> int:
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


def flag(row: Mapping[str, str], column: str, *, default: bool) -> bool:
    """A cell as yes or no, or the default."""
    text = (row.get(column) or "").strip().lower()
    if text in {"true", "yes", "1"}:
        return True
    return False if text in {"false", "no", "0"} else default


def banded(
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
