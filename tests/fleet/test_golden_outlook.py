"""The months to come by hand: growth, hours of schedules, interruptions, risks, what-ifs, savings."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small import assess

import flopwise
from flopwise.facts.catalog import Facts, load_facts
from flopwise.fleet.assessment import Assessment
from flopwise.fleet.read import fleet_from
from flopwise.fleet.schedules import schedule
from flopwise.fleet.spec import Hours

MONTH = 730.0
TUNE: dict[str, Any] = {
    "name": "tune", "task": "finetune", "model": "Llama-7B", "method": {"kind": "lora"}, "runs_per_month": 4,
    "data": {"tokens": "50M", "seq_len": 2048},
}  # fmt: skip
CHAT: dict[str, Any] = {
    "name": "chat", "task": "encode", "model": "bert-base-uncased", "environment": "production",
    "traffic": {"requests_per_s": 100, "input_tokens": 128},
}  # fmt: skip


@pytest.fixture(scope="module")
def facts() -> Facts:
    """Eight H100: with aws at $40 on demand, $15 on spot, $24 reserved; with gcp at $44."""
    whole = load_facts()
    prices: dict[str, Any] = {"reserved_3y_usd_per_hour": None}
    aws = next(o for o in whole.offers if (o.instance, o.region) == ("p5.48xlarge", "us-east-1"))
    aws = replace(aws, on_demand_usd_per_hour=40.0, spot_usd_per_hour=15.0, reserved_1y_usd_per_hour=24.0, **prices)
    gcp = next(o for o in whole.offers if (o.instance, o.region) == ("a3-highgpu-8g", "us-central1"))
    prices |= {"spot_usd_per_hour": None, "reserved_1y_usd_per_hour": None}
    return whole.with_tables(offers=(aws, replace(gcp, on_demand_usd_per_hour=44.0, **prices)))


def desks(name: str = "desks", count: int = 2, **more: Any) -> dict[str, Any]:
    job = {"name": name, "task": "develop", "environment": "production", "machines": {"count": count, "gpus": ["H100"]}}
    return job | more


def answer(facts: Facts, *jobs: dict[str, Any], **policies: Any) -> Assessment:
    fleet = fleet_from({"name": "f", "workloads": list(jobs), "policies": policies})
    return assess(fleet, facts, scenarios=0, today="2026-11-21")


def per_hour() -> float:
    """Interruptions an hour of a spot instance of H100 with aws: the middle of the published monthly range."""
    with (Path(flopwise.__file__).parent / "data" / "spot.csv").open(encoding="utf-8", newline="") as file:
        row = next(r for r in csv.DictReader(file) if (r["provider"], r["accelerator"]) == ("aws", "H100-SXM-80"))
    return -math.log(1 - (float(row["least_frac"]) + float(row["most_frac"])) / 2) / (365.25 / 12 * 24)


@pytest.mark.parametrize(
    ("hours", "expected"),
    [
        (Hours(per_day=8), 8 * 22),
        (Hours(per_day=8, days=20), 8 * 20),
        (Hours(start="08:00", stop="17:30", days="weekdays"), 9.5 * 5 * 730 / 168),
        (Hours(start="22:00", stop="06:00", days=["sat", "sun"]), 8 * 2 * 730 / 168),
        (Hours(start="08:00", stop="16:00"), 8 * 730 / 24),
        (Hours(days=["mon"]), 24 * 730 / 168),
        (Hours(always=True), 730),
    ],
)
def test_hours_of_a_month_of_schedules(hours: Hours, expected: float) -> None:
    """A month has 730 hours: 30.4 days, each day of the week 4.345 times."""
    assert schedule(hours, "production", "w").hours_per_month == pytest.approx(expected)


def test_usual_hours_of_environments() -> None:
    usual = {name: schedule(None, name, "w").hours_per_month for name in ("development", "staging", "training")}
    assert usual == {"development": 8 * 22, "staging": 4 * 22, "training": pytest.approx(24 * 730 / 168)}


def test_the_bill_of_the_months_to_come(facts: Facts) -> None:
    """Runs that grow by 10 % a month from January on, desks from the start, what is sent growing with the runs."""
    volumes = {"storage": "10TiB", "egress": "1TiB"}
    job = TUNE | {"growth_per_month": "10%", "starts": "2027-01", "volumes": volumes}
    found = answer(facts, job, desks(starts="2026-12"))
    runs = sum(row.usd_per_month for row in found.allocation if row.workload == "tune")
    kept, sent = 10 * 1024 * 0.023, (1024 - 100) * 0.09
    months = found.forecast
    assert (months[0].month, months[1].month) == ("2026-12", "2027-01")
    assert len(months) == 1 + 1 + 12, "to a year after the last beginning"
    assert months[0].usd == pytest.approx(2 * MONTH * 40.0)
    assert [m.workloads for m in months[:3]] == [1, 2, 2]
    for number, month in enumerate(months[1:]):
        grown = 1.1**number
        assert month.usd == pytest.approx(2 * MONTH * 40.0 + runs * grown + kept + sent * grown, rel=2e-4)


def test_growth_of_a_year_is_compounded(facts: Facts) -> None:
    """Twelve months at 5 %, and twice the runs: each times the bill of on-demand runs."""
    found = answer(facts, TUNE | {"growth_per_month": "5%"})
    usd = found.usd_per_month.total
    rows = {question.name: question.usd_per_month for question in found.whatif}
    growth = next(question.text for question in found.whatif if question.name == "growth after 12 months")
    assert "each workload one year after it begins (x 1.8), with machines chosen" in growth  # 1.05 ** 12 = 1.7959
    assert rows["growth after 12 months"] == pytest.approx(usd * 1.05**12, rel=1e-3)
    assert rows["traffic and runs x 2"] == pytest.approx(2 * usd, rel=1e-3)


def test_prices_that_rise_and_a_provider_that_is_lost(facts: Facts) -> None:
    """$40 + 20 % is more than gcp's $44, at which its machines are taken; all prices rise by a fifth together."""
    found = answer(facts, desks())
    rows = {question.name: question for question in found.whatif}
    usd = 2 * MONTH * 40.0
    assert rows["prices of aws rise 20 %"].usd_per_month == pytest.approx(2 * MONTH * 44.0)
    assert rows["prices of aws rise 20 %"].change_usd == pytest.approx(2 * MONTH * 4.0)
    assert rows["all prices rise 20 %"].usd_per_month == pytest.approx(1.2 * usd)
    assert rows["aws is lost"].usd_per_month == pytest.approx(2 * MONTH * 44.0)
    lost = next(risk for risk in found.risks if risk.kind == "single provider")
    assert lost.impact == pytest.approx(4 / 40), "all of the bill, of which the loss adds a tenth"


