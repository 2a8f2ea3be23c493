"""A queue of requests with a deadline, worked off by machines that may be taken away: how long, and for how much.

Each worker runs until it is taken back, is away until another is found, loads the weights, and goes on. What it had in
hand goes back into the queue: with it the work done on requests in flight, or since the last checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flopwise.errors import InfeasibleError, SpecError
from flopwise.units import HOUR_S

Seconds = NDArray[np.float64]
Rng = np.random.Generator
HORIZONS = 8
"""Doublings of the simulated span before a queue counts as never worked off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchQueue:
    """The queue and the workers. Rates per worker; a worker is one replica with all its devices."""

    requests: float
    requests_per_s: float
    workers: int
    boot_s: float  # from the machine to the first request: image, weights, warm-up
    in_flight: float = 0.0  # requests that a worker works on at once, on average half done
    interruptions_per_s: float = 0.0
    replace_s: float = 0.0  # mean time until another machine is found
    checkpoint_every_s: float | None = None  # progress is saved; None: requests in flight start anew
    checkpoint_s: float = 0.0  # each save keeps a worker busy so long
    deadline_s: float | None = None
    spot_usd_per_hour: float = 0.0
    on_demand_usd_per_hour: float = 0.0
    fallback_workers: int = 0  # on-demand workers that take over when the deadline would be missed otherwise

    def __post_init__(self) -> None:
        """Raise SpecError for figures that cannot be."""
        for name in ("requests", "requests_per_s", "workers"):
            _within(name, getattr(self, name), 0, open_low=True)
        for name in ("boot_s", "in_flight", "interruptions_per_s", "replace_s", "checkpoint_s", "fallback_workers"):
            _within(name, getattr(self, name), 0)
        for name in ("checkpoint_every_s", "deadline_s"):
            if getattr(self, name) is not None:
                _within(name, getattr(self, name), 0, open_low=True)

    @property
    def useful_frac(self) -> float:
        """Share of a worker's time that checkpoints leave."""
        every = self.checkpoint_every_s
        return 1.0 if every is None else every / (every + self.checkpoint_s)

    @property
    def lost_s(self) -> float:
        """Work that goes back to the queue at an interruption, in seconds of a worker, on average.

        Source: requests in flight are on average half done; progress is on average half an interval past its save.
        """
        if self.checkpoint_every_s is not None:
            return self.checkpoint_every_s / 2
        return self.in_flight / 2 / self.requests_per_s


def _within(name: str, value: float, low: float, *, open_low: bool = False) -> None:
    if not math.isfinite(value) or value < low or (open_low and value == low):
        allowed = f"above {low:g}" if open_low else f"{low:g} and above"
        raise SpecError(f"{name.replace('_', ' ')} {value:g} is out of range; allowed: {allowed}")


