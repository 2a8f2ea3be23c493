"""Tables of what is not rented: own machines, their use and the clouds they stand against; APIs against machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from flopwise.fleet.hosted import BreakEven, break_even
from flopwise.fleet.onprem import against_clouds
from flopwise.fleet.own import OwnOffer
from flopwise.fleet.places import allowed
from flopwise.fleet.spec import API, OWNED
from flopwise.fleet.tokens import ApiOffer
from flopwise.units import HOURS_PER_MONTH

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer
    from flopwise.fleet.allocate import Allocation
    from flopwise.fleet.file import Platform
    from flopwise.fleet.onprem import Ownership
    from flopwise.fleet.problem import Problem
    from flopwise.fleet.results import Chosen
    from flopwise.fleet.way import Way
    from flopwise.search.workload import Resolved

USUAL_USE = 0.6
"""Utilisation at which machines that nothing uses are compared."""
BY_THE_HOUR = ("on_demand", "spot")
RESERVED = ("reserved_1y", "reserved_3y")


def own_rows(platform: Platform, facts: Facts, made: Problem, found: Allocation) -> list[dict[str, Any]]:
    """Each kind of own machines: what a month of one costs, how many are used and how far, break-even with clouds.

    `against`: the cheapest region of each instance and purchase that the policies allow anything of. `usd_per_month_*`
    are of one machine; `utilisation` is the busy share of the hours that the used ones can be worked.
    """
    rentable = [
        o
        for o in facts.offers
        if not isinstance(o, OwnOffer) and any(allowed(o, p, platform) is None for p in platform.workloads)
    ]
    offers = [o for o in facts.offers if isinstance(o, OwnOffer)]
    return [_own_row(offer, rentable, made, found) for offer in offers]


def _own_row(offer: OwnOffer, rentable: Sequence[Offer], made: Problem, found: Allocation) -> dict[str, Any]:
    machine = (*offer.key[:1], offer.region, offer.instance, OWNED)
    used = found.pools.get(machine, 0)
    mine = [t for t in found.taken if t.choice.machine == machine]
    hours = sum(t.count * t.choice.busy_hours for t in mine)
    busy = min(1.0, hours / (used * offer.month.available_hours)) if used else None
    entry, month = offer.machines, offer.month
    return {
        "machine": entry.name, "provider": entry.provider, "region": entry.region, "gpu": offer.accelerator,
        "gpus": entry.gpus, "there": entry.count, "buy_up_to": entry.buy_up_to, "used": used,
        "kept": entry.kept, "bought": max(0, used - entry.count), "utilisation": busy,
        "usd_per_month_standing": offer.standing, "usd_per_month_capital": offer.capital,
        "usd_per_month_full_power": offer.count * month.busy_power,
        "usd_per_month": sum(t.usd for t in mine), "idle_usd_per_month": found.idle.get(machine, (0, 0.0))[1],
        "price_usd": month.purchase_usd * entry.gpus, "price_date": offer.price_date, "confidence": month.confidence,
        "workloads": [made.items[t.choice.workload].placed.name for t in mine],
        "against": _against(offer, rentable, busy or USUAL_USE),
    }  # fmt: skip


def _against(offer: OwnOffer, rentable: Sequence[Offer], busy: float) -> list[dict[str, Any]]:
    """Clouds' machines with the same accelerator, cheapest first; with what buying and what keeping own ones needs.

    What is paid by the hour is off when it is idle; what is reserved is paid all month, as own machines are: those cost
    less at any use, or at none.
    """
    full, kept = offer.month, replace(offer.month, capital=0.0)
    purchases = BY_THE_HOUR + RESERVED
    keeping = against_clouds(kept, rentable, utilisation=busy, purchases=purchases)
    held = {(r.provider, r.instance, r.region, r.purchase): r for r in keeping}
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in against_clouds(full, rentable, utilisation=busy, purchases=purchases):
        key = (row.provider, row.instance, row.purchase)
        if key in rows:
            continue
        keep = held[row.provider, row.instance, row.region, row.purchase].break_even_utilisation
        rows[key] = asdict(row) | {"keeping_break_even_utilisation": keep}
        if row.purchase in RESERVED:
            rows[key] |= _reserved(full, kept, row.usd_per_gpu_hour * HOURS_PER_MONTH, busy)
    return list(rows.values())


def _reserved(full: Ownership, kept: Ownership, cloud_usd: float, busy: float) -> dict[str, float | None]:
    """Break-even with an accelerator that is paid all month, `cloud_usd`."""
    use, saved = full.busy_power * busy, cloud_usd - full.running - full.busy_power * busy
    months = full.purchase_usd / saved if saved > 0 else None
    return {
        "break_even_utilisation": 0.0 if full.fixed + use <= cloud_usd else None,
        "keeping_break_even_utilisation": 0.0 if kept.fixed + use <= cloud_usd else None,
        "months": months if months is not None and months <= full.life_months else None,
    }


def own_notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Machines that are there and carry nothing, in the bill or not."""
    told = []
    for row in rows:
        idle, paid = row["there"] - row["used"], row["idle_usd_per_month"]
        which = f"idle: {idle} of {row['there']} own {row['machine']}"
        if idle > 0 and paid:
            told.append(f"{which}, paid; giving them up would save ${paid:,.0f} a month (room, staff, support)")
        elif idle > 0:
            usd = idle * row["usd_per_month_standing"]
            told.append(f"{which}, not in the bill; kept on they would add ${usd:,.0f} a month")
    return told


