"""Spot prices: of how many offers they are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from flopwise.facts.offers import Offer
from flopwise.values import dataclass

NAMED = 3
"""Providers that the sentence names whatever is known of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotCoverage:
    """The number of a provider's offers with accelerators whose spot price is known (`assumed`: estimated)."""

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
        if offer.assumed_price("spot") is not None:
            assumed[offer.provider] += 1
        elif offer.spot_usd_per_hour is not None:
            known[offer.provider] += 1
    return tuple(
        SpotCoverage(provider=name, known=known[name], offers=count, assumed=assumed[name])
        for name, count in whole.most_common()
    )


def coverage_text(coverages: Sequence[SpotCoverage]) -> str:
    """One sentence: of whose offers the spot price is known."""
    named = [one for place, one in enumerate(coverages) if place < NAMED or one.known or one.assumed]
    rest = sum(one.offers for one in coverages if one not in named)
    parts = [*map(str, named), *([f"0 of {rest} other"] if rest else [])]
    return f"spot price known of {', '.join(parts)} accelerator offers"