def test_a_week_without_spot(facts: Facts) -> None:
    """A week is 168 of 730 hours: for that long $40 in place of what spot costs."""
    found = answer(facts, desks(interruptible=True, constraints={"providers": ["aws"]}), purchase=["spot", "on_demand"])
    spot = 2 * MONTH * math.exp(600 / 3600 * per_hour()) * 15.0
    assert found.usd_per_month.total == pytest.approx(spot, rel=1e-5)
    row = next(question for question in found.whatif if question.name == "no spot capacity for a week")
    assert row.usd_per_month == pytest.approx(spot + 168 / 730 * (2 * MONTH * 40.0 - spot), rel=1e-5)


def test_interruptions_expected_in_a_month(facts: Facts) -> None:
    """Twenty machines for 730 hours: rate x hours x machines; the alert's count is reached in 5 % of months at most."""
    job = desks(count=20, interruptible=True, constraints={"providers": ["aws"]})
    found = answer(facts, job, purchase=["spot"])
    (row,) = found.allocation
    expected = per_hour() * row.hours_per_month * 20
    risk = next(risk for risk in found.risks if risk.kind == "interruption")
    assert risk.probability == pytest.approx(1 - math.exp(-per_hour() * MONTH * 20))
    alert = next(alert for alert in found.monitoring if alert.metric == "interruptions a month")
    count = round(alert.threshold)

    def at_least(n: int) -> float:
        return 1 - sum(math.exp(-expected) * expected**k / math.factorial(k) for k in range(n))

    assert at_least(count) < 0.05 <= at_least(count - 1)
    moves = next(risk for risk in found.risks if risk.kind == "price" and "spot prices" in risk.evidence)
    assert moves.score == pytest.approx(0.5), "all of the bill, at a rate that nobody published"


