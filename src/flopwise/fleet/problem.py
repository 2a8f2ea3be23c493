"""From ways to the allocation's columns, and back to the machines of a bill."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from flopwise.fleet.allocate import Allocation, Choice, Demand, Machine, Own, Taken, allocate, rented
from flopwise.fleet.assessment import Allotment, MonthlyCost
from flopwise.fleet.candidates import KEPT, Carried, chosen_few
from flopwise.fleet.formulation import VOLUMES
from flopwise.fleet.money import VolumeBill, carbon_of, volume_bills
from flopwise.fleet.own import OwnOffer
from flopwise.fleet.spec import OWNED
from flopwise.fleet.way import Way
from flopwise.fleet.week import slots
from flopwise.units import HOURS_PER_MONTH

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer
    from flopwise.fleet.file import Platform, Rules
    from flopwise.fleet.hours import Schedule

MANY = 4000
"""Choices beyond which fewer of each workload are weighed."""
IDLE = "idle"
"""Role and environment of machines that are paid and carry nothing."""
GAP, SECONDS = 1e-3, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The columns of one fleet: choice `n` buys `ways[n]`; `volumes`: by the workload's number and provider."""

    items: tuple[Carried, ...]
    ways: tuple[Way, ...]
    choices: tuple[Choice, ...]
    demands: tuple[Demand, ...]
    volumes: dict[tuple[int, str], VolumeBill]
    rules: Rules
    kept: int
    risen: Mapping[str, float] = field(default_factory=dict)  # providers' prices, times those that shares are held at

    def solved(
        self,
        without: frozenset[str] = frozenset(),
        *,
        gap: float = GAP,
        seconds: float = SECONDS,
        start: Allocation | None = None,
    ) -> Allocation:
        """The cheapest allocation. Raises as `allocate`."""
        return allocate(
            self.choices, self.demands, self.rules, without=without, gap=gap, seconds=seconds, start=start,
            risen=self.risen,
        )  # fmt: skip

    def without(self, drop: Callable[[Way], bool]) -> Problem:
        """The problem without some ways."""
        left = [n for n, w in enumerate(self.ways) if not drop(w)]
        ways = tuple(self.ways[n] for n in left)
        choices = tuple(replace(self.choices[n], candidate=i) for i, n in enumerate(left))
        return replace(self, ways=ways, choices=choices)

    def raised(self, providers: Collection[str], factor: float) -> Problem:
        """The problem with the prices of some providers, for machines and volumes, times `factor`.

        Shares of the bill are held at the prices before: what is allowed stays allowed, so that no rise makes it less.
        """
        choices = [replace(c, usd_each=c.usd_each * (factor if c.provider in providers else 1)) for c in self.choices]
        demands = [
            replace(d, volumes_usd={p: usd * (factor if p in providers else 1) for p, usd in d.volumes_usd.items()})
            for d in self.demands
        ]
        return replace(self, choices=tuple(choices), demands=tuple(demands), risen=dict.fromkeys(providers, factor))


