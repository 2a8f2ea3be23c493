"""The assessment of a whole platform: search, allocation, and everything that is read from them."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from flopwise.errors import InfeasibleError
from flopwise.fleet.allocate import rented
from flopwise.fleet.assessment import Allotment, Assessment
from flopwise.fleet.binding import bindings
from flopwise.fleet.candidates import KEPT, Carried, carried, unmet
from flopwise.fleet.forecast import forecast, volumes_by_workload
from flopwise.fleet.load import Load, loads_of
from flopwise.fleet.names import checked, spelled
from flopwise.fleet.outlook import alerts, roadmap
from flopwise.fleet.own_tables import hosted_rows, own_notes, own_rows
from flopwise.fleet.plans import plans_of
from flopwise.fleet.problem import IDLE, Problem, allotments, monthly_cost, problem
from flopwise.fleet.results import Chosen, chosen_ways, result
from flopwise.fleet.risks import risks
from flopwise.fleet.savings import savings
from flopwise.fleet.scenarios import simulated
from flopwise.fleet.tables import gpu_rows, instance_rows, size_rows
from flopwise.fleet.way import Way
from flopwise.fleet.whatif import whatifs

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.fleet.allocate import Allocation
    from flopwise.fleet.file import Platform
    from flopwise.search.answer import Plan

Advance = Callable[[str, int, int], None]
SUSPICIOUS = 0.25
"""Share of the on-demand price below which a spot price deserves a second look."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessed:
    """An assessment, and the plan of each planned workload by its name."""

    assessment: Assessment
    plans: dict[str, Plan]


def assess(
    platform: Platform,
    facts: Facts,
    *,
    advance: Advance | None = None,
    scenarios: int = 1000,
    seed: int = 0,
    today: str | None = None,
) -> Assessment:
    """The assessment alone; arguments and errors are those of `assessed`."""
    return assessed(platform, facts, advance=advance, scenarios=scenarios, seed=seed, today=today).assessment


def assessed(
    platform: Platform,
    facts: Facts,
    *,
    advance: Advance | None = None,
    scenarios: int = 1000,
    seed: int = 0,
    today: str | None = None,
) -> Assessed:
    """Assess a platform over the offers of `facts`; `advance(stage, done, whole)` is called as it goes.

    `scenarios`: drawn months, 0 for none. `today`: the date of the assessment (2026-11-21), for the age of prices.

    Raises:
        SpecError, UnknownNameError: something in the fleet is wrong.
        InfeasibleError: a workload that nothing can run, or policies that contradict one another; says which.
    """
    started = time.perf_counter()
    told = advance or (lambda _stage, _done, _whole: None)
    facts = checked(platform, facts)
    platform = spelled(platform, facts)
    made, found = _allocated(platform, facts, told)
    items = made.items
    chosen = tuple(chosen_ways(made, found, facts))
    rows = tuple(with_intervals(allotments(made, found), chosen))
    solved = Solved(platform=platform, facts=facts, items=items, made=made, found=found, chosen=chosen, rows=rows)
    answer = _composed(solved, told, scenarios, seed, today, started)
    return Assessed(assessment=answer, plans=plans_of(chosen))


WIDER = 3
"""Times the kinds of machines that are searched of a large fleet before shares of the bill are refused."""


def _allocated(platform: Platform, facts: Facts, told: Advance, times: int = 1) -> tuple[Problem, Allocation]:
    """The cheapest allocation. Where only some kinds of machines were searched, more are before shares are refused."""
    items = carried(platform, facts, lambda done, whole: told(STAGES[0], done, whole), times=times)
    unmet(items)
    made = problem(platform, items, facts)
    told(STAGES[1], 0, 1)
    try:
        found = made.solved()
    except InfeasibleError as error:
        few = [item.few for item in items if item.few is not None]
        if not few:
            raise
        if platform.rules.providers and times == 1:
            return _allocated(platform, facts, told, WIDER)
        seen = f"among the {min(few)} kinds of machines that were searched for each workload of this large fleet"
        raise InfeasibleError(f"{seen}: {error}", error.reasons) from None
    told(STAGES[1], 1, 1)
    return made, found


