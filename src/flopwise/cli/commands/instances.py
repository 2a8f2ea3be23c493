"""`flopwise instances`: what clouds offer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from flopwise import units
from flopwise.cli import options
from flopwise.cli.options import add, flags
from flopwise.cli.render import Screen, heading, pairs, table
from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import DeviceSpec, SourceSpec
from flopwise.options import USD
from flopwise.options import name as vendor_name

if TYPE_CHECKING:
    from flopwise.facts.offers import Offer

_HEADERS = (
    "provider", "instance", "region", "accelerators", ">vCPU", ">RAM", ">network", ">on demand/h", ">spot/h",
    ">1 year/h", ">3 years/h", "priced",
)  # fmt: skip


@options.command("instances", "flopwise instances --gpu h100 --provider aws", "flopwise instances p5.48xlarge --json")
@options.argument("name", required=False)
@flags(MachineSpec, "provider region gpu", section="")
@add("--vendor", vendor_name("vendor"), "Accelerators of this vendor only: NVIDIA, AMD, Intel, Google ...")
@flags(DeviceSpec)
@flags(MachineSpec, "purchase", section="")
@add("--max-price", USD, "At most this many US dollars an hour.", field="max_usd_per_hour")
@flags(SourceSpec, "facts")
def command(*, name: str | None, gpu: str | None, purchase: str, **filters: Any) -> None:
    """Cloud offers: what they hold and what they cost.

    NAME is an instance type. Prices are per instance and hour, of the day shown; `-` is unknown. A --purchase that is
    given leaves offers out whose price is not known.
    """
    from flopwise.api import facts as known

    bought = purchase if "purchase" in options.spellings(click.get_current_context()) else None
    offers = known.instances(name, accelerator=gpu, purchase=bought, **options.values(filters))
    options.answer(offers, lambda found, paper: _listing(found, name, paper))


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
        offer.provider, offer.instance, offer.region, held, offer.vcpus,
        None if offer.ram_bytes is None else units.format_bytes(offer.ram_bytes),
        None if offer.network_bytes_per_s is None else units.format_rate(offer.network_bytes_per_s * 8, "bit/s"),
        *(_price(offer.price_usd_per_hour(p)) for p in ("on_demand", "spot", "reserved_1y", "reserved_3y")),
        offer.price_date,
    )  # fmt: skip


def _price(usd_per_hour: float | None) -> str | None:
    return None if usd_per_hour is None else units.format_usd(usd_per_hour)
