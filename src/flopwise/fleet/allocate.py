"""Which machines for which workload, how bought, so that a month costs least: a mixed-integer program.

Each workload has options (an offer, a way to buy it, the instances that carry all of it). Services and batches may be
split over several; a training run is all on one. What is reserved, or owned, is paid all month whoever uses it: such
machines are pools that workloads share over the week. An API takes a workload whole, or not. What a workload stores and
sends goes with its machines. Solved with HiGHS (Huangfu and Hall 2018, doi:10.1007/s12532-017-0130-5).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np

from flopwise.errors import InfeasibleError
from flopwise.facts.catalog import Facts
from flopwise.fleet.model import (
    Allocation,
    Budget,
    Machine,
    MonthlyOption,
    OwnMachineCount,
    PlannedWorkload,
    Platform,
    Policy,
    ProviderShare,
    SecondProvider,
    SpotLimit,
    Taken,
    Trait,
    WorkloadDemand,
    is_rented,
)
from flopwise.fleet.prices import volume_bills
from flopwise.fleet.program import (
    EFFORT,
    GUARD_S,
    LARGE,
    MARGIN,
    AllocationProblem,
    AllocationProgram,
    Share,
    Solution,
    backup_usd,
    solve,
)
from flopwise.fleet.schedules import WeeklySchedule, slots
from flopwise.fleet.spec import Policies, Quota
from flopwise.fleet.waste import CENT, HALF, SPOT, ThriftyProgram, Waste, closable_traits
from flopwise.ops.types import Array
from flopwise.units import HOURS_PER_MONTH, format_usd
from flopwise.values import replace

GAP = 1e-3
LATER_FRAC, STEP_FRAC = 0.3, 0.2
"""Of the effort for an allocation: to improve a late one, and for each step of finding out why there is none."""
COMPARED_FRAC = 12.0
"""Of that effort: to compare with allocations that leave markets, devices or ways to buy out, in all."""
EFFORT_EACH = 1e4
"""Effort for each option, those of each trait kept apart, without which what-ifs are not compared: they have a part of
the whole effort."""
CENT_FRAC = 1e-6
"""Of a bill: what is less by no more is the same."""
LEFT_OUT, LEFT_OUT_NEXT = 13, 4
"""Sets of traits that are left out one after another where the effort for comparing all together ends first, the empty
one among them, and traits by which each grows."""
ROUNDS = 4
"""Solutions with redundant machines after which no workload may have one."""


class UnfinishedSearchError(InfeasibleError):
    """The clock stopped the solver before it found an allocation: another machine may find one."""


class BudgetError(InfeasibleError):
    """The other policies cost more than the budget; `free`: the allocation without it, where there is one."""

    free: Allocation | None = None


def allocation_problem(platform: Platform, items: Sequence[PlannedWorkload], facts: Facts) -> AllocationProblem:
    """The allocation of a fleet whose workloads all have options."""
    options = with_carbon([option for item in items for option in item.options])
    providers = [{option.provider: is_rented(option.purchase) for option in item.options} for item in items]
    volumes = volume_bills([item.job for item in items], providers, facts)
    schedules: list[WeeklySchedule | None] = []  # of what may share machines; of runs whose place in the week is stated
    for item in items:
        bound = any(option.is_pooled for option in item.options) and (item.job.schedule.fixed or not item.job.ends)
        schedules.append(item.job.schedule if bound else None)
    week = slots(schedules)
    demands = tuple(
        WorkloadDemand(
            name=item.name,
            splittable=item.job.splittable,
            flexible=item.job.ends,
            slots=week[n],
            backup=item.job.spec.backup,
            levels=item.job.levels,
            volumes_usd={name: volumes[n, name].usd for name in providers[n] if (n, name) in volumes},
        )
        for n, item in enumerate(items)
    )
    problem = AllocationProblem(
        items=tuple(items), options=options, demands=demands, volumes=volumes, rules=platform.rules
    )
    return _without_waste(problem)


def _without_waste(problem: AllocationProblem) -> AllocationProblem:
    """The problem without options that only waste money."""
    waste = Waste(problem.options, problem.demands, problem.rules, by_traits=problem.closing)
    kept = waste.worthwhile_options
    names = set(map(id, kept))
    dropped = tuple(option for option in problem.options if id(option) not in names)
    return replace(problem, options=kept, dropped=(*problem.dropped, *dropped))


def with_carbon(options: Sequence[MonthlyOption]) -> tuple[MonthlyOption, ...]:
    """The options with the emissions of each instance; an unknown one counts as its workload's worst.

    Assumes: what nobody measured is no cleaner than the others; where none of a workload's is known, none counts.
    """
    worst: dict[int, float] = {}
    for option in options:
        worst[option.workload] = max(worst.get(option.workload, 0.0), option.kg or 0.0)
    return tuple(replace(o, kg_each=(worst[o.workload] if o.kg is None else o.kg) / o.instances) for o in options)


def allocate(
    problem: AllocationProblem, without: frozenset[Policy] = frozenset(), *, gap: float = GAP, effort: float = EFFORT,
    start: Allocation | None = None, bound: bool = False,
) -> Allocation:  # fmt: skip
    """The allocation that costs least (with the weight on carbon), within `gap` of it or after so much `effort`.

    `start`: an allocation of the same options under more policies, or other prices, to begin from. `without`: policies
    to leave out; of own machines beyond their number each costs what the last does. `bound`: the gap that is returned
    is to the least of all options where only some were weighed.

    Source: the program stands in `flopwise.fleet.program`; solved by HiGHS.
    Assumes: an instance of an option carries its share of the workload; of many options those of `weighed_options` do,
    unless nothing holds the policies with them; runs that may be put anywhere fill what fixed schedules leave of a
    pool, in slots of the week; runs that need several machines at once take turns on some (in large allocations on own
    machines only); services share a machine by their hours, never at the same time.
    Raises: InfeasibleError: a workload has no option, or the policies contradict one another; says which.
    """
    budget = next((policy for policy in problem.policies if isinstance(policy, Budget)), None)
    free: Allocation | None = None
    if budget is not None and budget not in without:
        free = _allocation_without(budget, problem, without, gap=gap, effort=effort, start=start, bound=bound)
        if free is not None and free.usd <= budget.usd:
            return free
    carried = {option.workload for option in problem.options}
    missing = [d.name for n, d in enumerate(problem.demands) if n not in carried]
    if missing:
        raise InfeasibleError(f"no offer can run {', '.join(missing[:5])}")
    problem = _without_waste(problem)
    some = weighed_options(problem.options, problem.rules)
    made = ThriftyProgram(replace(problem, options=some), without)
    columns = None if start is None or start.columns is None else start.columns[: len(made.program.costs)]
    fits = columns is not None and len(columns) == len(made.program.costs)
    made, solution = _lean_solution(made, gap, effort, columns if fits else None)
    late = solution.out_of_time
    if solution.columns is None and len(some) < len(problem.options):  # nothing is refused before all are weighed
        made, solution = _lean_solution(ThriftyProgram(problem, without), gap, effort)
        late |= solution.out_of_time
    tried = True
    if made.rules.has_shares:
        made, solution, tried = _with_traits_left_out(problem, made, solution, gap, effort)
        late |= solution.out_of_time
    if solution.columns is None:
        try:
            made, columns = _nearest(problem, made, effort * STEP_FRAC, late=late)
        except BudgetError as error:
            error.free = free
            raise
        made, solution = _lean_solution(made, gap, effort * LATER_FRAC, columns)
        late |= solution.out_of_time
    if solution.columns is None:
        raise _unfound_error(late=late)
    found = replace(_read_solution(made, solution.columns, solution.gap), out_of_time=late, whole_traits=tried)
    if bound and len(made.options) < len(problem.options):
        return replace(found, gap=_proven_gap(problem, found.objective, found.gap))
    return found


def _allocation_without(
    budget: Budget, problem: AllocationProblem, without: frozenset[Policy], *, gap: float, effort: float,
    start: Allocation | None, bound: bool,
) -> Allocation | None:  # fmt: skip
    """The allocation without a budget, which changes nothing where that is met; None where there is none.

    Raises: BudgetError: no allocation can meet the budget; says what the least bill is.
    """
    try:
        free = allocate(problem, without | {budget}, gap=gap, effort=effort, start=start, bound=bound)
    except InfeasibleError:  # the budget may be among what contradicts
        return None
    floor = free.usd * (1.0 - free.gap)
    if not problem.rules.carbon_usd_per_kg and free.whole_traits and floor > budget.usd:
        error = _budget_error(floor, budget)
        error.free = free
        raise error
    return free


def _with_traits_left_out(
    problem: AllocationProblem, made: ThriftyProgram, solution: Solution, gap: float, effort: float
) -> tuple[ThriftyProgram, Solution, bool]:
    """The program and its solution, or cheaper ones that leave markets, devices or ways to buy out for all workloads.

    So that shares that hold under policies that leave these out hold with them, too. With whether it is known that none
    is cheaper: the solver's effort ends the search in large allocations, unless the bill is already what it would be if
    waste were allowed. What-ifs of large allocations are compared only where nothing else holds.
    """
    if not closable_traits((*problem.options, *problem.dropped)):
        return made, solution, True
    wider = _closing(problem)
    most, late, spent, whole = np.inf, False, 0.0, COMPARED_FRAC * effort
    if solution.columns is not None:
        most = solution.objective * (1.0 - max(gap, CENT_FRAC))
        if len(wider.options) > LARGE and _least_divided(AllocationProgram(wider, made.without), effort) >= most:
            return made, solution, True
        if effort < EFFORT and len(wider.options) * EFFORT_EACH > effort:
            return made, solution, False
    while spent < whole:
        trial = ThriftyProgram(wider, made.without)
        other = solve(trial.program, gap, min(effort, whole - spent), below=most)
        late, spent = late or other.out_of_time, spent + other.effort
        if other.columns is None:
            if other.finished:
                return made, replace(solution, out_of_time=late), True
            break
        more = trial.tightening(other.columns)
        if not any(more):
            return trial, replace(other, out_of_time=late), True
        wider = replace(wider, minimal=wider.minimal | more.minimal, measures=wider.measures | more.measures)
    made, solution = _with_each_trait_left_out(wider, made, solution, gap, effort * STEP_FRAC)
    return made, replace(solution, out_of_time=late or solution.out_of_time), False


def _closing(problem: AllocationProblem) -> AllocationProblem:
    """The problem in which markets, devices and ways to buy may be left out for all workloads."""
    options = (*problem.options, *problem.dropped)
    return _without_waste(replace(problem, options=options, dropped=(), closing=True))


def _least_divided(made: AllocationProgram, effort: float) -> float:
    """A bound of the bill: of divisible machines; infinite where they hold no policies, minus that where unknown."""
    divided = solve(made.program, 0.0, effort, relaxed=True)
    if not divided.finished:
        return -np.inf
    return np.inf if divided.columns is None else divided.objective


def _with_each_trait_left_out(
    wider: AllocationProblem, made: ThriftyProgram, solution: Solution, gap: float, effort: float
) -> tuple[ThriftyProgram, Solution]:
    """The program and its solution, or cheaper ones of policies that allow a market, a device or a way to buy less.

    One is left out, then two and more, those first that make work cheapest among those that are left. Each is an
    allocation of fewer options, which the solver has soon.
    """
    sets, seen = deque([frozenset[Trait]()]), set[frozenset[Trait]]()
    while sets and len(seen) < LEFT_OUT:
        left_out = sets.popleft()
        kept = tuple(option for option in wider.options if left_out.isdisjoint(option.traits))
        if left_out in seen or len({option.workload for option in kept}) < len(wider.demands):
            continue
        seen.add(left_out)
        sets.extend(left_out | {trait} for trait in saving_traits(kept)[:LEFT_OUT_NEXT])
        if not left_out:
            continue
        stricter = replace(wider, options=kept, closing=False, minimal=frozenset(), measures=frozenset())
        trial = ThriftyProgram(_without_waste(stricter), made.without)
        most = np.inf if solution.columns is None else solution.objective * (1.0 - CENT_FRAC)
        if _least_divided(trial, effort) >= most:
            continue
        trial, other = _lean_solution(trial, gap, effort, below=most)
        if other.columns is not None and other.objective < most:
            found = _among_all(wider, trial, other.columns, effort)
            if found is not None:
                made, solution = found[0], replace(found[1], gap=max(found[1].gap, other.gap))
    return made, solution


def saving_traits(options: Sequence[MonthlyOption]) -> list[Trait]:
    """The traits that may be left out and make work cheaper, those first that make all of it cheapest.

    Each at what the workloads, with one provider and on spot or not, cost less with it than without.
    """
    closable, sold = closable_traits(options), defaultdict[tuple[int, str, bool], list[MonthlyOption]](list)
    for option in options:
        if is_rented(option.purchase):
            sold[option.workload, option.provider, option.purchase == SPOT].append(option)
    saved: dict[Trait, float] = defaultdict(float)
    for group in sold.values():
        whole = [(option.instances * (option.usd_each + option.usd_running), option.traits) for option in group]
        least, traits = min(whole, key=lambda way: way[0])
        for trait in closable.intersection(traits):
            without = min((usd for usd, others in whole if trait not in others), default=least)
            saved[trait] += without - least
    return sorted((trait for trait, usd in saved.items() if usd > CENT), key=lambda trait: (-saved[trait], str(trait)))


def _among_all(
    wider: AllocationProblem, made: ThriftyProgram, columns: Array, effort: float
) -> tuple[ThriftyProgram, Solution] | None:
    """The program of a `closing` problem and a solution with the machines of one of fewer options; None without any."""
    taken = {id(made.options[i]) for i, column in enumerate(made.own) if columns[column] > HALF}
    ready = {id(made.options[i]) for i, column in made.spare.items() if columns[column] > HALF}
    wider = replace(wider, minimal=frozenset(), measures=frozenset())
    for _ in range(ROUNDS):
        trial = ThriftyProgram(wider, made.without)
        for i, option in enumerate(trial.options):
            for column, used in ((trial.own[i], taken), (trial.spare.get(i), ready)):
                if column is not None and id(option) not in used:
                    trial.program.upper[column] = 0.0
        other = solve(trial.program, 0.0, effort)
        if other.columns is None:
            return None
        more = trial.tightening(other.columns)
        if not any(more):
            return trial, other
        wider = replace(wider, minimal=wider.minimal | more.minimal, measures=wider.measures | more.measures)
    return None


def _lean_solution(
    made: ThriftyProgram, gap: float, effort: float, start: Array | None = None, below: float = np.inf
) -> tuple[ThriftyProgram, Solution]:
    """A solution in which no machine is redundant, and the program that forbids those that would be.

    Few workloads ever have one, so each is forbidden them only where a solution has one; after `ROUNDS` all are.
    `below`: only bills below that are looked for.
    """
    solution, rounds = solve(made.program, gap, effort, start, below=below), 0
    late = solution.out_of_time
    while solution.columns is not None and (more := made.tightening(solution.columns).minimal):
        rounds += 1
        made = made.without_redundant(made.alike(more) if rounds < ROUNDS else frozenset(range(len(made.options))))
        solution = solve(made.program, gap, effort, below=below)
        late |= solution.out_of_time
    return made, replace(solution, out_of_time=late)


def _proven_gap(problem: AllocationProblem, objective: float, gap: float) -> float:
    """By how much of its cost an allocation may be above the least that all options allow, weighed or not.

    Source: the program of all options as if machines could be divided costs no more.
    """
    bound = solve(ThriftyProgram(problem).program, 0.0, EFFORT, relaxed=True)
    if bound.out_of_time:  # what a relaxation has before its optimum bounds nothing
        return 1.0
    return max(gap, 1.0 - bound.objective / objective) if objective else gap


def _read_solution(made: ThriftyProgram, columns: Array, gap: float) -> Allocation:
    """The columns read back; every sum is of what is returned, so that it is the bill to the cent."""
    counts = made.counts(columns)
    numbers = [i for i in range(len(made.options)) if counts[i]]
    primary = [(made.options[i], int(counts[i])) for i in numbers]
    pools = {machine: round(columns[column]) for machine, column in made.pools.items() if columns[column] > HALF}
    used_hours: dict[Machine, float] = defaultdict(float)
    for option, count in primary:
        if made.is_shared(option):
            used_hours[option.machine] += count * option.busy_hours
        elif option.is_pooled:
            pools[option.machine] = pools.get(option.machine, 0) + count
    in_all: dict[Machine, int] = defaultdict(int)
    for machine, count in pools.items():
        in_all[*machine[:4], ""] += count
    taken = [
        _primary(made, columns, i, count, machines=(pools, in_all), used_hours=used_hours)
        for i, (_, count) in zip(numbers, primary, strict=True)
    ]
    for i, column in made.spare.items():
        if columns[column] > HALF:
            count, option = round(columns[column]), made.options[i]
            taken.append(Taken(option=option, count=count, usd=count * backup_usd(option, made.rules), role="backup"))
    owned = {option.whole_kind: option.own for option in made.options if option.own is not None}
    unused = {machine: own.idle(in_all[machine]) for machine, own in owned.items()}
    idle = {machine: (count, count * owned[machine].off_usd) for machine, count in unused.items() if count}
    volumes = _volume_shares(made, columns, primary)
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
        left_out=made.left_out(columns),
    )  # fmt: skip


def _primary(
    made: AllocationProgram, columns: Array, index: int, count: int, *,
    machines: tuple[dict[Machine, int], dict[Machine, int]], used_hours: dict[Machine, float],
) -> Taken:  # fmt: skip
    """So many of an option; `machines`: of each pool, and of own machines over all of their pools.

    What is shared costs its part by hours of use, of the pool's part of what own machines cost together.
    """
    option, (pools, in_all) = made.options[index], machines
    usd, levels, on, hours = option.usd_each * count, made.demands[option.workload].levels, tuple[int, ...](), None
    if made.is_shared(option):
        mine, there = pools[option.machine], in_all[option.whole_kind]
        paid = option.pool_usd(there) * mine / there if option.own else option.pool_usd(mine)
        usd = paid * count * option.busy_hours / used_hours[option.machine]
    elif levels is not None and index in made.on:  # the hours that they are on
        on = tuple(round(columns[column]) * made.scale[index] for column in made.on[index])
        hours = levels.paid_hours(on) / count
        usd *= hours / option.busy_hours
    cost = usd + option.usd_running * count
    return Taken(option=option, count=count, usd=cost, by_level=on, scaled_hours=hours)


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


# Options that hardly matter in a large allocation: others of the same provider, bought alike, are cheaper

CHEAPEST = 3
"""Options of each workload, provider, purchase and set of quotas that are kept: the cheapest."""
SHARED = 6
"""Kinds of reserved machines that every workload may share."""
PART_TIME = 600.0
"""Busy hours a month beyond which a machine has little left to share."""


def weighed_options(options: Sequence[MonthlyOption], rules: Policies) -> tuple[MonthlyOption, ...]:
    """The options of a large allocation that are weighed first, in their order; all of them in a small one.

    Kept of each group: the cheapest, the one with most and the one with fewest instances among those within a tenth of
    it (what is split fits better in small parts, a quota holds more of few), and of the reserved machines that several
    workloads may share the kinds that serve them all best.

    Assumes: no policy is met by paying more for the same provider, purchase and quotas.
    """
    if len(options) < LARGE:
        return tuple(options)
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, option in enumerate(options):
        counted_by = tuple(n for n, q in enumerate(rules.quotas) if q.counts(option.provider, option.instance))
        groups[option.workload, option.provider, option.purchase, counted_by].append(number)
    whole = [o.instances * (o.usd_each + rules.carbon_usd_per_kg * o.kg_each) for o in options]
    shared = [
        w * min(1.0, o.busy_hours / HOURS_PER_MONTH) if o.is_pooled else w for w, o in zip(whole, options, strict=True)
    ]
    keep = set(_best_in_pools(options, shared))
    for numbers in groups.values():
        ordered = sorted(numbers, key=whole.__getitem__)
        keep.update(ordered[:CHEAPEST])
        close = [n for n in ordered if whole[n] <= 1.1 * whole[ordered[0]]]
        keep.add(max(close, key=lambda n: options[n].instances))
        keep.add(min(close, key=lambda n: options[n].instances))
    return tuple(options[n] for n in sorted(keep))


def _best_in_pools(options: Sequence[MonthlyOption], shared: Sequence[float]) -> list[int]:
    """Options on the reserved machines on which all workloads together would cost least, each paying for its hours.

    A workload that a kind of machine has no option for counts as on its cheapest option of all.
    """
    best: dict[int, float] = {}
    on: dict[Machine, dict[int, tuple[float, int]]] = defaultdict(dict)
    for n, option in enumerate(options):
        best[option.workload] = min(shared[n], best.get(option.workload, shared[n]))
        if option.is_pooled and option.busy_hours < PART_TIME:
            other = on[option.machine].get(option.workload)
            if other is None or shared[n] < other[0]:
                on[option.machine][option.workload] = (shared[n], n)
    saved = {
        machine: sum(min(0.0, usd - 2 * best[workload]) for workload, (usd, _) in rows.items())
        for machine, rows in on.items()
    }
    return [n for machine in sorted(saved, key=saved.__getitem__)[:SHARED] for _, n in on[machine].values()]


# Why no allocation holds all policies: the one that comes nearest, and what would have to give in it

FLOOR_GAP, NEAREST_GAP = 1e-3, 0.05
TIE = 1e-3
"""What the bill counts for beside what has to give: among the nearest allocations a cheap one."""
OPPOSED_EFFORT = 0.1 * EFFORT
ELSEWHERE = 2.0
"""Times the bill without policies: beyond that counts, something has to give."""
NOTHING = 1e-6
WORTH_SAYING = 5e-4
"""Of the bill: by which what is paid differs from what counts towards a share."""


class RelaxedProgram:
    """A program whose policies may give, at a price: the least that has to give in all is its optimum."""

    def __init__(self, made: AllocationProgram, tie: float = TIE) -> None:
        self.made = made
        self.slack: dict[Policy, list[tuple[int, float]]] = defaultdict(list)
        program = made.program
        usd = [option.instances * option.usd_each for option in made.options]
        scale = max(sum(min(usd[i] for i in mine) for mine in made.of.values()), 1.0)  # each workload by itself
        program.costs = [tie * cost / scale for cost in program.costs]
        for row in program.rows:
            if row.policy is None:
                continue
            weight = self._weight(row.policy, scale)
            for bound, sign in ((row.low, 1.0), (row.high, -1.0)):
                if np.isfinite(bound):
                    column = program.column(weight, np.inf, whole=False)
                    row.terms[column] = sign
                    self.slack[row.policy].append((column, weight))

    def _weight(self, policy: Policy, scale: float) -> float:
        """Shares and own machines count by parts of the bill, quotas and backups by parts of what they allow or ask."""
        if isinstance(policy, Quota):
            return 1.0 / max(1, policy.most)
        if isinstance(policy, OwnMachineCount):
            own = next(o.own for o in self.made.options if o.own and o.instance == policy.instance)
            return own.tiers[-1][1] / scale
        return 1.0 if isinstance(policy, SecondProvider) else 1.0 / scale

    def gives(self, columns: Array) -> dict[Policy, float]:
        """The weighted violation of each policy that a relaxed solution violates."""
        sums = {policy: sum(columns[c] * w for c, w in slack) for policy, slack in self.slack.items()}
        return {policy: value for policy, value in sums.items() if value > NOTHING}


def _nearest(
    problem: AllocationProblem, made: ThriftyProgram, effort: float, *, late: bool
) -> tuple[ThriftyProgram, Array]:
    """Columns that hold all policies after all, where the effort did not find them; each step has an `effort`.

    With the program that they are of. `late`: the clock has stopped the solver before. Raises: InfeasibleError: the
    policies contradict one another; says which, by how much, or the floor of a budget.
    """
    _check_budget(made, effort)
    while True:
        trial = made.relaxed_by(frozenset())
        relaxed = RelaxedProgram(trial)
        solution = solve(trial.program, NEAREST_GAP, effort)
        late |= solution.out_of_time
        if solution.columns is None:
            raise _unfound_error(late=late)
        more = trial.tightening(solution.columns).minimal
        if not more:
            break
        made = made.without_redundant(made.alike(more))
    gives = relaxed.gives(solution.columns)
    if gives:
        proven, columns = solution.objective * (1 - solution.gap) > ELSEWHERE * TIE, solution.columns
        nearer = _nearest_with_traits_left_out(problem, made.without, effort, sum(gives.values()))
        if nearer is not None:
            trial, gives, columns = nearer
        raise _conflict_error(trial, gives, columns, proven=proven, late=late and not proven)
    return made, solution.columns[: len(made.program.costs)]


def _nearest_with_traits_left_out(
    problem: AllocationProblem, without: frozenset[Policy], effort: float, most: float
) -> tuple[ThriftyProgram, dict[Policy, float], Array] | None:
    """An allocation that violates policies by less than `most`, with what gives in it; None where none is known.

    Markets, devices and ways to buy are left out of it for all workloads. Large allocations are not tried.
    """
    if not problem.rules.has_shares or not closable_traits((*problem.options, *problem.dropped)):
        return None
    wider = _closing(problem)
    if len(wider.options) > LARGE:
        return None
    for _ in range(len(wider.options)):
        trial = ThriftyProgram(wider, without)
        relaxed = RelaxedProgram(trial)
        solution = solve(trial.program, NEAREST_GAP, effort)
        if solution.columns is None or not (gives := relaxed.gives(solution.columns)):
            return None
        more = trial.tightening(solution.columns)
        if not any(more):
            return (trial, gives, solution.columns) if sum(gives.values()) < most else None
        wider = replace(wider, minimal=wider.minimal | more.minimal, measures=wider.measures | more.measures)
    return None


def _check_budget(made: ThriftyProgram, effort: float) -> None:
    """Refuse a budget below what the other policies cost at least."""
    budget = next((policy for policy in made.policies if isinstance(policy, Budget)), None)
    if budget is None:
        return
    free, solution = _lean_solution(made.relaxed_by(frozenset({budget})), FLOOR_GAP, effort)
    floor = 0.0 if solution.columns is None else _sum(free.usd_terms(), solution.columns) * (1.0 - solution.gap)
    if floor > budget.usd:
        raise _budget_error(floor, budget)


def _budget_error(floor: float, budget: Budget) -> BudgetError:
    """The error that no bill is within the budget, with the least."""
    return BudgetError(
        f"a month costs at least {format_usd(floor, 0)} under these policies; the budget is {format_usd(budget.usd, 0)}"
    )


def _limit_text(*, late: bool) -> str:
    """Up to where something was looked for; `late`: the clock stopped it."""
    return f"within the solver's time limit of {GUARD_S:g} s" if late else "within the solver's limit"


def _unfound_error(*, late: bool) -> InfeasibleError:
    """The error that neither an allocation nor a proof that there is none was found; `late`: the clock stopped it."""
    kind = UnfinishedSearchError if late else InfeasibleError
    return kind(f"no allocation that meets these policies was found {_limit_text(late=late)}")


def _contradictions(made: AllocationProgram) -> list[Policy]:
    """Policies that contradict one another even if machines could be divided; none where only that is the trouble."""
    trial = made.relaxed_by(frozenset())
    relaxed = RelaxedProgram(trial, tie=0.0)
    solution = solve(trial.program, 0.0, OPPOSED_EFFORT, relaxed=True)
    if solution.out_of_time or solution.columns is None or solution.duals is None:
        return []
    if not relaxed.gives(solution.columns):
        return []
    priced = {row.policy for row, dual in zip(trial.program.rows, solution.duals, strict=True) if abs(dual) > NOTHING}
    return [policy for policy in trial.policies if policy in priced]


def _conflict_error(
    made: AllocationProgram, gives: dict[Policy, float], columns: Array, *, proven: bool, late: bool
) -> InfeasibleError:
    """The error that names what gives, and by how much; `proven`: that something has to; `late`: the clock decided."""
    giving = sorted(gives, key=lambda policy: -gives[policy])
    opposed = _contradictions(made)
    distances = [_distance(made, policy, columns) for policy in giving]
    widen = "; widen policies.share_tolerance, or change the shares"
    if opposed:
        involved = [policy for policy in made.policies if policy in {*giving, *opposed}]
        what = f"no allocation meets {_enumeration(list(map(str, involved)))}{' together' if len(involved) > 1 else ''}"
        what += widen if any(isinstance(policy, ProviderShare) for policy in involved) else ""
    elif not proven:
        what = f"no allocation that meets all policies was found {_limit_text(late=late)}"
    elif all(isinstance(policy, ProviderShare) for policy in giving):
        beside = _because_of_backups(made) or ": the workloads cannot be divided that way"
        what = f"the shares of the providers cannot be met{beside}{widen}"
    else:
        what = f"no allocation meets all policies: whole machines do not fit {giving[0]}"
    what = f"{what}. The nearest has: {'; '.join(distances)}"
    for_nothing = _wasted_usd(made, columns) if any(isinstance(p, ProviderShare | SpotLimit) for p in giving) else None
    if for_nothing is not None and for_nothing > 0:
        more = format_usd(for_nothing, 0)
        what += f". {more} a month more would meet them, spent on more expensive machines for the same work"
    return (UnfinishedSearchError if late else InfeasibleError)(what, distances)


def _wasted_usd(made: AllocationProgram, columns: Array) -> float | None:
    """USD a month above the nearest allocation by which waste would hold all policies; None where nothing would."""
    problem = replace(made.problem, options=(*made.problem.options, *made.problem.dropped))
    trial = AllocationProgram(problem, made.without)
    solution = solve(trial.program, NEAREST_GAP, OPPOSED_EFFORT)
    if solution.columns is None or solution.out_of_time:
        return None
    return _sum(trial.usd_terms(), solution.columns) - _sum(made.usd_terms(), columns)


def _because_of_backups(made: AllocationProgram) -> str:
    """That the shares could be held without backups, where that is so; else nothing."""
    backed = [d.name for d in made.demands if d.backup]
    if not backed or SecondProvider() in made.without:
        return ""
    trial = made.relaxed_by(frozenset({SecondProvider()}))
    relaxed = RelaxedProgram(trial)
    solution = solve(trial.program, NEAREST_GAP, OPPOSED_EFFORT)
    if solution.columns is None or solution.out_of_time or relaxed.gives(solution.columns):
        return ""
    return f" with capacity in a second provider (the backup of {_enumeration(backed, 4)}), only without it"


def _distance(made: AllocationProgram, policy: Policy, columns: Array) -> str:
    """The limit of a policy, and the value of the nearest allocation."""
    if isinstance(policy, Quota):
        return f"{policy}: {_sum(made.quota_terms(policy), columns):.0f} are needed"
    if isinstance(policy, OwnMachineCount):
        option = next(o for o in made.options if o.own is not None and o.instance == policy.instance)
        assert option.own is not None
        used = sum(columns[c] for machine, c in made.pools.items() if machine[:4] == option.machine[:4])
        return f"{policy}, {option.own.most}: {used:.0f} are needed; buy more, or allow other purchase options"
    if isinstance(policy, Budget):
        return f"{policy} of {format_usd(policy.usd, 0)}: {format_usd(_sum(made.usd_terms(), columns), 0)} are needed"
    if isinstance(policy, SecondProvider):
        return f"{policy}: {_enumeration(_unready(made, columns), 4)} may get too little of it"
    low, high = made.problem.share_bounds(policy)
    paid, *counted = (_share(terms, columns) for terms in (made.share_terms(policy), *made.counted_shares(policy)))
    least, most = counted
    part, limit = (least, low) if low - least > most - high else (most, high)
    within = "" if isinstance(policy, SpotLimit) else f" (within {100 * made.rules.share_tolerance:g} %)"
    text = f"{policy}{within}: {_telling_digits(100 * part, 100 * limit)} % is the nearest possible"
    if abs(paid - part) < WORTH_SAYING:
        return text
    return f"{text} ({100 * paid:.1f} % is paid; spending above the lowest cost of the work does not count)"


def _share(terms: Share, columns: Array) -> float:
    """The part of a whole."""
    part, whole = (_sum(of, columns) for of in terms)
    return part / max(whole, NOTHING)


def _unready(made: AllocationProgram, columns: Array) -> list[str]:
    """Workloads of which the other providers have too little if one is lost."""
    names = []
    for number, demand in enumerate(made.demands):
        primary, ready = dict[str, float](), dict[str, float]()
        for provider, mine in made.by_provider(number).items():
            primary[provider] = sum([float(columns[made.own[i]]) * made.part[i] for i in mine])
            spare = [columns[made.spare[i]] / made.options[i].instances for i in mine if i in made.spare]
            ready[provider] = primary[provider] + sum(spare)
        carried, standby = sum(primary.values()), sum(ready.values())
        short = (
            standby - ready[lost] < made.rules.backup.share * (1.0 - carried + primary[lost]) - NOTHING
            for lost in primary
        )
        if demand.backup and any(short):
            names.append(demand.name)
    return names


def _sum(terms: dict[int, float], columns: Array) -> float:
    return float(sum(columns[column] * factor for column, factor in terms.items()))


def _telling_digits(part: float, bound: float) -> str:
    """A percentage with as many digits as tell it from what it misses."""
    digits = next((d for d in range(1, 9) if abs(part - round(part, d)) <= 0.1 * abs(part - bound)), 9)
    return f"{part:.{digits}f}"


def _enumeration(words: Sequence[str], most: int = 9) -> str:
    """Some things with commas and an `and`."""
    if len(words) > most:
        words = [*words[: most - 1], f"{len(words) - most + 1} more"]
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + [*words[-1:]])
