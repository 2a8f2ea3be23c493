"""The assessment of a whole platform: search, allocation, and everything that is read from them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from flopwise.fleet.assessment import Allotment, Assessment
from flopwise.fleet.binding import bindings
from flopwise.fleet.candidates import Carried, carried, unmet
from flopwise.fleet.places import check_names
from flopwise.fleet.problem import Problem, allotments, monthly_cost, problem
from flopwise.fleet.results import Chosen, chosen_ways, result
from flopwise.fleet.scenarios import simulated
from flopwise.fleet.whatif import whatifs

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.fleet.allocate import Allocation
    from flopwise.fleet.file import Platform

Advance = Callable[[str, int, int], None]
STAGES = ("searching", "allocating", "what if", "scenarios")


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """What the parts of an assessment read."""

    platform: Platform
    facts: Facts
    items: tuple[Carried, ...]
    made: Problem
    found: Allocation
    chosen: tuple[Chosen, ...]
    rows: tuple[Allotment, ...]


def assess(
    platform: Platform,
    facts: Facts,
    *,
    advance: Advance | None = None,
    scenarios: int = 1000,
    seed: int = 0,
    today: str | None = None,
) -> Assessment:
    """Assess a platform over the offers of `facts`; `advance(stage, done, whole)` is called as it goes.

    `scenarios`: drawn months, 0 for none. `today`: the date of the assessment, for the age of prices.

    Raises:
        SpecError, UnknownNameError: something in the fleet is wrong.
        InfeasibleError: a workload that nothing can run, or policies that contradict one another; says which.
    """
    started = time.perf_counter()
    told = advance or (lambda _stage, _done, _whole: None)
    check_names(platform, facts)
    items = carried(platform, facts, lambda done, whole: told(STAGES[0], done, whole))
    unmet(items)
    made = problem(platform, items, facts.folder)
    told(STAGES[1], 0, 1)
    found = made.solved()
    told(STAGES[1], 1, 1)
    chosen = tuple(chosen_ways(made, found, facts))
    rows = tuple(with_intervals(allotments(made, found), chosen))
    solved = Solved(platform=platform, facts=facts, items=items, made=made, found=found, chosen=chosen, rows=rows)
    return _composed(solved, told, scenarios, seed, today, started)


def _composed(
    solved: Solved, told: Advance, scenarios: int, seed: int, today: str | None, started: float
) -> Assessment:
    platform, folder = solved.platform, solved.facts.folder
    bill, notes = monthly_cost(platform, solved.rows, folder)
    told(STAGES[2], 0, 2)
    binding = bindings(solved.made, solved.found)
    told(STAGES[2], 1, 2)
    questions = whatifs(platform, solved.made, solved.found, folder)
    told(STAGES[3], 0, 1)
    fixed = bill.storage + bill.traffic
    drawn = simulated(platform, solved.rows, fixed, runs=scenarios, seed=seed, folder=folder) if scenarios else None
    told(STAGES[3], 1, 1)
    return Assessment(
        name=platform.fleet.name,
        date=today or "",
        workloads=[result(chosen, solved.facts) for chosen in solved.chosen],
        allocation=list(solved.rows),
        usd_per_month=bill,
        savings=[],
        risks=[],
        binding=binding,
        whatif=questions,
        scenarios=drawn,
        roadmap=[],
        monitoring=[],
        gpus=[],
        sizes=[],
        instances=[],
        optimality_gap=solved.found.gap,
        budget_per_month=platform.rules.budget_per_month,
        assumptions=[],
        price_notes=notes,
        elapsed_s=time.perf_counter() - started,
        fleet=msgspec.to_builtins(platform.fleet),
    )


def with_intervals(rows: list[Allotment], chosen: tuple[Chosen, ...]) -> list[Allotment]:
    """The bill's rows with 10-90 % intervals: runs take longer or shorter, services need more or fewer machines."""
    by_name = {c.item.placed.name: c for c in chosen}
    found = []
    for row in rows:
        held = by_name[row.workload]
        told = held.figures
        if told is None or row.role == "backup" or row.purchase.startswith("reserved"):
            found.append(row)
            continue
        low, high = told.time_low, told.time_high
        if not held.item.placed.ends:
            low = max(1, math.ceil(row.count * low - 1e-9)) / row.count
            high = math.ceil(row.count * high - 1e-9) / row.count
        found.append(
            msgspec.structs.replace(
                row, usd_low=row.usd_per_month * min(1.0, low), usd_high=row.usd_per_month * max(1.0, high)
            )
        )
    return found
