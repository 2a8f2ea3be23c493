"""Discounts that providers publish, and the prices that they give where none is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flopwise import units
from flopwise.facts import tables
from flopwise.facts.offers import PRICE_FIELDS, AssumedPrice, Offer
from flopwise.facts.tables import FactTable, Row, SourcedRow
from flopwise.values import dataclass, replace

RESERVED = ("reserved_1y", "reserved_3y")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotDiscount(SourcedRow):
    """The discount of a provider's spot machines against on demand: `least_frac` to `most_frac` of the price."""

    provider: str
    least_frac: float
    most_frac: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedDiscount(SourcedRow):
    """The discount of machines reserved for a term (`purchase`) against on demand, as for spot."""

    provider: str
    purchase: str
    least_frac: float
    most_frac: float


Discount = SpotDiscount | ReservedDiscount
Bands = Mapping[tuple[str, str], Discount]
"""By provider and purchase."""


def _check_reserved(row: Row, band: ReservedDiscount, bands: Sequence[ReservedDiscount]) -> None:
    if band.purchase not in RESERVED:
        raise row.error("purchase", band.purchase, f"allowed: {', '.join(RESERVED)}")
    _check_fractions(row, band, bands)


def _check_fractions(row: Row, band: Discount, _: Sequence[Discount]) -> None:
    if not band.least_frac <= band.most_frac < 1:
        raise row.error("most_frac", band.most_frac, "allowed: no less than least_frac, below 1")


_discount = tables.number(units.parse_share, "a share of the price from 0, below 1, such as 60%", high=1.0, zero=True)
SPOT_DISCOUNTS = FactTable(
    file="spot_discounts.csv", meaning="a provider's discount of spot machines against on demand", row=SpotDiscount,
    key=("provider",), check=_check_fractions, readers={"least_frac": _discount, "most_frac": _discount},
)  # fmt: skip
RESERVED_DISCOUNTS = FactTable(
    file="reserved_discounts.csv", meaning="a provider's discount of reserved machines against on demand",
    row=ReservedDiscount, key=("provider", "purchase"), check=_check_reserved,
    readers={"least_frac": _discount, "most_frac": _discount},
)  # fmt: skip


def with_assumed_prices(offers: Iterable[Offer], bands: Bands) -> tuple[Offer, ...]:
    """The offers, those without a price for a purchase with the one that their provider's band of discounts gives.

    Source: data/spot_discounts.csv, data/reserved_discounts.csv. Assumes: the middle of the band; where the provider
    has none, nothing is assumed; three years cost no more an hour than one, and who sells no year sells no three.
    """
    return tuple(_offer_in_bands(offer, bands) for offer in offers)


def _offer_in_bands(offer: Offer, bands: Bands) -> Offer:
    on_demand = offer.on_demand_usd_per_hour
    if on_demand is None:
        return offer
    for purchase in ("spot", *RESERVED):
        band = bands.get((offer.provider, purchase))
        if band is None or offer.price_usd_per_hour(purchase) is not None:
            continue
        low, high = on_demand * (1 - band.most_frac), on_demand * (1 - band.least_frac)
        if purchase == "reserved_3y":
            year_usd = offer.reserved_1y_usd_per_hour
            if year_usd is None:
                continue
            _, year_usd = offer.assumed_usd_per_hour("reserved_1y") or (year_usd, year_usd)
            low, high = min(low, year_usd), min(high, year_usd)
        source = f"assumed, {100 * band.least_frac:.0f} to {100 * band.most_frac:.0f} % below on demand: {band.source}"
        assumed = AssumedPrice(purchase=purchase, usd_per_hour=(low, high), date=band.date, source=source)
        made: dict[str, Any] = {
            PRICE_FIELDS[purchase]: (low + high) / 2,
            "assumed_prices": (*offer.assumed_prices, assumed),
        }
        offer = replace(offer, **made)
    return offer
