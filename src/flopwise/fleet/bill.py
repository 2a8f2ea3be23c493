"""The bill of an allocation: its machines as rows with intervals, and the month by what it is for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

from flopwise.cost.money import unit_usd
from flopwise.facts.catalog import Facts
from flopwise.fleet.assessment import Allotment, MonthlyCost, RulingPolicies, RulingPolicy, WorkloadResult, ruling_text
from flopwise.fleet.expected import ExpectedFigures, expected_figures
from flopwise.fleet.forked import run_forked
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
from flopwise.fleet.spec import API, OWNED
from flopwise.ops.tensors import parameters
from flopwise.search.answer import Candidate
from flopwise.units import (
    HOUR_S,
    HOURS_PER_MONTH,
    format_bytes,
    format_chance,
    format_seconds,
    format_times,
    format_usd,
)
from flopwise.values import dataclass

IDLE = "idle"
"""Role and environment of machines that are paid and carry nothing."""


@dataclass(frozen=True, kw_only=True)
class SolvedFleet:
    """A fleet with its allocation and its bill, from which every part of an assessment is made."""

    platform: Platform
    facts: Facts
    problem: AllocationProblem
    allocation: Allocation
    chosen: tuple[ChosenWorkload, ...]
    rows: tuple[Allotment, ...]
    cost: MonthlyCost
    price_notes: tuple[str, ...]  # where prices of volumes are from
    lost: tuple[PlannedWorkload, ...] = ()  # that nothing runs, by their numbers in the file
    warnings: tuple[str, ...] = ()  # of policies that are left out

    @classmethod
    def of(
        cls, platform: Platform, facts: Facts, problem: AllocationProblem, allocation: Allocation
    ) -> SolvedFleet:  # fmt: skip
        """The fleet with the figures of its allocated machines, and its bill."""
        chosen = tuple(chosen_workloads(problem, allocation, facts))
        rows = _rows(problem, allocation, chosen, facts)
        cost, notes = _monthly_cost(problem, allocation, rows)
        return SolvedFleet(
            platform=platform, facts=facts, problem=problem, allocation=allocation, chosen=chosen, rows=rows, cost=cost,
            price_notes=notes,
        )  # fmt: skip

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
        loads = [replica_load(taken, self.chosen[taken.option.workload], self.facts) for taken in self.allocation.taken]
        return (*loads, *[None] * len(self.allocation.idle))

    @cached_property
    def volumes(self) -> dict[int, tuple[float, float]]:
        """(storage, traffic) of each workload by its number, USD a month, over the providers that carry it."""
        sums: dict[int, tuple[float, float]] = {}
        for (number, provider), share in self.allocation.volumes.items():
            bill, (storage, traffic) = self.problem.volumes[number, provider], sums.get(number, (0.0, 0.0))
            sums[number] = storage + share * bill.storage, traffic + share * bill.traffic
        return sums

    def results(self, rules: RulingPolicies) -> list[WorkloadResult]:
        """The results of all workloads in the order of the fleet file, with those without machines.

        `rules`: by workload, the policies that rule cheaper machines out.
        """
        costs = self.cost.by_workload
        results = [
            _workload_result(one, self.facts, costs.get(one.name, 0.0), rules.get(one.name, ())) for one in self.chosen
        ]
        for item in sorted(self.lost, key=lambda item: item.index):
            results.insert(item.index, _infeasible_result(item, self.facts))
        return results


def spot_interruptions(row: Allotment, facts: Facts) -> float:
    """Interruptions that are expected in a month, of all instances of a row of the bill; 0 unless they are spot."""
    if row.purchase != "spot":
        return 0.0
    rate = facts.spot(row.provider, row.gpu).interruptions_per_s
    return rate * HOUR_S * row.hours_per_month * row.count


def _rows(
    problem: AllocationProblem, allocation: Allocation, chosen: Sequence[ChosenWorkload], facts: Facts
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
        (low, high), job = _interval(taken, workload, facts), workload.job
        row = Allotment(
            workload=job.name, environment=job.environment, provider=option.provider, region=option.region,
            instance=option.instance, gpu=option.candidate.gpu, purchase=option.purchase, count=taken.count,
            hours_per_month=paid, usd_per_hour=rate, usd_per_month=taken.usd, usd_low=low, usd_high=high,
            usd_per_hour_effective=None if rate is None else taken.usd / max(busy * taken.count, 1e-12),
            price_date=_price_date(option, allocation.pools.get(option.machine, 0)),
            price_note=option.offer.price_note(option.purchase),
            retires_on=option.offer.retires_on or "",
            usd_per_hour_interval=option.offer.assumed_usd_per_hour(option.purchase),
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


def _interval(taken: Taken, chosen: ChosenWorkload, facts: Facts) -> tuple[float, float]:
    """10-90 % interval of USD a month: of the time that the work takes, and of a price that is assumed."""
    low, high = _time_interval(taken, chosen, facts)
    band, usd = taken.option.offer.assumed_usd_per_hour(taken.option.purchase), taken.option.usd_per_hour
    if band is None or not usd:
        return low, high
    least, most = band
    return low * least / usd, high * most / usd


def _time_interval(taken: Taken, chosen: ChosenWorkload, facts: Facts) -> tuple[float, float]:
    """Ends of the cost at the listed price: runs take longer or shorter, services need more or fewer machines.

    What is paid anyhow costs no less; where it does not suffice, a service's missing machines come on top.
    """
    usd, load, figures = taken.usd, replica_load(taken, chosen, facts), chosen.figures
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


WORTH_SHARING = 40
"""Estimates from which other processes are worth starting."""


def chosen_workloads(made: AllocationProblem, allocation: Allocation, facts: Facts) -> list[ChosenWorkload]:
    """Each workload with its machines and the figures of those that carry most of it, estimated in full."""
    parts: list[list[Taken]] = [[] for _ in made.items]
    for taken in allocation.taken:
        if taken.role == "primary":
            parts[taken.option.workload].append(taken)
    mains = [max(own, key=lambda taken: taken.count * taken.option.usd_each) for own in parts]
    keys = [(id(item.plan), id(main.option.candidate)) for item, main in zip(made.items, mains, strict=True)]
    first = {key: number for number, key in reversed(list(enumerate(keys)))}
    todo = list(first.values())
    estimates = run_forked(
        lambda n: _figures(made.items[todo[n]], mains[todo[n]].option, facts), len(todo), WORTH_SHARING
    )
    known = dict(zip(first, estimates, strict=True))
    return [
        ChosenWorkload(planned=item, main=main, figures=known[key], parts=tuple(own))
        for item, main, key, own in zip(made.items, mains, keys, parts, strict=True)
    ]


def _figures(item: PlannedWorkload, option: MonthlyOption, facts: Facts) -> ExpectedFigures | None:
    """The estimate of the option that was chosen; None for machines to work on, and for an API's."""
    if item.workload is None or option.purchase == API:
        return None
    return expected_figures(item.workload, option.candidate, option.offer, facts)


