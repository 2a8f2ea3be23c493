"""An autoscaler: the measures that it may go by, its rule, and a run in which replicas come and go by it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import field
from typing import NamedTuple

import numpy as np

from flopwise.errors import SpecError, UnknownNameError
from flopwise.ops.types import Array
from flopwise.options import without_none
from flopwise.serving.sim.cost import StepCost
from flopwise.serving.sim.engine import ReplicaLimits
from flopwise.serving.sim.fleet import FastFleet
from flopwise.serving.sim.profiles import HOURS_PER_DAY, HOURS_PER_WEEK
from flopwise.serving.sim.result import SimulatedRun, Standing
from flopwise.serving.sim.setup import setup
from flopwise.serving.sim.simulate import LATEST_PS, Engine, Sample, check_clock, run_result
from flopwise.serving.sim.trace import PS, Column, RequestTrace
from flopwise.serving.spec import AutoscaleSpec
from flopwise.units import HOUR_S
from flopwise.values import dataclass

MOST_FIXED_REPLICAS = 1024
"""Replicas beyond which the search for the fewest fixed ones gives up."""
MOST_REPLICAS = 4096
"""Replicas of an autoscaler: each has its place in memory, there or not."""
MOST_TICKS = 5_000_000
"""Looks of an autoscaler at a trace; a week at a tick of a second is an eighth of that."""
USUAL_COLD_START_S = 120.0
"""Of a replica of which nothing is known."""


class Snapshot(NamedTuple):
    """The metrics that an autoscaler reads at a tick, over all replicas; shares of the ready ones since the last."""

    ready: int  # replicas that serve
    starting: int  # asked for, still loading
    waiting: int  # requests in queues
    running: int  # requests in batches
    busy_frac: float
    kv_frac: float


class Measure(NamedTuple):
    """A way to scale: the replicas that it asks for at a target, its usual target, and the highest that can be."""

    wanted: Callable[[Snapshot, float], float]
    target: float
    most: float


def _by_queue(now: Snapshot, target: float) -> float:
    """Replicas for `target` waiting requests each, on top of those that the batches in progress keep busy."""
    extra = now.waiting / target
    return now.ready + extra if extra >= 1 else now.ready * min(1.0, now.busy_frac + extra)


MEASURES: dict[str, Measure] = {
    "queue": Measure(_by_queue, 4.0, 1e6),
    "concurrency": Measure(lambda now, target: (now.running + now.waiting) / target, 32.0, 1e6),
    "utilisation": Measure(lambda now, target: now.ready * now.busy_frac / target, 0.7, 1.0),
    "kv": Measure(lambda now, target: now.ready * now.kv_frac / target, 0.7, 1.0),
}
"""What replicas are counted by: waiting requests, requests in flight, time in steps, or the cache in use.

