"""Which machines for which workload, how bought, so that a month costs least: a mixed-integer program.

Each workload has options (an offer, a way to buy it, the instances that carry all of it). Services and batches may be
split over several; a training run is all on one. What is reserved, or owned, is paid all month whoever uses it: such
machines are pools that workloads share over the week. An API takes a workload whole, or not. What a workload stores and
sends goes with its machines. Solved with HiGHS (Huangfu and Hall 2018, doi:10.1007/s12532-017-0130-5).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from flopwise.errors import InfeasibleError
from flopwise.fleet.allocation_program import LARGE, MARGIN, AllocationProgram, backup_usd, covers
from flopwise.fleet.infeasibility import nearest
from flopwise.fleet.milp import solve
from flopwise.fleet.model import (
    Allocation,
    MonthlyOption,
    Policy,
    Rules,
    Taken,
    VolumeBill,
    WorkloadDemand,
    paid_all_month,
    rented,
)
from flopwise.fleet.planned import KEPT, few_options, splittable
from flopwise.fleet.prices import volume_bills
from flopwise.fleet.schedules import slots
from flopwise.units import HOURS_PER_MONTH

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.fleet.model import Machine, PlannedWorkload, Platform
    from flopwise.fleet.schedules import WeeklySchedule
    from flopwise.ops.types import Array

MANY = 4000
"""Options beyond which fewer of each workload are weighed."""
GAP, SECONDS = 1e-3, 10.0
LATER_FRAC, STEP_FRAC = 0.3, 0.2
"""Of the time for an allocation: to improve one that comes late, and for each step of finding out why there is none."""
HALF = 0.5
"""A column of whole numbers above it is not zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationProblem:
    """Options and demands of a fleet; `volumes`: by the workload's number and provider.

    `kept`: options of each workload, provider and purchase that are weighed. `risen`: providers whose prices are so
    many times those at which shares of the bill, spot too, are to be held.
    """

    items: tuple[PlannedWorkload, ...]
    options: tuple[MonthlyOption, ...]
    demands: tuple[WorkloadDemand, ...]
    volumes: dict[tuple[int, str], VolumeBill]
    rules: Rules
    kept: int
    risen: Mapping[str, float] = field(default_factory=dict)

    def solved(
        self,
        without: frozenset[Policy] = frozenset(),
        *,
        gap: float = GAP,
        seconds: float = SECONDS,
        start: Allocation | None = None,
    ) -> Allocation:
        """The cheapest allocation. Raises as `allocate`."""
        return allocate(
            self.options, self.demands, self.rules, without=without, gap=gap, seconds=seconds, start=start,
            risen=self.risen,
        )  # fmt: skip

    def raised(self, providers: Collection[str], factor: float) -> AllocationProblem:
        """The problem with the prices of some providers, for machines and volumes, times `factor`.

        Shares of the bill are held at the prices before: what is allowed stays allowed, so that no rise makes it less.
        """
        rise = dict.fromkeys(providers, factor)
        options = tuple(replace(o, usd_each=o.usd_each * rise.get(o.provider, 1)) for o in self.options)
        demands = tuple(
            replace(d, volumes_usd={p: usd * rise.get(p, 1) for p, usd in d.volumes_usd.items()}) for d in self.demands
        )
        return replace(self, options=options, demands=demands, risen=rise)


