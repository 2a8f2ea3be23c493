"""The allocation as columns and rows of a mixed-integer program.

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
from flopwise.fleet.model import (
    VOLUMES,
    Budget,
    OwnMachineCount,
    ProviderShare,
    SecondProvider,
    SpotLimit,
    rented,
)
from flopwise.fleet.spec import API
from flopwise.units import HOURS_PER_MONTH

if TYPE_CHECKING:
    from flopwise.fleet.model import InstanceQuota, Machine, MonthlyOption, Policy, Rules, WorkloadDemand
    from flopwise.ops.types import Array

LARGE = 600
"""Options from which an allocation is large, and not all of them, nor every way to share machines, are weighed."""
ALWAYS_BUSY = 0.999
"""Share of the month from which a machine has no hours left for others."""
MARGIN = 1e-6
"""By how much less than an instance is less."""
ROWS = 3
"""Rows of runs of several machines, one after another, that may stand beside each other on own machines."""


def policies(rules: Rules, demands: Sequence[WorkloadDemand], options: Sequence[MonthlyOption] = ()) -> list[Policy]:
    """The policies that an allocation has to hold, and the numbers of own machines."""
    held: list[Policy] = [ProviderShare(name, share) for name, share in rules.providers.items()]
    held += rules.quotas
    held += [SpotLimit(rules.max_spot_share)] if rules.max_spot_share < 1 else []
    held += [SecondProvider()] if any(d.backup for d in demands) else []
    held += dict.fromkeys(OwnMachineCount(o.instance) for o in options if o.own is not None)
    return held + ([Budget(rules.budget_per_month)] if rules.budget_per_month is not None else [])


@dataclass(frozen=True, slots=True)
class PaidColumn:
    """A column that costs money: USD a month of one unit of it, to whom and how bought."""

    column: int
    usd: float
    provider: str
    purchase: str


class AllocationProgram:
    """The program of one fleet; `without`: policies to leave out.

    `risen`: providers whose prices have risen so many times since the shares of the bill were agreed.
    """

    def __init__(
        self,
        options: Sequence[MonthlyOption],
        demands: Sequence[WorkloadDemand],
        rules: Rules,
        without: frozenset[Policy] = frozenset(),
        risen: Mapping[str, float] | None = None,
    ) -> None:
        self.risen = risen or {}
        self.options, self.demands, self.rules, self.without = options, demands, rules, without
        self.policies = [policy for policy in policies(rules, demands, options) if policy not in without]
        self.program = Program()
        self.paid: list[PaidColumn] = []
        self.of: dict[int, list[int]] = defaultdict(list)
        for index, option in enumerate(options):
            self.of[option.workload].append(index)
        self.sharers = _sharers([option for option in options if self._may_share(option)])
        self.own: list[int] = []  # the column of each option
        self.pools: dict[Machine, int] = {}
        self.spare: dict[int, int] = {}
        self.volumes: dict[tuple[int, str], int] = {}
        self._add_options()
        self._carry_workloads()
        self._add_volumes()
        self._add_pools()
        if SecondProvider() not in without:
            self._add_backups()
        self._hold_policies()

    def relaxed_by(self, more: frozenset[Policy]) -> AllocationProgram:
        """The same program with `more` policies left out."""
        return AllocationProgram(self.options, self.demands, self.rules, self.without | more, self.risen)

    def scale(self, index: int) -> int:
        """Instances that one unit of an option's column stands for."""
        option = self.options[index]
        return option.unit if self.demands[option.workload].splittable else option.instances

    def part(self, index: int) -> float:
        """Share of its workload that one unit of an option's column carries."""
        return self.scale(index) / self.options[index].instances

    def shared(self, option: MonthlyOption) -> bool:
        """Whether the option's machines may be shared with another workload."""
        return option.workload in self.sharers.get(option.machine, ()) and self._may_share(option)

    def _may_share(self, option: MonthlyOption) -> bool:
        """In a large allocation, runs of several machines at once share own machines only."""
        demand = self.demands[option.workload]
        apart = not demand.flexible or (option.unit if demand.splittable else option.instances) == 1
        return apart or option.own is not None or len(self.options) < LARGE

    def _add_options(self) -> None:
        for index, option in enumerate(self.options):
            scale, demand = self.scale(index), self.demands[option.workload]
            usd = option.usd_running * scale + (0.0 if self.shared(option) else option.usd_each * scale)
            moved = 0.0 if demand.splittable else demand.volumes_usd.get(option.provider, 0.0)
            kg = self.rules.carbon_usd_per_kg * option.kg_each * scale
            column = self._bought(usd, -(-option.instances // scale), option, moved + kg)
            self.paid.append(PaidColumn(column, moved, option.provider, VOLUMES))
            self.own.append(column)

    def _bought(self, usd: float, upper: float, option: MonthlyOption, more: float = 0.0) -> int:
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
            terms = {self.own[i]: self.part(i) for i in mine}
            coarsest = max((self.part(i) for i in mine if self.options[i].purchase != API), default=MARGIN)
            spare = coarsest - MARGIN if self.demands[number].splittable else 0.0
            self.program.row(terms, 1.0, 1.0 + spare)

    def by_provider(self, number: int) -> dict[str, list[int]]:
        """Options of a workload by provider."""
        options: dict[str, list[int]] = defaultdict(list)
        for i in self.of[number]:
            options[self.options[i].provider].append(i)
        return options

    def _add_volumes(self) -> None:
        """What a split workload stores and sends goes with its machines: no provider has more than they carry."""
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
                self.program.at_most({self.own[i]: -self.part(i) for i in mine} | {column: 1.0}, 0.0)
            self.program.row(whole, 1.0, 1.0)

    def _add_pools(self) -> None:
        """Machines paid all month that several workloads may share: those that are there hold what uses them."""
        of: dict[Machine, list[int]] = defaultdict(list)
        for index, option in enumerate(self.options):
            if self.shared(option):
                of[option.machine].append(index)
        week = _week(self.demands)
        for machine, mine in of.items():
            first = self.options[mine[0]]
            most = sum(self.options[i].instances for i in mine)
            own = first.own is not None
            self.pools[machine] = self._owned(first, most) if own else self._bought(first.usd_each, most, first)
            self._fill_pool(machine, mine, week)

    def _owned(self, option: MonthlyOption, most: int) -> int:
        """The column of used own machines: there can be only so many; some may be paid used or not."""
        assert option.own is not None
        column, policy = self.program.column(0.0, most), OwnMachineCount(option.instance)
        terms = {column: 1.0}
        for number, (there, usd) in enumerate(option.own.tiers, start=1):
            unlimited = number == len(option.own.tiers) and policy in self.without
            terms[self._bought(usd, most if unlimited else min(there, most), option)] = -1.0
        self.program.at_most(terms, 0.0, policy)
        if option.own.off_usd:
            there = self._bought(option.own.tiers[0][0] * option.own.off_usd, 1, option)
            self.program.row({there: 1.0}, 1.0, 1.0)
        return column

    def _fill_pool(self, machine: Machine, mine: Sequence[int], week: tuple[float, ...]) -> None:
        """A pool holds its users in each slot of the week and in all hours, and no more machines than are used.

        Workloads with a schedule use their slots whole; runs fill the hours that are left, at no time on more machines
        than they have. Where nothing is bound to slots, that they fit into all hours is enough (McNaughton 1959,
        doi:10.1287/mnsc.6.1.1). Runs that need several machines at once have machines of the pool to themselves.
        """
        bound = any(self._bound(i) for i in mine)
        column = self.pools[machine]
        gangs = [i for i in mine if self.scale(i) > 1 and not self._bound(i)]
        room = {column: -1.0} | self._gang_room(gangs)
        slots: list[dict[int, float]] = [dict(room) for _ in week]
        hours, held = dict(room), {column: 1.0}
        by_run: dict[int, dict[int, float]] = defaultdict(dict)
        for i in mine:
            option, each, own = self.options[i], float(self.scale(i)), self.own[i]
            demand = self.demands[option.workload]
            parts = demand.slots or week
            held[own] = -each
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
        self.program.at_most(held, 0.0)
        for terms in [t for t in slots if len(t) > len(room)]:
            self.program.at_most(terms, 0.0)
        for terms in by_run.values():
            self.program.at_most(room | terms, 0.0)

    def _gang_room(self, gangs: Sequence[int]) -> dict[int, float]:
        """Machines that hold runs of several machines each, none of them at two places at once.

        They run beside each other, or one after another on as many machines as the largest of those needs; on own
        machines several such rows of runs may stand beside each other.
        """
        room = {self.own[i]: float(self.scale(i)) for i in gangs}
        whole = [i for i in gangs if self.scale(i) == self.options[i].instances]
        rows = ROWS if whole and self.options[whole[0]].own is not None else min(1, len(whole))
        turns: dict[int, dict[int, float]] = {self.own[i]: {self.own[i]: -1.0} for i in whole}
        for _ in range(min(rows, len(whole))):
            widest = self.program.column(0.0, max(self.scale(i) for i in whole))
            room[widest], hours = 1.0, dict[int, float]()
            for i in whole:
                size, here = float(self.scale(i)), self.program.column(0.0, 1)
                hours[here], room[here], turns[self.own[i]][here] = _busy_frac(self.options[i]), -size, 1.0
                self.program.at_most({here: size, widest: -1.0}, 0.0)
            self.program.at_most(hours, 1.0)
        for terms in turns.values():
            self.program.at_most(terms, 0.0)
        return room

    def _bound(self, index: int) -> bool:
        """Whether an option's workload may not be put anywhere in the week."""
        demand = self.demands[self.options[index].workload]
        return not demand.flexible or sum(demand.slots or (1.0,)) < 1 - MARGIN

    def _add_backups(self) -> None:
        """If any one provider is lost, the others have a share of what it carried: primary, or standing by on demand.

        What one provider has to carry is what the others do not, so that machines that are left over ask for nothing.
        """
        rules, policy = self.rules, SecondProvider()
        for number, demand in enumerate(self.demands):
            if not demand.backup:
                continue
            by_provider = self.by_provider(number)
            for i in (i for mine in by_provider.values() for i in mine if self.options[i].purchase == "on_demand"):
                most = float(-(-round(rules.backup_share * self.options[i].instances * 1e6) // 10**6))
                self.spare[i] = self._bought(backup_usd(self.options[i], rules), most, self.options[i])
            for lost in by_provider:
                others = [i for provider, mine in by_provider.items() if provider != lost for i in mine]
                terms = {self.spare[i]: 1.0 / self.options[i].instances for i in others if i in self.spare}
                if demand.splittable:
                    terms |= {self.own[i]: (1.0 + rules.backup_share) * self.part(i) for i in others}
                    self.program.row(terms, rules.backup_share, np.inf, policy)
                else:
                    terms |= {self.own[i]: -rules.backup_share * self.part(i) for i in by_provider[lost]}
                    self.program.row(terms, 0.0, np.inf, policy)

    def usd_terms(
        self, counts: Callable[[PaidColumn], bool] = lambda _: True, *, agreed: bool = False
    ) -> dict[int, float]:
        """USD a month of one unit of each column that counts.

        `agreed`: at the prices that shares of the bill are agreed on, without what they have `risen` by since.
        """
        terms: dict[int, float] = {}
        for paid in self.paid:
            if paid.usd and counts(paid):
                rise = self.risen.get(paid.provider, 1.0) if agreed else 1.0
                terms[paid.column] = terms.get(paid.column, 0.0) + paid.usd / rise
        return terms

    def _hold_policies(self) -> None:
        """Rows of the budget, the limit of spot, shares of the bill and quotas."""
        tolerance = self.rules.share_tolerance
        for policy in sorted(self.policies, key=lambda p: ROW_ORDER.get(type(p).__name__, 0)):
            if isinstance(policy, Budget):
                self.program.at_most(self.usd_terms(), policy.usd, policy)
            elif isinstance(policy, SpotLimit):
                part, whole = self.share_terms(policy)
                self.program.at_most(_less(part, whole, policy.share), 0.0, policy)
            elif isinstance(policy, ProviderShare):
                part, whole = self.share_terms(policy)
                low, high = policy.share - tolerance, policy.share + tolerance
                if low > 0:
                    self.program.row(_less(part, whole, low), 0.0, np.inf, policy)
                if high < 1:
                    self.program.at_most(_less(part, whole, high), 0.0, policy)
            elif not isinstance(policy, SecondProvider | OwnMachineCount):
                self.program.at_most(self.quota_terms(policy), policy.most, policy)

    def share_terms(self, policy: ProviderShare | SpotLimit) -> tuple[dict[int, float], dict[int, float]]:
        """(the part of the bill that a policy limits, the bill that it is a share of), at agreed prices.

        Providers have shares of what is rented, and of whatever else a share names.
        """
        if isinstance(policy, SpotLimit):
            return self.usd_terms(lambda p: p.purchase == "spot", agreed=True), self.usd_terms(agreed=True)
        whole = self.usd_terms(lambda p: rented(p.purchase) or p.provider in self.rules.providers, agreed=True)
        return self.usd_terms(lambda p: p.provider == policy.provider, agreed=True), whole

    def quota_terms(self, quota: InstanceQuota) -> dict[int, float]:
        """Instances under a quota: of an option alone, of shared machines once, and those that stand by."""
        terms: dict[int, float] = {}
        for i, option in enumerate(self.options):
            if not covers(quota, option.provider, option.instance):
                continue
            if self.shared(option):
                terms[self.pools[option.machine]] = 1.0
            else:
                terms[self.own[i]] = float(self.scale(i))
            if i in self.spare:
                terms[self.spare[i]] = 1.0
        return terms

    def counts(self, columns: Array) -> Array:
        """Instances of each option."""
        scales = np.array([self.scale(i) for i in range(len(self.options))])
        counts: Array = np.rint(columns[self.own]) * scales
        return counts


ROW_ORDER = {"Budget": -2, "SpotLimit": -1}
"""The budget and the limit of spot come first: the order of rows decides among solutions that cost the same."""


def _sharers(options: Sequence[MonthlyOption]) -> dict[Machine, set[int]]:
    """The workloads that leave hours of a pooled machine to others, where there are several; all of own machines."""
    sharers: dict[Machine, set[int]] = defaultdict(set)
    for option in options:
        if option.own is not None or (option.pooled and option.busy_hours < ALWAYS_BUSY * HOURS_PER_MONTH):
            sharers[option.machine].add(option.workload)
    owned = {option.machine for option in options if option.own is not None}
    return {machine: workloads for machine, workloads in sharers.items() if len(workloads) > 1 or machine in owned}


def _week(demands: Sequence[WorkloadDemand]) -> tuple[float, ...]:
    """The share of the week that each slot is; the last is what no schedule has."""
    parts = [max(own) for own in zip(*(d.slots for d in demands if d.slots), strict=True)]
    left = 1.0 - sum(parts)
    return (*parts, left) if left > MARGIN else tuple(parts)


def _busy_frac(option: MonthlyOption) -> float:
    """Share of the month that one of its machines is at work, of what it can be worked."""
    return min(1.0, option.busy_hours / (HOURS_PER_MONTH if option.own is None else option.own.hours))


def backup_usd(option: MonthlyOption, rules: Rules) -> float:
    """USD a month of one instance that stands by: the hours that it is expected to be used, or all of its schedule."""
    if rules.backup_on:
        return option.usd_each
    return option.usd_each * min(1.0, rules.backup_hours / max(option.busy_hours, 1e-9))


def covers(quota: InstanceQuota, provider: str, instance: str) -> bool:
    """Whether a quota counts machines of this type."""
    return all(
        pattern is None or fnmatchcase(name.lower(), pattern.lower())
        for pattern, name in ((quota.provider, provider), (quota.instance, instance))
    )


def _less(part: dict[int, float], whole: dict[int, float], share: float) -> dict[int, float]:
    """`part - share * whole`, so that a share of the bill is linear."""
    return {column: part.get(column, 0.0) - share * usd for column, usd in whole.items()}
