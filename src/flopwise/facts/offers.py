"""What is for sale: an instance type in a region, what is in it and what it costs per hour.

Units: USD per hour and instance, byte, byte/s. A price that is not known is None. Every price has its day and its
source: on demand those of `price_date` and `source`, else those of `spot_date`, `reserved_date`, `reserved_3y_date`
and their sources.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from flopwise import units
from flopwise.errors import SpecError, fold
from flopwise.facts import tables
from flopwise.facts.accelerators import spelling_key
from flopwise.facts.defaults import PURCHASES
from flopwise.facts.tables import ANY, Bytes, BytesPerS, Confidence, Count, Day, FactTable, Row, SourcedRow, UsdPerHour
from flopwise.values import dataclass

OWNED = "owned"
"""How machines of your own are had: no offer of a provider is."""
PRICE_FIELDS = {purchase: f"{purchase}_usd_per_hour" for purchase in PURCHASES}
ANYWHERE = "any"
"""Region of an offer whose provider names none."""
UNDATED = "undated"
"""The date of a price whose source has none."""
UNDATED_PRICE = "undated price"
"""The remark on such a price where no date stands beside it."""
RECALLED = "(recalled)"
"""Remark in the source of a price that was not looked up again."""
OLD_DAYS = 730
"""Days by which a price may be older than the one on demand of the same offer before each answer says its month."""


LOW_SPOT_FRAC = 0.25
"""Share of the on-demand price up to which a spot price deserves a second look."""


def beside_date(price_note: str) -> str:
    """A price's remark as it is printed beside its date, which says itself that there is none."""
    return price_note.removeprefix(UNDATED_PRICE).removeprefix(", ")


def days_old(day: str, today: dt.date) -> int:
    """Days from a day (YYYY-MM-DD) to today, 0 for one to come; a day that does not exist is the last of its month."""
    year, month, number = (int(part) for part in day.split("-"))
    while True:
        try:
            return max(0, (today - dt.date(year, month, number)).days)
        except ValueError:
            number -= 1


