"""The bill if prices rise, a provider is lost, spot capacity is gone, or traffic grows: allocated anew each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from flopwise.errors import InfeasibleError
from flopwise.fleet.allocate import rented
from flopwise.fleet.assessment import WhatIf
from flopwise.fleet.candidates import scaled
from flopwise.fleet.hours import WEEKS_PER_MONTH
from flopwise.fleet.milp import side_by_side
from flopwise.fleet.problem import Problem, problem
from flopwise.fleet.spec import OWNED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flopwise.facts.catalog import Facts
    from flopwise.fleet.allocate import Allocation
    from flopwise.fleet.candidates import Carried
    from flopwise.fleet.file import Platform, Rules

PRICE_RISE = 0.2
WEEK = 1 / WEEKS_PER_MONTH
"""Of a month."""
MONTHS = 12
TOLD = 1e-3
"""Of the bill: what other machines have to save for the machines to be chosen anew."""


def whatifs(
    platform: Platform, made: Problem, found: Allocation, facts: Facts, *, seconds: float = 3.0
) -> list[WhatIf]:
    """The usual questions. Budgets are left out of what is allocated anew: the bill is told, and what it exceeds."""
    rules = made.rules
    free = replace(made, rules=replace(rules, budget_per_month=None))
    paid = sorted(found.by_provider, key=lambda p: -found.by_provider[p])
    clouds = [p for p in paid if any(t.choice.provider == p and rented(t.choice.purchase) for t in found.taken)]
    asks: list[Callable[[], list[WhatIf]]] = [partial(_dearer, free, p, found, rules, seconds) for p in clouds[:1]]
    asks.append(lambda: [_all_dearer(found, rules)])
    asks += [
        partial(
            _asked, f"{p} is lost", partial(_lost, free, p), found, rules, seconds, "its share goes to the others"
        ) for p in sorted(paid)
    ]  # fmt: skip
    asks.append(lambda: _without_spot(free, found, rules))
    asks += _more(platform, made.items, found, facts, seconds)
    return [row for rows in side_by_side(asks) for row in rows]


def _all_dearer(found: Allocation, rules: Rules) -> WhatIf:
    """Everything but own machines, and what goes with it, at once: the same machines stay the cheapest."""
    kept = sum(t.usd for t in found.taken if t.choice.purchase == OWNED)
    kept += sum(usd for _, usd in found.idle.values())
    usd = found.usd + PRICE_RISE * (found.usd - kept)
    how = "machines, storage and traffic, wherever they are bought" + (", but for own machines" if kept else "")
    return WhatIf(
        name=f"all prices rise {100 * PRICE_RISE:.0f} %", feasible=True, usd_per_month=usd,
        change_usd=usd - found.usd, text=_text(usd, found.usd, rules, how),
    )  # fmt: skip


def _dearer(free: Problem, provider: str, found: Allocation, rules: Rules, seconds: float) -> list[WhatIf]:
    """One provider's prices rise: its machines are kept, or chosen anew where that is cheaper.

    The bill is no less than before: where the solver finds less, it had not found the best of today's prices.
    """
    usd = found.usd + PRICE_RISE * found.by_provider[provider]
    how = "machines, storage and traffic, with "
    try:
        anew = free.raised({provider}, 1 + PRICE_RISE).solved(seconds=seconds, start=found).usd
    except InfeasibleError:
        anew = usd
    how += "machines chosen anew" if anew < usd * (1 - TOLD) else "the same machines, which stay the cheapest"
    if rules.providers or rules.max_spot_share < 1:
        how += "; shares of the bill held at the prices before the rise"
    usd = max(found.usd, min(usd, anew))
    name = f"prices of {provider} rise {100 * PRICE_RISE:.0f} %"
    text = _text(usd, found.usd, rules, how)
    return [WhatIf(name=name, feasible=True, usd_per_month=usd, change_usd=usd - found.usd, text=text)]


def _asked(
    name: str, ask: Callable[[], Problem], found: Allocation, rules: Rules, seconds: float, how: str
) -> list[WhatIf]:
    try:
        other = ask().solved(seconds=seconds, start=found)
    except InfeasibleError as error:
        told = f"no allocation: {error}"
        return [WhatIf(name=name, feasible=False, usd_per_month=None, change_usd=None, text=told)]
    text = _text(other.usd, found.usd, rules, how)
    return [WhatIf(name=name, feasible=True, usd_per_month=other.usd, change_usd=other.usd - found.usd, text=text)]


def _text(usd: float, before: float, rules: Rules, how: str) -> str:
    change = usd - before
    told = (
        f"${usd:,.0f} a month, {'+' if change >= 0 else '-'}${abs(change):,.0f} ({100 * change / before:+.0f} %), {how}"
    )
    budget = rules.budget_per_month
    return told + (f"; ${usd - budget:,.0f} over the budget" if budget is not None and usd > budget else "")


def _lost(made: Problem, provider: str) -> Problem:
    left = {name: share for name, share in made.rules.providers.items() if name != provider}
    total = sum(left.values())
    shares = {name: share / total for name, share in left.items()} if total else {}
    smaller = made.without(lambda w: w.offer.provider == provider)
    others = {w.offer.provider for w in smaller.ways}
    demands = made.demands if len(others) > 1 else tuple(replace(d, backup=False) for d in made.demands)
    return replace(smaller, rules=replace(made.rules, providers=shares), demands=demands)


def _without_spot(made: Problem, found: Allocation, rules: Rules) -> list[WhatIf]:
    """A week of the month its workloads run on the cheapest machines that are sold on demand."""
    spot = [t for t in found.taken if t.choice.purchase == "spot"]
    if not spot:
        return []
    usd, stranded = found.usd, list[str]()
    for taken in spot:
        item, held = made.items[taken.choice.workload], made.ways[taken.choice.candidate]
        others = [w.usd for w in item.ways if w.purchase == "on_demand"]
        rate = held.offer.on_demand_usd_per_hour
        if rate is not None:
            others.append(rate * held.busy_hours * held.instances)
        if not others:
            stranded.append(item.placed.name)
            continue
        share = taken.count / held.instances
        usd += WEEK * share * (min(others) - held.usd)
    name, how = "no spot capacity for a week", "its workloads bought on demand for that week"
    if stranded:
        told = f"{', '.join(stranded)} would wait: no on-demand price is known for what runs them"
        return [WhatIf(name=name, feasible=False, usd_per_month=None, change_usd=None, text=told)]
    text = _text(usd, found.usd, rules, how)
    return [WhatIf(name=name, feasible=True, usd_per_month=usd, change_usd=usd - found.usd, text=text)]


def grown(item: Carried) -> float:
    """How many times its traffic or runs a workload has after MONTHS, at its growth compounded."""
    return float((1 + item.placed.growth_per_month) ** MONTHS)


def _more(
    platform: Platform, items: Sequence[Carried], found: Allocation, facts: Facts, seconds: float
) -> list[Callable[[], list[WhatIf]]]:
    """Twice the traffic, and the fleet's own growth."""
    free = replace(platform, rules=replace(platform.rules, budget_per_month=None))
    how = (
        "at most: on the same layouts, more of them once those there are are full; what is sent grows alike, what is "
        "stored stays"
    )
    asks = [("traffic and runs x 2", [2.0] * len(items), how)]
    if any(i.placed.growth_per_month for i in items):
        own = "; each workload a year after it begins, machines chosen anew and traffic priced anew, where the "
        own += "forecast keeps today's kinds of machines and price of a byte"
        asks.append((f"growth after {MONTHS} months", [grown(i) for i in items], how + own))

    def more(each: Sequence[float]) -> Problem:
        return problem(free, [scaled(i, f, facts) for i, f in zip(items, each, strict=True)], facts)

    return [
        partial(_asked, name, partial(more, each), found, platform.rules, seconds, told) for name, each, told in asks
    ]