def problem(platform: Platform, items: Sequence[Carried], facts: Facts) -> Problem:
    """The columns of a fleet whose workloads all have ways."""
    most = KEPT
    few = [chosen_few(item, most) for item in items]
    while sum(map(len, few)) > MANY and most > 1:
        most = max(1, most // 2)
        few = [chosen_few(item, most) for item in items]
    ways = tuple(w for group in few for w in group)
    choices = tuple(_choice(n, w, kg) for n, (w, kg) in enumerate(zip(ways, carbon_weighed(ways, facts), strict=True)))
    providers = [{w.offer.provider: rented(w.purchase) for w in group} for group in few]
    volumes = volume_bills([item.placed for item in items], providers, facts)
    week = slots([_schedule(item) for item in items])
    demands = tuple(
        _demand(item, week[n], {name: volumes[n, name].usd for name in providers[n] if (n, name) in volumes})
        for n, item in enumerate(items)
    )
    return Problem(
        items=tuple(items), ways=ways, choices=choices, demands=demands, volumes=volumes, rules=platform.rules,
        kept=most,
    )  # fmt: skip


def carbon_weighed(ways: Sequence[Way], facts: Facts) -> list[float]:
    """What each way emits in the choice, kg of CO2 a month; one that is not known counts as its workload's worst.

    Assumes: what nobody measured is no cleaner than the others; where none of a workload's is known, none counts.
    """
    known = [carbon_of(w.kwh, w.offer, facts) for w in ways]
    worst: dict[int, float] = {}
    for way, kg in zip(ways, known, strict=True):
        worst[way.workload] = max(worst.get(way.workload, 0.0), kg or 0.0)
    return [worst[way.workload] if kg is None else kg for way, kg in zip(ways, known, strict=True)]


def _choice(number: int, found: Way, kg: float) -> Choice:
    offer, own = found.offer, None
    if isinstance(offer, OwnOffer):
        own = Own(tiers=offer.tiers, off_usd=offer.off, hours=offer.month.available_hours)
    return Choice(
        workload=found.workload,
        provider=found.offer.provider,
        region=found.offer.region,
        instance=found.offer.instance,
        purchase=found.purchase,
        instances=found.instances,
        usd_each=found.usd_each,
        busy_hours=found.busy_hours,
        kg_each=kg / found.instances,
        candidate=number,
        unit=found.unit,
        usd_running=found.usd_running,
        own=own,
    )


def _schedule(item: Carried) -> Schedule | None:
    """What bounds it in the week where it may share machines; runs only where their place in the week was stated."""
    when = item.placed.schedule
    shares = any(w.purchase.startswith(("reserved", OWNED)) for w in item.ways)
    return when if shares and (when.fixed or not item.placed.ends) else None


def _demand(item: Carried, shares: tuple[float, ...], volumes_usd: dict[str, float]) -> Demand:
    placed = item.placed
    return Demand(
        name=placed.name,
        splittable=item.splittable,
        flexible=placed.ends,
        slots=shares,
        backup=placed.job.backup,
        volumes_usd=volumes_usd,
    )


def allotments(made: Problem, found: Allocation) -> list[Allotment]:
    """The machines of an allocation, one row for each workload and kind.

    Own machines that are paid and carry nothing have rows of their own, of no workload.
    """
    sharers: dict[Machine, set[int]] = defaultdict(set)
    for taken in found.taken:
        if taken.choice.pooled:
            sharers[taken.choice.machine].add(taken.choice.workload)
    rows = []
    for taken in found.taken:
        machine = taken.choice.machine
        date = _price_date(made.ways[taken.choice.candidate].offer, found.pools.get(machine, 0))
        rows.append(_allotment(made, taken, len(sharers[machine]) > 1, date))
    held = {c.machine: made.ways[c.candidate] for c in made.choices if c.machine in found.idle}
    return rows + [_idle(held[machine], count, usd) for machine, (count, usd) in found.idle.items()]


def _idle(held: Way, count: int, usd: float) -> Allotment:
    """Machines that are paid and carry nothing."""
    offer = held.offer
    return Allotment(
        workload="", environment=IDLE, provider=offer.provider, region=offer.region, instance=offer.instance,
        gpu=offer.accelerator, purchase=held.purchase, count=count, hours_per_month=HOURS_PER_MONTH,
        usd_per_hour=usd / count / HOURS_PER_MONTH, usd_per_hour_effective=None, usd_per_month=usd, usd_low=usd,
        usd_high=usd, price_date=_price_date(offer, 0), role=IDLE,
        num_gpus=count * offer.count,
    )  # fmt: skip


def _price_date(offer: Offer, machines: int) -> str:
    """The day of the price that is paid; empty of own machines that were all there, where their price is spent."""
    if isinstance(offer, OwnOffer) and offer.machines.sunk and machines <= offer.machines.count:
        return ""
    return offer.price_date


def _allotment(made: Problem, taken: Taken, shared: bool, date: str) -> Allotment:
    choice, held = taken.choice, made.ways[taken.choice.candidate]
    item, rules = made.items[choice.workload], made.rules
    busy, paid, usd = held.busy_hours, held.paid_hours, taken.usd
    pool = f"{choice.instance} {choice.purchase}" if shared and choice.pooled else ""
    if taken.role == "backup":
        paid = busy = HOURS_PER_MONTH if rules.backup_on else rules.backup_hours
    rate, work = held.usd_per_hour, max(busy * taken.count, 1e-12)
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
        usd_per_hour=rate,
        usd_per_hour_effective=None if rate is None else usd / work,
        usd_per_month=usd,
        usd_low=usd,
        usd_high=usd,
        price_date=date,
        role=taken.role,
        pool=pool,
        num_gpus=taken.count * held.gpus_each,
    )


def monthly_cost(made: Problem, found: Allocation, rows: Sequence[Allotment]) -> tuple[MonthlyCost, list[str]]:
    """The bill by what it is for, and what is to be said of its prices. Storage and traffic go with the machines."""
    by: dict[str, dict[str, float]] = {
        name: defaultdict(float) for name in ("provider", "environment", "workload", "purchase")
    }
    for row in rows:
        for name, sums in by.items():
            sums[getattr(row, name) or IDLE] += row.usd_per_month
    compute = sum(row.usd_per_month for row in rows)
    storage = traffic = 0.0
    notes: list[str] = []
    for (number, provider), share in found.volumes.items():
        placed, held = made.items[number].placed, made.volumes[number, provider]
        storage, traffic = storage + share * held.storage, traffic + share * held.traffic
        keys = {"provider": provider, "environment": placed.environment, "workload": placed.name, "purchase": VOLUMES}
        for name, key in keys.items():
            by[name][key] += share * held.usd
        notes += held.notes
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
