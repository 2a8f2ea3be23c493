"""What the scheduler of one replica may do: batch, tokens a step, blocks of cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from flopwise.errors import InfeasibleError, SpecError
from flopwise.serving.estimate import check, job_memory
from flopwise.serving.sim.cost import StepCost, step_cost
from flopwise.serving.sim.trace import PS, Column, RequestTrace
from flopwise.serving.techniques import memory_changes, request_work, runner

if TYPE_CHECKING:
    from flopwise.serving.job import ServeJob

BEYOND_MEMORY, BEYOND_CONTEXT = 1, 2
REASONS = {BEYOND_MEMORY: "longer than the whole cache", BEYOND_CONTEXT: "longer than the context window"}
"""Why requests are dropped when they arrive, by code; 0: not dropped."""
ENDLESS = 2**40
"""Blocks or tokens that no trace asks for."""
MOST_BATCH = 2**20 - 1
"""Sequences that one replica can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLimits:
    """Limits of one replica and the habits of its scheduler.

    Raises: SpecError: a number out of range.
    """

    max_batch: int = 256  # sequences that run at once
    step_tokens: int = 8192  # tokens of a step: one for each sequence that decodes, the rest for prompts
    block_tokens: int = 16
    num_blocks: int = ENDLESS  # of cache
    max_tokens: int = ENDLESS  # of prompt and answer together: the context window
    mix: bool = True  # prompts and decoding share steps; False: prompts go first, in steps of their own
    preempt: str = "recompute"  # what becomes of a sequence that there are no blocks for
    swap_ps_per_block: int = 0  # moving one block to the host or back
    prefix_cache: bool = False
    shared_tokens: int = 0  # with which all prompts begin
    hit_frac: float = 0.0  # of the tokens of every prompt, found in the cache whoever put them there
    proposals: int = 0  # tokens that a draft proposes a step
    acceptance: float = 0.0  # probability of each of them

    def __post_init__(self) -> None:
        """Refuse what cannot run."""
        for name in ("max_batch", "step_tokens", "block_tokens", "num_blocks", "max_tokens"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name} {getattr(self, name)} is out of range; allowed: from 1")
        if self.max_batch > MOST_BATCH:
            raise SpecError(f"max_batch {self.max_batch:,} is out of range; allowed: up to {MOST_BATCH:,}")
        if self.preempt not in {"recompute", "swap"}:
            raise SpecError(f"preempt {self.preempt!r}; allowed: recompute, swap")
        if self.swap_ps_per_block < 0:
            raise SpecError(f"swap_ps_per_block {self.swap_ps_per_block} is out of range; allowed: from 0")
        if min(self.shared_tokens, self.proposals) < 0:
            raise SpecError(f"{self.shared_tokens} shared tokens and {self.proposals} proposals; allowed: from 0")
        if not (0 <= self.hit_frac <= 1 and 0 <= self.acceptance <= 1):
            raise SpecError(f"hit_frac {self.hit_frac:g} and acceptance {self.acceptance:g}; allowed: 0 to 1")

    def drops(self, trace: RequestTrace, steps: Column | None = None) -> Column:
        """Reason code of every request: those that could not run even alone; 0 for the others.

        `steps`: of each request until its answer is whole; None: one a token.
        """
        grown = trace.prompt + (trace.output if steps is None else steps) - 1
        beyond = np.where(-(-grown // self.block_tokens) > self.num_blocks, BEYOND_MEMORY, 0)
        return np.where(trace.prompt + trace.output > self.max_tokens, BEYOND_CONTEXT, beyond)

    def check(self, cost: StepCost) -> None:
        """Refuse tables that are too short for these limits."""
        tokens = max(self.step_tokens, self.max_batch) + (cost.decode_tokens - 1) * self.max_batch
        if len(cost.tokens_ps) <= tokens or len(cost.decode_ps) <= self.max_batch:
            raise SpecError(
                f"step costs for {len(cost.tokens_ps) - 1:,} tokens and {len(cost.decode_ps) - 1:,} sequences; "
                f"the limits allow {tokens:,} and {self.max_batch:,}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A deployment as the simulator sees it: schedulers that work side by side, alike."""

    cost: StepCost
    limits: ReplicaLimits
    schedulers: int  # that one deployment of the job makes: attention replicas, micro-batches of a pipeline


def replica(
    job: ServeJob, *, context: int | None = None, step_tokens: int | None = None, max_tokens: int | None = None
) -> Replica:
    """Step costs and limits of a job: `context` is what one sequence holds on average (None: the job's request).

    Attention replicas (dp) have a scheduler each; so has each micro-batch of a pipeline, as a step of it passes through
    all stages while the other micro-batches are in the others.

    Source: `flopwise.serving.memory` for blocks, data/engines.json for batch and tokens a step, step costs from
    `flopwise.serving.iteration`; pipelines as `flopwise.serving.steady.micro_batches`.
    Assumes: blocks hold what a sequence of `context` tokens needs on average, windows and states included; how many of
    them answers fill as they grow is simulated, so they are those of whole contexts. Engines that work through whole
    prompts take the longest (`max_tokens`, or the job's context) in a step. Where drafts speculate, one token of the
    simulator's is a step that brings several, and a sequence holds as many more as it does on average.
    Raises: InfeasibleError: weights leave no room for one sequence; SpecError: a model that does not generate.
    """
    check(job)
    machine, row, how = runner(job), job.engine, job.techniques
    memory = job_memory(
        job, concurrency=None, context=context or job.context, answer=0, prefill_tokens=None,
        changes=replace(memory_changes(job), shared_tokens=0),
    )  # fmt: skip
    parts = 1 if row.serial else int(job.layout.pp)
    most = max((job.max_batch or row.max_batch) // parts, 1)
    blocks = int(memory.kv_capacity_tokens * _counted_frac(job)) // row.block_tokens // parts
    if not int(memory.max_concurrency) or not blocks:
        raise InfeasibleError(f"{job.model.name} leaves no memory for a sequence of {context or job.context:,} tokens")
    longest = max(max_tokens or 0, job.context)
    budget = step_tokens or row.prefill_tokens or longest
    limits = ReplicaLimits(
        max_batch=most,
        step_tokens=budget,
        block_tokens=row.block_tokens,
        num_blocks=blocks,
        max_tokens=max_tokens or ENDLESS,
        swap_ps_per_block=round(float(memory.kv_budget_bytes) / blocks / _host_bytes_per_s(job) * PS),
        shared_tokens=how.shared_tokens,
        hit_frac=how.hit_frac,
        proposals=0 if how.speculation is None else how.speculation.tokens,
        acceptance=0.0 if how.speculation is None else how.speculation.acceptance,
    )
    cost = step_cost(machine, job.layout, max_batch=most, step_tokens=budget, context=longest)
    return Replica(cost=cost, limits=limits, schedulers=int(job.layout.dp) * parts)


def _counted_frac(job: ServeJob) -> float:
    """Cached tokens that the simulator counts over those that are there: it counts one for each step of a sequence.

    Source: `technique_runner.request_work`. Assumes: sequences are on average half way through their answer.
    """
    _, steps = request_work(job)
    return (job.input_tokens + steps / 2) / (job.input_tokens + job.output_tokens / 2)


HOST_BYTES_PER_S = 25e9
"""Rate of a device's link to its host where none is known: PCIe 4.0 x16, as copies reach it."""


def _host_bytes_per_s(job: ServeJob) -> float:
    return job.cluster.accelerator.pcie_bytes_per_s or HOST_BYTES_PER_S
