"""Machines of your own, in your own room or in colocation: USD for each GPU-hour, and when that beats a cloud."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from flopwise.cost.energy import DEFAULT_POWER, PowerModel, device_watts, facility_joules
from flopwise.errors import InfeasibleError, SpecError
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.catalog import Facts
from flopwise.facts.offers import Offer
from flopwise.facts.price_book import HardwarePrice
from flopwise.fleet.spec import SiteFigures
from flopwise.ops.types import Floats
from flopwise.options import options_of
from flopwise.units import HOUR_S, HOURS_PER_MONTH
from flopwise.values import dataclass, replace

HOURLY = ("on_demand", "spot")
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The costs of owning machines besides their purchase; USD, months, shares of the purchase price.

    Sources: usd_per_kwh: EIA, Electric Power Monthly table 5.6.A, April 2025, commercial customers, East North Central
    (12.8 cents); pue: Uptime Institute, Global Data Center Survey 2025 (1.54); facility: 11,000 USD a kW of building,
    power and cooling plant over 15 years (Turner & Townsend, Data Centre Cost Index 2024, recalled); colocation: CBRE,
    North America Data Center Trends H2 2024, 184.06 USD a kW and month for 250 to 500 kW, electricity apart. Assumed,
    to be replaced by your own: years, residual, interest, support, network, staff, maintenance, host of a card.
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
        """Refuse figures out of range, as a fleet file refuses them."""
        for name, declared in options_of(SiteFigures).items():
            value = getattr(self, name, None)
            if value is not None:
                declared.parse(value, name)


COLOCATED = Site(colocation_usd_per_kw_month=184.06, pue=1.4)
"""A colocation site: rent for reserved power, plus electricity with its overhead (assumed)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """The monthly cost of one accelerator of your own, in USD, and its purchase."""

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
    def fixed_usd(self) -> float:
        """USD a month whatever its use."""
        return self.capital + self.support + self.room + self.staff + self.idle_power

    @property
    def running(self) -> float:
        """USD a month that go on being spent at idle once it is paid: all but capital."""
        return self.fixed_usd - self.capital

    def usd_per_month(self, utilisation: Floats) -> Floats:
        """Cost of a month at a utilisation (share of the available hours that are worked); broadcasts.

        Source: `ownership`. Assumes: power rises linearly with utilisation.
        """
        return self.fixed_usd + self.busy_power * utilisation

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


def kwh_on(
    accelerator: Accelerator, num_devices: Floats, hours: Floats, busy_frac: Floats, power: PowerModel = DEFAULT_POWER
) -> Floats:
    """Electricity at the meter of devices that are on for `hours`, busy with compute for a share of them; broadcasts.

    Source: `flopwise.cost.energy`. Assumes: as there; what is not busy idles, its host draws as always.
    Raises: MissingFactError: the device's power limit is not known.
    """
    watts = device_watts(accelerator.figure("tdp_w"), busy_frac, 0.0, 0.0, power)
    return facility_joules(accelerator, num_devices, watts, hours * HOUR_S, power) / JOULES_PER_KWH


def ownership(accelerator: Accelerator, price: HardwarePrice, site: Site | None = None) -> Ownership:
    """The monthly cost of one accelerator of your own, in parts.

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
    """Utilisation from which your own cost no more than a cloud paid by the hour worked; broadcasts, above 1: never.

    Source: fixed + busy u = available u p. Assumes: as `Ownership.usd_per_month`; the cloud is turned off when idle.
    """
    margin = own.available_hours * np.asarray(cloud_usd_per_gpu_hour, dtype=float) - own.busy_power
    return np.where(margin > 0, own.fixed_usd / np.maximum(margin, 1e-12), np.inf)


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
    """Comparison of an own accelerator with every priced offer of the same one, cheapest cloud first.

    Raises: SpecError: a utilisation outside (0, 1].
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
                months=float(months) if months <= own.life_months else None, price_date=offer.price_date_of(purchase),
            )  # fmt: skip
            rows.append(row)
    return sorted(rows, key=lambda row: row.usd_per_gpu_hour)


# An hour of your own, by accelerator


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPrice:
    """One accelerator of your own at one utilisation; USD, hours. None: the device has no such figure.

    `usd_per_gpu_hour` is of an hour of work, `_low` and `_high` at the ends of what it costs to buy; `per_pflop` and
    `per_tb_per_s` divide it by the dense bf16 rate and the memory's. `month` are the parts of a month. `against` are
    the offers of the same accelerator that are paid by the hour, the cheapest first.
    """

    accelerator: str
    grade: str
    remark: str
    unit: str
    price_usd: float  # of one accelerator, with its share of host and network
    usd_per_gpu_hour: float
    usd_per_gpu_hour_low: float
    usd_per_gpu_hour_high: float
    per_pflop_hour: float | None
    per_tb_per_s_hour: float | None
    hbm_bytes: float
    utilisation: float
    available_hours: float
    month: dict[str, float]
    against: list[AgainstCloud]
    price_date: str
    source: str
    confidence: str


def hourly_prices(facts: Facts, site: Site, utilisation: float, gpu: str | None = None) -> list[OwnPrice]:
    """Accelerators with a known purchase price, or the one named, the cheapest hour first.

    Raises:
        SpecError, UnknownNameError: a figure out of range; no such accelerator.
        InfeasibleError: nobody's purchase price of it is known.
    """
    if not 0 < utilisation <= 1:
        raise SpecError(f"utilisation: {utilisation:g} is out of range; allowed: above 0, up to 1")
    names = list(dict.fromkeys(price.accelerator for price in facts.hardware_prices))
    if gpu is not None:
        name = facts.accelerator(gpu).name
        if name not in names:
            reason = f"there are prices of {', '.join(names)}; `onprem.csv` in a facts folder adds one"
            raise InfeasibleError(f"the purchase price of {name} is not known", [reason])
        names = [name]
    rows = [_own_price(facts.accelerators[name], site, utilisation, facts) for name in names]
    return sorted(rows, key=lambda row: row.usd_per_gpu_hour)


def _own_price(device: Accelerator, site: Site, utilisation: float, facts: Facts) -> OwnPrice:
    price = facts.hardware_price(device.name)
    assert price is not None, "only accelerators with a price are asked about"

    def month(usd: float | None) -> Ownership:
        return ownership(device, replace(price, usd=usd or price.usd, least_usd=None, most_usd=None), site)

    own = month(price.usd)
    low, hour, high = (
        float(month(usd).usd_per_gpu_hour(utilisation)) for usd in (price.least_usd, None, price.most_usd)
    )
    rate = device.peak.get("bf16")
    month_parts = {part: getattr(own, part) for part in ("capital", "support", "room", "staff", "idle_power")}
    return OwnPrice(
        accelerator=device.name, grade=price.grade, remark=facts.grade(device.name).remark, unit=price.unit,
        price_usd=own.purchase_usd, usd_per_gpu_hour=hour, usd_per_gpu_hour_low=low, usd_per_gpu_hour_high=high,
        per_pflop_hour=None if rate is None else hour / (rate / 1e15),
        per_tb_per_s_hour=hour / (device.hbm_bytes_per_s / 1e12), hbm_bytes=device.hbm_bytes, utilisation=utilisation,
        available_hours=own.available_hours, month={**month_parts, "busy_power": own.busy_power * utilisation},
        against=against_clouds(
            own, (o for o in facts.offers if not o.retires_on), utilisation=utilisation, purchases=HOURLY
        ),
        price_date=price.date, source=price.source, confidence=price.confidence,
    )  # fmt: skip
