"""Recording in the background: whatever happens to the store, the process or its clock, the run continues."""

from __future__ import annotations

import logging
import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded import run_named

from databases import PostgresServer
from flopwise.errors import FlopwiseError
from flopwise.records import writer as writing
from flopwise.records.model import Event, Sample
from flopwise.records.store import Store, open_store
from flopwise.records.writer import Writer

SOON_S = 60.0
"""Patience with a busy machine; what is waited for comes within milliseconds."""
HEAD = """
import logging, os, sys, time
sys.path[:0] = {tests!r}
from recorded import run_named
from flopwise.records.store import Store, open_store
from flopwise.records.writer import Writer
where = {where!r}
"""


def _program(where: str | Path, code: str) -> list[str]:
    head = HEAD.format(tests=[str(Path(__file__).parent)], where=str(where))
    return [sys.executable, "-c", head + code]


def _ran(where: str | Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_program(where, code), capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """What was logged so far."""
    caplog.set_level(logging.INFO, "flopwise")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "flopwise"]


def eventually(holds: Callable[[], object]) -> bool:
    """Whether it comes to hold soon: other threads run when the machine lets them."""
    until = time.monotonic() + SOON_S
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    mounted = subprocess.run(line, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("only root mounts a small file system; the limit of a file's size is tested everywhere")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)  # noqa: S607 - same


def test_values_and_events_arrive_as_they_were_given(where: str) -> None:
    run = run_named("first", at_s=time.time())
    writer = Writer(where, run)
    for step in range(100):
        writer.add(1000.0 + step, {"loss": 5.0 - step, "step_s": float(np.float32(0.5))}, step=step)
    writer.add(None, {"power_w": 300, "loss": math.nan}, device="gpu0")
    writer.event("note", "halfway", at_s=1050.0, step=50, device="gpu0")
    assert writer.end("finished")
    store = open_store(where)
    assert store.samples(run.run_id, "loss").value.tolist() == [5.0 - step for step in range(100)]
    assert store.samples(run.run_id, "step_s").step.tolist() == list(range(100))
    assert math.isnan(store.samples(run.run_id, "loss", "gpu0").value[0])
    assert store.events(run.run_id) == [Event(1050.0, "note", "halfway", 50, "gpu0")]
    assert store.run("first").status == "finished"
    writer.add(1.0, {"loss": 1.0})  # after the end
    assert writer.end("failed")
    assert store.summaries(run.run_id)["loss", ""].count == 100
    assert store.run("first").status == "finished"


def test_it_writes_by_itself_every_few_seconds(where: str) -> None:
    run = run_named("live")
    writer = Writer(where, run, interval_s=0.05)
    writer.add(1.0, {"loss": 1.0})
    assert eventually(lambda: open_store(where).summaries(run.run_id))
    assert open_store(where).summaries(run.run_id)["loss", ""].count == 1
    assert open_store(where).run(run.run_id).status == "running"
    writer.end()


class _Unreadable:
    def __float__(self) -> float:
        raise RuntimeError("a tensor of a device that is gone")


def test_nothing_that_is_given_raises(tmp_path: Path, lines: Any) -> None:
    run = run_named("odd")
    writer = Writer(tmp_path / "runs.db", run)
    odd: list[Any] = [{"loss": "x"}, {"loss": None}, {"loss": 10**400}, {"loss": _Unreadable()}, None, {3: 1.0}, 7]
    for values in odd:
        writer.add(None, values)
    writer.add(None, {"lossy": 1.0, "loss": 2.0})
    writer.add(math.nan, {"loss": 3.0}, step="x")  # type: ignore[arg-type]
    writer.add(math.inf, {"loss": 4.0}, step=2**70)
    writer.event(None, 5, at_s=math.nan)  # type: ignore[arg-type]
    assert writer.end("finished")
    store = open_store(tmp_path / "runs.db")
    assert store.samples(run.run_id, "loss").value.tolist() == [2.0, 4.0]
    assert store.samples(run.run_id, "loss").step.tolist() == [-1, -1]
    assert store.events(run.run_id)[0].text == "5"
    assert len(lines()) == 2  # each kind of fault once
    assert "unknown metric 3" in " ".join(lines())


