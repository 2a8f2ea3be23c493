"""What changed between two assessments: money, workloads, machines, prices, risks, and nothing where nothing did."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from flopwise.fleet.assessment import Assessment, Risk
from flopwise.report.blocks import Table, Text
from flopwise.report.changes import changes

sys.path.insert(0, str(Path(__file__).parent))
from samples import assessment, workload


def tables(before: Assessment, after: Assessment) -> dict[str, list[tuple[str, ...]]]:
    return {
        b.headers[0]: [tuple(map(str, row)) for row in b.rows] for b in changes(before, after) if isinstance(b, Table)
    }


def texts(before: Assessment, after: Assessment) -> str:
    return " ".join(b.text for b in changes(before, after) if isinstance(b, Text))


def test_the_same_again_says_so() -> None:
    assert tables(assessment(), assessment()) == {}
    assert texts(assessment(), assessment()).endswith("Nothing else changed.")


def test_a_price_that_moved_is_told_with_both_days() -> None:
    (row,) = assessment().allocation
    dearer = msgspec.structs.replace(row, usd_per_hour=1.25 * 0.8048, price_date="2026-12-01")
    told = tables(assessment(), assessment(allocation=[dearer]))
    assert told["price of an hour"] == [
        ("aws g6.xlarge, us-east-1", "on demand", "$0.805 (2026-07-20)", "$1.006 (2026-12-01)", "+25.0 %"),
    ]


def test_machines_that_moved_are_told_with_region_and_purchase() -> None:
    (row,) = assessment().allocation
    moved = msgspec.structs.replace(row, region="eu-west-1", purchase="spot", count=3)
    told = tables(assessment(), assessment(allocation=[moved]))
    assert told["workload"] == [
        ("chat", "2 x aws g6.xlarge, us-east-1, on demand", "3 x aws g6.xlarge, eu-west-1, spot"),
    ]


def test_workloads_that_came_and_went_the_budget_and_another_fleet() -> None:
    after = assessment("other", workloads=[workload("search")], budget_per_month=2000.0)
    told = texts(assessment(), after)
    assert "New: search." in told
    assert "Gone: chat." in told
    assert "The budget was $1,600 and is $2,000." in told
    assert "another fleet, platform; this one is of other" in told


def test_risks_that_came_went_or_moved() -> None:
    new = Risk(kind="budget", workload="", probability=0.3, evidence="growth", mitigation="")
    worse = msgspec.structs.replace(assessment().risks[0], score=0.6)
    told = tables(assessment(), assessment(risks=[worse, new]))["risk"]
    assert told == [
        ("budget", "the fleet", "-", "0.30", "growth"), ("memory", "chat", "0.40", "0.60", "margin 3 GiB"),
    ]  # fmt: skip
    gone = tables(assessment(), assessment(risks=[]))["risk"]
    assert gone == [("memory", "chat", "0.40", "gone", "margin 3 GiB")]
