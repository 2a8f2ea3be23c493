"""The roadmap names the months that workloads begin in, and alerts read in the units that people use."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flopwise.fleet.assessment import Alert, Month, Phase
from flopwise.report.blocks import Bars, Spans, Table, Text
from flopwise.report.content import document
from flopwise.report.outlook import level, past_budget, roadmap, threshold
from flopwise.report.pages import markdown

sys.path.insert(0, str(Path(__file__).parent))
from samples import assessment


def phase(name: str, start: str | None) -> Phase:
    return Phase(name=name, start=start, workloads=[f"{name} {start}"], usd_per_month=10.0, text="")


def test_months_are_those_of_the_phases_not_of_the_nearest_tick() -> None:
    starts = ["2027-01", "2027-02", "2027-03", "2027-06", "2028-09"]
    found = assessment(roadmap=[phase(f"p{n}", start) for n, start in enumerate(starts)])
    (spans,) = [b for b in roadmap(found) if isinstance(b, Spans)]
    assert [row.begins for row in spans.rows] == starts
    assert [row.start for row in spans.rows] == [2, 3, 4, 7, 22], "months after November 2026"
    text = markdown(document(found))
    for start in starts[:4]:
        assert f"| {start} |" in text


def test_phases_of_one_name_are_told_apart() -> None:
    found = assessment(roadmap=[phase("training", "2027-01"), phase("training", "2027-02"), phase("production", None)])
    (table,) = [b for b in roadmap(found) if isinstance(b, Table)]
    assert [row[0] for row in table.rows] == ["training (1 of 2)", "training (2 of 2)", "production"]


def test_the_month_that_passes_the_budget_is_told() -> None:
    months = [
        Month(month=f"2027-{n:02d}", usd=150.0 * n, expected=200.0 * n, low=190.0 * n, high=210.0 * n, workloads=1)
        for n in range(1, 13)
    ]
    found = assessment(forecast=months, budget_per_month=1500.0)
    over = past_budget(found)
    assert over is not None
    assert over.month == "2027-08"  # 8 x 200 is the first above 1,500
    blocks = list(roadmap(found))
    (bars,) = [b for b in blocks if isinstance(b, Bars)]
    assert (bars.mark, len(bars.bars)) == (1500.0, 12)
    assert any(isinstance(b, Text) and "in 2027-08" in b.text for b in blocks)
    assert past_budget(assessment(forecast=months, budget_per_month=None)) is None


@pytest.mark.parametrize(
    ("metric", "value", "unit", "told"),
    [
        ("device memory", 34_657_709_405.6, "B", "above 32.3 GiB"),
        ("spend per run", 11.499, "USD", "above $11.50 a run"),
        ("spend per day", 1972.6, "USD", "above $1,973 a day"),
        ("p95 latency", 0.5, "s", "above 500 ms (p95 latency)"),
        ("throughput at least", 5_078_060.0, "tokens/s", "below 5.08 M tokens/s"),
        ("requests", 153.06, "1/s", "above 153 requests/s"),
        ("interruptions a month", 2.0, "", "2 or more a month"),
    ],
)
def test_thresholds_read_in_their_units(metric: str, value: float, unit: str, told: str) -> None:
    assert threshold(Alert(metric=metric, workload="w", threshold=value, unit=unit, why="")) == told


def test_scores_in_words() -> None:
    assert [level(s) for s in (0.02, 0.15, 0.49, 0.5, 1.0)] == ["low", "medium", "medium", "high", "high"]
