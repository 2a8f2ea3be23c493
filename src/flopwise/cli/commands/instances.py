"""`flopwise instances`: what clouds offer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flopwise import units
from flopwise.cli import options
from flopwise.cli.render import Screen, heading, pairs, table

if TYPE_CHECKING:
    from flopwise.facts.offers import Offer

_HEADERS = (
    "provider", "instance", "region", "accelerators", ">vCPU", ">RAM", ">network", ">on demand/h", ">spot/h",
    ">1 year/h", ">3 years/h", "priced",
)  # fmt: skip


@options.command("instances", "flopwise instances --gpu h100 --provider aws", "flopwise instances p5.48xlarge --json")
@click.argument("name", type=options.Name("name"), required=False)
@click.option("--provider", type=options.Name("provider"), help="Only this provider: aws, gcp, azure, lambda ...")
@click.option(
    "--region", type=options.Name("region"), help="Only offers in this region; patterns such as eu-* are fine."
)
@click.option("--gpu", type=options.Name("gpu"), help="Only with this accelerator, in any common spelling.")
@click.option(
    "--kind", type=options.ACCELERATOR_KIND, help="Only with this kind of device; cpu: instances without a GPU."
)
@click.option("--purchase", type=options.PURCHASE, help="Only with a known price for this purchase option.")
@click.option("--max-price", type=options.USD, help="At most this many US dollars an hour (on demand, or --purchase).")
@options.facts_option
def command(
    *,
    name: str | None,
    provider: str | None,
    region: str | None,
    gpu: str | None,
    kind: str | None,
    purchase: str | None,
    max_price: float | None,
    facts: Path | None,
) -> None:
    """Cloud offers: what they hold and what they cost.

    NAME is an instance type. Prices are per instance and hour, of the day shown; `-` is unknown.
    """
    from flopwise.api import facts as known

    offers = known.instances(
        name,
        provider=provider,
        region=region,
        accelerator=gpu,
        kind=kind,
        purchase=purchase,
        max_usd_per_hour=max_price,
        facts=facts,
    )
    options.answer(lambda: offers, lambda paper: _listing(offers, name, paper))


def _listing(offers: tuple[Offer, ...], name: str | None, paper: Screen) -> Iterator[str]:
    if not offers:
        yield "No offer fits all of these."
        return
    yield table(_HEADERS, [_row(offer) for offer in offers], paper)
    if name is not None:
        for offer in offers:
            yield heading(f"{offer.provider} {offer.instance} in {offer.region}", paper)
            disk = None if offer.local_disk_bytes is None else units.format_bytes(offer.local_disk_bytes)
            yield pairs(
                [
                    ("link between accelerators", offer.intra_link),
                    ("local disk", disk),
                    ("source", f"{offer.source} ({offer.price_date}, {offer.confidence} confidence)"),
                    ("notes", offer.notes),
                ],
                paper,
            )


def _row(offer: Offer) -> tuple[Any, ...]:
    held = f"{offer.count} x {offer.accelerator}"
    if offer.accelerator_share < 1:
        held = f"{offer.accelerator_share:.3g} of {offer.accelerator}"
    return (
        offer.provider,
        offer.instance,
        offer.region,
        held,
        offer.vcpus,
        None if offer.ram_bytes is None else units.format_bytes(offer.ram_bytes),
        None if offer.network_bytes_per_s is None else units.format_rate(offer.network_bytes_per_s * 8, "bit/s"),
        *(_price(offer.price_usd_per_hour(p)) for p in ("on_demand", "spot", "reserved_1y", "reserved_3y")),
        offer.price_date,
    )


def _price(usd_per_hour: float | None) -> str | None:
    return None if usd_per_hour is None else units.format_usd(usd_per_hour)