def _composed(
    solved: Solved, told: Advance, scenarios: int, seed: int, today: str | None, started: float
) -> Assessment:
    platform, facts, made, chosen = solved.platform, solved.facts, solved.made, solved.chosen
    rules = platform.rules
    bill, notes = monthly_cost(made, solved.found, solved.rows)
    told(STAGES[2], 0, 3)
    binding = bindings(made, solved.found)
    told(STAGES[2], 1, 3)
    questions = whatifs(platform, made, solved.found, facts)
    told(STAGES[2], 2, 3)
    saved = savings(chosen, solved.rows, facts, rules)
    told(STAGES[3], 0, 1)
    idle = [row for row in solved.rows if row.role == IDLE]
    fixed = bill.storage + sum(row.usd_per_month for row in idle)
    volumes = volumes_by_workload(made, solved.found)
    drawn = None
    if scenarios:
        sent = {made.items[number].placed.name: traffic for number, (_, traffic) in volumes.items()}
        busy = [row for row in solved.rows if row.role != IDLE]
        loads = loads_of(busy, chosen)
        drawn = simulated(platform, busy, fixed, loads=loads, sent_usd=sent, runs=scenarios, seed=seed, facts=facts)
    told(STAGES[3], 1, 1)
    ages = price_ages(solved.rows, today)
    own = own_rows(platform, facts, made, solved.found)
    months = forecast(chosen, solved.rows, volumes, today, facts)
    register = risks(platform, chosen, solved.rows, bill, questions, drawn, ages, months, facts)
    return Assessment(
        name=platform.fleet.name,
        date=today or "",
        workloads=[result(held, facts) for held in chosen],
        allocation=list(solved.rows),
        usd_per_month=bill,
        savings=saved,
        risks=register,
        binding=binding,
        whatif=questions,
        scenarios=drawn,
        roadmap=roadmap(chosen, bill),
        monitoring=alerts(platform, chosen, solved.rows, bill, facts),
        gpus=gpu_rows(platform, facts, chosen),
        sizes=size_rows(chosen),
        instances=instance_rows(made, solved.found),
        own_machines=own,
        hosted=hosted_rows(chosen),
        optimality_gap=solved.found.gap,
        budget_per_month=rules.budget_per_month,
        assumptions=assumptions(solved, drawn is not None, today),
        price_notes=price_notes(solved, ages) + notes + own_notes(own),
        elapsed_s=time.perf_counter() - started,
        fleet=dict(platform.written),
        forecast=months,
    )


def price_ages(rows: Sequence[Allotment], today: str | None) -> dict[str, float]:
    """Days since each date of a price; nothing where no day is given."""
    if today is None:
        return {}
    day = dt.date.fromisoformat(today)
    return {row.price_date: float((day - dt.date.fromisoformat(row.price_date)).days) for row in rows if row.price_date}


def price_notes(solved: Solved, ages: dict[str, float]) -> list[str]:
    """Prices that are older than the fleet allows, and how the taken machines are billed."""
    told = []
    most = solved.platform.rules.max_price_age_days
    for row in solved.rows:
        age = ages.get(row.price_date, 0.0)
        if age > most:
            told.append(
                f"the price of {row.provider} {row.instance} is of {row.price_date}, {age:,.0f} days old; more than "
                f"{most:g} days"
            )
    for held in solved.chosen:
        told += [_too_cheap(w) for w, _ in held.parts if w.purchase == "spot"]
        told += [f"{w.offer.provider} {w.offer.instance}: {note}" for w, _ in held.parts for note in w.notes]
    return list(dict.fromkeys(text for text in told if text))


def _too_cheap(found: Way) -> str:
    """A remark on a spot price that is far below the one on demand."""
    rate = found.offer.on_demand_usd_per_hour
    if rate is None or found.usd_per_hour is None or found.usd_per_hour > SUSPICIOUS * rate:
        return ""
    share = 100 * found.usd_per_hour / rate
    return (
        f"{found.offer.provider} {found.offer.instance} in {found.offer.region}: the spot price of "
        f"{found.offer.price_date} is {share:.0f} % of the one on demand; make sure that it still holds"
    )


