"""Deployments of a service, a batch job or an encoder: layouts x formats x batch sizes on a node, in columns."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, fields
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from flopwise.cost.cluster import Cluster
from flopwise.cost.energy import device_watts
from flopwise.cost.intervals import ErrorBand
from flopwise.cost.money import num_instances
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.formats import CacheFormat, WeightFormat
from flopwise.facts.software import Engine
from flopwise.facts.storage import Storage
from flopwise.ops.flops import stack_shape, stack_works
from flopwise.search.joined_replicas import JoinedReplicas, JoinedRunner, TimedReplicas, rows_of
from flopwise.search.nodes import NodeKind
from flopwise.search.replica import DEGREES, answers_in_one_pass, replica_job
from flopwise.search.session_caches import LayoutCaches, cache_hits
from flopwise.search.space import powers_of_two
from flopwise.search.workload import Resolved
from flopwise.serving.closed_loop import closed_loop
from flopwise.serving.disaggregated import PooledReplicas, pooled_users, prefill_layout
from flopwise.serving.iteration import StepTime, whole_prompts
from flopwise.serving.job import ServeJob, serving_band
from flopwise.serving.memory import (
    ServingLayout,
    ServingMemory,
    StepMemory,
    rank_budget,
    serving_memory,
    weights_per_gpu,
)
from flopwise.serving.open_loop import Percentile, SteadyCurves, batch_sizes
from flopwise.serving.precision import ComputePath, product_path
from flopwise.serving.sessions import SessionTraffic
from flopwise.serving.startup import cold_start
from flopwise.serving.steady import Steady
from flopwise.serving.techniques import (
    cached_tokens,
    memory_changes,
    percentile_tpot_s,
    request_work,
    runner,
    tokens_a_round,
)
from flopwise.serving.waiting_batches import WaitingBatches, one_pass_latency_s
from flopwise.training.start import OBJECT_STORE
from flopwise.units import format_bytes
from flopwise.values import dataclass, replace

Floats = NDArray[np.floating[Any]]
Column = NDArray[np.int64]
MAX_TP = 16
MAX_PP = 8
MAX_REPLICA_GPUS = 64
KEPT_SIZED = 512
"""Answers of `sized_replicas` that are kept: what services alike are searched on one after another."""
KEPT_TOGETHER = 32
"""Joined replicas that are kept: those of a question that differs from the last one in rate, targets or prices."""
JOINED_ROWS = 2**14
"""Rows of replicas that are timed at once: a formula takes them in one piece, whose results a cache holds."""
READ_TOGETHER = 64
"""Replicas of so many questions are read from their curves at once: their tables fit a cache of a few megabytes."""
PREFILL_BUSY = 0.85
"""Share of its time that a replica may spend on prompts before queues grow out of hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployments:
    """Candidate replicas of one format on one kind of node, each at one batch size; arrays of one length.

    `replicas` is how many carry the workload; latencies are those at the target percentile.
    """

    weights: WeightFormat
    path: ComputePath
    tp: Column
    pp: Column
    ep: Column
    dp: Column
    num_layouts: int  # rows of one batch size after the other, each of so many layouts
    batch: Floats  # sequences in flight on one attention replica
    replicas: Floats
    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    least_ttft_s: Floats  # what datasheet rates allow
    least_tpot_s: Floats
    requests_per_s: Floats  # of one replica, at this batch
    tokens_per_s: Floats  # output (or encoded) tokens of all replicas under the workload
    memory_bytes: Floats
    prefill_gpus: Column  # of one replica, that work on prompts alone, beside those of its layout
    busy_frac: Floats
    watts_frac: Floats  # mean draw of a device over its power limit
    start_s: Floats  # of a batch: from machines that are paid to the first request; 0 of a service
    found_frac: Floats  # of prompt tokens, those of earlier turns that a cache still holds; 0 without sessions
    considered: int
    too_big: int
    room_text: Callable[[], str]  # what takes the room in the smallest layout that is too big, where any is
    bands: dict[str, ErrorBand] = field(default_factory=dict, compare=False)  # by quantity, filled in by who needs them


@lru_cache(maxsize=64)
def prompt_flops(model: Model, input_tokens: int) -> float:
    """Operations of one prompt before its first token: the layers only, hidden pairs left out.

    Source: `flopwise.ops.flops`. Assumes: nothing of the prompt is cached; the head is left out, as is an encoder.
    """
    stack = model.stacks[0]
    shape = stack_shape(model, stack, 1, input_tokens)
    parts = [(layers, works) for name, layers, works in stack_works(stack, shape) if name not in {"before", "after"}]
    return float(sum(layers * sum(float(work.causal_flops) for work in works) for layers, works in parts))


def least_prompt_s(model: Model, node: NodeKind, dtype: str, input_tokens: int, gpus: Floats) -> Floats:
    """Lower bound of the time of one prompt on replicas of `gpus` devices, in s; shape of `gpus`.

    Source: operations over the datasheet rate of all devices. Assumes: perfect sharing, no message, no overhead.
    """
    rate = node.cluster.rates.peak_flops_per_s(dtype)
    least: Floats = prompt_flops(model, input_tokens) / (rate * np.asarray(gpus, dtype=float))
    return least


def computed_prompt_tokens(workload: Resolved) -> int:
    """Tokens of a prompt that are not found in the cache.

    Source: `flopwise.serving.techniques.cached_tokens`.
    """
    if workload.sessions is not None:  # at least what is new in a turn
        sessions = workload.sessions
        return max(1, round(sessions.prompt_tokens - sessions.history_tokens - sessions.shared_tokens))
    shared, hit = workload.techniques.shared_prefix or 0, workload.techniques.prefix_hit or 0.0
    block, tokens = workload.engine.block_tokens, workload.input_tokens
    return max(1, round(tokens - float(cached_tokens(tokens, shared_tokens=shared, hit_frac=hit, block_tokens=block))))


def replica_grid(node: NodeKind, model: Model, max_gpus: int, *, spread: bool = True) -> ServingLayout:
    """Replicas worth estimating, in columns: `dp` attention replicas of `tp` ranks share experts spread over `ep`.

    tp stays inside a node; pp crosses nodes where they are networked, and so do attention replicas that share experts
    (`spread`: whether to try those). Experts are cut by tp, or whole ones are spread over all ranks.
    """
    stack = model.stacks[0]
    heads, experts = stack.fewest_heads or 1, stack.largest_experts.experts if stack.largest_experts else 0
    most = min(MAX_REPLICA_GPUS, max_gpus) if node.networked else min(node.count, max_gpus)
    stages = min(MAX_PP, stack.num_layers) if node.networked else 1
    return _grid(node.count, most, stages, heads, experts, spread=spread)