def test_a_store_that_cannot_be_is_said_once_and_costs_nothing(tmp_path: Path, lines: Any) -> None:
    (tmp_path / "file").write_text("x")
    for where in (tmp_path / "file" / "runs.db", tmp_path, tmp_path / "file", "mysql://a:secret@b/c"):
        before = len(lines())
        writer = Writer(where, run_named("nowhere"), interval_s=0.01)
        for _ in range(5):
            writer.add(None, {"loss": 1.0})
            time.sleep(0.02)
        assert eventually(partial(lambda count: len(lines()) > count, before))
        assert not writer.end(timeout_s=0.3)
        told = lines()[before:]
        assert len(told) == 2, told  # that it is away, and at the end that values are lost
        assert "secret" not in " ".join(told)


def test_twenty_processes_write_at_once(where: str) -> None:
    """Each into a run of its own and into one that all share, from the first moment on, when there is no store."""
    code = """
import alembic.command  # once, not in twenty children
shared = run_named("shared", run_id=32 * "5", at_s=1.0)
children = []
for child in range(20):
    pid = os.fork()
    if pid == 0:
        own = run_named(f"own {child}", at_s=2.0)
        writers = [Writer(where, run, interval_s=0.05) for run in (own, shared)]
        for step in range(200):
            for writer in writers:
                writer.add(float(step), {"loss": float(child), "step_s": 1.0}, step=step)
            if step % 40 == 0:
                time.sleep(0.05)
        done = [writer.end("finished", timeout_s=200) for writer in writers]
        os._exit(0 if all(done) else 1)
    children.append(pid)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])
"""
    ended = _ran(where, code)
    assert ended.stdout.strip() == str([0] * 20), ended.stderr
    assert ended.stderr == ""
    store = open_store(where)
    assert len(store.runs()) == 21
    for run in store.runs():
        count = 4000 if run.name == "shared" else 200
        summaries = store.summaries(run.run_id)
        assert {summary.count for summary in summaries.values()} == {count}, run.name
        assert store.samples(run.run_id, "step_s").value.size == count
    values, counts = np.unique(store.samples(32 * "5", "loss").value, return_counts=True)
    assert (values.tolist(), set(counts)) == ([float(child) for child in range(20)], {200})


def test_twenty_threads_write_at_once(where: str) -> None:
    store = open_store(where)
    run = run_named("threads")
    store.add_run(run)
    faults: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for batch in range(10):
                store.append(run.run_id, [Sample(m, 1.0, 1.0) for m in ("loss", "step_s")[:: 1 - 2 * (number % 2)]] * 5)
                store.summaries(run.run_id)
                assert batch >= 0
        except BaseException as fault:  # noqa: BLE001 - the test's own thread tells
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert {one.count for one in store.summaries(run.run_id).values()} == {1000}
    assert store.samples(run.run_id, "loss").value.size == 1000


