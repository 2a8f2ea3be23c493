"""What only wastes money: options that a cheaper one of the provider replaces, machines that others make redundant.

Without shares of the bill nobody would take them. With shares they would be a way to raise a provider's part, or to
lower that of others, for nothing in return; so they are left out, or allowed only where what is cheaper cannot be had.
A market of a provider (a region, its own hosts or those of third parties, devices for one software), a kind of device
and a way to buy may be left out for all workloads together, as policies could leave them out: what is cheaper there
then is no measure. So a policy that allows one more leaves allowed what was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Self

import numpy as np

from flopwise.fleet.model import (
    VOLUMES,
    Machine,
    MonthlyOption,
    Policy,
    ProviderShare,
    SpotLimit,
    Trait,
    WorkloadDemand,
    is_rented,
    paid_all_month,
)
from flopwise.fleet.program import (
    ALWAYS_BUSY,
    MARGIN,
    AllocationProgram,
    PaidColumn,
    Share,
    backup_usd,
    less_share,
    machine_sharers,
)
from flopwise.fleet.spec import API, OWNED, Policies, Quota
from flopwise.ops.types import Array
from flopwise.units import HOURS_PER_MONTH
from flopwise.values import replace

CENT = 1e-6
"""USD by which options cost the same."""
HALF = 0.5
"""A column of whole numbers above it is not zero."""
Scarce = frozenset[Policy]
"""Quotas that an option is counted by, and the limit on spot, with shares of the bill even where it is all of it."""


class Waste:
    """The cost and needs of some options, and the options that could replace each.

    Assumes: an option costs what its machines cost alone; with other workloads on them it would cost less.
    """

    def __init__(
        self, options: Sequence[MonthlyOption], demands: Sequence[WorkloadDemand], rules: Policies, *,
        by_traits: bool = False,
    ) -> None:  # fmt: skip
        """`by_traits`: an option may take the place of others with the same traits alone."""
        self.options, self.demands = options, demands
        quotas = [quota for quota in dict.fromkeys(rules.quotas) if _may_bind(quota, options)]
        spot = SpotLimit(rules.max_spot_share) if rules.has_shares else None
        self.by_traits = by_traits
        by_type = {
            key: frozenset[Policy](q for q in quotas if q.counts(*key))
            for key in dict.fromkeys((o.provider, o.instance) for o in options)
        }
        self.scarce: list[Scarce] = [
            by_type[o.provider, o.instance] | ({spot} if spot is not None and o.purchase == "spot" else frozenset())
            for o in options
        ]
        fixed = [o.usd_running + rules.carbon_usd_per_kg * o.kg_each for o in options]
        self.usd = [o.usd_each + usd for o, usd in zip(options, fixed, strict=True)]
        self.prices = [  # a month of one machine, or an hour and what is beside it where machines come and go
            (usd,) if demands[o.workload].levels is None or not o.is_scaled else (o.usd_each / o.busy_hours, beside)
            for o, usd, beside in zip(options, self.usd, fixed, strict=True)
        ]
        self.scale = [o.unit if demands[o.workload].splittable else o.instances for o in options]

    @property
    def groups(self) -> Iterable[list[int]]:
        """Numbers of the options of each workload with one provider, the cheapest first; rented machines only.

        `by_traits`: with the same traits.
        """
        found: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for number, option in enumerate(self.options):
            if option.own is None and option.purchase != API:
                found[option.workload, option.provider, option.traits if self.by_traits else ()].append(number)
        for numbers in found.values():
            yield sorted(numbers, key=lambda n: (self.usd[n] * self.options[n].instances, self.options[n].instances, n))

    def replaces(self, cheaper: int, dearer: int, *, discount: float = 1.0) -> bool:
        """True if one option carries any part that another can, for no more money and, under a quota, machines.

        `discount`: on what the dearer costs. Of a workload with a backup on-demand machines stand by one by one, too,
        for those with the same software. Where the load has levels, what is paid all month carries its base and what
        is paid by the hour its top: neither takes the other's place. What is paid by the hour is on at any of the
        levels beside others, so its price of an hour counts, and not its month by itself.
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
            for price, dearer_price in zip(self.prices[cheaper], self.prices[dearer], strict=True):
                if (machines * price > parts * dearer_price * discount + CENT).any():
                    return False
            if counted and (machines > parts).any():
                return False
        return True

    @property
    def worthwhile_options(self) -> tuple[MonthlyOption, ...]:
        """The options in order without those that only waste money; the others still have a cheapest allocation.

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
        """True if one of the others could always take the place of an option."""
        return any(
            self.scarce[n] <= self.scarce[number] and self.replaces(n, number, discount=discount) for n in others
        )


def _may_bind(quota: Quota, options: Sequence[MonthlyOption]) -> bool:
    """True if a quota could be too small if each workload had the most machines of it, and as many standing by."""
    most: dict[int, int] = defaultdict(int)
    for option in options:
        if quota.counts(option.provider, option.instance):
            most[option.workload] = max(most[option.workload], option.instances)
    return 2 * sum(most.values()) > quota.most


# The program in which shares of the bill are not held by waste

SPOT, RENTED = "spot", "rented"
Seller = tuple[str, str]
"""A provider, and what it is paid for: machines, storage and traffic, an API."""
Ladder = list[tuple[float, frozenset[Trait]]]
"""What all of some work costs at least with a provider, the cheapest first, and the traits that may be left out of it:
a step counts where something is left out of every one before it."""
AS_PAID = frozenset({OWNED, VOLUMES})
"""What counts as what is paid for it: there is no other way."""
Carried = tuple[Seller, dict[int, float], dict[int, float]]
"""Who has work of a workload, what all of it costs on each option there, cheapest first, and each column's part."""
Compared = tuple[Seller, dict[int, float], list[int]]
"""Who has work of a workload, what all of it costs on each option there, cheapest first, and the columns of what
counts."""