@lru_cache(maxsize=1024)
def _grid(count: int, most: int, stages: int, heads: int, experts: int, *, spread: bool) -> ServingLayout:
    """`replica_grid` of nodes with `count` devices, of at most so many devices and stages."""
    inside = min(count, MAX_TP)
    tp = powers_of_two(inside)
    tp = tp[(heads % tp == 0) & (tp <= max(inside, 1))]
    pp = powers_of_two(stages)
    dp = powers_of_two(most) if experts and spread else np.ones(1, dtype=np.int64)
    grid_tp, grid_pp, grid_dp = (g.ravel() for g in np.meshgrid(tp, pp, dp, indexing="ij"))
    gpus = grid_tp * grid_pp * grid_dp
    whole = (gpus <= count) | ((gpus % count == 0) & ((grid_tp == inside) | (grid_dp > 1)))
    keep = whole & (gpus <= most) & ((grid_pp == 1) | ((grid_tp == inside) & (grid_dp == 1)))
    grid_tp, grid_pp, grid_dp = (g[keep].astype(np.int64) for g in (grid_tp, grid_pp, grid_dp))
    ranks = grid_tp * grid_dp
    shared = experts > 0 and spread
    over = (ranks > 1) & (max(experts, 1) % ranks == 0) if shared else np.zeros(ranks.shape, dtype=bool)
    cut = grid_dp == 1  # attention replicas each have tokens of their own: their experts are spread
    return ServingLayout(
        tp=np.concatenate([grid_tp[cut], grid_tp[over]]),
        pp=np.concatenate([grid_pp[cut], grid_pp[over]]),
        ep=np.concatenate([np.ones(int(cut.sum()), dtype=np.int64), ranks[over]]),
        dp=np.concatenate([grid_dp[cut], grid_dp[over]]),
    )


def batches(most: Floats) -> Floats:
    """Batch sizes to try on replicas that hold up to `most` sequences: shape (sizes, replicas)."""
    steps = batch_sizes(float(most.max(initial=1.0)))
    sizes: Floats = np.minimum(steps[:, None], np.maximum(most, 1.0)[None, :])
    return sizes


def deployments(
    model: Model, workload: Resolved, node: NodeKind, weights: WeightFormat, kv_dtype: CacheFormat, *,
    least: float | Floats = 1.0,
) -> Deployments | None:  # fmt: skip
    """Every replica of `weights` on `node` at every batch, with the number that the workload takes; None without any.

    `least`: so many replicas at least, whether the workload takes them or not. Where the workload has its number of
    instances, as many as those hold.

    Raises:
        MissingFactError: the device lacks a rate that the format needs.
    """
    question = ReplicaQuestion.of(model, workload, node, weights, kv_dtype, least)
    (answer,) = deployments_together([(question, sized_replicas(question))])
    return answer


def deployments_together(answers: Sequence[tuple[ReplicaQuestion, Answer]]) -> list[Deployments | None]:
    """The deployments of each question with its answer; of one model, and of workloads with the same targets.

    Where requests arrive at a rate, what they see is read from the curves of many replicas at once.
    """
    columns: dict[int, dict[str, Any]] = {}
    arriving: dict[tuple[object, ...], list[tuple[int, ReplicaQuestion, SizedReplicas]]] = defaultdict(list)
    passes = _one_pass_steps(
        [(question, sized) for question, sized in answers if isinstance(sized, SizedReplicas) and sized.steady is None]
    )
    for place, (question, sized) in enumerate(answers):
        if not isinstance(sized, SizedReplicas):
            continue
        if sized.steady is None:
            columns[place] = _one_pass_columns(sized, question, passes[id(sized)])
        elif sized.job.techniques.prefill_gpus:
            users = question.workload.requests_per_s is None
            columns[place] = (_pooled_users_columns if users else _pooled_columns)(sized, question)
        elif question.workload.requests_per_s is None:
            columns[place] = _closed_columns(sized, sized.steady, question)
        else:
            flow, started = question.workload, sized.job.software  # its budget of a step goes by the device
            key = started.name, started.prefill_tokens, flow.requests_per_s, flow.techniques, flow.sessions
            arriving[key].append((place, question, sized))
    for group in arriving.values():
        for start in range(0, len(group), READ_TOGETHER):
            places, *members = zip(*group[start : start + READ_TOGETHER], strict=True)
            columns |= zip(places, _arriving_columns(*members), strict=True)
    results = list[Deployments | None]()
    for place, (question, sized) in enumerate(answers):
        if isinstance(sized, SizedReplicas):
            degrees: dict[str, Any] = {name: getattr(sized.job.layout, name) for name in DEGREES}
            bands = (
                {} if question.workload.techniques.any else sized.bands[question.workload.requests_per_s is not None]
            )
            known = {**sized.known, **degrees, **columns[place], "start_s": _start_s(sized, question), "bands": bands}
            results.append(Deployments(**known, num_layouts=sized.num_layouts, batch=sized.batch))
        else:
            results.append(sized)
    return results


def _start_s(sized: SizedReplicas, question: ReplicaQuestion) -> Floats:
    """The paid time of a batch job before its first request; nothing of a service."""
    return sized.start_s if question.workload.task == "batch" else np.zeros(sized.batch.size)


def _least(sized: SizedReplicas, question: ReplicaQuestion) -> float | Floats:
    """Replicas at least, or those that a given number of instances holds."""
    if question.workload.instances is None:
        return question.least
    pool = sized.job.techniques.prefill_gpus
    return _replicas_on(question.workload.instances, question.node.count, sized.job.layout.num_gpus, pool)


@dataclass(frozen=True, slots=True)
class ReplicaQuestion:
    """The arguments of `sized_replicas`; questions with the same key have the same answer."""

    key: tuple[object, ...]
    start: tuple[float, Storage]
    hashed: int  # of both
    model: Model = field(compare=False)
    workload: Resolved = field(compare=False)
    node: NodeKind = field(compare=False)
    weights: WeightFormat = field(compare=False)
    kv_dtype: CacheFormat = field(compare=False)
    least: float | Floats = field(compare=False)
    between: Floats | None = field(default=None, compare=False)  # further batches to try: (sizes, layouts that fit)

    @classmethod
    def of(
        cls, model: Model, workload: Resolved, node: NodeKind, weights: WeightFormat, kv_dtype: CacheFormat,
        least: float | Floats = 1.0,
    ) -> ReplicaQuestion:  # fmt: skip
        """The question that `deployments` asks."""
        key = (
            model, node.cluster, node.count, node.networked, weights, kv_dtype, workload.engine, workload.task,
            workload.input_tokens, workload.output_tokens, workload.max_gpus, workload.limits.memory_fraction,
        )  # fmt: skip
        start = (workload.facts.start_s("machine", "image"), workload.facts.storage(OBJECT_STORE))
        return cls(key, start, hash((key, start)), model, workload, node, weights, kv_dtype, least)

    def __hash__(self) -> int:
        """Taken once: a question is looked up several times, and its key is long."""
        return self.hashed

    @property
    def is_kept(self) -> bool:
        """True if other workloads may have the same answer: not where users are shared among the replicas."""
        users = self.workload.concurrency is not None and self.workload.requests_per_s is None
        plain = not self.workload.techniques.any and self.workload.sessions is None
        return self.between is None and plain and not users

    @property
    def is_joined(self) -> bool:
        """True if it is sized together with others."""
        return not self.workload.techniques.offloads

    @property
    def devices(self) -> tuple[object, ...]:
        """The key of questions that are answered together: all but the links and the devices of a node."""
        model, cluster, _, _, *others = self.key
        assert isinstance(cluster, Cluster)
        return model, cluster.rates.key, *others, self.workload.techniques, self.workload.sessions


