"""What the allocation saves, and what more could be saved, against the same machines on demand around the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from flopwise.errors import FlopwiseError
from flopwise.facts.formats import weight_format
from flopwise.fleet.assessment import Allotment, Saving
from flopwise.fleet.own import OwnOffer
from flopwise.fleet.way import way
from flopwise.search.plan import plan
from flopwise.units import HOURS_PER_MONTH

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flopwise.facts.catalog import Facts
    from flopwise.fleet.results import Chosen

LEAST_USD = 1.0
"""Savings below are not worth a line."""
QUANTISED = 30
"""Workloads, the dearest, whose formats are weighed."""
FEWER_BITS = ("fp8", "awq")
SIXTEEN_BITS = ("bf16", "fp16", "fp32")


def savings(chosen: Sequence[Chosen], rows: Sequence[Allotment], facts: Facts) -> list[Saving]:
    """Every saving worth a line, largest first."""
    found: list[Saving] = []
    by_name = {c.item.placed.name: c for c in chosen}
    for row in rows:
        if row.role == "primary":
            found += _bought(row, by_name[row.workload])
    known: dict[tuple[int, int], list[Saving]] = {}
    dearest = {id(c) for c in sorted(chosen, key=lambda c: -c.way.usd)[:QUANTISED]}
    for held in chosen:
        found += _sized(held, facts)
        if id(held) in dearest and held.item.plan is not None and "weights" in held.way.candidate.layout:
            key = (id(held.item.plan), id(held.way.candidate))
            if key not in known:
                known[key] = list(_quantised(held, facts))
            found += [msgspec.structs.replace(s, workload=held.item.placed.name) for s in known[key]]
    return sorted((s for s in found if s.usd_per_month >= LEAST_USD), key=lambda s: -s.usd_per_month)


def _bought(row: Allotment, held: Chosen) -> Iterable[Saving]:
    """Schedule, spot and reservation of one row of the bill: together they are what it is less than the baseline."""
    ways = [w for w, _ in held.parts if w.offer.instance == row.instance and w.purchase == row.purchase]
    rate = ways[0].offer.on_demand_usd_per_hour if ways else None
    if rate is None:
        return
    busy, name = ways[0].busy_hours, row.workload
    ends = held.item.placed.ends
    otherwise = min(HOURS_PER_MONTH, held.item.placed.hours_per_month) if ends else HOURS_PER_MONTH
    if not row.purchase.startswith("reserved") and busy < otherwise - 1:
        what = f"on for the {busy:,.1f} h of its runs" if ends else f"on for {busy:,.0f} h a month"
        how = f"{what} instead of {'the ' if ends else 'all '}{otherwise:,.0f} h" + (
            " of its environment" if ends else ""
        )
        saved = rate * row.count * (otherwise - busy)
        yield Saving(what="schedule", workload=name, usd_per_month=saved, how=how, taken=True)
    if row.purchase == "spot":
        how = f"${row.usd_per_hour_effective:,.2f} an hour of work on spot instead of ${rate:,.2f} on demand"
        saved = rate * row.count * busy - row.usd_per_month
        yield Saving(what="spot", workload=name, usd_per_month=saved, how=how, taken=True)
    if row.purchase.startswith("reserved"):
        years = {"reserved_1y": "one year", "reserved_3y": "three years"}[row.purchase]
        how = f"committed for {years} at ${row.usd_per_hour:,.2f} an hour instead of ${rate:,.2f}"
        saved = rate * row.count * busy - row.usd_per_month
        yield Saving(what="reserved", workload=name, usd_per_month=saved, how=how, taken=True)


def _sized(held: Chosen, facts: Facts) -> Iterable[Saving]:
    """Against the largest accelerator that would do it as well, bought the same way."""
    found = held.way
    if held.figures is None:
        return
    same = [w for w in held.item.ways if w.purchase == found.purchase and w.candidate.gpu != found.candidate.gpu]
    others = [w for w in same if facts.accelerators[w.candidate.gpu].kind != "cpu"]
    if not others:
        return
    largest = max(w.candidate.capacity_bytes for w in others)
    if largest <= found.candidate.capacity_bytes:
        return
    biggest = min((w for w in others if w.candidate.capacity_bytes == largest), key=lambda w: w.usd)
    share = sum(w.usd_each * n for w, n in held.parts)
    how = (
        f"{found.candidate.gpu} instead of the larger {biggest.candidate.gpu} "
        f"({biggest.offer.provider} {biggest.offer.instance} at ${biggest.usd:,.0f} a month)"
    )
    yield Saving(
        what="right-sizing", workload=held.item.placed.name, usd_per_month=biggest.usd - share, how=how, taken=True
    )


def _quantised(held: Chosen, facts: Facts) -> Iterable[Saving]:
    """The chosen format against 16 bits, and fewer bits against the chosen one, on the same instance type."""
    current = str(held.way.candidate.layout["weights"])
    if current not in SIXTEEN_BITS:
        plain = _usd_in("bf16", held, facts)
        how = f"{current} weights instead of bf16 on {held.way.offer.instance}"
        if plain is None:
            return
        yield Saving(what="quantisation", workload="", usd_per_month=plain - held.way.usd, how=how, taken=True)
        return
    for name in FEWER_BITS:
        fewer = _usd_in(name, held, facts)
        if fewer is not None and fewer < held.way.usd:
            how = f"{weight_format(name).name} weights instead of {current} on {held.way.offer.instance}; check quality"
            yield Saving(what="quantisation", workload="", usd_per_month=held.way.usd - fewer, how=how, taken=False)
            return


def _usd_in(weights: str, held: Chosen, facts: Facts) -> float | None:
    """USD a month of the workload in a format on the chosen kind of instance; None where that does not hold it."""
    item, found = held.item, held.way
    assert item.wanted is not None
    limits = msgspec.structs.replace(
        item.wanted.source.constraints, weight_formats=[weights], instances=[found.offer.instance],
        providers=[found.offer.provider], purchase=[found.purchase],
    )  # fmt: skip
    most = item.wanted.max_gpus
    if isinstance(found.offer, OwnOffer) and not item.splittable:
        most = min(most, found.offer.most * found.offer.count)
    source = msgspec.structs.replace(item.wanted.source, constraints=limits)
    asked = msgspec.structs.replace(item.wanted, source=source, max_gpus=most)
    try:
        answer = plan(asked, facts, alone=False)
    except FlopwiseError:
        return None
    best = next((c for c in answer.plans if c.region == found.offer.region), None)
    return None if best is None else way(item.index, item.placed, best, found.offer, folder=facts.folder).usd
