"""How old prices are: days between the day for which they hold and today, which the caller knows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any, ClassVar

from flopwise.facts.catalog import Facts
from flopwise.facts.defaults import PURCHASES
from flopwise.facts.offers import UNDATED, Offer, days_old
from flopwise.pictures import BarPicture, Picture
from flopwise.price_import.imports import ImportedFile, list_prices
from flopwise.results import Result, attributes
from flopwise.values import dataclass

MOST_DAYS = 180
"""Age of a price, in days, beyond which a plan notes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceAge:
    """Prices of one provider, or of one table of the price book; days. `stale`: those older than the limit.

    Of those that have a date; all of them `undated`: the dates are empty and the ages 0.
    """

    provider: str
    offers: int
    oldest: str
    newest: str
    median_days: int
    oldest_days: int
    stale: int
    undated: int = 0


def ages(offers: Iterable[Offer], today: dt.date, most_days: float = MOST_DAYS) -> list[PriceAge]:
    """The age of each provider's prices, in the order of the offers."""
    dates: dict[str, list[str]] = {}
    for offer in offers:
        if offer.cheapest() is not None:
            first = next(p for p in PURCHASES if offer.price_usd_per_hour(p) is not None)
            dates.setdefault(offer.provider, []).append(offer.price_date_of(first))
    return [_age_of(provider, days, today, most_days) for provider, days in dates.items()]


def _age_of(whose: str, dates: list[str], today: dt.date, most_days: float = MOST_DAYS) -> PriceAge:
    """The age of prices of these dates, at least one."""
    dated = [date for date in dates if date != UNDATED]
    days = sorted(days_old(day, today) for day in dated) or [0]
    return PriceAge(
        provider=whose, offers=len(dates), oldest=min(dated, default=""), newest=max(dated, default=""),
        median_days=days[len(days) // 2], oldest_days=days[-1], stale=sum(each > most_days for each in days),
        undated=len(dates) - len(dated),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PriceAges(Result):
    """The ages of prices on the day `today`: of machines by provider, of other things (`book`), of imported files."""

    today: str
    most_days: float
    providers: tuple[PriceAge, ...]
    imported: tuple[ImportedFile, ...]
    book: tuple[PriceAge, ...] = ()

    table: ClassVar[str] = "providers"

    @property
    def verdict(self) -> str:
        """The number of prices and of old ones, in a sentence."""
        offers, stale = sum(a.offers for a in self.providers), sum(a.stale for a in self.providers)
        undated, days = sum(a.undated for a in self.providers), f"{self.most_days:g} days"
        sellers = "1 provider" if len(self.providers) == 1 else f"{len(self.providers):,} providers"
        brings = " `import` or `refresh` brings newer ones." if stale else ""
        old = f"{stale:,} prices are older than {days}, {undated:,} are undated"
        return f"{offers:,} offers of {sellers}: {old}.{brings}"

    def document(self) -> dict[str, Any]:
        """The ages by key."""
        return attributes(self, "today most_days providers imported book")

    def picture(self) -> Picture:
        """The median age of each provider's prices."""
        rows = [(age.provider, float(age.median_days)) for age in self.providers]
        return BarPicture(title=self.verdict, unit="days, median age of the prices", rows=rows)

    @classmethod
    def of(cls, facts: Facts, today: dt.date, most_days: float = MOST_DAYS) -> PriceAges:
        """The age of all prices; older than `most_days` counts as stale."""
        book = {
            "hosted models": [price.date for price in facts.hosted_prices],
            "storage and traffic": [price.date for price in facts.volume_prices.values()],
            "machines to buy": [price.date for price in facts.hardware_prices],
            "spot prices": [o.price_date_of("spot") for o in facts.offers if o.spot_usd_per_hour is not None],
            "reserved prices": [
                o.price_date_of(term)
                for o in facts.offers
                for term in ("reserved_1y", "reserved_3y")
                if o.price_usd_per_hour(term) is not None
            ],
            "spot interruptions": [record.date for record in facts.spot_records],
        }
        return PriceAges(
            today=today.isoformat(), most_days=most_days, providers=tuple(ages(facts.offers, today, most_days)),
            imported=tuple(list_prices()),
            book=tuple(_age_of(what, dates, today, most_days) for what, dates in book.items()),
        )  # fmt: skip


def age_notes(priced: Iterable[tuple[str, str]], today: dt.date, most_days: float = MOST_DAYS) -> list[str]:
    """A sentence for each (whose price, its day) that is undated or older than `most_days`: once each, oldest first."""
    undated = list[str]()
    old = dict[tuple[str, str], int]()
    for whose, day in priced:
        if day == UNDATED:
            undated.append(f"the price of {whose} is undated; look it up before you buy")
        elif (days := days_old(day, today)) > most_days:
            old[whose, day] = days
    return [*dict.fromkeys(undated)] + [
        f"the price of {whose} is {days:,} days old ({day}); see `flopwise prices`"
        for (whose, day), days in sorted(old.items(), key=lambda item: -item[1])
    ]
