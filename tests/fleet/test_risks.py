"""Risks are scored from margins: of machines, quotas, prices, providers and the budget."""

from __future__ import annotations

import math
import sys
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import pytest

from flopwise import units
from flopwise.fleet.assess import assess as assess_with_plans
from flopwise.fleet.assessment import Assessment, Risk
from flopwise.fleet.read import fleet_from
from flopwise.fleet.risks import _capacity, _degradation, _prices
from flopwise.search.service_machines import filled_frac

sys.path.insert(0, str(Path(__file__).parent))
from small import CHAT, DESKS, TODAY, answer, assess, catalog

MTBF_H = 16384 * 54 * 24 / 419  # of one accelerator: 419 interruptions in 54 days on 16,384 (Llama 3, section 3.3.4)


def of(found: Assessment, kind: str, name: str = "") -> list[Risk]:
    return [r for r in found.risks if r.kind == kind and r.workload == name]


def test_old_prices_are_a_risk_and_their_age_is_told() -> None:
    found = answer().assessment
    assert found.date == TODAY
    (old,) = [r for r in of(found, "price") if "older" in r.evidence]
    dated = [(row.price_date, row.usd_per_month) for row in found.allocation if row.price_date != "undated"]
    late = sum(usd for day, usd in dated if (date.fromisoformat(str(TODAY)) - date.fromisoformat(day)).days > 100)
    assert old.impact == pytest.approx(late / found.usd_per_month.compute)
    assert any("days old; more than 100 days" in note for note in found.price_notes)


def test_growth_past_the_budget_is_a_risk() -> None:
    found = answer().assessment
    over = [m for m in found.forecast if m.expected > 3000]
    (risk,) = [r for r in of(found, "budget") if "growth" in r.evidence]
    assert risk.score == pytest.approx(len(over) / len(found.forecast))
    assert over[0].month in risk.evidence


def test_one_machine_for_a_service_is_a_risk_of_its_failure_within_a_year() -> None:
    alone = CHAT | {"traffic": CHAT["traffic"] | {"requests_per_s": 0.5}}
    found = assess(fleet_from({"name": "f", "workloads": [alone]}), catalog(), scenarios=0, today=TODAY)
    (row,) = found.allocation
    assert row.count == 1
    (risk,) = of(found, "availability", "chat")
    assert risk.score == pytest.approx(1 - math.exp(-12 * 730 / MTBF_H), rel=1e-6)


def test_a_quota_that_is_used_up_is_a_risk() -> None:
    desks = DESKS | {"growth_per_month": 0}
    quotas = [{"provider": "azure", "most": 2}, {"provider": "aws", "most": 50}]
    policies = {"providers": {"azure": 1.0}, "quotas": quotas}
    found = assess(fleet_from({"name": "f", "workloads": [desks], "policies": policies}), catalog(), scenarios=0)
    (risk,) = of(found, "availability")
    assert risk.score == 1.0
    assert "2 of the quota of 2 x azure" in risk.evidence
    roomy = {"providers": {"azure": 1.0}, "quotas": [{"provider": "azure", "most": 40}]}
    again = assess(fleet_from({"name": "f", "workloads": [desks], "policies": roomy}), catalog(), scenarios=0)
    assert not of(again, "availability")


def test_a_quota_is_used_by_what_is_on_at_the_same_time() -> None:
    """Two desks on weekday mornings, three on Saturdays, one always: four at once, not six."""
    hours = {"start": "08:00", "stop": "12:00"}
    jobs = [
        DESKS | {"hours": hours | {"days": "weekdays"}},
        DESKS | {"name": "saturday", "machines": {"count": 3, "gpus": ["T4"]}, "hours": hours | {"days": ["sat"]}},
        DESKS | {"name": "always", "machines": {"count": 1, "gpus": ["T4"]}, "hours": {"always": True}},
    ]
    policies = {"providers": {"aws": 1.0}, "quotas": [{"provider": "aws", "most": 6}]}
    found = assess(fleet_from({"name": "f", "workloads": jobs, "policies": policies}), catalog(), scenarios=0)
    (risk,) = of(found, "availability")
    assert "4 of the quota of 6 x aws are taken, at the busiest time of the week" in risk.evidence
    assert risk.score == pytest.approx(2 * 4 / 6 - 1)


def test_scores_are_probabilities_in_order() -> None:
    scores = [r.score for r in answer().assessment.risks]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < s <= 1 for s in scores)
    assert all(r.evidence and r.mitigation for r in answer().assessment.risks)


def lost(job: dict[str, object], **policies: object) -> str:
    """What is told of the loss of its one provider."""
    fleet = fleet_from({"name": "f", "workloads": [job], "policies": policies})
    (risk,) = of(assess(fleet, catalog(), scenarios=0), "single provider")
    assert risk.impact == pytest.approx(1.0)
    assert risk.score == pytest.approx(0.1)  # a provider is given up once in ten years
    return risk.evidence


def test_constraints_that_leave_one_provider_are_named_where_it_is_lost() -> None:
    """Others sell a T4, too: that none could take the place is for the fleet's own words."""
    own = lost(DESKS | {"constraints": {"providers": ["aws"]}})
    assert own == "100 % of the bill is with aws; within its constraints.providers no other offer could run desks"
    shared = lost(DESKS, providers={"aws": 1.0})
    assert shared == "100 % of the bill is with aws; within its policies.providers no other offer could run desks"


