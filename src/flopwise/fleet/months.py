"""Months as a fleet writes them: 2027-01."""

from __future__ import annotations


def month_after(first: str, later: int) -> str:
    """The month `later` months after `first`."""
    year, month = (int(part) for part in first.split("-")[:2])
    return f"{year + (month - 1 + later) // 12:04d}-{(month - 1 + later) % 12 + 1:02d}"


def months_between(first: str, second: str) -> int:
    """Months from `first` to `second`; below 0 where it is earlier."""
    (a, b), (c, d) = ((int(part) for part in text.split("-")[:2]) for text in (first, second))
    return (c - a) * 12 + d - b