@dataclass(frozen=True, eq=False)  # itself alone is the same
class SizedReplicas:
    """Replicas at every batch, whatever comes at what rate; `known`: columns and figures of `Deployments` by name."""

    timed: TimedReplicas
    batch: Floats  # the sizes of all layouts in turn
    num_layouts: int
    one_pass: bool  # it generates nothing
    known: dict[str, Any]
    start: tuple[float, Storage]  # seconds until a rented machine runs the image, and what weights are read from
    steady: Steady | None = None  # their closed loops, once they are timed; of what generates
    fetch_s: float | Floats = 0.0  # of a prompt, until stores have brought what they hold of it
    caches: LayoutCaches | None = None  # of sessions, whose histories are not counted yet
    bands: dict[bool, dict[str, ErrorBand]] = field(default_factory=lambda: {False: {}, True: {}}, compare=False)
    """`Deployments.bands` of closed loops, and of requests that arrive at a rate."""

    @property
    def job(self) -> ServeJob:
        """All rows in columns."""
        return self.timed.job

    @property
    def sessions(self) -> SessionTraffic | None:
        """The sessions whose histories are not counted yet."""
        return None if self.caches is None else self.caches.sessions

    @cached_property
    def start_s(self) -> Floats:
        """Seconds from a machine that is paid to the first request of each row's replicas: their layout alone decides.

        Source: data/run_start.csv, `flopwise.serving.startup.cold_start`. Assumes: as there; replicas start together.
        """
        degrees = np.stack([np.asarray(getattr(self.job.layout, name)) for name in DEGREES])
        layouts, place = np.unique(degrees, axis=1, return_inverse=True)
        (rented_s, drive), each = self.start, list[float]()
        for degree in layouts.T:
            layout = ServingLayout(**dict(zip(DEGREES, map(int, degree), strict=True)))
            each.append(cold_start(replace(self.job, layout=layout), drive).seconds)
        start_s: Floats = rented_s + np.asarray(each)[place.ravel()]
        return np.broadcast_to(start_s, self.batch.shape)


Answer = SizedReplicas | Deployments | None


class KeptAnswers:
    """The last `most` answers of `sized_replicas`; `hits`: questions that one search had of another's."""

    def __init__(self, most: int) -> None:
        self.most, self.hits, self._answers = most, 0, OrderedDict[ReplicaQuestion, Answer]()

    def __contains__(self, question: ReplicaQuestion) -> bool:
        return question in self._answers

    def __getitem__(self, question: ReplicaQuestion) -> Answer:
        return self._answers[question]

    def __setitem__(self, question: ReplicaQuestion, answer: Answer) -> None:
        self._answers[question] = answer
        self._answers.move_to_end(question)
        while len(self._answers) > self.most:
            self._answers.popitem(last=False)

    def clear(self) -> None:
        """Forget them all."""
        self.hits = 0
        self._answers.clear()


SIZED = KeptAnswers(KEPT_SIZED)


def sized_replicas(question: ReplicaQuestion) -> Answer:
    """Deployments that fit, and their speed in a closed loop at every batch; without rows where none fits.

    The same for services that differ in their rate, their targets or their budget alone.
    """
    if question.is_kept and question in SIZED:
        return SIZED[question]
    grid = _question_grid(question)
    memory = _grid_memory(question, grid, question.node.cluster.accelerator.hbm_bytes)
    sizing = _sizing(question, _Room(grid, memory))
    answer = _in_closed_loops([sizing])[0] if _generates(sizing) else sizing
    if question.is_kept:
        SIZED[question] = answer
    return answer


def _joined_questions(questions: Iterable[ReplicaQuestion]) -> list[dict[ReplicaQuestion, None]]:
    """Questions that may be joined, by device; those with batches in between only where no other has their key."""
    groups: dict[tuple[object, ...], dict[ReplicaQuestion, None]] = defaultdict(dict)
    times = Counter(every := list(questions))
    for question in every:
        if question.is_kept or (question.is_joined and times[question] == 1):
            groups[question.devices][question] = None
    return list(groups.values())


def size_together(questions: Iterable[ReplicaQuestion]) -> dict[ReplicaQuestion, Answer]:
    """The answers to questions that may be joined; nodes are timed together as far as the same formulas hold for them.

    A question without an answer (a format that the device lacks) is left to `deployments`, which says why.
    """
    groups = _joined_questions(questions)
    known, fresh = dict[ReplicaQuestion, Answer](), list[dict[ReplicaQuestion, Answer]]()
    for group in groups:
        kept = {question: SIZED[question] for question in group if question.is_kept and question in SIZED}
        SIZED.hits += len(kept)
        known |= kept
    rooms = _rooms([question for group in groups for question in group if question not in known])
    for group in groups:
        try:
            fresh.append({question: _sizing(question, rooms[question]) for question in group if question in rooms})
        except (MissingFactError, SpecError):
            continue
    loops = _loops_by_id([[one for one in group.values() if _generates(one)] for group in fresh])
    for sizings in fresh:
        for question, sizing in sizings.items():
            if not _generates(sizing):
                known[question] = sizing
            elif id(sizing) in loops:
                known[question] = loops[id(sizing)]
    for question, answer in known.items():
        if question.is_kept:
            SIZED[question] = answer
    return known


def _generates(answer: Answer) -> TypeGuard[SizedReplicas]:
    return isinstance(answer, SizedReplicas) and not answer.one_pass


def _in_closed_loops(some: Sequence[SizedReplicas]) -> list[SizedReplicas]:
    """The sizings, for which the same formulas hold, in their closed loops."""
    some = _with_histories(some)
    if len(some) == 1:
        (one,) = some
        work = request_work(one.job)
        loops = [closed_loop(one.timed.machine, one.job.layout, one.batch, *work, only_seconds=True)]
    else:
        loops = JoinedReplicas([one.timed for one in some], [one.batch for one in some]).closed_loops()
    return [replace(one, steady=steady) for one, steady in zip(some, loops, strict=True)]


