"""When the users of a closed loop begin: not all at one instant, where nothing else would part them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flopwise.serving.sim.trace import PS, Column, RequestTrace

if TYPE_CHECKING:
    from flopwise.serving.sim.cost import StepCost
    from flopwise.serving.sim.engine import ReplicaLimits

PIECES = 32
"""Of an answer, each made beside as many others as have begun by then."""
ROUNDS = 6
"""Until the length of the first answer and what it meets agree."""
SPREAD = 0.95
"""Of the first answer's time: the last user begins before the first one is answered."""


def user_start_ps(trace: RequestTrace, users: int, replicas: int, cost: StepCost, limits: ReplicaLimits) -> Column:
    """When each request may come at the earliest, from the start; of the first `users` it is when they come.

    Users whose requests are all alike would end together as they began together, for ever: each prompt would wait for
    all others. People and clients are not in step, and lengths that vary part them; where lengths do not, users begin
    one after the other, evenly over the time that the first answer takes.

    Source: published closed-loop benchmarks, whose lengths vary by a tenth: in step, simulated first tokens wait half
    as long again as measured ones; begun one by one, TPOT is as far off as that of the steady state.
    Assumes: what the others' prompts take is left out.
    """
    first = trace.arrival_ps[0]
    begin = np.full(len(trace), first, dtype=np.int64)
    users = min(users, len(trace))
    if users < 2 or not _alike(trace):
        return begin
    seconds = SPREAD * _first_answer_s(trace, users / replicas, cost, limits)
    begin[:users] += np.rint(np.arange(users) / users * seconds * PS).astype(np.int64)
    begin[users:] = begin[users - 1]
    return begin


def _alike(trace: RequestTrace) -> bool:
    return not (np.ptp(trace.prompt) or np.ptp(trace.output))


def ramp_note(trace: RequestTrace, users: int | None, *, together: bool) -> str:
    """The note that users begin one after the other; empty if they begin together."""
    if together or users is None or users < 2 or not _alike(trace):
        return ""
    return "users who ask alike begin one after the other, while the first is answered (--together: all at once)"


def _first_answer_s(trace: RequestTrace, others: float, cost: StepCost, limits: ReplicaLimits) -> float:
    """Seconds of the first answer while the others begin evenly beside it; their prompts left out."""
    prompt, output = int(trace.prompt[0]), int(trace.output[0])
    starts = range(0, prompt, limits.step_tokens)
    ahead = sum(cost.seconds(chunk=min(limits.step_tokens, prompt - at), start=at) for at in starts)
    most = max(min(others, limits.max_batch), 1.0)
    life, steps = ahead, max(output - 1, 0) / PIECES
    for _ in range(ROUNDS):
        at = ahead
        for piece in range(PIECES):
            batch = max(round(most * min(at / life, 1.0)), 1) if life else 1
            context = prompt + round((piece + 0.5) * steps)
            cached = batch * context
            windowed = batch * min(context, cost.window)
            at += steps * cost.seconds(batch=batch, cached=cached, windowed=windowed)
        life = at
    return life
