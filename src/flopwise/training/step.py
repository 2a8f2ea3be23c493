"""One optimizer step: micro-batches through pipeline stages, gradients across replicas, the optimizer.

`step_parts` composes millions of layouts out of a `StepTable` with array arithmetic. A single estimate is a table with
one entry: the same formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flopwise.cost.collectives import Groups, all_gather_s, all_reduce_s, level_groups, p2p_s
from flopwise.cost.fabric import group_fabric, host_link_bytes_per_s
from flopwise.cost.sustained import products_clock_frac
from flopwise.ops.columns import runs
from flopwise.ops.types import Array, Floats, Ints
from flopwise.training.layout import shard_ranks
from flopwise.training.muon import NEWTON_SCHULZ
from flopwise.training.schedules import Others, Pipe, any_of, bubble_s, copies, having, paired_frac
from flopwise.training.stages import recomputes_all
from flopwise.training.step_table import STAGE_PARTS, StepTable
from flopwise.training.stragglers import STRAGGLERS, waiting_frac
from flopwise.training.widths import (
    ACT_BYTES,
    optimizer_traffic_bytes,
    others_traffic_bytes,
    resident_grad_bytes,
    sent_grad_bytes,
)

if TYPE_CHECKING:
    from flopwise.cost.fabric import Fabric
    from flopwise.cost.rates import Rates
    from flopwise.training.layout import Layout

Index = NDArray[np.intp]
HOST_BYTES_PER_S = 110e9
"""Rate at which the host of a node updates parameters: 28 bytes a parameter, 1e9 parameters in about 0.25 s
(ZeRO-Offload, table 4)."""
MAX_GPUS_PER_HOST = 8
ROUTED = "expert_parallel"
_FORWARD, _BACKWARD, _RECOMPUTE = (STAGE_PARTS.index(name) for name in ("forward", "backward", "recompute"))
_MESSAGES = slice(STAGE_PARTS.index("tensor_parallel"), len(STAGE_PARTS))
FRESH_MEMORY = "fresh_memory"
"""The line of tensors that the system hands out page by page; there only where a CPU is the device."""
WAITING = "waiting_for_lengths"
"""The line of what padded replicas wait for the one with the longest documents; there only where lengths are given."""
_OF_TURNS = (ROUTED, "pipeline_p2p", "pipeline_bubble")
"""Lines that depend on the schedule of a pipeline and its chunks."""
_OF_SHARDS = ("optimizer", NEWTON_SCHULZ, "data_parallel", "offload", WAITING)
"""Lines that depend on what is sharded."""


def step_parts(table: StepTable, inner: Index, degree: Index, layout: Layout) -> dict[str, Floats]:
    """Seconds of one optimizer step by line; the values add up to the step, as `whole_step_s` has it.

    Source and assumptions: `_lines`, and of what all wait for the slowest rank `waiting_frac`.
    """
    lines = _lines(table, inner, degree, layout, table.modes(layout, degree, inner))
    return {**lines, **_stragglers(table, layout, lines)}


def _stragglers(table: StepTable, layout: Layout, lines: dict[str, Floats]) -> dict[str, Floats]:
    """The line of what all wait for the slowest rank. Source and assumptions: `waiting_frac`."""
    return {STRAGGLERS: _sum_s(lines) * waiting_frac(layout.num_gpus, table.jitter_frac)}


def whole_step_s(table: StepTable, inner: Index, degree: Index, layout: Layout) -> Floats:
    """Seconds of one optimizer step. Source and assumptions: as `step_parts`, whose sum it is."""
    lines = _lines(table, inner, degree, layout, table.modes(layout, degree, inner))
    return _sum_s(lines) * (1.0 + waiting_frac(layout.num_gpus, table.jitter_frac))


def _sum_s(lines: dict[str, Floats]) -> Floats:
    """The sum of all lines, in one order whatever the shapes: what holds for many candidates is added up first."""
    of_turns = [lines[name] for name in _OF_TURNS if name in lines]
    of_shards = [lines[name] for name in _OF_SHARDS if name in lines]
    of_passes = [line for name, line in lines.items() if name not in _OF_TURNS and name not in _OF_SHARDS]
    total, *others = (reduce(add, group) for group in (of_passes, of_turns, of_shards) if group)
    return reduce(add, others, total)


def _lines(
    table: StepTable, inner: Index, degree: Index, layout: Layout, by_mode: tuple[StepTable, tuple[Index, Index, Index]]
) -> dict[str, Floats]:
    """Seconds of one optimizer step by line where nobody waits longer for the slowest rank than in measured runs.

    `inner` and `degree` index the table's axes; `by_mode`: as of `StepTable.modes`. Of `layout`, dp and the choices are
    read (ZeRO, interleave, schedule, recompute, shard). Everything broadcasts: a search gives meshes and choices on
    axes of their own, and what depends on the mesh alone is evaluated once a mesh.

    Source: `flopwise.training.schedules` for what a pipeline leaves idle; Rajbhandari et al.
    2019 (arXiv:1910.02054) section 7 and Zhao et al. 2023 (arXiv:2304.11277) section 3 for the messages of ZeRO and
    FSDP; `states_transfer_s` and `passes_transfer_s` for what lives in host memory.
    Assumes: every micro-batch is alike.
    """
    recipe, pp, dp, interleave = table.recipe, table.degrees[degree], layout.dp, layout.interleave
    modes, at = by_mode
    micro = table.inner.micro_batch[inner]
    num_micro = recipe.global_batch / (dp * micro)
    stage, stage_s = modes.stage_parts[:, *at], modes.stage_s[at]
    parts: dict[str, Floats] = dict(zip(table.lines, stage * num_micro, strict=True))
    pipe, piped = Pipe(pp, interleave, num_micro), int(pp.max(initial=1)) > 1
    parts["pipeline_bubble"] = 0.0
    if piped:
        others = others_s(modes, at, recomputes_all(layout), layout.schedule)
        parts["pipeline_bubble"] = bubble_s(layout.schedule, others, pipe) * (pp > 1)
    if hides_beside(table, layout.schedule):
        beside = modes.stage_beside_s[at]
        parts[ROUTED] = parts[ROUTED] - hidden_beside_s(table, inner, pipe, layout.schedule, beside)
    if recipe.documents is not None:
        each = np.asarray(layout.zero) > 2
        parts[WAITING] = num_micro * stage_s * recipe.documents.waiting_frac(micro, dp, num_micro, each=each)
    parts["pipeline_p2p"] = 0.0
    if piped:
        passes_s = stage[_FORWARD] + stage[_BACKWARD]
        parts["pipeline_p2p"] = p2p_step_s(table, inner, pipe, dp, layout.schedule, passes_s)
    parts["data_parallel"] = _data_parallel_s(table, inner, degree, layout, num_micro, stage)
    owned = owned_params(table, inner, degree, layout)
    parts["optimizer"] = _optimizer_s(table, owned, owned_others(table, inner, degree, layout), layout)
    if table.matrices is not None:
        group = shard_ranks(layout.shard, dp * table.inner.cp[inner])
        rate = table.rates.matmul_flops_per_s("bf16") * products_clock_frac(table.rates)  # of large products
        tp, ep = table.inner.tp[inner], table.inner.ep[inner]
        experts = table.recipe.expert_ranks(tp, ep)
        once = table.matrices.at(degree, inner).seconds(table.fabric, rate, tp, experts, group, layout.zero)
        parts[NEWTON_SCHULZ] = once * _copies(table, degree, layout)
    if layout.offloads:
        hides, rates = float(not table.serial), table.rates
        forward_s, backward_s = hides * stage[0], hides * (stage[1] + stage[2])
        exposed: Floats = 0.0
        if layout.offload_optimizer:
            grad_bytes = resident_grad_bytes(recipe)
            update_s = hides * parts["optimizer"]
            exposed = states_transfer_s(owned, grad_bytes, ACT_BYTES, rates, backward_s, update_s)
        if layout.offload_parameters or layout.offload_activations:
            weights = owned * (ACT_BYTES if layout.offload_parameters else 0.0)
            moved = 0.0 if modes.moved_bytes is None else modes.moved_bytes[at]
            exposed = exposed + passes_transfer_s(weights, moved, rates, forward_s, backward_s, num_micro)
        parts["offload"] = exposed
    parts["launch"] = num_micro * launch_s(table, degree, inner, stage, stage_s)
    if table.fresh_bytes is not None:
        parts[FRESH_MEMORY] = num_micro * table.fresh_bytes[inner] / table.rates.value["fresh_bytes_per_s"]
    return parts


def host_s(table: StepTable, mode: Array | int, degree: Index | int, inner: Index | int) -> Floats:
    """Host seconds to launch one micro-batch on the busiest stage, what is computed again launched again.

    Source: `StepTable.host_s`; checkpointing runs the module's forward function a second time (torch.utils.checkpoint).
    Assumes: a third of the launches are of the forward pass; launches of what runs again are its share of that pass.
    """
    return _host_s(table, degree, inner, table.stage_parts[:, mode, degree, inner])


def _host_s(table: StepTable, degree: Index | int, inner: Index | int, stage: Array) -> Floats:
    """`host_s` of a stage whose parts are known."""
    seconds: Floats = table.host_s[degree, inner] * (1.0 + stage[_RECOMPUTE] / stage[_FORWARD] / 3.0)
    return seconds


def counts_s(table: StepTable, mode: Array | int, degree: Index | int, inner: Index | int) -> Floats:
    """Seconds of one micro-batch on the busiest stage in which experts wait for counts, again where recomputed."""
    return _counts_s(table, degree, inner, table.stage_parts[:, mode, degree, inner])


def _counts_s(table: StepTable, degree: Index | int, inner: Index | int, stage: Array) -> Floats:
    """`counts_s` of a stage whose parts are known."""
    if not table.counts_s.any():
        return 0.0
    seconds: Floats = table.counts_s[degree, inner] * (1.0 + stage[_RECOMPUTE] / stage[_FORWARD])
    return seconds


def launch_s(table: StepTable, degree: Index, inner: Index, stage: Array, stage_s: Floats) -> Floats:
    """Seconds by which the host lengthens a micro-batch: launching beyond what the device is busy with, and counts.

    A device that is its own host has no time for the one while it does the other.

    Source: PyTorch's CPU operators run on the thread that dispatches them. Assumes: launches are spread evenly.
    """
    seconds = _host_s(table, degree, inner, stage)
    if table.rates.is_host:
        return seconds * table.rates.value["train_host_ratio"]
    return np.maximum(0.0, seconds - stage_s) + _counts_s(table, degree, inner, stage)


def others_s(modes: StepTable, at: tuple[Index, Index, Index], again: NDArray[np.bool_], schedule: Ints) -> Others:
    """Seconds of one micro-batch on all stages but the busiest; shares of passes only where a schedule asks for them.

    `modes`, `at`: as of `StepTable.modes`. `again`: all blocks are computed again.

    Source: sums over stages. Assumes: a forward pass has its part of the messages: half, a third where it runs again.
    """
    mode, _, inner = at
    others = Others(modes.rest_s[at], 0.0)
    if not any_of(schedule, lambda one: one.splits_backward):
        return others
    stage = modes.stage_parts[:, *at]
    weight_s = modes.weight_s[inner] - modes.stage_weight_s[at]
    passes = 2.0 + again
    whole = modes.model_parts[mode, 0, inner] - stage[0]
    messages = sum(modes.model_parts[mode, i, inner] - stage[i] for i in range(*_MESSAGES.indices(len(stage))))
    return Others(others.total_s, weight_s, np.maximum(whole + messages / passes, 0.0))


def own_paired_frac(pipe: Pipe) -> Floats:
    """Share of a step's passes that run beside one of another micro-batch where a stack pairs them by itself.

    Without a pipeline the first forward and the last backward pass run alone. With several chunks a stage, those do
    that fill the pipeline: on the first of p stages of v chunks 2 (p - 1) + (v - 1) p passes, and one more. With one
    chunk a stage none are paired.

    Source: Megatron-Core, `schedules.py`: warm-up of interleaved 1F1B, and one pass more with
    overlap_moe_expert_parallel_comm, which wants virtual stages in pipelines.
    Assumes: ranks alike.
    """
    stages, chunks = np.asarray(pipe.stages), np.asarray(pipe.chunks)
    alone = 2.0 * (stages - 1) + (chunks - 1) * stages * (stages > 1) + 1.0
    passes = np.where(stages > 1, chunks, 1) * np.maximum(pipe.micro_batches, 1.0)
    return np.where((stages > 1) & (chunks < 2), 0.0, np.maximum(1.0 - alone / passes, 0.0))


def hides_beside(table: StepTable, schedule: Ints) -> bool:
    """True if messages may hide beside passes of other micro-batches: by the schedule, or the stack."""
    if table.serial:
        return False
    return table.pairs_passes or table.pairs_crossing is not None or any_of(schedule, lambda one: one.pairs)


def hidden_beside_s(table: StepTable, inner: Index, pipe: Pipe, schedule: Ints, beside_s: Floats) -> Floats:
    """Seconds a step of messages that hide beside other passes, `beside_s` of each micro-batch that has one beside it.

    `inner` indexes the table's axis.

    Source: `paired_frac`, `own_paired_frac`; `BlockTimes.lines`. Assumes: as there.
    """
    staged = np.asarray(pipe.stages) > 1
    share = paired_frac(schedule, pipe) * staged
    if table.pairs_passes:
        share = np.maximum(share, own_paired_frac(pipe))
    elif table.pairs_crossing is not None:
        share = np.maximum(share, own_paired_frac(pipe) * (staged & table.pairs_crossing[inner]))
    return share * pipe.micro_batches * beside_s


def p2p_step_s(table: StepTable, inner: Index, pipe: Pipe, dp: Ints, schedule: Ints, passes_s: Floats) -> Floats:
    """Activations forward and gradients back between neighbouring stages, per step; what of it nothing hides.

    `passes_s`: forward and backward pass of a micro-batch on a stage.

    Source: Narayanan et al. 2021 (arXiv:2104.04473) section 4.1 (scatter/gather: each tensor rank sends its share);
    DeepSpeed's pipeline engine, `is_grad_partitioned` False: gradients go back whole; NVIDIA NeMo documentation,
    Communication Overlap: with virtual stages, sends run beside passes that do not need them, but not while the
    pipeline fills and drains.
    Assumes: chunks of a rank, those of a schedule too, multiply it; the stage behind the slowest hop sets the pace of
    all; each of p stages sends p - 1 times while it waits for its first chunk, and p times for each further chunk.
    """
    keys, chunks = table.inner, pipe.chunks
    tp, cp = keys.tp[inner], keys.cp[inner]
    if any_of(schedule, lambda one: one.chunks > 1):
        chunks = chunks * having(schedule, lambda one: one.chunks)
    nbytes = keys.micro_batch[inner] * table.seq_tokens[inner] / cp * table.width * ACT_BYTES
    stride = tp * cp * dp
    hop = p2p_s(table.fabric, nbytes / tp, stride, pipe.stages)
    back = p2p_s(table.fabric, nbytes, stride, pipe.stages) if table.software.whole_grad_hops else hop
    hops = pipe.micro_batches * chunks
    if any_of(schedule, lambda one: one.pairs) and not table.serial:
        hops = hops * (1.0 - paired_frac(schedule, pipe))
    both_s, fill = hop + back, pipe.stages - 1.0
    sent_s = both_s * (hops + fill)
    if table.software.hides_hops and np.max(pipe.chunks) > 1 and not table.serial:
        alone = np.minimum(fill + (pipe.chunks - 1.0) * pipe.stages, hops + fill)
        contention = table.rates.value["train_contention"]
        left_s = exposed_message_s(both_s, passes_s / chunks, hide=1.0, first=0.0, contention=contention)
        sent_s = np.where(pipe.chunks > 1, alone * both_s + (hops + fill - alone) * left_s, sent_s)
    return np.where(pipe.stages > 1, sent_s, 0.0)


def balanced_parts(table: StepTable, inner: Index, degree: Index, layout: Layout) -> dict[str, Floats]:
    """The lines of `step_parts` with those of the mean stage, and apart what the busiest takes longer; the same sum.

    Source and assumptions: as `step_parts`.
    """
    modes, (mode, _, place) = by_mode = table.modes(layout, degree, inner)
    parts = _lines(table, inner, degree, layout, by_mode)
    parts |= _stragglers(table, layout, parts)
    pp = table.degrees[degree]
    samples = layout.dp * table.inner.micro_batch[inner]  # of one round of micro-batches
    num_micro = table.recipe.global_batch / samples
    busiest = sum(parts[name] for name in table.lines)
    mean = {name: num_micro * modes.model_parts[mode, i, place] / pp for i, name in enumerate(table.lines)}
    if hides_beside(table, layout.schedule):
        beside = modes.model_beside_s[mode, place] / pp
        mean[ROUTED] = mean[ROUTED] - hidden_beside_s(
            table, inner, Pipe(pp, layout.interleave, num_micro), layout.schedule, beside
        )
    imbalance = np.where(pp > 1, np.maximum(busiest - sum(mean.values()), 0.0), 0.0)
    shown = {name: np.where(pp > 1, mean[name], parts[name]) for name in table.lines}
    return {**shown, "stage_imbalance": imbalance, **{k: v for k, v in parts.items() if k not in shown}}


def messages_s(
    table: StepTable, inner: Index, degree: Index, dp: Ints, shard: Ints, wanted: tuple[bool, bool, bool]
) -> tuple[Array, ...]:
    """Seconds of messages across replicas, hidden or not.

    All-reduce, reduce-scatter, all-gather, between groups, and all-gather of trained and frozen weights together.

    `wanted`: the first, the two after it, the last; zeros where not.

    Source: `flopwise.cost.collectives`; Narayanan et al. 2021 (arXiv:2104.04473) section 5.2: what ZeRO 3 loses to 3D
    parallelism it loses between nodes, where `message_frac` of a stack applies.
    Assumes: a message for each of `layer_messages` parts of each layer.
    """
    tp, cp, ep = table.inner.tp[inner], table.inner.cp[inner], table.inner.ep[inner]
    ranks = dp * cp
    grad_bytes = sent_grad_bytes(table.recipe)
    pieces = table.software.layer_messages * table.num_layers / table.degrees[degree]
    group = shard_ranks(shard, ranks) if wanted[2] else ranks
    links = group_fabric(table.fabric, inner=False, tp=tp)

    def message_s(
        collective: Callable[..., Floats], nbytes: Floats, n: Ints, stride: Ints, groups: Groups | None = None
    ) -> Array:
        seconds = collective(links, nbytes / pieces, n, stride=stride, groups=groups)
        frac: Floats = table.software.message_frac
        if frac != 1.0:
            frac = np.where(np.asarray(n) * stride > node_ranks(table.fabric), frac, 1.0)
        return np.asarray(pieces / frac * seconds)

    params, stride = table.dense_params[degree, inner][None], tp[None]
    if table.expert_params.any():
        params = np.stack([params[0], table.expert_params[degree, inner]])
        stride = np.stack([tp, np.broadcast_to(table.recipe.expert_ranks(tp, ep), tp.shape)])
    members = np.maximum(group * tp // stride, 1)
    every = np.maximum(ranks * tp // stride, 1) if group is not ranks else members
    whole = reduce_ = gather = across = np.zeros(inner.shape)
    groups = level_groups(links, members, stride)
    if wanted[0]:
        of_every = groups if every is members else None
        whole = message_s(all_reduce_s, params * grad_bytes, every, stride, of_every).sum(axis=0)
    if wanted[1]:  # what is scattered and what is gathered, over the same groups: one formula
        widths = sorted({grad_bytes, ACT_BYTES})
        sent = params * np.array(widths)[:, None, None]
        sent_s = message_s(all_gather_s, sent, members, stride, groups).sum(axis=1)
        reduce_, gather = (sent_s[widths.index(width)] for width in (grad_bytes, ACT_BYTES))
    if wanted[2]:
        across = message_s(all_reduce_s, params * grad_bytes / members, every // members, stride * members).sum(axis=0)
    together = gather
    if wanted[1] and table.frozen_bytes.any():
        of_dense = groups if len(params) == 1 else None
        still = table.frozen_bytes[degree, inner][None]
        together = gather + message_s(all_gather_s, still, members[:1], stride[:1], of_dense)[0]
    return whole, reduce_, gather, across, together


def _data_parallel_s(
    table: StepTable, inner: Index, degree: Index, layout: Layout, num_micro: Floats, stage: Array
) -> Floats:
    """Exposed seconds of gradients (and, with ZeRO, weights) across replicas, per step.

    `stage`: parts of a micro-batch on the busiest stage.

    ZeRO 0 and 1 send once a step, behind the last backward and the first forward, unless the software gathers the
    updated weights before that (`gathers_after_step`); ZeRO 2 scatters gradients, and where weights are sharded between
    steps gathers them, once a micro-batch; ZeRO 3 gathers weights twice and scatters gradients once a micro-batch; or
    once a step what the software leaves whole between (`Recipe.gathers`, `reductions`); where it shards over fewer
    ranks than there are (HSDP), the groups add up their shares of the gradients once a step. What the software overlaps
    hides behind compute, which it slows; one layer's share never hides.

    Source: DeepSpeed, stage_1_and_2.py `reduce_ready_partitions_and_remove_grads`: stage 2 reduces at every
    micro-batch; PyTorch, `ShardingStrategy.SHARD_GRAD_OP`.
    Assumes: micro-batches alike.
    """
    hybrid, stages = bool(np.any(layout.shard)), sorted(set(np.ravel(layout.zero).tolist()))
    forward, backward = stage[_FORWARD], stage[_BACKWARD] + stage[_RECOMPUTE]
    dp, shard = (np.broadcast_to(column, inner.shape) for column in (layout.dp, layout.shard))
    key = table.inner
    first, place = runs(key.tp[inner], key.cp[inner], key.ep[inner], degree, dp, shard)  # whatever the micro-batch
    wanted = (0 in stages, stages[-1] > 0, hybrid)
    messages = messages_s(table, inner[first], degree[first], dp[first], shard[first], wanted)
    whole, reduce_, gather, across, gather_all = (m[place] for m in messages)
    exposed_s = partial(
        exposed_message_s, hide=table.software.dp_overlap, first=1.0 / table.num_layers,
        contention=table.rates.value["train_contention"],
    )  # fmt: skip
    recipe, pp = table.recipe, layout.pp

    def of_stage(zero: int) -> Floats:
        """The seconds under one ZeRO stage, messages between groups of HSDP apart."""
        if not zero:
            return exposed_s(whole, backward)
        reduces, gathers = recipe.reductions(zero, pp, num_micro), recipe.gathers(zero, pp, num_micro)
        if zero < 3:
            behind = 0.0 * forward if table.software.gathers_after_step else forward
            weights = gather_all if zero >= recipe.shards_weights_from else gather
            return reduces * exposed_s(reduce_, backward) + gathers * exposed_s(weights, behind)
        again_s = np.where(recipe.gathers_once(pp), 0.0, gather_all)
        total = gathers * exposed_s(gather_all, forward) + reduces * exposed_s(again_s + reduce_, backward)
        return total + (num_micro - reduces) * exposed_s(again_s, backward)

    total = of_stage(stages[0])
    for zero in stages[1:]:
        total = np.where(np.asarray(layout.zero) == zero, of_stage(zero), total)
    total = total + exposed_s(across, backward) if hybrid else total
    twice = copies(layout.schedule, table.degrees[degree])
    return total if isinstance(twice, float) else total * twice


def exposed_message_s(message_s: Floats, behind_s: Floats, *, hide: float, first: float, contention: float) -> Floats:
    """Seconds by which a message lengthens a step behind whose compute of `behind_s` it may hide; broadcasts.

    `hide`: share of that compute that the software overlaps; `first`: share of the message that has nothing before it
    to hide behind; `contention`: by which hidden messages slow what they hide behind.

    Source: Li et al. 2020 (arXiv:2006.15704) section 3.2.3: buckets are sent as they are full.
    Assumes: the message is spread evenly over the compute.
    """
    open_s = np.maximum(message_s - hide * behind_s, message_s * first)
    return open_s + contention * (message_s - open_s)


def owned_params(table: StepTable, inner: Index, degree: Index, layout: Layout) -> Floats:
    """Trained parameters that a rank updates: sharded over the replicas from ZeRO 1 on.

    Ranks with the same experts are dp * cp * tp / `Recipe.expert_ranks`: so many share their states, fewer than those
    of everything else.

    Source: Megatron-LM, distributed optimizer (expert data-parallel group); Rajbhandari et al. 2022 (arXiv:2201.05596)
    section 4. Assumes: groups of HSDP that hold no two ranks with the same experts shard none of them.
    """
    keys, zero = table.inner, np.asarray(layout.zero)
    group, sharded = shard_ranks(layout.shard, layout.dp * keys.cp[inner]), zero > 0
    owned = table.dense_params[degree, inner] / np.where(sharded, group, 1)
    if table.expert_params.any():
        tp, ep = keys.tp[inner], keys.ep[inner]
        of_experts = np.maximum(group * tp / table.recipe.expert_ranks(tp, ep), 1.0)
        owned = owned + table.expert_params[degree, inner] / np.where(sharded, of_experts, 1)
    return owned * _copies(table, degree, layout)


def owned_others(table: StepTable, inner: Index, degree: Index, layout: Layout) -> Floats:
    """Parameters of embedding, head and norms among `owned_params`, if the optimizer keeps other states for them.

    Source and assumptions: as there.
    """
    if table.matrices is None:
        return 0.0
    group = shard_ranks(layout.shard, layout.dp * table.inner.cp[inner])
    whole = table.matrices.others[degree, inner] * _copies(table, degree, layout)
    return whole / np.where(np.asarray(layout.zero) > 0, group, 1)


def _copies(table: StepTable, degree: Index, layout: Layout) -> Floats:
    """Number of stages whose parameters a rank updates: those that it holds, unless copies share their states."""
    twice = copies(layout.schedule, table.degrees[degree])
    return 1.0 if isinstance(twice, float) else np.where(np.asarray(layout.zero) > 0, 1.0, twice)


def _optimizer_s(table: StepTable, owned: Floats, others: Floats, layout: Layout) -> Floats:
    """Seconds to read gradients and states and write states and weights of the parameters that a rank owns.

    `others`: those of embedding, head and norms.

    Source: bytes moved per parameter of each optimizer (`data/optimizers.csv`); on the host: `host_update_s`.
    Assumes: memory-bound, at the sustained memory bandwidth.
    """
    moved = owned * optimizer_traffic_bytes(table.recipe)
    if table.matrices is not None:
        moved = moved + others * others_traffic_bytes(table.recipe)
    if layout.offload_optimizer:
        return host_update_s(moved, table.fabric)
    return moved / table.rates.read_bytes_per_s


def node_ranks(fabric: Fabric) -> int:
    """Devices that links other than the network join."""
    return max((level.size for level in fabric.levels[:-1]), default=1)


def gpus_per_host(fabric: Fabric) -> int:
    """Devices that share one host's memory bandwidth: a node's, at most eight."""
    return max(1, min(node_ranks(fabric), MAX_GPUS_PER_HOST))


def host_update_s(traffic_bytes: Floats, fabric: Fabric) -> Floats:
    """Seconds in which the host updates the parameters of its devices, `traffic_bytes` for each device; broadcasts.

    Source: Ren et al. 2021 (arXiv:2101.06840) section 5.1 and table 4: a vectorised Adam bound by host memory.
    Assumes: two sockets a node; its devices' shares are updated at the same time.
    """
    return traffic_bytes * gpus_per_host(fabric) / HOST_BYTES_PER_S


def states_transfer_s(
    params: Floats, grad_bytes: float, weight_bytes: float, rates: Rates, backward_s: Floats, update_s: Floats
) -> Floats:
    """Exposed seconds of gradients down to the host and updated weights up; once a step; broadcasts.

    Gradients leave while the last backward pass runs; weights come back piece by piece behind the update.

    Source: Ren et al. 2021 (arXiv:2101.06840) section 4.1, figures 4 and 5.
    Assumes: pinned memory; both directions at the full rate.
    Raises: MissingFactError: as `host_link_bytes_per_s`.
    """
    rate = host_link_bytes_per_s(rates)
    down, up = params * grad_bytes / rate, params * weight_bytes / rate
    return np.maximum(down - backward_s, 0.0) + np.maximum(up - update_s, 0.0)


def passes_transfer_s(
    weights: Floats, activations: Floats, rates: Rates, forward_s: Floats, backward_s: Floats, num_micro: Floats
) -> Floats:
    """Exposed seconds of what every micro-batch moves between device and host, per step; broadcasts.

    `weights`: bytes of a rank's shard, which come up for both passes; `activations`: bytes that go down in the forward
    pass, beside the weights that come up, and come back in the backward pass, after them. What hides behind compute
    takes memory bandwidth from it: each byte is read or written once on the device.

    Source: Rajbhandari et al. 2021 (arXiv:2104.07857) section 5.1: bandwidth-centric partitioning, prefetched; NVIDIA
    Transformer Engine, CPU offloading: copies of activations overlap with compute and share its memory bandwidth.
    Assumes: copying hides as much as the pass takes; the link carries its rate both ways at once; every device has a
    link of its own to a host whose memory keeps up (where switches share an uplink it does not: 3 of 12 GB/s on DGX-2).
    Raises: MissingFactError: as `host_link_bytes_per_s`.
    """
    rate = host_link_bytes_per_s(rates)
    up, kept = weights / rate, activations / rate
    open_s = np.maximum(np.maximum(up, kept) - forward_s, 0.0) + np.maximum(up + kept - backward_s, 0.0)
    return num_micro * (open_s + 2.0 * activations / rates.read_bytes_per_s)
