"""The bill of an allocation: its machines as rows with intervals, and the month by what it is for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from flopwise.facts.catalog import Facts
from flopwise.fleet.assessment import Allotment, MonthlyCost
from flopwise.fleet.model import (
    VOLUMES,
    Allocation,
    ChosenWorkload,
    Machine,
    MonthlyOption,
    PlannedWorkload,
    Platform,
    Taken,
    is_rented,
)
from flopwise.fleet.offers import OwnOffer
from flopwise.fleet.option import ReplicaLoad, replica_load
from flopwise.fleet.program import AllocationProblem
from flopwise.fleet.results import chosen_workloads
from flopwise.fleet.spec import OWNED
from flopwise.units import HOUR_S, HOURS_PER_MONTH

IDLE = "idle"
"""Role and environment of machines that are paid and carry nothing."""


@dataclass(frozen=True, kw_only=True)
class SolvedFleet:
    """A fleet with its allocation and its bill: what every part of an assessment reads."""

    platform: Platform
    facts: Facts
    problem: AllocationProblem
    allocation: Allocation
    chosen: tuple[ChosenWorkload, ...]
    rows: tuple[Allotment, ...]
    cost: MonthlyCost
    price_notes: tuple[str, ...]  # where prices of volumes are from
    lost: tuple[PlannedWorkload, ...] = ()  # that nothing runs, by their numbers in the file
    warnings: tuple[str, ...] = ()  # of policies that are left out for that

    @cached_property
    def by_name(self) -> dict[str, ChosenWorkload]:
        """The workloads by name."""
        return {c.name: c for c in self.chosen}

    @property
    def primary(self) -> Iterator[tuple[Allotment, Taken, ChosenWorkload]]:
        """Rows of the bill for machines that carry workloads, with those."""
        for row, taken in zip(self.rows, self.allocation.taken, strict=False):
            if row.role == "primary":
                yield row, taken, self.chosen[taken.option.workload]

    @cached_property
    def loads(self) -> tuple[ReplicaLoad | None, ...]:
        """The load of each row of the bill; None where it is no service's on machines."""
        loads = [replica_load(taken, self.chosen[taken.option.workload]) for taken in self.allocation.taken]
        return (*loads, *[None] * len(self.allocation.idle))

    @cached_property
    def volumes(self) -> dict[int, tuple[float, float]]:
        """(storage, traffic) of each workload by its number, USD a month, over the providers that carry it."""
        sums: dict[int, tuple[float, float]] = {}
        for (number, provider), share in self.allocation.volumes.items():
            bill, (storage, traffic) = self.problem.volumes[number, provider], sums.get(number, (0.0, 0.0))
            sums[number] = storage + share * bill.storage, traffic + share * bill.traffic
        return sums


def solved_fleet(
    platform: Platform, facts: Facts, problem: AllocationProblem, allocation: Allocation
) -> SolvedFleet:  # fmt: skip
    """The fleet with the figures of what its workloads run on, and its bill."""
    chosen = tuple(chosen_workloads(problem, allocation, facts))
    rows = _rows(problem, allocation, chosen)
    cost, notes = _monthly_cost(problem, allocation, rows)
    return SolvedFleet(
        platform=platform, facts=facts, problem=problem, allocation=allocation, chosen=chosen, rows=rows, cost=cost,
        price_notes=notes,
    )  # fmt: skip


def spot_interruptions(row: Allotment, facts: Facts) -> float:
    """Interruptions that are expected in a month, of all instances of a row of the bill; 0 unless they are spot."""
    if row.purchase != "spot":
        return 0.0
    rate = facts.spot(row.provider, row.gpu).interruptions_per_s
    return rate * HOUR_S * row.hours_per_month * row.count


