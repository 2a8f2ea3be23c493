"""One optimizer step: micro-batches through pipeline stages, gradients across replicas, the optimizer.

Two levels. `StepTable` holds what depends on the model, the recipe and the few distinct (tp, cp, ep, micro-batch, pp,
recompute) combinations; `step_parts` composes millions of layouts out of it with array arithmetic. A single estimate
is a table with one entry: the same formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial as with_first
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flopwise.cost.collectives import all_gather_s, all_reduce_s, p2p_s, reduce_scatter_s
from flopwise.cost.sustained import training_rates
from flopwise.facts.architecture import Model, Stack
from flopwise.ops.columns import runs
from flopwise.ops.types import Array, Floats, Ints
from flopwise.training.block_lines import (
    BESIDE,
    EXPERT_IMBALANCE,
    STAGE_PARTS,
    block_lines,
    blocks_with_messages,
    contexts,
    kernel_columns,
    mode_parts,
    rows_of,
)
from flopwise.training.blocks import Kernels
from flopwise.training.frozen import split_model
from flopwise.training.layout import Inner, shard_ranks
from flopwise.training.muon import NEWTON_SCHULZ, Matrices, newton_schulz_s, stage_matrices
from flopwise.training.offload import host_update_s, offload_s
from flopwise.training.routing import expert_load
from flopwise.training.schedules import Others, Pipe, any_of, bubble_s, copies, having, paired_frac
from flopwise.training.stage_parameters import stage_parameters
from flopwise.training.stages import FULL, Partial, heaviest, mode_index, stage_sums, stage_weights
from flopwise.training.state_bytes import (
    ACT_BYTES,
    DTYPE_BYTES,
    optimizer_traffic_bytes,
    others_traffic_bytes,
    resident_grad_dtype,
    sent_grad_bytes,
)

if TYPE_CHECKING:
    from flopwise.cost.fabric import Fabric
    from flopwise.cost.rates import Rates
    from flopwise.facts.software import TrainingStack
    from flopwise.training.documents import Documents
    from flopwise.training.layout import Layout, Recipe

Index = NDArray[np.intp]
ROUTED = "expert_parallel"
_MESSAGES = slice(STAGE_PARTS.index("tensor_parallel"), len(STAGE_PARTS))
WAITING = "waiting_for_lengths"
"""The line of what padded replicas wait for the one with the longest documents; there only where lengths are given."""


@dataclass(frozen=True, slots=True)
class StepTable:
    """Per-micro-batch times of the heaviest stage and of the whole model, ready to be gathered.

    Axes: recompute mode (3, and one for each of `partials`), pipeline degree (d), inner combination (n).
    """

    recipe: Recipe
    software: TrainingStack
    rates: Rates
    fabric: Fabric
    width: int
    num_layers: int
    degrees: NDArray[np.int64]
    inner: Inner
    seq_tokens: NDArray[np.float64]  # (n,): tokens of a sequence as computed
    stage_parts: NDArray[np.float64]  # (parts, 3, d, n): of the heaviest stage, as `lines` names them
    stage_weight_s: NDArray[np.float64]  # (3, d, n): of its backward pass, in gradients of weights
    model_parts: NDArray[np.float64]  # (3, parts, n): all stages one after the other
    model_s: NDArray[np.float64]  # (3, n): the sum of those
    stage_beside_s: NDArray[np.float64]  # (3, d, n): of the heaviest stage's messages, what hides beside other passes
    model_beside_s: NDArray[np.float64]  # (3, n): of all stages' messages
    weight_s: NDArray[np.float64]  # (n,): of all stages, in gradients of weights
    again_flops: NDArray[np.float64]  # (3, n): one micro-batch, all stages, one rank: computed again
    memory_s: NDArray[np.float64]  # (d, n): of the heaviest stage, in memory-bound kernels
    host_s: NDArray[np.float64]  # (d, n): launching that stage's kernels
    dense_params: NDArray[np.float64]  # (d, n): trainable, heaviest stage, one rank
    expert_params: NDArray[np.float64]
    frozen_bytes: NDArray[np.float64]  # of what is not trained, as it is gathered
    model_flops: NDArray[np.float64]  # (n,): one micro-batch, all stages, one rank
    forward_flops: NDArray[np.float64]
    floor_s: NDArray[np.float64]  # (3, d, n): peak compute, datasheet memory and wire seconds of the heaviest stage
    partials: tuple[Partial, ...]  # what the modes after the first three are
    kernels: list[list[Kernels]]  # of every block, evenly routed and on the fullest rank; for a table of other links
    lines_by_block: NDArray[np.float64]  # (blocks, 3, parts + 3, n): what the stages are summed from
    matrices: Matrices | None  # of the heaviest stage, where the optimizer orthogonalises them
    moved_bytes: NDArray[np.float64] | None = None  # (modes, d, n): as `moved_bytes`, where activations move

    @property
    def link_independent(self) -> tuple[tuple[NDArray[np.float64], ...], Matrices | None]:
        """What no link and no device changes, as `stage_parameters` and `stage_matrices`."""
        return (self.dense_params, self.expert_params, self.frozen_bytes, self.host_s), self.matrices

    @property
    def lines(self) -> tuple[str, ...]:
        """Names of the rows of `stage_parts`."""
        return (*STAGE_PARTS, EXPERT_IMBALANCE)[: len(self.stage_parts)]


def step_table(
    model: Model,
    recipe: Recipe,
    software: TrainingStack,
    rates: Rates,
    fabric: Fabric,
    inner: Inner,
    degrees: NDArray[np.int64],
    *,
    sequence_parallel: bool = True,
    kernels: list[list[Kernels]] | None = None,
    like: StepTable | None = None,
    sizes: tuple[int, ...] = (),
    partials: tuple[Partial, ...] = (),
) -> StepTable:
    """Evaluate every block for every inner combination, and every pipeline degree over them.

    `kernels`: those of an earlier table for the same model, recipe, rates and inner columns; links may differ. `like`:
    any earlier table for the same model, recipe, inner columns and degrees. `sizes`: layers of each stage, for a single
    degree. `partials`: recompute of some blocks, beside that of none and all.

    Raises:
        MissingFactError: the accelerator lacks a rate that the recipe needs.
    """
    split = split_model(model, recipe.frozen)
    model, stack = split.model, split.model.stacks[0]
    rates = training_rates(rates, software, recipe.precision)
    shape, load = recipe.shape(model, inner.micro_batch), expert_load(model, recipe, inner.ep)
    shared = contexts(recipe, software, rates, fabric, inner, shape, sequence_parallel=sequence_parallel, load=load)
    kernels = kernels or [kernel_columns(split, context) for context in shared]
    loaded = [blocks_with_messages(split, *each) for each in zip(shared, kernels, strict=True)]
    contention = rates.value["train_contention"]
    lines = block_lines(loaded, software, recipe.selective or software.selective, contention)
    parts, model_parts = mode_parts(stack, degrees, sizes, partials, lines)
    weights, starts = stage_weights(stage_sums(stack.order, len(stack.kinds), degrees, sizes))
    most = with_first(heaviest, starts, weights)
    (dense, expert, still, host), matrices = (
        like.link_independent
        if like
        else (
            stage_parameters(split, inner, recipe, software, weights, starts),
            stage_matrices(split, recipe, inner.tp, inner.ep, weights, starts),
        )
    )
    return StepTable(
        recipe=recipe,
        software=software,
        rates=rates,
        fabric=fabric,
        width=stack.width,
        num_layers=stack.num_layers,
        degrees=degrees,
        inner=inner,
        seq_tokens=np.broadcast_to(recipe.computed_tokens(inner.micro_batch)[0], inner.micro_batch.shape),
        memory_s=most(rows_of(kernels[-1], "memory_s")),
        host_s=host,
        dense_params=dense,
        expert_params=expert,
        frozen_bytes=still,
        floor_s=np.stack(
            [*(most(rows_of(kernels[-1], n)) for n in ("peak_s", "traffic_s")), most(rows_of(loaded[-1], "wire_s"))]
        ),
        kernels=kernels,
        partials=partials,
        lines_by_block=lines,
        matrices=matrices,
        **_block_sums(stack, parts, model_parts, kernels[0]),
    )


def with_partials(table: StepTable, model: Model, partials: tuple[Partial, ...]) -> StepTable:
    """The same table with modes of partial recompute; every stage as even as layers allow."""
    stack = split_model(model, table.recipe.frozen).model.stacks[0]
    parts, model_parts = mode_parts(stack, table.degrees, (), partials, table.lines_by_block)
    summed = _block_sums(stack, parts, model_parts, table.kernels[0])
    return replace(table, partials=partials, **summed)  # type: ignore[arg-type]  # fields by name


def _block_sums(
    stack: Stack, stages: NDArray[np.float64], whole: NDArray[np.float64], kernels: list[Kernels]
) -> dict[str, NDArray[np.float64]]:
    """Sums over the blocks of the heaviest stage and of all: seconds and operations of one micro-batch.

    `stages` and `whole`: as `mode_parts` has them.
    """
    times = np.concatenate([[1.0], np.bincount(np.asarray(stack.order), minlength=len(stack.kinds)), [1.0]])
    return {
        "stage_parts": stages[:-2],
        "stage_weight_s": stages[-2],
        "stage_beside_s": stages[-1],
        "model_parts": whole[:, :-BESIDE],
        "model_s": whole[:, :-BESIDE].sum(axis=1),
        "weight_s": whole[0, -3],
        "model_beside_s": whole[:, -2],
        "again_flops": whole[:, -1],
        **{name: np.tensordot(times, rows_of(kernels, name), 1) for name in ("model_flops", "forward_flops")},
    }


def step_parts(
    table: StepTable, inner: NDArray[np.intp], degree: NDArray[np.intp], layout: Layout
) -> dict[str, Floats]:
    """Seconds of one optimizer step by line; the values add up to the step.

    `inner` and `degree` index the table's axes. Of `layout`, dp and the choices are read (ZeRO, interleave, schedule,
    recompute, shard). Everything broadcasts: a search gives meshes and choices on axes of their own, and what depends
    on the mesh alone is evaluated once a mesh.

    Source: `flopwise.training.schedules` for what a pipeline leaves idle; Rajbhandari et al.
    2019 (arXiv:1910.02054) section 7 and Zhao et al. 2023 (arXiv:2304.11277) section 3 for the messages of ZeRO and
    FSDP.
    Assumes: every micro-batch is alike.
    """
    recipe, pp, dp = table.recipe, table.degrees[degree], layout.dp
    interleave, recompute = layout.interleave, mode_index(layout, table.partials)
    micro = table.inner.micro_batch[inner]
    num_micro = recipe.global_batch / (dp * micro)
    stage = table.stage_parts[:, recompute, degree, inner]
    stage_s = stage.sum(axis=0)
    parts: dict[str, Floats] = dict(zip(table.lines, stage * num_micro, strict=True))
    pipe, others = Pipe(pp, interleave, num_micro), others_s(table, recompute, degree, inner, layout.schedule)
    parts["pipeline_bubble"] = bubble_s(layout.schedule, others, pipe) * (pp > 1)
    if any_of(layout.schedule, lambda schedule: schedule.pairs):
        beside = table.stage_beside_s[recompute, degree, inner]
        parts[ROUTED] = parts[ROUTED] - hidden_beside_s(layout.schedule, pipe, beside)
    if recipe.documents is not None:
        parts[WAITING] = _waiting_s(recipe.documents, stage_s, micro, layout, num_micro)
    parts["pipeline_p2p"] = p2p_step_s(table, inner, pipe, dp, layout.schedule)
    parts["data_parallel"] = _data_parallel_s(table, inner, degree, layout, num_micro)
    owned = owned_params(table, inner, degree, layout)
    parts["optimizer"] = _optimizer_s(table, owned, owned_others(table, inner, degree, layout), layout)
    if table.matrices is not None:
        parts[NEWTON_SCHULZ] = _newton_schulz_s(table, table.matrices, inner, degree, layout)
    if layout.offloads:
        widths = DTYPE_BYTES[resident_grad_dtype(recipe, table.software)], ACT_BYTES
        moved = 0.0 if table.moved_bytes is None else table.moved_bytes[recompute, degree, inner]
        parts["offload"] = offload_s(layout, owned, widths, moved, stage, table.rates, parts["optimizer"], num_micro)
    parts["launch"] = num_micro * np.maximum(0.0, table.host_s[degree, inner] - stage_s)
    return parts


def others_s(
    table: StepTable, mode: Array, degree: NDArray[np.intp], inner: NDArray[np.intp], schedule: Ints
) -> Others:
    """Seconds of one micro-batch on all stages but the busiest; shares of passes only where a schedule asks for them.

    Source: sums over stages. Assumes: a forward pass has its part of the messages: half, a third where it runs again.
    """
    stage = table.stage_parts[:, mode, degree, inner]
    others = Others(np.maximum(table.model_s[mode, inner] - stage.sum(axis=0), 0.0), 0.0)
    if not any_of(schedule, lambda one: one.splits_backward):
        return others
    weight_s = table.weight_s[inner] - table.stage_weight_s[mode, degree, inner]
    passes = 2.0 + (np.asarray(mode) == FULL)
    whole = table.model_parts[mode, 0, inner] - stage[0]
    messages = sum(table.model_parts[mode, i, inner] - stage[i] for i in range(*_MESSAGES.indices(len(stage))))
    return Others(others.total_s, weight_s, np.maximum(whole + messages / passes, 0.0))


def hidden_beside_s(schedule: Ints, pipe: Pipe, beside_s: Floats) -> Floats:
    """Seconds a step of messages that hide beside other passes, `beside_s` of each micro-batch that has one beside it.

    Source: `paired_frac`; `stage_lines`. Assumes: as there.
    """
    return paired_frac(schedule, pipe) * pipe.micro_batches * beside_s * (np.asarray(pipe.stages) > 1)


def p2p_step_s(table: StepTable, inner: NDArray[np.intp], pipe: Pipe, dp: Ints, schedule: Ints) -> Floats:
    """Activations forward and gradients back between neighbouring stages, per step.

    Source: Narayanan et al. 2021 (arXiv:2104.04473) section 4.1 (scatter/gather: each tensor rank sends its share);
    DeepSpeed's pipeline engine, `is_grad_partitioned` False: gradients go back whole.
    Assumes: nothing hides it but passes side by side; chunks of a rank, those of a schedule too, multiply it.
    """
    keys, chunks = table.inner, pipe.chunks
    tp, cp = keys.tp[inner], keys.cp[inner]
    if any_of(schedule, lambda one: one.chunks > 1):
        chunks = chunks * having(schedule, lambda one: one.chunks)
    nbytes = keys.micro_batch[inner] * table.seq_tokens[inner] / cp * table.width * ACT_BYTES
    hop = p2p_s(table.fabric, nbytes / tp, stride=tp * cp * dp)
    back = p2p_s(table.fabric, nbytes, stride=tp * cp * dp) if table.software.whole_grad_hops else hop
    hops = pipe.micro_batches * chunks
    if any_of(schedule, lambda one: one.pairs):
        hops = hops * (1.0 - paired_frac(schedule, pipe))
    return np.where(pipe.stages > 1, (hop + back) * (hops + pipe.stages - 1), 0.0)


def _waiting_s(documents: Documents, stage_s: Floats, micro: Ints, layout: Layout, num_micro: Floats) -> Floats:
    """Seconds of a step that replicas wait for the one with the longest documents. Source: `waiting_frac`."""
    each = np.asarray(layout.zero) > 2
    return num_micro * stage_s * documents.waiting_frac(micro, layout.dp, num_micro, each=each)


def balanced_parts(
    table: StepTable, inner: NDArray[np.intp], degree: NDArray[np.intp], layout: Layout
) -> dict[str, Floats]:
    """The lines of `step_parts` with those of the mean stage, and apart what the busiest takes longer; the same sum.

    Source and assumptions: as `step_parts`.
    """
    parts = step_parts(table, inner, degree, layout)
    mode, pp = mode_index(layout, table.partials), table.degrees[degree]
    num_micro = table.recipe.global_batch / (layout.dp * table.inner.micro_batch[inner])
    busiest = sum(parts[name] for name in table.lines)
    mean = {name: num_micro * table.model_parts[mode, i, inner] / pp for i, name in enumerate(table.lines)}
    if any_of(layout.schedule, lambda schedule: schedule.pairs):
        beside = table.model_beside_s[mode, inner] / pp
        mean[ROUTED] = mean[ROUTED] - hidden_beside_s(layout.schedule, Pipe(pp, layout.interleave, num_micro), beside)
    imbalance = np.where(pp > 1, np.maximum(busiest - sum(mean.values()), 0.0), 0.0)
    shown = {name: np.where(pp > 1, mean[name], parts[name]) for name in table.lines}
    return {**shown, "stage_imbalance": imbalance, **{k: v for k, v in parts.items() if k not in shown}}


def _messages_s(
    table: StepTable,
    inner: NDArray[np.intp],
    degree: NDArray[np.intp],
    dp: Ints,
    shard: Ints,
    wanted: tuple[bool, bool, bool],
) -> tuple[Array, ...]:
    """Seconds of messages across replicas, hidden or not.

    All-reduce, reduce-scatter, all-gather, between groups, and all-gather of trained and frozen weights together.

    `wanted`: the first, the two after it, the last; zeros where not.

    Source: `flopwise.cost.collectives`. Assumes: a message for each of `layer_messages` parts of each layer.
    """
    tp, cp, ep = table.inner.tp[inner], table.inner.cp[inner], table.inner.ep[inner]
    ranks = dp * cp
    grad_bytes = sent_grad_bytes(table.recipe, table.software)
    pieces = table.software.layer_messages * table.num_layers / table.degrees[degree]
    group = shard_ranks(shard, ranks)
    whole: Floats = np.zeros(inner.shape)
    reduce_, gather, across = whole, whole, whole

    def sent(collective: Callable[..., Floats], nbytes: Floats, n: Ints, stride: Ints) -> Floats:
        seconds = collective(table.fabric, nbytes / pieces, n, stride=stride)
        return pieces / table.software.message_frac * seconds

    groups: list[tuple[Floats, Ints, Ints]] = [(table.dense_params[degree, inner], 1, tp)]
    if table.expert_params.any():
        groups.append((table.expert_params[degree, inner], ep, tp * ep))
    for params, share, stride in groups:
        grads, weights = params * grad_bytes, params * ACT_BYTES
        members, every = np.maximum(group // share, 1), np.maximum(ranks // share, 1)
        if wanted[0]:
            whole = whole + sent(all_reduce_s, grads, every, stride)
        if wanted[1]:
            reduce_ = reduce_ + sent(reduce_scatter_s, grads, members, stride)
            gather = gather + sent(all_gather_s, weights, members, stride)
        if wanted[2]:
            across = across + sent(all_reduce_s, grads / members, every // members, stride * members)
    still = table.frozen_bytes[degree, inner]
    together = gather + sent(all_gather_s, still, group, tp) if table.frozen_bytes.any() else gather
    return tuple(np.asarray(message) for message in (whole, reduce_, gather, across, together))


def _data_parallel_s(
    table: StepTable, inner: NDArray[np.intp], degree: NDArray[np.intp], layout: Layout, num_micro: Floats
) -> Floats:
    """Exposed seconds of gradients (and, with ZeRO, weights) across replicas, per step.

    ZeRO 0 to 2 send once a step, behind the last backward and the first forward; ZeRO 3 gathers weights twice and
    scatters gradients once a micro-batch; where it shards over fewer ranks than there are (HSDP), the groups add up
    their shares of the gradients once a step. What the software overlaps hides behind compute, which it slows; one
    layer's share never hides.
    """
    zero, hybrid = np.asarray(layout.zero), bool(np.any(layout.shard))
    replicated, full = bool((zero == 0).any()), bool((zero > 2).any())
    stage = table.stage_parts[:, mode_index(layout, table.partials), degree, inner]
    forward, backward = stage[0], stage[1] + stage[2]
    dp, shard = (np.broadcast_to(column, inner.shape) for column in (layout.dp, layout.shard))
    key = table.inner
    first, again = runs(key.tp[inner], key.cp[inner], key.ep[inner], degree, dp, shard)  # whatever the micro-batch
    wanted = (replicated, bool(zero.any()), hybrid)
    messages = _messages_s(table, inner[first], degree[first], dp[first], shard[first], wanted)
    whole, reduce_, gather, across, gather_all = (m[..., again] for m in messages)
    hide, prologue = table.software.dp_overlap, 1.0 / table.num_layers
    contention = table.rates.value["train_contention"]

    def exposed_s(message: Floats, behind: Floats) -> Floats:
        open_s = np.maximum(message - hide * behind, message * prologue)
        return open_s + contention * (message - open_s)

    found: Floats = exposed_s(whole, backward) if replicated else 0.0
    if ((zero > 0) & (zero < 3)).any():
        found = np.where(zero == 0, found, exposed_s(reduce_, backward) + exposed_s(gather, forward))
    if full:
        each = num_micro * (exposed_s(gather_all, forward) + exposed_s(gather_all + reduce_, backward))
        found = np.where(zero < 3, found, each) if zero.min() < 3 else each
    found = found + exposed_s(across, backward) if hybrid else found
    return found * copies(layout.schedule, table.degrees[degree])


def owned_params(table: StepTable, inner: NDArray[np.intp], degree: NDArray[np.intp], layout: Layout) -> Floats:
    """Trained parameters that a rank updates: sharded over the replicas from ZeRO 1 on.

    Ranks with the same experts are dp * cp / ep: so many, fewer than of everything else, share their states.

    Source: Megatron-LM, distributed optimizer (expert data-parallel group); Rajbhandari et al. 2022 (arXiv:2201.05596)
    section 4. Assumes: groups of HSDP that hold no two ranks with the same experts shard none of them.
    """
    keys, zero = table.inner, np.asarray(layout.zero)
    group = shard_ranks(layout.shard, layout.dp * keys.cp[inner])
    of_experts = np.maximum(group / keys.ep[inner], 1.0)
    dense, expert = table.dense_params[degree, inner], table.expert_params[degree, inner]
    owned = dense / np.where(zero > 0, group, 1) + expert / np.where(zero > 0, of_experts, 1)
    return owned * _copies(table, degree, layout)


def owned_others(table: StepTable, inner: NDArray[np.intp], degree: NDArray[np.intp], layout: Layout) -> Floats:
    """Of `owned_params`, those of embedding, head and norms where the optimizer keeps other states for them.

    Source and assumptions: as there.
    """
    if table.matrices is None:
        return 0.0
    group = shard_ranks(layout.shard, layout.dp * table.inner.cp[inner])
    whole = table.matrices.others[degree, inner] * _copies(table, degree, layout)
    return whole / np.where(np.asarray(layout.zero) > 0, group, 1)


def _newton_schulz_s(
    table: StepTable, matrices: Matrices, inner: NDArray[np.intp], degree: NDArray[np.intp], layout: Layout
) -> Floats:
    """Seconds in which a rank orthogonalises the matrices of all stages of which it holds copies.

    Source: `newton_schulz_s`. Assumes: products at the sustained rate of large ones in bf16.
    """
    tp, ep = table.inner.tp[inner], table.inner.ep[inner]
    group = shard_ranks(layout.shard, layout.dp * table.inner.cp[inner])
    rate = table.rates.matmul_flops_per_s("bf16")
    once = newton_schulz_s(matrices.at(degree, inner), table.fabric, rate, tp, ep, group, layout.zero)
    return once * _copies(table, degree, layout)


def _copies(table: StepTable, degree: NDArray[np.intp], layout: Layout) -> Floats:
    """Of how many stages a rank updates the parameters: those that it holds, unless copies share their states."""
    twice = copies(layout.schedule, table.degrees[degree])
    return np.where(np.asarray(layout.zero) > 0, 1.0, twice) if np.any(np.asarray(twice) > 1) else 1.0


def _optimizer_s(table: StepTable, owned: Floats, others: Floats, layout: Layout) -> Floats:
    """Seconds to read gradients and states and write states and weights of the parameters that a rank owns.

    `others`: those of embedding, head and norms.

    Source: bytes moved per parameter of each optimizer (`data/optimizers.csv`); on the host: `host_update_s`.
    Assumes: memory-bound, at the sustained memory bandwidth.
    """
    moved = owned * optimizer_traffic_bytes(table.recipe, table.software)
    if table.matrices is not None:
        moved = moved + others * others_traffic_bytes(table.recipe, table.software)
    if layout.offload_optimizer:
        return host_update_s(moved, table.fabric)
    return moved / table.rates.read_bytes_per_s
