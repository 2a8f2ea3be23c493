"""What the allocation saves, and what more could be saved, each against one plain alternative.

The savings of a workload are steps of one ladder, so that they add up: machines that stand on all month (schedule), the
cheapest larger accelerator on demand (right-sizing), the cheapest way on demand (spot, reserved), the bill. A step goes
up where a policy of the fleet has the plan buy what is dearer than that cheapest way: it is below zero, and counts.
Quantisation is against the cheapest way in 16 bits on demand, and takes the place of right-sizing where it saves more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from flopwise.errors import FlopwiseError
from flopwise.fleet.assessment import Allotment, Saving
from flopwise.fleet.own import OwnOffer
from flopwise.fleet.spec import API, OWNED
from flopwise.fleet.way import way
from flopwise.search.plan import plan
from flopwise.units import HOURS_PER_MONTH

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer
    from flopwise.fleet.file import Rules
    from flopwise.fleet.results import Chosen
    from flopwise.fleet.way import Way

LEAST_USD = 1.0
"""Savings below are not worth a line."""
QUANTISED, SEARCHED = 30, 6
"""Workloads, the dearest, whose formats are weighed, and instance types, the cheapest, that each is weighed on."""
LARGER = 1.05
"""A device has more memory than another from here on: the same size is reported a little differently."""
ALTERNATIVES = {"quantisation", "right-sizing"}
FEWER_BITS = ("fp8", "awq")
SIXTEEN_BITS = ("bf16", "fp16", "fp32")


def savings(
    chosen: Sequence[Chosen], rows: Sequence[Allotment], facts: Facts, rules: Rules | None = None
) -> list[Saving]:
    """Every saving worth a line, largest first; below zero where the `rules` have the plan pay more."""
    found: list[Saving] = []
    by_name = {c.item.placed.name: c for c in chosen}
    for row in rows:
        if row.role == "primary":
            found += _bought(row, by_name[row.workload], rules)
    known: dict[tuple[int, int], list[Saving]] = {}
    dearest = {id(c) for c in sorted(chosen, key=lambda c: -c.way.usd)[:QUANTISED]}
    for held in chosen:
        if any(w.purchase == OWNED for w, _ in held.parts):
            continue  # own machines are paid for: what would be rented instead stands beside them
        found += _sized(held, facts)
        if id(held) in dearest and held.item.plan is not None and "weights" in held.way.candidate.layout:
            key = (id(held.item.plan), id(held.way.candidate))
            if key not in known:
                known[key] = list(_quantised(held, facts))
            found += [msgspec.structs.replace(s, workload=held.item.placed.name) for s in known[key]]
    worth = [s for s in found if abs(s.usd_per_month) >= LEAST_USD]
    return _counted_once(sorted(worth, key=lambda s: (-round(s.usd_per_month), s.what)))


def _counted_once(found: Sequence[Saving]) -> list[Saving]:
    """Fewer bits and a smaller device are two answers to one question: of a workload only the larger is in the sum."""
    seen: set[str] = set()
    rows = []
    for saving in found:
        again = saving.taken and saving.what in ALTERNATIVES and saving.workload in seen
        if saving.taken and saving.what in ALTERNATIVES:
            seen.add(saving.workload)
        rows.append(msgspec.structs.replace(saving, counted=saving.counted and saving.taken and not again))
    return rows


def _bought(row: Allotment, held: Chosen, rules: Rules | None) -> Iterable[Saving]:
    """Schedule of one row of the bill, and how it is bought against the cheapest way on demand."""
    mine = [w for w, _ in held.parts if _machine(w) == (row.provider, row.region, row.instance, row.purchase)]
    if not mine:
        return
    yield from _scheduled(row, mine[0], held)
    plain = cheapest_on_demand(held)
    if row.purchase == OWNED or plain is None:
        return  # own machines are there: what they save is set against clouds in a part of its own
    otherwise = plain.usd * row.count / mine[0].instances
    than = f"the month on demand would cost ${otherwise:,.0f}, at best on {_machines(plain)}"
    if row.purchase == "on_demand":
        what, how = "on demand", f"{_machines(mine[0])}; {than}"
    elif row.purchase == "spot":
        what, how = "spot", f"${row.usd_per_hour_effective:,.2f} an hour of work on spot; {than}"
    elif row.purchase == API:
        what, how = "API", f"paid by the token; {than}"
    else:
        years = {"reserved_1y": "one year", "reserved_3y": "three years"}[row.purchase]
        what, how = "reserved", f"committed for {years} at ${row.usd_per_hour:,.2f} an hour; {than}"
    saved = otherwise - row.usd_per_month
    why = _why(row, rules) if saved < 0 else ""
    yield Saving(
        what=what, workload=row.workload, usd_per_month=saved, how=f"{how}; {why}" if why else how, taken=True,
        purchase=row.purchase, why=why,
    )  # fmt: skip


def _why(row: Allotment, rules: Rules | None) -> str:
    """Why a row is bought that is dearer than the cheapest way on demand."""
    if row.pool:
        return "its part of machines that others use, too"
    if rules is not None and row.provider in rules.providers:
        return f"bought for the {row.provider} share"
    return "bought for policies of the fleet (shares, quotas, limit of spot, carbon)"


def _scheduled(row: Allotment, own: Way, held: Chosen) -> Iterable[Saving]:
    """Hours that machines are off; those of runs, which end anyhow, are shown and not counted."""
    rate, placed, busy = own.offer.on_demand_usd_per_hour, held.item.placed, own.busy_hours
    otherwise = min(HOURS_PER_MONTH, placed.hours_per_month) if placed.ends else HOURS_PER_MONTH
    if rate is None or row.purchase.startswith("reserved") or busy >= otherwise - 1:
        return
    what = f"on for the {busy:,.1f} h of its runs" if placed.ends else f"on for {busy:,.0f} h a month"
    whole = f"the {otherwise:,.0f} h of its environment" if placed.ends else f"all {otherwise:,.0f} h"
    yield Saving(
        what="schedule", workload=row.workload, usd_per_month=rate * row.count * (otherwise - busy),
        how=f"{what} instead of {whole}, on demand", taken=True, counted=not placed.ends,
    )  # fmt: skip


def _machine(found: Way) -> tuple[str, str, str, str]:
    return found.offer.provider, found.offer.region, found.offer.instance, found.purchase


def _machines(found: Way) -> str:
    return f"{found.instances} x {found.offer.provider} {found.offer.instance} ({found.candidate.gpu})"


def cheapest_on_demand(held: Chosen) -> Way | None:
    """The cheapest way that is bought on demand; None where the fleet allows none."""
    return min((w for w in held.item.ways if w.purchase == "on_demand"), key=lambda w: w.usd, default=None)


def _on_demand_usd(held: Chosen, plain: Way) -> float:
    """What the month would cost in the cheapest way on demand: the step from which each part's purchase goes on."""
    return sum(plain.usd * n / w.instances for w, n in held.parts)


