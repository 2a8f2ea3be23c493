"""The best machines of each provider: the cheapest that does the work there, against the plan, and why not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flopwise.fleet.assess import assess as assess_with_plans
from flopwise.fleet.read import fleet_from

sys.path.insert(0, str(Path(__file__).parent))
from small import CHAT, DESKS, TODAY, answer, assess, catalog


def test_every_workload_has_a_row_of_every_large_cloud() -> None:
    found = answer().assessment
    for w in found.workloads:
        rows = [choice for choice in found.by_provider if choice.workload == w.name]
        assert sorted(choice.provider for choice in rows) == ["aws", "azure", "gcp"], w.name
        assert [choice.provider for choice in rows if choice.taken] == [w.best["provider"]]
        assert rows[0].taken


def test_desks_cost_what_the_cheapest_machine_of_each_provider_does() -> None:
    # two machines with a T4 each, on all month: 2 x 730 h x the lowest price, on demand or reserved
    found = answer().assessment
    for choice in found.by_provider:
        if choice.workload != "desks" or choice.taken:
            continue
        sold = (o for o in catalog().offers if o.provider == choice.provider and not o.retires_on)
        mine = [o for o in sold if o.accelerator == "T4" and o.count == 1]
        if not mine:  # Google's have a retirement date
            assert (choice.provider, choice.usd_per_month) == ("gcp", None)
            continue
        prices = [o.price_usd_per_hour(p) for o in mine for p in ("on_demand", "reserved_1y")]
        least = min(price for price in prices if price is not None)
        assert choice.usd_per_month is not None
        assert choice.usd_per_month <= 2 * 730 * least * 1.0001
        plan = sum(a.usd_per_month for a in found.allocation if a.workload == "desks" and a.role == "primary")
        assert choice.change_usd == pytest.approx(choice.usd_per_month - plan)


def test_what_is_cheaper_elsewhere_says_what_stands_against_it() -> None:
    shares = {"purchase": ["on_demand"], "providers": {"azure": "100%"}, "share_tolerance": "5%"}
    found = assess(
        fleet_from({"name": "f", "workloads": [DESKS], "policies": shares}), catalog(), today=TODAY, scenarios=0
    )
    by_provider = {choice.provider: choice for choice in found.by_provider}
    assert by_provider["azure"].taken
    assert by_provider["aws"].usd_per_month is None
    assert "not among the policies'" in by_provider["aws"].why


def test_residency_that_leaves_a_provider_out_is_named() -> None:
    chat = CHAT | {"residency": ["us-east-1"]}
    found = assess(fleet_from({"name": "f", "workloads": [chat]}), catalog(), today=TODAY, scenarios=0)
    why = {choice.provider: choice.why for choice in found.by_provider}
    assert why["aws"] == "the plan"
    assert "its data may not be in that region" in why["azure"]


@pytest.mark.parametrize("most", [4, 20])
def test_plan_files_hold_the_cheapest_of_every_provider(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four candidates one is what is taken; the cheapest other of each of three clouds takes the rest."""
    monkeypatch.setattr("flopwise.fleet.assess.MOST", most)
    answered = assess_with_plans(
        fleet_from({"name": "f", "workloads": [CHAT], "policies": {"purchase": ["on_demand", "spot", "reserved_1y"]}}),
        catalog(), scenarios=0, today=TODAY,
    )  # fmt: skip
    kept = answered.plans["chat"].plans
    for choice in answered.assessment.by_provider:
        assert any(
            (c.provider, c.instance, c.purchase) == (choice.provider, choice.instance, choice.purchase) for c in kept
        ), choice.provider
