"""Work shared between processes gives what one process gives, in order."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from flopwise.fleet.forked import run_forked

ALONE = """import os
from flopwise.fleet.forked import run_forked
print(os.getpid() in set(run_forked(lambda _: os.getpid(), 20, 2)))"""


def test_answers_come_in_order_and_from_other_processes() -> None:
    held = {"base": 7}  # found in place, not sent
    answers = list(run_forked(lambda n: (held["base"] + n, os.getpid()), 20, 2))
    assert [value for value, _ in answers] == [7 + n for n in range(20)]
    if len(os.sched_getaffinity(0)) > 1:  # asked of a process without threads: other tests may have left some here
        done = subprocess.run([sys.executable, "-P", "-c", ALONE], capture_output=True, text=True, check=True)
        assert done.stdout == "False\n"


def test_little_work_and_threads_stay_here() -> None:
    assert set(run_forked(lambda _: os.getpid(), 3, 4)) == {os.getpid()}
    waiting = threading.Event()
    other = threading.Thread(target=waiting.wait)
    other.start()
    try:
        assert set(run_forked(lambda _: os.getpid(), 8, 2)) == {os.getpid()}
    finally:
        waiting.set()
        other.join()


def test_errors_come_back() -> None:
    def ask(number: int) -> int:
        if number == 5:
            raise ValueError("five")
        return number

    with pytest.raises(ValueError, match="five"):
        list(run_forked(ask, 8, 2))


def test_a_place_without_shared_memory_works_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks between processes need it: a read-only container has none."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("multiprocessing.synchronize.SemLock.__init__", refuse)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert list(run_forked(lambda n: (n, os.getpid()), 8, 2)) == [(n, os.getpid()) for n in range(8)]
