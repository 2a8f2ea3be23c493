"""Alerts come from the plan's own figures: of a run what a run costs, of a day what a day of its schedule costs."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwise.fleet.read import fleet_from
from flopwise.fleet.schedules import schedule
from flopwise.fleet.spec import Hours
from flopwise.fleet.workload_alerts import SELDOM, seldom_more

sys.path.insert(0, str(Path(__file__).parent))
from small import BATCH, CHAT, TUNE, answer, assess, catalog


def alert(metric: str, name: str) -> float:
    return next(a.threshold for a in answer().assessment.monitoring if (a.metric, a.workload) == (metric, name))


def test_runs_are_watched_by_the_run_and_services_by_the_day() -> None:
    rows = {r.workload: r for r in answer().assessment.allocation if r.role == "primary"}
    assert alert("spend per run", "tune") == pytest.approx(
        max(rows["tune"].usd_high, 1.1 * rows["tune"].usd_per_month) / 4
    )
    chat = answer().assessment.usd_per_month.by_workload["chat"]
    assert chat > rows["chat"].usd_per_month + 20, "its terabyte is part of what a day costs"
    assert alert("spend per day", "chat") == pytest.approx(1.1 * chat / (730 / 24))
    assert alert("spend per day", "desks") == pytest.approx(1.1 * 2 * 0.526 * 8), "eight hours of two machines"
    assert not [a for a in answer().assessment.monitoring if a.metric == "spend per day" and a.workload == "tune"]


def test_the_fleet_is_estimated_by_its_dearest_planned_day() -> None:
    """A working day of the small fleet: a run of each, the desks, and what is paid all month, by hand."""
    found = answer().assessment
    rows = {r.workload: r for r in found.allocation}
    month = {name: rows[name].usd_per_month for name in rows}
    hours = next(w.best["figures"]["run_s"]["value"] for w in found.workloads if w.name == "tune") / 3600
    assert hours < 24
    paid = month["chat"] + found.usd_per_month.storage + found.usd_per_month.traffic
    usd = paid / (730 / 24) + month["tune"] / 4 + month["nightly"] / 30 + month["desks"] / 22
    told = next(a for a in found.monitoring if (a.metric, a.workload) == ("spend per day", ""))
    assert f"${usd:,.2f} at most is planned, on a Monday" in told.why
    assert told.threshold >= 1.1 * usd * (1 - 1e-9)


@pytest.mark.parametrize(("budget", "early"), [(100_000, True), (0, False)])
def test_a_weekly_run_does_not_set_off_the_alert_of_a_day(budget: float, early: bool) -> None:
    """All of a run's cost falls on Saturday: far above a thirtieth of the month, and planned."""
    job = TUNE | {"hours": {"days": ["sat"]}, "growth_per_month": 0}
    policies = {"budget_per_month": budget} if budget else {}
    free = assess(fleet_from({"name": "f", "workloads": [job], "policies": policies}), catalog(), scenarios=0)
    (row,) = free.allocation
    day = next(a for a in free.monitoring if (a.metric, a.workload) == ("spend per day", ""))
    assert day.threshold == pytest.approx(max(row.usd_high, 1.1 * row.usd_per_month) / 4)
    assert day.threshold > row.usd_per_month / 4
    assert "Saturday" in day.why
    months = [a.threshold for a in free.monitoring if a.metric == "spend this month"]
    assert months == ([pytest.approx(budget - row.usd_per_month / 4)] if early else [])


def test_days_of_a_schedule_past_midnight() -> None:
    """Friday 22:00 to 6:00: two hours of Friday and six of Saturday; Sunday's end lies in Monday."""
    when = schedule(Hours(start="22:00", stop="06:00", days=["fri", "sun"]), "production", "w")
    assert when.minutes_by_weekday == (360, 0, 0, 0, 120, 360, 120)


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


def test_no_threshold_is_reached_by_the_plan_nor_within_its_interval() -> None:
    """Of the whole bill: a run's share of storage and traffic, too."""
    job = BATCH | {"volumes": {"storage": "20TB", "egress": "5TB"}}
    found = assess(fleet_from({"name": "f", "workloads": [job, CHAT]}), catalog(), scenarios=0)
    for name, times in (("nightly", 30), ("chat", 730 / 24)):
        whole = found.usd_per_month.by_workload[name]
        high = whole + sum(r.usd_high - r.usd_per_month for r in found.allocation if r.workload == name)
        (spend,) = [a for a in found.monitoring if a.workload == name and a.metric.startswith("spend per")]
        assert spend.threshold >= high / times * (1 - 1e-9)
        assert spend.threshold > whole / times
    machines = sum(r.usd_per_month for r in found.allocation if r.workload == "nightly")
    assert found.usd_per_month.by_workload["nightly"] > 2 * machines, "storage and traffic are most of it"


def test_the_memory_of_a_service_is_what_the_engine_takes() -> None:
    """vLLM takes 0.92 of the whole device from the first minute, however little the model needs."""
    row = next(w for w in answer().assessment.workloads if w.name == "chat")
    assert row.best["layout"]["engine"] == "vllm"
    whole = row.best["capacity_bytes"]
    assert alert("device memory", "chat") == pytest.approx((0.92 + 0.05) * whole)


def test_each_alert_says_how_long_how_grave_and_what_to_do() -> None:
    for one in answer().assessment.monitoring:
        assert one.key
        assert one.action
        assert one.severity in {"warning", "critical"}
        assert one.why
        assert (one.for_s == 0) == (one.metric.startswith(("spend", "interruptions"))), one.metric
        assert one.above == (one.key != "tokens_per_s")
    keys = {a.key for a in answer().assessment.monitoring if a.workload == "chat"}
    assert {
        "spend_usd_per_day", "device_memory_bytes", "latency_seconds_p95", "requests_waiting", "requests_per_s",
        "replica_load_frac",
    } <= keys  # fmt: skip
    (load,) = [a for a in answer().assessment.monitoring if (a.key, a.workload) == ("replica_load_frac", "chat")]
    assert (load.threshold, load.for_s) == (0.9, 600.0)


def test_each_latency_of_a_service_is_estimated_at_its_own_percentile() -> None:
    """TTFT at the median that its target names, TPOT at the strictest percentile of the other targets."""
    targets = {"ttft": {"p50": "900ms"}, "latency": {"p99": "3s"}}
    found = assess(fleet_from({"name": "f", "workloads": [CHAT | {"targets": targets}]}), catalog())
    figures = found.workloads[0].best["figures"]
    named = {name: figures[name]["percentile"] for name in ("ttft_s", "tpot_s", "latency_s")}
    assert named == {"ttft_s": "p50", "tpot_s": "p99", "latency_s": "p99"}


def test_waiting_requests_are_what_the_rest_of_the_target_works_off() -> None:
    figures = next(w.best["figures"] for w in answer().assessment.workloads if w.name == "chat")
    spare = 1.0 - figures["latency_s"]["value"]
    assert alert("requests waiting", "chat") == pytest.approx(figures["requests_per_s"]["value"] * spare)
