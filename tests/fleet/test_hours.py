"""Hours of a month, and monthly costs as people write them down by hand."""

import pytest

from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.fleet.hours import hours_per_month, monthly_usd
from flopwise.fleet.spec import Hours


@pytest.mark.parametrize(
    ("count", "instance", "usd_per_hour", "hours", "stated"),
    [
        (2, "g4dn.xlarge", 0.526, 8 * 22, 185),
        (1, "p3.2xlarge", 3.06, 4 * 22, 269),
        (3, "g4dn.2xlarge", 0.752, 720, 1_624),
        (4, "p4d.24xlarge", 32.77, 24, 3_146),
    ],
)
def test_monthly_costs_of_a_published_plan(
    count: int, instance: str, usd_per_hour: float, hours: float, stated: int
) -> None:
    """Instances, list prices of us-east-1 (p4d: before the cut of 2025) and hours as such plans state them."""
    assert round(monthly_usd(count, usd_per_hour, hours)) == stated
    offers = [
        o for o in load_facts().offers if o.provider == "aws" and o.instance == instance and o.region == "us-east-1"
    ]
    assert offers
    if instance != "p4d.24xlarge":
        assert offers[0].on_demand_usd_per_hour == pytest.approx(usd_per_hour)


def test_environments_have_their_usual_hours() -> None:
    assert hours_per_month(None, "development", "w") == 176
    assert hours_per_month(None, "staging", "w") == 88
    assert hours_per_month(None, "production", "w") == 730
    assert hours_per_month(None, "training", "w") == pytest.approx(730 / 7)


def test_hours_of_a_workload_s_own() -> None:
    assert hours_per_month(Hours(per_day=10, days=20), "production", "w") == 200
    assert hours_per_month(Hours(per_day="6"), "production", "w") == 132
    assert hours_per_month(Hours(always=True), "nowhere", "w") == 730


@pytest.mark.parametrize(
    ("hours", "why"),
    [
        (Hours(), "always: true"),
        (Hours(per_day=25), "up to 24"),
        (Hours(per_day=0), "above 0"),
        (Hours(per_day=8, days=40), "up to 31"),
        (Hours(always=True, per_day=3), "one or the other"),
    ],
)
def test_hours_that_cannot_be_are_refused(hours: Hours, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        hours_per_month(hours, "production", "workloads.0.hours")


def test_an_unknown_environment_is_named() -> None:
    with pytest.raises(SpecError, match="'qa' has no hours"):
        hours_per_month(None, "qa", "w")
