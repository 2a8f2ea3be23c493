"""The bill under other circumstances: prices, providers, traffic, policies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from itertools import compress
from math import inf
from typing import TypeVar

from flopwise.errors import InfeasibleError
from flopwise.facts.catalog import Facts
from flopwise.fleet.allocate import UnfinishedSearchError, allocate, allocation_problem
from flopwise.fleet.assessment import Binding, PolicyMove, ShareStep, WhatIf, shares_text
from flopwise.fleet.bill import BOUGHT
from flopwise.fleet.model import (
    Allocation,
    Budget,
    OwnMachineCount,
    PlannedWorkload,
    Platform,
    Policy,
    ProviderShare,
    SecondProvider,
    SpotLimit,
    Taken,
    Trait,
    is_rented,
)
from flopwise.fleet.option import monthly_option
from flopwise.fleet.program import EFFORT, GUARD_S, AllocationProblem
from flopwise.fleet.schedules import WEEKS_PER_MONTH
from flopwise.fleet.spec import OWNED, Quota
from flopwise.units import format_number, format_usd
from flopwise.values import replace

PRICE_RISE = 0.2
WEEK = 1 / WEEKS_PER_MONTH
"""Of a month."""
POINTS = (-5, -1, 1, 5)
"""Points of the bill by which the bound of a share that binds is moved."""
CLOSE = 0.02
"""Of the bill: a share so near to a bound may be held by it."""
MONTHS = 12
MOVED = 0.1
"""Of what a policy costs, or of a workload's bill: a workload that it makes dearer by as much is named."""
MOST_MOVES = 2
"""Workloads that an answer names, those whose bill it changes most."""
TELLING = 1e-3
"""Of the bill: what other machines have to save for the machines to be chosen anew; a policy's cost below is the
solver's gap."""
MOST_AT_ONCE = 4
BINDING_EFFORT, QUESTION_EFFORT = 0.2 * EFFORT, 0.3 * EFFORT
"""What the solver may take for the allocation without a policy, and for that under other prices or traffic."""
Answer = TypeVar("Answer")
Interval = tuple[float, float]
"""The least and the largest share of a bill."""


LATE = f"; the solver's time limit of {GUARD_S:g} s was reached, so that a faster machine may find less"


