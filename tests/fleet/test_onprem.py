"""Machines of your own: parts that add up, break-evens that a search finds too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.price_book import HardwarePrice
from flopwise.fleet import onprem
from flopwise.fleet.onprem import COLOCATED, Ownership, Site, against_clouds, ownership

FACTS = load_facts()
H100 = FACTS.accelerators["H100-SXM-80"]


def own(site: Site | None = None) -> Ownership:
    price = FACTS.hardware_price("H100-SXM-80")
    assert price is not None
    return ownership(H100, price, site)


def test_a_month_by_hand() -> None:
    price = HardwarePrice(
        accelerator=H100.name, unit="server", grade="datacentre", count=8, usd=288_000, source="s", date="2026-01-01"
    )
    site = Site(
        years=4, residual_frac=0, interest_per_year=0, support_frac_per_year=0, network_frac=0, staff_usd_per_year=0,
        facility_usd_per_kw=0, usd_per_kwh=0.1, pue=1.5, maintenance_hours_per_month=0,
    )  # fmt: skip
    month = ownership(H100, price, site)
    assert month.capital == pytest.approx(36_000 / 48)
    # 700 W at 95 % and 350 W of host, with a PUE of 1.5, for 730 h at ten cents
    assert month.usd_per_month(1.0) == pytest.approx(750 + (0.95 * 700 + 350) / 1000 * 1.5 * 730 * 0.1)
    assert month.usd_per_month(0.0) == pytest.approx(750 + (0.10 * 700 + 350) / 1000 * 1.5 * 730 * 0.1)
    assert month.usd_per_gpu_hour(0.5) == pytest.approx(month.usd_per_month(0.5) / 365)


@pytest.mark.parametrize("cloud", [1.5, 2.4, 4.0, 11.0])
def test_break_even_is_where_a_search_finds_it(cloud: float) -> None:
    month = own()
    grid = np.linspace(0.001, 1.0, 100_000)
    cheaper = grid[month.usd_per_month(grid) <= month.available_hours * grid * cloud]
    found = float(onprem.break_even_utilisation(month, cloud))
    if cheaper.size:
        assert found == pytest.approx(cheaper[0], abs=2e-5)
    else:
        assert found > 1


def test_months_are_where_cumulated_spending_crosses() -> None:
    month, cloud, busy = own(), 4.0, 0.7
    each = month.running + month.busy_power * busy
    owned = month.purchase_usd + each * np.arange(1, 121)
    rented = month.available_hours * busy * cloud * np.arange(1, 121)
    first = int(np.argmax(rented >= owned)) + 1
    assert float(onprem.months_to_recover(month, cloud, busy)) == pytest.approx(first, abs=1)
    assert onprem.months_to_recover(month, 0.1, busy) == np.inf


def test_every_offer_of_the_accelerator_is_compared() -> None:
    month = own()
    rows = against_clouds(month, FACTS.offers, purchases=("on_demand", "reserved_1y"))
    priced = [o for o in FACTS.offers if o.accelerator == H100.name]
    assert len(rows) == sum(o.price_usd_per_hour(p) is not None for o in priced for p in ("on_demand", "reserved_1y"))
    assert [row.usd_per_gpu_hour for row in rows] == sorted(row.usd_per_gpu_hour for row in rows)
    aws = next(r for r in rows if (r.instance, r.region) == ("p5.48xlarge", "us-east-1") and r.purchase == "on_demand")
    assert aws.usd_per_gpu_hour == pytest.approx(55.04 / 8)
    assert aws.break_even_utilisation is not None
    assert 0.1 < aws.break_even_utilisation < 0.5
    assert aws.months is not None
    dear = against_clouds(month, FACTS.offers, utilisation=0.05)
    assert all(row.months is None for row in dear[:5]), "hardly used, they are not recovered within their life"


def test_what_raises_the_cost_raises_it() -> None:
    base = float(own().usd_per_gpu_hour(0.6))
    dearer: list[Site] = [
        Site(pue=2.0), Site(usd_per_kwh=0.3), Site(years=3), Site(staff_usd_per_year=300_000),
        Site(interest_per_year=0.2),
        Site(maintenance_hours_per_month=60), Site(network_frac=0.5), Site(facility_usd_per_kw=30_000), COLOCATED,
    ]  # fmt: skip
    for site in dearer:
        assert float(own(site).usd_per_gpu_hour(0.6)) > base
    assert float(own().usd_per_gpu_hour(0.9)) < base


def test_consumer_cards_cost_less_than_those_of_data_centres() -> None:
    cost = {
        p.accelerator: float(ownership(FACTS.accelerators[p.accelerator], p).usd_per_gpu_hour(0.6))
        for p in FACTS.hardware_prices
    }
    assert cost["RTX 4090"] < cost["L40S"] < cost["H100-SXM-80"] < cost["B200"]


def test_impossible_sites_are_refused() -> None:
    for wrong in (
        {"pue": 0.9},
        {"years": 0},
        {"usd_per_kwh": -1},
        {"residual_frac": 1.5},
        {"interest_per_year": float("nan")},
    ):
        with pytest.raises(SpecError, match=r"is out of range|is not finite"):
            Site(**wrong)
    price = FACTS.hardware_price("H100-SXM-80")
    assert price is not None
    with pytest.raises(SpecError, match="not of L4"):
        ownership(FACTS.accelerators["L4"], price)
    with pytest.raises(SpecError, match="utilisation"):
        against_clouds(own(), FACTS.offers, utilisation=0)
    assert replace(Site(), pue=1.2).pue == 1.2
