"""Prices behind the fleet's figures: what volumes cost and what electricity emits, where that is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from flopwise.fleet.file import Placed


def carbon_kg(kwh: float, provider: str, region: str, folder: Path | None = None) -> float | None:
    """What electricity emits in a region, in kg of CO2; None where it is not known."""
    del kwh, provider, region, folder
    return None


def volumes_usd(placed: Placed, provider: str, folder: Path | None = None) -> tuple[float, float, list[str]]:
    """(storage, traffic) in USD a month, and what is not known."""
    del provider, folder
    return 0.0, 0.0, [f"{placed.name}: storage and traffic are not priced"]
