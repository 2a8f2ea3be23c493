"""Work shared between forked processes: facts need not be sent to them."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

Result = TypeVar("Result")
CHUNKS = 24
"""Number of parts of neighbouring searches that each process works on in turn."""
_CALLED: Callable[[int], object] | None = None


def run_forked(call: Callable[[int], Result], count: int, least: int) -> Iterator[Result]:
    """`call(0)` to `call(count - 1)` in order, from as many processes as there are cores; here below `least` of them.

    Processes are forked only from a main thread alone on Linux. Results are sent back, so they are plain data.

    Raises: Whatever `call` raises.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    unsafe = threading.active_count() > 1 or sys.platform != "linux" or multiprocessing.current_process().daemon
    if cores < 2 or unsafe or count < least:
        yield from map(call, range(count))
        return
    global _CALLED  # noqa: PLW0603 - what forked processes find in place
    _CALLED = call
    try:
        pool = multiprocessing.get_context("fork").Pool(min(cores, count))
    except OSError:  # no shared memory for its locks, or no more processes
        _CALLED = None
        yield from map(call, range(count))
        return
    try:
        with pool:
            yield from pool.imap(_call, range(count), chunksize=max(1, count // (CHUNKS * cores)))
    finally:
        _CALLED = None


def _call(number: int) -> object:
    assert _CALLED is not None
    return _CALLED(number)
