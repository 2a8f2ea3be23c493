"""Memory bandwidth by working set, which shows the caches: copying, reading and writing.

Each byte of the operation counts once; the reads of a cache line before it is written do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from flopwise.probes.backend import Bench
from flopwise.probes.timing import Task

WORKING_SETS = tuple(1 << bits for bits in (16, 18, 20, 21, 22, 23, 24, 25, 26, 27, 29))
CARD_SETS = tuple(1 << bits for bits in (20, 22, 24, 25, 26, 27, 28, 30, 32))
QUICK = (18, 22, 25, 28)
OPERATIONS = ("copy", "read", "write")


@contextmanager
def tasks(bench: Bench) -> Iterator[list[Task]]:
    """Each operation over each working set."""
    whole = WORKING_SETS if bench.backend.device.kind == "cpu" else CARD_SETS
    yield [
        Task(
            name=f"memory_{what}", unit="B/s", work=float(nbytes), shape={"bytes": nbytes}, needs_bytes=float(nbytes),
            prepare=partial(bench.backend.memory, what, nbytes),
        )
        for nbytes in ([1 << bits for bits in QUICK] if bench.quick else whole)
        for what in OPERATIONS
    ]  # fmt: skip
