"""Which machines for which workload, how bought, so that a month costs least: a mixed-integer program.

Each workload has choices (an offer, a way to buy it, the instances that carry all of it). Services and batches may be
split over several; a training run is all on one. What is reserved is paid all month whoever uses it: such machines are
pools that workloads share over the week. Solved with HiGHS (Huangfu and Hall 2018, doi:10.1007/s12532-017-0130-5).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from flopwise.errors import InfeasibleError
from flopwise.fleet.milp import Program, solved
from flopwise.fleet.prune import undominated
from flopwise.units import HOURS_PER_MONTH

if TYPE_CHECKING:
    from flopwise.fleet.file import Rules

ALWAYS_BUSY = 0.999
"""Share of the month from which a schedule covers all slots."""
BIG = 1e7
MARGIN = 1e-6
"""By how much less than an instance is less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One way to carry a whole workload: so many instances of one offer, bought one way.

    `usd_each`: USD a month of one instance for the hours that it is paid, rework and checkpoints included; of reserved
    machines the whole month, which a pool pays once. `busy_hours`: a month, of one instance.
    """

    workload: int
    provider: str
    region: str
    instance: str
    purchase: str
    instances: int
    usd_each: float
    busy_hours: float
    kg_each: float = 0.0
    candidate: int = 0  # the caller's number of it
    unit: int = 1  # instances of the smallest part that a splittable workload may be split into

    @property
    def pooled(self) -> bool:
        """Whether its machines are paid all month, used or not."""
        return self.purchase.startswith("reserved")

    @property
    def machine(self) -> tuple[str, str, str, str]:
        """What tells pools apart."""
        return (self.provider, self.region, self.instance, self.purchase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a workload allows: may it be split, when is it on, must another provider stand ready."""

    name: str
    splittable: bool
    flexible: bool  # runs that may be put anywhere in their slots; others are on in all of them
    slots: tuple[float, ...] = ()  # share of the week of each slot it is on in, else 0 (`week.slots`); (): on in all
    backup: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """So many instances of a choice; `role` primary or backup."""

    choice: Choice
    count: int
    role: str = "primary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The answer: machines taken, pools with the instances that are paid, the bill and how far it may be from the best.

    `usd`: a month; `objective`: that with the weight on carbon.
    """

    taken: tuple[Taken, ...]
    pools: dict[tuple[str, str, str, str], int]
    usd: float
    objective: float
    kg: float
    gap: float
    dropped: frozenset[str] = frozenset()


def allocate(
    choices: Sequence[Choice],
    demands: Sequence[Demand],
    rules: Rules,
    *,
    without: frozenset[str] = frozenset(),
    gap: float = 1e-3,
    seconds: float = 10.0,
) -> Allocation:
    """The allocation that costs least (with the weight on carbon), within `gap` of it or after `seconds`.

    `without`: constraints to leave out: `budget`, `share of PROVIDER`, `quota N`, `spot share`, `backup`.

    Source: the program stands in this module's text; solved by HiGHS.
    Assumes: an instance of a choice carries its share of the workload; of thousands of choices those of `undominated`
    do; runs that may be put anywhere fill what fixed
    schedules leave of a pool, in slots of the week.
    Raises: InfeasibleError: a workload has no choice, or the constraints contradict one another; says which.
    """
    _check_choices(choices, demands)
    choices = undominated(choices, rules)
    made = _Built(choices, demands, rules, without)
    found, objective, left = solved(made.program, gap, seconds)
    if found is None:
        raise InfeasibleError(_why(choices, demands, rules, without, seconds))
    return made.answer(found, objective, left, without)


def _check_choices(choices: Sequence[Choice], demands: Sequence[Demand]) -> None:
    held = {c.workload for c in choices}
    missing = [d.name for n, d in enumerate(demands) if n not in held]
    if missing:
        raise InfeasibleError(f"nothing on offer carries {', '.join(missing[:5])}")


class _Built:
    """The program of one fleet, and how its columns are read."""

    def __init__(
        self, choices: Sequence[Choice], demands: Sequence[Demand], rules: Rules, without: frozenset[str]
    ) -> None:
        self.choices, self.demands, self.rules = choices, demands, rules
        self.program = Program()
        self.pool_column: dict[tuple[str, str, str, str], int] = {}
        self.pool_usd: dict[tuple[str, str, str, str], float] = {}
        self.own: list[int] = []  # the column of each choice
        self.spare: dict[int, int] = {}  # of its backup
        weight = rules.carbon_usd_per_kg
        for choice in choices:
            demand = demands[choice.workload]
            own = 0.0 if choice.pooled else choice.usd_each
            cost = own + weight * choice.kg_each
            scale = choice.unit if demand.splittable else choice.instances
            self.own.append(self.program.column(cost * scale, -(-choice.instances // scale)))
            if choice.pooled and choice.machine not in self.pool_column:
                self.pool_column[choice.machine] = self.program.column(choice.usd_each, BIG)
                self.pool_usd[choice.machine] = choice.usd_each
        self._carry()
        self._pools()
        if "backup" not in without:
            self._backups()
        self._policies(without)

    def _instances(self, index: int) -> float:
        """Instances that one unit of a choice's column stands for."""
        choice = self.choices[index]
        return float(choice.unit if self.demands[choice.workload].splittable else choice.instances)

    def _carry(self) -> None:
        """Every workload is carried whole, and no share of the bill is met by machines that nobody needs.

        What is not split is carried once; of what is, less than one instance of the coarsest kind is left over.
        """
        terms: dict[int, dict[int, float]] = defaultdict(dict)
        for index, choice in enumerate(self.choices):
            terms[choice.workload][self.own[index]] = self._instances(index) / choice.instances
        for number, held in terms.items():
            spare = max(held.values()) - MARGIN if self.demands[number].splittable else 0.0
            self.program.row(held, 1.0, 1.0 + spare, f"workload {self.demands[number].name}")

    def _pools(self) -> None:
        """Reserved machines hold what uses them in each slot of the week."""
        week = _week(self.demands)
        use: dict[tuple[str, str, str, str], list[dict[int, float]]] = {
            machine: [{column: -1.0} for _ in week] for machine, column in self.pool_column.items()
        }
        for index, choice in enumerate(self.choices):
            if not choice.pooled:
                continue
            demand, each = self.demands[choice.workload], self._instances(index)
            column = self.own[index]
            self.program.row({column: each, self.pool_column[choice.machine]: -1.0}, -np.inf, 0.0, "pool holds it")
            always = choice.busy_hours >= ALWAYS_BUSY * HOURS_PER_MONTH
            parts = week if always or not demand.slots else demand.slots
            if always or not demand.flexible:
                for slot, part in enumerate(parts):
                    if part:
                        use[choice.machine][slot][column] = each
                continue
            busy = min(choice.busy_hours, sum(parts) * HOURS_PER_MONTH)
            spread = {column: -each * busy}
            for slot, part in enumerate(parts):
                if part:  # no more at once than it has machines
                    most = choice.instances * part * HOURS_PER_MONTH
                    hours = self.program.column(0.0, most, whole=False)
                    spread[hours] = 1.0
                    use[choice.machine][slot][hours] = 1.0 / (part * HOURS_PER_MONTH)
            self.program.row(spread, 0.0, np.inf, "runs find their hours")
        for machine, slots in use.items():
            for terms in slots:
                self.program.row(terms, -np.inf, 0.0, f"pool {machine[2]}")

    def _backups(self) -> None:
        """Workloads that ask for it have capacity with a provider that carries nothing of them."""
        rules = self.rules
        hours = 730.0 if rules.backup_on else rules.backup_hours
        for number, demand in enumerate(self.demands):
            if not demand.backup:
                continue
            mine = [i for i, c in enumerate(self.choices) if c.workload == number]
            providers = sorted({self.choices[i].provider for i in mine})
            main = {p: self.program.column(0.0, 1) for p in providers}
            self.program.row(dict.fromkeys(main.values(), 1.0), 1.0, 1.0, f"backup of {demand.name}")
            ready: dict[int, float] = {}
            for i in mine:
                choice = self.choices[i]
                self.program.row(
                    {self.own[i]: 1.0, main[choice.provider]: -BIG / 1e3}, -np.inf, 0.0, f"backup of {demand.name}"
                )
                if choice.purchase != "on_demand":
                    continue
                paid = choice.usd_each * min(1.0, hours / max(choice.busy_hours, 1e-9))
                column = self.program.column(paid, choice.instances)
                self.spare[i] = column
                ready[column] = 1.0 / choice.instances
                self.program.row(
                    {column: 1.0, main[choice.provider]: BIG / 1e3}, -np.inf, BIG / 1e3, f"backup of {demand.name}"
                )
            self.program.row(ready, rules.backup_share, np.inf, f"backup of {demand.name}")

    def _money(self, wanted: Callable[[str, str], bool]) -> dict[int, float]:
        """USD a month of each column, of those whose provider and purchase are `wanted`."""
        terms: dict[int, float] = {}
        for index, choice in enumerate(self.choices):
            if not wanted(choice.provider, choice.purchase):
                continue
            if not choice.pooled:
                terms[self.own[index]] = choice.usd_each * self._instances(index)
            if index in self.spare:
                terms[self.spare[index]] = self.program.costs[self.spare[index]]
        for machine, column in self.pool_column.items():
            if wanted(machine[0], machine[3]):
                terms[column] = self.pool_usd[machine]
        return terms

    def _policies(self, without: frozenset[str]) -> None:
        rules = self.rules
        whole = self._money(lambda _provider, _purchase: True)
        if rules.budget_per_month is not None and "budget" not in without:
            self.program.row(whole, -np.inf, rules.budget_per_month, "budget")
        if rules.max_spot_share < 1 and "spot share" not in without:
            spot = self._money(lambda _provider, purchase: purchase == "spot")
            self.program.row(_less(spot, whole, rules.max_spot_share), -np.inf, 0.0, "spot share")
        for name, share in rules.providers.items():
            if f"share of {name}" in without:
                continue
            mine = self._money(lambda provider, _purchase, name=name: provider == name)  # type: ignore[misc]  # a bound name
            low, high = max(0.0, share - rules.share_tolerance), min(1.0, share + rules.share_tolerance)
            self.program.row(_less(mine, whole, low), 0.0, np.inf, f"share of {name}")
            self.program.row(_less(mine, whole, high), -np.inf, 0.0, f"share of {name}")
        for number, cap in enumerate(rules.caps):
            if f"quota {number}" in without:
                continue
            terms = {
                self.own[i]: self._instances(i)
                for i, c in enumerate(self.choices)
                if not c.pooled and _covers(cap.provider, c.provider) and _covers(cap.instance, c.instance)
            }
            terms |= {
                column: 1.0
                for machine, column in self.pool_column.items()
                if _covers(cap.provider, machine[0]) and _covers(cap.instance, machine[2])
            }
            self.program.row(terms, -np.inf, cap.most, f"quota {number}")

    def answer(self, found: Any, objective: float, gap: float, without: frozenset[str]) -> Allocation:
        """The columns read back."""
        counts = np.rint(found).astype(int)
        taken = [
            Taken(choice=c, count=int(counts[self.own[i]] * self._instances(i)))
            for i, c in enumerate(self.choices)
            if counts[self.own[i]]
        ]
        taken += [
            Taken(choice=self.choices[i], count=int(counts[column]), role="backup")
            for i, column in self.spare.items()
            if counts[column]
        ]
        pools = {machine: int(counts[column]) for machine, column in self.pool_column.items() if counts[column]}
        kg = sum(t.choice.kg_each * t.count for t in taken if t.role == "primary")
        return Allocation(
            taken=tuple(taken),
            pools=pools,
            usd=objective - self.rules.carbon_usd_per_kg * kg,
            objective=objective,
            kg=kg,
            gap=gap,
            dropped=without,
        )