def _loops_by_id(groups: Sequence[Sequence[SizedReplicas]]) -> dict[int, SizedReplicas]:
    """The sizings in their closed loops, by the `id` of each; none of those whose device lacks a rate."""
    loops: dict[int, SizedReplicas] = {}
    for some in _joined_groups(groups):
        try:
            loops |= zip(map(id, some), _in_closed_loops(some), strict=True)
        except (MissingFactError, SpecError):
            continue
    return loops


def _joined_groups(groups: Iterable[Sequence[SizedReplicas]]) -> list[list[SizedReplicas]]:
    """Groups of one device each, those side by side that the same formulas hold for, up to `JOINED_ROWS`."""
    joined: dict[tuple[object, ...], list[list[SizedReplicas]]] = {}
    for group in filter(None, groups):
        parts = joined.setdefault((JoinedRunner.formulas([one.timed for one in group]), group[0].sessions), [[]])
        rows = sum(one.batch.size for one in parts[-1]) + sum(one.batch.size for one in group)
        if parts[-1] and rows > JOINED_ROWS:
            parts.append([])
        parts[-1].extend(group)
    return [part for parts in joined.values() for part in parts]


class _Room(NamedTuple):
    """The replicas worth estimating on a node, and their memory."""

    grid: ServingLayout
    memory: ServingMemory


def _rooms(questions: Iterable[ReplicaQuestion]) -> dict[ReplicaQuestion, _Room]:
    """The rooms of questions: memory of nodes whose engine starts alike is computed in one column; by question.

    A question without one (a technique that the device lacks) is left to `sized_replicas`, which says why.
    """
    groups: dict[tuple[object, ...], list[tuple[ReplicaQuestion, ServingLayout]]] = defaultdict(list)
    for question in questions:
        workload, device = question.workload, question.node.cluster.accelerator
        key = (
            question.model, question.weights, question.kv_dtype, workload.engine.on(device), device.kind,
            workload.limits.memory_fraction, workload.task, workload.input_tokens, workload.output_tokens,
            workload.techniques,
        )  # fmt: skip
        groups[key].append((question, _question_grid(question)))
    rooms: dict[ReplicaQuestion, _Room] = {}
    for group in groups.values():
        layouts = {name: [np.asarray(getattr(grid, name)) for _, grid in group] for name in DEGREES}
        sizes = [column.size for column in layouts["tp"]]
        whole = ServingLayout(**{name: np.concatenate(columns) for name, columns in layouts.items()})
        capacities = [float(question.node.cluster.accelerator.hbm_bytes) for question, _ in group]
        try:
            memory = _grid_memory(group[0][0], whole, np.repeat(capacities, sizes))
        except (MissingFactError, SpecError):
            continue
        ends = np.cumsum(sizes).tolist()
        for (question, grid), start, end in zip(group, [0, *ends], ends, strict=False):
            rooms[question] = _Room(grid, memory.of_rows(slice(start, end)))
    return rooms


def _question_grid(question: ReplicaQuestion) -> ServingLayout:
    workload, pool = question.workload, question.workload.techniques.prefill_gpus or 0
    spread = not answers_in_one_pass(question.model, workload)
    return _with_pools(replica_grid(question.node, question.model, workload.max_gpus - pool, spread=spread), pool)


def _grid_memory(question: ReplicaQuestion, grid: ServingLayout, hbm_bytes: Floats | float) -> ServingMemory:
    """Memory of replicas at their largest batch on devices of so many bytes, one for each row."""
    workload, model, node = question.workload, question.model, question.node
    answer, device = 0 if answers_in_one_pass(model, workload) else workload.output_tokens, node.cluster.accelerator
    changes = memory_changes(replica_job(workload, model, node.cluster, question.weights, grid))
    return serving_memory(
        model, grid, concurrency=None, context=workload.input_tokens + answer, answer=answer, hbm_bytes=hbm_bytes,
        weights=question.weights, kv_dtype=question.kv_dtype, engine=workload.engine.on(device),
        memory_frac=workload.limits.memory_fraction, device_kind=device.kind, changes=changes,
    )  # fmt: skip


def _sizing(question: ReplicaQuestion, room: _Room) -> Answer:
    """The replicas of a question that fit, at every batch; deployments without rows where nothing does."""
    workload, model, node, weights, kv_dtype = (
        question.workload,
        question.model,
        question.node,
        question.weights,
        question.kv_dtype,
    )
    one_pass, (grid, memory) = answers_in_one_pass(model, workload), room
    pool = workload.techniques.prefill_gpus or 0
    whole = np.asarray(grid.tp)
    if not whole.size:
        return None
    answer, device = 0 if one_pass else workload.output_tokens, node.cluster.accelerator
    context, engine = workload.input_tokens + answer, workload.engine.on(device)
    most = _of_shape(memory.max_concurrency, whole.shape)
    if one_pass:
        most = np.minimum(most, engine.most_inputs(workload.input_tokens))
    lacking = most < 1
    if pool:  # what reads prompts has all experts on its own ranks
        prompts = prefill_layout(replica_job(workload, model, node.cluster, weights, grid))
        most = np.where(np.asarray(weights_per_gpu(model, weights, prompts)) <= device.hbm_bytes, most, 0.0)
    fit = np.flatnonzero(most >= 1)
    path, too_big = product_path(model, weights, node.cluster.rates), int(whole.size - fit.size)
    room_text = partial(_room_text, memory, lacking, weights, _takes_text(workload, device.hbm_bytes))
    known: dict[str, Any] = {"weights": weights, "path": path, "too_big": too_big, "room_text": room_text}
    if not fit.size:
        nothing: dict[str, Any] = {f.name: np.array([]) for f in fields(Deployments) if f.type in ("Column", "Floats")}
        return Deployments(considered=whole.size, num_layouts=0, **known, **nothing)
    sizes = batches(_in_flight(most[fit], np.asarray(grid.dp)[fit], workload))
    if question.between is not None:
        sizes = np.sort(np.concatenate([sizes, np.minimum(question.between, sizes[-1])]), axis=0)
    rows = np.broadcast_to(fit, sizes.shape).ravel()
    degrees: dict[str, Any] = {name: np.asarray(getattr(grid, name))[rows] for name in DEGREES}
    job = replica_job(workload, model, node.cluster, weights, ServingLayout(**degrees))
    job = replace(job, kv_dtype=job.kv_dtype if one_pass else kv_dtype)
    least = question.least
    if workload.instances is not None:
        least = _replicas_on(workload.instances, node.count, job.layout.num_gpus, pool)
    prompt, batch = computed_prompt_tokens(workload), _even_batch(sizes.ravel(), degrees["dp"], workload, least)
    sizes = batch.reshape(sizes.shape)
    known |= {
        "considered": sizes.size + too_big,
        "memory_bytes": _memory_bytes(model, memory, fit, sizes, grid, engine, context, device.kind).ravel(),
        "least_ttft_s": least_prompt_s(model, node, path.dtype, prompt, _prompt_gpus(job)),
        "found_frac": np.zeros(sizes.size),
        "prefill_gpus": np.full(sizes.size, pool),
    }
    sizing = SizedReplicas(TimedReplicas(job, runner(job)), batch, fit.size, one_pass, known, question.start)
    if workload.sessions is None:
        return sizing
    tokens, token_bytes = _cache_rooms(memory, grid, fit, whole.shape)
    largest = {name: degree[-fit.size :] for name, degree in degrees.items()}
    fewest = least[-fit.size :] if isinstance(least, np.ndarray) and least.ndim else least

    def replicas(capacity: Floats) -> Floats:
        in_flight = batch[-fit.size :] * largest["dp"]
        return _replicas(capacity, in_flight, workload, fewest, np.zeros(fit.size))

    caches = LayoutCaches(
        job=replace(job, layout=ServingLayout(**largest)), workload=workload, batch=batch[-fit.size :], tokens=tokens,
        token_bytes=token_bytes, replicas=replicas,
    )  # fmt: skip
    return replace(sizing, caches=caches)


