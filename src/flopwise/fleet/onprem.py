"""Machines of one's own, in one's own room or in colocation: USD for each GPU-hour, and when that beats a cloud."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from flopwise.cost.energy import DEFAULT_POWER, PowerModel
from flopwise.errors import SpecError
from flopwise.fleet.carbon import kwh_on
from flopwise.ops.types import Floats
from flopwise.units import HOURS_PER_MONTH

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.offers import Offer
    from flopwise.facts.price_book import HardwarePrice


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What owning machines takes beside buying them; USD, months, shares of the purchase price.

    Sources: usd_per_kwh: EIA, Electric Power Monthly table 5.6.A, April 2025, commercial customers, East North Central
    (12.8 cents); pue: Uptime Institute, Global Data Center Survey 2025 (1.54); facility: 11,000 USD a kW of building,
    power and cooling plant over 15 years (Turner & Townsend, Data Centre Cost Index 2024, recalled); colocation: CBRE,
    North America Data Center Trends H2 2024, 184.06 USD a kW and month for 250 to 500 kW, electricity apart. Assumed,
    to be replaced by one's own: years, residual, interest, support, network, staff, maintenance, host of a card.
    """

    years: float = 4.0
    residual_frac: float = 0.10
    interest_per_year: float = 0.08
    support_frac_per_year: float = 0.05  # maker's support, spares
    network_frac: float = 0.15  # switches, cables, storage, installing
    host_usd_per_card: float = 2500.0  # its share of a server, where only the card is priced
    usd_per_kwh: float = 0.128
    pue: float = 1.54
    facility_usd_per_kw: float = 11_000.0
    facility_years: float = 15.0
    colocation_usd_per_kw_month: float | None = None  # in place of a building
    staff_usd_per_year: float = 150_000.0
    gpus_per_person: float = 250.0
    maintenance_hours_per_month: float = 8.0
    power: PowerModel = DEFAULT_POWER

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            SpecError: says which figure, and what is allowed.
        """
        above = ("years", "facility_years", "gpus_per_person")
        figures = {name: getattr(self, name) for name in self.__slots__}
        for name, value in figures.items():
            if isinstance(value, int | float) and (not 0 <= value < float("inf") or (name in above and value <= 0)):
                raise SpecError(f"{name}: {value:g} is out of range; allowed: {'above 0' if name in above else '0 up'}")
        for name, low, high in (
            ("pue", 1.0, 4.0),
            ("residual_frac", 0.0, 1.0),
            ("maintenance_hours_per_month", 0, 700),
        ):
            if not low <= getattr(self, name) <= high:
                raise SpecError(f"{name}: {getattr(self, name):g} is out of range; allowed: {low:g} to {high:g}")


COLOCATED = Site(colocation_usd_per_kw_month=184.06, pue=1.4)
"""In somebody's data centre: rent for the power reserved, electricity at its overhead (assumed) on top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """A month of one accelerator of one's own, USD; and what buying it took."""

    accelerator: str
    grade: str
    purchase_usd: float  # with its share of host and network
    capital: float  # depreciation and interest
    support: float
    room: float  # building or colocation
    staff: float
    idle_power: float
    busy_power: float  # more than idle, at full use
    available_hours: float
    life_months: float
    price_date: str
    confidence: str

    @property
    def fixed(self) -> float:
        """USD a month whatever is done with it."""
        return self.capital + self.support + self.room + self.staff + self.idle_power

    @property
    def running(self) -> float:
        """USD a month that go on being spent at idle once it is paid: all but capital."""
        return self.fixed - self.capital

    def usd_per_month(self, utilisation: Floats) -> Floats:
        """Cost of a month at a utilisation (share of the available hours that are worked); broadcasts.

        Source: `ownership`. Assumes: power rises linearly with utilisation.
        """
        return self.fixed + self.busy_power * utilisation

    def usd_per_gpu_hour(self, utilisation: Floats) -> Floats:
        """Cost of an hour of work; broadcasts. Source and assumptions: as `usd_per_month`."""
        return self.usd_per_month(utilisation) / (self.available_hours * np.maximum(utilisation, 1e-12))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstCloud:
    """One's own machines against one offer.

    `break_even_utilisation`: from which they cost less for each hour of work; None: never. `months`: until what was
    paid for them is saved, at the utilisation asked for; None: not within their life.
    """

    provider: str
    instance: str
    region: str
    purchase: str
    usd_per_gpu_hour: float
    own_usd_per_gpu_hour: float
    break_even_utilisation: float | None
    months: float | None
    price_date: str


def ownership(accelerator: Accelerator, price: HardwarePrice, site: Site | None = None) -> Ownership:
    """What a month of one accelerator of one's own costs, in parts.

    Capital is depreciated straight over `years` to its residual, with interest on the mean of what is tied up; power is
    drawn by the curve of `flopwise.cost.energy`, hosts and cooling included; the room is paid for the greatest draw.

    Source: arithmetic on `Site` and data/onprem.csv.
    Assumes: a card needs its share of a host; network and support follow the price.

    Raises:
        MissingFactError: the accelerator's power limit is not known.
        SpecError: the price is of another accelerator.
    """
    if price.accelerator != accelerator.name:
        raise SpecError(f"the price is of {price.accelerator}, not of {accelerator.name}")
    site = site or Site()
    host = 0.0 if price.unit == "server" else site.host_usd_per_card
    bought = (price.usd / price.count + host) * (1.0 + site.network_frac)
    tied_up = bought * (1.0 + site.residual_frac) / 2.0
    capital = bought * (1.0 - site.residual_frac) / (12.0 * site.years) + tied_up * site.interest_per_year / 12.0
    power = replace(site.power, pue=site.pue)
    idle_kwh = float(kwh_on(accelerator, 1, HOURS_PER_MONTH, 0.0, power))
    full_kwh = float(kwh_on(accelerator, 1, HOURS_PER_MONTH, 1.0, power))
    reserved_kw = full_kwh / HOURS_PER_MONTH / site.pue
    if site.colocation_usd_per_kw_month is None:
        room = reserved_kw * site.facility_usd_per_kw / (12.0 * site.facility_years)
    else:
        room = reserved_kw * site.colocation_usd_per_kw_month
    available = HOURS_PER_MONTH - site.maintenance_hours_per_month
    return Ownership(
        accelerator=accelerator.name, grade=price.grade, purchase_usd=bought, capital=capital,
        support=bought * site.support_frac_per_year / 12.0, room=room,
        staff=site.staff_usd_per_year / 12.0 / site.gpus_per_person, idle_power=idle_kwh * site.usd_per_kwh,
        busy_power=(full_kwh - idle_kwh) * site.usd_per_kwh * available / HOURS_PER_MONTH, available_hours=available,
        life_months=12.0 * site.years, price_date=price.date, confidence=price.confidence,
    )  # fmt: skip


def break_even_utilisation(own: Ownership, cloud_usd_per_gpu_hour: Floats) -> Floats:
    """Utilisation from which one's own cost no more than a cloud paid by the hour worked; broadcasts, above 1: never.

    Source: fixed + busy u = available u p. Assumes: as `Ownership.usd_per_month`; the cloud is turned off when idle.
    """
    margin = own.available_hours * np.asarray(cloud_usd_per_gpu_hour, dtype=float) - own.busy_power
    return np.where(margin > 0, own.fixed / np.maximum(margin, 1e-12), np.inf)


def months_to_recover(own: Ownership, cloud_usd_per_gpu_hour: Floats, utilisation: Floats) -> Floats:
    """Months until the cloud bills that are saved make up for the purchase; broadcasts, infinite: never.

    Source: purchase / (cloud a month - running costs a month). Assumes: no interest, nothing left over at the end.
    """
    saved = own.available_hours * utilisation * np.asarray(cloud_usd_per_gpu_hour, dtype=float)
    saved = saved - own.running - own.busy_power * utilisation
    return np.where(saved > 0, own.purchase_usd / np.maximum(saved, 1e-12), np.inf)


def against_clouds(
    own: Ownership, offers: Iterable[Offer], *, utilisation: float = 0.6, purchases: tuple[str, ...] = ("on_demand",)
) -> list[AgainstCloud]:
    """The same accelerator of one's own against every offer of it with a price, cheapest cloud first.

    Raises:
        SpecError: a utilisation outside (0, 1].
    """
    if not 0 < utilisation <= 1:
        raise SpecError(f"utilisation: {utilisation:g} is out of range; allowed: above 0, up to 1")
    rows = []
    for offer, purchase in ((o, p) for o in offers if o.accelerator == own.accelerator for p in purchases):
        price = offer.price_usd_per_hour(purchase)
        if price is not None:
            each = price / (offer.count * offer.accelerator_share)
            even, months = break_even_utilisation(own, each), months_to_recover(own, each, utilisation)
            row = AgainstCloud(
                provider=offer.provider, instance=offer.instance, region=offer.region, purchase=purchase,
                usd_per_gpu_hour=each, own_usd_per_gpu_hour=float(own.usd_per_gpu_hour(utilisation)),
                break_even_utilisation=float(even) if even <= 1 else None,
                months=float(months) if months <= own.life_months else None, price_date=offer.price_date,
            )  # fmt: skip
            rows.append(row)
    return sorted(rows, key=lambda row: row.usd_per_gpu_hour)
