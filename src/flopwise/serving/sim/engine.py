"""A replica as the simulator sees it: what its scheduler may do, and what its steps take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from flopwise.cost.fabric import host_link_bytes_per_s
from flopwise.errors import InfeasibleError, SpecError
from flopwise.facts.architecture import Attend, Item
from flopwise.ops.columns import ascending
from flopwise.ops.types import Array, Floats
from flopwise.serving.closed_loop import closed_loop
from flopwise.serving.estimate import check, job_memory
from flopwise.serving.iteration import (
    Runner,
    StepLoad,
    StepTime,
    TimedKernel,
    decodes_in_blocks,
    layer_kinds,
    shares_calls,
    whole_prompts,
)
from flopwise.serving.job import ServeJob, no_room_text
from flopwise.serving.memory import default_batch, generates, rank_budget
from flopwise.serving.open_loop import SteadyCurves
from flopwise.serving.sim.cost import StepCost, seen_pairs
from flopwise.serving.sim.trace import PS, Column
from flopwise.serving.steady import STEP_IN_PROGRESS, Steady, chunk_tokens, micro_batches, steps_unseen
from flopwise.serving.techniques import TechniqueRunner, memory_changes, request_work, runner
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from flopwise.serving.memory import ServingLayout

ENDLESS = 2**40
"""Blocks or tokens that no trace asks for."""
MOST_BATCH = 2**20 - 1
"""Sequences that one replica can run."""
HOST_BYTES_PER_S = 25e9
"""Rate of a device's link to its host where none is known: PCIe 4.0 x16, as copies reach it."""
EXACT_TOKENS, EVERY_TOKENS = 1024, 64
"""Steps of up to so many tokens are timed one by one, larger ones at multiples: kernels come in tiles of that size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStore:
    """Memory below a replica's device that holds blocks of cache, and the link that brings them back.

    Raises: SpecError: a number out of range.
    """

    blocks: int
    block_ps: int  # bringing one back; blocks follow one another
    latency_ps: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if min(self.blocks, self.block_ps, self.latency_ps) < 0:
            raise SpecError(f"a store of {self.blocks} blocks, {self.block_ps} ps each; allowed: from 0")


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
    ahead: bool = False  # what a step does is decided when the one before it begins
    mix: bool = True  # prompts and decoding share steps; False: prompts go first, in steps of their own
    preempt: str = "recompute"  # what becomes of a sequence that there are no blocks for
    swap_ps_per_block: int = 0  # moving one block to the host or back
    prefix_cache: bool = False
    shared_tokens: int = 0  # with which all prompts begin
    hit_frac: float = 0.0  # of the tokens of every prompt, found in the cache whoever put them there
    proposals: int = 0  # tokens that a draft proposes a step
    acceptance: float = 0.0  # probability of each of them
    stores: tuple[BlockStore, ...] = ()  # where prefixes go that the cache has no room for, the nearest first

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

    def check(self, cost: StepCost) -> None:
        """Refuse tables that are too short for these limits."""
        tokens = max(self.step_tokens, self.max_batch) + (cost.decode_tokens - 1) * self.max_batch
        if len(cost.tokens_ps) <= tokens or cost.batches <= self.max_batch:
            raise SpecError(
                f"step costs for {len(cost.tokens_ps) - 1:,} tokens and {cost.batches - 1:,} sequences; "
                f"the limits allow {tokens:,} and {self.max_batch:,}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A deployment as the simulator sees it: schedulers that work side by side, alike."""

    cost: StepCost
    limits: ReplicaLimits
    block_bytes: float  # of all its devices, for one block of a scheduler
    schedulers: int  # that one deployment of the job makes: attention replicas, micro-batches of a pipeline


