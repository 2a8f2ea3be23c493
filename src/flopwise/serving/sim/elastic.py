"""An autoscaler at the replicas: started late, drained, scaled to zero and woken; what that costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flopwise.errors import SpecError
from flopwise.ops.types import Array
from flopwise.serving.sim.autoscale import Autoscaling, Controller, Snapshot
from flopwise.serving.sim.cost import StepCost
from flopwise.serving.sim.engine import ReplicaLimits
from flopwise.serving.sim.result import SimulatedRun, Standing
from flopwise.serving.sim.setup import setup
from flopwise.serving.sim.simulate import LATEST_PS, Engine, SimulatedFleet, TimelineSample, fleet, run_result
from flopwise.serving.sim.trace import PS, Column, RequestTrace

MOST_TICKS = 5_000_000
"""Looks of an autoscaler at a trace; a week at a tick of a second is an eighth of that."""


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
    first: int | None = None,
    balancer: str = "least-loaded",
    policy: str = "fcfs",
    engine: Engine = "fast",
    samples: int = 400,
    on_compile: Callable[[], None] | None = None,
    report: Callable[[float, float], None] | None = None,
) -> AutoscaledRun:
    """Run a trace to its end on as many deployments of `schedulers` schedulers as `rule` asks for at every tick.

    `first`: deployments that are there from the beginning (None: the fewest of the rule). Draining deployments count
    into the most that there may be: they hold their machines. With none at all, a request that comes is held and wakes
    one at once, as Knative's activator does. `report`: called with seconds simulated and in all.

    Raises:
        SpecError: a number out of range, or a run longer than the clock counts; UnknownNameError: policy or balancer.
    """
    begun = rule.least if first is None else first
    if not rule.least <= begun <= rule.most:
        raise SpecError(
            f"{begun} replicas at first; allowed: {rule.least} to {rule.most}, the bounds of the autoscaler"
        )
    if trace.duration_s / rule.tick_s > MOST_TICKS:
        raise SpecError(f"a tick of {rule.tick_s:g} s is too short for a trace of {trace.duration_s:,.0f} s")
    plan = setup(
        trace, cost, limits, replicas=begun * schedulers, spare=(rule.most - begun) * schedulers, balancer=balancer,
        policy=policy,
    )  # fmt: skip
    machines = fleet(plan, engine, on_compile)
    deployments = _Deployments(machines, rule.most, begun, schedulers)
    log = _Log(samples)
    _driven(machines, deployments, rule, plan.trace.arrival_ps + cost.request_ps, limits, log, report)
    deployments.switch_off_drained()
    end = max(int(trace.arrival_ps[-1]), int(machines.outcome().finish_ps.max(initial=0)), 1)
    run = run_result(trace, plan, machines, log.samples)
    columns = np.array(log.counts, dtype=np.int64).reshape(-1, 3).T
    line = ReplicaLine(run.timeline.time_s, *columns)
    return AutoscaledRun(simulated=run, rule=rule, lives=tuple(deployments.lives), line=line, end_ps=end)


def _driven(
    machines: SimulatedFleet,
    deployments: _Deployments,
    rule: Autoscaling,
    come_ps: Column,
    limits: ReplicaLimits,
    log: _Log,
    report: Callable[[float, float], None] | None,
) -> None:
    """Tick after tick until all is answered."""
    control, tick_ps, cold_ps = Controller(rule), round(rule.tick_s * PS), round(rule.starts_in_s * PS)
    rows, tick, last_ps, busy = len(come_ps), 0, 0, deployments.now.busy_ps
    while machines.answered_count < rows:
        tick += 1
        now_ps = tick * tick_ps
        if now_ps > LATEST_PS:
            raise SpecError(f"the run is not over after {LATEST_PS / PS / 86400:.0f} days; the load is beyond reason")
        if not deployments.there:
            woken_ps = deployments.next_ps(come_ps, last_ps)
            if woken_ps < now_ps:
                deployments.advance(woken_ps)
                deployments.wish(1, woken_ps, cold_ps)
            elif not deployments.draining:
                log.nothing(now_ps)
                last_ps = now_ps
                continue
        deployments.advance(now_ps)
        seen = deployments.snapshot(now_ps, deployments.now.busy_ps - busy, now_ps - last_ps, limits.num_blocks)
        busy, last_ps = deployments.now.busy_ps, now_ps
        deployments.wish(control.desired_replicas(now_ps / PS, seen), now_ps, cold_ps)
        log.sample(now_ps, deployments, seen)
        if report is not None:
            report(now_ps / PS, max(come_ps[-1], now_ps) / PS)


class _Deployments:
    """Which deployments there are; each has `schedulers` neighbouring replicas of the fleet."""

    def __init__(self, machines: SimulatedFleet, most: int, begun: int, schedulers: int) -> None:
        self.machines, self.schedulers = machines, schedulers
        self.lives: list[Life] = [Life(0, 0, -1, -1)] * begun
        self.there: dict[int, int] = {place: place for place in range(begun)}  # slot -> life: asked for, not drained
        self.draining: dict[int, int] = {}
        self.off = list(range(begun, most))[::-1]
        self.up_before = np.zeros(most * schedulers, dtype=np.int64)  # time on, of the lives before
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
        """When the next request comes that no deployment has; never, where all have come."""
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
        """What the autoscaler sees: deployments that take requests, and what waits for one."""
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
        order = sorted(
            self.there,
            key=lambda slot: (
                self.lives[self.there[slot]].ready_ps <= now_ps,
                load[self._of(slot)].sum(),
                -self.lives[self.there[slot]].ready_ps,
            ),
        )
        for slot in order[: len(self.there) - count]:
            life = self.there.pop(slot)
            for replica in range(self._of(slot).start, self._of(slot).stop):
                self.machines.drain(replica)
            self.lives[life] = self.lives[life]._replace(drained_ps=now_ps)
            self.draining[slot] = life


class _Log:
    """Samples at ticks: every one, then every second, fourth ... so that there are never more than twice as many."""

    def __init__(self, samples: int) -> None:
        self.wanted, self.every, self.ticks = samples, 1, 0
        self.samples: list[TimelineSample] = []
        self.counts: list[tuple[int, int, int]] = []  # ready, starting, draining

    def _due(self) -> bool:
        self.ticks += 1
        return self.ticks % self.every == 0

    def nothing(self, now_ps: int) -> None:
        """No deployment, no request."""
        if self._due():
            self._add(TimelineSample(now_ps, 0, 0, 0, 0), (0, 0, 0))

    def sample(self, now_ps: int, deployments: _Deployments, seen: Snapshot) -> None:
        """Record the state at a tick, before the autoscaler's wish is fulfilled."""
        if self._due():
            now = deployments.now
            queue = int(now.queue.sum()) + deployments.unassigned_count
            replicas = (seen.ready + len(deployments.draining)) * deployments.schedulers
            self._add(
                TimelineSample(now_ps, queue, int(now.running.sum()), int(now.blocks.sum()), replicas),
                (seen.ready, seen.starting, len(deployments.draining)),
            )

    def _add(self, sample: TimelineSample, counts: tuple[int, int, int]) -> None:
        self.samples.append(sample)
        self.counts.append(counts)
        if len(self.samples) >= 2 * self.wanted:
            self.samples, self.counts, self.every = self.samples[1::2], self.counts[1::2], 2 * self.every
