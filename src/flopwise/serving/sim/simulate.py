"""A trace through a deployment, start to end: the entry for all who do not steer replicas on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flopwise.errors import SpecError
from flopwise.serving.sim.cost import StepCost
from flopwise.serving.sim.engine import ReplicaLimits
from flopwise.serving.sim.fleet import FastFleet
from flopwise.serving.sim.result import SimulatedRun, Timeline
from flopwise.serving.sim.setup import Setup, setup
from flopwise.serving.sim.trace import PS, RequestTrace

Engine = Callable[[Setup, Callable[[], None] | None], FastFleet]
"""The replicas of a setup, ready to be advanced; the second argument is called where code must be compiled first."""
LATEST_PS = 2**62
"""A run that goes on for longer (53 days) is given up: twice that is all that the clock can count."""
SHORTEST_SAMPLE_PS = PS // 100
Sample = tuple[int, int, int, int, int]
"""A row of `Timeline`, its time in picoseconds; requests that no replica takes are queued, too."""


def simulate(
    trace: RequestTrace,
    cost: StepCost,
    limits: ReplicaLimits,
    *,
    engine: Engine = FastFleet,
    samples: int = 200,
    on_compile: Callable[[], None] | None = None,
    **arrangement: Any,
) -> SimulatedRun:
    """Run a trace to its end; `arrangement`: replicas and how requests reach them, the keywords of `setup`.

    `samples`: of the timeline, at least; at most twice as many.

    Raises:
        SpecError: a number out of range, or a run longer than the clock counts; UnknownNameError: policy or balancer.
    """
    if samples < 1:
        raise SpecError(f"{samples} samples; allowed: from 1")
    plan = setup(trace, cost, limits, **arrangement)
    machines = engine(plan, on_compile)
    return run_result(trace, plan, machines, _advance_to_end(machines, plan, samples))


def check_clock(time_ps: int) -> None:
    """Refuse a run that is longer than the clock counts.

    Raises: SpecError: the time is beyond `LATEST_PS`.
    """
    if time_ps > LATEST_PS:
        raise SpecError(f"the run has not ended after {LATEST_PS / PS / 86400:.0f} days; lower the load")


def _advance_to_end(machines: FastFleet, plan: Setup, samples: int) -> list[Sample]:
    """Advance to the end; samples at equal distances, at a distance that doubles when there are too many."""
    rows = len(plan.trace)
    last = int(plan.trace.arrival_ps[-1]) if rows and not plan.users else 0
    distance, least_ps = max(last // samples, SHORTEST_SAMPLE_PS), _least_duration_ps(plan)
    while 2 * samples * distance < least_ps:
        distance *= 2  # as it would later on
    line: list[Sample] = []
    time_ps = 0
    while machines.answered_count < rows:
        time_ps += distance
        check_clock(time_ps)
        machines.advance(time_ps)
        on, queued, running, blocks, _ = machines.standing()
        queue = int(queued.sum()) + machines.unassigned_count
        line.append((time_ps, queue, int(running.sum()), int(blocks.sum()), int(on.sum())))
        if len(line) >= 2 * samples:
            line, distance = line[1::2], 2 * distance
    return line


def _least_duration_ps(plan: Setup) -> int:
    """A lower bound of the time of a run: all tokens that it must work through, at the rate of the most efficient step.

    Source: definition. Assumes: nothing; where a cache may save tokens of prompts, none of theirs are counted.
    """
    trace, steps = plan.trace, plan.cost.tokens_ps[1:]
    tokens = int((trace.output - 1).sum())
    if not (plan.limits.prefix_cache or np.any(plan.hits)):
        tokens += int(trace.prompt.sum())
    token_ps = float(np.min(steps / np.arange(1, len(steps) + 1)))
    return int(0.99 * tokens * token_ps / len(plan.roles))


def run_result(trace: RequestTrace, plan: Setup, machines: FastFleet, samples: list[Sample]) -> SimulatedRun:
    """The result of a run, in the rows of the whole trace; also for those who steer replicas themselves."""
    outcome, rows = machines.outcome(), len(trace)
    if len(plan.kept) < rows:
        outcome = outcome.spread(plan.kept, rows)
        if not (plan.users or plan.trace.follows):
            outcome.arrival_ps[:] = trace.arrival_ps
    hits, steps = plan.hits, plan.trace.output
    if len(plan.kept) < rows:
        hits, steps = np.zeros(rows, dtype=np.int64), trace.output.copy()
        hits[plan.kept], steps[plan.kept] = plan.hits, plan.trace.output
    columns = np.array(samples, dtype=np.int64).reshape(-1, len(Timeline._fields)).T
    return SimulatedRun(
        trace=trace, reasons=plan.reasons, outcome=outcome, itl=machines.itl(), totals=machines.totals(),
        timeline=Timeline(columns[0] / PS, *columns[1:]), num_blocks=plan.limits.num_blocks,
        end_ps=int(max(outcome.finish_ps.max(initial=0), outcome.first_ps.max(initial=0))),
        request_ps=plan.cost.request_ps, front_token_ps=plan.cost.front_token_ps, hits=hits if np.any(hits) else None,
        steps=steps if plan.limits.proposals else None,
        fetched_tokens=machines.fetched_blocks * plan.limits.block_tokens,
    )  # fmt: skip