def _sized(held: Chosen, facts: Facts) -> Iterable[Saving]:
    """Against the cheapest way on an accelerator with more memory than the smallest that does: the next best choice."""
    found, plain = held.way, cheapest_on_demand(held)
    if held.figures is None or plain is None:
        return
    base = min((found, plain), key=lambda w: w.candidate.capacity_bytes)
    larger = [
        w for w in held.item.ways
        if w.purchase == "on_demand" and w.candidate.capacity_bytes > LARGER * base.candidate.capacity_bytes
        and facts.accelerators[w.candidate.gpu].kind != "cpu"
    ]  # fmt: skip
    if not larger:
        return
    best = min(larger, key=lambda w: w.usd)
    yield Saving(
        what="right-sizing", workload=held.item.placed.name, taken=True,
        usd_per_month=best.usd - _on_demand_usd(held, plain),
        how=f"{base.candidate.gpu} does it; the next best with more memory is {_machines(best)} at ${best.usd:,.0f} a "
        "month on demand",
    )  # fmt: skip


def _quantised(held: Chosen, facts: Facts) -> Iterable[Saving]:
    """The chosen format against 16 bits on whatever suits those best, and fewer bits on the same instance type."""
    current, found = str(held.way.candidate.layout["weights"]), held.way
    plain = cheapest_on_demand(held)
    if current not in SIXTEEN_BITS:
        if plain is None:
            return
        known = [w for w in held.item.ways if w.purchase == "on_demand" and _weights(w) in SIXTEEN_BITS]
        best = min([*known, *_ways_in("bf16", held, _few(held), "on_demand", facts)], key=lambda w: w.usd, default=None)
        if best is not None:
            how = (
                f"{current} weights; in 16 bits the month on demand would cost ${best.usd:,.0f}, at best on "
                f"{_machines(best)}"
            )
            saved = best.usd - _on_demand_usd(held, plain)
            yield Saving(what="quantisation", workload="", usd_per_month=saved, how=how, taken=True)
        return
    for name in FEWER_BITS:
        fewer = min((w.usd for w in _ways_in(name, held, [found.offer], found.purchase, facts)), default=None)
        if fewer is not None and fewer < found.usd:
            instead = f"{facts.weight_format(name).name} weights instead of {current}"
            how = f"{instead} on {found.offer.instance}; check quality"
            yield Saving(what="quantisation", workload="", usd_per_month=found.usd - fewer, how=how, taken=False)
            return


def _weights(found: Way) -> str:
    return str(found.candidate.layout.get("weights"))


def _few(held: Chosen) -> list[Offer]:
    """The chosen machine, and the few that are cheapest on demand: where another format is worth a search."""
    seen = {held.way.offer.instance: held.way.offer}
    for found in held.item.ways:
        if found.purchase == "on_demand" and len(seen) <= SEARCHED:
            seen.setdefault(found.offer.instance, found.offer)
    return list(seen.values())


def _ways_in(weights: str, held: Chosen, offers: Sequence[Offer], purchase: str, facts: Facts) -> list[Way]:
    """The workload in a format on some machines; none where they do not hold it."""
    item = held.item
    assert item.wanted is not None
    own = [offer.most * offer.count for offer in offers if isinstance(offer, OwnOffer) and not item.splittable]
    asked = item.wanted.limited(weight_formats=(weights,), purchase=(purchase,))
    asked = replace(asked, max_gpus=min([asked.max_gpus, *own]))
    try:
        answer = plan(asked, facts.replaced(offers=tuple(offers)), alone=False)
    except FlopwiseError:
        return []
    sold = {o.key: o for o in offers}
    return [way(item.index, item.placed, c, sold[c.provider, c.instance, c.region], facts) for c in answer.plans]