def retirement_note(retires_on: str | None) -> str:
    """The day from which nobody has a machine of a kind, in words; "" where none is known."""
    return f"retirement date {retires_on}" if retires_on else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedPrice:
    """The lowest and highest USD per hour of an unpublished price; calculations use the middle."""

    purchase: str
    usd_per_hour: tuple[float, float]
    date: str
    source: str

    @property
    def kind(self) -> str:
        """The kind of price: spot, or reserved."""
        return self.purchase.partition("_")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One instance type in one region.

    `count` accelerators of which the instance has `accelerator_share` each: 1, a fraction of a GPU, or of a CPU socket.
    `region` may be a pattern (`us-*`), several (`eu-north1/us-central1`) or `any`: see `serves`. `marketplace`: the
    hosts are not the provider's own: see `HostRecord`. `retires_on`: the day from which nobody has it: see
    `RetirementRecord`.
    """

    provider: str
    instance: str
    region: str
    accelerator: str  # canonical name
    count: Count
    source: str
    price_date: str  # the day for which the price on demand holds, or UNDATED
    confidence: Confidence = "medium"
    accelerator_share: float = 1.0
    vcpus: Count | None = None
    ram_bytes: Bytes | None = None
    local_disk_bytes: Bytes | None = None
    network_bytes_per_s: BytesPerS | None = None  # per instance, between instances
    intra_link: str | None = None  # between the accelerators of one instance
    on_demand_usd_per_hour: UsdPerHour | None = None
    spot_usd_per_hour: UsdPerHour | None = None
    reserved_1y_usd_per_hour: UsdPerHour | None = None
    reserved_3y_usd_per_hour: UsdPerHour | None = None
    spot_date: str | None = None  # None here and below: as on demand
    spot_source: str | None = None
    reserved_date: str | None = None
    reserved_source: str | None = None
    reserved_3y_date: str | None = None  # None: as of one year
    reserved_3y_source: str | None = None
    derived: str = ""  # what the price on demand was made of, where no list has it
    assumed_prices: tuple[AssumedPrice, ...] = field(default=(), metadata={"inner": True})
    notes: str = ""
    marketplace: bool = field(default=False, metadata={"gathered": True})
    retires_on: str | None = field(default=None, metadata={"gathered": True})

    @property
    def key(self) -> tuple[str, str, str]:
        """The identity of an offer: provider, instance, region."""
        return (self.provider, self.instance, self.region)

    def price_usd_per_hour(self, purchase: str) -> float | None:
        """Price of one instance in USD per hour for a `purchase` of PURCHASES (or OWNED); None: not known, not sold so.

        Raises: SpecError: no such purchase option.
        """
        if purchase == OWNED:
            return None
        field = PRICE_FIELDS.get(purchase)
        if field is None:
            raise SpecError(f"unknown purchase option {str(purchase)[:40]!r}; allowed: {', '.join(PURCHASES)}")
        price: float | None = getattr(self, field)
        return price

    def assumed_price(self, purchase: str) -> AssumedPrice | None:
        """The range of the price for a purchase where it is assumed; else None."""
        return next((one for one in self.assumed_prices if one.purchase == purchase), None)

    def assumed_usd_per_hour(self, purchase: str) -> tuple[float, float] | None:
        """The least and the most USD per hour of a price that is assumed; else None."""
        band = self.assumed_price(purchase)
        return None if band is None else band.usd_per_hour

    def price_date_of(self, purchase: str) -> str:
        """The day for which the price for a purchase holds, or UNDATED."""
        band = self.assumed_price(purchase)
        if band is not None:
            return band.date
        three = self.reserved_3y_date if purchase == "reserved_3y" else None
        own = self.spot_date if purchase == "spot" else self.reserved_date if "reserved" in purchase else None
        return three or own or self.price_date

    def price_source_of(self, purchase: str) -> str:
        """The source of the price for a purchase."""
        band = self.assumed_price(purchase)
        if band is not None:
            return band.source
        three = self.reserved_3y_source if purchase == "reserved_3y" else None
        own = self.spot_source if purchase == "spot" else self.reserved_source if "reserved" in purchase else None
        return three or own or self.source

    def price_note(self, purchase: str) -> str:
        """A remark on a price wherever it is printed: undated, old, recalled, derived, assumed; or ""."""
        band = self.assumed_price(purchase)
        if band is not None:
            symbol, (low, high) = units.CURRENCY.get().symbol, map(units.in_currency, band.usd_per_hour)
            return f"{band.kind} price assumed, {symbol}{low:.4g} to {symbol}{high:.4g} an hour"
        day = self.price_date_of(purchase)
        notes = [UNDATED_PRICE] if day == UNDATED else []
        known = all(date and date != UNDATED for date in (day, self.price_date))
        if known and days_old(day, dt.date.max) - days_old(self.price_date, dt.date.max) > OLD_DAYS:
            notes.append(f"price dated {day[:7]}")
        if RECALLED in self.price_source_of(purchase):
            notes.append("recalled price")
        usual, price = self.on_demand_usd_per_hour, self.price_usd_per_hour(purchase)
        if purchase == "spot" and usual and price is not None and price <= LOW_SPOT_FRAC * usual:
            notes.append("a quarter of the on-demand price or less")
        if purchase == "on_demand" and self.derived:
            notes.append(f"derived price: {self.derived}")
        return ", ".join(notes)

    def cheapest(self, purchases: tuple[str, ...] = PURCHASES) -> tuple[str, float] | None:
        """The cheapest known (purchase, USD per hour) among `purchases`; None where none is known.

        Raises: SpecError: no such purchase option.
        """
        priced = [(price, p) for p in purchases if (price := self.price_usd_per_hour(p)) is not None]
        if not priced:
            return None
        price, purchase = min(priced)
        return purchase, price

    def serves(self, region: str) -> bool:
        """True if the offer exists in `region`, a place or a pattern of places such as `us-*`.

        A place that is a pattern itself is no promise of one among its places: what is sold somewhere in `us-*` is not
        known to stand in us-east-1. What is sold at `any` place is nowhere in particular: `any` and `*` alone ask for
        it. The offer's own words, such as `eu-north1/us-central1`, ask for it, too.
        """
        return self.serves_each((region,))

    def serves_each(self, *limits: Sequence[str]) -> bool:
        """True if one place of the offer is within a region of each of `limits`, as in `serves`; empty ones allow all.

        What is sold in `eu-north1/us-central1` is in Europe or in the US, but nowhere in both.
        """
        own = self.region.lower()
        lower_case = [[region.lower() for region in limit] for limit in limits if limit]
        return any(
            all(any(region == own or _is_within(place, region) for region in limit) for limit in lower_case)
            for place in own.split("/")
        )


def _is_within(place: str, region: str) -> bool:
    """True if a place is a region, or fits its pattern; `any` place only where that is asked for. In lower case."""
    return fnmatchcase(place, region) and (place != ANY or region in (ANY, "*"))


_CARDS = re.compile(r"\s*(?:(\d+)\s*(?:x\s*|\s))?(.*)", re.IGNORECASE)
AZURE_PREFIX = "standard"
"""Word in front of Azure's sizes that people leave out."""


