"""Work shared between forked processes, where that is safe and pays: facts need not be sent to them."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

Result = TypeVar("Result")
Ask = Callable[[int], Result]

_ASKED: Callable[[int], object] | None = None


def forked(ask: Ask[Result], count: int, least: int) -> Iterator[Result]:
    """`ask(0)` to `ask(count - 1)` in order, from as many processes as there are cores; here below `least` of them.

    Processes are forked only from a main thread alone on Linux. Results are sent back, so they are plain data.

    Raises:
        Whatever `ask` raises.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    unsafe = threading.active_count() > 1 or sys.platform != "linux" or multiprocessing.current_process().daemon
    if cores < 2 or unsafe or count < least:
        yield from map(ask, range(count))
        return
    global _ASKED  # noqa: PLW0603 - what forked processes find in place
    _ASKED = ask
    try:
        with multiprocessing.get_context("fork").Pool(min(cores, count)) as pool:
            yield from pool.imap(_answer, range(count))
    finally:
        _ASKED = None


def _answer(number: int) -> object:
    assert _ASKED is not None
    return _ASKED(number)
