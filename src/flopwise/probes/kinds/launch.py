"""The fixed time of a small operation: queued, synchronous, and with autograd."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flopwise.probes.backend import Bench
from flopwise.probes.timing import Run, Task

QUEUED = 20


@contextmanager
def tasks(bench: Bench) -> Iterator[list[Task]]:
    """Tasks that measure seconds per operation; the backward pass of an operation counts as an operation."""
    backend = bench.backend

    def one_waited_for() -> Run:
        run = backend.small_operation(1, backward=False)

        def run_and_wait() -> None:
            run()
            backend.wait()

        return run_and_wait

    rows = [
        Task(
            name="launch_queued", unit="s", work=QUEUED,
            prepare=lambda: backend.small_operation(QUEUED, backward=False),
        ),
        Task(name="launch_waited", unit="s", work=1, prepare=one_waited_for),
    ]  # fmt: skip
    if backend.trains:
        rows.append(
            Task(
                name="launch_autograd", unit="s", work=2 * QUEUED,
                prepare=lambda: backend.small_operation(QUEUED, backward=True),
            )
        )  # fmt: skip
    yield rows
