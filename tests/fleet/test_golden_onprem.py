"""A month of machines of your own by hand: purchase, residual, interest, power, room, staff, break-even."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small import assess

from flopwise.facts.catalog import Facts, load_facts
from flopwise.facts.offers import Offer
from flopwise.facts.price_book import HardwarePrice
from flopwise.fleet import onprem
from flopwise.fleet.assess import assess as assess_with_plans
from flopwise.fleet.offers import OwnOffer, with_own
from flopwise.fleet.onprem import COLOCATED, Site, against_clouds, ownership
from flopwise.fleet.option import metered_kwh, running_usd
from flopwise.fleet.read import fleet_from

sys.path.insert(0, str(Path(__file__).parent))

FACTS = load_facts()
H100 = FACTS.accelerators["H100-SXM-80"]
TDP_KW = 0.7
SERVER = HardwarePrice(
    accelerator=H100.name, unit="server", grade="datacentre", count=8, usd=270_000, source="s", date="2026-01-01"
)
CARD = replace(SERVER, unit="card", count=1, usd=30_000)

# A share of a DGX with switches, cables and storage at 15 % on top
BOUGHT = 270_000 / 8 * 1.15
# written off straight over 48 months to a tenth; 8 % a year on what is tied up on average: (all + a tenth) / 2
CAPITAL = BOUGHT * 0.9 / 48 + BOUGHT * (1 + 0.1) / 2 * 0.08 / 12
SUPPORT = BOUGHT * 0.05 / 12
# the greatest draw: 95 % of the power limit, and half of it for the host
KW = TDP_KW * (0.95 + 0.50)
BUILDING = KW * 11_000 / (15 * 12)
STAFF = 150_000 / 12 / 250
# a device idles at a tenth of its limit, its host draws as always; PUE 1.54, 12.8 cents, 730 hours
IDLE = TDP_KW * (0.10 + 0.50) * 1.54 * 730 * 0.128
# work adds 85 % of the limit in the 722 hours that maintenance leaves
BUSY = TDP_KW * 0.85 * 1.54 * 722 * 0.128
FIXED = CAPITAL + SUPPORT + BUILDING + STAFF + IDLE


def test_every_line_of_a_month_of_one_accelerator() -> None:
    assert H100.tdp_w == 1000 * TDP_KW
    month = ownership(H100, SERVER)
    assert month.purchase_usd == pytest.approx(BOUGHT)
    assert month.capital == pytest.approx(CAPITAL)
    assert month.support == pytest.approx(SUPPORT)
    assert month.room == pytest.approx(BUILDING)
    assert month.staff == pytest.approx(STAFF)
    assert month.idle_power == pytest.approx(IDLE)
    assert month.busy_power == pytest.approx(BUSY)
    assert (month.available_hours, month.life_months) == (722, 48)
    assert month.fixed_usd == pytest.approx(FIXED)
    assert month.running == pytest.approx(FIXED - CAPITAL)
    assert month.usd_per_month(0.6) == pytest.approx(FIXED + 0.6 * BUSY)
    assert month.usd_per_gpu_hour(0.6) == pytest.approx((FIXED + 0.6 * BUSY) / (0.6 * 722))


def test_a_card_needs_its_share_of_a_host() -> None:
    assert ownership(H100, CARD).purchase_usd == pytest.approx((30_000 + 2_500) * 1.15)


def test_colocation_is_rent_for_the_power_reserved_and_electricity_at_its_overhead() -> None:
    month = ownership(H100, SERVER, COLOCATED)
    assert month.room == pytest.approx(KW * 184.06)
    assert month.idle_power == pytest.approx(TDP_KW * 0.6 * 1.4 * 730 * 0.128)
    assert month.busy_power == pytest.approx(TDP_KW * 0.85 * 1.4 * 722 * 0.128)
    assert month.capital == pytest.approx(CAPITAL)


def test_break_even_with_a_cloud_paid_by_the_hour_and_months_to_recover() -> None:
    """At $5 an hour: u x 722 x 5 = fixed + u x busy; what is saved a month at 60 % pays the purchase back."""
    month = ownership(H100, SERVER)
    even = FIXED / (722 * 5 - BUSY)
    saved = 0.6 * 722 * 5 - (FIXED - CAPITAL) - 0.6 * BUSY
    assert onprem.break_even_utilisation(month, 5.0) == pytest.approx(even)
    assert onprem.months_to_recover(month, 5.0, 0.6) == pytest.approx(BOUGHT / saved)
    offer = Offer(
        provider="aws", instance="x", region="r", accelerator=H100.name, count=8, source="s", price_date="2026-01-01",
        on_demand_usd_per_hour=40.0,
    )  # fmt: skip
    (row,) = against_clouds(month, [offer], utilisation=0.6)
    assert row.usd_per_gpu_hour == pytest.approx(5.0)
    assert row.own_usd_per_gpu_hour == pytest.approx((FIXED + 0.6 * BUSY) / (0.6 * 722))
    assert row.break_even_utilisation == pytest.approx(even)
    assert row.months == pytest.approx(BOUGHT / saved)


def cellar(**more: Any) -> OwnOffer:
    """Machines of eight H100 in your own room, as an offer."""
    machines: dict[str, Any] = {"name": "dgx", "gpu": "h100", "gpus": 8, "count": 2, "price": 270_000, **more}
    job = {"name": "d", "task": "develop", "machines": {"count": 1, "gpus": ["H100"]}}
    read = fleet_from({"name": "f", "workloads": [job], "own_machines": [machines]})
    offer = next(o for o in with_own(FACTS, read.fleet.own_machines).offers if isinstance(o, OwnOffer))
    assert isinstance(offer, OwnOffer)
    return offer


def test_a_machine_costs_what_its_accelerators_do() -> None:
    """Two are there, their price is spent; three more may be bought."""
    offer = cellar(buy_up_to=3)
    standing, capital = 8 * (FIXED - CAPITAL), 8 * CAPITAL
    assert offer.standing == pytest.approx(standing)
    assert offer.capital == pytest.approx(capital)
    assert offer.pool.off_usd + offer.pool.tiers[0][1] == pytest.approx(standing)
    assert offer.pool.off_usd == pytest.approx(standing - 8 * IDLE), "kept, and turned off: all but the power"
    assert [count for count, _ in offer.pool.tiers] == [2, 3]
    assert [usd for _, usd in offer.pool.tiers] == pytest.approx([8 * IDLE, standing + capital])
    assert offer.pool.used_usd(1) == pytest.approx(standing)
    assert offer.pool.used_usd(4) == pytest.approx(2 * standing + 2 * (standing + capital))
    assert offer.first_usd == pytest.approx(standing)
    assert offer.price_usd_per_hour("owned") == pytest.approx((standing + 8 * BUSY) / 722)
    unpaid = cellar(sunk=False, kept=False)
    assert unpaid.pool.off_usd + unpaid.pool.tiers[0][1] == pytest.approx(standing + capital)
    assert unpaid.pool.off_usd == 0.0
    bought = cellar(count=0, buy_up_to=1)
    assert bought.first_usd == pytest.approx(standing + capital)


def test_work_adds_its_power_at_the_meter_of_the_room() -> None:
    """8 x 700 W; joules of the search have its overhead of 1.2, the room has 1.54."""
    offer = cellar()
    assert metered_kwh(3.6e9, offer.site.pue) == pytest.approx(1000 * 1.54 / 1.2)
    idle_kwh = 8 * TDP_KW * 0.6 * 1.54 * 730
    assert offer.idle_kwh == pytest.approx(idle_kwh)
    # 4,000 kWh in 500 busy hours: what the machine would have drawn idle in those hours is in its month
    assert running_usd(offer, 4000.0, 500.0) == pytest.approx((4000 - idle_kwh * 500 / 730) * 0.128)
    assert running_usd(offer, None, 361.0) == pytest.approx(8 * BUSY / 2), "unknown work: as at full use"
    assert running_usd(offer, 1.0, 500.0) == 0.0


@pytest.fixture(scope="module")
def rented() -> Facts:
    """One offer: eight H100 at $40 an hour, $29.20 for a year's reservation."""
    offer = next(o for o in FACTS.offers if o.accelerator == H100.name and o.count == 8 and o.provider == "aws")
    offer = replace(
        offer, on_demand_usd_per_hour=40.0, reserved_1y_usd_per_hour=29.2, spot_usd_per_hour=None,
        reserved_3y_usd_per_hour=None,
    )  # fmt: skip
    return FACTS.with_tables(offers=(offer,))


