"""How many replicas an autoscaler asks for: one function for each measure it may go by, and the rule around them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from flopwise.errors import SpecError, UnknownNameError

MOST_FIXED_REPLICAS = 1024
"""Replicas beyond which the search for the fewest fixed ones gives up."""
MOST_REPLICAS = 4096
"""Replicas of an autoscaler: each has its place in memory, there or not."""


class Snapshot(NamedTuple):
    """What an autoscaler sees at a tick, over all replicas; shares are of the ready ones since the last tick."""

    ready: int  # replicas that serve
    starting: int  # asked for, still loading
    waiting: int  # requests in queues
    running: int  # requests in batches
    busy_frac: float
    kv_frac: float


def by_queue(now: Snapshot, target: float) -> float:
    """Replicas for `target` waiting requests each, on top of those that the batches in progress keep busy.

    Source: KEDA and Ray Serve scale on queue length per replica; what runs stays where it is.
    """
    extra = now.waiting / target
    return now.ready + extra if extra >= 1 else now.ready * min(1.0, now.busy_frac + extra)


def by_concurrency(now: Snapshot, target: float) -> float:
    """Replicas for `target` requests in flight each, waiting ones counted. Source: Knative's pod autoscaler."""
    return (now.running + now.waiting) / target


def by_utilisation(now: Snapshot, target: float) -> float:
    """Replicas that would be busy `target` of their time with the same work.

    Source: Kubernetes' horizontal pod autoscaler, desired = current x measured / wanted.
    Assumes: nothing: with continuous batching a replica is busy as soon as one request runs, so this measure says
    little about how much more it could take.
    """
    return now.ready * now.busy_frac / target


def by_kv(now: Snapshot, target: float) -> float:
    """Replicas whose key-value caches would be filled to `target`. Source: as `by_utilisation`."""
    return now.ready * now.kv_frac / target


class Measure(NamedTuple):
    """A way to scale: its function, its usual target, and the targets that can be."""

    wanted: Callable[[Snapshot, float], float]
    target: float
    most: float


MEASURES: dict[str, Measure] = {
    "queue": Measure(by_queue, 4.0, 1e6),
    "concurrency": Measure(by_concurrency, 32.0, 1e6),
    "utilisation": Measure(by_utilisation, 0.7, 1.0),
    "kv": Measure(by_kv, 0.7, 1.0),
}


USUAL_COLD_START_S = 120.0
"""Of a replica of which nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaling:
    """The rule: by which measure, between which bounds, how fast up and how patient down. `target` None: the usual."""

    measure: str = "concurrency"
    target: float | None = None
    least: int = 1  # 0: scales to zero
    most: int = 16
    tick_s: float = 15.0
    cold_start_s: float | None = None  # from the wish to a replica that serves; None: `USUAL_COLD_START_S`
    cool_down_s: float = 300.0  # no less than the most that was wanted this long
    tolerance: float = 0.1  # changes smaller than this share are left alone
    growth: float = 2.0  # the most by which a tick multiplies the replicas, or four more if that is more

    def __post_init__(self) -> None:
        """Raise SpecError for a rule that cannot be."""
        if self.measure not in MEASURES:
            raise UnknownNameError("autoscaling measure", self.measure, MEASURES, f"allowed: {', '.join(MEASURES)}")
        self._within("target", self.wanted_at, 1e-9, MEASURES[self.measure].most)
        self._within("fewest replicas", self.least, 0, MOST_REPLICAS)
        self._within("most replicas", self.most, max(self.least, 1), MOST_REPLICAS)
        self._within("tick", self.tick_s, 0.1, 86_400)
        self._within("cold start", self.starts_in_s, 0, 86_400)
        self._within("cool-down", self.cool_down_s, 0, 604_800)
        self._within("tolerance", self.tolerance, 0, 1)
        self._within("growth", self.growth, 1, 1000)

    @staticmethod
    def _within(name: str, value: float, low: float, high: float) -> None:
        if not low <= value <= high:
            raise SpecError(f"autoscaling: {name} {value:g} is out of range; allowed: {low:g} to {high:g}")

    @property
    def starts_in_s(self) -> float:
        """From the wish to a replica that serves."""
        return USUAL_COLD_START_S if self.cold_start_s is None else self.cold_start_s

    @property
    def wanted_at(self) -> float:
        """The measure's value that is held to."""
        return MEASURES[self.measure].target if self.target is None else self.target


@dataclass(slots=True)
class Controller:
    """An autoscaler at work: the rule, and what it wanted within the cool-down, each wish above those after it."""

    rule: Autoscaling
    wishes: deque[tuple[float, int]] = field(default_factory=deque)

    def desired_replicas(self, now_s: float, seen: Snapshot) -> int:
        """Replicas to have from this tick on, ready or starting.

        Source: Kubernetes' horizontal pod autoscaler: tolerance, growth limit, and the largest wish of the
        stabilisation window when going down (its default is 300 s).
        """
        rule, have = self.rule, seen.ready + seen.starting
        wanted = MEASURES[rule.measure].wanted(seen, rule.wanted_at)
        if have and abs(wanted / have - 1.0) <= rule.tolerance:
            wanted = have
        count = math.ceil(wanted - 1e-9)
        if seen.waiting + seen.running:
            count = max(count, 1)
        count = min(count, max(math.floor(have * rule.growth), have + 4))
        count = min(max(count, rule.least), rule.most)
        while self.wishes and self.wishes[-1][1] <= count:
            self.wishes.pop()
        self.wishes.append((now_s, count))
        while self.wishes[0][0] < now_s - rule.cool_down_s:
            self.wishes.popleft()
        return count if count >= have else min(have, self.wishes[0][1])


def fewest(
    attained: Callable[[int], float], share: float, *, near: int = 1, most: int = MOST_FIXED_REPLICAS
) -> int | None:
    """The fewest replicas, 1 to `most`, whose `attained` share of good requests is `share`; None: not by any number.

    `attained` is asked about O(log) counts, first around `near`.

    Source: galloping and bisection. Assumes: more replicas attain no less. Where two and four times as many attain the
    same share, above 0, the rest are requests that no replica answers in time however idle it is.
    Raises: SpecError: a share beyond 0 to 1.
    """
    if not 0 <= share <= 1:
        raise SpecError(f"attainment {share:g} is out of range; allowed: 0 to 1")
    high = min(max(near, 1), most)
    low, shares = 0, [attained(high)]  # all up to `low` are too few
    while shares[-1] < share:
        if high >= most or (len(shares) > 2 and shares[-3] == shares[-1] > 0):
            return None
        low, high = high, min(2 * high, most)
        shares.append(attained(high))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if attained(middle) >= share else (middle, high)
    return high
