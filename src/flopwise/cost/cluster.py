"""The machines of a job as a whole: which device, joined how, at what price."""

from __future__ import annotations

from dataclasses import field
from functools import lru_cache
from typing import TYPE_CHECKING

from flopwise.cost.fabric import Fabric, fabric
from flopwise.cost.rates import Rates, rates
from flopwise.facts.offers import ANYWHERE, beside_date, retirement_note
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.offers import Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Devices of one kind in nodes of one kind; prices are None where nobody has written them down."""

    accelerator: Accelerator
    rates: Rates
    fabric: Fabric
    gpus_per_node: int
    usd_per_gpu_hour: float | None = None
    purchase: str = "on_demand"
    offer: Offer | None = None
    price_source: str = ""
    ambiguous: str | None = None  # what was assumed where a name leaves the variant open
    assumptions: tuple[str, ...] = field(default=())

    def __hash__(self) -> int:
        """Hash of the hashable fields; the mappings are left out."""
        return hash((self.accelerator.name, self.gpus_per_node, self.purchase, self.usd_per_gpu_hour))


@lru_cache(maxsize=4096)  # a fleet asks for the same machines in each of its searches
def cluster(
    accelerator: Accelerator,
    *,
    offer: Offer | None = None,
    purchase: str = "on_demand",
    gpus_per_node: int | None = None,
    network_bytes_per_s_per_gpu: float | None = None,
    intra_node: str | None = None,
    usd_per_gpu_hour: float | None = None,
    ambiguous: str | None = None,
) -> Cluster:
    """The cluster of `accelerator` in the instances of `offer`, or in nodes as the device is usually built into.

    `network_bytes_per_s_per_gpu` and `usd_per_gpu_hour` override the offer's; `intra_node` as in `fabric`.

    Source: facts of accelerator and offer. Assumes: what the parts say in their `assumptions`.
    Raises: MissingFactError: as `fabric`.
    """
    joined = fabric(
        accelerator, offer, gpus_per_node=gpus_per_node, network_bytes_per_s_per_gpu=network_bytes_per_s_per_gpu,
        intra_node=intra_node,
    )  # fmt: skip
    per_node = gpus_per_node or (max(1, round(offer.count)) if offer is not None else min(joined.domain, 8))
    accelerator, limits = _in_node(accelerator, per_node)
    achieved = _own_rates(accelerator)
    price, source = usd_per_gpu_hour, "given" if usd_per_gpu_hour is not None else ""
    if price is None and offer is not None:
        price, source = offer_price(offer, purchase)
    return Cluster(
        accelerator=accelerator, rates=achieved, fabric=joined, gpus_per_node=per_node, usd_per_gpu_hour=price,
        purchase=purchase, offer=offer, price_source=source, ambiguous=ambiguous,
        assumptions=(*joined.assumptions, *limits, *achieved.assumptions, *((ambiguous,) if ambiguous else ())),
    )  # fmt: skip


def _in_node(accelerator: Accelerator, per_node: int) -> tuple[Accelerator, tuple[str, ...]]:
    """The accelerator under the limit that it has beside others of a node, with the assumption; a given limit holds.

    Source: `Accelerator.node_w`. Assumes: nodes are the ones that it is built for.
    """
    limit_w, own_w = accelerator.node_w, accelerator.tdp_w
    if limit_w is None or own_w is None or per_node == 1 or accelerator.made_for_w is not None:
        return accelerator, ()
    note = (
        f"each {accelerator.name} of a node of {per_node} may draw {limit_w:g} W, as published nodes are set "
        f"({own_w:g} W at most alone; --power-limit sets another)"
    )
    return replace(accelerator, tdp_w=limit_w, made_for_w=own_w), (note,)


@lru_cache(maxsize=256)  # a device is in many instances
def _own_rates(accelerator: Accelerator) -> Rates:
    return rates(accelerator)


def offer_price(offer: Offer, purchase: str) -> tuple[float | None, str]:
    """(USD for one device and hour in an offer, None where not known; where the price comes from).

    Source: the offer's row. Assumes: nothing else in the instance is paid for.
    """
    whole = offer.price_usd_per_hour(purchase)
    notes = [beside_date(offer.price_note(purchase)), retirement_note(offer.retires_on)]
    dated = ", ".join([offer.price_date_of(purchase), *filter(None, notes)])
    region = "" if offer.region == ANYWHERE else f" in {offer.region}"
    place = f"{offer.provider} {offer.instance}{region}, {purchase.replace('_', ' ')}"
    source = f"{place}, {dated}: {offer.price_source_of(purchase)}"
    source = source if offer.price_date else offer.source  # a hypothetical machine's
    return None if whole is None else whole / max(1, offer.count), source
