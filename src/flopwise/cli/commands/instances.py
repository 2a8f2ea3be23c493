"""`flopwise instances`: what clouds offer."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from flopwise import units
from flopwise.cli import options
from flopwise.cli.on_page import on_page
from flopwise.cli.options import flags
from flopwise.cli.render import Screen, heading, known_text, pairs, table, verdict
from flopwise.errors import UnknownNameError
from flopwise.facts.defaults import PURCHASES
from flopwise.facts.offers import Offer
from flopwise.facts.spec import OfferFilter, SourceSpec

_HEADERS = (
    "provider", "instance", "region", "accelerators", ">vCPU", ">RAM", ">network", ">on demand/h", ">spot/h",
    ">1 year/h", ">3 years/h", "priced",
)  # fmt: skip
_SPARE = (">3 years/h", ">1 year/h", ">vCPU", ">RAM", "priced", ">network")
"""Columns that a narrow terminal does without, the first first."""


@options.command("instances", "flopwise instances --gpu h100 --provider aws", "flopwise instances p5.48xlarge --json")
@options.argument("name", required=False)
@flags(OfferFilter)
@flags(SourceSpec, "facts")
@on_page("catalog")
def command(*, name: str | None, **filters: Any) -> None:
    """Cloud offers: hardware and prices.

    NAME is an instance type or a part of its name, or an accelerator (h100, 8xh100). Prices are per instance and hour,
    on the date shown; `-` means unknown. --purchase leaves out offers without such a price.
    """
    from flopwise.api import facts as known

    wanted = options.values(filters)
    try:
        offers = known.instances(name, **wanted)
    except UnknownNameError as unknown:
        if unknown.kind != "instance" or not (offers := known.instances(matching=name, **wanted)):
            raise
        name = None
    options.answer(offers, lambda rows, paper: _listing(rows, name, paper), further=_further(offers))


def _further(offers: tuple[Offer, ...]) -> dict[str, str]:
    """The commands for one offer of a list, or for the accelerator of a single type."""
    if not offers:
        return {}
    if len({offer.instance for offer in offers}) > 1:
        return {"An offer in full": shlex.join(["flopwise", "instances", offers[0].instance])}
    return {"Its accelerator": shlex.join(["flopwise", "gpus", offers[0].accelerator])}


def _listing(offers: tuple[Offer, ...], name: str | None, paper: Screen) -> Iterator[str]:
    if not offers:
        yield "No offer fits all of these."
        return
    yield verdict(_cheapest(offers), paper)
    headers, rows = list(_HEADERS), [_row(offer) for offer in offers]
    if any(offer.retires_on for offer in offers):
        headers, rows = (
            [*headers, "retires on"],
            [(*row, offer.retires_on) for row, offer in zip(rows, offers, strict=True)],
        )
    yield table(headers, rows, paper, spare=_SPARE)
    if name is not None and all(offer.instance.lower() == name.lower() for offer in offers):
        for offer in offers:
            yield heading(f"{offer.provider} {offer.instance} in {offer.region}", paper)
            disk = known_text(offer.local_disk_bytes, units.format_bytes)
            details = (
                ("link between accelerators", offer.intra_link),
                ("local disk", disk),
                ("source", f"{offer.source} ({offer.price_date}, {offer.confidence} confidence)"),
                ("spot price from", _origin(offer, "spot")),
                ("reserved prices from", _origin(offer, "reserved_1y")),
                ("price of three years from", _three_years_origin(offer)),
                ("price on demand", offer.derived and f"derived: {offer.derived}"),
                ("retires on", offer.retires_on),
                ("notes", offer.notes),
            )
            yield pairs([(name, value) for name, value in details if value], paper)


def _cheapest(offers: tuple[Offer, ...]) -> str:
    """The number of offers, and the one with the cheapest accelerator-hour, in a sentence."""
    providers = list(dict.fromkeys(offer.provider for offer in offers))
    of = providers[0] if len(providers) == 1 else f"{len(providers)} providers"
    count = "1 offer" if len(offers) == 1 else f"{len(offers):,} offers"
    priced = [
        (usd / (offer.count * offer.accelerator_share), purchase, offer)
        for offer in [o for o in offers if not o.retires_on] or offers
        for purchase in PURCHASES
        if (usd := offer.price_usd_per_hour(purchase)) is not None
    ]
    if not priced:
        return f"{count} of {of}; no price of them is known."
    usd, purchase, offer = min(priced, key=lambda row: row[0])
    bought = purchase.replace("_", " ")
    where = f"{offer.provider} {offer.instance} ({offer.accelerator}) in {offer.region}, {bought}"
    return f"{count} of {of}; the cheapest accelerator-hour is {units.format_usd(usd)}: {where}."


def _origin(offer: Offer, purchase: str) -> str | None:
    """The source and day of a price; None where they are those of the on-demand price."""
    source, date = offer.price_source_of(purchase), offer.price_date_of(purchase)
    return None if (source, date) == (offer.source, offer.price_date) else f"{source} ({date})"


def _three_years_origin(offer: Offer) -> str | None:
    """The source and day of the price of three years; None where it has those of one year, or no price is known."""
    known, origin = offer.reserved_3y_usd_per_hour is not None, _origin(offer, "reserved_3y")
    return origin if known and origin != _origin(offer, "reserved_1y") else None


def _row(offer: Offer) -> tuple[Any, ...]:
    devices = f"{offer.count} x {offer.accelerator}"
    if offer.accelerator_share < 1:
        devices = f"{offer.accelerator_share:.3g} of {offer.accelerator}"
    return (
        offer.provider, offer.instance, offer.region, devices, offer.vcpus,
        known_text(offer.ram_bytes, units.format_bytes),
        None if offer.network_bytes_per_s is None else units.format_rate(offer.network_bytes_per_s * 8, "bit/s"),
        *(known_text(offer.price_usd_per_hour(purchase), units.format_usd) for purchase in PURCHASES),
        "; ".join(_dates(offer)),
    )  # fmt: skip


def _dates(offer: Offer) -> Iterator[str]:
    """The days of the prices of an offer; those of spot, one year and three years where they differ."""
    yield offer.price_date + (" (derived)" if offer.derived else "")
    days = {p: offer.price_date_of(p) for p in PURCHASES if offer.price_usd_per_hour(p) is not None}
    year, three = days.get("reserved_1y"), days.get("reserved_3y")
    reserved = ("reserved", year or three), ("3 years", three if year and three != year else None)
    for word, date in (("spot", days.get("spot")), *reserved):
        if date not in (None, offer.price_date):
            yield f"{word} {date}"
