"""What a fleet runs on today, judged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flopwise.fleet.check import Check

Advance = Callable[[str, int, int], None]


def check(
    fleet: str | Path | dict[str, Any],
    *,
    existing: str | Path | None = None,
    facts: str | Path | None = None,
    calibration: str | None = None,
    today: str | None = None,
    advance: Advance | None = None,
) -> Check:
    """Judge the machines that the workloads of a fleet have: do they hold, what do they cost, what would change.

    `existing`: a table of them (CSV: name, instance, count, hours ...) instead of what the fleet says.
    `advance(what, done, whole)` is called as it goes.

    Raises:
        SpecError, UnknownNameError: something in the fleet or the table is wrong; says where.
    """
    from flopwise.facts.catalog import load_facts
    from flopwise.fleet.check import check as fleet_check
    from flopwise.fleet.read import fleet_from, load_fleet

    platform = fleet_from(fleet, existing=existing) if isinstance(fleet, dict) else load_fleet(fleet, existing)
    return fleet_check(platform, load_facts(facts, calibration), today=today or "", advance=advance)