def test_drawn_months_of_interruptions(facts: Facts) -> None:
    """Poisson: the spread of the bill is that of the interruptions, each forty hours of one machine."""
    spreads = {"demand": 0, "spot_price": 0, "list_price": 0, "rework_hours": 40}
    job = desks(interruptible=True, constraints={"providers": ["aws"]})
    fleet = fleet_from({"name": "f", "workloads": [job], "policies": {"purchase": ["spot"], "scenarios": spreads}})
    found = assess(fleet, facts, scenarios=20_000, today="2026-11-21")
    (row,), drawn = found.allocation, found.scenarios
    assert drawn is not None
    expected = per_hour() * row.hours_per_month * 2
    assert drawn.drivers["interruptions"] == pytest.approx(1.0)
    assert drawn.mean == pytest.approx(row.usd_per_month, rel=0.01)
    none = row.usd_per_month * (1 - expected * 40 / (2 * row.hours_per_month))
    assert drawn.p10 == pytest.approx(none, rel=1e-6), "no interruption at all: fewer than are expected"


def test_what_schedules_and_spot_save(facts: Facts) -> None:
    """Off for all but 176 hours, and at $15 in place of $40 for those: two steps of one ladder."""
    hours = {"per_day": 8, "days": 22}
    job = desks(interruptible=True, hours=hours, constraints={"providers": ["aws"]})
    found = answer(facts, job, purchase=["spot", "on_demand"])
    paid = found.usd_per_month.total
    steps = {saving.what: saving.usd_per_month for saving in found.savings if saving.counted}
    assert steps["schedule"] == pytest.approx(2 * (MONTH - 176) * 40.0)
    assert steps["spot"] == pytest.approx(2 * 176 * 40.0 - paid)
    assert paid + sum(steps.values()) == pytest.approx(2 * MONTH * 40.0)


def test_what_a_policy_costs(facts: Facts) -> None:
    """Half with gcp: one of two machines at $44 in place of $40."""
    found = answer(facts, desks(), providers={"aws": "50%", "gcp": "50%"})
    assert found.usd_per_month.total == pytest.approx(MONTH * 84.0)
    costs = {binding.constraint: binding.usd_per_month for binding in found.binding}
    assert costs["all shares"] == pytest.approx(MONTH * 4.0)
    (lost,) = [risk for risk in found.risks if risk.kind == "single provider"]
    assert lost.impact == pytest.approx(40 / 84 * 4 / 84), "of aws, that has 40 of 84 dollars: 4 of 84 more"


def test_a_machine_that_fails_within_a_year(facts: Facts) -> None:
    """Eight accelerators for 12 x 730 hours, at 419 failures in 54 days on 16,384 (arXiv:2407.21783)."""
    found = answer(facts, CHAT)
    (row,) = found.allocation
    assert row.count == 1
    mtbf_hours = 16384 * 54 * 24 / 419
    risk = next(risk for risk in found.risks if risk.kind == "availability")
    assert risk.score == pytest.approx(1 - math.exp(-8 * 12 * MONTH / mtbf_hours), rel=1e-6)


def test_machines_missing_from_a_reservation_cost_their_on_demand_hours(facts: Facts) -> None:
    """Traffic that twice as many machines take: what is reserved is paid, each machine more is $40 an hour."""
    first = answer(facts, CHAT)
    full = first.workloads[0].best["figures"]["requests_per_s"]["value"]
    job = CHAT | {"traffic": {"requests_per_s": 20 * full, "input_tokens": 128}}
    found = answer(facts, job, purchase=["reserved_1y"])
    (row,) = found.allocation
    told = found.workloads[0].best["figures"]["requests_per_s"]
    replicas = found.workloads[0].best["layout"]["replicas"]  # of one accelerator, eight to a machine
    needed = math.ceil(20 * full / (0.85 * told["low"] / replicas * 8) - 1e-6)
    assert row.usd_low == row.usd_per_month == pytest.approx(row.count * MONTH * 24.0)
    assert row.usd_high == pytest.approx(row.usd_per_month + max(0, needed - row.count) * MONTH * 40.0)
    assert needed > row.count


def test_gpus_are_compared_by_their_speed_and_bandwidth_for_the_money(facts: Facts) -> None:
    """$5 an H100: a PFLOP-hour of its 989.4 dense bf16 TFLOP/s, a GB/s of its 3.35 TB/s."""
    (row,) = [row for row in answer(facts, desks()).gpus if row["gpu"] == "H100-SXM-80"]
    chip = facts.accelerators["H100-SXM-80"]
    assert row["usd_per_gpu_hour"] == pytest.approx(5.0)
    assert row["spot_usd_per_gpu_hour"] == pytest.approx(15 / 8)
    assert row["usd_per_pflop_hour"] == pytest.approx(5.0 / (chip.peak["bf16"] / 1e15))
    assert row["usd_per_gb_per_s_hour"] == pytest.approx(5.0 / (chip.hbm_bytes_per_s / 1e9))
