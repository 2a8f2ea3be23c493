"""A queue of requests with a deadline, worked off by machines that may be taken away: how long, and for how much.

Each worker runs until it is taken back, is away until another is found, loads the weights, and goes on. What it had in
hand goes back into the queue: with it the work done on requests in flight, or since the last checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flopwise.errors import InfeasibleError, SpecError
from flopwise.units import HOUR_S

Seconds = NDArray[np.float64]
Rng = np.random.Generator
HORIZONS = 8
"""Doublings of the simulated span before a queue counts as never worked off."""
MOST_INTERRUPTIONS_PER_S = 1 / 60
"""Nobody offers machines that last less than a minute on average."""
LEAST_FRAC = 0.01
"""Share of the time below which spot workers do nothing but start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchQueue:
    """The queue and the workers. Rates per worker; a worker is one replica with all its devices."""

    requests: float
    requests_per_s: float
    workers: int
    boot_s: float  # from the machine to the first request: image, weights, warm-up
    in_flight: float = 0.0  # requests that a worker works on at once, on average half done
    interruptions_per_s: float = 0.0  # of a worker, or of the instance that several share
    workers_per_instance: int = 1  # that are taken back, and come back, together
    replace_s: float = 0.0  # mean time until another machine is found
    checkpoint_every_s: float | None = None  # progress is saved; None: requests in flight start anew
    checkpoint_s: float = 0.0  # each save keeps a worker busy so long
    deadline_s: float | None = None
    spot_usd_per_hour: float = 0.0
    on_demand_usd_per_hour: float = 0.0
    fallback_workers: int = 0  # on-demand workers that take over when the deadline would be missed otherwise

    def __post_init__(self) -> None:
        """Raise SpecError for figures that cannot be."""
        for name in ("requests", "requests_per_s", "workers", "workers_per_instance"):
            _within(name, getattr(self, name), 0, open_low=True)
        _within("interruptions_per_s", self.interruptions_per_s, 0, MOST_INTERRUPTIONS_PER_S)
        for name in ("boot_s", "in_flight", "replace_s", "checkpoint_s", "fallback_workers"):
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
    def flight_s(self) -> float:
        """Time that a request is in flight, by Little's law."""
        return self.in_flight / (self.requests_per_s * self.useful_frac)

    def lost_s(self, worked_s: Seconds) -> Seconds:
        """Work that an interruption sends back to the queue, by the time worked since the boot; in seconds of a worker.

        Answers are handed in as they are complete; lost is what went into requests in flight since they began, or since
        their tokens were last saved: the mean of min(age, time) over ages that are spread evenly over their flight.

        Source: definition. Assumes: a worker's requests began at different times.
        """
        if self.checkpoint_every_s is None:
            return self._unsaved_s(worked_s)
        every = self.checkpoint_every_s
        return self._unsaved_s(np.minimum(worked_s % (every + self.checkpoint_s), every))

    def _unsaved_s(self, since_s: Seconds) -> Seconds:
        """Work in requests in flight that was done within the last `since_s`."""
        flight = self.flight_s
        if flight == 0:
            return np.zeros_like(since_s)
        time = np.minimum(since_s, flight)
        return np.asarray(time - time * time / (2 * flight))

    @property
    def most_lost_s(self) -> float:
        """The most that one interruption sends back."""
        every = self.checkpoint_every_s
        return float(self._unsaved_s(np.asarray(math.inf if every is None else every)))


def _within(name: str, value: float, low: float, high: float = math.inf, *, open_low: bool = False) -> None:
    if not (math.isfinite(value) and low <= value <= high) or (open_low and value == low):
        allowed = f"above {low:g}" if open_low else f"{low:g} and above"
        allowed += f", up to {high:g}" if math.isfinite(high) else ""
        raise SpecError(f"{name.replace('_', ' ')} {value:g} is out of range; allowed: {allowed}")


def long_run_frac(queue: BatchQueue) -> float:
    """Share of a worker's time that advances the queue, in the long run, 0 to 1.

    Source: renewal reward: a cycle is an exponential life and an absence; work goes on where the life outlasts the
    boot, and by the exponential's lack of memory what is worked then is exponential, too. What is lost of it is the
    integral of the loss's slope over the chance that the time since the last save is longer.
    Assumes: lives are exponential.
    """
    rate, flight = queue.interruptions_per_s, queue.flight_s
    if rate == 0:
        return queue.useful_frac
    every = math.inf if queue.checkpoint_every_s is None else queue.checkpoint_every_s
    cycle = every + queue.checkpoint_s
    end = min(every, flight)
    lost = 0.0
    if end > 0:
        alive, never = math.exp(-rate * end), math.exp(-rate * cycle)
        slopes = -math.expm1(-rate * end) / rate - (-math.expm1(-rate * end) / rate**2 - end * alive / rate) / flight
        lost = (slopes - never * (end - end * end / (2 * flight))) / -math.expm1(-rate * cycle)
    outlasts = math.exp(-rate * queue.boot_s)
    return queue.useful_frac * outlasts * max(1.0 / rate - lost, 0.0) / (1.0 / rate + queue.replace_s)


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