def replica(
    job: ServeJob, *, context: int | None = None, longest: int | None = None, step_tokens: int | None = None,
    max_tokens: int | None = None, kernels: KernelTimes | None = None,
) -> Replica:  # fmt: skip
    """Step costs and limits of a job: `context` is what one sequence holds on average (None: the job's request).

    `longest`: tokens for which the share of a micro-batch in the cache has room (None: as `context`). `kernels`: times
    of kernels that are known, of jobs that differ in `HOST_TIMES` of their engine and in their request alone; those of
    this job are added.

    Attention replicas (dp) have a scheduler each; so has each micro-batch of a pipeline, as a step of it passes through
    all stages while the other micro-batches are in the others: as many as stages, but no more than requests have room.

    Source: `flopwise.serving.memory` for blocks, data/engines.json for batch and tokens a step, step costs from
    `flopwise.serving.iteration`; pipelines as `flopwise.serving.steady.micro_batches`.
    Assumes: blocks hold what a sequence of `context` tokens needs on average, windows and states included; how many of
    them answers fill as they grow is simulated, so they are those of whole contexts. Engines that reserve them start
    no more requests than have room as a whole, of the mean length. Engines that work through whole
    prompts take the longest (`max_tokens`, or the job's context) in a step. Where drafts speculate, one token of the
    simulator's is a step that brings several, and a sequence holds as many more as it does on average.
    Models that answer in one pass: `_one_pass_replica`.
    Raises: InfeasibleError: weights leave no room for one sequence; SpecError: an encoder besides a decoder.
    """
    check(job)
    if not generates(job.model):
        return _one_pass_replica(job, max(max_tokens or 0, job.input_tokens))
    row, how = job.software, job.techniques
    memory = job_memory(
        job, concurrency=None, context=context or job.context, answer=0, prefill_tokens=None,
        changes=replace(memory_changes(job), shared_tokens=0),
    )  # fmt: skip
    _, steps = request_work(job)  # the simulator counts a cached token for each step, half of an answer on average
    counted_frac = (job.input_tokens + steps / 2) / (job.input_tokens + job.output_tokens / 2)
    blocks = int(memory.kv_capacity_tokens * counted_frac) // row.block_tokens
    room = blocks // -(-(longest or context or job.context) // row.block_tokens)
    parts = 1 if row.serial else max(1, min(int(job.layout.pp), room))
    blocks //= parts
    given = job.max_batch or int(default_batch(job.model, row, job.layout.dp))
    whole = memory.max_whole_contexts if row.reserves else given
    most = max(int(min(given, whole, memory.max_states)) // parts, 1)
    if not int(memory.max_concurrency) or not blocks:
        raise InfeasibleError(no_room_text(job, context or job.context))
    rates = job.cluster.rates
    host_bytes_per_s = host_link_bytes_per_s(rates) if rates.host_link_bytes_per_s else HOST_BYTES_PER_S
    budget = (
        step_tokens or int(rank_budget(row, row.prefill_tokens, job.layout.dp)) or max(max_tokens or 0, job.context)
    )
    drafts = how.speculation
    limits = ReplicaLimits(
        max_batch=most, step_tokens=budget, ahead=row.plans_ahead, block_tokens=row.block_tokens, num_blocks=blocks,
        max_tokens=max_tokens or ENDLESS, shared_tokens=how.shared_tokens, hit_frac=how.hit_frac,
        swap_ps_per_block=round(float(memory.kv_budget_bytes) / blocks / host_bytes_per_s * PS),
        proposals=0 if drafts is None else drafts.tokens, acceptance=0.0 if drafts is None else drafts.acceptance,
    )  # fmt: skip
    cost = step_costs(job, limits, kernels)
    block_bytes = float(memory.kv_budget_bytes) / (blocks * parts) * int(job.layout.tp) * int(job.layout.pp)
    return Replica(cost=cost, limits=limits, block_bytes=block_bytes, schedulers=int(job.layout.dp) * parts)


def step_costs(job: ServeJob, limits: ReplicaLimits, kernels: KernelTimes | None = None) -> StepCost:
    """Step costs of a job that generates, with the limits of its `replica`; `kernels`: as there.

    Raises: SpecError: an encoder besides a decoder.
    """
    longest = max(limits.max_tokens if limits.max_tokens < ENDLESS else 0, job.context)
    cost = _step_cost(
        runner(job), job.layout, max_batch=limits.max_batch, step_tokens=limits.step_tokens, context=longest,
        kernels=kernels,
    )  # fmt: skip
    return loaded_cost(cost, job)


def _one_pass_replica(job: ServeJob, longest: int) -> Replica:
    """A replica of a model that answers in one pass: prompts alone, in steps of as many inputs as a batch takes.

    What waits when a batch ends goes into the next, up to the engine's tokens and inputs of a batch.

    Source: text-embeddings-inference, router and core/src/queue.rs: a batch takes what waits, up to max_batch_tokens
    and max_batch_requests; data/engines.json. Assumes: an input that a batch has no whole room for begins in it;
    nothing is padded.
    """
    machine, row = runner(job), job.software
    memory = job_memory(job, concurrency=None)
    most = int(min(memory.max_concurrency, job.max_batch or row.max_batch, row.max_batch))
    if most < 1:
        raise InfeasibleError(no_room_text(job, job.context))
    tokens = max(job.input_tokens, 1)
    whole = min(most, int(row.most_inputs(tokens)))
    budget = max(whole * tokens, longest) if row.pass_tokens else max(most * tokens, longest)
    timed = _TimedPasses(machine, job.layout, tokens)
    prefill = timed.prefill(whole, longest)
    every = max(tokens, EVERY_TOKENS)
    grid = ascending(np.r_[1 : min(budget, tokens) + 1, tokens : budget + 1 : every, budget])
    tokens_s = np.interp(np.arange(1, budget + 1), grid, timed.beside_attention_s(grid, prefill))
    nothing = np.zeros(most + 1, dtype=np.int64)
    engine = machine.engine
    cost = StepCost(
        tokens_ps=np.maximum(_table(tokens_s), 1) * (np.arange(budget + 1) > 0), decode_ps=nothing, cached_ps=nothing,
        window_ps=nothing, window=timed.window, prefill=prefill,
        request_ps=round(engine.request_s * PS), front_ps=round(engine.front_s * PS),
        front_token_ps=round(engine.front_token_s * PS), stream_ps=round(engine.stream_s * PS),
    )  # fmt: skip
    limits = ReplicaLimits(max_batch=min(most, budget), step_tokens=budget, block_tokens=1)
    return Replica(cost=cost, limits=limits, block_bytes=0.0, schedulers=int(job.layout.dp))


class _LoadedScheduler(NamedTuple):
    """One scheduler of a job under its load, on average."""

    machine: Runner
    steady: Steady
    others: float  # the chance that another answer is under way: of users in a closed loop, those of all others are
    prompts: float  # that come during a step


def _loaded_scheduler(job: ServeJob) -> _LoadedScheduler | None:
    """The steady state of as many sequences as the job has users, or as its rate keeps under way; None without.

    Source: `closed_loop` and `SteadyCurves`. Assumes: as there.
    """
    if not generates(job.model) or (job.concurrency is None and job.arrivals_per_s is None):
        return None
    machine, shape = runner(job), request_work(job)
    most, ranks = float(max(int(job_memory(job, concurrency=None).max_concurrency), 1)), int(job.layout.dp)
    if job.arrivals_per_s is None:
        users = min(float(-(-(job.concurrency or 1) // ranks)), most)
        steady = closed_loop(machine, job.layout, users, *shape)
        return _LoadedScheduler(machine, steady, min(users - 1.0, 1.0), users / shape[1])
    curves = SteadyCurves.up_to(machine, job.layout, most, *shape)
    steady = curves.at(np.array([[min(job.arrivals_per_s / ranks, curves.most_per_s)]])).steady
    batch = float(np.ravel(steady.batch)[0])
    return _LoadedScheduler(machine, steady, -math.expm1(-batch), batch / shape[1])


def loaded_cost(cost: StepCost, job: ServeJob, share: float = 1.0) -> StepCost:
    """Step costs of a scheduler under the job's load: what the simulator, which plays it alone, does not see.

    `share`: of the requests, those that wait for the scheduler to look at them.
    """
    row = job.software
    joined = int(job.layout.dp) > 1 and job.model.has_experts
    waits = row.recv_interval > 1 or row.batch_wait > 0 or (joined and row.joins_prompts)
    load = _loaded_scheduler(job) if waits or joined else None
    if load is None:
        return cost
    if joined and not row.joins_prompts:
        cost = _joined_cost(cost, load, job)
    return replace(cost, request_ps=cost.request_ps + round(share * _unseen_s(load, job) * PS)) if waits else cost


def _joined_cost(cost: StepCost, load: _LoadedScheduler, job: ServeJob) -> StepCost:
    """The costs of one of the job's attention replicas that share experts, and so begin and end their steps together.

    A step in which a replica only decodes lasts as long as its own prompts' would where another one reads prompts. Few
    replicas read prompts at once, so that experts see fewer tokens than where all do, as the tables have it.

    Source: as of `closed_loop`, whose share of steps with prompts on any replica this gives on average; LMSYS,
    Large-scale expert parallelism on 96 H100 (2025-05-05), "DP Attention Imbalance".
    Assumes: prompts come to replicas independently of each other; steps beside another's prompts are as long as such
    steps are on average, and spread evenly over all.
    """
    steady, machine, ranks = load.steady, load.machine, int(job.layout.dp)
    share = float(np.ravel(steady.prefill_share)[0])
    own = 1.0 - (1.0 - share) ** (1.0 / ranks)
    beside = 1.0 - (1.0 - own) ** (ranks - 1)
    if machine.engine.mixes:  # a step with prompts of its own decodes, too
        beside *= 1.0 - own
    longer_s = beside * max(float(np.ravel(steady.mixed.seconds - steady.decode.seconds)[0]), 0.0)
    tokens = float(np.ravel(chunk_tokens(machine, job.layout, float(job.input_tokens)))[0])
    reading = StepLoad(prefill_tokens=tokens, prefill_context=tokens)
    few = replace(reading, prefill_ranks=max(1.0, ranks * own / max(share, 1e-9)))
    every_s, few_s = (float(np.ravel(machine.step(one, job.layout).seconds)[0]) for one in (reading, few))
    less_ps = (every_s - few_s) / tokens * PS * np.arange(len(cost.tokens_ps))  # of prompts alone: all decode
    batch = np.arange(len(cost.decode_ps)) % cost.batches
    decoding_ps = less_ps[batch * cost.decode_tokens] + (batch > 0) * longer_s * PS
    return replace(
        cost, tokens_ps=np.maximum(cost.tokens_ps - np.rint(less_ps).astype(np.int64), cost.tokens_ps > 0),
        decode_ps=cost.decode_ps + np.rint(decoding_ps).astype(np.int64),
    )  # fmt: skip


def _unseen_s(load: _LoadedScheduler, job: ServeJob) -> float:
    """The mean wait of a request for a scheduler that has not seen it yet, beyond the simulated wait, in s.

    The simulator plays the rest of the step that runs when a request comes, and the next where the engine has planned
    it already. Nobody waits where no other answer is under way.

    Source: `flopwise.serving.steady.steps_unseen`. Assumes: steps are those of `_loaded_scheduler`.
    """
    machine, steady = load.machine, load.steady
    parts = float(np.ravel(micro_batches(machine, job.layout, steady.batch))[0])
    row = machine.engine
    steps = steps_unseen(row, load.prompts / parts, int(job.layout.dp)) - STEP_IN_PROGRESS - row.plans_ahead
    return float(steps) * load.others * float(np.ravel(steady.mean_step_s)[0])


def _step_cost(
    runner: Runner, layout: ServingLayout, *, max_batch: int, step_tokens: int, context: int,
    kernels: KernelTimes | None,
) -> StepCost:  # fmt: skip
    """Tables of a replica that runs up to `max_batch` sequences of up to `context` tokens, `step_tokens` a step.

    Source: `flopwise.serving.iteration.Runner.step`, timed at a few hundred loads and interpolated.
    Assumes: text only: no image or sound is encoded. Attention over the cache is linear in the tokens cached, and that
    of prompts in tokens and pairs (least squares of relative errors over contexts up to `context`). Chunked layers are
    taken as windowed ones; where windows differ, as the widest.
    Raises: SpecError: a model that does not decode from a cache, or that has an encoder besides.
    """
    if not generates(runner.model) or runner.model.kind == "encoder-decoder":
        raise SpecError(f"{runner.model.name} is not a decoder: the simulator runs models that generate")
    timed = _Timed(runner, layout, kernels)
    most = max(step_tokens, max_batch) + (timed.each - 1) * max_batch
    grid = ascending(np.r_[1 : min(most, EXACT_TOKENS) + 1, EXACT_TOKENS : most + 1 : EVERY_TOKENS, most])
    batch, graph_tokens = np.arange(1, max_batch + 1), runner.engine.prompt_graph_tokens
    rests = timed.rests(grid, batch, np.array([1, graph_tokens + 1]))
    tokens_s = np.interp(np.arange(1, most + 1), grid, rests.tokens_s)
    fixed_s, *slopes = timed.decode_s(batch, context, tokens_s, rests.rows_s)
    decoding = [(fixed_s + timed.outgrown_s(batch), *slopes)]
    if shares_calls(runner.engine, runner.model, runner.kv_dtype) or decodes_in_blocks(runner.engine, runner.model):
        rows_s = timed.rows_s(batch, beside_prompts=True)
        decoding.append(timed.decode_s(batch, context, tokens_s, rows_s, beside_prompts=True))
    decode, cached, window = (np.concatenate([_table(part) for part in parts]) for parts in zip(*decoding, strict=True))
    launch_ps, beyond_ps = rests.launch_ps
    return StepCost(
        tokens_ps=np.maximum(_table(tokens_s), 1) * (np.arange(most + 1) > 0), decode_ps=decode,
        cached_ps=cached, window_ps=window, window=timed.window, beside=len(decode) - max_batch - 1,
        prefill=timed.prefill(step_tokens, context), request_ps=round(runner.engine.request_s * PS),
        decode_tokens=timed.each, front_ps=round(runner.engine.front_s * PS),
        front_token_ps=round(runner.engine.front_token_s * PS), stream_ps=round(runner.engine.stream_s * PS),
        launch_ps=launch_ps, graph_tokens=graph_tokens, beyond_ps=beyond_ps,
        tokens_after_launch=runner.engine.tokens_after_launch,
    )  # fmt: skip


def _table(seconds: Array) -> Column:
    """Picoseconds, with the entry of nothing before them."""
    return np.concatenate([[0], np.rint(seconds * PS).astype(np.int64)])


def _side_by_side(loads: Sequence[StepLoad]) -> StepLoad:
    """Loads in columns, one after the other."""
    names = ("decode_batch", "decode_context", "prefill_tokens", "prefill_context", "prompts")
    each = [np.broadcast_arrays(*(getattr(load, name) for name in names)) for load in loads]
    columns: dict[str, Any] = {
        name: np.concatenate(parts) for name, parts in zip(names, zip(*each, strict=True), strict=True)
    }
    return StepLoad(only_seconds=True, **columns)


T = TypeVar("T")
KernelTimes = dict[tuple[object, ...], Any]
"""What a device does in some steps, by their loads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RememberingRunner(Runner):
    """A runner that times the kernels of a load once."""

    kernels: KernelTimes

    def device_step(self, load: StepLoad, split: ServingLayout) -> tuple[StepTime, Floats]:
        """As of `Runner`. Source, Assumes: the same."""
        if (key := _load_key(load)) not in self.kernels:
            self.kernels[key] = Runner.device_step(self, load, split)
        found: tuple[StepTime, Floats] = self.kernels[key]
        return found

    def kernels_of(
        self, items: Sequence[Item], load: StepLoad, split: ServingLayout, *, inside: bool
    ) -> Iterator[TimedKernel]:
        """As of `Runner`. Source, Assumes: the same."""
        if (key := (tuple(items), inside, *_load_key(load))) not in self.kernels:
            self.kernels[key] = tuple(Runner.kernels_of(self, items, load, split, inside=inside))
        found: tuple[TimedKernel, ...] = self.kernels[key]
        return iter(found)


def _load_key(load: StepLoad) -> tuple[object, ...]:
    """The numbers of a load, which may be columns."""
    given = (getattr(load, one.name) for one in fields(load))
    return tuple((one.shape, one.dtype.str, one.tobytes()) if isinstance(one, np.ndarray) else one for one in given)


def _prompt_of(tokens: Array) -> StepLoad:
    """Steps of so many tokens of one prompt."""
    return StepLoad(prefill_tokens=tokens, prefill_context=tokens, prompts=1.0, only_seconds=True)


class _Rests(NamedTuple):
    """Seconds of steps without their attention, and the least time of steps that are launched."""

    tokens_s: Array  # of so many tokens of one prompt
    rows_s: Array  # that decode so many sequences
    launch_ps: list[tuple[int, int]]


class _Timed:
    """Seconds of the parts of a step, by load.

    Of a runner with techniques, tokens are timed without drafts; what techniques add to a step that decodes, or reads
    prompts, counts with what is cached, so that it is as long as `TechniqueRunner.step`.
    """

    def __init__(self, runner: Runner, layout: ServingLayout, kernels: KernelTimes | None) -> None:
        self.layout, self.each, self.whole, self.given = layout, 1, None, runner
        self.kernels: KernelTimes | None = None
        plain = replace(runner.engine, grouped_gathers=False)  # what prompts alone take longer is counted with them
        if runner.engine.graphs:  # launching is counted apart
            plain = replace(
                plain, prompt_graphs=True, eager_prompts=frozenset(), prompt_graph_tokens=0, piecewise=False,
                graph_batch=0, wide_graph_batch=0,
            )  # fmt: skip
        runner = replace(runner, engine=plain)
        if isinstance(runner, TechniqueRunner):
            self.whole, self.each = replace(runner, cached_tokens=0.0), 1 + runner.proposals
            runner = replace(runner, draft=None, proposals=0, cached_tokens=0.0, grown_tokens=0.0, kept_frac=1.0)
        elif kernels is not None:
            given = {one.name: getattr(runner, one.name) for one in fields(runner) if one.init}
            runner = _RememberingRunner(**given, kernels=kernels)
            self.kernels = kernels
        self.runner = runner
        self.attention = [
            (item, count, bool(item.window or item.chunk) and not item.compress)
            for kind, count in layer_kinds(runner.model.stacks[0])
            for item in kind.items
            if isinstance(item, Attend)
        ]
        reaches = (int(item.window or item.chunk or 0) for item, _, windowed in self.attention if windowed)
        self.window = max(reaches, default=0)

    def _kernels_alone(self, make: Callable[..., T], *given: Any) -> T:
        """The value of a function of kernels, which the host's times do not change: remembered where kernels are."""
        if self.kernels is None:
            return make(*given)
        key = (make.__name__, *(one.tobytes() if isinstance(one, np.ndarray) else one for one in given))
        if key not in self.kernels:
            self.kernels[key] = make(*given)
        found: T = self.kernels[key]
        return found

    def attention_s(self, load: StepLoad, *, windowed: bool) -> Floats:
        """Attention of all layers of one sort."""
        total: Floats = 0.0
        for item, count, sort in self.attention:
            if sort == windowed:
                kernels = self.runner.kernels_of((item,), load, self.layout, inside=True)
                total = total + count * sum((k.seconds * (np.asarray(k.work.flops) > 0) for k in kernels), start=0.0)
        return total

    def beside_s(self, load: StepLoad, *, windowed: bool) -> Floats:
        """The time of a step beside its tokens by what is cached: attention in layers with windows, or the rest."""
        how = self.whole
        if how is None:
            return self.attention_s(load, windowed=windowed)
        cached = (load.decode_context + how.grown_tokens) * how.kept_frac + how.proposals
        inside = self.attention_s(replace(load, decode_context=cached, decode_tokens=self.each), windowed=True)
        if windowed:
            return inside
        tokens = load.decode_batch * self.each + load.prefill_tokens
        whole = how.step(replace(load, only_seconds=True), self.layout).seconds
        rest: Floats = whole - self.tokens_s(np.asarray(tokens)) - inside
        return np.maximum(rest, 1.0 / PS)

    def rests(self, tokens: Array, batch: Array, launched: Array) -> _Rests:
        """Steps of so many tokens, steps that decode so many, and steps that are launched: timed side by side."""
        prompts, decoding = np.tile(launched, 2), np.repeat([0, 1], len(launched))
        launches = StepLoad(
            prefill_tokens=prompts, prefill_context=prompts, decode_batch=decoding, decode_context=decoding
        )
        load = _side_by_side((_prompt_of(tokens), StepLoad(decode_batch=batch, decode_context=1024), launches))
        step = self.runner.step(load, self.layout)
        tokens_s, rows_s, _ = np.split(self._rest_s(step, load), [len(tokens), len(tokens) + len(batch)])
        own = StepTime(
            *(part[-len(prompts) :] if isinstance(part, np.ndarray) and part.ndim else part for part in step)
        )
        return _Rests(tokens_s, rows_s, self._launch_ps(own, launches, len(launched)))

    def outgrown_s(self, batch: Array) -> Array:
        """Seconds that steps wait for their launches which decode alone, and more sequences than graphs hold.

        Source: `flopwise.serving.iteration.Runner.largest_graph`. Assumes: as long as with 1024 tokens cached of
        each, as `rests`: with more, the device is busy longer, so that they wait less. None where drafts are verified.
        """
        if self.whole is not None or not np.any(self.given.largest_graph(self.layout)):
            return np.zeros(len(batch))
        sizes = {name: getattr(self.given.engine, name) for name in ("graph_batch", "wide_graph_batch")}
        limited = replace(self.runner, engine=replace(self.runner.engine, **sizes))
        load = StepLoad(decode_batch=batch, decode_context=1024, only_seconds=True)
        step, captured = (np.asarray(one.step(load, self.layout).seconds) for one in (limited, self.runner))
        waits: Array = np.maximum(step - captured, 0.0)
        return waits

    def _launch_ps(self, step: StepTime, load: StepLoad, count: int) -> list[tuple[int, int]]:
        """Least time of steps with so many tokens of prompts or more, and what is added if sequences decode in them.

        It is what the host takes to launch the operations that graphs do not hold, and what nothing hides, as of
        `StepCost.launch_ps`: none where nothing is launched. Of `count` prompts those alone, and those that decode.
        """
        machine = self.given
        if not machine.engine.graphs:
            return [(0, 0)] * count
        launching_s = machine.launching_s(step, load, self.layout)
        hops_s = machine.pipeline_s(load, self.layout, machine.model.stacks[0].width)
        least_s = launching_s + hops_s + machine.between_steps_s(load, self.layout, step.read_bytes)
        few_s, many_s = np.where(launching_s > 0, least_s, 0.0).reshape(2, count)
        return [(round(few * PS), round((many - few) * PS)) for few, many in zip(few_s, many_s, strict=True)]

    def tokens_s(self, tokens: Array) -> Array:
        """Steps of so many tokens of one prompt, without their attention."""
        load = _prompt_of(tokens)
        return self._rest_s(self.runner.step(load, self.layout), load)

    def rows_s(self, batch: Array, *, beside_prompts: bool) -> Array:
        """Steps that decode so many sequences, without their attention, beside prompts or not."""
        load = StepLoad(decode_batch=batch, decode_context=1024, beside_prompts=beside_prompts, only_seconds=True)
        return self._rest_s(self.runner.step(load, self.layout), load)

    def _rest_s(self, step: StepTime, load: StepLoad) -> Array:
        """A step without its attention."""
        seconds = step.seconds - self.attention_s(load, windowed=False) - self.attention_s(load, windowed=True)
        return np.asarray(seconds)

    def decode_s(
        self, batch: Array, context: int, tokens_s: Array, rows_s: Array, *, beside_prompts: bool = False
    ) -> tuple[Array, Array, Array]:
        """Fixed seconds, seconds a cached token and a token in the window, by batch.

        `tokens_s`: of steps by tokens, from 1; `rows_s`: of those that decode, by batch. `beside_prompts`: these read
        prompts, too.
        """
        fixed, cached, window = self._kernels_alone(self._beside_lines, batch, context, beside_prompts)
        if self.whole is None:  # each sequence has a row of the head; of a whole step they are a part already
            fixed = fixed + np.maximum(rows_s - tokens_s[: len(batch)], 0.0)
        return fixed, cached, window

    def _beside_lines(self, batch: Array, context: int, beside_prompts: bool) -> tuple[Array, Array, Array]:
        """Seconds that decoding takes beside its tokens: as of `decode_s`."""
        fixed, slopes = np.zeros(len(batch)), []
        for windowed, longest in ((False, context), (True, min(self.window or 1, context))):
            contexts = ascending(np.geomspace(min(128, longest), longest, 7).astype(np.int64))
            load = StepLoad(
                decode_batch=batch[:, None], decode_context=contexts[None, :], beside_prompts=beside_prompts
            )
            seconds = np.broadcast_to(self.beside_s(load, windowed=windowed), (len(batch), len(contexts)))
            each, slope = _lines(contexts.astype(np.float64), seconds)
            fixed = fixed + each
            slopes.append(slope / batch)
        return fixed, slopes[0], slopes[1]

    def _grouped_s(self, load: StepLoad) -> Floats:
        """By which messages of prompts are longer where ranks with unequal tokens group broadcasts and reductions."""
        if not self.given.engine.grouped_gathers:
            return 0.0
        return self.given.sent_s(load, self.layout) - self.runner.sent_s(load, self.layout)

    def prefill(self, step_tokens: int, context: int) -> tuple[int, int, int, int]:
        """Coefficients of prompts' attention, as `StepCost.prefill`."""
        return self._kernels_alone(self._attention_coefficients, step_tokens, context)

    def _attention_coefficients(self, step_tokens: int, context: int) -> tuple[int, int, int, int]:
        """As of `prefill`.

        Pieces count by their tokens: prompts that are longer than a step go through full ones but for their last piece.
        Tiles of a piece of some hundred tokens fill the device badly, so that no line in the pairs fits both.
        """
        chunks = ascending(np.geomspace(min(64, step_tokens), min(step_tokens, context), 8).astype(np.int64))
        chunk, before = (a.ravel() for a in np.meshgrid(chunks, np.r_[0, np.geomspace(128, context, 6)].astype(int)))
        chunk, before = chunk[chunk + before <= context], before[chunk + before <= context]
        load = StepLoad(prefill_tokens=chunk, prefill_context=chunk + before, prompts=1.0)
        coefficients = np.zeros(4)
        for place, windowed in ((2, False), (3, True)):
            seconds = np.broadcast_to(self.beside_s(load, windowed=windowed), chunk.shape)
            if not windowed:
                seconds = seconds + self._grouped_s(load)
            reach = self.window if windowed else 0
            rows = zip(before.tolist(), chunk.tolist(), strict=True)
            pairs = np.array([seen_pairs(b, c, reach) for b, c in rows], dtype=np.float64)
            if np.any(seconds):
                columns = np.stack([np.ones(len(chunk)), chunk, pairs], axis=1)
                coefficients[[0, 1, place]] += _positive(columns, seconds, weights=chunk)
        a, b, c, d = (coefficients * [PS, PS, 1000 * PS, 1000 * PS]).round().astype(np.int64).tolist()
        return a, b, c, d


class _TimedPasses(_Timed):
    """Seconds of the parts of a pass over inputs of `tokens` each, and shorter ones."""

    def __init__(self, runner: Runner, layout: ServingLayout, tokens: int) -> None:
        super().__init__(runner, layout, None)
        self.runner, self.tokens, self.model = runner, tokens, runner.model

    def beside_attention_s(self, tokens: Array, prefill: tuple[int, int, int, int]) -> Array:
        """Passes over so many tokens less what `prefill` counts: inputs of the usual length take what they do."""
        inputs, length = np.maximum(tokens / self.tokens, 1.0), np.minimum(tokens, self.tokens)
        whole = self.runner.step(whole_prompts(self.model, inputs, length), self.layout).seconds
        step_s, token_s, pair_s, near_s = np.asarray(prefill) / [PS, PS, 1000 * PS, 1000 * PS]
        pairs, near = (
            inputs * np.array([float(seen_pairs(0, n, reach)) for n in length.tolist()]) for reach in (0, self.window)
        )
        counted = step_s + token_s * tokens + pair_s * pairs + (near_s * near if self.window else 0.0)
        beside: Array = np.maximum(np.asarray(whole) - counted, 1.0 / PS)
        return beside

    def _grouped_s(self, load: StepLoad) -> Floats:
        """By which messages of prompts are longer where ranks with unequal tokens group broadcasts and reductions."""
        if not self.given.engine.grouped_gathers:
            return 0.0
        return self.given.sent_s(load, self.layout) - self.runner.sent_s(load, self.layout)

    def prefill(self, step_tokens: int, context: int) -> tuple[int, int, int, int]:
        """Coefficients of attention in passes over up to `step_tokens` inputs of up to `context` tokens."""
        lengths = ascending(np.r_[np.geomspace(min(16, context), context, 7), self.tokens].astype(np.int64))
        counts = ascending(np.geomspace(1, step_tokens, 5).astype(np.int64))
        length, inputs = (a.ravel() for a in np.meshgrid(lengths, counts))
        load, coefficients = whole_prompts(self.model, inputs, length), np.zeros(4)
        for place, windowed in ((2, False), (3, True)):
            seconds = np.broadcast_to(self.attention_s(load, windowed=windowed), length.shape)
            reach = self.window if windowed else 0
            pairs = inputs * np.array([float(seen_pairs(0, n, reach)) for n in length.tolist()])
            if np.any(seconds):
                columns = np.stack([np.ones(len(length)), inputs * length, pairs], axis=1)
                coefficients[[0, 1, place]] += _positive(columns, seconds, weights=np.ones(len(length)))
        a, b, c, d = (coefficients * [PS, PS, 1000 * PS, 1000 * PS]).round().astype(np.int64).tolist()
        return a, b, c, d


def _lines(x: Array, y: Array) -> tuple[Array, Array]:
    """Intercept and slope, neither negative, of each row of `y` over `x`; relative errors count alike."""
    if not np.any(y):
        return np.zeros(len(y)), np.zeros(len(y))
    weight = 1.0 / y**2
    total, mean_x, mean_y = weight.sum(1), (weight * x).sum(1), (weight * y).sum(1)
    spread = (weight * x * x).sum(1) * total - mean_x**2
    slope = ((weight * x * y).sum(1) * total - mean_x * mean_y) / np.where(spread > 0, spread, 1.0)
    slope = np.maximum(slope, 0.0)
    fixed = (mean_y - slope * mean_x) / total
    through_zero = (weight * x * y).sum(1) / (weight * x * x).sum(1)
    return np.maximum(fixed, 0.0), np.where(fixed < 0, through_zero, slope)


def _positive(columns: Array, seconds: Array, *, weights: Array) -> Array:
    """Coefficients of the columns, none negative, with the least squares of relative errors times their weights."""
    used = list(range(columns.shape[1]))
    coefficients: Any = np.zeros(columns.shape[1])
    share = weights / np.max(weights)
    while used:
        relative = columns[:, used] * (share / seconds)[:, None]
        scale = np.abs(relative).max(0)
        part = np.linalg.lstsq(relative / scale, share, rcond=None)[0]
        if np.all(part >= 0):
            coefficients[used] = part / scale
            break
        used.pop(int(np.argmin(part)))
    return np.asarray(coefficients)