def test_the_bill_of_machines_that_are_there(rented: Facts) -> None:
    """Two machines: one works 200 h a month at full power, the other is kept and turned off."""
    desk = {
        "name": "desk", "task": "develop", "machines": {"count": 1, "gpus": ["H100"], "gpus_each": 8},
        "hours": {"per_day": 10, "days": 20},
    }  # fmt: skip
    own = {"name": "dgx", "gpu": "h100", "gpus": 8, "count": 2, "price": 270_000, "site": {"pue": 1.54}}
    fleet = fleet_from({"name": "f", "workloads": [desk], "own_machines": [own]})
    found = assess(fleet, rented, scenarios=0)
    standing = 8 * (FIXED - CAPITAL)
    used = standing + 8 * BUSY * 200 / 722
    rows = {row.role: row for row in found.allocation}
    assert rows["primary"].usd_per_month == pytest.approx(used)
    assert rows["idle"].usd_per_month == pytest.approx(standing - 8 * IDLE)
    assert found.usd_per_month.total == pytest.approx(used + standing - 8 * IDLE)
    (line,) = found.own_machines
    assert line["usd_per_month_standing"] == pytest.approx(standing)
    assert line["usd_per_month_capital"] == pytest.approx(8 * CAPITAL)
    assert line["usd_per_month_full_power"] == pytest.approx(8 * BUSY)
    assert line["utilisation"] == pytest.approx(200 / 722)
    assert line["price_usd"] == pytest.approx(8 * BOUGHT)


