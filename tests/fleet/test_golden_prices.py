"""What hours, bytes, tokens and kilowatt-hours cost, each by hand from the price list that is shipped."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

import flopwise
from flopwise.cost.money import volume_usd
from flopwise.facts.catalog import load_facts
from flopwise.facts.offers import Offer
from flopwise.facts.price_book import HostedPrice
from flopwise.fleet import onprem, prices
from flopwise.fleet.option import carbon_kg

FACTS = load_facts()
H100 = FACTS.accelerators["H100-SXM-80"]
GIB = 2**30


def table(name: str) -> list[dict[str, str]]:
    """A shipped table as written."""
    with (Path(flopwise.__file__).parent / "data" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def offer(provider: str = "aws", instance: str = "x", region: str = "us-east-1", **prices: float) -> Offer:
    return Offer(
        provider=provider, instance=instance, region=region, accelerator="H100-SXM-80", count=8, source="s",
        price_date="2026-01-01", **prices,  # type: ignore[arg-type]  # by name
    )  # fmt: skip


def price(bought: Offer, purchase: str, hours: float, **more: float) -> prices.EffectivePrice:
    found = prices.effective(bought, purchase, hours, FACTS, **more)  # type: ignore[arg-type]  # by name
    assert found is not None
    return found


def test_on_demand_is_billed_in_whole_units_of_each_start() -> None:
    """paperspace bills whole hours: 22 starts of 8.25 hours are 22 x 9 hours."""
    terms = next(r for r in table("purchase_terms.csv") if r["provider"] == "paperspace")
    assert (terms["billing_unit_s"], terms["minimum_s"]) == ("3600", "3600")
    month = price(offer("paperspace", on_demand_usd_per_hour=4.0), "on_demand", 22 * 8.25, starts_per_month=22)
    assert month.billed_hours == pytest.approx(22 * 9)
    assert month.usd_per_month == pytest.approx(22 * 9 * 4.0)
    assert month.usd_per_hour_effective == pytest.approx(22 * 9 * 4.0 / (22 * 8.25))
    # ten starts of 20 s on aws, at least a minute each
    short = price(offer(on_demand_usd_per_hour=6.0), "on_demand", 200 / 3600, starts_per_month=10)
    assert short.usd_per_month == pytest.approx(10 * 60 / 3600 * 6.0)


def test_a_sustained_use_discount_is_of_the_hours_beyond_each_quarter() -> None:
    """n1 for 60 % of the month: a quarter at the whole price, one at 80 %, a tenth at 60 %."""
    hours = 0.6 * 730
    found = price(offer("gcp", "n1-standard-8", on_demand_usd_per_hour=2.0), "on_demand", hours)
    assert found.usd_per_month == pytest.approx(730 * 2.0 * (0.25 * 1.0 + 0.25 * 0.8 + 0.10 * 0.6), rel=1e-5)
    whole = price(offer("gcp", "n1-standard-8", on_demand_usd_per_hour=2.0), "on_demand", 730)
    assert whole.usd_per_month == pytest.approx(730 * 2.0 * 0.7), "30 % off a whole month"


def test_a_reservation_is_paid_for_all_730_hours() -> None:
    found = price(offer(on_demand_usd_per_hour=10.0, reserved_3y_usd_per_hour=4.0), "reserved_3y", 100)
    assert found.usd_per_month == pytest.approx(730 * 4.0)
    assert found.usd_per_hour_effective == pytest.approx(730 * 4.0 / 100)
    assert found.break_even_frac == pytest.approx(0.4)


def daly(every_s: float, stall_s: float, restart_s: float, mtbf_s: float) -> float:
    """Daly 2006, section 3: time for `every_s` of work between interruptions, over that work, turned round."""
    total = mtbf_s * math.exp(restart_s / mtbf_s) * (math.exp((every_s + stall_s) / mtbf_s) - 1)
    return every_s / total


def test_spot_pays_for_checkpoints_rework_and_restarts() -> None:
    """Four instances, each taken back once in 50 h: a job is hit every 12.5 h; saved every half hour in a minute."""
    found = price(
        offer(spot_usd_per_hour=3.0), "spot", 100, interruptions_per_hour=1 / 50, instances=4, checkpoint_s=60,
        restart_s=300, saved_every_s=1800,
    )  # fmt: skip
    lasting = daly(1800, 60, 300, 12.5 * 3600)
    assert found.billed_hours == pytest.approx(100 / lasting, rel=1e-5)
    assert found.usd_per_month == pytest.approx(3.0 * 100 / lasting, rel=1e-5)


def test_requests_that_are_asked_again_pay_for_restarts_alone() -> None:
    """Nothing is saved: an interruption costs ten minutes (120 s to notice, 240 s for a machine, 240 s to warm up)."""
    found = price(offer(spot_usd_per_hour=3.0), "spot", 100, interruptions_per_hour=1 / 50)
    assert found.billed_hours == pytest.approx(100 * math.exp(600 / (50 * 3600)), rel=1e-5)


def test_the_rate_of_interruptions_is_that_of_the_middle_of_the_published_range() -> None:
    row = next(r for r in table("spot.csv") if (r["provider"], r["accelerator"]) == ("aws", "H100-SXM-80"))
    assert row["period"] == "month"
    share = (float(row["least_frac"]) + float(row["most_frac"])) / 2
    per_hour = -math.log(1 - share) / (365.25 / 12 * 24)
    found = price(offer(spot_usd_per_hour=3.0), "spot", 100)
    assert found.billed_hours == pytest.approx(100 * math.exp(600 / 3600 * per_hour), rel=1e-5)


def test_a_run_of_several_months_reserves_each_of_them_whole() -> None:
    bought = offer(on_demand_usd_per_hour=10.0, reserved_1y_usd_per_hour=6.0)
    assert prices.run_usd(bought, "reserved_1y", 1500.0, FACTS)[0] == pytest.approx(3 * 730 * 6.0)  # type: ignore[index]
    assert prices.run_usd(bought, "on_demand", 1500.0, FACTS)[0] == pytest.approx(1500 * 10.0)  # type: ignore[index]


def test_storage_and_egress_in_tiers() -> None:
    """aws: $0.023 a GiB and month up to 51,200 GiB, 0.022 beyond; out: 100 GiB free, 0.09 to 10,240, 0.085 beyond."""
    tiers = {(r["provider"], r["kind"], r["from_gb"]): float(r["usd_per_gb"]) for r in table("storage_prices.csv")}
    assert tiers["aws", "storage", "51200"] == 0.022
    kept, _ = volume_usd("aws", "storage", 60_000 * GIB, FACTS)  # type: ignore[misc]  # its price is known
    assert kept == pytest.approx(51_200 * 0.023 + 8_800 * 0.022)
    sent, _ = volume_usd("aws", "egress", 20_000 * GIB, FACTS)  # type: ignore[misc]
    assert sent == pytest.approx(10_140 * 0.09 + 9_760 * 0.085)
    zones, _ = volume_usd("aws", "inter_zone", 500 * GIB, FACTS)  # type: ignore[misc]
    assert zones == pytest.approx(500 * 0.02)
    # azure counts gigabytes of 1e9 bytes
    azure, _ = volume_usd("azure", "egress", 1e12, FACTS)  # type: ignore[misc]
    assert azure == pytest.approx(900 * 0.087)


def test_kilowatt_hours_become_kilograms_by_the_region() -> None:
    grid = {(r["provider"], r["region"]): r for r in table("carbon.csv")}
    row = grid["aws", "ap-east-1"]
    kg = 250 * float(row["kg_per_kwh"])
    assert carbon_kg(250, offer(provider="aws", region="ap-east-1"), FACTS) == pytest.approx(kg)
    assert carbon_kg(250, offer(provider="nobody", region="nowhere"), FACTS) == pytest.approx(
        250 * float(grid["any", "*"]["kg_per_kwh"])
    )


def test_kilowatt_hours_of_machines_that_are_on() -> None:
    """Eight H100 for 100 h, 40 % of them computing at 95 % of 700 W, else idle at 10 %; hosts at half; PUE 1.2."""
    watts = 700 * (0.4 * 0.95 + 0.6 * 0.10)
    assert onprem.kwh_on(H100, 8, 100.0, 0.4) == pytest.approx(8 * (watts + 350) * 1.2 * 100 / 1000)


def test_a_hosted_model_costs_by_the_million_tokens() -> None:
    row = next(r for r in table("api_prices.csv") if r["name"] == "Meta-Llama-3.1-8B-Instruct")
    listed = next(p for p in load_facts().hosted_prices if p.name == row["name"] and p.provider == row["provider"])
    usd = 250e6 / 1e6 * float(row["input_usd_per_mtok"]) + 40e6 / 1e6 * float(row["output_usd_per_mtok"])
    assert prices.api_usd(listed, 250e6, 40e6) == pytest.approx(usd)


def test_break_even_of_machines_with_an_api() -> None:
    """$3,000 a month for 2,000 output tokens/s, half filled; three prompt tokens each, $0.2 and $0.6 a million."""
    listed = HostedPrice(
        provider="p", name="m", input_usd_per_mtok=0.2, output_usd_per_mtok=0.6, source="s", date="2026-01-01"
    )
    found = prices.break_even(listed, 3000.0, 2000.0, inputs_per_output=3.0, fill_frac=0.5)
    capacity = 2000 * 0.5 * 730 * 3600
    each = (3 * 0.2 + 0.6) / 1e6
    assert found.capacity_per_machine == pytest.approx(capacity)
    assert found.api_usd_per_mtok == pytest.approx(1.2)
    assert found.own_usd_per_mtok == pytest.approx(3000 / capacity * 1e6)
    assert found.first == pytest.approx(3000 / each)
    assert found.first is not None
    assert found.first < capacity
    # n machines never cost more than the API once n x 3000 / price <= (n - 1) x capacity
    machines = math.ceil(capacity / (capacity - 3000 / each))
    assert found.always == pytest.approx((machines - 1) * 3000 / each)
