"""The bill under other prices, providers, traffic and policies: allocated anew each time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from flopwise.errors import InfeasibleError
from flopwise.fleet.allocate import AllocationProblem, allocation_problem
from flopwise.fleet.allocation_program import policies
from flopwise.fleet.assessment import Binding, WhatIf
from flopwise.fleet.model import (
    Budget,
    InstanceQuota,
    OwnMachineCount,
    ProviderShare,
    SecondProvider,
    SpotLimit,
    rented,
)
from flopwise.fleet.planned import scaled
from flopwise.fleet.schedules import WEEKS_PER_MONTH
from flopwise.fleet.spec import OWNED

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.fleet.model import Allocation, PlannedWorkload, Platform, Policy

PRICE_RISE = 0.2
WEEK = 1 / WEEKS_PER_MONTH
"""Of a month."""
MONTHS = 12
TELLING = 1e-3
"""Of the bill: what other machines have to save for the machines to be chosen anew; a policy's cost below is the
solver's gap."""
MOST_AT_ONCE = 4
Answer = TypeVar("Answer")


def _side_by_side(calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """The answers of calls that do not depend on one another, in their order: the solver leaves Python alone."""
    with ThreadPoolExecutor(max_workers=min(MOST_AT_ONCE, os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda call: call(), calls))


# What each policy costs


def bindings(made: AllocationProblem, allocation: Allocation, *, seconds: float = 2.0) -> list[Binding]:
    """Every policy that costs something, dearest first: the bill less the bill without it, solved anew for each.

    Policies that stand in for one another cost nothing one by one, so all shares, and all policies, are also left out
    together.
    """
    held = policies(made.rules, made.demands, made.options)
    shares = [policy for policy in held if isinstance(policy, ProviderShare)]
    groups: list[tuple[str, str, frozenset[Policy]]] = [(_name(p), f"{p} costs", frozenset({p})) for p in held]
    if len(shares) > 1:
        names = ", ".join(made.rules.providers)
        groups.append(("all shares", f"the shares of {names} together cost", frozenset(shares)))
    if len(held) > max(1, len(shares)):
        groups.append(("all policies", "all policies together cost", frozenset(held)))
    costs = _side_by_side([partial(_policy_usd, made, allocation, left_out, seconds) for *_, left_out in groups])
    rows = [
        Binding(constraint=name, usd_per_month=cost, text=f"{words} ${cost:,.0f} a month")
        for (name, words, _), cost in zip(groups, costs, strict=True)
        if cost > max(TELLING * allocation.objective, 0.5)
    ]
    return sorted(rows, key=lambda row: -row.usd_per_month)


def _name(policy: Policy) -> str:
    """A policy as an assessment names it."""
    match policy:
        case ProviderShare(provider=provider):
            return f"share of {provider}"
        case InstanceQuota(number=number):
            return f"quota {number}"
        case OwnMachineCount(instance=instance):
            return f"own {instance}"
    return {SpotLimit: "spot share", SecondProvider: "backup", Budget: "budget"}[type(policy)]


def _policy_usd(made: AllocationProblem, allocation: Allocation, left_out: frozenset[Policy], seconds: float) -> float:
    """By how much the bill is higher with the policies than without; 0 where that is not found in time."""
    try:
        free = made.solved(left_out, seconds=seconds, start=allocation)
    except InfeasibleError:
        return 0.0
    return allocation.objective - free.objective


# Other prices, providers and traffic


def what_ifs(
    platform: Platform,
    made: AllocationProblem,
    allocation: Allocation,
    facts: Facts,
    *,
    seconds: float = 3.0,
) -> list[WhatIf]:
    """The usual questions. Budgets are left out of what is allocated anew: the answer is the bill, and what exceeds."""
    rules, bills = made.rules, allocation.by_provider
    free = replace(made, rules=replace(rules, budget_per_month=None))
    ask = _Questions(free, allocation, rules.budget_per_month, seconds)
    clouds = {t.option.provider for t in allocation.taken if rented(t.option.purchase)}
    dearest = sorted((p for p in bills if p in clouds), key=lambda p: -bills[p])[:1]
    shares_held = bool(rules.providers) or rules.max_spot_share < 1
    calls: list[Callable[[], list[WhatIf]]] = [partial(ask.dearer, p, shares_held=shares_held) for p in dearest]
    calls.append(ask.all_dearer)
    calls += [
        partial(ask.reallocated, f"{p} is lost", partial(_without_provider, free, p), "its share goes to the others")
        for p in sorted(bills)
    ]
    calls.append(ask.without_spot)
    unbound = replace(platform, rules=replace(platform.rules, budget_per_month=None))
    for name, factors, how in _growth(made.items):
        grown = partial(_scaled_problem, unbound, made.items, factors, facts)
        calls.append(partial(ask.reallocated, name, grown, how))
    return [row for rows in _side_by_side(calls) for row in rows]


class _Questions:
    """Answers about one allocation; `free` is its problem without the budget."""

    def __init__(self, free: AllocationProblem, now: Allocation, budget: float | None, seconds: float) -> None:
        self.free, self.now, self.budget, self.seconds = free, now, budget, seconds

    def answer(self, name: str, usd: float, how: str) -> list[WhatIf]:
        """One answer in words."""
        change = usd - self.now.usd
        text = f"${usd:,.0f} a month, {'+' if change >= 0 else '-'}${abs(change):,.0f} "
        text += f"({100 * change / self.now.usd:+.0f} %), {how}"
        if self.budget is not None and usd > self.budget:
            text += f"; ${usd - self.budget:,.0f} over the budget"
        return [WhatIf(name=name, feasible=True, usd_per_month=usd, change_usd=change, text=text)]

    def all_dearer(self) -> list[WhatIf]:
        """Everything but own machines, and what goes with it, at once: the same machines stay the cheapest."""
        own = sum(t.usd for t in self.now.taken if t.option.purchase == OWNED)
        own += sum(usd for _, usd in self.now.idle.values())
        usd = self.now.usd + PRICE_RISE * (self.now.usd - own)
        how = "machines, storage and traffic, wherever they are bought" + (", but for own machines" if own else "")
        return self.answer(f"all prices rise {100 * PRICE_RISE:.0f} %", usd, how)

    def dearer(self, provider: str, *, shares_held: bool) -> list[WhatIf]:
        """One provider's prices rise: its machines are kept, or chosen anew where that is cheaper.

        The bill is no less than before: where the solver finds less, it had not found the best of today's prices.
        """
        usd = self.now.usd + PRICE_RISE * self.now.by_provider[provider]
        try:
            raised = self.free.raised({provider}, 1 + PRICE_RISE)
            anew = raised.solved(seconds=self.seconds, start=self.now).usd
        except InfeasibleError:
            anew = usd
        same = "the same machines, which stay the cheapest"
        how = f"machines, storage and traffic, with {'machines chosen anew' if anew < usd * (1 - TELLING) else same}"
        how += "; shares of the bill held at the prices before the rise" if shares_held else ""
        name = f"prices of {provider} rise {100 * PRICE_RISE:.0f} %"
        return self.answer(name, max(self.now.usd, min(usd, anew)), how)

    def reallocated(self, name: str, problem: Callable[[], AllocationProblem], how: str) -> list[WhatIf]:
        """The bill of another problem, allocated anew."""
        try:
            other = problem().solved(seconds=self.seconds, start=self.now)
        except InfeasibleError as error:
            text = f"no allocation: {error}"
            return [WhatIf(name=name, feasible=False, usd_per_month=None, change_usd=None, text=text)]
        return self.answer(name, other.usd, how)

    def without_spot(self) -> list[WhatIf]:
        """A week of the month its workloads run on the cheapest machines that are sold on demand."""
        spot = [t for t in self.now.taken if t.option.purchase == "spot"]
        if not spot:
            return []
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
            text = f"{', '.join(stranded)} would wait: no on-demand price is known for what runs them"
            return [WhatIf(name=name, feasible=False, usd_per_month=None, change_usd=None, text=text)]
        return self.answer(name, usd, "its workloads bought on demand for that week")


def _without_provider(made: AllocationProblem, provider: str) -> AllocationProblem:
    left = {name: share for name, share in made.rules.providers.items() if name != provider}
    total = sum(left.values())
    shares = {name: share / total for name, share in left.items()} if total else {}
    options = tuple(option for option in made.options if option.provider != provider)
    one = len({option.provider for option in options}) <= 1
    demands = tuple(replace(d, backup=False) for d in made.demands) if one else made.demands
    return replace(made, options=options, rules=replace(made.rules, providers=shares), demands=demands)


def _growth(items: Sequence[PlannedWorkload]) -> list[tuple[str, list[float], str]]:
    """(name, factor of each workload, how): twice the traffic, and the fleet's own growth, compounded."""
    how = (
        "at most: on the same layouts, more of them once those there are are full; what is sent grows alike, what is "
        "stored stays"
    )
    questions = [("traffic and runs x 2", [2.0] * len(items), how)]
    if any(item.job.growth_per_month for item in items):
        own = "; each workload a year after it begins, machines chosen anew and traffic priced anew, where the "
        own += "forecast keeps today's kinds of machines and price of a byte"
        factors = [float((1 + item.job.growth_per_month) ** MONTHS) for item in items]
        questions.append((f"growth after {MONTHS} months", factors, how + own))
    return questions


def _scaled_problem(
    platform: Platform, items: Sequence[PlannedWorkload], factors: Sequence[float], facts: Facts
) -> AllocationProblem:
    more = [scaled(item, factor, facts) for item, factor in zip(items, factors, strict=True)]
    return allocation_problem(platform, more, facts)