def long_run_frac(queue: BatchQueue) -> float:
    """Share of a worker's time that advances the queue, in the long run, 0 to 1.

    Source: renewal reward: per cycle of an exponential life 1/x and an absence r, work goes on after the boot, and an
    interruption takes back what was not saved (at most what was done): with the exponential's lack of memory the boot
    and the loss are each paid where the life outlasts them.
    Assumes: lives are exponential; no work of the time before the loss's worth can be lost.
    """
    rate = queue.interruptions_per_s
    if rate == 0:
        return queue.useful_frac
    up = 1.0 / rate
    worked = up * math.exp(-rate * queue.boot_s)
    lost = worked * -math.expm1(-rate * queue.lost_s)
    return queue.useful_frac * (worked - lost) / (up + queue.replace_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOutcome:
    """One figure a trial: seconds until the queue is empty, USD, interruptions; shapes (trials,)."""

    seconds: Seconds
    usd: Seconds
    interruptions: NDArray[np.int64]
    fell_back: NDArray[np.bool_]
    deadline_s: float | None

    @property
    def met_frac(self) -> float | None:
        """Share of trials that meet the deadline; None without one."""
        return None if self.deadline_s is None else float(np.mean(self.seconds <= self.deadline_s))

    def percentile(self, column: str, share: float) -> float:
        """The value of `column` ("seconds" or "usd") that `share` of the trials stays below."""
        return float(np.quantile(getattr(self, column), share))


def on_demand(queue: BatchQueue) -> tuple[float, float]:
    """(seconds, USD) of the same queue on as many workers that nobody takes away.

    Source: definition: the boot, then all workers at their rate.
    """
    seconds = queue.boot_s + queue.requests / (queue.requests_per_s * queue.workers)
    return seconds, queue.workers * seconds / HOUR_S * queue.on_demand_usd_per_hour


def simulated(
    queue: BatchQueue, rng: Rng, *, trials: int = 1000, report: Callable[[int, int], None] | None = None
) -> BatchOutcome:
    """The queue worked off `trials` times with interruptions drawn anew; seconds and USD of each.

    Source: Wu et al. 2024 (NSDI, "Can't Be Late") for the rule to fall back: on-demand workers take over at the last
    moment from which they still meet the deadline.
    Assumes: lives and absences are exponential and independent; machines are billed by the second from boot to end.
    Raises: InfeasibleError: interruptions undo the work faster than it is done.
    """
    if not 1 <= trials <= 1_000_000:
        raise SpecError(f"{trials} trials; allowed: 1 to 1,000,000")
    if long_run_frac(queue) < 1e-6 and not queue.fallback_workers:
        raise InfeasibleError(
            f"a worker is taken back every {1 / queue.interruptions_per_s:.3g} s on average and takes "
            f"{queue.boot_s:.3g} s to boot: the queue never empties; use on-demand workers or checkpoints"
        )
    found = []
    for trial in range(trials):
        found.append(_trial(queue, rng))
        if report is not None:
            report(trial + 1, trials)
    seconds, usd, interruptions, fell_back = (np.array(column) for column in zip(*found, strict=True))
    return BatchOutcome(
        seconds=seconds, usd=usd, interruptions=interruptions, fell_back=fell_back, deadline_s=queue.deadline_s
    )


def _trial(queue: BatchQueue, rng: Rng) -> tuple[float, float, int, bool]:
    """(seconds, USD, interruptions, whether it fell back) of one run."""
    goal = queue.requests / (queue.requests_per_s * queue.useful_frac)  # seconds of one worker
    expected = goal / queue.workers / max(long_run_frac(queue) / queue.useful_frac, 0.02) + queue.boot_s
    lives = _Lives(queue, rng)
    for doubling in range(HORIZONS):
        span = expected * 1.5 * 2**doubling  # beyond it some worker's lives are not drawn yet
        lives.extend(span)
        at, done, rate = lives.progress()
        if queue.deadline_s is not None and queue.fallback_workers:
            switch = _switch_s(queue, at, done, rate, goal)
            if switch is not None and switch + queue.boot_s <= max(span, queue.boot_s):
                return _fallen_back(queue, lives, switch, at, done, rate, goal)
        end = _reaches(at, done, rate, goal)
        if end is not None and (end <= span or not queue.interruptions_per_s):
            return end, lives.up_s(end) / HOUR_S * queue.spot_usd_per_hour, lives.interruptions(end), False
    raise InfeasibleError("interruptions undo the work faster than it is done: the queue does not empty")


class _Lives:
    """When each worker is up: starts and ends of its lives so far."""

    def __init__(self, queue: BatchQueue, rng: Rng) -> None:
        self.queue, self.rng = queue, rng
        self.starts = [np.zeros(1) for _ in range(queue.workers)]
        self.ends = [self._life(1) for _ in range(queue.workers)]

    def _life(self, count: int) -> Seconds:
        rate = self.queue.interruptions_per_s
        return np.full(count, np.inf) if rate == 0 else self.rng.exponential(1.0 / rate, count)

    def extend(self, until_s: float) -> None:
        """Draw lives until every worker's last one ends beyond `until_s`."""
        for worker in range(self.queue.workers):
            while (last := float(self.ends[worker][-1])) < until_s:
                more = max(4, int((until_s - last) * self.queue.interruptions_per_s * 1.2) + 1)
                life = self._life(more)
                away = self.rng.exponential(self.queue.replace_s, more) if self.queue.replace_s else np.zeros(more)
                ends = last + np.cumsum(life + away)
                self.starts[worker] = np.concatenate([self.starts[worker], ends - life])
                self.ends[worker] = np.concatenate([self.ends[worker], ends])

    def progress(self) -> tuple[Seconds, Seconds, Seconds]:
        """(seconds, work done just after, workers at work from then on), ascending; work in seconds of one worker."""
        starts, ends = np.concatenate(self.starts), np.concatenate(self.ends)
        begins = np.minimum(starts + self.queue.boot_s, ends)
        worked = ends - begins
        lost = np.where(np.isfinite(worked), np.minimum(worked, self.queue.lost_s), 0.0)
        finite = np.isfinite(ends)
        at = np.concatenate([begins, ends[finite]])
        change = np.concatenate([np.ones(begins.size), -np.ones(np.count_nonzero(finite))])
        drop = np.concatenate([np.zeros(begins.size), lost[finite]])
        order = np.argsort(at, kind="stable")
        at, change, drop = at[order], change[order], drop[order]
        rate = np.cumsum(change)
        done = np.concatenate([[0.0], np.cumsum(rate[:-1] * np.diff(at))]) - np.cumsum(drop)
        return at, done, rate

    def up_s(self, until_s: float) -> float:
        """Seconds of all workers that are paid for until `until_s`."""
        return float(
            sum(
                (np.minimum(e, until_s) - np.minimum(s, until_s)).sum()
                for s, e in zip(self.starts, self.ends, strict=True)
            )
        )

    def interruptions(self, until_s: float) -> int:
        """Lives that ended before `until_s`."""
        return int(sum(np.count_nonzero(e < until_s) for e in self.ends))


def _reaches(at: Seconds, done: Seconds, rate: Seconds, goal: float) -> float | None:
    """The first moment at which `goal` is done; None beyond the drawn lives."""
    ends = np.append(at[1:], np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        hit = np.where(rate > 0, at + (goal - done) / rate, np.inf)
    hit = np.where(done >= goal, at, hit)
    good = np.flatnonzero(hit <= ends)
    return float(hit[good[0]]) if good.size and np.isfinite(hit[good[0]]) else None


def _switch_s(queue: BatchQueue, at: Seconds, done: Seconds, rate: Seconds, goal: float) -> float | None:
    """The moment from which on-demand workers have to take over; None where the queue empties before."""
    assert queue.deadline_s is not None
    end = _reaches(at, done, rate, goal)
    slack = queue.deadline_s - queue.boot_s - at - (goal - done) / queue.fallback_workers
    slope = rate / queue.fallback_workers - 1.0
    ends = np.append(at[1:], np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        moment = np.where(slack <= 0, at, np.where(slope < 0, at - slack / slope, np.inf))
    due = np.flatnonzero(moment <= ends)
    first = queue.deadline_s - queue.boot_s - goal / queue.fallback_workers  # before any spot worker is up
    switch = float(moment[due[0]]) if due.size else math.inf
    switch = min(switch, first) if first < at[0] else switch
    if not math.isfinite(switch) or (end is not None and end <= switch):
        return None
    return max(switch, 0.0)


def _fallen_back(
    queue: BatchQueue, lives: _Lives, switch: float, at: Seconds, done: Seconds, rate: Seconds, goal: float
) -> tuple[float, float, int, bool]:
    """On-demand workers boot at `switch` while spot workers go on, and take the rest over."""
    ready = switch + queue.boot_s
    index = max(int(np.searchsorted(at, ready, side="right")) - 1, 0)
    so_far = float(done[index] + rate[index] * (ready - at[index])) if at[index] <= ready else 0.0
    end = ready + max(goal - so_far, 0.0) / queue.fallback_workers
    early = _reaches(at, done, rate, goal)
    end = end if early is None or early > ready else early
    spot = lives.up_s(min(ready, end)) / HOUR_S * queue.spot_usd_per_hour
    paid = queue.fallback_workers * (end - switch) / HOUR_S * queue.on_demand_usd_per_hour
    return end, spot + paid, lives.interruptions(min(ready, end)), True