def _week(demands: Sequence[Demand]) -> tuple[float, ...]:
    """The share of the week that each slot is; the last is what no schedule has."""
    parts = [max(own) for own in zip(*(d.slots for d in demands if d.slots), strict=True)]
    left = 1.0 - sum(parts)
    return (*parts, left) if left > MARGIN else tuple(parts)


def _less(part: dict[int, float], whole: dict[int, float], share: float) -> dict[int, float]:
    """`part - share * whole`, so that a share of the bill is linear."""
    terms = {column: -share * usd for column, usd in whole.items()}
    for column, usd in part.items():
        terms[column] = terms.get(column, 0.0) + usd
    return terms


def _covers(pattern: str | None, name: str) -> bool:
    return pattern is None or fnmatchcase(name.lower(), pattern.lower())


def constraints(rules: Rules, demands: Sequence[Demand]) -> list[str]:
    """Names of all policies that an allocation has to hold."""
    named = [f"share of {name}" for name in rules.providers]
    named += [f"quota {number}" for number in range(len(rules.caps))]
    named += ["spot share"] if rules.max_spot_share < 1 else []
    named += ["backup"] if any(d.backup for d in demands) else []
    return named + (["budget"] if rules.budget_per_month is not None else [])


def _why(
    choices: Sequence[Choice], demands: Sequence[Demand], rules: Rules, without: frozenset[str], seconds: float
) -> str:
    """Which policy makes it impossible, and for a budget what the floor is."""
    named = [name for name in constraints(rules, demands) if name not in without]
    if "budget" in named:
        try:
            floor = allocate(choices, demands, rules, without=without | {"budget"}, gap=1e-2, seconds=seconds)
        except InfeasibleError:
            pass
        else:
            assert rules.budget_per_month is not None
            return (
                f"a month costs ${floor.usd:,.0f} at least under these policies; the budget is "
                f"${rules.budget_per_month:,.0f}"
            )
    for name in named:
        trial = replace(rules, budget_per_month=None)
        made = _Built(choices, demands, trial, without | {name})
        if solved(made.program, 1e-1, seconds)[0] is not None:
            return f"no allocation holds the policy '{name}' together with the others; without it there is one"
    shares = frozenset(name for name in named if name.startswith("share of"))
    made = _Built(choices, demands, replace(rules, budget_per_month=None), without | shares)
    if shares and solved(made.program, 1e-1, seconds)[0] is not None:
        return (
            "the shares of the providers cannot be held together: the workloads do not divide so; widen "
            "policies.share_tolerance, or change the shares"
        )
    return "no allocation holds these policies, and leaving out any one of them does not help"
