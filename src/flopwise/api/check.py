"""What a fleet runs on today, judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flopwise.facts.catalog import load_facts
from flopwise.fleet.assess import Advance
from flopwise.fleet.check import Check
from flopwise.fleet.check import check as fleet_check
from flopwise.fleet.read import fleet_of
from flopwise.keywords import takes


@takes()
def check(
    fleet: str | Path | dict[str, Any], *, existing: str | Path | None = None, facts: str | Path | None = None,
    calibration: str | None = None, today: str | None = None, advance: Advance | None = None,
) -> Check:  # fmt: skip
    """Check the machines that a platform has today: targets, cost, and what to change.

    Args:
        fleet: path of a fleet file whose workloads say under `existing` what they run on, or plain data with the
            same keys.
        existing: a table of the machines instead (CSV: name, instance, count, hours ...).
        today: day that the age of prices counts from (default: the clock's, in UTC).
        advance: called with (what is done, steps done, steps in all) as it goes.

    Raises:
        SpecError: something in the fleet or the table is wrong; says where.
        UnknownNameError: a name is not known.

    Examples:
        >>> import flopwise
        >>> have = [{"instance": "g5.xlarge", "count": 1}]
        >>> job = {"name": "tune", "model": "gpt2", "task": "finetune", "data": {"tokens": "1M"}, "existing": have}
        >>> answer = flopwise.check({"name": "demo", "workloads": [job], "policies": {"providers": {"aws": 1}}})
        >>> [workload.name for workload in answer.workloads]
        ['tune']
    """
    return fleet_check(fleet_of(fleet, existing), load_facts(facts, calibration), today=today or "", advance=advance)
