"""Spot prices: of how many offers they are known, and what they may be taken to be where they are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from flopwise import units
from flopwise.facts import tables
from flopwise.facts.offers import Offer
from flopwise.facts.tables import Confidence, Day, FactTable, Row
from flopwise.values import dataclass

NAMED = 3
"""Providers that the sentence names whatever is known of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotCoverage:
    """Of how many of a provider's offers with accelerators the spot price is known (`assumed`: taken to be)."""

    provider: str
    known: int
    offers: int
    assumed: int = 0

    def __str__(self) -> str:
        """As a line says it."""
        assumed = f" ({self.assumed} assumed)" if self.assumed else ""
        return f"{self.known} of {self.offers}{assumed} {self.provider}"


def spot_coverage(offers: Iterable[Offer]) -> tuple[SpotCoverage, ...]:
    """The coverage of each provider that has a spot price, or may have one, most offers first."""
    whole, known, assumed = Counter[str](), Counter[str](), Counter[str]()
    for offer in offers:
        whole[offer.provider] += 1
        if offer.spot_band_usd_per_hour is not None:
            assumed[offer.provider] += 1
        elif offer.spot_usd_per_hour is not None:
            known[offer.provider] += 1
    return tuple(
        SpotCoverage(provider=name, known=known[name], offers=count, assumed=assumed[name])
        for name, count in whole.most_common()
    )


def coverage_text(found: Sequence[SpotCoverage]) -> str:
    """One sentence: of whose offers the spot price is known."""
    named = [one for place, one in enumerate(found) if place < NAMED or one.known or one.assumed]
    rest = sum(one.offers for one in found if one not in named)
    parts = [*map(str, named), *([f"0 of {rest} other"] if rest else [])]
    return f"spot price known of {', '.join(parts)} accelerator offers"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotDiscount:
    """What spot machines of a provider cost less than on demand: `least_frac` to `most_frac` of the price."""

    provider: str
    least_frac: float
    most_frac: float
    source: str
    date: Day
    confidence: Confidence = "medium"
    notes: str = ""


def _check_discount(row: Row, band: SpotDiscount, _: Sequence[SpotDiscount]) -> None:
    if not band.least_frac <= band.most_frac < 1:
        raise row.error("most_frac", band.most_frac, "allowed: no less than least_frac, below 1")


_discount = tables.number(units.parse_share, "a share of the price from 0, below 1, such as 60%", high=1.0, zero=True)
DISCOUNTS = FactTable(
    file="spot_discounts.csv", meaning="how much less than on demand a provider's spot machines cost", row=SpotDiscount,
    key=("provider",), check=_check_discount, readers={"least_frac": _discount, "most_frac": _discount},
)  # fmt: skip


def with_assumed_spot(offers: Iterable[Offer], bands: Mapping[str, SpotDiscount]) -> tuple[Offer, ...]:
    """The offers, those without a spot price with the one that their provider's band of discounts gives.

    Source: data/spot_discounts.csv. Assumes: the middle of the band; where the provider has none, nothing is assumed.
    """
    return tuple(_offer_in_band(offer, bands.get(offer.provider)) for offer in offers)


def _offer_in_band(offer: Offer, band: SpotDiscount | None) -> Offer:
    usd = offer.on_demand_usd_per_hour
    if band is None or usd is None or offer.spot_usd_per_hour is not None:
        return offer
    low, high = usd * (1 - band.most_frac), usd * (1 - band.least_frac)
    source = f"assumed, {100 * band.least_frac:.0f} to {100 * band.most_frac:.0f} % below on demand: {band.source}"
    return replace(
        offer, spot_usd_per_hour=(low + high) / 2, spot_date=band.date, spot_source=source,
        spot_band_usd_per_hour=(low, high),
    )  # fmt: skip