Source: queue: KEDA and Ray Serve; concurrency: Knative's pod autoscaler; the others: Kubernetes' horizontal pod
autoscaler, desired = current x measured / wanted. With continuous batching a replica is busy as soon as one request
runs, so that utilisation says little about how much more it could take.
"""


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
    by_hour: tuple[int, ...] = ()  # at least so many in each hour, repeating: 24 of a day, 168 of a week

    def __post_init__(self) -> None:
        """Raise SpecError for a rule that cannot be."""
        if self.measure not in MEASURES:
            raise UnknownNameError("autoscaling measure", self.measure, MEASURES, f"allowed: {', '.join(MEASURES)}")
        for name, value, low, high in (
            ("target", self.wanted_at, 1e-9, MEASURES[self.measure].most),
            ("fewest replicas", self.least, 0, MOST_REPLICAS),
            ("most replicas", self.most, max(self.least, 1), MOST_REPLICAS),
            ("tick", self.tick_s, 0.1, 86_400),
            ("cold start", self.starts_in_s, 0, 86_400),
            ("cool-down", self.cool_down_s, 0, 604_800),
            ("tolerance", self.tolerance, 0, 1),
            ("growth", self.growth, 1, 1000),
        ):
            if not low <= value <= high:
                raise SpecError(f"autoscaling: {name} {value:g} is out of range; allowed: {low:g} to {high:g}")
        if len(self.by_hour) not in (0, HOURS_PER_DAY, HOURS_PER_WEEK):
            raise SpecError(
                f"autoscaling: the fewest replicas by hour are {len(self.by_hour)} numbers; allowed: {HOURS_PER_DAY} "
                f"of a day, or {HOURS_PER_WEEK} of a week"
            )
        if any(not 0 <= count <= self.most for count in self.by_hour):
            raise SpecError(
                "autoscaling: the fewest replicas by hour are out of range; allowed: 0 to the most replicas, "
                f"{self.most}"
            )

    @classmethod
    def of(cls, spec: AutoscaleSpec) -> Autoscaling | None:
        """The rule of the options; None where replicas do not come and go. Raises: SpecError: no rule that can be."""
        if spec.autoscale is None:
            return None
        bounds = without_none(target=spec.target, least=spec.min_replicas, most=spec.max_replicas)
        times = without_none(
            tick_s=spec.tick, cold_start_s=spec.cold_start, cool_down_s=spec.cool_down, by_hour=spec.min_by_hour
        )
        return cls(measure=spec.autoscale, **bounds, **times)

    @property
    def starts_in_s(self) -> float:
        """From the wish to a replica that serves."""
        return USUAL_COLD_START_S if self.cold_start_s is None else self.cold_start_s

    def least_at(self, now_s: float) -> int:
        """The fewest replicas at a time: those of its hour, and of the next one from a cold start before it begins."""
        if not self.by_hour:
            return self.least
        hours = (int(at // HOUR_S) % len(self.by_hour) for at in (now_s, now_s + self.starts_in_s))
        return max(self.least, *(self.by_hour[hour] for hour in hours))

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
        count = min(max(count, rule.least_at(now_s)), rule.most)
        while self.wishes and self.wishes[-1][1] <= count:
            self.wishes.pop()
        self.wishes.append((now_s, count))
        while self.wishes[0][0] < now_s - rule.cool_down_s:
            self.wishes.popleft()
        return count if count >= have else min(have, self.wishes[0][1])


class Life(NamedTuple):
    """One deployment from the wish to have it until it is off, picoseconds; `off_ps` -1: to the end."""

    wished_ps: int
    ready_ps: int
    drained_ps: int  # -1: never
    off_ps: int


class ReplicaLine(NamedTuple):
    """Deployments over time, beside the samples of `SimulatedRun.timeline`."""

    time_s: Array
    ready: Column
    starting: Column
    draining: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscaledRun:
    """A run with an autoscaler. A deployment is one replica of the job, whatever schedulers it has."""

    simulated: SimulatedRun
    rule: Autoscaling
    lives: tuple[Life, ...]
    line: ReplicaLine
    end_ps: int  # of the bill: the last answer, or the last arrival if that is later

    @property
    def paid_s(self) -> float:
        """Seconds of deployments that are paid for: from the wish, loading included, until they are off."""
        return sum((self._until(life) - min(life.wished_ps, self.end_ps)) / PS for life in self.lives)

    @property
    def starting_s(self) -> float:
        """Of those, the seconds in which nothing is served yet."""
        return sum(
            (min(life.ready_ps, self._until(life)) - min(life.wished_ps, self.end_ps)) / PS for life in self.lives
        )

    @property
    def starts(self) -> int:
        """Cold starts: deployments that were not there from the beginning."""
        return sum(life.wished_ps > 0 or life.ready_ps > 0 for life in self.lives)

    @property
    def most(self) -> int:
        """Deployments that were paid for at once, at most."""
        events = sorted([(life.wished_ps, 1) for life in self.lives] + [(self._until(life), -1) for life in self.lives])
        return int(np.cumsum([change for _, change in events]).max(initial=0))

    @property
    def mean(self) -> float:
        """Deployments on average over the time of the bill."""
        return self.paid_s / (self.end_ps / PS)

    def _until(self, life: Life) -> int:
        return self.end_ps if life.off_ps < 0 else min(life.off_ps, self.end_ps)


def elastic(
    trace: RequestTrace,
    cost: StepCost,
    limits: ReplicaLimits,
    rule: Autoscaling,
    *,
    schedulers: int = 1,
    balancer: str = "least-loaded",
    policy: str = "fcfs",
    engine: Engine = FastFleet,
    samples: int = 400,
    on_compile: Callable[[], None] | None = None,
    report: Callable[[float, float], None] | None = None,
) -> AutoscaledRun:
    """Run a trace to its end on as many deployments of `schedulers` schedulers as `rule` asks for at every tick.

    The fewest of the rule, at its first hour, are there from the beginning. Draining deployments count into the most
    that there may be: they hold their machines. With none at all, a request that comes is held and wakes one at once,
    as Knative's activator does. `report`: called with seconds simulated and in all.

    Raises:
        SpecError: a number out of range, or a run longer than the clock counts; UnknownNameError: policy or balancer.
    """
    if trace.duration_s / rule.tick_s > MOST_TICKS:
        raise SpecError(f"a tick of {rule.tick_s:g} s is too short for a trace of {trace.duration_s:,.0f} s")
    first = rule.least_at(0.0)
    plan = setup(
        trace, cost, limits, replicas=first * schedulers, spare=(rule.most - first) * schedulers,
        balancer=balancer, policy=policy,
    )  # fmt: skip
    deployments = _ScaledDeployments(engine(plan, on_compile), rule, schedulers)
    log = _Log(samples)
    _run_ticks(deployments, rule, plan.trace.arrival_ps + cost.request_ps, limits.num_blocks, log, report)
    deployments.switch_off_drained()
    run = run_result(trace, plan, deployments.machines, log.samples)
    end = max(int(trace.arrival_ps[-1]), int(run.outcome.finish_ps.max(initial=0)), 1)
    line = ReplicaLine(run.timeline.time_s, *np.array(log.counts, dtype=np.int64).reshape(-1, 3).T)
    return AutoscaledRun(simulated=run, rule=rule, lives=tuple(deployments.lives), line=line, end_ps=end)


def _run_ticks(
    deployments: _ScaledDeployments,
    rule: Autoscaling,
    come_ps: Column,
    num_blocks: int,
    log: _Log,
    report: Callable[[float, float], None] | None,
) -> None:
    """Tick after tick until all requests are answered."""
    control, tick_ps, cold_ps = Controller(rule), round(rule.tick_s * PS), round(rule.starts_in_s * PS)
    rows, now_ps, last_ps, busy = len(come_ps), 0, 0, deployments.now.busy_ps
    while deployments.machines.answered_count < rows:
        now_ps += tick_ps
        check_clock(now_ps)
        if not deployments.there:
            woken_ps = deployments.next_ps(come_ps, last_ps)
            if woken_ps < now_ps:
                deployments.advance(woken_ps)
                deployments.wish(1, woken_ps, cold_ps)
            elif not deployments.draining:
                log.add((now_ps, 0, 0, 0, 0), (0, 0, 0))
                last_ps = now_ps
                continue
        deployments.advance(now_ps)
        seen = deployments.snapshot(now_ps, deployments.now.busy_ps - busy, now_ps - last_ps, num_blocks)
        busy, last_ps = deployments.now.busy_ps, now_ps
        deployments.wish(control.desired_replicas(now_ps / PS, seen), now_ps, cold_ps)
        draining = len(deployments.draining)
        log.add(deployments.sample(now_ps, seen.ready + draining), (seen.ready, seen.starting, draining))
        if report is not None:
            report(now_ps / PS, max(come_ps[-1], now_ps) / PS)


class _ScaledDeployments:
    """The deployments of a fleet; each has `schedulers` neighbouring replicas."""

    def __init__(self, machines: FastFleet, rule: Autoscaling, schedulers: int) -> None:
        self.machines, self.schedulers = machines, schedulers
        first = rule.least_at(0.0)
        self.lives: list[Life] = [Life(0, 0, -1, -1)] * first
        self.there: dict[int, int] = {place: place for place in range(first)}  # slot -> life: wished, not drained
        self.draining: dict[int, int] = {}
        self.off = list(range(first, rule.most))[::-1]
        self.up_before = np.zeros(rule.most * schedulers, dtype=np.int64)  # time on, of the lives before
        self.now: Standing = machines.standing()
        self.unassigned_count = 0
        self.ready: dict[tuple[int, ...], Column] = {}  # replicas of deployments, by these

    def advance(self, until_ps: int) -> None:
        """Let time pass, and see which of the draining are off."""
        self.machines.advance(until_ps)
        self.now, self.unassigned_count = self.machines.standing(), self.machines.unassigned_count
        for slot in [s for s in self.draining if not self.now.on[self._of(s)].any()]:
            life = self.draining.pop(slot)
            self._switch_off(slot, life)
            self.off.append(slot)

    def switch_off_drained(self) -> None:
        """At the end of the run: draining deployments go off when their last answer is complete."""
        for slot, life in self.draining.items():
            self._switch_off(slot, life)

    def next_ps(self, come_ps: Column, last_ps: int) -> int:
        """The arrival of the next request that no deployment has; never, where all have come."""
        row = self.machines.answered_count + int(self.now.queue.sum() + self.now.running.sum())
        return max(int(come_ps[row]), last_ps + 1) if row < len(come_ps) else LATEST_PS

    def _of(self, slot: int) -> slice:
        return slice(slot * self.schedulers, (slot + 1) * self.schedulers)

    def _switch_off(self, slot: int, life: int) -> None:
        """A deployment is off once the last of its schedulers is, and not before it was drained."""
        up = self.machines.totals().up_ps[self._of(slot)]
        was = self.lives[life]
        on_ps = int((up - self.up_before[self._of(slot)]).max())
        self.up_before[self._of(slot)] = up
        self.lives[life] = was._replace(off_ps=max(was.drained_ps, was.ready_ps + on_ps if on_ps else 0))

    def snapshot(self, now_ps: int, busy_ps: Column, since_ps: int, num_blocks: int) -> Snapshot:
        """The autoscaler's view: deployments that take requests, and what waits for one."""
        taking = tuple(s for s, life in self.there.items() if self.lives[life].ready_ps <= now_ps)
        rows = self.ready.get(taking)
        if rows is None:
            slots = np.array(taking, dtype=np.intp)
            rows = self.ready[taking] = (slots[:, None] * self.schedulers + np.arange(self.schedulers)).ravel()
        now, ready = self.now, len(taking)
        share = max(ready * self.schedulers, 1)
        return Snapshot(
            ready=ready,
            starting=len(self.there) - ready,
            waiting=int(now.queue[rows].sum()) + self.unassigned_count,
            running=int(now.running[rows].sum()),
            busy_frac=min(int(busy_ps[rows].sum()) / (share * since_ps), 1.0),
            kv_frac=int(now.blocks[rows].sum()) / (share * num_blocks),
        )

    def wish(self, count: int, now_ps: int, cold_ps: int) -> None:
        """Have `count` deployments from now on, as far as machines are free.

        Source: Kubernetes' replica sets: those that are not ready go first when there are too many, then the least
        loaded here.
        """
        for _ in range(min(count - len(self.there), len(self.off))):
            slot = self.off.pop()
            for replica in range(self._of(slot).start, self._of(slot).stop):
                self.machines.start(replica, now_ps + cold_ps)
            self.there[slot] = len(self.lives)
            self.lives.append(Life(now_ps, max(now_ps + cold_ps, now_ps + 1), -1, -1))
        if count >= len(self.there):
            return
        load = self.now.queue + self.now.running

        def value(slot: int) -> tuple[bool, int, int]:
            ready_ps = self.lives[self.there[slot]].ready_ps
            return ready_ps <= now_ps, int(load[self._of(slot)].sum()), -ready_ps

        for slot in sorted(self.there, key=value)[: len(self.there) - count]:
            life = self.there.pop(slot)
            for replica in range(self._of(slot).start, self._of(slot).stop):
                self.machines.drain(replica)
            self.lives[life] = self.lives[life]._replace(drained_ps=now_ps)
            self.draining[slot] = life

    def sample(self, now_ps: int, deployments: int) -> Sample:
        """The state of all replicas."""
        now = self.now
        queue = int(now.queue.sum()) + self.unassigned_count
        return now_ps, queue, int(now.running.sum()), int(now.blocks.sum()), deployments * self.schedulers


class _Log:
    """Samples at ticks: every one, then every second, fourth ... so that there are never more than twice as many."""

    def __init__(self, samples: int) -> None:
        self.wanted, self.every, self.ticks = samples, 1, 0
        self.samples: list[Sample] = []
        self.counts: list[tuple[int, int, int]] = []  # deployments ready, starting, draining

    def add(self, sample: Sample, counts: tuple[int, int, int]) -> None:
        """Record a tick, if it is one of those that are kept."""
        self.ticks += 1
        if self.ticks % self.every:
            return
        self.samples.append(sample)
        self.counts.append(counts)
        if len(self.samples) >= 2 * self.wanted:
            self.samples, self.counts, self.every = self.samples[1::2], self.counts[1::2], 2 * self.every


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
