"""One simulation, checked and ready to run: requests as replicas see them, replicas, and where requests go."""

from __future__ import annotations

import numpy as np

from flopwise.errors import SpecError, UnknownNameError
from flopwise.serving.sim.cost import StepCost
from flopwise.serving.sim.engine import ReplicaLimits
from flopwise.serving.sim.policies import BALANCERS, ranks
from flopwise.serving.sim.prefixes import Prefixes, previous_turns
from flopwise.serving.sim.result import BEYOND_CONTEXT, BEYOND_MEMORY
from flopwise.serving.sim.trace import PS, Column, RequestTrace
from flopwise.serving.techniques import cached_tokens
from flopwise.values import dataclass, replace

WHOLE, PREFILL, DECODE = range(3)
"""What a replica does: all, prompts only, or answers only."""
MOST_PLACES = 2**24
"""Sequences of all replicas together that the simulator keeps places for: 1.5 GB."""
SEED_OF_ROUNDS = 0
"""The rounds of a request depend on its place in the trace alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """The transfer time of a prompt's cache from a prefill replica to one that decodes.

    Assumes: transfers do not slow one another down; the first token comes with the cache, as where it is decoded.
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
    """The input of the simulator. Built by `setup`."""

    trace: RequestTrace  # requests that can run, with one token of output for each step that they take
    kept: Column  # their rows in the trace that was given
    reasons: Column  # of all rows: why they were dropped, 0 where they were not
    by_rank: Column  # the requests in the order of the policy
    rank: Column  # place of each in it
    fcfs: bool  # that order is the order of arrival
    cost: StepCost
    limits: ReplicaLimits
    roles: tuple[int, ...]  # of each replica: WHOLE, or PREFILL and DECODE
    on: tuple[bool, ...]  # which of them are there from the start
    balancer: int
    users: int  # 0: requests come when the trace says
    think_ps: int
    transfer_ps: Column  # of each request, from a replica for prompts; else 0
    hits: Column  # prompt tokens that are cached already
    prefixes: Prefixes  # of each request
    next_turn: Column  # the request that follows each answer, -1: none


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
    prefill_replicas: int = 0,
    transfer: Transfer | None = None,
    spare: int = 0,
) -> Setup:
    """Check one simulation and lay it out.

    `users`: so many, each of which sends its next request `think_s` after the last is answered; requests go out in the
    order of the trace, whose times do not matter, and all users begin together. `prefill_replicas`: so many do nothing
    but prompts and hand them to the `replicas`, over `transfer`. `spare`: replicas that are off at first and may be
    started.

    Raises:
        SpecError: a number out of range, costs too short for the limits, or requests that say themselves what they
            share beside shared tokens or hits; UnknownNameError: policy or balancer.
    """
    limits.check(cost)
    if limits.shared_tokens:
        limits = replace(limits, prefix_cache=True)
    if replicas + spare < 1 or min(replicas, spare, prefill_replicas) < 0:
        raise SpecError(f"{replicas} replicas and {prefill_replicas} for prefill; allowed: from 1, and from 0")
    _check_places(replicas + spare + prefill_replicas, limits)
    if users is not None and users < 1:
        raise SpecError(f"{users} users; allowed: from 1")
    if not 0 <= think_s <= 1e6:
        raise SpecError(f"think_s {think_s} is out of range; allowed: 0 to 1e6 s")
    if users is not None and trace.follows:
        raise SpecError("the turns of a session already follow its answers; leave the users out")
    if balancer not in BALANCERS:
        raise UnknownNameError("balancer", balancer, BALANCERS, f"allowed: {', '.join(BALANCERS)}")
    work, hits = _with_techniques(trace, limits)
    blocks = -(-(trace.prompt + work.output - 1) // limits.block_tokens)  # of each request alone
    reasons = np.where(blocks > limits.num_blocks, BEYOND_MEMORY, 0)
    reasons = np.where(trace.prompt + trace.output > limits.max_tokens, BEYOND_CONTEXT, reasons)
    kept = np.flatnonzero(reasons == 0)
    if len(kept) < len(trace):
        work, hits = work.take(kept), hits[kept]
    if users is not None:
        work = work.arriving(np.full(len(work), work.arrival_ps[0] if len(work) else 0, dtype=np.int64))
    work, next_turn = _following(work)
    by_rank, rank = ranks(work, policy)
    return Setup(
        trace=work, kept=kept, reasons=reasons, by_rank=by_rank, rank=rank, fcfs=policy == "fcfs", cost=cost,
        limits=limits, balancer=list(BALANCERS).index(balancer), users=users or 0, think_ps=round(think_s * PS),
        roles=(PREFILL,) * prefill_replicas + (DECODE if prefill_replicas else WHOLE,) * (replicas + spare),
        prefixes=Prefixes.of(work, limits.block_tokens), next_turn=next_turn,
        on=(True,) * (prefill_replicas + replicas) + (False,) * spare, hits=hits,
        transfer_ps=_transfer_ps(work, transfer or Transfer(), pools=1 + (prefill_replicas > 0)),
    )  # fmt: skip


def _check_places(replicas: int, limits: ReplicaLimits) -> None:
    if replicas * limits.max_batch > MOST_PLACES:
        raise SpecError(
            f"{replicas:,} replicas of up to {limits.max_batch:,} sequences each are too many to simulate; allowed: up "
            f"to {MOST_PLACES // limits.max_batch:,} replicas"
        )


def _transfer_ps(trace: RequestTrace, path: Transfer, *, pools: int) -> Column:
    """The time of each request's cache between two pools; zeros where there is one."""
    if pools == 1:
        return np.zeros(len(trace), dtype=np.int64)
    transfer_ps: Column = np.rint((path.latency_s + path.s_per_token * trace.prompt) * PS).astype(np.int64)
    return transfer_ps


def _following(trace: RequestTrace) -> tuple[RequestTrace, Column]:
    """(the requests, without pauses before the first turn of a session that is there; what follows each answer)."""
    nothing = np.full(len(trace), -1, dtype=np.int64)
    if not trace.follows:
        return trace, nothing
    before = previous_turns(trace)
    trace = replace(trace, pause_ps=np.where(before >= 0, trace.pause_ps, -1))
    rows = np.flatnonzero(trace.pause_ps >= 0)
    nothing[before[rows]] = rows
    return trace, nothing


def rounds(output: Column, acceptance: float, proposals: int) -> Column:
    """Steps after which each answer of `output` tokens is whole; shape of `output`.

    The first token comes with the prompt. Each further step brings the proposals up to the first that is refused and
    one token of the target's own; what the last step brings beyond the answer is thrown away.

    Source: Leviathan et al. 2023 (arXiv:2211.17192) section 3.1, drawn instead of taken at its mean.
    Assumes: proposals are accepted independently with one probability.
    """
    rng = np.random.default_rng(SEED_OF_ROUNDS)
    left, steps = np.asarray(output) - 1, np.ones(len(output), dtype=np.int64)
    rows = np.flatnonzero(left > 0)
    longest = np.log(acceptance) if acceptance > 0 else -np.inf
    while rows.size:
        if acceptance >= 1:
            accepted = np.full(rows.size, proposals, dtype=np.int64)
        else:  # accepted proposals before the first refusal: geometric, up to all of them
            drawn = np.log1p(-rng.random(rows.size)) / longest
            accepted = np.minimum(drawn, proposals).astype(np.int64)
        left[rows] -= accepted + 1
        steps[rows] += 1
        rows = rows[left[rows] > 0]
    return steps


def _with_techniques(trace: RequestTrace, limits: ReplicaLimits) -> tuple[RequestTrace, Column]:
    """(the requests with shared prefixes and answers in rounds, tokens of each prompt that are cached already)."""
    hits = np.zeros(len(trace), dtype=np.int64)
    own = np.any(trace.prefix >= 0) or (limits.hit_frac and np.any(trace.session >= 0))
    if (limits.shared_tokens or limits.hit_frac) and own:
        raise SpecError(
            "the requests have prefixes of their own (--prefixes, --turns, or a trace's columns prefix and session); "
            "leave --shared-prefix and --prefix-hit out"
        )
    if limits.shared_tokens:
        shared = np.minimum(limits.shared_tokens, trace.prompt)
        trace = replace(trace, prefix=np.zeros_like(hits), prefix_tokens=shared)
    if limits.hit_frac:
        hits = np.asarray(cached_tokens(trace.prompt, hit_frac=limits.hit_frac)).astype(np.int64)
    if limits.proposals:
        trace = replace(trace, output=rounds(trace.output, limits.acceptance, limits.proposals))
    return trace, hits