def test_a_killed_process_loses_what_was_not_written_and_nothing_else(where: str) -> None:
    """Killed at five moments while it writes without a pause; it says each batch that the store has taken."""
    code = """
append, total = Store.append, 0
def told(self, run_id, samples=(), events=(), *, batch=None):
    append(self, run_id, samples, events, batch=batch)
    global total
    total += len(samples)
    print(total, flush=True)
Store.append = told
writer = Writer(where, run_named("killed", at_s=time.time(), run_id=sys.argv[1]), interval_s=0.001)
step = 0
while True:
    writer.add(None, {"loss": float(step)}, step=step)
    step += 1
    if step % 10 == 0:  # slower than what a busy machine writes, or the writer drops values
        time.sleep(0.001)
"""
    for attempt in range(5):
        run_id = f"{attempt:032x}"
        with subprocess.Popen([*_program(where, code), run_id], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(3 + 4 * attempt):
                written = int(process.stdout.readline())
            time.sleep(0.003 * attempt)
            process.send_signal(signal.SIGKILL)
            for line in process.stdout:
                written = int(line) if line.endswith("\n") else written
        store = open_store(where)
        values = store.samples(run_id, "loss").value
        assert values.tolist() == list(map(float, range(values.size)))
        assert values.size >= written
        assert store.summaries(run_id)["loss", ""].count == values.size
        assert store.run(run_id).status == "running"
    if "://" not in where:
        with sqlite3.connect(where) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()


def test_a_full_disk_is_said_once_and_made_up_for(small: Path, lines: Any) -> None:
    where, run = small / "runs.db", run_named("full")
    writer = Writer(where, run, interval_s=0.02)
    writer.add(1.0, {"loss": 0.0}, step=0)
    assert writer.flush()
    with pytest.raises(OSError, match="space"):
        (small / "filler").write_bytes(bytes(2**20))
    for step in range(1, 3000):
        writer.add(1.0, {"loss": float(step)}, step=step)
    assert not writer.flush(timeout_s=1.0)
    assert eventually(lines)
    assert len(lines()) == 1
    assert "full" in lines()[0]
    assert "the run continues" in lines()[0]
    (small / "filler").unlink()
    assert writer.end(timeout_s=SOON_S)
    assert open_store(where).samples(run.run_id, "loss").value.tolist() == list(map(float, range(3000)))
    assert "store is back" in lines()[-1]
    assert len(lines()) == 2


def test_a_disk_that_is_full_from_the_start(small: Path, lines: Any) -> None:
    with pytest.raises(OSError, match="space"):
        (small / "filler").write_bytes(bytes(2**21))
    writer = Writer(small / "runs.db", run := run_named("full"), interval_s=0.02)
    writer.add(1.0, {"loss": 1.0})
    assert not writer.flush(timeout_s=1.0)
    assert eventually(lines)
    assert "--store or FLOPWISE_RUNS" in lines()[0]
    (small / "filler").unlink()
    assert writer.end(timeout_s=SOON_S)
    assert open_store(small / "runs.db").summaries(run.run_id)["loss", ""].count == 1


def test_a_file_that_may_not_grow_is_made_up_for(tmp_path: Path) -> None:
    """Where no file system can be mounted: the limit of the process, which is lifted again."""
    code = """
import resource
writer = Writer(where, run_named("limited"), interval_s=0.02)
writer.add(1.0, {"loss": 0.0})
assert writer.flush()
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(where) + 8192, hard))
for step in range(1, 5000):
    writer.add(1.0, {"loss": float(step)})
assert not writer.flush(timeout_s=1.0)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
assert writer.end(timeout_s=60)
store = open_store(where)
print(store.samples(store.run("limited").run_id, "loss").value.tolist() == list(map(float, range(5000))))
"""
    ended = _ran(tmp_path / "runs.db", code)
    assert ended.stdout == "True\n", ended.stderr
    assert ended.stderr.count("the run continues") == 1
    assert ended.stderr.count("\n") == 2


def test_a_server_that_restarts_is_made_up_for(postgres: PostgresServer, database: str, lines: Any) -> None:
    run = run_named("restart")
    writer = Writer(database, run, interval_s=0.02)
    step = 0
    for outage in range(2):
        for _ in range(200):
            writer.add(float(step), {"loss": float(step)}, step=step)
            step += 1
            time.sleep(0.0005)
        postgres.stop()
        for _ in range(200):
            writer.add(float(step), {"loss": float(step)}, step=step)
            step += 1
        assert not writer.flush(timeout_s=0.5)
        assert eventually(partial(lambda count: sum("the run continues" in line for line in lines()) > count, outage))
        postgres.start()
        assert writer.flush(timeout_s=SOON_S)
        assert sum("the run continues" in line for line in lines()) == outage + 1  # once an outage
    assert writer.end(timeout_s=SOON_S)
    assert open_store(database).samples(run.run_id, "loss").value.tolist() == list(map(float, range(step)))
    assert "secret" not in " ".join(lines())


def test_a_batch_whose_answer_was_lost_is_not_written_twice(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection breaks after the database committed: the writer cannot know, and sends it again."""
    append, broken = Store.append, list[int]()

    def breaking(self: Store, *given: Any, **how: Any) -> None:
        append(self, *given, **how)
        if len(broken) < 3:
            broken.append(1)
            raise FlopwiseError("the connection broke")

    monkeypatch.setattr(Store, "append", breaking)
    writer = Writer(where, run := run_named("lost answer"), interval_s=0.01)
    for step in range(100):
        writer.add(1.0, {"loss": float(step)}, step=step)
    assert writer.end(timeout_s=SOON_S)
    assert broken == [1, 1, 1]
    assert open_store(where).samples(run.run_id, "loss").value.tolist() == list(map(float, range(100)))


def test_what_waits_is_bounded_thinned_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MOST_QUEUED", 1000)
    monkeypatch.setattr(writing, "MOST_EVENTS", 10)
    blocker = tmp_path / "away"
    blocker.write_text("x")
    writer = Writer(blocker / "runs.db", run := run_named("long outage"), interval_s=0.01)
    for step in range(50_000):
        writer.add(float(step), {"loss": float(step)}, step=step)
        assert len(writer._queue) <= 1000
    for number in range(30):
        writer.event("note", str(number))
    blocker.unlink()
    assert writer.end(timeout_s=SOON_S)
    store = open_store(blocker / "runs.db")
    steps = store.samples(run.run_id, "loss").step
    assert 500 < steps.size <= 1000
    assert (np.diff(steps) > 0).all()
    assert steps[-250:].tolist() == list(range(49_750, 50_000))  # what came last is whole
    assert steps[0] < 25_000  # and something is left of what came first
    *notes, thinned = store.events(run.run_id)
    assert [event.text for event in notes] == [str(number) for number in range(20, 30)]
    assert thinned.kind == "thinned"
    assert int(thinned.text.split()[0].replace(",", "")) == 50_000 - steps.size + 20


def test_kinds_of_values_that_alternate_are_thinned_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MOST_QUEUED", 1000)
    blocker = tmp_path / "away"
    blocker.write_text("x")
    writer = Writer(blocker / "runs.db", run := run_named("two kinds"), interval_s=0.01)
    for step in range(5000):
        writer.add(float(step), {"loss": 1.0}, step=step)
        writer.add(float(step), {"peak_memory_bytes": 1.0}, step=step, device="cuda:0")
    blocker.unlink()
    assert writer.end(timeout_s=SOON_S)
    store = open_store(blocker / "runs.db")
    losses, peaks = (store.samples(run.run_id, *key).step for key in (("loss",), ("peak_memory_bytes", "cuda:0")))
    assert losses.size == pytest.approx(peaks.size, abs=20)
    assert 500 < losses.size + peaks.size <= 1000
    assert max(losses[0], peaks[0]) < 2500, "something is left of what came first of both"


def test_values_of_which_no_two_are_of_a_kind_are_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MOST_QUEUED", 100)
    writer = Writer(tmp_path, run_named("odd"), interval_s=0.01)
    for step in range(1000):
        writer.add(float(step), {"loss": 1.0}, device=str(step))
        assert len(writer._queue) <= 100
    writer.end(timeout_s=0.0)


def test_a_store_that_is_moved_aside_is_made_anew(tmp_path: Path) -> None:
    where = tmp_path / "runs.db"
    writer = Writer(where, run := run_named("moved"), interval_s=0.01)
    writer.add(1.0, {"loss": 1.0})
    assert writer.flush()
    where.rename(tmp_path / "old.db")
    writer.add(2.0, {"loss": 2.0})
    assert writer.end("finished", timeout_s=SOON_S)
    assert open_store(where).samples(run.run_id, "loss").value.tolist() == [2.0]
    assert open_store(tmp_path / "old.db").samples(run.run_id, "loss").value.tolist() == [1.0]
    assert open_store(where).run("moved").status == "finished"


def test_a_run_that_is_deleted_meanwhile_stays_deleted(where: str, lines: Any) -> None:
    writer = Writer(where, run := run_named("deleted"), interval_s=0.01)
    writer.add(1.0, {"loss": 1.0})
    assert writer.flush()
    open_store(where).delete(run.run_id)
    writer.add(2.0, {"loss": 2.0})
    writer.flush()
    writer.add(3.0, {"loss": 3.0})
    assert writer.end()
    assert open_store(where).runs() == []
    assert len(lines()) == 1
    assert "deleted" in lines()[0]


def test_what_is_added_while_values_are_written_waits_for_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = list[int]()

    def slow(store: Store, run_id: str, samples: Any, *args: Any, **kwargs: Any) -> None:
        written.append(len(samples))
        assert len(written) < 10
        if len(written) > 1:
            writer.add(float(len(written)), {"loss": 1.0})  # as a loop whose steps are quicker than a transaction
        append(store, run_id, samples, *args, **kwargs)

    append = Store.append
    monkeypatch.setattr(Store, "append", slow)
    monkeypatch.setattr(writing, "BATCH", 2)
    writer = Writer(tmp_path / "runs.db", run := run_named("steady"), interval_s=1000.0)
    for at_s in range(5):
        writer.add(float(at_s), {"loss": 1.0})
    writer._write_all()
    assert written == [2, 2, 2]  # five values in batches of two; what came with the second filled the third
    writer._write_all()
    assert written == [2, 2, 2, 1]
    assert open_store(tmp_path / "runs.db").summaries(run.run_id)["loss", ""].count == 7


def test_a_defect_of_ours_costs_a_batch_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: Any
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    writer = Writer(tmp_path / "runs.db", run := run_named("defect"), interval_s=100.0)
    with monkeypatch.context() as now:
        now.setattr(Store, "append", broken)
        writer.add(1.0, {"loss": 1.0})
        writer.flush(timeout_s=1.0)
        assert eventually(lines)
    writer.add(2.0, {"loss": 2.0})
    assert writer.end()
    assert open_store(tmp_path / "runs.db").samples(run.run_id, "loss").value.tolist() == [2.0]
    assert len(lines()) == 1
    assert "ZeroDivisionError" in lines()[0]


def test_processes_that_are_forked_off_neither_repeat_nor_end_the_run(where: str) -> None:
    """As data loaders are: many short children while the writer is busy; some end as programs do, some record."""
    code = """
writer = Writer(where, run_named("forks", at_s=1.0), interval_s=0.001)
for step in range(9):
    writer.add(float(step), {"loss": float(step)}, step=step)
    pid = os.fork()
    if pid == 0:
        if step % 3 == 0:
            os._exit(0)
        if step % 3 == 1:
            writer.add(float(step), {"eval_loss": float(step)}, step=step)
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
print(open_store(where).run("forks").status)
writer.end("finished")
"""
    ended = _ran(where, code)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("running\n", "", 0)
    store = open_store(where)
    run = store.run("forks")
    assert store.samples(run.run_id, "loss").value.tolist() == list(map(float, range(9)))
    assert sorted(store.samples(run.run_id, "eval_loss").value) == [float(step) for step in range(9) if step % 3 == 1]
    assert run.status == "finished"


@pytest.mark.parametrize(
    ("last", "code", "status"),
    [("", 0, "stopped"), ("raise ValueError", 1, "failed"), ("writer.end('finished')", 0, "finished"),
     ("sys.exit(3)", 3, "stopped")],
)  # fmt: skip
def test_the_end_of_the_program_writes_what_is_left(where: str, last: str, code: int, status: str) -> None:
    body = f"""
writer = Writer(where, run_named("exit", at_s=1.0), interval_s=1000.0)
for step in range(500):
    writer.add(float(step), {{"loss": float(step)}}, step=step)
{last}
"""
    ended = _ran(where, body)
    assert ended.returncode == code, ended.stderr
    store = open_store(where)
    run = store.run("exit")
    assert store.summaries(run.run_id)["loss", ""].count == 500
    assert (run.status, run.ended_at_s is not None) == (status, True)


def test_times_run_on_when_the_clock_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(tmp_path / "runs.db", run := run_named("clock", at_s=time.time()))
    writer.add(None, {"loss": 1.0})
    monkeypatch.setattr(time, "time", lambda: 5.0)
    writer.add(None, {"loss": 2.0})
    writer.end("finished")
    monkeypatch.undo()
    times = open_store(tmp_path / "runs.db").samples(run.run_id, "loss").at_s
    assert times[0] <= times[1] <= times[0] + SOON_S
    ended_s = open_store(tmp_path / "runs.db").run("clock").ended_at_s
    assert ended_s is not None
    assert ended_s >= run.started_at_s


def test_a_writer_loads_no_database_at_the_start_of_a_run(tmp_path: Path) -> None:
    code = "import flopwise.records.writer, sys; print({'sqlalchemy', 'numpy', 'alembic'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert ended.stdout == "set()\n"
    assert not (tmp_path / "runs.db").exists()