@lru_cache(maxsize=100_000)
def names_instance(pattern: str, instance: str) -> bool:
    """True if `pattern` is the instance type, in any case, or a pattern that matches it such as `p5*`.

    Azure's sizes may be without `Standard_`; a host with accelerators may say those in any spelling and without their
    number where it is one: `n1-standard-8 + T4`, `n1-standard-8+1xV100`.
    """
    wanted, name = pattern.strip().lower(), instance.lower()
    if wanted == name or (PATTERN & set(wanted) and fnmatchcase(name, wanted)):
        return True
    if PATTERN & set(wanted):
        return fnmatchcase(name.removeprefix(f"{AZURE_PREFIX}_"), wanted)
    (host, number, cards), (own_host, own_number, own_cards) = _instance_parts(wanted), _instance_parts(name)
    beyond = own_cards.removeprefix(cards)  # V100 is short for V100-SXM2-16, P4 is not for P40
    short = own_cards.startswith(cards) and bool(cards) == bool(own_cards) and not beyond[:1].isdigit()
    return (host, number) == (own_host, own_number) and short


def _instance_parts(name: str) -> tuple[str, int, str]:
    """Host, number and spelling of the accelerators that stand behind a plus sign: 0 and nothing without one."""
    host, plus, cards = name.partition("+")
    key = fold(host).removeprefix(AZURE_PREFIX)
    if not plus:
        return key, 0, ""
    match = _CARDS.fullmatch(cards)
    number, card = match.groups() if match else (None, cards)
    return key, int(number or 1), spelling_key(card)


def region_names(offers: Iterable[Offer]) -> tuple[str, ...]:
    """Every region, or pattern of regions, that offers name, in lower case and their order; several also as one."""
    places = dict.fromkeys(offer.region.lower() for offer in offers)
    return tuple(dict.fromkeys([*(part for place in places for part in place.split("/")), *places]))


def known_region(pattern: str, names: Iterable[str]) -> bool:
    """True if `pattern` is one of `region_names`, or a pattern that matches some.

    A pattern of an offer (`us-*`) vouches for no name: it would for a misspelt one, too.
    """
    pattern = pattern.lower()
    return any(fnmatchcase(name, pattern) if PATTERN & set(pattern) else name == pattern for name in names)


PATTERN = frozenset("*?[")
"""Signs that make a region a pattern."""


def _day(cell: str) -> str:
    """A day, or that there is none."""
    return UNDATED if cell.lower() == UNDATED else tables.date(cell)


def _keep_dates(row: Row, values: dict[str, Any], known: Offer | None) -> None:
    """A row dates the prices that it gives, and leaves the others their days and sources."""
    for part, own in (("date", "price_date"), ("source", "source")):
        if PRICE_FIELDS["spot"] in values:
            values.setdefault(f"spot_{part}", values.get(own))
        if PRICE_FIELDS["reserved_3y"] in values:
            values.setdefault(f"reserved_3y_{part}", values.get(f"reserved_{part}") or values.get(own))
        if PRICE_FIELDS["reserved_1y"] in values:
            values.setdefault(f"reserved_{part}", values.get(own))
        elif PRICE_FIELDS["reserved_3y"] in values:
            values.pop(f"reserved_{part}", None)  # it is of three years
    if known is None:
        return
    if known.on_demand_usd_per_hour is not None and PRICE_FIELDS["on_demand"] not in values:
        values |= {"price_date": known.price_date, "source": known.source, "derived": known.derived}
        values |= {name: getattr(known, name) for name in tables.OF_SOURCE if row.values.get(name) is None}
    elif "source" in values:
        values.setdefault("derived", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRecord(SourcedRow):
    """Instances of a provider, by a pattern of names, that run on hosts of third parties: a marketplace, a community.

    Nobody answers for their hours, and no attestation of the provider is of them.
    """

    provider: str
    instances: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetirementRecord(SourcedRow):
    """Instances of a provider, by a pattern of names, that it has retired or will by a day that it announced.

    From `retires_on` on nobody can start one, and those that run are stopped. `date`: of the source.
    """

    provider: str
    instances: str
    retires_on: Day


OFFERS = FactTable(
    file="instances.csv", meaning="an instance type in a region, with its prices and their days", row=Offer,
    key=("provider", "instance", "region"), dated=("price_date", "source"), adapt=_keep_dates,
    readers={
        "accelerator_share": tables.number(units.parse_count, "a share above 0, up to 1", high=1.0),
        "price_date": _day, "spot_date": _day, "reserved_date": _day, "reserved_3y_date": _day,
    },
)  # fmt: skip
MARKETPLACES = FactTable(
    file="marketplaces.csv", meaning="instances on third-party hosts, which answers leave out by default",
    row=HostRecord, key=("provider", "instances"),
)  # fmt: skip
RETIREMENTS = FactTable(
    file="retired.csv", meaning="instances that their provider retires, which answers leave out by default",
    row=RetirementRecord, key=("provider", "instances"),
)  # fmt: skip
