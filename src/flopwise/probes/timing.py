"""Timing of an operation: warm-up, then repetitions for the measuring time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field

from flopwise.probes.file import Unit
from flopwise.values import dataclass

Run = Callable[[], object]
LEAST = 3
"""Minimum number of samples of a figure, even if they are slow."""
MOST = 200
"""Maximum number of samples in the measuring time of an operation."""
WARM_FRAC = 0.15
"""Share of the measuring time that is spent on warm-up: caches, clocks, kernel compilation."""
FINEST_S = 2e-4
"""Minimum length of a sample: shorter operations are repeated, so that reading the clock costs less than 0.1 %."""
SLOWEST = 3.0
"""Maximum time of one repetition, as a multiple of the measuring time."""
FIRST = 30.0
"""The same for the first repetition, which loads libraries and kernels."""


class TooLongError(Exception):
    """A repetition takes too long: about `seconds`."""

    def __init__(self, seconds: float) -> None:
        """The message names the time."""
        self.seconds = seconds
        late = seconds == math.inf
        why = "the time limit for its kind is used up" if late else f"one repetition takes about {seconds:.2g} s"
        super().__init__(f"left out: {why}")


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Times operations for about `seconds` each, except those that would not finish by `end`.

    `wait` returns after the device has finished all operations.
    """

    clock: Callable[[], float]
    wait: Callable[[], object]
    seconds: float
    end: float = math.inf

    def samples(self, run: Run) -> list[float]:
        """Seconds per repetition, each the mean over as many repetitions as the clock requires.

        Raises: TooLongError: a repetition takes too long.
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
        end, durations = self.clock() + self.seconds, list[float]()
        while len(durations) < LEAST or self.clock() < end:
            durations.append(self._took(run, count) / count)
        return durations

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
    """An operation to be timed: its name and shape, the work of a repetition, and how it is sampled."""

    name: str
    unit: Unit
    work: float  # FLOP or bytes of a repetition; operations where the unit is s
    prepare: Callable[[], Run] | None = None  # allocates the data and returns the operation
    shape: Mapping[str, int] = field(default_factory=dict)
    dtype: str | None = None
    needs_bytes: float = 0.0  # of the device's memory
    note: str = ""
    timer: Callable[[Stopwatch], list[float]] | None = None  # instead, if other processes run and time it

    def samples(self, watch: Stopwatch) -> list[float]:
        """Seconds of each repetition."""
        if self.timer is not None:
            return self.timer(watch)
        assert self.prepare is not None
        return watch.samples(self.prepare())
