"""The GPU strategy of a whole platform: many workloads, many offers, one bill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.fleet.assess import Advance
from flopwise.fleet.assess import assess as fleet_assessment
from flopwise.fleet.assessment import Assessment
from flopwise.fleet.read import fleet_of
from flopwise.keywords import takes


@takes()
def assess(
    fleet: str | Path | dict[str, Any], *, facts: str | Path | None = None, calibration: str | None = None,
    scenarios: int = 1000, seed: int = 0, today: str | None = None, advance: Advance | None = None,
) -> Assessment:  # fmt: skip
    """Assess a platform: machines of each workload, the monthly bill, and decisions to take.

    Args:
        fleet: path of a YAML file (docs/questions/fleet.md), or plain data with the same keys.
        scenarios: random draws of demand, prices and interruptions; 0 leaves them out.
        seed: of the draws; the same seed gives the same figures.
        today: day that the age of prices counts from, such as "2026-11-21" (default: the clock's, in UTC).
        advance: called with (what is done, steps done, steps in all) as it goes.

    Raises:
        SpecError: something in the fleet is wrong; says where.
        InfeasibleError: the policies leave no allocation; says which.

    Examples:
        >>> import flopwise
        >>> job = {"name": "tune", "model": "gpt2", "task": "finetune", "data": {"tokens": "1M"}}
        >>> fleet = {"name": "demo", "workloads": [job], "policies": {"providers": {"aws": 1}}}
        >>> answer = flopwise.assess(fleet, scenarios=0)
        >>> print(answer.workloads[0].name, answer.workloads[0].feasible)
        tune True
    """
    whole = fleet_assessment(
        fleet_of(fleet), load_facts(facts, calibration), scenarios=scenarios, seed=seed, today=_day(today),
        advance=advance,
    )  # fmt: skip
    return whole.assessment


def _day(today: str | None) -> str:
    """A day as 2026-11-21; the clock's where none is given."""
    from datetime import UTC, date, datetime

    if today is None:
        return datetime.now(UTC).date().isoformat()
    try:
        return date.fromisoformat(today).isoformat()
    except (TypeError, ValueError):
        raise SpecError(f"today: {str(today)[:40]!r} is not a day; give one such as 2026-11-21") from None
