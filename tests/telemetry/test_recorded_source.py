"""A recorded run as it goes on, and as it ends: each sample is read once, and its end is no outage."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flopwise.records.model import Run, Sample
from flopwise.records.store import Store, open_store
from flopwise.telemetry.expected import Expected
from flopwise.telemetry.recorded import RunSource
from flopwise.telemetry.spec import WatchSpec
from flopwise.telemetry.watcher import Watcher


def begun(store: Store, *, ago_s: float = 100.0, every_s: float = 1.0, **how: Any) -> Run:
    """A run that began so long ago, with a sample of its step time and of its tokens every so often."""
    start = time.time() - ago_s
    run = Run(run_id=secrets.token_hex(16), name="goes on", task="pretrain", started_at_s=start, **how)
    store.add_run(run)
    count = round(ago_s / every_s)
    store.append(run.run_id, [Sample(m, start + every_s * n, float(n + 1)) for n in range(count)
                              for m in ("tokens", "tokens_per_s")])  # fmt: skip
    return run


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Samples of each call that reads some."""
    sizes, whole = list[int](), Store.sample_rows

    def counted(self: Store, *given: Any, **named: Any) -> Any:
        found = whole(self, *given, **named)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(Store, "sample_rows", counted)
    return sizes


def test_each_sample_is_read_once(tmp_path: Path, rows: list[int]) -> None:
    store = open_store(tmp_path / "runs.db")
    run = begun(store)
    source = RunSource.of(tmp_path / "runs.db", "goes on", 5.0, 1200.0)
    assert source.live
    assert source.readings()[-1].job["tokens"] == 100.0
    assert sum(rows) == 200
    rows.clear()
    assert source.readings() == []
    assert rows == [], "nothing new: nothing is read"
    store.append(run.run_id, [Sample("tokens", time.time(), 555.0)])
    [reading] = source.readings()
    assert reading.job == {"tokens": 555.0, "tokens_per_s": 100.0}
    assert rows == [1]


def test_the_95th_percentile_of_recorded_latencies_is_of_the_last_200(tmp_path: Path) -> None:
    """By nearest rank: of 1 to 300 ms the last 200 are 101 to 300, of which the 190th is 290."""
    store, now = open_store(tmp_path / "runs.db"), time.time()
    run = Run(run_id=secrets.token_hex(16), name="serves", task="serve", started_at_s=now - 300)
    store.add_run(run)
    store.append(run.run_id, [Sample("e2e_s", now - 300 + n, n / 1000) for n in range(1, 301)])
    last = RunSource.of(tmp_path / "runs.db", "serves", 5.0, 1200.0).readings()[-1]
    assert last.job["latency_p95_s"] == 0.290


def test_of_a_long_run_the_last_minutes_are_read(tmp_path: Path, rows: list[int]) -> None:
    begun(open_store(tmp_path / "runs.db"), ago_s=100_000.0, every_s=2.0)
    source = RunSource.of(tmp_path / "runs.db", "goes on", 5.0, 1200.0)
    readings = source.readings()
    assert readings[-1].job["tokens"] == 50_000.0
    assert 230 <= len(readings) <= 242, "one for each five seconds of the last twenty minutes"
    assert sum(rows) == 2 * 1000


def test_a_run_that_ends_is_no_source_that_is_lost(tmp_path: Path) -> None:
    store = open_store(tmp_path / "runs.db")
    run = begun(store, price_usd_per_hour=3600.0)
    spec, clock = WatchSpec(run="goes on", budget=1e6), [time.time()]
    source = RunSource.of(tmp_path / "runs.db", "goes on", 5.0, 1200.0)
    watcher = Watcher(source, Expected.of(spec, run, None), spec, started_at_s=run.started_at_s, now=lambda: clock[0])
    assert watcher.look().spend.total_usd == pytest.approx(99.0, abs=0.1)
    clock[0] += 200.0
    assert watcher.look().spend.total_usd == pytest.approx(300.0, abs=2.0), "a dollar a second, read or not"
    store.append(run.run_id, [Sample("tokens", time.time(), 200.0)])
    store.set_status(run.run_id, "finished", time.time())
    assert watcher.look().reading.job["tokens"] == 200.0, "what it wrote last is read"
    assert not watcher.live
    clock[0] += 2000.0
    status = watcher.look()
    assert (status.source_lost, status.firing, status.changes) == ("", (), ())
    assert status.spend.total_usd == pytest.approx(100.0, abs=5.0), "it costs no more"


def test_the_command_ends_with_the_run(tmp_path: Path) -> None:
    where = tmp_path / "runs.db"
    store = open_store(where)
    run = begun(store, price_usd_per_hour=3600.0)
    command = [sys.executable, "-m", "flopwise", "watch", "--run", "goes on", "--store", str(where), "--interval",
               "0.1s", "--budget", "1"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert "BudgetSpent" in watching.stdout.readline()
        store.set_status(run.run_id, "finished", time.time())
        out, err = watching.communicate(timeout=60)
    assert (watching.returncode, err) == (1, ""), "an alert fired"
    assert out.splitlines()[-1] == "run goes on has ended"


def test_watching_a_server_loads_no_arrays() -> None:
    modules = "flopwise.telemetry.prometheus, flopwise.telemetry.watcher"
    code = f"import {modules}, sys; print({{*sys.modules}} & {{'numpy', 'sqlalchemy'}})"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "set()\n"


def test_watching_a_recorded_run_loads_no_arrays_and_no_other_database(tmp_path: Path) -> None:
    begun(open_store(tmp_path / "runs.db"))
    code = (
        "import sys\nfrom flopwise.cli import main\n"
        f"code = main(['watch', '--once', '--json', '--run', 'goes on', '--store', {str(tmp_path / 'runs.db')!r}])\n"
        "assert code in (0, 1), code\n"
        "unused = {'numpy', 'urllib.request', 'sqlalchemy.dialects.postgresql', 'alembic'}\n"
        "print({*sys.modules} & unused, file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stderr.splitlines()[-1:] == ["set()"], ended.stderr


def test_one_look_at_a_run_that_is_over_says_what_all_of_its_readings_say(tmp_path: Path) -> None:
    """Three hours, busy, in which no token is made for half an hour twice: each time an alert fires and clears."""
    store, start = open_store(tmp_path / "runs.db"), time.time() - 10_800.0
    run = Run(run_id=secrets.token_hex(16), name="over", task="pretrain", started_at_s=start)
    store.add_run(run)
    stuck = {*range(20, 50), *range(90, 120)}
    store.append(run.run_id, [
        sample
        for n in range(180)
        for sample in (
            Sample("tokens_per_s", start + 60 * n, 0.0 if n in stuck else 100.0),
            Sample("utilization_frac", start + 60 * n, 0.95, device="0"),
        )
    ])  # fmt: skip
    store.set_status(run.run_id, "finished", start + 10_800.0)
    spec = WatchSpec(run="over", store=str(tmp_path / "runs.db"))
    *earlier, last = Watcher.of(spec).looks()
    look = Watcher.of(spec).look()
    assert {c.limit.name for c in look.changes} == {"BusyWithoutProgress"}
    assert [c.firing for c in look.changes] == [True, False] * 2
    assert look.changes == tuple(change for status in (*earlier, last) for change in status.changes)
    assert replace(look, changes=last.changes) == last
