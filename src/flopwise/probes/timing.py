"""How an operation is timed: warmed up, then repeated until its time is over."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field

from flopwise.probes.file import Unit
from flopwise.values import dataclass

Run = Callable[[], object]
LEAST = 3
"""Samples that make a figure, however long one takes."""
MOST = 200
"""Samples that an operation's time is divided into at most."""
WARM_FRAC = 0.15
"""Share of an operation's time that is spent on warming up: caches, clocks, compilers of kernels."""
FINEST_S = 2e-4
"""Shortest sample: shorter operations are repeated within one, so that reading the clock costs less than 0.1 %."""
SLOWEST = 3.0
"""Times an operation's own time that one repetition of it may take."""
FIRST = 30.0
"""The same of the first one, which loads libraries and kernels."""


class TooLongError(Exception):
    """One repetition takes longer than there is time for: about `seconds`."""

    def __init__(self, seconds: float) -> None:
        """The message says how long."""
        self.seconds = seconds
        late = seconds == math.inf
        why = "the time limit for its kind is used up" if late else f"one repetition takes about {seconds:.2g} s"
        super().__init__(f"left out: {why}")


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Times operations for about `seconds` each, and none that would not be through at `end`, by the clock.

    `wait` returns when the device has done all that it was given.
    """

    clock: Callable[[], float]
    wait: Callable[[], object]
    seconds: float
    end: float = math.inf

    def samples(self, run: Run) -> list[float]:
        """Seconds of one repetition, each the mean over as many as the clock needs.

        Raises:
            TooLongError: a repetition takes more than there is time for.
        """
        if (first := self._took(run, 1)) > SLOWEST * self.seconds:  # it may have loaded what the next one has
            repeats = first < FIRST * self.seconds and first < self.end - self.clock()
            self.check(min(first, self._took(run, 1)) if repeats else first)
        finest = max(FINEST_S, self.seconds / MOST)
        warm, count = self.clock() + WARM_FRAC * self.seconds, 1
        while (took := self._took(run, count)) < finest or self.clock() < warm:
            if took < finest:
                count *= 2
        if self.clock() + LEAST * took > self.end:
            raise TooLongError(math.inf)
        end, found = self.clock() + self.seconds, list[float]()
        while len(found) < LEAST or self.clock() < end:
            found.append(self._took(run, count) / count)
        return found

    def check(self, expected_s: float) -> None:
        """Raises: TooLongError: a repetition of `expected_s` (unbounded: there is no time left) takes too long."""
        if expected_s > SLOWEST * self.seconds:
            raise TooLongError(expected_s)

    def _took(self, run: Run, count: int) -> float:
        begun = self.clock()
        for _ in range(count):
            run()
        self.wait()
        return self.clock() - begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One operation to be timed: what it is, how much work a repetition does, and how its samples are taken."""

    name: str
    unit: Unit
    work: float  # FLOP or bytes of a repetition; operations where the unit is s
    prepare: Callable[[], Run] | None = None  # makes what the operation needs, and gives the operation
    shape: Mapping[str, int] = field(default_factory=dict)
    dtype: str | None = None
    needs_bytes: float = 0.0  # of the device's memory
    note: str = ""
    timer: Callable[[Stopwatch], list[float]] | None = None  # instead, where other processes do it and time it

    def samples(self, watch: Stopwatch) -> list[float]:
        """Seconds of each repetition."""
        if self.timer is not None:
            return self.timer(watch)
        assert self.prepare is not None
        return watch.samples(self.prepare())
