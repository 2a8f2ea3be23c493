"""Dollars as a report writes them."""

from __future__ import annotations


def rate(value: float | None) -> str:
    """USD an hour, where it is paid by the hour."""
    return "-" if value is None else f"{value:,.3f}"


def usd(value: float | None) -> str:
    """Dollars, whole from a hundred on."""
    if value is None:
        return "-"
    size = f"${abs(value):,.0f}" if abs(value) >= 100 else f"${abs(value):,.2f}"
    return f"-{size}" if value < 0 else size


def between(low: float | None, high: float | None) -> str:
    """An interval of dollars."""
    return "-" if low is None or high is None else f"{usd(low)} to {usd(high)}"
