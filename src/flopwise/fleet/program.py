"""The allocation as columns and rows of a mixed-integer program.

Bounds are as tight as what they stand for (no large constants), and shared machines are columns of their own only where
two workloads could share them: both make the relaxation close to the answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Self

import numpy as np

from flopwise.fleet.model import (
    VOLUMES,
    Budget,
    Machine,
    MonthlyOption,
    OwnMachineCount,
    PlannedWorkload,
    Policy,
    ProviderShare,
    SecondProvider,
    SpotLimit,
    VolumeBill,
    WorkloadDemand,
    is_rented,
)
from flopwise.fleet.spec import API, Policies, Quota
from flopwise.ops.types import Array
from flopwise.units import HOURS_PER_MONTH
from flopwise.values import dataclass

ALWAYS_BUSY = 0.999
"""Share of the month from which a machine has no hours left for others."""
LARGE = 600
"""Options from which an allocation is large, and not all of them, nor every way to share machines, are weighed."""
MARGIN = 1e-6
"""By how much less than an instance is less."""
ROWS = 3
"""Rows of runs of several machines, one after another, that may stand beside each other on own machines."""
FEASIBLE = 2
"""What HiGHS calls a feasible point."""
OPTIONS: dict[str, Any] = {"output_flag": False, "threads": 1, "random_seed": 0, "mip_feasibility_tolerance": 1e-8}
"""Silent, the same answer each time, and rows that are held closer than by any margin that they have."""
EFFORT = 2e7
"""What an allocation may take of the solver: where HiGHS asks whether to go on, with each nonzero of the program. That
is about a microsecond of a processor of 2023 in the tree, and `AT_ROOT` times as much before it."""
AT_ROOT = 10
PATIENCE = 0.4
"""Share of the effort for an allocation after which it has to have one."""
GUARD_S = 300.0
"""Wall time after which the solver stops whatever it has; the answer says so, since another machine may do more."""


Share = tuple[dict[int, float], dict[int, float]]
"""A part and the whole that it is a share of, in USD a month of one unit of each column."""

# A mixed-integer program as columns and rows, and HiGHS that solves it


@dataclass(slots=True)
class ProgramRow:
    """`low` <= sum of `terms` (column: factor) <= `high`; `policy`: the policy it states, None for machines."""

    terms: dict[int, float]
    low: float
    high: float
    policy: Policy | None


@dataclass(slots=True)
class Program:
    """Columns and rows as they are made."""

    costs: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    rows: list[ProgramRow] = field(default_factory=list)

    def column(self, cost: float, upper: float, *, whole: bool = True) -> int:
        """Number of a new variable from 0 to `upper`."""
        self.costs.append(cost)
        self.upper.append(upper)
        self.whole.append(whole)
        return len(self.costs) - 1

    def row(self, terms: dict[int, float], low: float, high: float, policy: Policy | None = None) -> None:
        """Add a constraint on the sum of `terms`."""
        self.rows.append(ProgramRow(terms, low, high, policy))

    def at_most(self, terms: dict[int, float], high: float, policy: Policy | None = None) -> None:
        """Add the constraint that the sum of `terms` is no more than `high`."""
        self.row(terms, -np.inf, high, policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The best columns, None where there are none; of a relaxation the dual of each row (`duals`).

    `out_of_time`: stopped by the clock, so that another machine may find more. `finished`: stopped by neither clock nor
    effort, so that there are no better columns, or none at all. `effort`: what it took of that, at least a relaxation.
    """

    columns: Array | None
    objective: float = 0.0
    gap: float = 0.0
    duals: Array | None = None
    out_of_time: bool = False
    finished: bool = False
    effort: float = 0.0


SAME_FRAC = 1e-6
"""Of a bill: what the solver says it is and what its columns cost."""


