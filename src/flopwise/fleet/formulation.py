"""The allocation as columns and rows of a mixed-integer program, and how a solution of it is read.

Bounds are as tight as what they stand for (no large constants), and shared machines are columns of their own only where
two workloads could share them: both make the relaxation close to the answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np

from flopwise.fleet.milp import Program
from flopwise.fleet.prune import LARGE
from flopwise.fleet.spec import API, OWNED
from flopwise.units import HOURS_PER_MONTH

if TYPE_CHECKING:
    from flopwise.fleet.allocate import Choice, Demand
    from flopwise.fleet.file import Cap, Rules
    from flopwise.ops.types import Array

ALWAYS_BUSY = 0.999
"""Share of the month from which a machine has no hours left for others."""
MARGIN = 1e-6
"""By how much less than an instance is less."""
ROWS = 3
"""Rows of runs of several machines, one after another, that may stand beside each other on own machines."""
Machine = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Paid:
    """A column that costs money: USD a month of one unit of it, to whom and how bought."""

    column: int
    usd: float
    provider: str
    purchase: str


class Formulation:
    """The program of one fleet; `without` names policies to leave out.

    `risen`: providers whose prices have risen so many times since the shares of the bill were agreed.
    """

    def __init__(
        self,
        choices: Sequence[Choice],
        demands: Sequence[Demand],
        rules: Rules,
        without: frozenset[str] = frozenset(),
        risen: Mapping[str, float] | None = None,
    ) -> None:
        self.risen = risen or {}
        self.choices, self.demands, self.rules, self.without = choices, demands, rules, without
        self.program = Program()
        self.paid: list[Paid] = []
        self.of: dict[int, list[int]] = defaultdict(list)
        for index, choice in enumerate(choices):
            self.of[choice.workload].append(index)
        self.sharers = _sharers([choice for choice in choices if self._may_share(choice)])
        self.own: list[int] = []
        self.pools: dict[Machine, int] = {}
        self.spare: dict[int, int] = {}
        self.volumes: dict[tuple[int, str], int] = {}
        self._columns()
        self._carry()
        self._volumes()
        self._pools()
        if "backup" not in without:
            self._backups()
        self._policies()

    def scale(self, index: int) -> int:
        """Instances that one unit of a choice's column stands for."""
        choice = self.choices[index]
        return choice.unit if self.demands[choice.workload].splittable else choice.instances

    def part(self, index: int) -> float:
        """Share of its workload that one unit of a choice's column carries."""
        return self.scale(index) / self.choices[index].instances

    def shared(self, choice: Choice) -> bool:
        """Whether the choice's machines may be shared with another workload."""
        return choice.workload in self.sharers.get(choice.machine, ()) and self._may_share(choice)

    def _may_share(self, choice: Choice) -> bool:
        """In a large allocation, runs of several machines at once share own machines only."""
        demand = self.demands[choice.workload]
        apart = not demand.flexible or (choice.unit if demand.splittable else choice.instances) == 1
        return apart or choice.own is not None or len(self.choices) < LARGE

    def _columns(self) -> None:
        for index, choice in enumerate(self.choices):
            scale, demand = self.scale(index), self.demands[choice.workload]
            usd = choice.usd_running * scale + (0.0 if self.shared(choice) else choice.usd_each * scale)
            moved = 0.0 if demand.splittable else demand.volumes_usd.get(choice.provider, 0.0)
            kg = self.rules.carbon_usd_per_kg * choice.kg_each * scale
            column = self._bought(usd, -(-choice.instances // scale), choice, moved + kg)
            self.paid.append(Paid(column, moved, choice.provider, VOLUMES))
            self.own.append(column)

    def _bought(self, usd: float, upper: float, choice: Choice, more: float = 0.0) -> int:
        """A column of so many units of a choice; `more` counts in the objective too."""
        column = self.program.column(usd + more, upper)
        self.paid.append(Paid(column, usd, choice.provider, choice.purchase))
        return column

    def _carry(self) -> None:
        """Every workload is carried whole, and no share of the bill is met by machines that nobody needs.

        What is not split is carried once; of what is, less than one instance of the coarsest kind is left over (an API
        has none).
        """
        for number, mine in self.of.items():
            terms = {self.own[i]: self.part(i) for i in mine}
            coarsest = max((self.part(i) for i in mine if self.choices[i].purchase != API), default=MARGIN)
            spare = coarsest - MARGIN if self.demands[number].splittable else 0.0
            self.program.row(terms, 1.0, 1.0 + spare, f"workload {self.demands[number].name}")

    def _by_provider(self, number: int) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for i in self.of[number]:
            found[self.choices[i].provider].append(i)
        return found

    def _volumes(self) -> None:
        """What a split workload stores and sends goes with its machines: no provider has more than they carry."""
        for number, demand in enumerate(self.demands):
            if not demand.splittable or not any(demand.volumes_usd.values()):
                continue
            whole: dict[int, float] = {}
            for provider, mine in self._by_provider(number).items():
                usd = demand.volumes_usd.get(provider, 0.0)
                column = self.program.column(usd, 1.0, whole=False)
                self.paid.append(Paid(column, usd, provider, VOLUMES))
                self.volumes[number, provider] = column
                whole[column] = 1.0
                terms = {self.own[i]: -self.part(i) for i in mine} | {column: 1.0}
                self.program.row(terms, -np.inf, 0.0, f"volumes of {demand.name}")
            self.program.row(whole, 1.0, 1.0, f"volumes of {demand.name}")

    def _pools(self) -> None:
        """Machines paid all month that several workloads may share: those that are there hold what uses them."""
        of: dict[Machine, list[int]] = defaultdict(list)
        for index, choice in enumerate(self.choices):
            if self.shared(choice):
                of[choice.machine].append(index)
        week = _week(self.demands)
        for machine, mine in of.items():
            first = self.choices[mine[0]]
            most = sum(self.choices[i].instances for i in mine)
            own = first.own is not None
            self.pools[machine] = self._owned(first, most) if own else self._bought(first.usd_each, most, first)
            self._pool(machine, mine, week)

    def _owned(self, choice: Choice, most: int) -> int:
        """The column of used machines of one's own: there can be only so many; some may be paid used or not."""
        assert choice.own is not None
        column, name = self.program.column(0.0, most), f"own {choice.instance}"
        terms = {column: 1.0}
        for number, (there, usd) in enumerate(choice.own.tiers, start=1):
            unlimited = number == len(choice.own.tiers) and name in self.without
            terms[self._bought(usd, most if unlimited else min(there, most), choice)] = -1.0
        self.program.row(terms, -np.inf, 0.0, name)
        if choice.own.off_usd:
            there = self._bought(choice.own.tiers[0][0] * choice.own.off_usd, 1, choice)
            self.program.row({there: 1.0}, 1.0, 1.0, "own machines are kept")
        return column

    def _pool(self, machine: Machine, mine: Sequence[int], week: tuple[float, ...]) -> None:
        """A pool holds its users in each slot of the week and in all hours, and no more machines than are used.

        Workloads with a schedule use their slots whole; runs fill the hours that are left, at no time on more machines
        than they have. Where nothing is bound to slots, that they fit into all hours is enough (McNaughton 1959,
        doi:10.1287/mnsc.6.1.1). Runs that need several machines at once have machines of the pool to themselves.
        """
        bound = any(self._bound(i) for i in mine)
        name, column = f"pool {machine[2]}", self.pools[machine]
        gangs = [i for i in mine if self.scale(i) > 1 and not self._bound(i)]
        room = {column: -1.0} | self._together(gangs)
        slots: list[dict[int, float]] = [dict(room) for _ in week]
        hours, held = dict(room), {column: 1.0}
        by_run: dict[int, dict[int, float]] = defaultdict(dict)
        for i in mine:
            choice, each, own = self.choices[i], float(self.scale(i)), self.own[i]
            demand = self.demands[choice.workload]
            parts = demand.slots or week
            held[own] = -each
            if i in gangs:
                continue
            if not demand.flexible or each > 1:
                hours[own] = each * sum(parts)
                for slot in (s for s, part in enumerate(parts) if part):
                    slots[slot][own] = each
                continue
            by_run[choice.workload][own] = each
            hours[own] = each * min(_busy(choice), sum(parts))
            if bound:
                placed = {own: -hours[own]}
                for slot, part in enumerate(parts):
                    if part:
                        there = self.program.column(0.0, choice.instances * part, whole=False)
                        placed[there], slots[slot][there] = 1.0, 1.0 / part
                self.program.row(placed, 0.0, np.inf, "runs find their hours")
        self.program.row(hours, -np.inf, 0.0, name)
        self.program.row(held, -np.inf, 0.0, name)
        for terms in [t for t in slots if len(t) > len(room)]:
            self.program.row(terms, -np.inf, 0.0, name)
        for terms in by_run.values():
            self.program.row(room | terms, -np.inf, 0.0, name)

    def _together(self, gangs: Sequence[int]) -> dict[int, float]:
        """Machines that hold runs of several machines each, none of them at two places at once.

        They run beside each other, or one after another on as many machines as the largest of those needs; on own
        machines several such rows of runs may stand beside each other.
        """
        name = "runs on several machines"
        room = {self.own[i]: float(self.scale(i)) for i in gangs}
        whole = [i for i in gangs if self.scale(i) == self.choices[i].instances]
        rows = ROWS if whole and self.choices[whole[0]].own is not None else min(1, len(whole))
        turns: dict[int, dict[int, float]] = {self.own[i]: {self.own[i]: -1.0} for i in whole}
        for _ in range(min(rows, len(whole))):
            widest = self.program.column(0.0, max(self.scale(i) for i in whole))
            room[widest], hours = 1.0, dict[int, float]()
            for i in whole:
                size, here = float(self.scale(i)), self.program.column(0.0, 1)
                hours[here], room[here], turns[self.own[i]][here] = _busy(self.choices[i]), -size, 1.0
                self.program.row({here: size, widest: -1.0}, -np.inf, 0.0, name)
            self.program.row(hours, -np.inf, 1.0, name)
        for terms in turns.values():
            self.program.row(terms, -np.inf, 0.0, name)
        return room

    def _bound(self, index: int) -> bool:
        """Whether a choice's workload may not be put anywhere in the week."""
        demand = self.demands[self.choices[index].workload]
        return not demand.flexible or sum(demand.slots or (1.0,)) < 1 - MARGIN

    def _backups(self) -> None:
        """If any one provider is lost, the others have a share of what it carried: primary, or standing by on demand.

        What one provider has to carry is what the others do not, so that machines that are left over ask for nothing.
        """
        rules = self.rules
        for number, demand in enumerate(self.demands):
            if not demand.backup:
                continue
            by_provider = self._by_provider(number)
            for i in (i for mine in by_provider.values() for i in mine if self.choices[i].purchase == "on_demand"):
                most = float(-(-round(rules.backup_share * self.choices[i].instances * 1e6) // 10**6))
                self.spare[i] = self._bought(backup_usd(self.choices[i], rules), most, self.choices[i])
            for lost in by_provider:
                others = [i for provider, mine in by_provider.items() if provider != lost for i in mine]
                terms = {self.spare[i]: 1.0 / self.choices[i].instances for i in others if i in self.spare}
                if demand.splittable:
                    terms |= {self.own[i]: (1.0 + rules.backup_share) * self.part(i) for i in others}
                    self.program.row(terms, rules.backup_share, np.inf, "backup")
                else:
                    terms |= {self.own[i]: -rules.backup_share * self.part(i) for i in by_provider[lost]}
                    self.program.row(terms, 0.0, np.inf, "backup")

    def unready(self, columns: Array) -> list[str]:
        """Workloads of which the other providers have too little if one is lost."""
        found = []
        for number, demand in enumerate(self.demands):
            primary, ready = dict[str, float](), dict[str, float]()
            for provider, mine in self._by_provider(number).items():
                primary[provider] = sum(columns[self.own[i]] * self.part(i) for i in mine)
                spare = [columns[self.spare[i]] / self.choices[i].instances for i in mine if i in self.spare]
                ready[provider] = primary[provider] + sum(spare)
            for lost in primary if demand.backup else ():
                needed = self.rules.backup_share * (1.0 - sum(primary.values()) + primary[lost])
                if sum(ready.values()) - ready[lost] < needed - MARGIN:
                    found.append(demand.name)
                    break
        return found

    def money(self, wanted: Callable[[Paid], bool] = lambda _paid: True) -> dict[int, float]:
        """USD a month of one unit of each column, of those `wanted`."""
        return self._sums(wanted, {})

    def agreed(self, wanted: Callable[[Paid], bool] = lambda _paid: True) -> dict[int, float]:
        """The same at the prices that shares of the bill are agreed on: without what they have `risen` by since."""
        return self._sums(wanted, self.risen)

    def _sums(self, wanted: Callable[[Paid], bool], risen: Mapping[str, float]) -> dict[int, float]:
        found: dict[int, float] = {}
        for paid in self.paid:
            if paid.usd and wanted(paid):
                found[paid.column] = found.get(paid.column, 0.0) + paid.usd / risen.get(paid.provider, 1.0)
        return found

    def _policies(self) -> None:
        rules, without = self.rules, self.without
        whole = self.money()
        if rules.budget_per_month is not None and "budget" not in without:
            self.program.row(whole, -np.inf, rules.budget_per_month, "budget")
        if rules.max_spot_share < 1 and "spot share" not in without:
            spot = self.agreed(lambda paid: paid.purchase == "spot")
            self.program.row(_less(spot, self.agreed(), rules.max_spot_share), -np.inf, 0.0, "spot share")
        divided = self.divided()
        for name, share in rules.providers.items():
            if f"share of {name}" in without:
                continue
            mine = self.agreed(lambda paid, name=name: paid.provider == name)  # type: ignore[misc]  # a bound name
            low, high = share - rules.share_tolerance, share + rules.share_tolerance
            if low > 0:
                self.program.row(_less(mine, divided, low), 0.0, np.inf, f"share of {name}")
            if high < 1:
                self.program.row(_less(mine, divided, high), -np.inf, 0.0, f"share of {name}")
        for number, cap in enumerate(rules.caps):
            if f"quota {number}" not in without:
                self.program.row(self.counted(cap), -np.inf, cap.most, f"quota {number}")

    def divided(self) -> dict[int, float]:
        """The bill that providers have shares of: what is rented, and whatever else a share names."""
        return self.agreed(lambda p: p.purchase not in {OWNED, API} or p.provider in self.rules.providers)

    def counted(self, cap: Cap) -> dict[int, float]:
        """Instances under a quota: of one's own, of shared machines once, and those that stand by."""
        terms: dict[int, float] = {}
        for i, choice in enumerate(self.choices):
            if not covers(cap, choice):
                continue
            if self.shared(choice):
                terms[self.pools[choice.machine]] = 1.0
            else:
                terms[self.own[i]] = float(self.scale(i))
            if i in self.spare:
                terms[self.spare[i]] = 1.0
        return terms

    def counts(self, found: Array) -> Array:
        """Instances of each choice."""
        scales = np.array([self.scale(i) for i in range(len(self.choices))])
        counts: Array = np.rint(found[self.own]) * scales
        return counts


VOLUMES = "storage and traffic"
"""What volumes are bought as, beside machines."""


def _sharers(choices: Sequence[Choice]) -> dict[Machine, set[int]]:
    """The workloads that leave hours of a pooled machine to others, where there are several; all of own machines."""
    found: dict[Machine, set[int]] = defaultdict(set)
    for choice in choices:
        if choice.own is not None or (choice.pooled and choice.busy_hours < ALWAYS_BUSY * HOURS_PER_MONTH):
            found[choice.machine].add(choice.workload)
    owned = {choice.machine for choice in choices if choice.own is not None}
    return {machine: workloads for machine, workloads in found.items() if len(workloads) > 1 or machine in owned}


def _week(demands: Sequence[Demand]) -> tuple[float, ...]:
    """The share of the week that each slot is; the last is what no schedule has."""
    parts = [max(own) for own in zip(*(d.slots for d in demands if d.slots), strict=True)]
    left = 1.0 - sum(parts)
    return (*parts, left) if left > MARGIN else tuple(parts)


def _busy(choice: Choice) -> float:
    """Share of the month that one of its machines is at work, of what it can be worked."""
    return min(1.0, choice.busy_hours / (HOURS_PER_MONTH if choice.own is None else choice.own.hours))


def backup_usd(choice: Choice, rules: Rules) -> float:
    """USD a month of one instance that stands by: the hours that it is expected to be used, or all of its schedule."""
    if rules.backup_on:
        return choice.usd_each
    return choice.usd_each * min(1.0, rules.backup_hours / max(choice.busy_hours, 1e-9))


def covers(cap: Cap, choice: Choice) -> bool:
    """Whether a quota counts a choice's machines."""
    return all(
        pattern is None or fnmatchcase(name.lower(), pattern.lower())
        for pattern, name in ((cap.provider, choice.provider), (cap.instance, choice.instance))
    )


def _less(part: dict[int, float], whole: dict[int, float], share: float) -> dict[int, float]:
    """`part - share * whole`, so that a share of the bill is linear."""
    return {column: part.get(column, 0.0) - share * usd for column, usd in whole.items()}
