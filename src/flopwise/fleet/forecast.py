"""The bill month by month: workloads begin when they are said to, and grow from then on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flopwise.fleet.assessment import Allotment, Month
from flopwise.fleet.load import Load, loads_of
from flopwise.fleet.months import month_after, months_between
from flopwise.fleet.own import OwnOffer
from flopwise.fleet.way import way

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.fleet.allocate import Allocation
    from flopwise.fleet.problem import Problem
    from flopwise.fleet.results import Chosen

AHEAD, MOST = 12, 48
"""Months after the last beginning that are shown, and how many at most."""


def forecast(
    chosen: Sequence[Chosen],
    rows: Sequence[Allotment],
    volumes: Mapping[int, tuple[float, float]],
    today: str | None,
    facts: Facts,
) -> list[Month]:
    """The bill of each month from the first beginning to a year after the last; none where no month is known.

    `volumes`: (storage, traffic) of each workload by its number, USD a month.

    Assumes: the fleet describes each workload as it begins; growth is met with more of the same machines, services
    adding one when those they have are as busy as they may be; own machines beyond those there may be cost as much;
    what is sent grows with the load at the same price of a byte, what is stored stays.
    """
    starts = [held.item.placed.job.starts for held in chosen]
    known = [s for s in starts if s is not None]
    if not known and not today:
        return []
    first = min(known) if known and not today else (today or "")[:7]
    if known and all(s is not None for s in starts):
        first = max(first, min(known))
    begins = [max(0, months_between(first, s or first)) for s in starts]
    whole = min(MOST, max(begins) + AHEAD + 1)
    idle = sum(row.usd_per_month for row in rows if not row.workload)  # own machines that carry nothing
    sums = [[idle, idle, idle] for _ in range(whole)]
    mine: dict[str, list[tuple[Allotment, Load | None]]] = {}
    for row, load in zip(rows, loads_of(rows, chosen), strict=True):
        mine.setdefault(row.workload, []).append((row, load))
    for held, begin in zip(chosen, begins, strict=True):
        own = mine.get(held.item.placed.name, [])
        stored, sent = volumes.get(held.item.index, (0.0, 0.0))
        for number in range(begin, whole):
            grown = (1 + held.item.placed.growth_per_month) ** (number - begin)
            more = _machines(held, grown, facts)
            for n, usd in enumerate(_ends(own, grown, more)):
                sums[number][n] += usd + stored + sent * grown
    return [
        Month(
            month=month_after(first, n), usd=usd, low=low, high=high, workloads=sum(b <= n for b in begins)
        )
        for n, (usd, low, high) in enumerate(sums)
    ]  # fmt: skip


def _ends(rows: Sequence[tuple[Allotment, Load | None]], grown: float, more: float) -> tuple[float, float, float]:
    """(planned, low, high) of a workload's machines at `grown` times the load, which cost `more` times as much, USD."""
    usd = low = high = 0.0
    for row, load in rows:
        planned = row.usd_per_month * more
        usd += planned
        if load is None:
            low, high = low + row.usd_low * more, high + row.usd_high * more
        else:
            ends = load.strays_usd(grown)
            low, high = low + planned + ends[0], high + planned + ends[1]
    return usd, low, high


def volumes_by_workload(made: Problem, found: Allocation) -> dict[int, tuple[float, float]]:
    """(storage, traffic) of each workload by its number, USD a month, over the providers that carry it."""
    sums: dict[int, tuple[float, float]] = {}
    for (number, provider), share in found.volumes.items():
        held, (storage, traffic) = made.volumes[number, provider], sums.get(number, (0.0, 0.0))
        sums[number] = storage + share * held.storage, traffic + share * held.traffic
    return sums


def _machines(held: Chosen, grown: float, facts: Facts) -> float:
    """How many times the machines cost of what they cost, at `grown` times the load."""
    item = held.item
    if grown == 1.0 or item.placed.wanted is None:
        return 1.0
    now = later = 0.0
    for found, count in held.parts:
        share = count / found.instances
        now += share * found.usd
        more = way(item.index, item.placed, found.candidate, found.offer, facts, grown)
        beyond = isinstance(found.offer, OwnOffer) and more.instances > found.offer.most
        later += share * (found.usd * grown if beyond else more.usd)
    return later / now if now else grown
