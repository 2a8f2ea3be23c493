"""Seconds of the steps of a loop, of which a GPU may be behind its host."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from flopwise.callbacks.devices import torch_cuda

T = TypeVar("T")


class StepClock(Generic[T]):
    """Seconds of each step, as soon as they are known; what a caller gives with a step comes back with them.

    On a GPU the host runs ahead: a step is between two events, which are read once the GPU has passed the second. No
    call waits for it but the last.
    """

    def __init__(self) -> None:
        """Start the first step now."""
        self._cuda = torch_cuda()
        self._waiting = deque[tuple[Any, Any, T]]()
        self._start = self._mark()

    def _mark(self) -> Any:
        """Now, on the time line that steps are measured on."""
        if self._cuda is None:
            return time.perf_counter()
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def restart(self) -> None:
        """What went on since the last step is no part of the next: an evaluation, a checkpoint."""
        self._start = self._mark()

    def end_step(self, extra: T) -> None:
        """A step has ended, as far as the host sees, and the next begins."""
        mark = self._mark()
        self._waiting.append((self._start, mark, extra))
        self._start = mark

    def timed_steps(self, *, wait: bool = False) -> Iterator[tuple[float, T]]:
        """Seconds and extras of the steps that have ended since the last call, oldest first; `wait`: of all."""
        while self._waiting:
            start, end, extra = self._waiting[0]
            if self._cuda is None:
                seconds = end - start
            elif wait or end.query():
                if wait:
                    end.synchronize()
                seconds = start.elapsed_time(end) / 1e3
            else:
                return
            self._waiting.popleft()
            yield seconds, extra