def hosted_rows(chosen: Sequence[Chosen]) -> list[dict[str, Any]]:
    """Each API that may answer a workload: tokens and USD of a month, against the cheapest machines.

    `break_even_tokens`: output tokens a month (their prompts are counted with them) from which some machine that is on
    all month costs no more, `why` says which; of runs, whose machines are paid by the hour, None, and a token's prices.
    """
    rows = []
    for held in chosen:
        apis = [w for w in held.item.ways if isinstance(w.offer, ApiOffer)]
        machines = [w for w in held.item.ways if w.purchase != API]
        rows += [_hosted_row(w, machines, held) for w in apis]
    return rows


def _hosted_row(found: Way, others: Sequence[Way], held: Chosen) -> dict[str, Any]:
    assert isinstance(found.offer, ApiOffer)
    figures = found.candidate.figures
    inputs, outputs = figures["input_tokens_per_month"] or 0.0, figures["output_tokens_per_month"] or 0.0
    machines = others[0] if others else None
    volume, why = (None, "nothing else runs it") if machines is None else _break_even(found, others, held)
    return {
        "workload": held.item.placed.name, "provider": found.offer.provider, "model": found.offer.instance,
        "input_tokens_per_month": inputs, "output_tokens_per_month": outputs, "usd_per_month": found.usd,
        "taken": any(w is found for w, _ in held.parts),
        "machines": None if machines is None else f"{machines.instances} x {machines.offer.provider} "
        f"{machines.offer.instance}, {machines.purchase.replace('_', ' ')}",
        "machines_usd_per_month": None if machines is None else machines.usd,
        "break_even_tokens": volume, "why": why, "price_date": found.offer.price_date,
    }  # fmt: skip


def _break_even(found: Way, others: Sequence[Way], held: Chosen) -> tuple[float | None, str]:
    """(output tokens a month from which some machines cost no more, on which of them, or why on none)."""
    assert isinstance(found.offer, ApiOffer)
    figures, placed, wanted = found.candidate.figures, held.item.placed, held.item.placed.wanted
    outputs = figures["output_tokens_per_month"] or 0.0
    assert wanted is not None
    if placed.ends:
        api, own = 1e6 * found.usd / outputs, 1e6 * others[0].usd / outputs
        return None, f"a million output tokens cost ${api:.3g} there, ${own:.3g} on the machines, at any volume"
    rows = [(_against_api(found.offer, w, wanted), w) for w in others]
    known = [(row, w) for row, w in rows if row is not None]
    pays = [(row.first, w) for row, w in known if row.first is not None]
    if pays:
        volume, first = min(pays, key=lambda entry: entry[0])
        return volume, f"on {first.offer.provider} {first.offer.instance}, {first.purchase.replace('_', ' ')}"
    if not known:
        return None, "what a machine carries is not known"
    return None, min((row for row, _ in known), key=lambda row: row.own_usd_per_mtok).why


def _against_api(offer: ApiOffer, machines: Way, wanted: Resolved) -> BreakEven | None:
    """One kind of machines, on all month, against an API; None where what they carry or cost is not known."""
    rate = machines.candidate.figures.get("requests_per_s_capacity")
    if not rate or not machines.paid_hours:
        return None
    units = max(1, machines.instances // machines.unit)
    month = machines.usd * HOURS_PER_MONTH / machines.paid_hours / units
    return break_even(
        offer.price, month, rate * wanted.output_tokens / units,
        inputs_per_output=wanted.input_tokens / wanted.output_tokens, fill_frac=1.0 / wanted.arriving.peak,
    )  # fmt: skip