def _with_histories(sizings: Sequence[SizedReplicas]) -> list[SizedReplicas]:
    """The sizings with what caches hold of the histories of sessions, which are the same for all; or as they are."""
    several, caches = list[SizedReplicas](), [one.caches for one in sizings if one.caches is not None]
    if not caches:
        return list(sizings)
    found = cache_hits(caches)
    for sizing, (found_frac, fetch_s) in zip(sizings, found, strict=True):
        hits, fetches = (np.tile(column, sizing.batch.size // sizing.num_layouts) for column in (found_frac, fetch_s))
        job = replace(sizing.job, techniques=replace(sizing.job.techniques, hit_frac=cast("Any", hits)))
        known = sizing.known | {"found_frac": hits}
        several.append(
            replace(sizing, timed=TimedReplicas(job, runner(job)), known=known, fetch_s=fetches, caches=None)
        )
    return several


def _with_pools(grid: ServingLayout, prefill_gpus: int) -> ServingLayout:
    """The layouts of a grid of which `prefill_gpus` make whole instances for prompts, laid out alike; 0: all."""
    kept = np.flatnonzero(prefill_gpus % np.asarray(grid.num_gpus) == 0)
    return ServingLayout(**{name: np.asarray(getattr(grid, name))[kept] for name in DEGREES})


def _prompt_gpus(job: ServeJob) -> Floats:
    """Devices that work on one prompt: of a replica, or of an instance of its prefill pool."""
    if not job.techniques.prefill_gpus:
        return np.asarray(job.layout.num_gpus)
    return np.asarray(prefill_layout(job).num_gpus)


def _cache_rooms(
    memory: ServingMemory, grid: ServingLayout, fit: Column, shape: tuple[int, ...]
) -> tuple[Floats, Floats]:
    """(tokens that the cache of an attention replica holds, bytes of one on its devices) of the layouts that fit."""
    tokens, budget, tp, pp = (
        np.broadcast_to(np.asarray(v, dtype=float), shape)[fit]
        for v in (memory.kv_capacity_tokens, memory.kv_budget_bytes, grid.tp, grid.pp)
    )
    return tokens, budget / np.maximum(tokens, 1.0) * tp * pp


def _room_text(memory: ServingMemory, too_big: NDArray[np.bool_], weights: WeightFormat, takes_text: str) -> str:
    """The memory of one sequence in the smallest of the layouts that are too big, beside what the engine takes."""
    shape = too_big.shape
    total = np.broadcast_to(np.asarray(memory.total_bytes, dtype=float), shape)
    row = int(np.where(too_big, total, np.inf).argmin())
    items = {name: float(np.broadcast_to(np.asarray(v, dtype=float), shape)[row]) for name, v in memory.items.items()}
    parts = ", ".join(f"{name} {format_bytes(value)}" for name, value in items.items() if value)
    return f"{weights.name} {parts}: {format_bytes(float(total[row]))} for one request; {takes_text}"


def _takes_text(workload: Resolved, hbm_bytes: float) -> str:
    """The share of a device's memory that an engine takes."""
    share = workload.limits.memory_fraction or workload.engine.memory_frac
    return f"{workload.engine.name} takes {100 * share:g} % of {format_bytes(hbm_bytes)}"


def _in_flight(most: Floats, ranks: Column, workload: Resolved) -> Floats:
    """Sequences that one attention replica may ever have: those that fit, and no more than there are users."""
    if workload.concurrency is None or workload.requests_per_s is not None:
        return most
    users: Floats = np.minimum(most, np.ceil(workload.concurrency / ranks))
    return users


def _even_batch(batch: Floats, ranks: Column, workload: Resolved, least: float | Floats) -> Floats:
    """Sequences in flight on each attention replica: no more than users are left for each of the replicas."""
    if workload.concurrency is None or workload.requests_per_s is not None:
        return batch
    replicas = _replicas(batch, batch * ranks, workload, least, np.zeros(batch.size))
    return np.minimum(batch, np.ceil(workload.concurrency / (replicas * ranks)))


def _memory_bytes(
    model: Model, memory: ServingMemory, fit: Column, sizes: Floats, grid: ServingLayout, engine: Engine, context: int,
    kind: str,
) -> Floats:  # fmt: skip
    """Memory of each of the `sizes` (sizes, replicas that `fit`): `memory` is that of as many sequences as fit."""
    shape = np.shape(memory.max_concurrency)
    most, cached, whole = (
        _of_shape(v, shape)[fit] for v in (memory.max_concurrency, memory.items["KV cache"], memory.total_bytes)
    )
    layout = ServingLayout(**{name: np.asarray(getattr(grid, name))[fit] for name in DEGREES})
    chunk = rank_budget(engine, engine.prefill_tokens, layout.dp) if engine.prefill_tokens else context
    steps = StepMemory(model, engine, chunk, context, layout, None, engine.profiles(kind))
    working = np.asarray(steps.working_bytes(np.concatenate([most[None], sizes])))
    resident_bytes: Floats = whole - working[0] + working[1:] - cached * (1 - sizes / most)
    return resident_bytes


def _replicas_on(instances: int, per_instance: int, num_gpus: float | NDArray[Any], pool: int) -> Floats:
    """Replicas that instances hold, of `num_gpus` and a `pool` for prompts; none that lacks a device.

    Assumes: several share an instance, or each has instances of its own; those with pools share these too, as serving
    bills them.
    """
    gpus = np.asarray(num_gpus) + pool
    packed = per_instance // gpus
    several = instances * per_instance // gpus if pool else instances // num_instances(gpus, per_instance)
    return np.asarray(np.where(packed > 0, instances * packed, several), dtype=float)


@dataclass(frozen=True)
class _ReplicasTogether:
    """Replicas of several questions in one column, and their curves side by side in one table.

    `gather`: of each place of the table the row of the column that stands there; the table has a column for each
    layout, and those with fewer sizes repeat their last one. `place`: of each row its place in the table.
    """

    batch: Floats
    ranks: Floats  # attention replicas of a replica
    capacity: Floats  # requests a second
    decode: StepTime  # what its draw of power is made of
    ends: list[int]  # of each question's rows
    curves: SteadyCurves
    gather: Column
    place: Column

    def rows(self, table: Any) -> Floats:
        """The rows of a table in their order."""
        column: Floats = np.broadcast_to(table, self.gather.shape).ravel()[self.place]
        return column


@lru_cache(maxsize=KEPT_TOGETHER)
def _together(sized: tuple[SizedReplicas, ...]) -> _ReplicasTogether:
    """The questions of replicas on one engine, and of one model, that generate."""
    steady = [one.steady for one in sized if one.steady is not None]
    assert len(steady) == len(sized)
    tall, wide = max(one.batch.size // one.num_layouts for one in sized), sum(one.num_layouts for one in sized)
    gather, place, first, left = list[Column](), list[Column](), 0, 0
    for one in sized:
        layouts, sizes = np.arange(one.num_layouts), one.batch.size // one.num_layouts
        down = np.arange(tall)[:, None]
        gather.append(first + np.minimum(down, sizes - 1) * one.num_layouts + layouts)
        place.append((down[:sizes] * wide + left + layouts).ravel())
        first, left = first + one.batch.size, left + one.num_layouts
    rows = np.concatenate(gather, axis=1)

    def column(values: Iterable[Any]) -> Floats:
        return _column(values, sized)

    seconds, floor_s = column(one.decode.seconds for one in steady), column(one.decode.floor_s for one in steady)
    unread = np.float64(np.nan)
    step = StepTime(*(unread for _ in StepTime._fields))
    loops = Steady(
        ttft_s=unread, tpot_s=unread, requests_per_s=unread, output_tokens_per_s=unread,
        batch=column(one.batch for one in steady)[rows], added_s=column(one.added_s for one in steady)[rows],
        prefill_share=column(one.prefill_share for one in steady)[rows],
        decode=step._replace(seconds=seconds[rows], floor_s=floor_s[rows]),
        mixed=step._replace(seconds=column(one.mixed.seconds for one in steady)[rows]),
        full_s=column(one.full_s for one in steady)[rows],
    )  # fmt: skip
    degrees = {name: column(np.asarray(getattr(one.job.layout, name)) for one in sized) for name in DEGREES}
    batch, job = column(one.batch for one in sized), sized[0].job
    layout = ServingLayout(**{name: degree[rows][:1] for name, degree in degrees.items()})
    parts = ("compute_s", "memory_s", "communication_s", "conversion_s")
    drawn = {name: column(getattr(one.decode, name) for one in steady) for name in parts}
    prompt, steps = request_work(job)
    tokens: Any = prompt
    if np.ndim(prompt):  # those of each layout
        tokens = column(request_work(one.job)[0] for one in sized)[rows][:1]
    return _ReplicasTogether(
        batch=batch, ranks=degrees["dp"], capacity=column(one.requests_per_s for one in steady) * degrees["dp"],
        decode=step._replace(seconds=seconds, **drawn), ends=np.cumsum([one.batch.size for one in sized]).tolist(),
        curves=SteadyCurves(sized[0].timed.machine, layout, tokens, steps, batch[rows], loops), gather=rows,
        place=np.concatenate(place),
    )  # fmt: skip


def _column(values: Iterable[Any], sized: Sequence[SizedReplicas]) -> Floats:
    """Values of several questions, each a column or a number, in one column."""
    return np.concatenate([_of_shape(one, s.batch.shape) for one, s in zip(values, sized, strict=True)])


def _of_shape(values: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Values as an array of that shape: as they are where they have it, since broadcasting takes longer."""
    return values if isinstance(values, np.ndarray) and values.shape == shape else np.broadcast_to(values, shape)


def _arriving_columns(questions: Sequence[ReplicaQuestion], sized: Sequence[SizedReplicas]) -> list[dict[str, Any]]:
    """Latency and number of replicas of models that generate, where requests arrive at random; of each question.

    The queue model speaks of prompt tokens to compute and of steps; where drafts speculate, one step brings several.
    """
    workload, job = questions[0].workload, sized[0].job
    assert workload.requests_per_s is not None
    outputs, each, all_of = workload.output_tokens, tokens_a_round(job), _together(tuple(sized))
    batch, ranks, capacity = all_of.batch, all_of.ranks, all_of.capacity
    least = _column(map(_least, sized, questions), sized)
    replicas = _replicas(capacity, batch * ranks, workload, least, np.zeros(batch.size))
    arrivals = workload.requests_per_s / replicas / ranks
    there = all_of.curves.at(arrivals[all_of.gather])

    def at_percentile(name: str) -> Percentile:
        return Percentile(*map(all_of.rows, there.percentile(name)))

    wanted = latency_percentiles(workload)
    seen = {p: at_percentile(p) for p in [*_wanted_percentiles(workload), *(["mean"] if each > 1 else [])]}
    middle = seen.get("mean", seen[wanted["tpot"]])
    token_s = {p: percentile_tpot_s(job, one.tpot_s, middle.tpot_s, p) for p, one in seen.items()}
    behind = np.where(arrivals * ranks < capacity, 0.0, np.inf)  # where the number of instances is given
    whole = wanted["latency"]
    further_s = (outputs - 1) * token_s[whole] if outputs > 1 else 0.0  # which may be without end
    busy = arrivals * ranks / capacity
    usual = there if workload.peak == 1.0 else all_of.curves.at((arrivals / workload.peak)[all_of.gather])
    running = 1.0 - (1.0 - all_of.rows(usual.running_frac)) ** ranks
    fetch_s = _column([one.fetch_s for one in sized], sized)
    columns = {
        "replicas": replicas,
        "ttft_s": np.asarray(seen[wanted["ttft"]].ttft_s) + fetch_s + behind,
        "tpot_s": np.asarray(token_s[wanted["tpot"]]) + behind,
        "e2e_s": np.asarray(seen[whole].ttft_s + further_s) + fetch_s + behind,
        "least_tpot_s": all_of.rows(there.steady.decode.floor_s) / each,
        "requests_per_s": capacity,
        "tokens_per_s": np.full(batch.size, _mean_tokens_per_s(workload)),
        "busy_frac": busy,
        "watts_frac": _watts_frac(all_of.decode, running),
    }
    starts = zip([0, *all_of.ends], all_of.ends, strict=False)
    return [{name: values[start:end] for name, values in columns.items()} for start, end in starts]


def _mean_tokens_per_s(workload: Resolved) -> float:
    """Tokens generated a second at the mean load of requests that arrive at a rate."""
    assert workload.requests_per_s is not None
    return workload.requests_per_s / workload.peak * workload.output_tokens


def _layouts_alone(sized: SizedReplicas) -> ServeJob:
    """The job of each layout once, and not of each of its sizes."""
    table = (-1, sized.num_layouts)
    degrees: dict[str, Any] = {name: np.asarray(getattr(sized.job.layout, name)).reshape(table)[0] for name in DEGREES}
    return replace(sized.job, layout=ServingLayout(**degrees))


def _pooled_users_columns(sized: SizedReplicas, question: ReplicaQuestion) -> dict[str, Any]:
    """Latency and number of replicas whose prompts have machines of their own, where users keep them full."""
    workload, job, alone = question.workload, sized.job, _layouts_alone(sized)
    batch, ranks = sized.batch.reshape(-1, sized.num_layouts), np.asarray(alone.layout.dp)
    load = pooled_users(alone, sized.timed.machine, batch)
    capacity, in_flight = load.per_s * ranks, batch * ranks
    least, nothing = _least(sized, question), np.zeros(sized.batch.size)
    replicas = _replicas(capacity.ravel(), in_flight.ravel(), workload, least, nothing).reshape(batch.shape)
    if workload.concurrency is not None:  # of whom replicas are computed with whole ones
        capacity = capacity * np.minimum(1.0, workload.concurrency / (replicas * in_flight))
    tpot_s, extra = load.round_s / tokens_a_round(job), job.techniques.prefill_gpus
    gpus = np.asarray(alone.layout.num_gpus)
    of_prompts = _watts_frac(load.pools.prompts.step, np.minimum(load.per_s / load.pools.most_per_s, 1.0))
    of_answers = _watts_frac(load.decode, np.minimum(load.decoding * ranks, 1.0))
    columns: dict[str, Any] = {
        "replicas": replicas,
        "ttft_s": load.ttft_s,
        "tpot_s": tpot_s,
        "e2e_s": load.ttft_s + (workload.output_tokens - 1) * tpot_s,
        "least_tpot_s": np.asarray(load.decode.floor_s) / tokens_a_round(job),
        "requests_per_s": capacity,
        "tokens_per_s": replicas * capacity * workload.output_tokens,
        "busy_frac": np.ones(batch.shape),
        "watts_frac": (of_answers * gpus + of_prompts * extra) / (gpus + extra),
    }
    return {name: np.broadcast_to(values, batch.shape).ravel() for name, values in columns.items()}


def _pooled_columns(sized: SizedReplicas, question: ReplicaQuestion) -> dict[str, Any]:
    """Latency and number of replicas whose prompts have machines of their own, where requests arrive at random."""
    workload, job, outputs = question.workload, sized.job, question.workload.output_tokens
    assert workload.requests_per_s is not None
    table, alone = (-1, sized.num_layouts), _layouts_alone(sized)
    batch, machine = sized.batch.reshape(table), sized.timed.machine
    ranks, fetch_s = np.asarray(alone.layout.dp), np.asarray(sized.fetch_s)
    if workload.sessions is not None:  # what their caches hold differs by layout alone
        hits: Any = np.reshape(np.asarray(job.techniques.hit_frac), table)[0]
        alone = replace(alone, techniques=replace(job.techniques, hit_frac=hits))
        machine, fetch_s = runner(alone), fetch_s.reshape(table)
    pooled = PooledReplicas.of(alone, machine, batch)
    capacity = pooled.sustained_per_s * ranks
    least, nothing = _least(sized, question), np.zeros(sized.batch.size)
    in_flight = (batch * ranks).ravel()
    replicas = _replicas(capacity.ravel(), in_flight, workload, least, nothing).reshape(batch.shape)
    arrivals = workload.requests_per_s / replicas
    wanted = latency_percentiles(workload)
    load = pooled.load(arrivals / ranks, _wanted_percentiles(workload))
    behind = np.where(arrivals < capacity, 0.0, np.inf)
    seen, whole = load.percentiles, wanted["latency"]
    tpot_s = {name: np.asarray(one.tpot_s) for name, one in seen.items()}
    further_s = (outputs - 1) * tpot_s[whole] if outputs > 1 else 0.0
    busy, gpus = arrivals / capacity, np.asarray(alone.layout.num_gpus)
    of_prompts = _watts_frac(pooled.pools.prompts.step, load.busy / workload.peak)
    of_answers = _watts_frac(pooled.decode, -np.expm1(-load.decoding * ranks / workload.peak))
    extra = job.techniques.prefill_gpus
    columns: dict[str, Any] = {
        "replicas": replicas,
        "ttft_s": np.asarray(seen[wanted["ttft"]].ttft_s) + fetch_s + behind,
        "tpot_s": tpot_s[wanted["tpot"]] + behind,
        "e2e_s": np.asarray(seen[whole].ttft_s) + further_s + fetch_s + behind,
        "least_tpot_s": np.asarray(pooled.decode.floor_s) / tokens_a_round(job),
        "requests_per_s": capacity,
        "tokens_per_s": np.full(batch.shape, _mean_tokens_per_s(workload)),
        "busy_frac": busy,
        "watts_frac": (of_answers * gpus + of_prompts * extra) / (gpus + extra),
    }
    return {name: np.broadcast_to(values, batch.shape).ravel() for name, values in columns.items()}


def _closed_columns(sized: SizedReplicas, steady: Steady, question: ReplicaQuestion) -> dict[str, Any]:
    """Latency and number of replicas of models that generate, where users or a batch keep them full."""
    workload, batch, ranks = question.workload, sized.batch, np.asarray(sized.job.layout.dp)
    outputs, each = workload.output_tokens, tokens_a_round(sized.job)
    capacity = np.asarray(steady.requests_per_s) * ranks
    sure = capacity * _sure_frac(sized.job, workload)
    replicas = _replicas(sure, batch * ranks, workload, _least(sized, question), _start_s(sized, question))
    replicas = _on_whole_machines(replicas, batch * ranks, sized, question)
    ttft, tpot = np.asarray(steady.ttft_s), np.asarray(steady.tpot_s) / each
    busy = np.ones(batch.size)
    if workload.concurrency is not None:  # of whom replicas are computed with whole ones
        capacity = capacity * np.minimum(1.0, workload.concurrency / (replicas * batch * ranks))
    return {
        "replicas": replicas,
        "ttft_s": ttft,
        "tpot_s": tpot,
        "e2e_s": ttft + (outputs - 1) * tpot,
        "least_tpot_s": np.broadcast_to(np.asarray(steady.decode.floor_s) / each, batch.shape),
        "requests_per_s": capacity,
        "tokens_per_s": replicas * capacity * outputs,
        "busy_frac": busy,
        "watts_frac": _watts_frac(steady.decode, busy / workload.peak),
    }


def _watts_frac(step: StepTime, busy: Floats) -> Floats:
    """Mean draw over the power limit of devices that spend `busy` of their time on such steps."""
    shares = [
        np.asarray(part) / np.asarray(step.seconds) * busy
        for part in (step.compute_s + step.conversion_s, step.memory_s, step.communication_s)
    ]
    drawn: Floats = np.asarray(device_watts(1.0, *shares))
    return drawn


def _sure_frac(job: ServeJob, workload: Resolved) -> float:
    """Share of the estimated pace of a batch job that is reached with the workload's confidence; 1 without a deadline.

    Source: the band of throughput. Assumes: one band for all layouts, that of the first.
    """
    if workload.deadline_s is None or workload.requests is None:
        return 1.0
    first = ServingLayout(**{name: int(np.ravel(getattr(job.layout, name))[0]) for name in DEGREES})
    return serving_band(replace(job, layout=first), "throughput").quantile(1.0 - workload.confidence)


def _replicas(capacity: Floats, batch: Floats, workload: Resolved, least: float | Floats, start_s: Floats) -> Floats:
    """Replicas that carry the arrivals, the users, or a batch job before its deadline; `least` at least, or exactly.

    Those of a batch start together; where the start alone is too long, as many as without it.
    """
    needed: Floats = np.ones(batch.size)
    if workload.instances is not None:
        return needed * least
    if workload.requests_per_s is not None:
        needed = np.ceil(workload.requests_per_s / (capacity * PREFILL_BUSY))
    elif workload.concurrency is not None:
        needed = np.ceil(workload.concurrency / batch)
    elif workload.requests is not None and workload.deadline_s is not None:
        left_s = np.where(start_s < workload.deadline_s, workload.deadline_s - start_s, workload.deadline_s)
        needed = np.ceil(workload.requests / left_s / capacity)
    return np.maximum(needed, least)


def _on_whole_machines(replicas: Floats, batch: Floats, sized: SizedReplicas, question: ReplicaQuestion) -> Floats:
    """The replicas, of a batch job with those that its machines hold besides: what is paid for works.

    Assumes: as many replicas as have a full `batch` of the requests; a service leaves what it does not need free.
    """
    workload = question.workload
    if workload.task != "batch" or workload.requests is None or workload.instances is not None:
        return replicas
    packed = np.maximum(question.node.count // np.asarray(sized.job.layout.num_gpus), 1)
    filled = np.ceil(replicas / packed) * packed
    return np.asarray(np.minimum(filled, np.maximum(replicas, np.ceil(workload.requests / batch))))


def _wanted_percentiles(workload: Resolved) -> list[str]:
    return list(dict.fromkeys(latency_percentiles(workload).values()))


def latency_percentiles(workload: Resolved) -> dict[str, str]:
    """The percentile of each latency: of its own target, or the strictest of the other targets, or p95."""
    order = ("mean", "p50", "p90", "p95", "p99")
    targets = {"ttft": workload.ttft, "tpot": workload.tpot, "latency": workload.latency}
    named = [t.percentile for t in targets.values() if t is not None]
    usual = max(named, key=order.index) if named else "p95"
    return {name: usual if t is None else t.percentile for name, t in targets.items()}


def _one_pass_steps(sizings: Sequence[tuple[ReplicaQuestion, SizedReplicas]]) -> dict[int, StepTime]:
    """The pass over each batch of replicas of models that answer in one, by the `id` of the replicas."""
    by_device: dict[tuple[object, ...], dict[int, SizedReplicas]] = defaultdict(dict)
    for question, sized in sizings:
        by_device[question.devices][id(sized)] = sized
    steps: dict[int, StepTime] = {}
    for some in _joined_groups([list(group.values()) for group in by_device.values()]):
        (tokens,) = {one.job.input_tokens for one in some}
        if len(some) == 1:
            (one,) = some
            machine = one.timed.machine
            steps[id(one)] = machine.step(whole_prompts(machine.model, one.batch, tokens), one.job.layout)
            continue
        joined = JoinedReplicas([one.timed for one in some], [one.batch for one in some])
        step = joined.machine.step(whole_prompts(joined.machine.model, joined.in_flight, tokens), joined.layout)
        steps |= {id(one): rows_of(step, rows) for one, rows in zip(some, joined.rows, strict=True)}
    return steps


def _one_pass_columns(sized: SizedReplicas, question: ReplicaQuestion, step: StepTime) -> dict[str, Any]:
    """Latency and number of replicas of models that answer in one pass: batches of what waits.

    Source: `one_pass_latency_s`.
    """
    workload, machine, batch = question.workload, sized.timed.machine, sized.batch
    service = np.asarray(step.seconds, dtype=float)
    capacity = batch / service
    sure = capacity * _sure_frac(sized.job, workload)
    replicas = _replicas(sure, batch, workload, _least(sized, question), _start_s(sized, question))
    replicas = _on_whole_machines(replicas, batch, sized, question)
    percentiles = latency_percentiles(workload)
    if workload.requests_per_s is None:
        busy = running = np.ones(batch.size)
        first = whole = machine.engine.request_s + service
        total = replicas * capacity
    else:
        arrivals = workload.requests_per_s / replicas
        busy = np.minimum(arrivals / capacity, 0.999)
        batches = _waiting_batches(batch, service, sized.num_layouts, arrivals)
        wanted = [percentiles["ttft"], percentiles["latency"]]
        seen = {p: one_pass_latency_s(machine.engine, batches, workload.input_tokens, p) for p in {*wanted}}
        first, whole = (seen[p] for p in wanted)
        total = np.full(batch.size, workload.requests_per_s / workload.peak)
        running = batches._replace(arrivals_per_s=arrivals / workload.peak).running_frac
    return {
        "replicas": replicas,
        "ttft_s": first,
        "tpot_s": np.zeros(batch.size),
        "e2e_s": whole,
        "least_tpot_s": np.zeros(batch.size),
        "requests_per_s": capacity,
        "tokens_per_s": total * workload.input_tokens,
        "busy_frac": busy,
        "watts_frac": _watts_frac(step, running),
    }


def _waiting_batches(batch: Floats, service: Floats, num_layouts: int, arrivals: Floats) -> WaitingBatches:
    """The queues of replicas that take batches of up to `batch` each, whose smaller ones are those of the same layout.

    `batch` and the seconds that it takes: the sizes of all layouts in turn.
    """
    sizes, step_s = (values.reshape(-1, num_layouts) for values in (batch, service))
    smaller = sizes[:, None, :] < sizes[None]

    def table(values: Floats) -> Floats:
        return np.where(smaller, values[:, None, :], values[None]).reshape(len(sizes), -1)

    return WaitingBatches(table(sizes), table(step_s), arrivals)
