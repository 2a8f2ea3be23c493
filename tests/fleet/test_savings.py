"""Savings are steps of one ladder from plain alternatives down to the bill, each of which can be checked by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flopwise.fleet.assess import assess as assess_with_plans
from flopwise.fleet.planned import planned_workloads
from flopwise.fleet.read import fleet_from
from flopwise.report.costs import savings_by_kind

sys.path.insert(0, str(Path(__file__).parent))
from small import CHAT, TODAY, TUNE, answer, catalog, platform


@pytest.fixture(scope="module")
def on_demand() -> dict[str, float]:
    """The cheapest way of each workload on demand, by brute force over all ways."""
    items = planned_workloads(platform(), catalog())
    return {i.job.name: min(w.usd for w in i.options if w.purchase == "on_demand") for i in items}


def paid(name: str) -> float:
    return sum(r.usd_per_month for r in answer().assessment.allocation if r.workload == name)


def amount(what: str, name: str) -> float:
    return sum(s.usd_per_month for s in answer().assessment.savings if (s.what, s.workload) == (what, name))


def test_buying_is_held_against_the_cheapest_way_on_demand(on_demand: dict[str, float]) -> None:
    assert amount("spot", "tune") == pytest.approx(on_demand["tune"] - paid("tune"))
    assert amount("spot", "nightly") == pytest.approx(on_demand["nightly"] - paid("nightly"))
    assert amount("reserved", "chat") == pytest.approx(on_demand["chat"] - paid("chat"))


def test_what_is_saved_on_a_workload_is_never_more_than_an_alternative_costs() -> None:
    items = planned_workloads(platform(), catalog())
    for item in items:
        name = item.job.name
        counted = [s for s in answer().assessment.savings if s.workload == name and s.counted]
        dearest = max(w.usd for w in item.options if w.purchase == "on_demand")
        whole = 730 / item.job.hours_per_month if name == "desks" else 1.0
        assert sum(s.usd_per_month for s in counted) + paid(name) <= dearest * whole * (1 + 1e-9), name


def test_desks_are_off_at_night() -> None:
    """2 x Standard_NC4as_T4_v3 at $0.526 an hour, 176 h of 730."""
    assert paid("desks") == pytest.approx(2 * 0.526 * 176)
    assert amount("schedule", "desks") == pytest.approx(2 * 0.526 * (730 - 176))


def test_only_one_way_to_make_a_workload_smaller_counts_and_runs_end_anyhow() -> None:
    savings = answer().assessment.savings
    for name in ("chat", "tune", "nightly"):
        smaller = [s for s in savings if s.workload == name and s.what in {"quantisation", "right-sizing"} and s.taken]
        assert sum(s.counted for s in smaller) <= 1
        assert all(s.usd_per_month >= o.usd_per_month for s in smaller if s.counted for o in smaller)
    assert [s.counted for s in savings if s.what == "schedule" and s.workload in {"tune", "nightly"}] == [False, False]
    assert not [s for s in savings if s.counted and not s.taken]


def test_what_is_bought_only_for_a_share_is_a_loss_that_counts() -> None:
    """tune works for some hours a month; 16 % with aws can only be had by reserving for it what then stands idle."""
    chat = CHAT | {"constraints": {"providers": ["gcp"]}}
    policies = {
        "purchase": ["on_demand", "spot", "reserved_1y"], "providers": {"gcp": "82%", "aws": "18%"},
        "share_tolerance": "2%",
    }  # fmt: skip
    fleet = fleet_from({"name": "shares", "workloads": [chat, TUNE], "policies": policies})
    found = assess_with_plans(fleet, catalog(), scenarios=0, today=TODAY).assessment
    (row,) = [r for r in found.allocation if r.workload == "tune"]
    assert (row.provider, row.purchase) == ("aws", "reserved_1y")
    ways = next(i.options for i in planned_workloads(fleet, catalog()) if i.job.name == "tune")
    plain = min(w.usd for w in ways if w.purchase == "on_demand")
    assert row.usd_per_month > 10 * plain
    (loss,) = [s for s in found.savings if s.workload == "tune" and s.purchase == "reserved_1y"]
    assert loss.usd_per_month == pytest.approx(plain - row.usd_per_month)
    assert (loss.counted, loss.taken, loss.why) == (True, True, "bought for the aws share")
    assert loss.how.endswith(loss.why)
    assert sum(savings_by_kind(found).values()) == pytest.approx(
        sum(s.usd_per_month for s in found.savings if s.counted)
    )
