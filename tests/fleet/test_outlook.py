"""Alerts come from the plan's own figures: of a run what a run costs, of a day what a day of its schedule costs."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwise.fleet.outlook import SELDOM, seldom_more

sys.path.insert(0, str(Path(__file__).parent))
from small import answer


def alert(metric: str, name: str) -> float:
    return next(a.threshold for a in answer().assessment.monitoring if (a.metric, a.workload) == (metric, name))


def test_runs_are_watched_by_the_run_and_services_by_the_day() -> None:
    rows = {r.workload: r for r in answer().assessment.allocation if r.role == "primary"}
    assert alert("spend per run", "tune") == pytest.approx(
        max(rows["tune"].usd_high, 1.1 * rows["tune"].usd_per_month) / 4
    )
    assert alert("spend per day", "chat") == pytest.approx(1.1 * rows["chat"].usd_per_month / (730 / 24))
    assert alert("spend per day", "desks") == pytest.approx(1.1 * 2 * 0.526 * 8), "eight hours of two machines"
    assert alert("spend per day", "") == pytest.approx(3000 * 24 / 730)
    assert not [a for a in answer().assessment.monitoring if a.metric == "spend per day" and a.workload == "tune"]


def test_thresholds_lie_beyond_what_is_planned() -> None:
    for w in answer().assessment.workloads:
        if w.name == "desks":
            continue
        each, whole = w.best["memory_bytes_per_gpu"], w.best["capacity_bytes"]
        assert each < alert("device memory", w.name) <= whole
    figures = next(w.best["figures"] for w in answer().assessment.workloads if w.name == "tune")
    assert alert("throughput at least", "tune") < figures["tokens_per_s"]["value"]
    assert alert("p95 latency", "chat") == 1.0


@given(st.floats(0.0, 60.0))
def test_interruptions_that_chance_seldom_brings(expected: float) -> None:
    """Against the sum of the Poisson distribution, written out."""

    def beyond(count: int) -> float:
        return 1 - sum(math.exp(-expected) * expected**k / math.factorial(k) for k in range(count + 1))

    count = seldom_more(expected)
    assert beyond(count) < SELDOM + 1e-9
    assert count == 0 or beyond(count - 1) >= SELDOM - 1e-9