SIZES = ((1e9, "small"), (20e9, "medium"), (float("inf"), "large"))
"""Categories of models by parameters."""
SAME = 1.005


def size_of(parameters: int) -> str:
    """The category of a model."""
    return next(name for most, name in SIZES if parameters < most)


def _workload_result(chosen: ChosenWorkload, facts: Facts, usd: float, rules: Sequence[RulingPolicy]) -> WorkloadResult:
    """The result of one workload, whose month costs `usd`."""
    job, option, figures, workload = chosen.job, chosen.option, chosen.figures, chosen.planned.workload
    candidate, size, pattern, count = option.candidate, "machines", "machines to work on", None
    if figures is not None:
        count, pattern = figures.parameters, figures.pattern
    elif workload is not None:
        count, pattern = int(parameters(facts.model(workload.model))), "answered by an API"
    energy, carbon = _electricity(chosen)
    each = 1 if job.spec.machines is None else job.spec.machines.gpus_each
    memory = figures.memory_bytes if figures is not None else candidate.memory_bytes * each
    best = {
        "provider": option.provider, "region": option.region, "instance": option.instance, "gpu": candidate.gpu,
        "num_gpus": chosen.main.count * option.gpus_each, "num_instances": chosen.main.count,
        "purchase": option.purchase, "layout": candidate.layout,
        "memory_bytes_per_gpu": candidate.memory_bytes or None, "capacity_bytes": candidate.capacity_bytes or None,
        "evidence": candidate.evidence, "meets": candidate.meets,
        "figures": dict(candidate.figures) if figures is None else figures.figures,
        "breakdown": {} if figures is None else figures.breakdown,
        "network": [] if figures is None else [asdict(need) for need in figures.network],
        "storage": [] if figures is None else [asdict(need) for need in figures.storage], "usd_per_month": option.usd,
    }  # fmt: skip
    return WorkloadResult(
        name=job.name, environment=job.environment, kind=job.spec.task, model=job.spec.model, parameters=count,
        size=size if count is None else size_of(count),
        memory_bytes=None if option.purchase == API else memory or None,
        intensity=None if figures is None else figures.intensity, pattern=pattern, hours_per_month=option.busy_hours,
        runs_per_month=job.runs_per_month, feasible=True, reasons=[], best=best,
        why_not_cheaper=why_not_cheaper(chosen, rules), energy_kwh_per_month=energy, carbon_kg_per_month=carbon,
        starts=job.spec.starts, schedule=job.schedule.plain(), targets=_targets(chosen.planned),
        unit_usd=_unit_usd(chosen, usd),
    )  # fmt: skip


def _unit_usd(chosen: ChosenWorkload, usd: float) -> dict[str, float]:
    """The cost of one of each unit in a month's bill; hours are those of machines that stay, and of runs."""
    job, workload = chosen.job, chosen.planned.workload
    hours = chosen.option.candidate.paid_s / HOUR_S if job.ends else job.hours_per_month
    return unit_usd(usd / job.runs, {"hour": hours} if workload is None else workload.amounts(hours))