class EffortLimit:
    """Stops a solver after so much effort, or `PATIENCE` of it without columns: the same columns on any machine.

    HiGHS asks after each relaxation that it solves, whose time goes with the nonzeros of the program.
    """

    def __init__(self, effort: float, nonzeros: int, patience: float = PATIENCE) -> None:
        self.most, self.each, self.spent = effort, max(1, nonzeros), 0.0
        self.without_columns = patience * effort

    @property
    def least_spent(self) -> float:
        """The effort of the solver, one relaxation at least: HiGHS does not ask within presolve."""
        return max(self.spent, AT_ROOT * self.each)

    def check(self, event: Any) -> None:
        """Count one check, and interrupt where the limit is reached."""
        progress = event.data_out
        self.spent += self.each * (1 if progress.mip_node_count > 0 else AT_ROOT)
        most = self.most if np.isfinite(progress.mip_primal_bound) else self.without_columns
        if self.spent > most:
            event.interrupt()


def solve(
    program: Program, gap: float, effort: float, start: Array | None = None, *, relaxed: bool = False,
    below: float = np.inf,
) -> Solution:  # fmt: skip
    """The columns that cost least, to a relative `gap` or after an `effort`; `start`: columns to begin from.

    Where nothing is feasible by `PATIENCE` of that effort, it is given up. `relaxed`: as if nothing had to be whole.
    `below`: only columns that cost less are looked for, with all of the effort (what HiGHS ends with may cost more).
    """
    import highspy  # noqa: PLC0415 - 130 ms, and only a fleet needs it

    solver = _silent_solver(highspy)
    for name, value in (OPTIONS | {"mip_rel_gap": gap, "time_limit": GUARD_S, "objective_bound": below}).items():
        solver.setOptionValue(name, value)
    solver.passModel(_highs_model(program, highspy, relaxed=relaxed))
    if start is not None:
        solution = highspy.HighsSolution()
        solution.col_value = [float(v) for v in start]
        solver.setSolution(solution)
    limit = EffortLimit(effort, sum(len(row.terms) for row in program.rows), 1.0 if np.isfinite(below) else PATIENCE)
    if not relaxed:
        solver.cbMipInterrupt.subscribe(limit.check)
    solver.run()
    info, status, ends = solver.getInfo(), solver.getModelStatus(), highspy.HighsModelStatus
    late, finished = status == ends.kTimeLimit, status in {ends.kOptimal, ends.kInfeasible}
    if info.primal_solution_status != FEASIBLE or info.objective_function_value >= below:
        return Solution(columns=None, out_of_time=late, finished=finished, effort=limit.least_spent)
    solution = solver.getSolution()
    columns, objective = np.array(solution.col_value), float(info.objective_function_value)
    if start is not None and np.dot(program.costs, columns) > objective + SAME_FRAC * abs(objective):
        return solve(program, gap, effort, relaxed=relaxed)  # HiGHS 1.16 keeps `start` where presolve does better
    if relaxed:
        duals = np.array(solution.row_dual)
        return Solution(columns=columns, objective=objective, duals=duals, out_of_time=late, finished=finished)
    return Solution(
        columns=columns, objective=objective, gap=max(0.0, float(info.mip_gap)), out_of_time=late, finished=finished,
        effort=limit.least_spent,
    )  # fmt: skip


def _silent_solver(highspy: Any) -> Any:
    """A solver that prints nothing: HiGHS 1.16 writes its name to standard output while it sets up callbacks."""

    class SilentHighs(highspy.Highs):  # type: ignore[misc]  # the library has no annotations
        def enableCallbacks(self) -> None:  # noqa: N802 - HiGHS' own name
            self.silent()
            super().enableCallbacks()

    return SilentHighs()


def _highs_model(program: Program, highspy: Any, *, relaxed: bool) -> Any:
    lp = highspy.HighsLp()
    columns, rows = len(program.costs), program.rows
    lp.num_col_, lp.num_row_ = columns, len(rows)
    lp.col_cost_ = np.array(program.costs)
    lp.col_lower_, lp.col_upper_ = np.zeros(columns), np.array(program.upper, dtype=float)
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    if not relaxed:
        lp.integrality_ = [kinds[whole] for whole in program.whole]
    lp.row_lower_, lp.row_upper_ = np.array([row.low for row in rows]), np.array([row.high for row in rows])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.cumsum([0, *(len(row.terms) for row in rows)])
    lp.a_matrix_.index_ = np.array([column for row in rows for column in row.terms], dtype=np.int32)
    lp.a_matrix_.value_ = np.array([factor for row in rows for factor in row.terms.values()])
    return lp


