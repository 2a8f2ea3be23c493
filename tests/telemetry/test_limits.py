"""Limits: the plan's own, once an episode, in spite of clocks that jump and counters that begin anew."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flopwise.errors import SpecError
from flopwise.telemetry.actions import KeptState
from flopwise.telemetry.expected import ELSEWHERE, Expected
from flopwise.telemetry.limits import QUANTITIES
from flopwise.telemetry.money import spend
from flopwise.telemetry.readings import CounterRate, SourceLostError, WatchReading
from flopwise.telemetry.spec import WatchSpec
from flopwise.telemetry.watcher import Watcher, WatchStatus

sys.path.insert(0, str(Path(__file__).parents[1] / "exports"))
from export_samples import sample_deployment

from flopwise.exports.monitoring.alert_rules import watch_rules
from flopwise.exports.monitoring.watched import watched_plan

GIB = 2**30


class Played:
    """A source whose readings a test hands over."""

    title, live = "readings", True

    def readings(self) -> list[WatchReading]:
        return []

    def close(self) -> None:
        """Nothing."""


def watched(expected: Expected | None = None, **options: Any) -> Watcher:
    spec = WatchSpec(**options)
    return Watcher(Played(), expected or Expected.of(spec, None, None), spec, started_at_s=0.0)


def device(**values: float) -> dict[str, dict[str, float]]:
    return {"0": {"memory_total_bytes": 80.0 * GIB, **values}}


def play(watcher: Watcher, *readings: WatchReading) -> list[tuple[str, bool, float]]:
    """(alert, whether it fires, when) of everything that changes."""
    statuses = [status for reading in readings for status in watcher.take(reading)]
    return [(c.limit.name, c.firing, c.at_s) for status in statuses for c in status.changes]


def reap(watcher: Watcher) -> None:
    """Wait for the stop command."""
    if watcher._command is not None and watcher._command._process is not None:
        watcher._command._process.wait(60)


def memory(at_s: float, frac: float) -> WatchReading:
    return WatchReading(at_s=at_s, devices=device(memory_used_bytes=frac * 80 * GIB))


def test_latencies_of_a_plan_are_expected_at_its_percentiles() -> None:
    plan = sample_deployment("serve").plan
    measures = Expected.of(WatchSpec(), None, plan).figures
    assert plan.percentiles
    for latency, percentile in plan.percentiles.items():
        assert f"{latency}_{percentile}_s" in measures


@pytest.mark.parametrize("sample", ["serve", "lora", "pretrain", "batch"])
def test_a_plan_has_the_thresholds_of_its_exported_rules(sample: str) -> None:
    deployment = sample_deployment(sample)
    expected = Expected.of(WatchSpec(), None, deployment.plan)
    limits = {limit.name: limit for limit in expected.limits}
    compared = 0
    for rule in watch_rules(watched_plan(deployment)):
        if rule.alert in ELSEWHERE or rule.quantity in ("spot_notice", "machines_seen"):
            continue
        limit = limits[rule.alert]
        if rule.alert != "BudgetSpent":
            assert (limit.threshold, limit.for_s, limit.above) == (rule.threshold, rule.for_s, rule.above), rule.alert
        assert limit.quantity in QUANTITIES
        compared += 1
    assert compared >= 8


def test_an_alert_fires_when_its_time_is_over_and_clears_once() -> None:
    watcher = watched()
    rows = [memory(t, 0.9) for t in range(0, 330, 30)] + [memory(t, 0.5) for t in range(330, 600, 30)]
    assert play(watcher, *rows) == [("MemoryHigh", True, 300.0), ("MemoryHigh", False, 390.0)]


def test_noise_around_a_limit_is_one_episode() -> None:
    watcher = watched()
    rows = [memory(t, 0.9) for t in range(0, 330, 30)] + [
        memory(t, 0.84 + 0.02 * (t // 30 % 2)) for t in range(330, 1200, 30)
    ]
    assert [name for name, *_ in play(watcher, *rows)] == ["MemoryHigh"]


def test_a_short_peak_or_a_gap_in_what_is_read_fires_nothing() -> None:
    assert play(watched(), *[memory(t, 0.99) for t in range(0, 290, 10)], memory(290, 0.5), memory(310, 0.99)) == []
    assert play(watched(), memory(0, 0.99), memory(1000, 0.99)) == [], "nobody looked in between"


def test_a_clock_that_jumps_fires_nothing_and_watching_goes_on() -> None:
    watcher = watched()
    assert play(watcher, memory(10_000, 0.99), memory(10_005, 0.99), memory(2_000, 0.99), memory(2_005, 0.99)) == []
    assert play(watcher, memory(90_000, 0.99), memory(90_005, 0.99)) == []
    later = [memory(90_005 + t, 0.99) for t in range(5, 330, 30)]
    assert [name for name, *_ in play(watcher, *later)] == ["MemoryHigh"]
    assert play(watched(), memory(100, 0.5), memory(99, 0.5), memory(100, 0.5)) == [], (
        "one that is not later is dropped"
    )


def test_missing_series_leave_an_alert_as_it_is() -> None:
    watcher = watched()
    play(watcher, *[memory(t, 0.9) for t in range(0, 330, 30)])
    assert play(watcher, *[WatchReading(at_s=t, job={"tokens_per_s": 1.0}) for t in range(330, 600, 30)]) == []
    assert play(watcher, memory(600, 0.5), memory(700, 0.5)) == [("MemoryHigh", False, 700.0)]


def test_utilisation_is_of_services_and_a_run_alerts_where_nothing_comes_of_it() -> None:
    def rows(**job: float) -> list[WatchReading]:
        return [WatchReading(at_s=t, devices=device(busy_frac=0.98), job=job) for t in range(0, 690, 30)]

    assert play(watched(), *rows()) == [("UtilisationHigh", True, 600.0)]
    assert play(watched(), *rows(requests_running=3.0, tokens_per_s=9.0)) == [("UtilisationHigh", True, 600.0)]
    assert play(watched(), *rows(tokens_per_s=9000.0)) == []
    assert play(watched(), *rows(tokens_per_s=0.0)) == [("BusyWithoutProgress", True, 600.0)]


def test_options_change_limits() -> None:
    watcher = watched(memory=0.5, memory_for=0.0, target_p95=("ttft=500ms", "2s"), min_tokens_per_s=100.0)
    assert [c[0] for c in play(watcher, memory(0, 0.6))] == ["MemoryHigh"]
    job = {"ttft_p95_s": 0.6, "latency_p95_s": 1.9, "tokens_per_s": 50.0}
    names = [c[0] for c in play(watcher, *[WatchReading(at_s=t, job=job) for t in range(10, 1000, 30)])]
    assert names == ["TimeToFirstTokenHigh", "ThroughputLow"]


def test_an_xid_is_told_when_it_comes_and_an_old_one_is_not() -> None:
    def xid(at_s: float, number: float) -> WatchReading:
        return WatchReading(at_s=at_s, devices=device(xid=number))

    watcher = watched()
    assert play(watcher, xid(0, 31), xid(10, 31)) == [], "it was there before, and is a program's fault"
    assert [c[0] for c in play(watcher, xid(20, 13))] == ["XidError"]
    assert [c[:2] for c in play(watcher, xid(30, 79))] == [("XidHardwareError", True)]


def test_a_run_of_long_steps_is_not_lost_between_them() -> None:
    clock, spec = [0.0], WatchSpec()
    source = Played()
    handed = [[memory(0, 0.5)], [], [], []]
    source.readings = lambda: handed.pop(0)  # type: ignore[method-assign]
    watcher = Watcher(source, Expected.of(spec, None, None), spec, started_at_s=0.0, now=lambda: clock[0])
    watcher.look()
    clock[0] = 600.0
    assert not watcher.look().source_lost
    clock[0] = 901.0
    lost = watcher.look()
    assert lost.source_lost == "there are no new readings"
    assert [change.limit.name for change in lost.changes] == ["SourceLost"]


def test_money_is_counted_from_the_start_and_projected_by_the_tokens_left() -> None:
    reading = WatchReading(at_s=7200.0, job={"tokens": 1e6, "tokens_per_s": 100.0})
    one = spend(reading, price=10.0, started_at_s=0.0, tokens=4e6, planned_s=None, rate=100.0)
    assert (one.total_usd, one.day_usd, one.done_frac) == (20.0, 20.0, 0.25)
    assert one.ends_at_s == 7200 + 3e6 / 100
    assert one.projected_usd == pytest.approx(20 + 10 * 30_000 / 3600)
    long = spend(
        replace(reading, at_s=3 * 86_400.0), price=10.0, started_at_s=0.0, tokens=None, planned_s=None, rate=None
    )
    assert (long.total_usd, long.day_usd, long.ends_at_s) == (720.0, 240.0, None)
    recorded = spend(WatchReading(at_s=3600, job={"cost_usd": 3.5, "eta_s": 3600}), price=10.0, started_at_s=0.0,
                     tokens=None, planned_s=None, rate=None)  # fmt: skip
    assert (recorded.total_usd, recorded.projected_usd) == (3.5, 13.5)
    later = spend(WatchReading(at_s=3600, job={"cost_usd": 3.5}), price=10.0, started_at_s=0.0, tokens=None,
                  planned_s=None, rate=None, at_s=3600 + 1800)  # fmt: skip
    assert later.total_usd == 3.5 + 5.0, "machines are paid while nothing is read"


def test_a_budget_fires_when_it_is_spent() -> None:
    watcher = watched(price=36.0, budget=1.0, budget_per_day=0.5)
    found = play(watcher, *[memory(t, 0.1) for t in range(0, 130, 10)])
    assert found == [("DayBudgetSpent", True, 60.0), ("BudgetSpent", True, 110.0)]


def test_a_budget_is_kept_while_nothing_can_be_read(tmp_path: Path) -> None:
    """A dollar a second: the source is silent from the start, and is said to be lost after a minute."""
    clock, spec = [0.0], WatchSpec(price=3600.0, budget=100.0, exec_on_budget=f"touch {tmp_path / 'stopped'}")
    source, silent = Played(), [SourceLostError("away"), SourceLostError("away"), SourceLostError("away")]

    def readings() -> list[WatchReading]:
        if clock[0]:
            raise silent.pop()
        return [memory(0, 0.5)]

    source.readings = readings  # type: ignore[method-assign]
    watcher = Watcher(source, Expected.of(spec, None, None), spec, started_at_s=0.0, now=lambda: clock[0])
    assert watcher.look().changes == ()
    clock[0] = 50.0
    early = watcher.look()
    assert (early.spend.total_usd, early.changes) == (50.0, ())
    clock[0] = 101.0
    late = watcher.look()
    assert {change.limit.name for change in late.changes} == {"SourceLost", "BudgetSpent"}
    assert late.spend.total_usd == 101.0
    assert any("is spent: running" in text for text in late.messages)
    reap(watcher)
    clock[0] = 150.0
    assert watcher.look().changes == (), "once an episode"


def test_a_budget_goes_on_in_the_quiet_between_two_readings() -> None:
    clock, spec = [0.0], WatchSpec(price=3600.0, budget=100.0)
    source, handed = Played(), [[memory(0, 0.5)], [], [], [memory(120, 0.5)]]
    source.readings = lambda: handed.pop(0)  # type: ignore[method-assign]
    watcher = Watcher(source, Expected.of(spec, None, None), spec, started_at_s=0.0, now=lambda: clock[0])
    found = []
    for clock[0] in (0.0, 99.0, 101.0, 121.0):
        status = watcher.look()
        assert status.source_lost == ""
        found.append([(change.limit.name, change.at_s) for change in status.changes])
    assert found == [[], [], [("BudgetSpent", 101.0)], []]


def test_alerts_of_a_device_that_is_gone_end() -> None:
    """Two machines: one is given back, after which nobody names its GPU, not even as one that is lost."""

    def both(at_s: float, *gone: str, lost: str = "") -> WatchReading:
        values = {"memory_total_bytes": 80.0 * GIB, "memory_used_bytes": 72.0 * GIB}
        devices = {name: values for name in ("a/0", "b/0") if name not in (*gone, lost)}
        return WatchReading(at_s=at_s, devices=devices, lost=frozenset({lost} - {""}))

    watcher = watched()
    rows = [both(t) for t in range(0, 330, 30)]
    rows += [both(t, lost="b/0") for t in range(330, 2130, 30)]  # for half an hour: its alerts stay
    rows += [both(t, "b/0") for t in range(2130, 3300, 30)]
    statuses = [status for row in rows for status in watcher.take(row)]
    found = [(c.limit.name, c.device, c.firing, c.at_s) for status in statuses for c in status.changes]
    assert found == [
        ("MemoryHigh", "a/0", True, 300.0), ("MemoryHigh", "b/0", True, 300.0), ("DeviceLost", "b/0", True, 360.0),
        ("MemoryHigh", "b/0", False, 3000.0), ("DeviceLost", "b/0", False, 3000.0),  # 15 minutes after 2100
    ]  # fmt: skip
    assert [change.device for change in statuses[-1].firing] == ["a/0"]


@pytest.mark.parametrize("own", [False, True])
def test_a_job_begins_with_its_own_watch_unless_its_file_says_otherwise(
    own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eleven days lie between two jobs on the same machine, at a cent a second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("flopwise.telemetry.watcher.open_source", lambda _: Played())
    clock = [0.0]
    monkeypatch.setattr("time.time", lambda: clock[0])
    state = Path("job.json") if own else None
    spec = WatchSpec(price=36.0, budget=1.0, exec_on_budget=f"touch {tmp_path / 'stopped'}", state=state)
    first = Watcher.of(spec)
    assert play(first, memory(1.0, 0.1), memory(120.0, 0.1)) == [("BudgetSpent", True, 120.0)]
    reap(first)
    clock[0] = 1e6
    second = Watcher.of(spec)
    found = play(second, memory(1e6 + 1, 0.1), memory(1e6 + 2, 0.1))
    assert found == ([("BudgetSpent", True, 1e6 + 1)] if own else []), "the file is of the same job"
    assert play(second, memory(1e6 + 150, 0.1)) == ([] if own else [("BudgetSpent", True, 1e6 + 150)])
    reap(second)


def test_a_counter_that_begins_anew_grows_by_what_it_shows() -> None:
    rate = CounterRate(60.0)
    for at_s, total in ((0, 1000), (10, 1500), (20, 100), (30, 600)):
        rate.add(at_s, total)
    assert rate.per_s == pytest.approx((500 + 100 + 500) / 30)
    rate.add(25, 9e9)
    rate.add(40, float("nan"))
    assert rate.per_s == pytest.approx(1100 / 30), "what is not later, or no number, is passed over"
    rate.add(-5000, 10)
    rate.add(-4990, 20)
    assert rate.per_s == 1.0, "a clock that was set back begins anew"


def test_what_is_kept_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "watch" / "job.json"
    state = KeptState(path)
    assert state.started_at_s() is None
    state.start(123.0)
    assert KeptState(path).started_at_s() == 123.0
    assert state.claim_run()
    assert not KeptState(path).claim_run()
    state.note_run(begun=False)
    assert KeptState(path).claim_run(), "what did not begin may be tried again"
    claim = path.with_name("job.json.ran")
    os.utime(claim, (time.time() - 61, time.time() - 61))
    assert KeptState(path).claim_run(), "the watch that claimed it was killed"
    state.note_run(begun=True)
    os.utime(claim, (time.time() - 61, time.time() - 61))
    assert not KeptState(path).claim_run()
    assert KeptState(path, anew=True).claim_run()
    path.write_text("{")
    with pytest.raises(SpecError, match="--anew"):
        state.started_at_s()


def test_on_plan_is_healthy_whatever_bounds_it_and_below_it_is_not() -> None:
    expected = Expected.of(WatchSpec(), None, sample_deployment("lora").plan)
    name, (value, low, _) = expected.rate or ("", (0.0, 0.0, 0.0))
    assert name == "tokens_per_s"

    def last(rate: float) -> WatchStatus:
        watcher = watched(expected)
        values = device(busy_frac=0.99, tensor_active_frac=0.5, sm_active_frac=0.9, memory_active_frac=0.3)
        rows = [WatchReading(at_s=t, devices=values, job={"tokens_per_s": rate}) for t in range(0, 120, 10)]
        return [status for row in rows for status in watcher.take(row)][-1]

    good, bad = last(value).diagnosis, last(0.9 * low).diagnosis
    assert (good.at_plan, good.healthy, good.bound) == (True, True, "compute")
    assert good.summary.startswith("healthy, at plan")
    assert (bad.at_plan, bad.healthy) == (False, False)
    assert "planned: " in bad.lever