def _infeasible_result(item: PlannedWorkload, facts: Facts) -> WorkloadResult:
    """The result of a workload that nothing runs: why, and the nearest miss."""
    job = item.job
    count = None if item.workload is None else int(parameters(facts.model(item.workload.model)))
    return WorkloadResult(
        name=job.name, environment=job.environment, kind=job.spec.task, model=job.spec.model, parameters=count,
        size="machines" if count is None else size_of(count), memory_bytes=None, intensity=None,
        pattern="no machine runs it", hours_per_month=job.hours_per_month, runs_per_month=job.runs_per_month,
        feasible=False, reasons=list(item.reasons), best={}, why_not_cheaper="", energy_kwh_per_month=None,
        carbon_kg_per_month=None, starts=job.spec.starts, schedule=job.schedule.plain(), targets=_targets(item),
    )  # fmt: skip


def _targets(item: PlannedWorkload) -> dict[str, dict[str, Any]]:
    """The targets, under the names of the figures that they limit."""
    workload, targets = item.workload, dict[str, dict[str, Any]]()
    if workload is None:
        return targets
    for name in ("ttft", "tpot", "latency"):
        limit = getattr(workload, name)
        if limit is not None:
            targets[f"{name}_s"] = {"value": limit.seconds, "percentile": limit.percentile}
    rate = workload.requests_per_s
    if item.job.ends:
        if workload.deadline_s is not None:
            targets["run_s"] = {"value": workload.deadline_s}
    elif rate is not None:
        targets["requests_per_s"] = {"value": rate, "mean": rate / workload.peak}
    return targets


def _electricity(chosen: ChosenWorkload) -> tuple[float | None, float | None]:
    """(kWh, kg of CO2) a month over all machines; None where one part is not known."""
    kwh: float | None = 0.0
    kg: float | None = 0.0
    for taken in chosen.parts:
        option, count, whole = taken.option, taken.count, taken.option.instances
        kwh = None if option.kwh is None or kwh is None else kwh + option.kwh * count / whole
        kg = None if option.kg is None or kg is None else kg + option.kg * count / whole
    return kwh, kg


def why_not_cheaper(chosen: ChosenWorkload, rules: Sequence[RulingPolicy] = ()) -> str:
    """The cheaper options, and the reason against each: a policy of the fleet (`rules`), or a missed target."""
    option, reasons = chosen.option, []
    first = next((other for other in chosen.planned.options if other.usd * SAME < option.usd), None)
    if first is not None:
        obstacle = ruling_text(rules, first.usd)
        if option.purchase == OWNED:
            obstacle = "own machines are paid for all month, and other workloads share them"
        elif first.purchase == OWNED:
            obstacle = "their number is limited, and other workloads or policies of the fleet take priority"
        reasons.append(
            f"{_machines(first.candidate, first.instances)} {BOUGHT[first.purchase]} would cost "
            f"{format_usd(first.usd, 0)} a month instead of {format_usd(option.usd, 0)}: {obstacle}"
        )
    misses = [] if chosen.planned.plan is None else chosen.planned.plan.misses
    reasons += [
        f"{_machines(near, near.num_instances)} {BOUGHT[near.purchase]} {_shortfall(near, chosen.planned)}"
        for near in misses[: 2 - len(reasons)]
    ]
    return "; ".join(reasons) or "no cheaper offer can do the work"


BOUGHT = {
    "on_demand": "on demand", "spot": "on spot", "reserved_1y": "reserved for a year", API: "paid per token",
    "reserved_3y": "reserved for three years", OWNED: "your own",
}  # fmt: skip


def _machines(candidate: Candidate, count: int) -> str:
    if candidate.purchase == API:
        return f"{candidate.provider}'s {candidate.instance}"
    return f"{count} x {candidate.provider} {candidate.instance} ({candidate.gpu})"


def _shortfall(near: Candidate, item: PlannedWorkload) -> str:
    """The target that a cheaper candidate misses, with figures."""
    assert item.workload is not None
    workload = item.workload
    if not near.meets:
        return "exceeds a limit"
    name = min(near.meets, key=lambda n: near.meets[n])
    odds = f"{format_chance(near.meets[name])} chance of meeting it, {100 * workload.confidence:.0f} % required"
    limit = {"ttft": workload.ttft, "tpot": workload.tpot, "latency": workload.latency}.get(name)
    if name == "memory":
        return f"needs {format_bytes(near.memory_bytes)} of {format_bytes(near.capacity_bytes)} ({odds})"
    if limit is not None:
        value = near.figures["e2e_s" if name == "latency" else f"{name}_s"] or 0.0
        return f"has {limit.percentile} {name} {format_seconds(value)} of {format_seconds(limit.seconds)} ({odds})"
    if name == "deadline" and workload.deadline_s is not None:
        return f"takes {format_seconds(near.seconds)} of {format_seconds(workload.deadline_s)} ({odds})"
    times = near.shortfall.get(name)
    return f"misses {name}" + (f" {format_times(times)}" if times else "") + f" ({odds})"
