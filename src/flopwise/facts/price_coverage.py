"""Prices of what is not bought on demand: of how many offers they are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from flopwise.facts.offers import Offer
from flopwise.values import dataclass

NAMED = 3
"""Providers that the sentence names whatever is known of them."""
OFTEN_UNKNOWN = {
    "spot": "spot price", "reserved_1y": "price reserved for one year", "reserved_3y": "price reserved for three years",
}  # fmt: skip
"""Ways to buy whose price is not known of every offer, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceCoverage:
    """The number of a provider's offers with accelerators whose price of one kind is known (`assumed`: estimated)."""

    provider: str
    known: int
    offers: int
    assumed: int = 0

    def __str__(self) -> str:
        """As a line says it."""
        assumed = f" ({self.assumed} assumed)" if self.assumed else ""
        return f"{self.known} of {self.offers}{assumed} {self.provider}"


def price_coverage(offers: Iterable[Offer], purchase: str) -> tuple[PriceCoverage, ...]:
    """The coverage of each provider of the offers, most offers first; `purchase`: one of `OFTEN_UNKNOWN`."""
    whole, known, assumed = Counter[str](), Counter[str](), Counter[str]()
    for offer in offers:
        whole[offer.provider] += 1
        if offer.assumed_price(purchase) is not None:
            assumed[offer.provider] += 1
        elif offer.price_usd_per_hour(purchase) is not None:
            known[offer.provider] += 1
    return tuple(
        PriceCoverage(provider=name, known=known[name], offers=count, assumed=assumed[name])
        for name, count in whole.most_common()
    )


def coverage_text(coverages: Sequence[PriceCoverage], purchase: str) -> str:
    """One sentence: of whose offers the price is known."""
    named = [one for place, one in enumerate(coverages) if place < NAMED or one.known or one.assumed]
    rest = sum(one.offers for one in coverages if one not in named)
    parts = [*map(str, named), *([f"0 of {rest} other"] if rest else [])]
    return f"{OFTEN_UNKNOWN[purchase]} known of {', '.join(parts)} accelerator offers"