def allocation_problem(platform: Platform, items: Sequence[PlannedWorkload], facts: Facts) -> AllocationProblem:
    """The allocation of a fleet whose workloads all have options."""
    most = KEPT
    few = [few_options(item, most) for item in items]
    while sum(map(len, few)) > MANY and most > 1:
        most = max(1, most // 2)
        few = [few_options(item, most) for item in items]
    options = with_carbon([option for group in few for option in group])
    providers = [{option.provider: rented(option.purchase) for option in group} for group in few]
    volumes = volume_bills([item.job for item in items], providers, facts)
    week = slots([_bounding_schedule(item) for item in items])
    demands = tuple(
        WorkloadDemand(
            name=item.name,
            splittable=splittable(item.job),
            flexible=item.job.ends,
            slots=week[n],
            backup=item.job.spec.backup,
            volumes_usd={name: volumes[n, name].usd for name in providers[n] if (n, name) in volumes},
        )
        for n, item in enumerate(items)
    )
    return AllocationProblem(
        items=tuple(items), options=options, demands=demands, volumes=volumes, rules=platform.rules, kept=most
    )


def with_carbon(options: Sequence[MonthlyOption]) -> tuple[MonthlyOption, ...]:
    """The options with what each instance emits; one that is not known counts as its workload's worst.

    Assumes: what nobody measured is no cleaner than the others; where none of a workload's is known, none counts.
    """
    worst: dict[int, float] = {}
    for option in options:
        worst[option.workload] = max(worst.get(option.workload, 0.0), option.kg or 0.0)
    return tuple(replace(o, kg_each=(worst[o.workload] if o.kg is None else o.kg) / o.instances) for o in options)


def _bounding_schedule(item: PlannedWorkload) -> WeeklySchedule | None:
    """What bounds it in the week where it may share machines; runs only where their place in the week was stated."""
    schedule = item.job.schedule
    shares = any(paid_all_month(option.purchase) for option in item.options)
    return schedule if shares and (schedule.fixed or not item.job.ends) else None


def allocate(
    options: Sequence[MonthlyOption],
    demands: Sequence[WorkloadDemand],
    rules: Rules,
    *,
    without: frozenset[Policy] = frozenset(),
    gap: float = GAP,
    seconds: float = SECONDS,
    start: Allocation | None = None,
    risen: Mapping[str, float] | None = None,
) -> Allocation:
    """The allocation that costs least (with the weight on carbon), within `gap` of it or after `seconds`.

    `start`: an allocation of the same options under more policies, or other prices, to begin from. `without`: policies
    to leave out; of own machines beyond their number each costs what the last does. `risen`: as `AllocationProblem`'s.

    Source: the program stands in `flopwise.fleet.allocation_program`; solved by HiGHS.
    Assumes: an instance of an option carries its share of the workload; of thousands of options those of `undominated`
    do; runs that may be put anywhere fill what fixed schedules leave of a pool, in slots of the week; runs
    that need several machines at once take turns on some (in large allocations on own machines only); services share a
    machine by their hours, never at the same time.
    Raises: InfeasibleError: a workload has no option, or the policies contradict one another; says which.
    """
    carried = {option.workload for option in options}
    missing = [d.name for n, d in enumerate(demands) if n not in carried]
    if missing:
        raise InfeasibleError(f"nothing on offer carries {', '.join(missing[:5])}")
    made = AllocationProgram(undominated(options, rules), demands, rules, without, risen)
    columns = None if start is None else start.columns
    fits = columns is not None and len(columns) == len(made.program.costs)
    solution = solve(made.program, gap, seconds, columns if fits else None)
    if solution.columns is None:
        solution = solve(made.program, gap, seconds * LATER_FRAC, nearest(made, seconds * STEP_FRAC))
    if solution.columns is None:
        raise InfeasibleError(f"no allocation that holds these policies was found within {seconds:g} s")
    return _read_solution(made, solution.columns, solution.gap)


def _read_solution(made: AllocationProgram, columns: Array, gap: float) -> Allocation:
    """The columns read back; every sum is of what is returned, so that it is the bill to the cent."""
    counts = made.counts(columns)
    primary = [(option, int(counts[i])) for i, option in enumerate(made.options) if counts[i]]
    pools = {machine: round(columns[column]) for machine, column in made.pools.items() if columns[column] > HALF}
    used: dict[Machine, float] = defaultdict(float)
    for option, count in primary:
        if made.shared(option):
            used[option.machine] += count * option.busy_hours
        elif option.pooled:
            pools[option.machine] = pools.get(option.machine, 0) + count
    taken = [Taken(option=o, count=count, usd=_part_usd(made, o, count, columns, used)) for o, count in primary]
    for i, column in made.spare.items():
        if columns[column] > HALF:
            count, option = round(columns[column]), made.options[i]
            taken.append(Taken(option=option, count=count, usd=count * backup_usd(option, made.rules), role="backup"))
    volumes, idle = _volume_shares(made, columns, primary), _idle_machines(made, pools)
    bills = [(row.option.provider, row.usd) for row in taken]
    bills += [(machine[0], paid) for machine, (_, paid) in idle.items()]
    bills += [(p, share * made.demands[number].volumes_usd[p]) for (number, p), share in volumes.items()]
    by_provider: dict[str, float] = defaultdict(float)
    for provider, bill in bills:
        by_provider[provider] += bill
    usd, kg = sum(by_provider.values()), sum(option.kg_each * count for option, count in primary)
    return Allocation(
        taken=tuple(taken), pools=pools, idle=idle, volumes=volumes, by_provider=dict(by_provider), usd=usd,
        objective=usd + made.rules.carbon_usd_per_kg * kg, kg=kg, gap=gap, columns=columns,
    )  # fmt: skip


def _part_usd(
    made: AllocationProgram, option: MonthlyOption, count: int, columns: Array, used_hours: Mapping[Machine, float]
) -> float:
    """USD a month of `count` instances: of shared machines their part by hours of use."""
    usd = option.usd_each * count
    if made.shared(option):
        paid = option.pool_usd(round(columns[made.pools[option.machine]]))
        usd = paid * count * option.busy_hours / used_hours[option.machine]
    return usd + option.usd_running * count


def _idle_machines(made: AllocationProgram, pools: Mapping[Machine, int]) -> dict[Machine, tuple[int, float]]:
    """Own machines that are there and paid, and not used."""
    owned = {option.machine: option.own for option in made.options if option.own is not None}
    counts = {machine: own.idle(pools.get(machine, 0)) for machine, own in owned.items()}
    return {machine: (count, count * owned[machine].off_usd) for machine, count in counts.items() if count}


def _volume_shares(
    made: AllocationProgram, columns: Array, primary: Sequence[tuple[MonthlyOption, int]]
) -> dict[tuple[int, str], float]:
    """Shares of each workload's volumes by provider; they add up to one."""
    shares: dict[tuple[int, str], float] = {}
    for option, _ in primary:
        demand = made.demands[option.workload]
        if not demand.splittable and option.provider in demand.volumes_usd:
            shares[option.workload, option.provider] = 1.0
    for key, column in made.volumes.items():
        if columns[column] > MARGIN:
            shares[key] = float(columns[column])
    sums: dict[int, float] = defaultdict(float)
    for (number, _), share in shares.items():
        sums[number] += share
    return {key: share / sums[key[0]] for key, share in shares.items()}


# Options that cannot matter in a large allocation: others of the same provider, bought alike, are cheaper

CHEAPEST = 3
"""Options of each workload, provider, purchase and set of quotas that are kept: the cheapest."""
SHARED = 6
"""Kinds of reserved machines that every workload may share."""
PART_TIME = 600.0
"""Busy hours a month beyond which a machine has little left to share."""


def undominated(options: Sequence[MonthlyOption], rules: Rules, kept: int = CHEAPEST) -> list[MonthlyOption]:
    """The options worth weighing, in their order; all of them in a small allocation.

    Kept of each group: the cheapest, the one with most and the one with fewest instances among those within a tenth of
    it (what is split fits better in small parts, a quota holds more of few), and of the reserved machines that several
    workloads may share the kinds that serve them all best.

    Assumes: no policy is met by paying more for the same provider, purchase and quotas.
    """
    if len(options) < LARGE:
        return list(options)
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, option in enumerate(options):
        counted_by = tuple(n for n, q in enumerate(rules.quotas) if covers(q, option.provider, option.instance))
        groups[option.workload, option.provider, option.purchase, counted_by].append(number)
    whole = [o.instances * (o.usd_each + rules.carbon_usd_per_kg * o.kg_each) for o in options]
    shared = [
        w * min(1.0, o.busy_hours / HOURS_PER_MONTH) if o.pooled else w for w, o in zip(whole, options, strict=True)
    ]
    keep = set(_best_in_pools(options, shared))
    for numbers in groups.values():
        ordered = sorted(numbers, key=whole.__getitem__)
        keep.update(ordered[:kept])
        close = [n for n in ordered if whole[n] <= 1.1 * whole[ordered[0]]]
        keep.add(max(close, key=lambda n: options[n].instances))
        keep.add(min(close, key=lambda n: options[n].instances))
    return [options[n] for n in sorted(keep)]


def _best_in_pools(options: Sequence[MonthlyOption], shared: Sequence[float]) -> list[int]:
    """Options on the reserved machines on which all workloads together would cost least, each paying for its hours.

    A workload that a kind of machine has no option for counts as on its cheapest option of all.
    """
    best: dict[int, float] = {}
    on: dict[Machine, dict[int, tuple[float, int]]] = defaultdict(dict)
    for n, option in enumerate(options):
        best[option.workload] = min(shared[n], best.get(option.workload, shared[n]))
        if option.pooled and option.busy_hours < PART_TIME:
            other = on[option.machine].get(option.workload)
            if other is None or shared[n] < other[0]:
                on[option.machine][option.workload] = (shared[n], n)
    saved = {
        machine: sum(min(0.0, usd - 2 * best[workload]) for workload, (usd, _) in rows.items())
        for machine, rows in on.items()
    }
    return [n for machine in sorted(saved, key=saved.__getitem__)[:SHARED] for _, n in on[machine].values()]
