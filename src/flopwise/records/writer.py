"""Recording of a running program: adding values takes microseconds; a thread writes them to the store."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import secrets
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flopwise.errors import FlopwiseError, UnknownNameError
from flopwise.records.metrics import METRICS
from flopwise.records.model import Event, Run, RunStatus, Sample

if TYPE_CHECKING:
    from flopwise.records.store import Store

INTERVAL_S = 5.0
"""Time between two writes, in seconds; a process that is killed loses at most this."""
MOST_INTERVAL_S = 30.0
"""Maximum time between two attempts at a failing store, in seconds."""
MOST_QUEUED = 50_000
"""Calls of `add` that are kept while the store is unavailable; beyond that older ones are dropped."""
MOST_EVENTS = 10_000
BATCH = 10_000
"""Calls of `add` that are written in one transaction."""
RETRY_S = 0.2
"""Time between two attempts while the program waits for the last values to be written, in seconds."""
EXIT_WAIT_S = 10.0
"""How long the end of the program waits for the last values to be written."""
_LOG = logging.getLogger("flopwise")

Values = tuple[float, int | None, str, dict[str, float]]
"""Time, step, device, values by metric."""


class Writer:
    """Records one run into the store at `where` (as in `open_store`). No method raises.

    Values that cannot be written are kept in memory, up to a limit, and written once the store is available again, with
    one warning on the logger `flopwise` (on stderr by default). In a forked process the copy drops the values of the
    parent and writes only those that are added in the child.
    """

    def __init__(self, where: str | Path | None, run: Run, *, interval_s: float = INTERVAL_S) -> None:
        self.run_id = run.run_id
        self._where, self._run, self._interval_s = where, run, interval_s
        self._wall_s, self._start_s = time.time(), time.monotonic()
        self._is_copy = False
        self._clear()
        _WRITERS.add(self)
        self._wake_up()

    def _clear(self) -> None:
        """Drop all values, without a thread."""
        self._writer_id, self._batches = secrets.token_hex(16), 0
        self._lock, self._due, self._idle = threading.Lock(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._store: Store | None = None
        self._queue = deque[Values]()
        self._events = deque[Event]()
        self._batch: tuple[list[Sample], list[Event]] | None = None
        self._thinned = 0
        self._failures = 0
        self._warned: set[str] = set()
        self._closed = False
        self._ended: tuple[RunStatus, float] | None = None

    def now(self) -> float:
        """Seconds since 1970 by a monotonic clock that starts with the recording."""
        return self._wall_s + time.monotonic() - self._start_s

    def add(
        self, at_s: float | None, values: Mapping[str, float], *, step: int | None = None, device: str = ""
    ) -> None:
        """Record values by metric, at a time or now."""
        try:
            taken = {metric: float(value) for metric, value in values.items()}
            if unknown := [metric for metric in taken if metric not in METRICS]:
                self._warn("metric", f"unknown metric {', '.join(map(str, unknown))} is not recorded")
                taken = {metric: value for metric, value in taken.items() if metric in METRICS}
            time_s = self.now() if at_s is None or not math.isfinite(at_s) else float(at_s)
            with self._lock:
                if self._closed:
                    return
                self._queue.append((time_s, None if step is None else int(step), str(device), taken))
                if len(self._queue) > MOST_QUEUED:
                    self._thin_out()
            if self._thread is None:
                self._wake_up()
        except Exception as fault:  # noqa: BLE001 - a training loop does not end for a value that is not a number
            self._warn("value", f"a value cannot be recorded ({type(fault).__name__}: {fault})")

    def event(
        self, kind: str, text: str, *, at_s: float | None = None, step: int | None = None, device: str = ""
    ) -> None:
        """Record an event."""
        try:
            time_s = self.now() if at_s is None or not math.isfinite(at_s) else float(at_s)
            one = Event(time_s, str(kind), str(text), None if step is None else int(step), str(device))
            with self._lock:
                if not self._closed:
                    if len(self._events) >= MOST_EVENTS:
                        self._events.popleft()
                        self._thinned += 1
                    self._events.append(one)
            if self._thread is None:
                self._wake_up()
        except Exception as fault:  # noqa: BLE001 - same
            self._warn("value", f"an event cannot be recorded ({type(fault).__name__}: {fault})")

    def flush(self, timeout_s: float = EXIT_WAIT_S, *, retry: bool = True) -> bool:
        """Write all values; returns whether they were written in time, with a single attempt without `retry`."""
        until = time.monotonic() + timeout_s
        while not self._is_empty():
            self._idle.clear()
            self._wake_up()
            self._due.set()
            self._idle.wait(max(until - time.monotonic(), 0.0))
            with self._lock:
                if self._is_empty() or time.monotonic() >= until or (self._failures and not retry):
                    return self._is_empty()
            time.sleep(RETRY_S)
        return True

    def end(self, status: RunStatus = "finished", at_s: float | None = None, *, timeout_s: float = EXIT_WAIT_S) -> bool:
        """End the run and write the remaining values; returns whether they were written in time."""
        with self._lock:
            if self._closed:
                return self._is_empty()
            self._closed = True
            self._ended = status, self.now() if at_s is None else at_s
        done = self.flush(timeout_s)
        if not done:
            self._warn("lost", f"{len(self._queue):,} values of run {self.run_id} have not been written yet")
        return done

    def _is_empty(self) -> bool:
        return not (self._queue or self._events or self._batch or self._ended)

    def _thin_out(self) -> None:
        """Drop every second value of each kind in the older half, so that older values become sparser."""
        half = len(self._queue) // 2
        older = [self._queue.popleft() for _ in range(half)]
        numbers = Counter[tuple[str, ...]]()
        kept = []
        for one in older:
            kind = (one[2], *one[3])  # device and metrics, so that alternating kinds are dropped equally
            if numbers[kind] % 2 == 0:
                kept.append(one)
            numbers[kind] += 1
        if len(kept) > 0.75 * half:  # hardly two are of a kind
            kept = kept[::2]
        self._queue.extendleft(reversed(kept))
        self._thinned += half - len(kept)

    def _wake_up(self) -> None:
        """Start the writing thread, unless it is running in this process."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._work, name="flopwise-writer", daemon=True)
                with contextlib.suppress(RuntimeError):  # the machine's threads are used up, or the interpreter ends
                    thread.start()
                    self._thread = thread

    def _work(self) -> None:
        """Write all values every few seconds until the run has ended."""
        while True:
            wait_s = min(self._interval_s * 2 ** min(self._failures, 10), max(MOST_INTERVAL_S, self._interval_s))
            due = self._due.wait(wait_s if self._failures or not self._closed else 0.0)
            self._due.clear()
            with _FORKS.lock:
                self._write_all()
            if due:
                self._idle.set()
            with self._lock:
                if self._closed and self._is_empty():
                    self._idle.set()
                    return

    def _write_all(self) -> None:
        try:
            left = len(self._queue) + (BATCH if self._batch else 0)  # what is added meanwhile waits for the next time
            while self._write_batch() and left > BATCH:
                left -= BATCH
            if self._ended is not None:
                self._open_store().set_status(self.run_id, *self._ended)
                self._ended = None
        except UnknownNameError:
            with self._lock:
                self._closed, self._batch, self._ended = True, None, None
                self._queue.clear()
                self._events.clear()
            self._warn("deleted", f"run {self.run_id} was deleted from the store: recording has stopped")
        except FlopwiseError as fault:
            self._store = None
            self._failures += 1
            self._warn("away", f"{fault}. Values stay in memory, and are written once this is fixed; the run continues")
        except Exception as fault:  # noqa: BLE001 - what we got wrong costs the user a batch, not the run
            self._batch = None
            self._failures += 1  # the next try waits
            self._warn("defect", f"values cannot be recorded ({type(fault).__name__}: {fault})")
        else:
            if self._failures:
                self._failures = 0
                if "away" in self._warned:
                    self._warned.discard("away")
                    _LOG.warning("flopwise: the store is back, and all values are written")

    def _open_store(self) -> Store:
        """The store with the run in it; a run that had ended is running again."""
        if self._store is None:
            from flopwise.records.store import open_store  # noqa: PLC0415 - in the background, not at the start of a run

            store = open_store(self._where)
            if not store.add_run(self._run) and not self._is_copy:
                store.set_status(self.run_id, "running")
            self._store = store
        return self._store

    def _write_batch(self) -> bool:
        """Write the oldest batch; returns whether there was one. A batch keeps its content until it is written."""
        store = self._open_store()
        if self._batch is None:
            with self._lock:
                taken = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH))]
                events = [self._events.popleft() for _ in range(len(self._events))]
                thinned, self._thinned = self._thinned, 0
            if thinned:
                text = f"{thinned:,} older values were dropped while the store could not be written"
                events.append(Event(self.now(), "thinned", text))
            if not taken and not events:
                return False
            samples = [
                Sample(metric, at_s, value, step, device)
                for at_s, step, device, values in taken
                for metric, value in values.items()
            ]
            self._batch = samples, events
            self._batches += 1
        store.append(self.run_id, *self._batch, batch=(self._writer_id, self._batches))
        self._batch = None
        return True

    def _warn(self, kind: str, text: str) -> None:
        """Log a warning once per kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            with contextlib.suppress(Exception):  # a program's own handler of its log may raise
                _LOG.warning("flopwise: %s", text)


_WRITERS: weakref.WeakSet[Writer] = weakref.WeakSet()


class _Forks:
    """Before a fork, wait for a write in progress: the child would find imports and databases locked for ever."""

    MOST_WAIT_S = 5.0

    def __init__(self) -> None:
        self.lock, self._waits = threading.Lock(), False

    def before(self) -> None:
        self._waits = self.lock.acquire(timeout=self.MOST_WAIT_S)

    def after_in_parent(self) -> None:
        if self._waits:
            self.lock.release()


_FORKS = _Forks()


def _forget_in_child() -> None:
    """In a forked process: locks may be held by threads that do not exist there."""
    _FORKS.lock = threading.Lock()
    for writer in list(_WRITERS):
        writer._is_copy = True  # noqa: SLF001 - of this module
        writer._clear()  # noqa: SLF001


def _end_all() -> None:
    """At the end of the program: write the last values; a run without an end has failed or was stopped."""
    status: RunStatus = "failed" if getattr(sys, "last_value", None) is not None else "stopped"
    for writer in list(_WRITERS):
        if writer._is_copy:  # noqa: SLF001 - the run goes on in the process that it was forked off
            writer.flush()
        else:
            writer.end(status)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_FORKS.before, after_in_parent=_FORKS.after_in_parent, after_in_child=_forget_in_child)
atexit.register(_end_all)
