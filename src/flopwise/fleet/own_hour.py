"""What an hour of accelerators of one's own costs, by grade, and when that beats each cloud."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flopwise.errors import InfeasibleError, SpecError
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.catalog import Facts
from flopwise.facts.price_book import HardwarePrice
from flopwise.fleet.onprem import AgainstCloud, Ownership, Site, against_clouds, ownership

HOURLY = ("on_demand", "spot")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPrice:
    """One accelerator of one's own at one utilisation; USD, hours. None: the device has no such figure.

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
    """Accelerators whose purchase price is known, or the one asked for, the cheapest hour first.

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
            raise InfeasibleError(f"what {name} costs to buy is not known", [reason])
        names = [name]
    rows = []
    for name in names:
        price = facts.hardware_price(name)
        assert price is not None
        rows.append(_own_price(facts.accelerators[name], price, site, utilisation, facts))
    return sorted(rows, key=lambda row: row.usd_per_gpu_hour)


def _own_price(device: Accelerator, price: HardwarePrice, site: Site, utilisation: float, facts: Facts) -> OwnPrice:
    def month(usd: float | None) -> Ownership:
        return ownership(device, replace(price, usd=usd or price.usd, least_usd=None, most_usd=None), site)

    own = month(price.usd)
    low, hour, high = (
        float(month(usd).usd_per_gpu_hour(utilisation)) for usd in (price.least_usd, None, price.most_usd)
    )
    rate = device.peak.get("bf16")
    parts = ("capital", "support", "room", "staff", "idle_power")
    return OwnPrice(
        accelerator=device.name,
        grade=price.grade,
        remark=facts.grade(device.name).remark,
        unit=price.unit,
        price_usd=own.purchase_usd,
        usd_per_gpu_hour=hour,
        usd_per_gpu_hour_low=low,
        usd_per_gpu_hour_high=high,
        per_pflop_hour=None if rate is None else hour / (rate / 1e15),
        per_tb_per_s_hour=hour / (device.hbm_bytes_per_s / 1e12),
        hbm_bytes=device.hbm_bytes,
        utilisation=utilisation,
        available_hours=own.available_hours,
        month={**{part: getattr(own, part) for part in parts}, "busy_power": own.busy_power * utilisation},
        against=against_clouds(own, facts.offers, utilisation=utilisation, purchases=HOURLY),
        price_date=price.date,
        source=price.source,
        confidence=price.confidence,
    )
