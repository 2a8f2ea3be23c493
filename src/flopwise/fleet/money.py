"""Prices behind the fleet's figures: what volumes cost and what electricity emits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.fleet.carbon import JOULES_PER_KWH, footprint
from flopwise.fleet.pricing import volume_usd

if TYPE_CHECKING:
    from pathlib import Path

    from flopwise.facts.terms import Kind
    from flopwise.fleet.file import Placed


def carbon_kg(kwh: float, provider: str, region: str, folder: Path | None = None) -> float:
    """What electricity at the meter emits in a region, in kg of CO2 equivalent.

    Source and assumptions: `flopwise.fleet.carbon.footprint`.
    """
    return footprint(kwh * JOULES_PER_KWH, provider, region, folder).kg


def volumes_usd(placed: Placed, provider: str, folder: Path | None = None) -> tuple[float, float, list[str]]:
    """(storage, traffic) of a workload with its main provider in USD a month, and what is not known."""
    kinds: tuple[tuple[Kind, float], ...] = (
        ("storage", placed.storage_bytes), ("egress", placed.egress_bytes), ("inter_zone", placed.inter_zone_bytes),
    )  # fmt: skip
    paid, told = dict[str, float](), list[str]()
    for kind, nbytes in kinds:
        if not nbytes:
            continue
        found = volume_usd(provider, kind, nbytes, folder)
        if found is None:
            told.append(f"{placed.name}: what {provider} takes for {kind.replace('_', ' ')} is not known; not counted")
        else:
            paid[kind] = found[0]
            told.append(f"{kind.replace('_', ' ')} of {provider}: {found[1].source}, {found[1].date}")
    return paid.get("storage", 0.0), paid.get("egress", 0.0) + paid.get("inter_zone", 0.0), told
