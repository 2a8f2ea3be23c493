"""Options that only waste money: a cheaper one with the same provider carries as much and needs nothing scarce beside.

Without shares of the bill nobody would take them. With shares they would be a way to raise a provider's part, or to
lower that of others, for nothing in return; so they are left out, or allowed only where what is cheaper cannot be had.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flopwise.fleet.model import (
    Machine,
    MonthlyOption,
    Policy,
    ProviderShare,
    SpotLimit,
    WorkloadDemand,
    paid_all_month,
)
from flopwise.fleet.program import (
    ALWAYS_BUSY,
    LARGE,
    MARGIN,
    AllocationProblem,
    AllocationProgram,
    less_share,
    machine_sharers,
)
from flopwise.fleet.spec import API, Policies, Quota
from flopwise.units import HOURS_PER_MONTH

CENT = 1e-6
"""USD by which options cost the same."""
Scarce = frozenset[Policy]
"""Quotas that an option is counted by, and the limit on spot."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A cheaper option that could take the place of a dearer one (both by their numbers) but for what is `scarce`.

    `units` of it carry what one unit of the dearer does.
    """

    dearer: int
    cheaper: int
    units: int
    scarce: Scarce


class Waste:
    """What each of some options costs and needs, and which of them could take the place of which.

    Assumes: an option costs what its machines cost alone; with other workloads on them it would cost less.
    """

    def __init__(self, options: Sequence[MonthlyOption], demands: Sequence[WorkloadDemand], rules: Policies) -> None:
        self.options, self.demands = options, demands
        quotas = [quota for quota in dict.fromkeys(rules.quotas) if _may_bind(quota, options)]
        spot = SpotLimit(rules.max_spot_share) if rules.max_spot_share < 1 else None
        by_type = {
            key: frozenset[Policy](q for q in quotas if q.counts(*key))
            for key in dict.fromkeys((o.provider, o.instance) for o in options)
        }
        self.scarce: list[Scarce] = [
            by_type[o.provider, o.instance] | ({spot} if spot is not None and o.purchase == "spot" else frozenset())
            for o in options
        ]
        self.usd = [o.usd_each + o.usd_running + rules.carbon_usd_per_kg * o.kg_each for o in options]
        self.scale = [o.unit if demands[o.workload].splittable else o.instances for o in options]

    @property
    def groups(self) -> Iterable[list[int]]:
        """Numbers of the options of each workload with one provider, the cheapest first; rented machines only."""
        found: dict[tuple[int, str], list[int]] = defaultdict(list)
        for number, option in enumerate(self.options):
            if option.own is None and option.purchase != API:
                found[option.workload, option.provider].append(number)
        for numbers in found.values():
            yield sorted(numbers, key=lambda n: (self.usd[n] * self.options[n].instances, self.options[n].instances, n))

    def replaces(self, cheaper: int, dearer: int, *, discount: float = 1.0) -> bool:
        """Whether one option carries any part that another can, for no more money and, under a quota, machines.

        `discount`: on what the dearer costs. Of a workload with a backup on-demand machines stand by one by one, too,
        for those with the same software. Where the load has levels, what is paid all month carries its base and what
        is paid by the hour its top: neither takes the other's place.
        """
        option, other, demand = self.options[cheaper], self.options[dearer], self.demands[self.options[dearer].workload]
        scales = [(self.scale[cheaper], self.scale[dearer])]
        if demand.levels is not None and paid_all_month(option.purchase) != paid_all_month(other.purchase):
            return False
        if demand.backup and option.software != other.software:
            return False
        if demand.backup and other.purchase == "on_demand":
            if option.purchase != "on_demand":
                return False
            scales.append((1, 1))
        counted = any(isinstance(policy, Quota) for policy in self.scarce[cheaper])
        for scale, other_scale in scales:
            parts = np.arange(1, -(-other.instances // other_scale) + 1) * other_scale
            machines = np.ceil(parts / other.instances * option.instances / scale - CENT) * scale
            if (machines * self.usd[cheaper] > parts * self.usd[dearer] * discount + CENT).any():
                return False
            if counted and (machines > parts).any():
                return False
        return True

    @property
    def worthwhile_options(self) -> tuple[MonthlyOption, ...]:
        """The options in their order without those that only waste money; what is left has an allocation as cheap.

        Reserved machines that several workloads may share are kept where sharing them could pay for any of these, each
        at its part by hours.

        Assumes: no share of the bill is to be held by paying more for the same provider; that is what waste is.
        """
        options, sharers = self.options, machine_sharers(self.options)
        pooled = {
            n for n, o in enumerate(options)
            if o.own is None and o.workload in sharers.get(o.machine, ())
            and o.busy_hours < ALWAYS_BUSY * HOURS_PER_MONTH
        }  # fmt: skip
        kept = {n for n, o in enumerate(options) if o.own is not None or o.purchase == API}
        worth: dict[Machine, bool] = defaultdict(bool)
        for numbers in self.groups:
            best: list[int] = []
            for number in (n for n in numbers if n not in pooled):
                if not self._has_replacement(number, best):
                    best.append(number)
            kept.update(best)
            for number in (n for n in numbers if n in pooled):
                option = options[number]
                if not worth[option.machine]:
                    hours = min(1.0, option.busy_hours / HOURS_PER_MONTH)
                    worth[option.machine] = not self._has_replacement(number, best, discount=hours)
        kept.update(n for n in pooled if worth[options[n].machine])
        return tuple(options[n] for n in sorted(kept))

    def _has_replacement(self, number: int, others: Iterable[int], discount: float = 1.0) -> bool:
        """Whether one of the others could always take the place of an option."""
        return any(
            self.scarce[n] <= self.scarce[number] and self.replaces(n, number, discount=discount) for n in others
        )

    def exchanges(self, shared: Iterable[int]) -> list[Exchange]:
        """Every option, but for those on `shared` machines, with each cheaper one that could take its place."""
        found, kept = list[Exchange](), set(shared)
        for numbers in self.groups:
            for place, dearer in enumerate(numbers):
                for cheaper in numbers[:place] if dearer not in kept else ():
                    if self.replaces(cheaper, dearer):
                        more = self.scarce[cheaper] - self.scarce[dearer]
                        found.append(Exchange(dearer, cheaper, self._units(cheaper, dearer), more))
        return found

    def moves(self, shared: Iterable[int]) -> list[Exchange]:
        """Every option, but for those on `shared` machines, with those of other providers that cost less.

        Of those that need the same scarce things the cheapest, and those of fewer machines. Not of what has a backup,
        which goes with where it runs, nor of levels of load, whose parts cost what their hours do.
        """
        found, kept = list[Exchange](), set(shared)
        of: dict[int, list[int]] = defaultdict(list)
        for number, option in enumerate(self.options):
            demand = self.demands[option.workload]
            if option.own is None and option.purchase != API and not demand.backup and demand.levels is None:
                of[option.workload].append(number)
        for numbers in of.values():
            for dearer in (n for n in numbers if n not in kept):
                best: dict[tuple[str, Scarce], list[tuple[float, int, Exchange]]] = defaultdict(list)
                for cheaper in numbers:
                    units, more = self._units(cheaper, dearer), self.scarce[cheaper] - self.scarce[dearer]
                    usd, machines = units * self.unit_usd(cheaper), units * self.scale[cheaper]
                    provider = self.options[cheaper].provider
                    if provider != self.options[dearer].provider and usd < self.unit_usd(dearer) - CENT:
                        best[provider, more].append((usd, machines, Exchange(dearer, cheaper, units, more)))
                for rows in best.values():
                    fewest = np.inf
                    for _, machines, exchange in sorted(rows, key=lambda row: row[:2]):
                        if machines < fewest:  # of those that cost more only where a quota holds more of them
                            found.append(exchange)
                            fewest = machines if exchange.scarce else 0
        return found

    def _units(self, cheaper: int, dearer: int) -> int:
        """Units of one option that carry what one unit of another does."""
        part = self.scale[dearer] / self.options[dearer].instances
        return -(-round(part * self.options[cheaper].instances * 1e6) // (self.scale[cheaper] * 10**6))

    def unit_usd(self, number: int) -> float:
        """USD a month of one unit of an option, with its part of what the workload stores and sends."""
        option = self.options[number]
        volumes = self.demands[option.workload].volumes_usd.get(option.provider, 0.0)
        return self.usd[number] * self.scale[number] + volumes * self.scale[number] / option.instances

    def alone_usd(self, shared: Iterable[int]) -> dict[int, float]:
        """USD a month of each workload of options on `shared` machines on machines of its own with the same provider.

        Of the cheapest that need nothing scarce beside; of its own machines alone where there are none.
        """
        apart, found = set(shared), dict[int, float]()
        for numbers in self.groups:
            others = [n for n in numbers if n not in apart]
            for number in apart.intersection(numbers):
                alike = (n for n in (*others, number) if self.scarce[n] <= self.scarce[number])
                found[number] = min(self.options[n].usd_each * self.options[n].instances for n in alike)
        return found


def _may_bind(quota: Quota, options: Sequence[MonthlyOption]) -> bool:
    """Whether a quota could be too small if each workload had the most machines of it, and as many standing by."""
    most: dict[int, int] = defaultdict(int)
    for option in options:
        if quota.counts(option.provider, option.instance):
            most[option.workload] = max(most[option.workload], option.instances)
    return 2 * sum(most.values()) > quota.most


# The program in which shares of the bill are not held by waste

LEFT_OVER = 1e-5
"""Part of a workload by which less than a machine is left over."""
ABOVE_USD = 1e-3
"""By how much more than it may be a part of the bill is too much."""
MOST_MOVES = 500
"""Moves between providers beyond which they are not looked at: of so many workloads none alone makes a share."""


class ThriftyProgram(AllocationProgram):
    """The program of a problem in which no share of the bill is held by machines that cost more than they have to.

    Assumes: among as many options as a large allocation has, without those that only waste money, shares are held by
    moving work: what a quota or the limit on spot would allow is not looked at there.
    """

    def __init__(self, problem: AllocationProblem, without: frozenset[Policy] = frozenset()) -> None:
        super().__init__(problem, without)
        bound = any(isinstance(policy, ProviderShare | SpotLimit) for policy in self.policies)
        if bound and len(self.options) < LARGE:
            self._forbid_waste()

    def _forbid_waste(self) -> None:
        """An option is taken only where each cheaper one in its place would break a quota, a share or the spot limit.

        A pool costs no more than its workloads alone with the same provider.
        """
        shared = [i for i, option in enumerate(self.options) if self.is_shared(option) and option.own is None]
        waste, columns = Waste(self.options, self.demands, self.rules), self.own
        shares = {policy.provider: policy for policy in self.policies if isinstance(policy, ProviderShare)}
        moves = waste.moves(shared) if shares else []
        for exchange in [*waste.exchanges(shared), *(moves if len(moves) <= MOST_MOVES else ())]:
            terms, upper = {columns[exchange.dearer]: 1.0}, self.program.upper[columns[exchange.dearer]]
            scarce: list[Policy] = [policy for policy in sorted(exchange.scarce, key=str) if policy in self.policies]
            ends = [self.options[i].provider for i in (exchange.dearer, exchange.cheaper)]
            scarce += [shares[name] for name in ends if ends[0] != ends[1] and name in shares]
            broken = [self._broken_by(exchange, policy, waste) for policy in scarce]
            if None not in broken:
                self.program.at_most(terms | {column: -upper for column in broken if column is not None}, 0.0)
        alone = waste.alone_usd(shared)
        for machine, column in self.pools.items():
            users = [i for i in shared if self.options[i].machine == machine]
            if users:
                usd = self.options[users[0]].usd_each
                self.program.at_most({column: usd} | {columns[i]: -alone[i] * self.part[i] for i in users}, 0.0)
        for number, mine in self.of.items():
            if self.demands[number].backup:
                self._forbid_idle_backups(number, waste)
            elif self.demands[number].splittable:
                self._forbid_leftovers(mine)

    def _forbid_leftovers(self, mine: Sequence[int]) -> None:
        """Of what is split less than one machine of each kind that is taken is left over, not of the coarsest alone."""
        machines = [i for i in mine if self.options[i].purchase != API]
        coarsest = max((self.part[i] for i in machines), default=0.0)
        parts = {self.own[i]: self.part[i] for i in mine}
        for i in (i for i in machines if self.part[i] < coarsest - MARGIN):
            used = self.program.column(0.0, 1)
            self.program.at_most({self.own[i]: 1.0, used: -self.program.upper[self.own[i]]}, 0.0)
            self.program.at_most(parts | {used: coarsest - self.part[i]}, 1.0 + coarsest - LEFT_OVER)

    def _forbid_idle_backups(self, number: int, waste: Waste) -> None:
        """Machines stand by only if without one of them there were too few where some provider is lost.

        Those of one software with one provider cost no more than the cheapest there that stand by for all of the share.
        """
        program, share, alike = self.program, self.rules.backup.share, defaultdict[tuple[str, str], list[int]](list)
        for i in (i for mine in self.by_provider(number).values() for i in mine):
            alike[self.options[i].provider, self.options[i].software].append(i)
        for mine in alike.values():
            spare = {i: program.costs[self.spare[i]] for i in mine if i in self.spare}
            whole = [-(-round(share * self.options[i].instances * 1e6) // 10**6) * spare[i] for i in spare]
            free = [usd for i, usd in zip(spare, whole, strict=True) if not waste.scarce[i]]
            if free:
                program.at_most({self.spare[i]: usd for i, usd in spare.items()}, min(free) + ABOVE_USD)
            for column in (self.spare[i] for i in spare):
                taken, needed = program.column(0.0, 1), list[int]()
                program.at_most({column: 1.0, taken: -program.upper[column]}, 0.0)
                for row in (row for row in self.losses[number] if column in row.terms):
                    needed.append(program.column(0.0, 1))
                    most = sum(max(0.0, factor) * program.upper[c] for c, factor in row.terms.items())
                    enough = row.low + row.terms[column] - LEFT_OVER
                    program.at_most(row.terms | {needed[-1]: most}, enough + most)
                program.at_most({taken: 1.0} | dict.fromkeys(needed, -1.0), 0.0)

    def _broken_by(self, exchange: Exchange, policy: Policy, waste: Waste) -> int | None:
        """A column that may be 1 only where an exchange would break a policy; None where it always would."""
        program, leaves = self.program, False
        column = program.column(0.0, 1)
        if isinstance(policy, Quota):
            terms, room = self.quota_terms(policy), policy.most + 1.0 - exchange.units * self.scale[exchange.cheaper]
            least = room
        else:
            assert isinstance(policy, SpotLimit | ProviderShare)
            (part, whole), bounds = self.share_terms(policy), (0.0, policy.share)
            comes, goes = exchange.units * waste.unit_usd(exchange.cheaper), waste.unit_usd(exchange.dearer)
            if isinstance(policy, ProviderShare):
                leaves, bounds = (
                    policy.provider == self.options[exchange.dearer].provider,
                    self.problem.share_bounds(policy),
                )
            limit = bounds[0] if leaves else bounds[1]
            if not 0 < limit < 1:
                program.upper[column] = 0
                return column
            terms = {c: -factor if leaves else factor for c, factor in less_share(part, whole, limit).items()}
            moved, other = (goes, comes) if leaves else (comes, goes)
            least = ABOVE_USD - moved * (1.0 - limit) - other * limit
            room = least + self.most_usd * (1.0 - limit if leaves else limit)
        program.row(terms | {column: -room}, least - room, np.inf)
        return None if room <= 0 else column

    @cached_property
    def most_usd(self) -> float:
        """What the bill cannot be above: of each workload twice its dearest machines, and all that goes with them."""
        usd: dict[int, float] = defaultdict(float)
        for paid in self.paid:
            usd[paid.column] += paid.usd * self.program.upper[paid.column]
        own = sum(2.0 * max(usd[self.own[i]] for i in mine) for mine in self.of.values())
        return own + sum(value for column, value in usd.items() if column not in set(self.own))
