"""A trace through a deployment, start to end: the entry for all who do not steer replicas on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from flopwise.errors import SpecError
from flopwise.serving.sim.cost import StepCost
from flopwise.serving.sim.engine import ReplicaLimits
from flopwise.serving.sim.reference_fleet import ReferenceFleet
from flopwise.serving.sim.result import Outcome, ReplicaTotals, SimulatedRun, Standing, Timeline
from flopwise.serving.sim.setup import Setup, setup
from flopwise.serving.sim.trace import PS, Column, RequestTrace

Engine = Literal["fast", "reference"]
LATEST_PS = 2**62
"""A run that goes on for longer (53 days) is given up: twice that is all that the clock can count."""
SHORTEST_SAMPLE_PS = PS // 100


class SimulatedFleet(Protocol):
    """Replicas that can be advanced in time and read, started and drained in between.

    Replicas are numbered as `Setup.roles`. Nothing that has happened is undone: `until_ps` only grows, and a step
    that has begun ends when it ends.
    """

    def advance(self, until_ps: int) -> None:
        """Everything up to a time: steps that end by then, requests that come by then, steps begun before then."""

    def start(self, replica: int, on_ps: int) -> None:
        """An empty replica takes requests from `on_ps` on, with an empty cache; not before the time reached."""

    def drain(self, replica: int) -> None:
        """A replica takes no more requests, ends those that it has, and then is off."""

    def totals(self) -> ReplicaTotals:
        """What the replicas have and have done at the time reached."""

    def standing(self) -> Standing:
        """The first columns of the totals, quickly; they may change with the next `advance`, all but the last."""

    def outcome(self) -> Outcome:
        """What has become of the requests of the setup's trace."""

    def itl(self) -> Column:
        """Histogram of the gaps between tokens."""

    @property
    def answered_count(self) -> int:
        """Requests that are answered."""

    @property
    def unassigned_count(self) -> int:
        """Requests that have come and that no replica takes."""


def fleet(plan: Setup, engine: Engine = "fast", on_compile: Callable[[], None] | None = None) -> SimulatedFleet:
    """Replicas of a setup, ready to be advanced; `on_compile` is called where the core must be compiled first.

    Raises:
        SpecError: an engine of another name.
    """
    if engine == "reference":
        return ReferenceFleet(plan)
    if engine != "fast":
        raise SpecError(f"engine {engine!r}; allowed: fast, reference")
    from flopwise.serving.sim.fleet import FastFleet  # noqa: PLC0415 - numba takes 300 ms

    return FastFleet(plan, on_compile)


def simulate(
    trace: RequestTrace,
    cost: StepCost,
    limits: ReplicaLimits,
    *,
    engine: Engine = "fast",
    samples: int = 200,
    on_compile: Callable[[], None] | None = None,
    **arrangement: Any,
) -> SimulatedRun:
    """Run a trace to its end; `arrangement`: replicas and how requests reach them, the keywords of `setup`.

    `samples`: of the timeline, at least; at most twice as many. `engine`: both give the same result to the last bit.

    Raises:
        SpecError: a number out of range, or a run longer than the clock counts; UnknownNameError: policy or balancer.
    """
    if samples < 1:
        raise SpecError(f"{samples} samples; allowed: from 1")
    plan = setup(trace, cost, limits, **arrangement)
    machines = fleet(plan, engine, on_compile)
    return run_result(trace, plan, machines, advance_to_end(machines, plan, samples))


class TimelineSample(NamedTuple):
    """Sums over replicas at one time."""

    time_ps: int
    queue: int
    running: int
    blocks: int
    replicas: int


def sample(machines: SimulatedFleet, time_ps: int) -> TimelineSample:
    """The state of all replicas; requests that none takes are queued, too."""
    now = machines.totals()
    queue = int(now.queue.sum()) + machines.unassigned_count
    return TimelineSample(time_ps, queue, int(now.running.sum()), int(now.blocks.sum()), int(now.on.sum()))


def advance_to_end(machines: SimulatedFleet, plan: Setup, samples: int) -> list[TimelineSample]:
    """Advance to the end; samples at equal distances, at a distance that doubles when there are too many."""
    rows = len(plan.trace)
    last = int(plan.trace.arrival_ps[-1]) if rows and not plan.users else 0
    distance = max(last // samples, SHORTEST_SAMPLE_PS)
    taken: list[TimelineSample] = []
    time_ps = 0
    while machines.answered_count < rows:
        time_ps += distance
        if time_ps > LATEST_PS:
            raise SpecError(f"the run is not over after {LATEST_PS / PS / 86400:.0f} days; the load is beyond reason")
        machines.advance(time_ps)
        taken.append(sample(machines, time_ps))
        if len(taken) >= 2 * samples:
            taken, distance = taken[1::2], 2 * distance
    return taken


def run_result(
    trace: RequestTrace, plan: Setup, machines: SimulatedFleet, samples: list[TimelineSample]
) -> SimulatedRun:
    """The result of a run, in the rows of the trace that was given; also for those who steer replicas themselves."""
    outcome, totals = machines.outcome(), machines.totals()
    if len(plan.kept) < len(trace):
        every = Outcome.empty(len(trace))
        for whole, part in zip(every, outcome, strict=True):
            whole[plan.kept] = part
        if not plan.users:
            every.arrival_ps[:] = trace.arrival_ps
        outcome = every
    hits, steps = every_row(plan, trace)
    columns = np.array(samples, dtype=np.int64).reshape(-1, len(TimelineSample._fields)).T
    ends = outcome.finish_ps.max(initial=0), outcome.first_ps.max(initial=0)
    return SimulatedRun(
        trace=trace,
        reasons=plan.reasons,
        outcome=outcome,
        itl=machines.itl(),
        timeline=Timeline(columns[0] / PS, *columns[1:]),
        totals=totals,
        num_blocks=plan.limits.num_blocks,
        end_ps=int(max(ends)),
        request_ps=plan.cost.request_ps,
        hits=hits,
        steps=steps,
    )


def every_row(plan: Setup, trace: RequestTrace) -> tuple[Column | None, Column | None]:
    """(tokens found, steps of an answer) in the rows of the trace that was given; None where they are as always."""
    hits = np.zeros(len(trace), dtype=np.int64)
    hits[plan.kept] = plan.hits
    steps = trace.output.copy()
    steps[plan.kept] = plan.trace.output
    return (hits if np.any(hits) else None), (steps if plan.limits.proposals else None)