def test_what_only_one_provider_sells_is_told_as_that() -> None:
    told = lost(DESKS | {"machines": {"count": 2, "gpus": ["A10G"]}})
    assert told == "100 % of the bill is with aws; no other offer could run desks"


def test_advice_on_spot_prices_names_no_bids() -> None:
    """Clouds set spot prices; what is left to do is to spread over types and zones and to fall back."""
    row = SimpleNamespace(
        purchase="spot", usd_per_month=30.0, price_date="2026-11-01", price_note="", usd_per_hour_interval=None
    )
    (risk,) = _prices([row], SimpleNamespace(compute=60.0), {}, 100.0)  # type: ignore[list-item, arg-type]
    assert risk.score == pytest.approx(0.25)
    assert "bid" not in risk.mitigation
    assert "zones" in risk.mitigation
    assert "on demand" in risk.mitigation


def test_risks_are_ranked_by_probability_times_impact() -> None:
    for risk in answer().assessment.risks:
        assert 0 <= risk.probability <= 1
        assert 0 <= risk.impact <= 1
        assert risk.score == pytest.approx(risk.probability * risk.impact)


def test_what_is_idle_by_hand() -> None:
    """A service sized for twice its mean, on machines that its peak fills by `filled_frac`: half of that is used."""
    twice = CHAT | {"traffic": CHAT["traffic"] | {"peak": 2}, "growth_per_month": 0}
    fleet = fleet_from({"name": "f", "workloads": [twice]})
    found = assess_with_plans(fleet, catalog(), scenarios=0, today=TODAY)
    (risk,), (row,) = of(found.assessment, "idle", "chat"), found.assessment.allocation
    chosen = next(c for c in found.plans["chat"].plans if (c.instance, c.provider) == (row.instance, row.provider))
    idle = row.usd_per_month * (1 - filled_frac(chosen) / 2)
    assert risk.probability == 1.0
    assert risk.impact == pytest.approx(idle / found.assessment.usd_per_month.total, rel=1e-6)
    assert f"${idle:,.0f} a month pays for" in risk.evidence


def test_loading_takes_its_share_of_an_hour() -> None:
    """Turned on each morning: certain; the cold start's share of an hour, times the machine's share of the service."""
    hours = {"start": "09:00", "stop": "17:00", "days": "weekdays"}
    found = assess(fleet_from({"name": "f", "workloads": [CHAT | {"hours": hours}]}), catalog(), scenarios=0)
    (risk,), (row,) = of(found, "loading", "chat"), found.allocation
    seconds = units.parse_seconds(" ".join(risk.evidence.split()[4:6]), "cold start")
    assert risk.probability == 1.0
    assert risk.impact == pytest.approx(seconds / 3600 / row.count, rel=0.01)


def test_the_chance_of_doing_less_by_hand() -> None:
    """A run with an interval of the time up to 1.3: ln 1.3 is 1.2816 standard deviations; 1.1 is exceeded by 32 %."""
    fleet = SimpleNamespace(primary=[], cost=SimpleNamespace(total=100.0))
    row = SimpleNamespace(usd_per_month=50.0, usd_high=65.0)
    chosen = SimpleNamespace(
        figures=SimpleNamespace(time_high=1.3), option=None, job=SimpleNamespace(ends=True), name="run"
    )
    fleet.primary = [(row, None, chosen)]
    (risk,) = _degradation(chosen, fleet)  # type: ignore[arg-type]
    assert risk.probability == pytest.approx(0.3207, abs=2e-4)
    assert risk.impact == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("count", "part", "probability"),
    [(1, 0.5, 1 - math.exp(-0.01)), (4, 0.5, 1 - math.exp(-0.04)), (16, 0.5, 0.5), (2, 0.18, 0.5)],
    ids=["one", "all four", "many at once", "next to nothing"],
)
def test_spot_capacity_by_hand(count: int, part: float, probability: float) -> None:
    """One in a hundred is taken back a day; on demand costs 1 / part as much. What no record covers: 50 %."""
    record = SimpleNamespace(interruptions_per_s=0.01 / 86400, share="1 % a day")
    row = SimpleNamespace(
        provider="p", region="r", gpu="B200", purchase="spot", workload="run", num_gpus=count, count=count,
        usd_per_month=80.0, usd_per_hour=part * 10.0,
    )  # fmt: skip
    taken = SimpleNamespace(option=SimpleNamespace(own=None, offer=SimpleNamespace(on_demand_usd_per_hour=10.0)))
    facts, cost = SimpleNamespace(spot=lambda _p, _g: record), SimpleNamespace(total=100.0)
    (risk,) = _capacity(SimpleNamespace(primary=[(row, taken, None)], facts=facts, cost=cost))  # type: ignore[arg-type]
    assert risk.probability == pytest.approx(probability)
    assert risk.impact == pytest.approx(1 - part)
    row.purchase = "on_demand"
    large = list(_capacity(SimpleNamespace(primary=[(row, taken, None)], facts=facts, cost=cost)))  # type: ignore[arg-type]
    assert [r.score for r in large] == ([pytest.approx(0.5 * 0.8)] if count >= 16 else [])