def _side_by_side(calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """The answers of calls that do not depend on one another, in their order: the solver leaves Python alone.

    Each has a copy of the context, in which text shows amounts in the currency that is asked for.
    """
    with ThreadPoolExecutor(max_workers=min(MOST_AT_ONCE, os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda context, call: context.run(call), [copy_context() for _ in calls], calls))


def bindings(problem: AllocationProblem, allocation: Allocation) -> list[Binding]:
    """Every policy that costs something, dearest first: the bill less the bill without it, solved anew for each.

    Policies that stand in for one another cost nothing one by one, so all shares, and all policies, are also left out
    together.
    """
    policies = problem.policies
    shares = [policy for policy in policies if isinstance(policy, ProviderShare)]
    groups = [(_name(policy, problem), f"{policy} costs", frozenset({policy})) for policy in policies]
    if len(shares) > 1:
        names = ", ".join(problem.rules.shares)
        groups.append(("all shares", f"the shares of {names} together cost", frozenset(shares)))
    if len(policies) > max(1, len(shares)):
        groups.append(("all policies", "all policies together cost", frozenset(policies)))

    def allocation_without(left_out: frozenset[Policy]) -> Allocation:
        """The allocation without the policies; with them where none is found."""
        try:
            return allocate(problem, left_out, effort=BINDING_EFFORT, start=allocation)
        except InfeasibleError as error:
            return replace(allocation, out_of_time=isinstance(error, UnfinishedSearchError))

    without = _side_by_side([partial(allocation_without, left_out) for *_, left_out in groups])
    rows, moved_shares = [_left_out(trait, usd) for trait, usd in allocation.left_out], False
    for (name, words, left_out), free in zip(groups, without, strict=True):
        cost = allocation.objective - free.objective
        if cost > max(TELLING * allocation.objective, 0.5):
            only = all(isinstance(policy, ProviderShare) for policy in left_out)
            first = only and not (moved_shares and len(left_out) > 1)  # shares that bind one by one are not told twice
            moved = [policy for policy in shares if policy in left_out and first]
            moved_shares = moved_shares or bool(moved)
            steps = [step for policy in moved for step in _share_steps(problem, allocation, free, policy)]
            text, moves = f"{words} {format_usd(cost, 0)} a month", _moves(problem, allocation, free, cost)
            text += f": without {'it' if len(left_out) == 1 else 'them'} {moves[0].text}" if moves else ""
            parts = {p: _provider_share(problem, free, p) for p in problem.rules.shares} if only else {}
            text += f"; the bill is then {shares_text(parts)}" if parts else ""
            text += LATE if free.out_of_time else ""
            row = Binding(
                constraint=name, usd_per_month=cost, text=text, steps=steps, moves=moves, shares_without=parts
            )
            rows.append(row)
        elif free.out_of_time:
            text = f"{words} nothing, as far as the search went{LATE}"
            rows.append(Binding(constraint=name, usd_per_month=0.0, text=text))
    return sorted(rows, key=lambda row: -row.usd_per_month)


def _moves(problem: AllocationProblem, current: Allocation, free: Allocation, cost: float) -> list[PolicyMove]:
    """The workloads that another allocation runs for clearly less, each with its machines in both."""
    rows = []
    for name, now, then, machines in _both_ways(problem, current, free):
        if now - then > MOVED * min(cost, now):
            text = f"{name} would run {machines}"
            rows.append(PolicyMove(workload=name, usd_per_month=now, usd_per_month_without=then, text=text))
    return sorted(rows, key=lambda row: row.usd_per_month_without - row.usd_per_month)


def _both_ways(
    problem: AllocationProblem, current: Allocation, other: Allocation
) -> Iterator[tuple[str, float, float, str]]:
    """Each workload, its bill in both allocations, and its machines in the other one instead of the current ones."""
    for number, demand in enumerate(problem.demands):
        both = [
            [taken for taken in made.taken if taken.option.workload == number and taken.role == "primary"]
            for made in (current, other)
        ]
        now, then = (sum(taken.usd for taken in mine) for mine in both)
        machines, others = (_machines_text(mine) for mine in both)
        text = f"on {others} for {format_usd(then, 0)} instead of {format_usd(now, 0)}"
        yield demand.name, now, then, text + (f" on {machines}" if machines != others else "")


def _largest_moves(problem: AllocationProblem, current: Allocation, anew: Allocation) -> str:
    """The workloads whose bill another allocation changes most, in words; empty where it changes none clearly."""
    least = MOVED * max(abs(anew.usd - current.usd), TELLING * current.usd)
    moved = [(abs(then - now), f"{name} {text}") for name, now, then, text in _both_ways(problem, current, anew)]
    largest = sorted((row for row in moved if row[0] > least), reverse=True)[:MOST_MOVES]
    return f"; the largest changes: {', and '.join(text for _, text in largest)}" if largest else ""


def _machines_text(taken: Sequence[Taken]) -> str:
    """Machines with how they are bought."""
    return " and ".join(
        f"{one.count:,} x {one.option.provider} {one.option.instance} {BOUGHT[one.option.purchase]}" for one in taken
    )


def _left_out(trait: Trait, usd: float) -> Binding:
    """Offers that shares of the bill leave out, by market, device and way to buy."""
    of, value = trait
    if isinstance(value, str):
        what = value.replace("_", " ")  # a device, or a way to buy
    else:
        region, third_parties, retired, software = value
        kinds = {"hosts of third parties": third_parties, "retired machines": retired, software: bool(software)}
        more = ", ".join(kind for kind, present in kinds.items() if present)
        what = f"{of} in {region}" + (f" ({more})" if more else "")
    text = (
        f"to meet the shares, {what} is left out for all workloads; with it the same providers would do the same "
        f"work for {format_usd(usd, 0)} a month less"
    )
    return Binding(constraint=f"without {what}", usd_per_month=usd, text=text)


def _share_steps(
    problem: AllocationProblem, allocation: Allocation, free: Allocation, policy: ProviderShare
) -> list[ShareStep]:
    """The bill with the bound that a share is held at a point or a few away; the other policies stay.

    A bound binds where the share is next to it, or beyond it in the allocation that is `free` of it.
    A step has no bill where no allocation is found without waste. What holds stricter bounds holds looser ones, too:
    none of these costs more, though the solver's time may not have been enough to find it.
    """
    (low, high), name = problem.share_bounds(policy), policy.provider
    share, unbound = (_provider_share(problem, made, name) for made in (allocation, free))
    steps, bounds = list[tuple[str, float]](), list[Interval]()
    binds = abs(share - low) < CLOSE or unbound < low, abs(share - high) < CLOSE or unbound > high
    for end, bound in compress((("least", low), ("most", high)), binds):
        for to in (round(bound + points / 100, 6) for points in POINTS):
            if 0 < to < 1:
                steps.append((end, to))
                bounds.append((to, max(to, high)) if end == "least" else (min(to, low), to))
    trials = [replace(problem, bounds={name: interval}) for interval in bounds]
    bills = _side_by_side([partial(_least_usd, trial, allocation, BINDING_EFFORT) for trial in trials])
    known = [((low, high), allocation.usd), *zip(bounds, (usd for usd, _ in bills), strict=True)]
    least = [min(usd for inner, usd in known if _within(inner, interval)) for interval in bounds]
    return [
        _share_step(allocation, name, end, to, usd, late=late)
        for (end, to), usd, (_, late) in zip(steps, least, bills, strict=True)
    ]


def _within(inner: Interval, outer: Interval) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _least_usd(problem: AllocationProblem, now: Allocation, effort: float) -> tuple[float, bool]:
    """The bill of an allocation anew, and whether the clock ended the search; infinite where none is found."""
    try:
        allocation = allocate(problem, effort=effort, start=now)
    except InfeasibleError as error:
        return inf, isinstance(error, UnfinishedSearchError)
    return allocation.usd, allocation.out_of_time


def _provider_share(problem: AllocationProblem, allocation: Allocation, name: str) -> float:
    """The share of what is rented, and of what else has a share, that is with a provider."""
    rented = {option.provider for option in problem.options if is_rented(option.purchase)}
    whole = sum(usd for p, usd in allocation.by_provider.items() if p in rented or p in problem.rules.shares)
    return allocation.by_provider.get(name, 0.0) / whole if whole else 0.0


def _share_step(now: Allocation, name: str, end: str, share: float, usd: float, *, late: bool) -> ShareStep:
    """The bill of `usd` where a share is at `end` (least, most) so much, in words; `late`: the clock ended it."""
    words = f"{name} with at {end} {100 * share:g} % of the bill"
    step = partial(ShareStep, provider=name, bound=end, share=share)
    if usd == inf:
        text = f"{words}: no allocation without waste was found under the other policies" + LATE * late
        return step(usd_per_month=None, change_usd=None, text=text)
    change = usd - now.usd
    text = f"{words}: {format_usd(usd, 0)} a month, {'+' if change >= 0 else '-'}{format_usd(abs(change), 0)}"
    text += LATE * late
    return step(usd_per_month=usd, change_usd=change, text=text)


def _name(policy: Policy, problem: AllocationProblem) -> str:
    """A policy as an assessment names it."""
    if isinstance(policy, ProviderShare):
        return f"share of {policy.provider}"
    if isinstance(policy, OwnMachineCount):
        return f"own {policy.instance}"
    if isinstance(policy, Quota):
        return f"quota {problem.rules.quotas.index(policy)}"
    return {SpotLimit: "spot share", SecondProvider: "backup", Budget: "budget"}[type(policy)]


# Other prices, providers and traffic


def what_ifs(platform: Platform, problem: AllocationProblem, allocation: Allocation, facts: Facts) -> list[WhatIf]:
    """The standard what-ifs. Allocations ignore budgets: the answer is the bill, and the excess over the budget."""
    rules, bills = problem.rules, allocation.by_provider
    free = replace(problem, rules=replace(rules, budget_per_month=None))
    ask = _Questions(free, allocation, platform.rules.budget_per_month)
    clouds = {t.option.provider for t in allocation.taken if is_rented(t.option.purchase)}
    dearest = sorted((p for p in bills if p in clouds), key=lambda p: -bills[p])[:1]
    calls: list[Callable[[], list[WhatIf]]] = [partial(ask.dearer, provider) for provider in dearest]
    calls.append(ask.all_dearer)
    for provider in sorted(bills):
        without = partial(_without_provider, free, provider)
        text = "its share goes to the others and is no longer a policy to meet"
        calls.append(partial(ask.new_allocation, f"{provider} is lost", without, text))
    calls.append(ask.without_spot)
    unbound = replace(platform, rules=replace(platform.rules, budget_per_month=None))

    def more(factors: Sequence[float]) -> AllocationProblem:
        items = [scaled_workload(item, factor, facts) for item, factor in zip(problem.items, factors, strict=True)]
        return allocation_problem(unbound, items, facts)

    how = "an upper bound: the same layouts, with machines added once the present ones are full; traffic grows in "
    how += "proportion, stored data does not"
    calls.append(partial(ask.new_allocation, "traffic and runs x 2", partial(more, [2.0] * len(problem.items)), how))
    if any(item.job.growth_per_month for item in problem.items):
        factors = [float((1 + item.job.growth_per_month) ** MONTHS) for item in problem.items]
        how += f"; each workload one year after it begins ({_factors_text(factors)}), with machines chosen and traffic "
        how += "priced again, whereas the forecast keeps today's kinds of machines and price per byte"
        calls.append(partial(ask.new_allocation, f"growth after {MONTHS} months", partial(more, factors), how))
    return [row for rows in _side_by_side(calls) for row in rows]


def _factors_text(factors: Sequence[float]) -> str:
    """The growth of traffic and runs, of the workloads that grow least and most."""
    least, most = (f"{format_number(factor)}" for factor in (min(factors), max(factors)))
    return f"x {least}" if least == most else f"x {least} to x {most}"


class _Questions:
    """Answers about one allocation; `free` is its problem without the budget."""

    def __init__(self, free: AllocationProblem, now: Allocation, budget: float | None) -> None:
        self.free, self.now, self.budget = free, now, budget

    def answer(self, name: str, usd: float, how: str) -> list[WhatIf]:
        """One answer in words."""
        change = usd - self.now.usd
        text = f"{format_usd(usd, 0)} a month, {'+' if change >= 0 else '-'}{format_usd(abs(change), 0)} "
        text += f"({100 * change / self.now.usd:+.0f} %), {how}"
        if self.budget is not None and usd > self.budget:
            text += f"; {format_usd(usd - self.budget, 0)} over the budget"
        return [WhatIf(name=name, feasible=True, usd_per_month=usd, change_usd=change, text=text)]

    def all_dearer(self) -> list[WhatIf]:
        """Everything but own machines, and what goes with it, at once: the same machines stay the cheapest."""
        own = sum(t.usd for t in self.now.taken if t.option.purchase == OWNED)
        own += sum(usd for _, usd in self.now.idle.values())
        usd = self.now.usd + PRICE_RISE * (self.now.usd - own)
        how = "machines, storage and traffic, wherever they are bought" + (", but for own machines" if own else "")
        return self.answer(f"all prices rise {100 * PRICE_RISE:.0f} %", usd, how)

    def dearer(self, provider: str) -> list[WhatIf]:
        """One provider's prices rise: its machines are kept, or chosen anew where that is cheaper.

        The bill is no less than before: where the solver finds less, it had not found the best of today's prices.
        """
        usd = self.now.usd + PRICE_RISE * self.now.by_provider[provider]
        anew, late = _least_usd(_with_rise(self.free, provider), self.now, QUESTION_EFFORT)
        same = "the same machines, which stay the cheapest"
        how = f"machines, storage and traffic, with {'machines chosen anew' if anew < usd * (1 - TELLING) else same}"
        if self.free.rules.has_shares:
            how += "; shares of the bill held at the prices before the rise"
        name = f"prices of {provider} rise {100 * PRICE_RISE:.0f} %"
        return self.answer(name, max(self.now.usd, min(usd, anew)), how + LATE * late)

    def new_allocation(self, name: str, problem: Callable[[], AllocationProblem], how: str) -> list[WhatIf]:
        """The bill of another problem, allocated anew."""
        try:
            other = problem()
            anew = allocate(other, effort=QUESTION_EFFORT, start=self.now)
        except InfeasibleError as error:
            return [_impossible(name, f"no allocation: {error}")]
        moves = _largest_moves(other, self.now, anew)
        return self.answer(name, anew.usd, how + moves + LATE * anew.out_of_time)

    def without_spot(self) -> list[WhatIf]:
        """A week of the month its workloads run on the cheapest machines that are sold on demand."""
        spot = [t for t in self.now.taken if t.option.purchase == "spot"]
        usd, stranded, name = self.now.usd, list[str](), "no spot capacity for a week"
        for taken in spot:
            item, option = self.free.items[taken.option.workload], taken.option
            others = [o.usd for o in item.options if o.purchase == "on_demand"]
            rate = option.offer.on_demand_usd_per_hour
            if rate is not None:
                others.append(rate * option.busy_hours * option.instances)
            if others:
                usd += WEEK * (taken.count / option.instances) * (min(others) - option.usd)
            else:
                stranded.append(item.name)
        if stranded:
            text = f"{', '.join(stranded)} would wait: no on-demand price is known for their machines"
            return [_impossible(name, text)]
        return self.answer(name, usd, "its workloads bought on demand for that week") if spot else []


def scaled_workload(item: PlannedWorkload, factor: float, facts: Facts) -> PlannedWorkload:
    """The workload with `factor` times the traffic or runs, on the same layouts.

    Assumes: what it sends grows with its traffic or runs; what it stores does not.
    """
    job = item.job
    if factor == 1.0 or job.workload is None:
        return item
    sent = {name: getattr(job.volumes, name) * factor for name in ("egress", "inter_zone")}
    options = tuple(monthly_option(item.index, job, o.candidate, o.offer, facts, factor) for o in item.options)
    return replace(item, job=replace(job, volumes=replace(job.volumes, **sent)), options=options)


def _impossible(name: str, text: str) -> WhatIf:
    return WhatIf(name=name, feasible=False, usd_per_month=None, change_usd=None, text=text)


def _with_rise(problem: AllocationProblem, provider: str) -> AllocationProblem:
    """The problem with a provider's prices, for machines and volumes, `PRICE_RISE` higher.

    Shares of the bill are held at the prices before: what is allowed stays allowed, so that no rise makes it less.
    """
    rise = {provider: 1 + PRICE_RISE}
    options = tuple(replace(o, usd_each=o.usd_each * rise.get(o.provider, 1)) for o in problem.options)
    volumes = [{p: usd * rise.get(p, 1) for p, usd in d.volumes_usd.items()} for d in problem.demands]
    demands = tuple(replace(d, volumes_usd=v) for d, v in zip(problem.demands, volumes, strict=True))
    return replace(problem, options=options, demands=demands, risen=rise)


def _without_provider(problem: AllocationProblem, provider: str) -> AllocationProblem:
    left = {name: share for name, share in problem.rules.shares.items() if name != provider}
    total = sum(left.values())
    shares = {name: share / total for name, share in left.items()} if total else {}
    options = tuple(option for option in problem.options if option.provider != provider)
    one = len({option.provider for option in options}) <= 1
    demands = tuple(replace(d, backup=False) for d in problem.demands) if one else problem.demands
    return replace(problem, options=options, rules=replace(problem.rules, providers=shares), demands=demands)