# The program of a fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationProblem:
    """Options and demands of a fleet; `volumes`: by the workload's number and provider.

    `risen`: providers whose prices are so many times those at which shares of the bill, spot too, are to be held.
    `bounds`: least and largest share of a provider that are others than the policies'. `dropped`: options that only
    waste money, left out before. `minimal`: numbers of options of which no machine may be taken that the others make
    redundant. `closing`: markets of a provider, devices and ways to buy that no workload uses are no measure of what
    work is worth. `measures`: the numbers of the options that are such a measure where all of theirs are used.
    """

    options: tuple[MonthlyOption, ...]
    demands: tuple[WorkloadDemand, ...]
    rules: Policies
    items: tuple[PlannedWorkload, ...] = ()
    volumes: Mapping[tuple[int, str], VolumeBill] = field(default_factory=dict)
    risen: Mapping[str, float] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    dropped: tuple[MonthlyOption, ...] = ()
    minimal: frozenset[int] = frozenset()
    closing: bool = False
    measures: frozenset[int] = frozenset()

    def share_bounds(self, policy: ProviderShare | SpotLimit) -> tuple[float, float]:
        """The least and the largest share of the bill that a provider, or spot, may have."""
        if isinstance(policy, SpotLimit):
            return 0.0, policy.share
        tolerance = self.rules.share_tolerance
        return self.bounds.get(policy.provider, (policy.share - tolerance, policy.share + tolerance))

    @property
    def policies(self) -> list[Policy]:
        """The policies of an allocation, and the numbers of own machines."""
        rules, shares = self.rules, self.rules.shares
        rows: list[Policy] = [ProviderShare(name, share) for name, share in shares.items()]
        rows += dict.fromkeys(rules.quotas)
        rows += [SpotLimit(rules.max_spot_share)] if rules.max_spot_share < 1 else []
        rows += [SecondProvider()] if any(d.backup for d in self.demands) else []
        rows += dict.fromkeys(OwnMachineCount(o.instance) for o in self.options if o.own is not None)
        return rows + ([Budget(rules.budget_per_month)] if rules.budget_per_month is not None else [])


@dataclass(frozen=True, slots=True)
class PaidColumn:
    """A column with a cost: USD a month of one unit, provider and purchase option."""

    column: int
    usd: float
    provider: str
    purchase: str


