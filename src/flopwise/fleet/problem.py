"""From ways to the allocation's columns, and back to the machines of a bill."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flopwise.fleet.allocate import Allocation, Choice, Demand, Taken, allocate
from flopwise.fleet.assessment import Allotment, MonthlyCost
from flopwise.fleet.candidates import KEPT, Carried, Way, chosen_few
from flopwise.fleet.money import carbon_kg, volumes_usd
from flopwise.fleet.week import slots

if TYPE_CHECKING:
    from pathlib import Path

    from flopwise.fleet.file import Platform, Rules
    from flopwise.fleet.hours import Schedule

Factor = Callable[[Way], float]
"""What a way's price is multiplied by."""
MANY = 4000
"""Choices beyond which fewer of each workload are weighed."""
GAP, SECONDS = 1e-3, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The columns of one fleet: choice `n` buys `ways[n]`."""

    items: tuple[Carried, ...]
    ways: tuple[Way, ...]
    choices: tuple[Choice, ...]
    demands: tuple[Demand, ...]
    rules: Rules
    kept: int

    def solved(
        self, without: frozenset[str] = frozenset(), *, gap: float = GAP, seconds: float = SECONDS
    ) -> Allocation:
        """The cheapest allocation. Raises as `allocate`."""
        return allocate(self.choices, self.demands, self.rules, without=without, gap=gap, seconds=seconds)

    def without(self, drop: Callable[[Way], bool]) -> Problem:
        """The problem without some ways."""
        left = [n for n, w in enumerate(self.ways) if not drop(w)]
        ways = tuple(self.ways[n] for n in left)
        choices = tuple(replace(self.choices[n], candidate=i) for i, n in enumerate(left))
        return replace(self, ways=ways, choices=choices)

    def priced(self, factor: Factor) -> Problem:
        """The problem with other prices."""
        choices = [replace(c, usd_each=c.usd_each * factor(w)) for c, w in zip(self.choices, self.ways, strict=True)]
        return replace(self, choices=tuple(choices))


def problem(platform: Platform, items: Sequence[Carried], folder: Path | None = None) -> Problem:
    """The columns of a fleet whose workloads all have ways."""
    most = KEPT
    few = [chosen_few(item, most) for item in items]
    while sum(map(len, few)) > MANY and most > 1:
        most = max(1, most // 2)
        few = [chosen_few(item, most) for item in items]
    ways = tuple(w for group in few for w in group)
    choices = tuple(_choice(n, w, folder) for n, w in enumerate(ways))
    week = slots([_schedule(item) for item in items])
    demands = tuple(_demand(item, shares) for item, shares in zip(items, week, strict=True))
    return Problem(items=tuple(items), ways=ways, choices=choices, demands=demands, rules=platform.rules, kept=most)


def _choice(number: int, found: Way, folder: Path | None) -> Choice:
    kg = None if found.kwh is None else carbon_kg(found.kwh, found.offer.provider, found.offer.region, folder)
    return Choice(
        workload=found.workload,
        provider=found.offer.provider,
        region=found.offer.region,
        instance=found.offer.instance,
        purchase=found.purchase,
        instances=found.instances,
        usd_each=found.usd_each,
        busy_hours=found.busy_hours,
        kg_each=(kg or 0.0) / found.instances,
        candidate=number,
        unit=found.unit,
    )


def _schedule(item: Carried) -> Schedule | None:
    """What bounds it in the week where it may share machines; runs only where their place in the week was stated."""
    when = item.placed.schedule
    shares = any(w.purchase.startswith("reserved") for w in item.ways)
    return when if shares and (when.fixed or not item.placed.ends) else None


def _demand(item: Carried, shares: tuple[float, ...]) -> Demand:
    placed = item.placed
    return Demand(
        name=placed.name,
        splittable=item.splittable,
        flexible=placed.ends,
        slots=shares,
        backup=placed.job.backup,
    )


def allotments(made: Problem, found: Allocation) -> list[Allotment]:
    """The machines of an allocation, one row for each workload and kind; reserved pools are shared out by use."""
    used: dict[tuple[str, str, str, str], float] = defaultdict(float)
    for taken in found.taken:
        if taken.choice.pooled and taken.role == "primary":
            used[taken.choice.machine] += taken.count * taken.choice.busy_hours
    return [_allotment(made, found, taken, used) for taken in found.taken]


def _allotment(
    made: Problem, found: Allocation, taken: Taken, used: dict[tuple[str, str, str, str], float]
) -> Allotment:
    choice, held = taken.choice, made.ways[taken.choice.candidate]
    item, rules = made.items[choice.workload], made.rules
    busy, paid, pool, usd = held.busy_hours, held.paid_hours, "", choice.usd_each * taken.count
    if taken.role == "backup":
        paid = busy = 730.0 if rules.backup_on else rules.backup_hours
        usd = choice.usd_each * min(1.0, paid / max(held.busy_hours, 1e-9)) * taken.count
    elif choice.pooled:
        share = taken.count * choice.busy_hours / used[choice.machine]
        usd = share * found.pools[choice.machine] * choice.usd_each
        sharers = sum(t.choice.machine == choice.machine for t in found.taken)
        pool = f"{choice.instance} {choice.purchase}" if sharers > 1 else ""
    work = max(busy * taken.count, 1e-12)
    return Allotment(
        workload=item.placed.name,
        environment=item.placed.environment,
        provider=choice.provider,
        region=choice.region,
        instance=choice.instance,
        gpu=held.candidate.gpu,
        purchase=choice.purchase,
        count=taken.count,
        hours_per_month=paid,
        usd_per_hour=held.usd_per_hour,
        usd_per_hour_effective=usd / work,
        usd_per_month=usd,
        usd_low=usd,
        usd_high=usd,
        price_date=held.offer.price_date,
        role=taken.role,
        pool=pool,
    )


def monthly_cost(
    platform: Platform, rows: Sequence[Allotment], folder: Path | None = None
) -> tuple[MonthlyCost, list[str]]:
    """The bill by what it is for, and what is not known of it. Storage and traffic follow the main provider."""
    by: dict[str, dict[str, float]] = {
        name: defaultdict(float) for name in ("provider", "environment", "workload", "purchase")
    }
    for row in rows:
        for name, sums in by.items():
            sums[getattr(row, name)] += row.usd_per_month
    compute = sum(row.usd_per_month for row in rows)
    storage = traffic = 0.0
    notes: list[str] = []
    for placed in platform.workloads:
        mine = [row for row in rows if row.workload == placed.name and row.role == "primary"]
        if not mine or not (placed.storage_bytes or placed.egress_bytes or placed.inter_zone_bytes):
            continue
        main = max(mine, key=lambda row: row.usd_per_month)
        kept, moved, told = volumes_usd(placed, main.provider, folder)
        notes += told
        storage, traffic = storage + kept, traffic + moved
        by["provider"][main.provider] += kept + moved
        by["environment"][placed.environment] += kept + moved
        by["workload"][placed.name] += kept + moved
    total = compute + storage + traffic
    low = sum(row.usd_low for row in rows) + storage + traffic
    high = sum(row.usd_high for row in rows) + storage + traffic
    bill = MonthlyCost(
        total=total,
        low=low,
        high=high,
        by_provider=_largest_first(by["provider"]),
        by_environment=_largest_first(by["environment"]),
        by_workload=_largest_first(by["workload"]),
        by_purchase=_largest_first(by["purchase"]),
        compute=compute,
        storage=storage,
        traffic=traffic,
    )
    return bill, list(dict.fromkeys(notes))


def _largest_first(sums: dict[str, float]) -> dict[str, float]:
    return dict(sorted(sums.items(), key=lambda entry: -entry[1]))