def on_demand(queue: BatchQueue, workers: int | None = None) -> tuple[float, float]:
    """(seconds, USD) of the same queue on as many workers (or on `workers`) that nobody takes away.

    Source: definition: the boot, then all workers at their rate. Assumes: nothing is saved on the way.
    """
    count = queue.workers if workers is None else workers
    seconds = queue.boot_s + queue.requests / (queue.requests_per_s * count)
    return seconds, count * seconds / HOUR_S * queue.on_demand_usd_per_hour


def fewest_on_demand(queue: BatchQueue) -> int | None:
    """The fewest workers that nobody takes away and that meet the deadline; None without one, or where none do.

    Source: `on_demand` solved for the workers.
    """
    if queue.deadline_s is None or queue.deadline_s <= queue.boot_s:
        return None
    return max(1, math.ceil(queue.requests / (queue.requests_per_s * (queue.deadline_s - queue.boot_s)) - 1e-9))


def simulate_queue(
    queue: BatchQueue,
    rng: Rng,
    *,
    trials: int = 1000,
    speeds: Seconds | None = None,
    report: Callable[[int, int], None] | None = None,
) -> BatchOutcome:
    """The queue worked off `trials` times with interruptions drawn anew; seconds and USD of each.

    `speeds`: by what factor the workers of each trial are faster than the queue says; shape (trials,).

    Source: Wu et al. 2024 (NSDI, "Can't Be Late") for the rule to fall back: on-demand workers take over at the last
    moment from which they still meet the deadline, whatever happens to the spot workers until then.
    Assumes: lives and absences of instances are exponential and independent; machines are billed by the second from
    boot to end.
    Raises: InfeasibleError: interruptions undo the work faster than it is done.
    """
    if not 1 <= trials <= 1_000_000:
        raise SpecError(f"{trials} trials; allowed: 1 to 1,000,000")
    factors = np.ones(trials) if speeds is None else speeds
    if queue.fallback_workers and queue.deadline_s is None:
        raise SpecError("workers to fall back on are given, but no deadline that would call for them")
    if long_run_frac(queue) < LEAST_FRAC:
        raise InfeasibleError(
            f"a worker is taken back every {1 / queue.interruptions_per_s:.3g} s on average, boots for "
            f"{queue.boot_s:.3g} s and has requests {queue.flight_s:.3g} s in flight: the queue never empties; use "
            "on-demand workers, or save progress more often"
        )
    found = []
    for trial in range(trials):
        found.append(_trial(replace(queue, requests_per_s=queue.requests_per_s * float(factors[trial])), rng))
        if report is not None:
            report(trial + 1, trials)
    seconds, usd, interruptions, fell_back = (np.array(column) for column in zip(*found, strict=True))
    return BatchOutcome(
        seconds=seconds, usd=usd, interruptions=interruptions, fell_back=fell_back, deadline_s=queue.deadline_s
    )


def _trial(queue: BatchQueue, rng: Rng) -> tuple[float, float, int, bool]:
    """(seconds, USD, interruptions, whether it fell back) of one run."""
    goal = queue.requests / (queue.requests_per_s * queue.useful_frac)  # seconds of one worker
    lives = _Lives(queue, rng)
    for span in _spans(queue, goal):
        lives.extend(span)
        line = lives.progress()
        end, switch = _reaches(line, goal), None
        if queue.fallback_workers:
            switch = _switch_s(queue, line, goal)
        if switch is not None and (end is None or switch < end):
            if switch + queue.boot_s <= span:
                return _fallen_back(queue, lives, switch, end, goal)
        elif end is not None and end <= span:
            return end, lives.up_s(end) / HOUR_S * queue.spot_usd_per_hour, lives.interruptions(end), False
    raise InfeasibleError("interruptions undo the work faster than it is done: the queue does not empty")


def _spans(queue: BatchQueue, goal: float) -> Iterator[float]:
    """Seconds up to which lives are drawn, longer and longer; those of a deadline end with it."""
    if queue.interruptions_per_s == 0:
        yield math.inf
        return
    expected = goal * queue.useful_frac / queue.workers / long_run_frac(queue) + queue.boot_s
    for doubling in range(HORIZONS):
        yield expected * 1.5 * 2**doubling
    if queue.fallback_workers and queue.deadline_s is not None:
        yield queue.deadline_s + queue.boot_s


class _Line(NamedTuple):
    """Progress over time: segments from `at` to the next, with `rate` workers at work."""

    at: Seconds
    done: Seconds  # at the segment's beginning; seconds of one worker
    rate: Seconds


