"""Savings are what an invoice for the same machines would show; anything else is against a baseline that is named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from flopwise.errors import InfeasibleError, SpecError
from flopwise.fleet.assessment import Assessment
from flopwise.fleet.read import fleet_from
from flopwise.report.content import summary
from flopwise.report.costs import savings_by_kind
from flopwise.report.words import usd

sys.path.insert(0, str(Path(__file__).parent))
from small import BATCH, CHAT, DESKS, TODAY, TUNE, answer, assess, catalog

LIST = {o.key: o for o in catalog().offers}


def assessed(*jobs: dict[str, Any], **policies: Any) -> Assessment:
    rules = {"purchase": ["on_demand", "spot", "reserved_1y"]} | policies
    fleet = fleet_from({"name": "f", "workloads": list(jobs), "policies": rules})
    return assess(fleet, catalog(), scenarios=0, today=TODAY)


def amount(what: str, name: str, found: Assessment | None = None) -> float:
    rows = (found or answer().assessment).savings
    return sum(s.usd_per_month for s in rows if (s.what, s.workload) == (what, name))


def test_a_commitment_saves_against_its_own_list_price() -> None:
    """Hours x price by hand: reserved machines against the same ones on demand, and no other machine is named."""
    (row,) = [r for r in answer().assessment.allocation if r.workload == "chat"]
    assert row.purchase == "reserved_1y"
    rate = LIST[row.provider, row.instance, row.region].on_demand_usd_per_hour
    assert rate is not None
    assert amount("reserved", "chat") == pytest.approx(row.count * 730 * (rate - (row.usd_per_hour or 0.0)))


def test_runs_save_by_spot_only_and_services_by_the_hours_that_they_are_off() -> None:
    """2 x Standard_NC4as_T4_v3 at $0.526 an hour, 176 h of 730; runs end whoever plans them."""
    assert amount("schedule", "desks") == pytest.approx(2 * 0.526 * (730 - 176))
    assert {s.what for s in answer().assessment.savings if s.workload in {"tune", "nightly"}} <= {"spot"}
    for name in ("tune", "nightly"):
        (row,) = [r for r in answer().assessment.allocation if r.workload == name]
        rate = LIST[row.provider, row.instance, row.region].on_demand_usd_per_hour or 0.0
        assert 0 < amount("spot", name) <= rate * row.hours_per_month * row.count - row.usd_per_month + 1e-6


def test_every_saving_counts_and_names_machines_of_the_plan() -> None:
    found = answer().assessment
    instances = {o.instance for o in catalog().offers}
    for saving in found.savings:
        mine = {r.instance for r in found.allocation if r.workload == saving.workload}
        words = {word.strip(",;()") for word in saving.how.split()}
        assert words & instances <= mine, saving.how
        assert saving.counted
    assert found.baseline == "on_demand"


def test_what_is_merely_allowed_saves_nothing() -> None:
    """An L4 is no saving because a dearer accelerator could have been bought."""
    one = assessed(CHAT | {"constraints": {"gpus": ["l4"]}}, purchase=["on_demand"])
    two = assessed(CHAT | {"constraints": {"gpus": ["l4", "h100"]}}, purchase=["on_demand"])
    assert one.savings == two.savings == []


def test_the_headline_is_the_sum_of_the_rows_that_count() -> None:
    job = CHAT | {"existing": [{"instance": "g6e.xlarge", "count": 4, "weights": "bf16"}]}
    for found in (answer().assessment, assessed(job, TUNE)):
        whole = sum(s.usd_per_month for s in found.savings if s.counted)
        assert sum(savings_by_kind(found).values()) == pytest.approx(whole)
        tiles = {tile.name: tile.value for block in summary(found) for tile in getattr(block, "tiles", ())}
        assert tiles["saved a month"] == usd(whole)


def test_against_what_runs_today_all_steps_lead_to_the_bill() -> None:
    """Right-sizing and fewer bits are shown, and not in the sum."""
    job = CHAT | {"existing": [{"instance": "g6e.xlarge", "count": 4, "weights": "bf16"}]}
    found = assessed(job)
    assert found.baseline == "existing"
    steps = [s for s in found.savings if s.workload == "chat"]
    rate = next(o.on_demand_usd_per_hour for o in catalog().offers if o.instance == "g6e.xlarge") or 0.0
    stored = 1000 * 0.023
    assert found.usd_per_month.by_workload["chat"] + sum(s.usd_per_month for s in steps) == pytest.approx(
        4 * 730 * rate + stored, abs=2
    )
    assert {s.what for s in steps if s.counted} <= {"schedule", "spot", "reserved"}
    assert {s.what for s in steps if not s.counted} <= {"right-sizing", "quantisation", "storage and traffic"}
    assert not [s for s in assessed(job, baseline="on_demand").savings if s.what == "right-sizing"]


def test_a_named_accelerator_is_a_baseline() -> None:
    """Each workload on H100s as published, on demand, around the clock."""
    found = assessed(CHAT | {"volumes": {}}, BATCH, baseline="h100")
    assert found.baseline == "h100"
    steps = [s for s in found.savings if s.workload == "chat"]
    assert {"right-sizing"} <= {s.what for s in steps if not s.counted}
    whole = found.usd_per_month.by_workload["chat"] + sum(s.usd_per_month for s in steps)
    rates = {o.on_demand_usd_per_hour for o in catalog().offers if o.accelerator == "H100-SXM-80"} - {None}
    assert any(whole == pytest.approx(n * 730 * float(rate or 0), abs=2) for rate in rates for n in (1, 2, 3))
    with pytest.raises(SpecError, match=r"policies\.baseline"):
        assessed(CHAT, baseline="h1oo")


def test_nothing_is_bought_at_a_loss_to_hold_a_share() -> None:
    """tune works for some hours a month; 28 % with aws could only be had by reserving for it what then stands idle."""
    chat = CHAT | {"constraints": {"providers": ["gcp"]}}
    with pytest.raises(InfeasibleError, match=r"widen policies\.share_tolerance"):
        assessed(chat, TUNE, providers={"gcp": "70%", "aws": "30%"}, share_tolerance="2%")
    assert not [s for s in answer().assessment.savings if s.usd_per_month < 0]


def test_desks_that_are_bought_on_demand_all_month_save_nothing() -> None:
    assert assessed(DESKS | {"hours": {"always": True}}, purchase=["on_demand"]).savings == []
