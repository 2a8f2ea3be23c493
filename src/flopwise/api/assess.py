"""The GPU strategy of a whole platform: many workloads, many offers, one bill."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flopwise.fleet.assessment import Assessment

Advance = Callable[[str, int, int], None]


def assess(
    fleet: str | Path | dict[str, Any],
    *,
    facts: str | Path | None = None,
    scenarios: int = 1000,
    seed: int = 0,
    advance: Advance | None = None,
) -> Assessment:
    """Assess a fleet (a file, or plain data with the same keys): where each workload runs and what a month costs.

    `scenarios`: draws of demand, prices and interruptions; 0 leaves them out. `advance(what, done, whole)` is
    called as it goes.

    Raises:
        SpecError: something in the fleet is wrong; says where.
        InfeasibleError: the policies leave no allocation; says which, and for a budget what the floor is.
    """
    from datetime import UTC, datetime

    import msgspec

    from flopwise.facts.catalog import load_facts
    from flopwise.fleet.assess import assess as assessed
    from flopwise.fleet.file import fleet_from, load_fleet

    platform = fleet_from(fleet) if isinstance(fleet, dict) else load_fleet(fleet)
    found = assessed(platform, load_facts(facts), scenarios=scenarios, seed=seed, advance=advance)
    return found if found.date else msgspec.structs.replace(found, date=datetime.now(UTC).date().isoformat())