def test_break_even_with_what_is_reserved_and_paid_all_month(rented: Facts) -> None:
    """$29.20 an hour of eight, 730 hours: what buying has to cost less than, at the use that the machines have."""
    desk = {
        "name": "desk", "task": "develop", "machines": {"count": 1, "gpus": ["H100"], "gpus_each": 8},
        "hours": {"per_day": 10, "days": 20},
    }  # fmt: skip
    own = {"name": "dgx", "gpu": "h100", "gpus": 8, "buy_up_to": 1, "count": 0, "price": 270_000}
    fleet = fleet_from({"name": "f", "workloads": [desk], "own_machines": [own], "policies": {"purchase": ["owned"]}})
    (line,) = assess(fleet, rented, scenarios=0).own_machines
    row = next(r for r in line["against"] if r["purchase"] == "reserved_1y")
    cloud, use = 29.2 / 8 * 730, 200 / 722
    assert FIXED + BUSY * use < cloud, "less than the reservation at any use"
    assert row["break_even_utilisation"] == 0.0
    assert row["keeping_break_even_utilisation"] == 0.0
    assert row["months"] == pytest.approx(BOUGHT / (cloud - (FIXED - CAPITAL) - BUSY * use))
    hourly = next(r for r in line["against"] if r["purchase"] == "on_demand")
    assert hourly["break_even_utilisation"] == pytest.approx(FIXED / (722 * 5 - BUSY))
    assert hourly["keeping_break_even_utilisation"] == pytest.approx((FIXED - CAPITAL) / (722 * 5 - BUSY))


def test_electricity_of_one_s_own_emits_what_the_fleet_says(rented: Facts) -> None:
    """20 g a kWh; joules of the plan at the room's PUE, the power of work in the bill."""
    tune = {
        "name": "tune", "task": "finetune", "model": "Llama-7B", "method": {"kind": "lora"}, "runs_per_month": 4,
        "data": {"tokens": "50M", "seq_len": 2048}, "constraints": {"min_gpus": 8, "max_gpus": 8},
    }  # fmt: skip
    own = {"name": "dgx", "gpu": "h100", "gpus": 8, "count": 1, "price": 270_000, "kg_per_kwh": 0.02}
    fleet = fleet_from({"name": "f", "workloads": [tune], "own_machines": [own], "policies": {"purchase": ["owned"]}})
    found = assess_with_plans(fleet, rented, scenarios=0)
    joules = found.plans["tune"].plans[0].energy_joules
    assert joules is not None
    (result,), kwh = found.assessment.workloads, 4 * joules / 3.6e6 * 1.54 / 1.2
    assert result.energy_kwh_per_month == pytest.approx(kwh)
    assert result.carbon_kg_per_month == pytest.approx(0.02 * kwh)
    idle_kwh = 8 * TDP_KW * 0.6 * 1.54 * result.hours_per_month
    work = max(0.0, kwh - idle_kwh) * 0.128
    assert found.assessment.usd_per_month.total == pytest.approx(8 * (FIXED - CAPITAL) + work)


def test_the_defaults_are_what_their_sources_say() -> None:
    """12.8 cents (EIA), 1.54 (Uptime Institute), 11,000 USD a kW (Turner & Townsend), 184.06 a kW and month (CBRE)."""
    site = Site()
    assert (site.usd_per_kwh, site.pue, site.facility_usd_per_kw) == (0.128, 1.54, 11_000)
    assert COLOCATED.colocation_usd_per_kw_month == 184.06
