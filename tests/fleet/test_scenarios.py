"""Drawn months: what is known of their distribution, what moves it, and that the fleet may say how far."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flopwise.errors import SpecError
from flopwise.fleet.assess import assess
from flopwise.fleet.assessment import Allotment, Scenarios
from flopwise.fleet.model import Platform
from flopwise.fleet.months import PARTS, drawn_months
from flopwise.fleet.option import ReplicaLoad
from flopwise.fleet.read import fleet_from
from flopwise.report.words import planned_text
from named import FACTS

sys.path.insert(0, str(Path(__file__).parent))
from small import TODAY, catalog, solved

RUN: dict[str, Any] = {
    "name": "tune", "task": "finetune", "model": "Llama-7B", "data": {"tokens": "50M", "seq_len": 2048},
}  # fmt: skip
DESKS: dict[str, Any] = {"name": "desks", "task": "develop", "machines": {"count": 10, "gpus": ["T4"]}}
CHAT: dict[str, Any] = {
    "name": "chat", "task": "serve", "model": "Llama-7B",
    "traffic": {"requests_per_s": 5, "input_tokens": 256, "output_tokens": 16},
}  # fmt: skip
STILL = {"demand": 0, "spot_price": 0, "list_price": 0, "rework_hours": 0}


def platform(job: dict[str, Any], **spreads: Any) -> Platform:
    return fleet_from({"name": "f", "workloads": [job], "policies": {"scenarios": STILL | spreads}})


def row(workload: str, purchase: str = "on_demand", **more: Any) -> Allotment:
    figures: dict[str, Any] = {
        "workload": workload, "environment": "production", "provider": "aws", "region": "r", "instance": "i",
        "gpu": "A100-SXM-80", "purchase": purchase, "count": 10, "hours_per_month": 100.0, "usd_per_hour": 1.0,
        "usd_per_hour_effective": 1.0, "usd_per_month": 1000.0, "usd_low": 1000.0, "usd_high": 1000.0,
        "price_date": "2026-01-01",
    }  # fmt: skip
    return Allotment(**figures | more)


def drawn(found: Platform, rows: list[Allotment], runs: int = 40_000, seed: int = 1, **more: Any) -> Scenarios:
    loads = more.pop("loads", [None] * len(rows))
    how = {"facts": FACTS, "loads": loads, "runs": runs, "seed": seed, **more}
    return drawn_months(found, rows, how.pop("fixed_usd", 0.0), **how)


def test_nothing_drawn_is_the_plan() -> None:
    found = drawn(platform(RUN), [row("tune")], runs=10, fixed_usd=50.0, sent_usd={"tune": 7.0})
    assert found.p10 == found.mean == found.p95 == 1057.0
    assert set(found.drivers.values()) == {0.0}


def test_demand_of_a_run_is_lognormal_about_the_plan() -> None:
    """Median, percentiles and mean of exp(0.3 z) times $1,000; what is sent follows, what is fixed does not."""
    found = drawn(platform(RUN, demand="30%"), [row("tune")], fixed_usd=500.0, sent_usd={"tune": 100.0})
    z90 = 1.2816
    assert found.p50 == pytest.approx(500 + 1100, rel=0.01)
    assert found.p90 == pytest.approx(500 + 1100 * math.exp(0.3 * z90), rel=0.01)
    assert found.p10 == pytest.approx(500 + 1100 * math.exp(-0.3 * z90), rel=0.01)
    assert found.mean == pytest.approx(500 + 1100 * math.exp(0.3**2 / 2), rel=0.01)
    assert found.drivers == {part: float(part == "demand") for part in PARTS}


def test_prices_stray_as_the_fleet_says() -> None:
    for purchase, name in (("spot", "spot_price"), ("on_demand", "list_price")):
        found = drawn(platform(RUN, **{name: 0.5}), [row("tune", purchase)])
        assert found.p90 / found.p10 == pytest.approx(math.exp(2 * 1.2816 * 0.5), rel=0.02)
    still = drawn(platform(RUN, spot_price=0.5, list_price=0.5), [row("tune", "reserved_1y")], runs=50)
    assert still.p10 == still.p95 == 1000.0


def test_drivers_are_shares_of_the_variance() -> None:
    """Two lognormals of the same spread explain a half each."""
    found = drawn(platform(RUN, demand=0.1, list_price=0.1), [row("tune")])
    assert found.drivers["demand"] == pytest.approx(0.5, abs=0.02)
    assert sum(found.drivers.values()) == pytest.approx(1.0)


def test_an_interruption_stops_all_machines_of_a_training_run() -> None:
    """Poisson interruptions of 10 machines x 100 h at one in 200 h: 5 a month, each costs 2 h of all ten machines."""

    class Record:
        interruptions_per_s = 1 / (200 * 3600)

    facts = FACTS.with_tables(spot=lambda *_: Record())
    found = drawn(platform(RUN, rework_hours=2), [row("tune", "spot")], facts=facts)
    draws = 1000 * (1 + (np.random.default_rng(9).poisson(5, 200_000) - 5) * 2 / 100)
    assert found.mean == pytest.approx(1000, rel=0.002)
    assert (found.p10, found.p90, found.p95) == pytest.approx(tuple(np.percentile(draws, [10, 90, 95])), rel=0.01)
    desks = drawn(platform(DESKS | {"interruptible": True}, rework_hours=2), [row("desks", "spot")], facts=facts)
    assert desks.p95 - desks.mean == pytest.approx((found.p95 - found.mean) / 10, rel=0.02)


def test_services_take_whole_machines() -> None:
    """Ten machines: no month between them, and none below one."""
    found, full = platform(CHAT, demand=0.2), ReplicaLoad(count=10, usd=1000.0)
    told = drawn(found, [row("chat")], runs=2000, loads=[full])
    assert {told.p10 % 100, told.p50 % 100, told.p90 % 100} == {0.0}
    assert told.p90 == 100 * math.ceil(10 * math.exp(0.2 * 1.2816)), "13 of 12.9"
    idle = drawn(found, [row("chat")], runs=2000, loads=[replace(full, filled=0.25)])
    assert idle.p95 <= 1000.0


def test_machines_to_work_on_are_as_many_as_asked() -> None:
    """One workstation of $384: a month of more work is no second one, so $400 hold; an interrupted one costs more."""
    found = platform(DESKS, demand=0.3)
    rules = replace(found.rules, budget_per_month=400.0)
    one = row("desks", count=1, usd_per_month=384.0, usd_low=384.0, usd_high=384.0)
    told = drawn(replace(found, rules=rules), [one], runs=2000)
    assert (told.p10, told.mean, told.p95, told.over_budget) == (384.0, 384.0, 384.0, 0.0)


def test_demand_and_what_machines_do_fill_the_same_room() -> None:
    """A machine 60 % full takes 1.3 times the load, or 1.3 times the time, but not both: 1.69 x 0.6 > 1."""
    one = row("chat", count=1, usd_per_month=100.0, usd_low=100.0, usd_high=100.0)
    load = ReplicaLoad(count=1, usd=100.0, filled=0.6, time_low=1 / 1.3, time_high=1.3)
    steady = drawn(platform(CHAT), [one], loads=[load])
    chance = 0.5 * math.erfc(math.log(1 / 0.6) / (math.log(1.3) / 1.2815515655446004) / math.sqrt(2))
    assert steady.mean == pytest.approx(100 * (1 + chance), rel=0.005)
    both = drawn(platform(CHAT, demand=0.3), [one], loads=[load])
    spread = math.hypot(0.3, math.log(1.3) / 1.2815515655446004)
    above = sum(0.5 * math.erfc(math.log(n / 0.6) / spread / math.sqrt(2)) for n in range(1, 8))
    assert both.mean == pytest.approx(100 * (1 + above), rel=0.005)
    assert both.drivers["demand"] > 0.0 < both.drivers["prediction"]


def test_reserved_machines_are_paid_and_missing_ones_come_on_top() -> None:
    """Three full ones at $100: less demand saves nothing, more buys whole ones at $250."""
    kept = row("chat", "reserved_1y", count=3, usd_per_month=300.0, usd_low=300.0, usd_high=300.0)
    load = ReplicaLoad(count=3, usd=300.0, paid=True, missing_usd=250.0)
    told = drawn(platform(CHAT, demand=0.3), [kept], loads=[load])
    assert told.p10 == 300.0
    assert told.p90 == 300 + 250 * (math.ceil(3 * math.exp(0.3 * 1.2816)) - 3)


def test_a_larger_budget_is_exceeded_less_often_and_the_same_seed_says_the_same() -> None:
    base = platform(RUN, demand=0.3, list_price=0.1)
    chances = list[float]()
    for budget in (400, 800, 1000, 1250, 2500):
        rules = replace(base.rules, budget_per_month=float(budget))
        chances.append(drawn(replace(base, rules=rules), [row("tune")]).over_budget or 0.0)
    assert chances == sorted(chances, reverse=True)
    assert chances[2] == pytest.approx(0.5, abs=0.01)
    spread = math.hypot(0.3, 0.1)
    assert chances[3] == pytest.approx(0.5 * math.erfc(math.log(1.25) / spread / math.sqrt(2)), abs=0.01)
    assert drawn(base, [row("tune")]) == drawn(base, [row("tune")])
    assert drawn(base, [row("tune")], seed=2) != drawn(base, [row("tune")])


@pytest.mark.parametrize(
    ("given", "told"),
    [({"demand": "-1%"}, "policies.scenarios.demand"), ({"list_price": 3}, "allowed: 0 or more, up to 2"),
     ({"rework_hours": 1e9}, "policies.scenarios.rework_hours"), ({"demnad": 1}, "demnad")],
)  # fmt: skip
def test_wrong_spreads_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        fleet_from({"name": "f", "workloads": [DESKS], "policies": {"scenarios": given}})


def users(count: int, demand: float) -> Platform:
    """Users in flight of a small model, in months whose demand varies so much."""
    traffic = {"concurrency": count, "input_tokens": 256, "output_tokens": 64}
    chat = {"name": "chat", "task": "serve", "model": "gpt2", "traffic": traffic}
    return fleet_from({"name": "f", "workloads": [chat], "policies": {"scenarios": STILL | {"demand": demand}}})


def test_the_planned_bill_says_why_the_expected_one_is_far_from_it() -> None:
    """Users that leave their machine room take no other in busier months; those that fill it do, half of the time."""
    (load,) = solved(users(40, 0.15), catalog()).loads
    assert load is not None
    most = math.floor(40 / load.filled)
    assert most > 1.5 * 40
    for count, dearer in ((40, False), (most, True)):
        found = assess(users(count, 0.15), catalog(), scenarios=500, today=TODAY).assessment
        planned, expected = found.usd_per_month.total, found.usd_per_month.expected
        assert [row.count for row in found.allocation] == [load.count]
        assert expected == pytest.approx((1.5 if dearer else 1.0) * planned, rel=0.05)
        why = "; months whose demand needs more or fewer machines make the difference, on average"
        assert planned_text(found).endswith("at list prices" + why * dearer)