def assumptions(solved: Solved, drawn: bool, today: str | None = None) -> list[str]:
    """What is assumed: of the fleet, then of each workload's plan."""
    told = [
        "a month has 730 hours; a run without a deadline has its share of its environment's hours",
        "machines of a kind are there when they are needed, at the listed price, up to the quotas",
    ]
    if drawn:
        strays = solved.platform.rules.strays
        told.append(
            f"drawn months: demand varies by {100 * strays.demand:.3g} %, spot prices by {100 * strays.spot_price:.3g} "
            f"%, others by {100 * strays.list_price:.3g} % (standard deviations; policies.scenarios sets them), an "
            f"interruption costs {strays.rework_hours:g} h, predictions vary by their measured errors"
        )
    if solved.platform.rules.carbon_usd_per_kg:
        told.append("machines of unknown power count in the choice as the workload's way that emits most")
    told += _of_schedules(solved, today)
    told += dict.fromkeys(note for item in solved.items for note in item.notes)
    if solved.made.kept < KEPT:
        told.append(f"of each provider and purchase the {solved.made.kept} cheapest instance types were weighed")
    by_text: dict[str, list[str]] = {}
    held = {c.item.index: c for c in solved.chosen}
    for item in solved.items:
        for text in () if item.plan is None else _that_matter(item.plan.assumptions, held[item.index]):
            by_text.setdefault(text, []).append(item.placed.name)
    for text, names in by_text.items():
        told.append(f"{_some(names)}: {text}")
    return told


def _of_schedules(solved: Solved, today: str | None) -> list[str]:
    """Where schedules are taken to lie in the week, and which workloads were to start before today."""
    placed = [item.placed for item in solved.items]
    told = []
    if any(p.schedule.fixed for p in placed):
        told.append("times of schedules are by one clock for the whole fleet; each day of the week comes 4.345 times")
    loose = [p.name for p in placed if not (p.schedule.fixed or p.schedule.always or p.ends)]
    if loose:
        told.append(f"{_some(loose)}: without times of day, on from 9:00, on working days as far as those suffice")
    early = [p.name for p in placed if today and (p.job.starts or today) < today[:7]]
    if early:
        told.append(f"{_some(early)}: to start before the day of this assessment, and taken to run already")
    return told


def _some(names: Sequence[str]) -> str:
    """The first few of them."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _that_matter(told: Sequence[str], held: Chosen) -> list[str]:
    """What a plan assumes, without what it says of spot machines that were not taken."""
    kept = {f"spot {w.candidate.gpu} of {w.offer.provider}" for w, _ in held.parts if w.purchase == "spot"}
    return [text for text in told if not text.startswith("spot ") or text.split(":", 1)[0] in kept]


def with_intervals(rows: Sequence[Allotment], chosen: Sequence[Chosen]) -> list[Allotment]:
    """The bill's rows with 10-90 % intervals: runs take longer or shorter, services need more or fewer machines.

    What is paid anyhow costs no less; where it does not suffice, a service's missing machines come on top.
    """
    by_name = {c.item.placed.name: c for c in chosen}
    return [
        _with_interval(row, by_name.get(row.workload), load)
        for row, load in zip(rows, loads_of(rows, chosen), strict=True)
    ]


def _with_interval(row: Allotment, held: Chosen | None, load: Load | None) -> Allotment:
    told = None if held is None else held.figures
    if load is not None:
        less, more = load.strays_usd(1.0)
        low, high = row.usd_per_month + less, row.usd_per_month + more
    elif told is None or row.role == "backup" or row.purchase.startswith("reserved") or not rented(row.purchase):
        return row
    else:
        low, high = row.usd_per_month * told.time_low, row.usd_per_month * told.time_high
    usd = row.usd_per_month
    return msgspec.structs.replace(row, usd_low=min(usd, low), usd_high=max(usd, high))
