"""Parts of the bill as the report adds them up, checked by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from flopwise.fleet.assessment import CostSaving
from flopwise.report.blocks import Bars, Table, Text
from flopwise.report.costs import DRAWN, allocation, costs, intervals, savings, savings_by_kind
from flopwise.report.words import digits

sys.path.insert(0, str(Path(__file__).parent))
from samples import assessment, workload


def saving(what: str, usd: float, *, counted: bool = True) -> CostSaving:
    return CostSaving(what=what, workload="chat", usd_per_month=usd, how="how", counted=counted)


def test_only_what_adds_up_is_summed() -> None:
    found = assessment(savings=[
        saving("spot", 100.0), saving("spot", 50.0), saving("reserved", 300.0), saving("schedule", 9e4, counted=False),
        saving("quantisation", 70.0, counted=False),
    ])  # fmt: skip
    assert savings_by_kind(found) == {"reserved": 300.0, "spot": 150.0}
    blocks = list(savings(found))
    assert any(isinstance(b, Text) and "saves $450 a month" in b.text for b in blocks)
    heads = [b.headers[3] for b in blocks if isinstance(b, Table)]
    assert heads == ["in this plan", "not in the sum"]


def test_intervals_hold_storage_and_traffic_as_they_are() -> None:
    """chat: $1,175 of machines between $900 and $1,500, $25 of storage and traffic."""
    low, high = intervals(assessment())["chat"]
    assert low == pytest.approx(925.0)
    assert high == pytest.approx(1525.0)


def test_units_have_a_column_where_a_workload_has_them() -> None:
    found = assessment(workloads=[
        workload(unit_usd={"hour": 1.5, "million_requests": 22.8}),
        workload("run", unit_usd={"run": 150.0, "epoch": 0.75, "request": 0.000025}),
    ])  # fmt: skip
    table = next(b for b in costs(found) if isinstance(b, Table) and b.headers[1] == ">a run")
    assert table.headers == ["workload", ">a run", ">an epoch", ">a request", ">a million requests", ">an hour"]
    assert tuple(table.rows[0]) == ("chat", "-", "-", "-", "$22.80", "$1.50")
    assert tuple(table.rows[1]) == ("run", "$150", "$0.75", "$0.0000250", "-", "-")


def test_unknown_carbon_is_told_and_is_no_zero() -> None:
    dark = workload("tpu", energy_kwh_per_month=None, carbon_kg_per_month=None)
    table = next(b for b in costs(assessment(workloads=[workload(), dark])) if isinstance(b, Table))
    assert "known for 1 of 2 workloads, 42 kg in all" in table.note
    table = next(b for b in costs(assessment()) if isinstance(b, Table))
    assert "in all 42 kg" in table.note
    assert "known for" not in table.note


def test_what_policies_have_a_plan_pay_is_taken_off_and_shown() -> None:
    """$10,000 saved and $2,000 paid beyond the least are $8,000; the loss is among the rows that are named."""
    rows = [saving("spot", 1000.0 + n) for n in range(9)] + [saving("reserved", -2000.0), saving("schedule", 964.0)]
    found = assessment(savings=rows)
    assert sum(savings_by_kind(found).values()) == pytest.approx(9 * 1000 + 36 + 964 - 2000)
    blocks = list(savings(found))
    assert any(
        isinstance(b, Text) and "saves $8,000 a month, after $2,000 that the policies cost" in b.text for b in blocks
    )
    assert next(r[2] for b in blocks if isinstance(b, Table) for r in b.rows) == "-$2,000"
    (told,) = [b.text for b in savings(assessment(savings=[saving("reserved", -2000.0)])) if isinstance(b, Text)]
    assert told.startswith("The plan costs $2,000 a month more than its baseline")


def test_large_fleets_are_drawn_as_their_dearest_and_the_rest() -> None:
    names = {f"w{n:03d}": float(1000 - n) for n in range(200)}
    bill = msgspec.structs.replace(assessment().usd_per_month, by_workload=names)
    picture = next(b for b in costs(assessment(usd_per_month=bill)) if isinstance(b, Bars))
    assert len(picture.bars) == DRAWN + 1
    assert picture.bars[-1].name == f"{200 - DRAWN} others"
    assert sum(bar.value for bar in picture.bars) == pytest.approx(sum(names.values()))


def test_machines_to_secure_are_summed_over_workloads() -> None:
    (row,) = assessment().allocation  # 2 accelerators for 730 h
    rows = [
        row,
        msgspec.structs.replace(row, workload="b", count=3, num_gpus=24),
        msgspec.structs.replace(row, purchase="api"),
    ]
    table = list(allocation(assessment(allocation=rows)))[-1]
    assert isinstance(table, Table)
    assert [r[:4] for r in table.rows] == [("aws g6.xlarge", "us-east-1", "on demand", "5")]
    assert table.rows[0][4] == digits(26 * 730.0)
