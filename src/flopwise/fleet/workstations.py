"""Machines that people work on: every offer that will do, one instance a machine, within the workload's constraints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.fleet.spec import OWNED
from flopwise.fleet.way import Way, way
from flopwise.search.answer import Candidate
from flopwise.search.nodes import forbidden
from flopwise.units import format_bytes, format_rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer
    from flopwise.fleet.file import Placed

NEARLY = 0.93
"""Of the memory that is asked for: devices sold as 16 GB tell of somewhat less."""


def workstations(index: int, placed: Placed, facts: Facts, buys: Sequence[str]) -> tuple[Way, ...]:
    """Every offer with enough accelerators of enough memory that the constraints allow, by each way to buy it."""
    gpus = _canonical(placed.job.constraints.gpus, facts)
    found = [
        way(index, placed, _machine(placed, offer, buy, facts), offer, facts)
        for offer in _fitting(placed, facts)
        for buy in buys
        if _ruling(placed, offer, buy, gpus) is None and offer.price_usd_per_hour(buy) is not None
    ]
    return tuple(sorted(found, key=lambda w: w.usd))


def why_none(placed: Placed, facts: Facts, buys: Sequence[str]) -> list[str]:
    """Why `workstations` finds none: what would do but for the constraints, else what nothing on offer has."""
    gpus, fell = _canonical(placed.job.constraints.gpus, facts), dict[str, int]()
    for offer in _fitting(placed, facts):
        priced = next((buy for buy in buys if offer.price_usd_per_hour(buy) is not None), None)
        if priced is not None and (name := _ruling(placed, offer, priced, gpus)) is not None:
            fell[name] = fell.get(name, 0) + 1
    if fell:
        given = {name: _said(name, placed.job.planned["constraints"][name]) for name in fell}
        return [f"{count} offers that would do: not within {given[name]}" for name, count in fell.items()]
    most = max(facts.offered_accelerator(o).hbm_bytes for o in facts.offers)
    asked = f"{placed.gpus_each} accelerator{'s' if placed.gpus_each > 1 else ''}"
    machines = placed.job.machines
    if machines is not None and machines.memory is not None:
        asked += f" of {format_rate(machines.memory, 'B')}"
    if machines is not None and machines.gpus:
        asked += f" ({' or '.join(machines.gpus)})"
    return [f"no machine on offer has {asked} and a known price; the largest accelerator has {format_bytes(most)}"]


def _said(name: str, value: object) -> str:
    given = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"constraints.{name} ({given[:120]})"


def _canonical(names: Iterable[str], facts: Facts) -> set[str]:
    return {facts.accelerator(name).name for name in names}


def _fitting(placed: Placed, facts: Facts) -> list[Offer]:
    """Offers whose machines are what is asked for, whatever the constraints say."""
    assert placed.job.machines is not None
    named, least = _canonical(placed.job.machines.gpus, facts), NEARLY * (placed.least_memory_bytes or 0.0)
    kept = []
    for offer in facts.offers:
        device = facts.offered_accelerator(offer)
        fits = device.kind != "cpu" and offer.count >= placed.gpus_each and device.hbm_bytes >= least
        if fits and (not named or offer.accelerator in named):
            kept.append(offer)
    return kept


def _ruling(placed: Placed, offer: Offer, purchase: str, gpus: set[str]) -> str | None:
    """The constraint that forbids an offer, bought so, for all of the machines together; None: none does."""
    limits, machines = placed.job.constraints, placed.workstations
    most = float("inf") if placed.most_gpus is None else placed.most_gpus / machines
    name = forbidden(offer, limits, gpus, most)
    if name is not None or purchase == OWNED:
        return name
    if limits.purchase and purchase not in limits.purchase:
        return "purchase"
    usd, most_usd = (offer.price_usd_per_hour(purchase) or 0.0) * machines, placed.most_usd_per_hour
    return "max_usd_per_hour" if most_usd is not None and usd > most_usd else None


def _machine(placed: Placed, offer: Offer, purchase: str, facts: Facts) -> Candidate:
    rate, count = offer.price_usd_per_hour(purchase) or 0.0, placed.workstations
    return Candidate(
        rank=0, provider=offer.provider, region=offer.region, instance=offer.instance, num_instances=count,
        gpu=offer.accelerator, num_gpus=count * offer.count, purchase=purchase, layout={}, seconds=0.0,
        usd_per_hour=rate * count, cost_usd=rate * count * placed.hours_per_month, energy_joules=None, meets={},
        figures={}, memory_bytes=placed.least_memory_bytes or 0.0,
        capacity_bytes=float(facts.offered_accelerator(offer).hbm_bytes),
        price_date=offer.price_date, price_source=offer.source,
    )  # fmt: skip