class _Lives:
    """When each instance is up: starts and ends of its lives so far; shapes (instances, lives).

    `size`: workers of each instance, shape (instances, 1); the last may have fewer.
    """

    def __init__(self, queue: BatchQueue, rng: Rng) -> None:
        self.queue, self.rng = queue, rng
        whole, rest = divmod(queue.workers, queue.workers_per_instance)
        self.size = np.array([[queue.workers_per_instance]] * whole + [[rest]] * (rest > 0), dtype=np.float64)
        self.starts = np.zeros(self.size.shape)
        self.ends = self._lives(1)

    def _lives(self, count: int) -> Seconds:
        rate, shape = self.queue.interruptions_per_s, (len(self.size), count)
        return np.full(shape, np.inf) if rate == 0 else self.rng.exponential(1.0 / rate, shape)

    def extend(self, until_s: float) -> None:
        """Draw lives until every instance's last one ends at `until_s` or later."""
        if self.queue.interruptions_per_s == 0:
            return
        cycle = 1.0 / self.queue.interruptions_per_s + self.queue.replace_s
        while (last := self.ends[:, -1:]).min() < until_s:
            more = 4 + math.ceil((until_s - float(last.min())) / cycle * 1.2)
            life = self._lives(more)
            away = self.rng.exponential(self.queue.replace_s, life.shape) if self.queue.replace_s else 0.0
            ends = last + np.cumsum(life + away, axis=1)
            self.starts = np.concatenate([self.starts, ends - life], axis=1)
            self.ends = np.concatenate([self.ends, ends], axis=1)

    def progress(self) -> _Line:
        """What is done when, as far as lives are drawn."""
        starts, ends = self.starts.ravel(), self.ends.ravel()
        begins = np.minimum(starts + self.queue.boot_s, ends)
        finite = np.isfinite(ends)
        size = np.broadcast_to(self.size, self.starts.shape).ravel()
        lost = self.queue.lost_s((ends - begins)[finite]) * size[finite]
        at = np.concatenate([[0.0], begins, ends[finite]])
        change = np.concatenate([[0.0], size, -size[finite]])
        drop = np.concatenate([np.zeros(1 + begins.size), lost])
        order = np.argsort(at, kind="stable")
        at, change, drop = at[order], change[order], drop[order]
        rate = np.cumsum(change)
        done = np.concatenate([[0.0], np.cumsum(rate[:-1] * np.diff(at))]) - np.cumsum(drop)
        return _Line(at, done, rate)

    def kept_s(self, until_s: float) -> float:
        """What is done if all workers are taken back at `until_s`; seconds of one worker."""
        begins = np.minimum(self.starts + self.queue.boot_s, until_s)
        worked = np.maximum(np.minimum(self.ends, until_s) - begins, 0.0)
        return float(((worked - self.queue.lost_s(worked)) * self.size).sum())

    def up_s(self, until_s: float) -> float:
        """Seconds of all workers that are paid for until `until_s`."""
        return float(((np.minimum(self.ends, until_s) - np.minimum(self.starts, until_s)) * self.size).sum())

    def interruptions(self, until_s: float) -> int:
        """Instances that were taken back before `until_s`."""
        return int(np.count_nonzero(self.ends < until_s))


def _reaches(line: _Line, goal: float) -> float | None:
    """The first moment at which `goal` is done; None beyond the drawn lives."""
    ends = np.append(line.at[1:], np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        hit = np.where(line.rate > 0, line.at + (goal - line.done) / line.rate, np.inf)
    hit = np.where(line.done >= goal, line.at, hit)
    good = np.flatnonzero((hit <= ends) & np.isfinite(hit))
    return float(hit[good[0]]) if good.size else None


def _switch_s(queue: BatchQueue, line: _Line, goal: float) -> float | None:
    """The moment from which on-demand workers have to take over, whatever becomes of the spot workers from there on.

    What they have in hand counts as lost, so that no interruption while the others boot costs the deadline.
    """
    assert queue.deadline_s is not None
    speed = queue.fallback_workers / queue.useful_frac  # they save nothing on the way
    kept = line.done - line.rate * queue.most_lost_s
    slack = queue.deadline_s - queue.boot_s - line.at - (goal - kept) / speed
    slope = line.rate / speed - 1.0
    ends = np.append(line.at[1:], np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        moment = np.where(slack <= 0, line.at, np.where(slope < 0, line.at - slack / slope, np.inf))
    due = np.flatnonzero((moment <= ends) & np.isfinite(moment))
    return float(moment[due[0]]) if due.size else None


def _fallen_back(
    queue: BatchQueue, lives: _Lives, switch: float, early: float | None, goal: float
) -> tuple[float, float, int, bool]:
    """On-demand workers boot at `switch` while spot workers go on, and take the rest over; `early`: without them."""
    ready = switch + queue.boot_s
    if early is not None and early <= ready:
        end = early
    else:
        left = max(goal - lives.kept_s(ready), 0.0)
        end = ready + left * queue.useful_frac / queue.fallback_workers
    spot = lives.up_s(min(ready, end)) / HOUR_S * queue.spot_usd_per_hour
    paid = queue.fallback_workers * (end - switch) / HOUR_S * queue.on_demand_usd_per_hour
    return end, spot + paid, lives.interruptions(min(ready, end)), True