def _rows(
    problem: AllocationProblem, allocation: Allocation, chosen: Sequence[ChosenWorkload]
) -> tuple[Allotment, ...]:
    """The machines of an allocation: a row for each that is taken, in their order, then idle own machines."""
    sharers: dict[Machine, set[int]] = defaultdict(set)
    for taken in allocation.taken:
        if taken.option.is_pooled:
            sharers[taken.option.machine].add(taken.option.workload)
    rows, backup = list[Allotment](), problem.rules.backup
    for taken in allocation.taken:
        option, busy, paid = taken.option, taken.scaled_hours or taken.option.busy_hours, taken.paid_hours
        if taken.role == "backup":
            paid = busy = HOURS_PER_MONTH if backup.on else backup.hours
        workload, rate = chosen[option.workload], option.usd_per_hour
        (low, high), job = _interval(taken, workload), workload.job
        row = Allotment(
            workload=job.name, environment=job.environment, provider=option.provider, region=option.region,
            instance=option.instance, gpu=option.candidate.gpu, purchase=option.purchase, count=taken.count,
            hours_per_month=paid, usd_per_hour=rate, usd_per_month=taken.usd, usd_low=low, usd_high=high,
            usd_per_hour_effective=None if rate is None else taken.usd / max(busy * taken.count, 1e-12),
            price_date=_price_date(option, allocation.pools.get(option.machine, 0)),
            price_note=option.offer.price_note(option.purchase),
            usd_per_hour_interval=option.offer.spot_band_usd_per_hour if option.purchase == "spot" else None,
            role=taken.role,
            pool=option.pool or (f"{option.instance} {option.purchase}" if len(sharers[option.machine]) > 1 else ""),
            dedicated=bool(option.pool),
            num_gpus=taken.count * option.gpus_each,
        )  # fmt: skip
        rows.append(row)
    owned = {o.whole_kind: o for o in problem.options if o.whole_kind in allocation.idle}
    for machine, (count, usd) in allocation.idle.items():
        offer = owned[machine].offer
        row = Allotment(
            workload="", environment=IDLE, provider=offer.provider, region=offer.region, instance=offer.instance,
            gpu=offer.accelerator, purchase=OWNED, count=count, hours_per_month=HOURS_PER_MONTH,
            usd_per_hour=usd / count / HOURS_PER_MONTH, usd_per_hour_effective=None, usd_per_month=usd, usd_low=usd,
            usd_high=usd, price_date=_price_date(owned[machine], 0), role=IDLE, num_gpus=count * offer.count,
        )  # fmt: skip
        rows.append(row)
    return tuple(rows)


def _interval(taken: Taken, chosen: ChosenWorkload) -> tuple[float, float]:
    """10-90 % interval of USD a month: of the time that the work takes, and of a price that is assumed."""
    low, high = _time_interval(taken, chosen)
    offer, usd = taken.option.offer, taken.option.usd_per_hour
    if taken.option.purchase != "spot" or offer.spot_band_usd_per_hour is None or not usd:
        return low, high
    least, most = offer.spot_band_usd_per_hour
    return low * least / usd, high * most / usd


def _time_interval(taken: Taken, chosen: ChosenWorkload) -> tuple[float, float]:
    """The same at the listed price: runs take longer or shorter, services need more or fewer machines.

    What is paid anyhow costs no less; where it does not suffice, a service's missing machines come on top.
    """
    usd, load, figures = taken.usd, replica_load(taken, chosen), chosen.figures
    if load is not None:
        ends = (float(load.usd_at(times)) for times in (min(1.0, load.time_low), max(1.0, load.time_high)))
        return min(usd, next(ends)), max(usd, next(ends))
    option = taken.option
    if figures is None or taken.role == "backup" or option.is_pooled or not is_rented(option.purchase):
        return usd, usd
    less, more = (option.candidate.cost_frac(longer) for longer in (figures.time_low, figures.time_high))
    return min(usd, usd * less), max(usd, usd * more)


def _price_date(option: MonthlyOption, machines: int) -> str:
    """The day of the price that is paid; empty of own machines that were all there, where their price is spent."""
    offer = option.offer
    if isinstance(offer, OwnOffer) and offer.machines.sunk and machines <= offer.machines.count:
        return ""
    return offer.price_date_of(option.purchase)


def _monthly_cost(
    problem: AllocationProblem, allocation: Allocation, rows: Sequence[Allotment]
) -> tuple[MonthlyCost, tuple[str, ...]]:
    """The bill by what it is for, and where its prices are from. Storage and traffic go with the machines."""
    names = ("provider", "environment", "workload", "purchase")
    by: dict[str, dict[str, float]] = {name: defaultdict(float) for name in names}
    for row in rows:
        for name, sums in by.items():
            sums[getattr(row, name) or IDLE] += row.usd_per_month
    storage = traffic = 0.0
    notes: list[str] = []
    for (number, provider), share in allocation.volumes.items():
        job, bill = problem.items[number].job, problem.volumes[number, provider]
        storage, traffic = storage + share * bill.storage, traffic + share * bill.traffic
        for name, key in zip(names, (provider, job.environment, job.name, VOLUMES), strict=True):
            by[name][key] += share * bill.usd
        notes += bill.notes
    compute, low, high = (sum(getattr(row, n) for row in rows) for n in ("usd_per_month", "usd_low", "usd_high"))
    ordered = {f"by_{name}": dict(sorted(sums.items(), key=lambda entry: -entry[1])) for name, sums in by.items()}
    cost = MonthlyCost(
        total=compute + storage + traffic, low=low + storage + traffic, high=high + storage + traffic,
        compute=compute, storage=storage, traffic=traffic, **ordered,  # type: ignore[arg-type]  # fields by name
    )  # fmt: skip
    return cost, tuple(dict.fromkeys(notes))