def closable_traits(options: Iterable[MonthlyOption]) -> frozenset[Trait]:
    """Traits of rented machines that may be left out: there are others of their kind, of markets at the provider."""
    kinds: dict[str, set[Trait]] = defaultdict(set)
    for option in options:
        if is_rented(option.purchase):
            for trait in option.traits:
                kinds[trait[0]].add(trait)
    return frozenset(trait for traits in kinds.values() if len(traits) > 1 for trait in traits)


class Tightening(NamedTuple):
    """Numbers of options for a problem's `minimal` and for its `measures`."""

    minimal: frozenset[int]
    measures: frozenset[int]


class ThriftyProgram(AllocationProgram):
    """The program of a problem in which only the least cost of the work counts towards a share of the bill.

    The work that a provider has of a workload is worth its part of the cheapest way to do all of it there, whichever
    machines are taken and whatever the other workloads run on. What is paid beyond that neither raises the provider's
    share nor lowers that of others. The cheapest way is that of all markets, devices and ways to buy; in a problem that
    is `closing`, of those alone that some workload uses. What work is worth follows from no other policy (but for
    machines of which a quota allows none), so that looser policies allow whatever stricter ones do: whatever of a used
    market, device and way to buy is cheaper was allowed before.

    Of a problem that is `closing` only the options in its `measures` are compared with, which a solution may need more
    of (`tightening`): all pairs together are more rows than any solver likes, and few of them ever matter.

    Of the options in `minimal` no machine is taken beside others that carry all of the workload, where the bill is less
    without it: a part of the load on it would count as that provider's work.

    Assumes: own machines are worth what they cost, what stands by the cheapest that stands by for all of the share;
    what nobody interrupts is worth what it costs beside spot, whether or not policies limit spot.
    """

    def _hold_policies(self) -> None:
        self.worth: dict[Seller, dict[int, float]] = {}
        self.used: dict[Trait, int] = {}
        self.compared: list[Compared] = []
        self.closable = closable_traits(self.options) if self.problem.closing else frozenset[Trait]()
        if self.rules.has_shares:
            self._add_used_traits()
            self._add_worth()
        super()._hold_policies()
        for number, mine in self.of.items():
            self._forbid_redundant(number, self.problem.minimal.intersection(mine))

    def tightening(self, columns: Array) -> Tightening:
        """The constraints that the program lacks for a solution to be valid; empty where it is."""
        return Tightening(self._redundant(columns), self._missing_measures(columns))

    def _redundant(self, columns: Array) -> frozenset[int]:
        """Options of which a machine is taken without which the others carry all, for less."""
        if not self.rules.has_shares:
            return frozenset()
        counts, found = np.rint(columns[self.own]), set[int]()
        for mine in self.of.values():
            taken = [i for i in mine if counts[i]]
            carried = sum(counts[i] * self.part[i] for i in taken)
            found.update(i for i in taken if carried - self.part[i] > 1.0 - MARGIN and self._is_dropped(i))
        return frozenset(found) - self.problem.minimal

    def without_redundant(self, options: frozenset[int]) -> Self:
        """The program in which these options, too, have no redundant machine."""
        problem = replace(self.problem, minimal=self.problem.minimal | options)
        return type(self)(problem, self.without)

    def alike(self, options: frozenset[int]) -> frozenset[int]:
        """All options of the workloads of some."""
        return frozenset(i for number in {self.options[i].workload for i in options} for i in self.of[number])

    def _forbid_redundant(self, number: int, some: frozenset[int]) -> None:
        """No unit of some options is taken unless less than all of their workload is carried without it."""
        carried = {self.own[i]: self.part[i] for i in self.of[number]}
        coarsest = max(self.part[i] for i in self.of[number])
        for i in sorted(some):
            own, more = self.own[i], coarsest - self.part[i]
            if more <= 0 or not self._is_dropped(i):
                continue
            taken = own
            if self.program.upper[own] > 1:
                taken = self.program.column(0.0, 1)
                self.program.at_most({own: 1.0, taken: -self.program.upper[own]}, 0.0)
            terms = carried | {taken: carried.get(taken, 0.0) + more}
            self.program.at_most(terms, 1.0 - MARGIN + coarsest)

    def _is_dropped(self, index: int) -> bool:
        """True if the bill of a workload is less without a unit of an option, if the rest carries all.

        Storage and traffic then go where the rest is, at most at the highest price; where the workload has a backup,
        machines of the same provider stand by for what the unit carried, those that no quota counts.

        Assumes: False of machines that are shared, or of a load with levels, where what the rest costs may rise.
        """
        option, part = self.options[index], self.part[index]
        demand, share = self.demands[option.workload], self.rules.backup.share
        kept = option.own is not None or option.purchase == API or self.is_shared(option)
        if kept or not demand.splittable or demand.levels is not None:
            return False
        volumes = demand.volumes_usd
        more = part * max(0.0, max(volumes.values(), default=0.0) - volumes.get(option.provider, 0.0))
        if demand.backup:
            ready = (
                o
                for o in (self.options[i] for i in self.of[option.workload])
                if o.traits[:2] == option.traits[:2]
                and o.purchase == "on_demand"
                and not any(quota.counts(o.provider, o.instance) for quota in self.rules.quotas)
            )
            part = min((1.0 + share) * part, share)
            more += min((np.ceil(part * o.instances - CENT) * backup_usd(o, self.rules) for o in ready), default=np.inf)
        return (option.usd_each + option.usd_running) * self.scale[index] > more + CENT

    def _missing_measures(self, columns: Array) -> frozenset[int]:
        """The options with which the shares of a solution would not hold, were they measures; none where they hold."""
        if not self.rules.has_shares or not self.problem.closing:
            return frozenset()
        used, true, more = self._used_traits(columns), defaultdict[Seller, float](float), set[int]()
        for seller, ordered, steps in self.compared:
            part = sum(columns[column] for column in steps)
            cheapest = next((i for i in ordered if self._closable(i) <= used), None)
            if part > MARGIN and cheapest is not None:
                true[seller] += part * ordered[cheapest]
                more.add(cheapest)
        actual = columns.copy()
        for seller, terms in self.worth.items():
            if seller[1] not in AS_PAID:
                (column,) = terms
                actual[column] = min(actual[column], true[seller])
        shares = [policy for policy in self.policies if isinstance(policy, ProviderShare | SpotLimit)]
        if all(self._holds(policy, actual) for policy in shares):
            return frozenset()
        return frozenset(more) - self.problem.measures

    def _holds(self, policy: ProviderShare | SpotLimit, columns: Array) -> bool:
        """True if columns hold a share, whatever the program's rows say."""
        low, high = self.problem.share_bounds(policy)
        least, most = self.counted_shares(policy)
        over = [(less_share(*least, low), 1.0)] * (low > 0) + [(less_share(*most, high), -1.0)] * (high < 1)
        whole = max(1.0, sum(columns[column] * usd for column, usd in most[1].items()))
        return all(sign * sum(columns[c] * usd for c, usd in terms.items()) >= -CENT * whole for terms, sign in over)

    def _used_traits(self, columns: Array) -> frozenset[Trait]:
        """Traits of the rented machines that are taken, or stand by."""
        return frozenset(
            trait
            for i, option in enumerate(self.options)
            if is_rented(option.purchase)
            and (columns[self.own[i]] > HALF or (i in self.spare and columns[self.spare[i]] > HALF))
            for trait in option.traits
        )

    def left_out(self, columns: Array) -> tuple[tuple[Trait, float], ...]:
        """Unused traits with which machines of the same provider would do the work that it has for less.

        With USD a month that they would save, alone.
        """
        saved: dict[Trait, float] = defaultdict(float)
        counts, used = np.rint(columns[self.own]), self._used_traits(columns)
        for mine in self.of.values():
            sold: dict[Seller, list[int]] = defaultdict(list)
            for i in (i for i in mine if is_rented(self.options[i].purchase)):
                sold[self._seller(self.options[i].provider, self.options[i].purchase)].append(i)
            for group in sold.values():
                part = sum(counts[i] * self.part[i] for i in group)
                whole = {i: self.options[i].instances * self.options[i].usd_each for i in group}
                cheapest = min(group, key=whole.__getitem__)
                less = sum(counts[i] * self.part[i] * whole[i] for i in group) - part * whole[cheapest]
                if less > CENT:
                    for trait in self._closable(cheapest) - used:
                        saved[trait] += less
        return tuple(sorted(((trait, float(usd)) for trait, usd in saved.items()), key=lambda item: -item[1]))

    def counted_shares(self, policy: ProviderShare | SpotLimit) -> tuple[Share, Share]:
        """The shares of the plain program, with the value of the work in place of the price where more would help."""
        part, whole = self.share_terms(policy)
        own, others = dict[int, float](), dict[int, float]()
        for (provider, kind), terms in self.worth.items():
            if isinstance(policy, SpotLimit):
                (own if kind == SPOT else others).update(terms)
            elif provider in self.rules.shares or is_rented(kind):
                (own if provider == policy.provider else others).update(terms)
        paid = {column: usd for column, usd in whole.items() if column not in part}
        return (own, paid | own), (part, others | part)

    def _closable(self, index: int) -> frozenset[Trait]:
        """The traits of an option that may be left out."""
        return frozenset(trait for trait in self.options[index].traits if trait in self.closable)

    def _add_used_traits(self) -> None:
        """Of the traits of measures each is used or not: nothing with one that is not used is taken."""
        traits = dict.fromkeys(t for i in sorted(self.problem.measures) for t in self.options[i].traits)
        self.used = {trait: self.program.column(0.0, 1) for trait in traits if trait in self.closable}
        for i in (i for i, option in enumerate(self.options) if is_rented(option.purchase)):
            for trait in (trait for trait in self.options[i].traits if trait in self.used):
                for column in (self.own[i], *([self.spare[i]] if i in self.spare else [])):
                    self.program.at_most({column: 1.0, self.used[trait]: -self.program.upper[column]}, 0.0)

    def _add_worth(self) -> None:
        """Add the worth of each seller's work: no more than is paid for it, nor than it costs at least."""
        least: dict[Seller, dict[int, float]] = {self._seller(p.provider, p.purchase): {} for p in self.paid}
        share = self.rules.backup.share
        for number, mine in self.of.items():
            demand, alike = self.demands[number], defaultdict[tuple[Seller, str], list[int]](list)
            for i in mine:  # of what has a backup only the same software stands in for another
                option = self.options[i]
                seller = self._seller(option.provider, option.purchase)
                alike[seller, option.software if demand.backup else ""].append(i)
            carried, standing = list[Carried](), list[Carried]()
            for (seller, _), group in alike.items():
                usd = {i: o.instances * (o.usd_each + o.usd_running) for i, o in ((i, self.options[i]) for i in group)}
                carried.append((seller, self._by_price(usd), {self.own[i]: self.part[i] for i in group}))
                spare = {i: self.spare[i] for i in group if i in self.spare}
                if spare:
                    usd = {i: self.program.upper[c] * backup_usd(self.options[i], self.rules) for i, c in spare.items()}
                    parts = {c: 1.0 / (share * self.options[i].instances) for i, c in spare.items()}
                    standing.append((seller, self._by_price(usd), parts))
            self._count(carried, least, 1.0)
            self._count(standing, least, 0.0)
        for seller, terms in least.items():
            usd_terms = self.usd_terms(partial(self._is_paid_to, seller), agreed=True)
            if seller[1] in AS_PAID:
                self.worth[seller] = usd_terms
                continue
            column = self.program.column(0.0, np.inf, whole=False)
            self.worth[seller] = {column: 1.0}
            for most in (usd_terms, terms):
                self.program.at_most({column: 1.0} | {other: -usd for other, usd in most.items()}, 0.0)

    def _seller(self, provider: str, purchase: str) -> Seller:
        """The seller and the class of the work: spot apart from what is not interrupted, an API where it has no share.

        Spot is apart without a limit, too: else a limit taken away made other work worth less, and shares out of reach.
        """
        named = provider in self.rules.shares
        apart = purchase in AS_PAID or purchase == SPOT or (purchase == API and not named)
        return provider, purchase if apart else RENTED

    def _is_paid_to(self, seller: Seller, paid: PaidColumn) -> bool:
        return self._seller(paid.provider, paid.purchase) == seller

    def _count(self, parts: Sequence[Carried], least: dict[Seller, dict[int, float]], low: float) -> None:
        """Add what parts of a workload cost at least: each is no more than is carried there, all together are 1.

        On a ladder nothing counts at a step above one of which all is used.
        """
        whole: dict[int, float] = {}
        for seller, usd_of, carried in parts:
            ladder = self._ladder(usd_of)
            columns = [self.program.column(0.0, 1.0, whole=False) for _ in ladder]
            self.compared.append((seller, usd_of, columns))
            self.program.at_most(dict.fromkeys(columns, 1.0) | {other: -part for other, part in carried.items()}, 0.0)
            for column, (usd, _) in zip(columns, ladder, strict=True):
                least[seller][column], whole[column] = usd, 1.0
            for step, (_, traits) in enumerate(ladder[:-1], start=1):
                all_used = {self.used[trait]: 1.0 for trait in traits}
                self.program.at_most(dict.fromkeys(columns[step:], 1.0) | all_used, float(len(traits)))
        if whole:
            self.program.row(whole, low, 1.0)

    def _by_price(self, whole: Mapping[int, float]) -> dict[int, float]:
        """The cost of all of the work on each option that does it for `whole`, at prices as agreed.

        Of machines that may be taken at all, and in the order of prices with the weight on carbon, as machines are
        chosen.
        """
        none = [quota for quota in self.rules.quotas if quota.most == 0]
        able = [i for i in whole if not any(q.counts(self.options[i].provider, self.options[i].instance) for q in none)]
        ordered = sorted(able or whole, key=lambda i: whole[i] + self._kg_usd(self.options[i]))
        return {i: whole[i] / self.problem.risen.get(self.options[i].provider, 1.0) for i in ordered}

    def _ladder(self, usd_of: Mapping[int, float]) -> Ladder:
        """The least cost of all of the work, then with traits left out; the last step cannot be left out.

        Of a problem that is closing the measures are the steps, and what is dearest the last.
        """
        ladder: Ladder = []
        for i, usd in usd_of.items():
            traits = self._closable(i)
            if traits and i not in self.problem.measures:
                continue
            if not any(before <= traits for _, before in ladder):  # else it is left out with one that is cheaper
                ladder.append((usd, traits))
            if not traits:
                return ladder
        return [*ladder, (max(usd_of.values()), frozenset())]

    def _kg_usd(self, option: MonthlyOption) -> float:
        return self.rules.carbon_usd_per_kg * option.kg_each * option.instances