class AllocationProgram:
    """The columns and rows of a problem; `without`: policies to leave out."""

    def __init__(self, problem: AllocationProblem, without: frozenset[Policy] = frozenset()) -> None:
        self.problem, self.without = problem, without
        self.options, self.demands, self.rules = problem.options, problem.demands, problem.rules
        self.policies = [policy for policy in problem.policies if policy not in without]
        self.program = Program()
        self.paid: list[PaidColumn] = []
        self.of: dict[int, list[int]] = defaultdict(list)
        self.scale: list[int] = []  # instances that one unit of an option's column stands for
        for index, option in enumerate(self.options):
            self.of[option.workload].append(index)
            self.scale.append(option.unit if self.demands[option.workload].splittable else option.instances)
        # the share of its workload that one unit of an option's column carries
        self.part = [scale / option.instances for scale, option in zip(self.scale, self.options, strict=True)]
        self.sharers = machine_sharers(option for option in self.options if self._may_share(option))
        self.own: list[int] = []  # the column of each option
        self.pools: dict[Machine, int] = {}
        self.owned: dict[Machine, ProgramRow] = {}  # of own machines, over all pools of them
        self.spare: dict[int, int] = {}
        self.volumes: dict[tuple[int, str], int] = {}
        self.on: dict[int, list[int]] = {}  # of machines that come and go: the columns of those on at each level
        self._add_options()
        self._follow_traffic()
        self._carry_workloads()
        self._add_volumes()
        self._add_pools()
        if SecondProvider() not in without:
            self._add_backups()
        self._hold_policies()

    def relaxed_by(self, more: frozenset[Policy]) -> Self:
        """The same program with `more` policies left out."""
        return type(self)(self.problem, self.without | more)

    def is_shared(self, option: MonthlyOption) -> bool:
        """True if the option's machines may be shared with another workload."""
        return option.workload in self.sharers.get(option.machine, ()) and self._may_share(option)

    def _may_share(self, option: MonthlyOption) -> bool:
        """In a large allocation, runs of several machines at once share own machines only."""
        demand = self.demands[option.workload]
        apart = not demand.flexible or (option.unit if demand.splittable else option.instances) == 1
        return apart or option.own is not None or len(self.options) < LARGE

    def _add_options(self) -> None:
        for index, option in enumerate(self.options):
            scale, demand = self.scale[index], self.demands[option.workload]
            each = 0.0 if self.is_shared(option) else option.usd_each
            if demand.levels is not None and option.is_scaled:
                each *= demand.levels.hours[-1] / option.busy_hours  # all of them are on at the peak alone
            usd = (option.usd_running + each) * scale
            moved = 0.0 if demand.splittable else demand.volumes_usd.get(option.provider, 0.0)
            kg = self.rules.carbon_usd_per_kg * option.kg_each * scale
            column = self._units_column(usd, -(-option.instances // scale), option, moved + kg)
            self.paid.append(PaidColumn(column, moved, option.provider, VOLUMES))
            self.own.append(column)

    def _units_column(self, usd: float, upper: float, option: MonthlyOption, more: float = 0.0) -> int:
        """A column of so many units of an option; `more` counts in the objective too."""
        column = self.program.column(usd + more, upper)
        self.paid.append(PaidColumn(column, usd, option.provider, option.purchase))
        return column

    def _carry_workloads(self) -> None:
        """Every workload is carried whole, and no share of the bill is met by machines that nobody needs.

        What is not split is carried once; of what is, less than one instance of the coarsest kind is left over (an API
        has none).
        """
        for number, mine in self.of.items():
            terms = {self.own[i]: self.part[i] for i in mine}
            coarsest = max((self.part[i] for i in mine if self.options[i].purchase != API), default=MARGIN)
            spare = coarsest - MARGIN if self.demands[number].splittable else 0.0
            self.program.row(terms, 1.0, 1.0 + spare)

    def _follow_traffic(self) -> None:
        """At each level of its load a service has enough machines on: what is paid all month, and some of the others.

        Machines that are paid by the hour cost the hours of the levels at which they are on, so that what is paid all
        month carries the base where that is cheaper. The uppermost level is the peak, which `_carry_workloads` has.
        """
        for number, demand in enumerate(self.demands):
            if demand.levels is None:
                continue
            *lower, _ = zip(demand.levels.shares, demand.levels.hours, strict=True)
            for i in (i for i in self.of[number] if self.options[i].is_scaled):
                option, scale, self.on[i] = self.options[i], self.scale[i], []
                for _, hours in lower:
                    usd = option.usd_each * hours / option.busy_hours * scale
                    there = self._units_column(usd, -(-option.instances // scale), option)
                    self.program.at_most({there: 1.0, self.own[i]: -1.0}, 0.0)
                    self.on[i].append(there)
                self.on[i].append(self.own[i])
            for level, (share, _) in enumerate(lower):
                terms = {self.on[i][level] if i in self.on else self.own[i]: self.part[i] for i in self.of[number]}
                self.program.row(terms, share, np.inf)

    def by_provider(self, number: int) -> dict[str, list[int]]:
        """Options of a workload by provider."""
        options: dict[str, list[int]] = defaultdict(list)
        for i in self.of[number]:
            options[self.options[i].provider].append(i)
        return options

    def _add_volumes(self) -> None:
        """Add rows: bytes of a split workload go with its machines, to no provider more than they carry."""
        for number, demand in enumerate(self.demands):
            if not demand.splittable or not any(demand.volumes_usd.values()):
                continue
            whole: dict[int, float] = {}
            for provider, mine in self.by_provider(number).items():
                usd = demand.volumes_usd.get(provider, 0.0)
                column = self.program.column(usd, 1.0, whole=False)
                self.paid.append(PaidColumn(column, usd, provider, VOLUMES))
                self.volumes[number, provider] = column
                whole[column] = 1.0
                self.program.at_most({self.own[i]: -self.part[i] for i in mine} | {column: 1.0}, 0.0)
            self.program.row(whole, 1.0, 1.0)

    def _add_pools(self) -> None:
        """Machines paid all month that several workloads may share: those that are there hold what uses them."""
        of: dict[Machine, list[int]] = defaultdict(list)
        for index, option in enumerate(self.options):
            if self.is_shared(option):
                of[option.machine].append(index)
        week, wanted = _week(self.demands), dict[Machine, int]()
        for option in (self.options[i] for mine in of.values() for i in mine):
            wanted[option.whole_kind] = wanted.get(option.whole_kind, 0) + option.instances
        for machine, mine in of.items():
            first = self.options[mine[0]]
            most, own = wanted[first.whole_kind], first.own is not None
            self.pools[machine] = (
                self._own_machines(first, most) if own else self._units_column(first.usd_each, most, first)
            )
            self._fill_pool(machine, mine, week)

    def _own_machines(self, option: MonthlyOption, most: int) -> int:
        """The column of used own machines: there can be only so many in all; some may be paid used or not."""
        assert option.own is not None
        column, policy = self.program.column(0.0, most), OwnMachineCount(option.instance)
        if option.whole_kind in self.owned:  # in another pool
            self.owned[option.whole_kind].terms[column] = 1.0
            return column
        terms = {column: 1.0}
        for number, (there, usd) in enumerate(option.own.tiers, start=1):
            unlimited = number == len(option.own.tiers) and policy in self.without
            terms[self._units_column(usd, most if unlimited else min(there, most), option)] = -1.0
        self.program.at_most(terms, 0.0, policy)
        self.owned[option.whole_kind] = self.program.rows[-1]
        if option.own.off_usd:
            there = self._units_column(option.own.tiers[0][0] * option.own.off_usd, 1, option)
            self.program.row({there: 1.0}, 1.0, 1.0)
        return column

    def _fill_pool(self, machine: Machine, mine: Sequence[int], week: tuple[float, ...]) -> None:
        """A pool holds its users in each slot of the week and in all hours, and no more machines than are used.

        Workloads with a schedule use their slots whole; runs fill the hours that are left, at no time on more machines
        than they have. Where nothing is bound to slots, that they fit into all hours is enough (McNaughton 1959,
        doi:10.1287/mnsc.6.1.1). Runs that need several machines at once have machines of the pool to themselves.
        """
        bound = any(self._is_pinned(i) for i in mine)
        column = self.pools[machine]
        gangs = [i for i in mine if self.scale[i] > 1 and not self._is_pinned(i)]
        room = {column: -1.0} | self._gang_room(gangs)
        slots: list[dict[int, float]] = [dict(room) for _ in week]
        hours, whole = dict(room), {column: 1.0}
        by_run: dict[int, dict[int, float]] = defaultdict(dict)
        for i in mine:
            option, each, own = self.options[i], float(self.scale[i]), self.own[i]
            demand = self.demands[option.workload]
            parts = demand.slots or week
            whole[own] = -each
            if i in gangs:
                continue
            if not demand.flexible or each > 1:
                hours[own] = each * sum(parts)
                for slot in (s for s, part in enumerate(parts) if part):
                    slots[slot][own] = each
                continue
            by_run[option.workload][own] = each
            hours[own] = each * min(_busy_frac(option), sum(parts))
            if bound:
                placed = {own: -hours[own]}
                for slot, part in enumerate(parts):
                    if part:
                        there = self.program.column(0.0, option.instances * part, whole=False)
                        placed[there], slots[slot][there] = 1.0, 1.0 / part
                self.program.row(placed, 0.0, np.inf)
        self.program.at_most(hours, 0.0)
        self.program.at_most(whole, 0.0)
        for terms in [t for t in slots if len(t) > len(room)]:
            self.program.at_most(terms, 0.0)
        for terms in by_run.values():
            self.program.at_most(room | terms, 0.0)

    def _gang_room(self, gangs: Sequence[int]) -> dict[int, float]:
        """Machines that hold runs of several machines each, none of them at two places at once.

        They run beside each other, or one after another on as many machines as the largest of those needs; on own
        machines several such rows of runs may stand beside each other.
        """
        room = {self.own[i]: float(self.scale[i]) for i in gangs}
        whole = [i for i in gangs if self.scale[i] == self.options[i].instances]
        rows = ROWS if whole and self.options[whole[0]].own is not None else min(1, len(whole))
        turns: dict[int, dict[int, float]] = {self.own[i]: {self.own[i]: -1.0} for i in whole}
        for _ in range(min(rows, len(whole))):
            widest = self.program.column(0.0, max(self.scale[i] for i in whole))
            room[widest], hours = 1.0, dict[int, float]()
            for i in whole:
                size, here = float(self.scale[i]), self.program.column(0.0, 1)
                hours[here], room[here], turns[self.own[i]][here] = _busy_frac(self.options[i]), -size, 1.0
                self.program.at_most({here: size, widest: -1.0}, 0.0)
            self.program.at_most(hours, 1.0)
        for terms in turns.values():
            self.program.at_most(terms, 0.0)
        return room

    def _is_pinned(self, index: int) -> bool:
        """True if an option's workload may not be put anywhere in the week."""
        demand = self.demands[self.options[index].workload]
        return not demand.flexible or sum(demand.slots or (1.0,)) < 1 - MARGIN

    def _add_backups(self) -> None:
        """If any one provider is lost, the others have a share of what it carried: primary, or standing by on demand.

        What one provider has to carry is what the others do not, so that machines that are left over ask for nothing.
        Only machines with the same software stand in for one another.
        """
        share = self.rules.backup.share
        for number, demand in enumerate(self.demands):
            if not demand.backup:
                continue
            by_provider = self.by_provider(number)
            for i in (i for mine in by_provider.values() for i in mine if self.options[i].purchase == "on_demand"):
                most = float(-(-round(share * self.options[i].instances * 1e6) // 10**6))
                self.spare[i] = self._units_column(backup_usd(self.options[i], self.rules), most, self.options[i])
            for lost, mine in by_provider.items():
                others = [i for provider, rest in by_provider.items() if provider != lost for i in rest]
                self._hold_loss(mine, others, splittable=demand.splittable)

    def _hold_loss(self, mine: Sequence[int], others: Sequence[int], *, splittable: bool) -> None:
        """The others have a share of what they do not carry themselves, of each software what the lost one had."""
        share, policy = self.rules.backup.share, SecondProvider()
        kinds = sorted({self.options[i].software for i in (*mine, *others)})
        lacking: dict[int, float] = {}
        for software in kinds:
            alike = [i for i in others if self.options[i].software == software]
            terms = {self.spare[i]: 1.0 / self.options[i].instances for i in alike if i in self.spare}
            if splittable:
                terms |= {self.own[i]: self.part[i] for i in alike}
            lack = self.program.column(0.0, 1.0, whole=False)
            had = {self.own[i]: -self.part[i] for i in mine if self.options[i].software == software}
            self.program.at_most({lack: 1.0} | had, 0.0)
            self.program.row(terms | {lack: -share}, 0.0, np.inf, policy)
            lacking[lack] = 1.0
        self.program.row(lacking | {self.own[i]: self.part[i] for i in others}, 1.0, np.inf)

    def usd_terms(
        self, counts: Callable[[PaidColumn], bool] = lambda _: True, *, agreed: bool = False
    ) -> dict[int, float]:
        """USD a month of one unit of each column that counts.

        `agreed`: at the prices that shares of the bill are agreed on, without what they have `risen` by since.
        """
        terms: dict[int, float] = {}
        for paid in self.paid:
            if paid.usd and counts(paid):
                rise = self.problem.risen.get(paid.provider, 1.0) if agreed else 1.0
                terms[paid.column] = terms.get(paid.column, 0.0) + paid.usd / rise
        return terms

    def _hold_policies(self) -> None:
        """Rows of the budget, the limit of spot, shares of the bill and quotas."""
        for policy in sorted(self.policies, key=lambda p: ROW_ORDER.get(type(p).__name__, 0)):
            if isinstance(policy, Budget):
                self.program.at_most(self.usd_terms(), policy.usd, policy)
            elif isinstance(policy, ProviderShare | SpotLimit):
                self._hold_share(policy)
            elif not isinstance(policy, SecondProvider | OwnMachineCount):
                self.program.at_most(self.quota_terms(policy), policy.most, policy)

    def _hold_share(self, policy: ProviderShare | SpotLimit) -> None:
        """Rows of the least and the largest share of the bill that a policy allows."""
        least, most = self.counted_shares(policy)
        low, high = self.problem.share_bounds(policy)
        if low > 0:
            self.program.row(less_share(*least, low), 0.0, np.inf, policy)
        if high < 1:
            self.program.at_most(less_share(*most, high), 0.0, policy)

    def counted_shares(self, policy: ProviderShare | SpotLimit) -> tuple[Share, Share]:
        """The shares that a policy's lower and upper bound apply to."""
        paid = self.share_terms(policy)
        return paid, paid

    def share_terms(self, policy: ProviderShare | SpotLimit) -> Share:
        """(the part of the bill that a policy limits, the bill that it is a share of), at agreed prices.

        Providers have shares of what is rented, and of whatever else a share names.
        """
        if isinstance(policy, SpotLimit):
            return self.usd_terms(lambda p: p.purchase == "spot", agreed=True), self.usd_terms(agreed=True)
        whole = self.usd_terms(lambda p: is_rented(p.purchase) or p.provider in self.rules.shares, agreed=True)
        return self.usd_terms(lambda p: p.provider == policy.provider, agreed=True), whole

    def quota_terms(self, quota: Quota) -> dict[int, float]:
        """Instances under a quota: of an option alone, of shared machines once, and standbys."""
        terms: dict[int, float] = {}
        for i, option in enumerate(self.options):
            if not quota.counts(option.provider, option.instance):
                continue
            if self.is_shared(option):
                terms[self.pools[option.machine]] = 1.0
            else:
                terms[self.own[i]] = float(self.scale[i])
            if i in self.spare:
                terms[self.spare[i]] = 1.0
        return terms

    def counts(self, columns: Array) -> Array:
        """Instances of each option."""
        counts: Array = np.rint(columns[self.own]) * np.array(self.scale)
        return counts


ROW_ORDER = {"Budget": -2, "SpotLimit": -1}
"""The budget and the limit of spot come first: the order of rows decides among solutions that cost the same."""


def machine_sharers(options: Iterable[MonthlyOption]) -> dict[Machine, set[int]]:
    """The workloads that leave hours of a pooled machine to others, where there are several; all of own machines."""
    sharers: dict[Machine, set[int]] = defaultdict(set)
    owned: set[Machine] = set()
    for option in options:
        if option.own is not None:
            owned.add(option.machine)
        if option.own is not None or (option.is_pooled and option.busy_hours < ALWAYS_BUSY * HOURS_PER_MONTH):
            sharers[option.machine].add(option.workload)
    return {machine: workloads for machine, workloads in sharers.items() if len(workloads) > 1 or machine in owned}


def _week(demands: Sequence[WorkloadDemand]) -> tuple[float, ...]:
    """The share of the week that each slot is; the last is what no schedule has."""
    parts = [max(own) for own in zip(*(d.slots for d in demands if d.slots), strict=True)]
    left = 1.0 - sum(parts)
    return (*parts, left) if left > MARGIN else tuple(parts)


def _busy_frac(option: MonthlyOption) -> float:
    """Share of the month that one of its machines is at work, of what it can be worked."""
    return min(1.0, option.busy_hours / (HOURS_PER_MONTH if option.own is None else option.own.hours))


def backup_usd(option: MonthlyOption, rules: Policies) -> float:
    """USD a month of one standby instance: its expected hours of use, or all of its schedule."""
    if rules.backup.on:
        return option.usd_each
    return option.usd_each * min(1.0, rules.backup.hours / max(option.busy_hours, 1e-9))


def less_share(part: dict[int, float], whole: dict[int, float], share: float) -> dict[int, float]:
    """`part - share * whole`, so that a share of the bill is linear."""
    return {column: part.get(column, 0.0) - share * usd for column, usd in whole.items()}
