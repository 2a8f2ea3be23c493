"""The months to come: the bill of each as workloads begin and grow, and the phases in which they are built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flopwise.fleet.assessment import Allotment, Month, MonthlyCost, Phase
from flopwise.fleet.option import monthly_option
from flopwise.fleet.schedules import month_after, months_between

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.fleet.bill import SolvedFleet
    from flopwise.fleet.model import ChosenWorkload
    from flopwise.fleet.replica_scaling import ReplicaLoad

AHEAD, MOST = 12, 48
"""Months after the last beginning that are shown, and how many at most."""
PHASES = ("development", "staging", "training", "production", "large models")
LARGE = 20e9
"""Parameters from which a model is large."""


def forecast(fleet: SolvedFleet, today: str | None) -> list[Month]:
    """The bill of each month from the first beginning to a year after the last; none where no month is known.

    Assumes: the fleet describes each workload as it begins; growth is met with more of the same machines, services
    adding one when those they have are as busy as they may be; own machines beyond those there may be cost as much;
    what is sent grows with the load at the same price of a byte, what is stored stays.
    """
    starts = [c.job.spec.starts for c in fleet.chosen]
    known = [s for s in starts if s is not None]
    if not known and not today:
        return []
    first = min(known) if known and not today else (today or "")[:7]
    if known and all(s is not None for s in starts):
        first = max(first, min(known))
    begins = [max(0, months_between(first, s or first)) for s in starts]
    idle = sum(row.usd_per_month for row in fleet.rows if not row.workload)  # own machines that carry nothing
    sums = [[idle, idle, idle] for _ in range(min(MOST, max(begins) + AHEAD + 1))]
    rows: dict[str, list[tuple[Allotment, ReplicaLoad | None]]] = {}
    for row, load in zip(fleet.rows, fleet.loads, strict=True):
        rows.setdefault(row.workload, []).append((row, load))
    for chosen, begin in zip(fleet.chosen, begins, strict=True):
        stored, sent = fleet.volumes.get(chosen.planned.index, (0.0, 0.0))
        for number in range(begin, len(sums)):
            grown = (1 + chosen.job.growth_per_month) ** (number - begin)
            more = _machine_growth(chosen, grown, fleet.facts)
            for n, usd in enumerate(_grown_usd(rows.get(chosen.name, []), grown, more)):
                sums[number][n] += usd + stored + sent * grown
    return [
        Month(
            month=month_after(first, n), usd=usd, low=low, high=high, workloads=sum(b <= n for b in begins)
        )
        for n, (usd, low, high) in enumerate(sums)
    ]  # fmt: skip


def _grown_usd(
    rows: Sequence[tuple[Allotment, ReplicaLoad | None]], grown: float, more: float
) -> tuple[float, float, float]:
    """(planned, low, high) of a workload's machines at `grown` times the load, which cost `more` times as much, USD."""
    usd = low = high = 0.0
    for row, load in rows:
        planned = row.usd_per_month * more
        usd += planned
        if load is None:
            low, high = low + row.usd_low * more, high + row.usd_high * more
        else:
            ends = load.interval_usd(grown)
            low, high = low + planned + ends[0], high + planned + ends[1]
    return usd, low, high


def _machine_growth(chosen: ChosenWorkload, grown: float, facts: Facts) -> float:
    """How many times the machines cost of what they cost, at `grown` times the load."""
    job = chosen.job
    if grown == 1.0 or job.workload is None:
        return 1.0
    now = later = 0.0
    for taken in chosen.parts:
        option = taken.option
        share = taken.count / option.instances
        now += share * option.usd
        more = monthly_option(option.workload, job, option.candidate, option.offer, facts, grown)
        beyond = option.own is not None and more.instances > option.own.most
        later += share * (option.usd * grown if beyond else more.usd)
    return later / now if now else grown


def roadmap(chosen: Sequence[ChosenWorkload], cost: MonthlyCost) -> list[Phase]:
    """Phases in order of their months, else in the usual order; the cost of each is of what it adds."""
    groups: dict[tuple[str, str], list[str]] = {}
    for workload in chosen:
        groups.setdefault((workload.job.spec.starts or "", _phase(workload)), []).append(workload.name)
    ordered = sorted(groups.items(), key=lambda g: (g[0][0], PHASES.index(g[0][1])))
    phases, running = list[Phase](), 0.0
    for (start, name), names in ordered:
        usd = sum(cost.by_workload.get(n, 0.0) for n in names)
        running += usd
        text = f"adds ${usd:,.0f} a month; ${running:,.0f} from then on"
        phases.append(Phase(name=name, start=start or None, workloads=names, usd_per_month=usd, text=text))
    return phases


def _phase(chosen: ChosenWorkload) -> str:
    environment = chosen.job.environment
    if chosen.job.spec.task == "develop" or environment in {"development", "staging"}:
        return "staging" if environment == "staging" else "development"
    if chosen.figures is not None and chosen.figures.parameters >= LARGE:
        return "large models"
    return "training" if chosen.job.trains else "production"
