"""One simulation, checked and laid out for either engine: requests, replicas and where requests go."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from flopwise.errors import SpecError
from flopwise.serving.sim.cost import StepCost
from flopwise.serving.sim.engine import ReplicaLimits
from flopwise.serving.sim.policies import balancer_number, ranks
from flopwise.serving.sim.technique_effects import assisted_requests
from flopwise.serving.sim.trace import PS, Column, RequestTrace
from flopwise.serving.sim.user_ramp import user_start_ps

WHOLE, PREFILL, DECODE = range(3)
"""What a replica does: all, prompts only, or answers only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """How long the cache of a prompt is under way from a prefill replica to one that decodes.

    Assumes: transfers do not slow one another down.
    """

    latency_s: float = 0.0
    s_per_token: float = 0.0

    def __post_init__(self) -> None:
        """Refuse times that run backwards."""
        if not (0 <= self.latency_s < np.inf and 0 <= self.s_per_token < np.inf):
            raise SpecError(
                f"transfer of {self.latency_s} s and {self.s_per_token} s a token is out of range; allowed: from 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """All that an engine needs. Built by `setup`."""

    trace: RequestTrace  # requests that can run, with one token of output for each step that they take
    kept: Column  # their rows in the trace that was given
    reasons: Column  # of all rows: why they were dropped, 0 where they were not
    rank: Column  # place in the order of the policy
    fcfs: bool  # that order is the order of arrival
    cost: StepCost
    limits: ReplicaLimits
    roles: tuple[int, ...]  # of each replica: WHOLE, or PREFILL and DECODE
    on: tuple[bool, ...]  # which of them are there from the start
    balancer: int
    users: int  # 0: requests come when the trace says
    think_ps: int
    transfer_ps: Column = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # of each request
    hits: Column = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # prompt tokens that are cached already


def setup(
    trace: RequestTrace,
    cost: StepCost,
    limits: ReplicaLimits,
    *,
    replicas: int = 1,
    balancer: str = "round-robin",
    policy: str = "fcfs",
    users: int | None = None,
    think_s: float = 0.0,
    together: bool = False,
    prefill_replicas: int = 0,
    transfer: Transfer | None = None,
    spare: int = 0,
    prefill_spare: int = 0,
) -> Setup:
    """Check one simulation and lay it out.

    `users`: so many, each of which sends its next request `think_s` after the last is answered; requests go out in the
    order of the trace, whose times do not matter; where all are alike, users begin one after the other, as nothing else
    would part them, unless they begin `together`. `prefill_replicas`: so many do nothing but prompts and hand them to
    the `replicas`, over `transfer`. `spare`, `prefill_spare`: replicas that are off at first and may be started.

    Raises:
        SpecError: a number out of range, or costs too short for the limits; UnknownNameError: policy or balancer.
    """
    limits.check(cost)
    if limits.shared_tokens:
        limits = replace(limits, prefix_cache=True)
    if replicas + spare < 1 or min(replicas, spare, prefill_replicas, prefill_spare) < 0:
        raise SpecError(f"{replicas} replicas and {prefill_replicas} for prefill; allowed: from 1, and from 0")
    split = prefill_replicas + prefill_spare > 0
    if users is not None and users < 1:
        raise SpecError(f"{users} users; allowed: from 1")
    if not 0 <= think_s <= 1e6:
        raise SpecError(f"think_s {think_s} is out of range; allowed: 0 to 1e6 s")
    work, hits = assisted_requests(trace, limits)
    reasons = limits.drops(trace, work.output)
    kept = np.flatnonzero(reasons == 0)
    left = work if len(kept) == len(trace) else work.take(kept)
    if users is not None:
        left = left.arriving(np.full(len(left), left.arrival_ps[0] if len(left) else 0, dtype=np.int64))
        if len(left) and not together:
            left = left.arriving(user_start_ps(left, users, replicas, cost, limits))
    path = transfer or Transfer()
    moved = np.rint((path.latency_s + path.s_per_token * left.prompt) * PS).astype(np.int64)
    return Setup(
        trace=left,
        kept=kept,
        reasons=reasons,
        rank=ranks(left, policy),
        fcfs=policy == "fcfs",
        cost=cost,
        limits=limits,
        roles=(PREFILL,) * (prefill_replicas + prefill_spare) + (DECODE if split else WHOLE,) * (replicas + spare),
        on=(True,) * prefill_replicas + (False,) * prefill_spare + (True,) * replicas + (False,) * spare,
        balancer=balancer_number(balancer),
        users=users or 0,
        think_ps=round(think_s * PS),
        transfer_ps=moved,
        hits=hits[kept],
    )
