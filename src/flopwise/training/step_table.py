"""Per-micro-batch times of a model under a recipe: every block for every inner combination, summed over stages.

`StepTable` holds what depends on the model, the recipe and the few distinct (tp, cp, ep, micro-batch, pp, recompute)
combinations; `flopwise.training.step` composes layouts out of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flopwise.cost.precisions import LOW_PRECISIONS
from flopwise.cost.sustained import MEMORY_POWER, POWER, clock_frac, grouped_kernel, training_rates
from flopwise.facts.architecture import Embedding, Experts, Linear
from flopwise.facts.formats import BF16
from flopwise.ops.columns import distinct
from flopwise.ops.flops import runs, stack_shape
from flopwise.ops.shapes import Shape, Split
from flopwise.ops.tensors import sharded_parameters
from flopwise.ops.weights import frozen_bytes
from flopwise.ops.work import inner_tp
from flopwise.training.adapters import adapter_matrices, adapter_parameters, extra_items
from flopwise.training.blocks import (
    BlockContext,
    BlockTimes,
    BoostedKernels,
    Kernels,
    block_kernels,
    has_fused_experts,
    tensor_parallel_s,
)
from flopwise.training.frozen import run_model
from flopwise.training.muon import Matrices, hidden_matrices
from flopwise.training.routing import expert_load
from flopwise.training.stages import (
    Partial,
    first_blocks,
    heaviest,
    mode_index,
    stage_layer_counts,
    stage_weights,
)
from flopwise.training.stragglers import JITTER_FRAC
from flopwise.training.widths import ACT_BYTES
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from flopwise.cost.fabric import Fabric
    from flopwise.cost.rates import Rates
    from flopwise.facts.architecture import Item, Model, Stack
    from flopwise.facts.software import TrainingStack
    from flopwise.ops.types import Floats, Ints
    from flopwise.training.frozen import Block, SplitModel
    from flopwise.training.layout import Inner, Layout, Recipe

EXPERT_IMBALANCE = "expert_imbalance"
"""The line of what uneven routing adds to the others; there only where routing is uneven."""
STAGE_PARTS = ("forward", "backward", "recompute", "tensor_parallel", "context_parallel", "expert_parallel")
"""Lines of a step that each block of a stage adds to."""
RECOMPUTE_MODES = 3
"""None, selective, full."""
BESIDE = 3
"""Rows of `BlockTimes.lines` after those of `STAGE_PARTS`."""
Index = NDArray[np.intp]
DeviceKernels = list[list[Kernels]]
"""Kernels of every block on one device: evenly routed, and where routing is uneven on the fullest rank."""


@dataclass(frozen=True, slots=True)
class StepTable:
    """Per-micro-batch times of the heaviest stage and of the whole model, ready to be gathered.

    Axes: recompute mode (3, and one for each of `partials`), pipeline degree (d), inner combination (n).
    """

    recipe: Recipe
    rates: Rates
    fabric: Fabric
    width: int
    num_layers: int
    degrees: NDArray[np.int64]
    inner: Inner
    seq_tokens: NDArray[np.float64]  # (n,): tokens of a sequence as computed
    stage_parts: NDArray[np.float64]  # (parts, 3, d, n): of the heaviest stage, as `lines` names them
    stage_s: NDArray[np.float64]  # (3, d, n): the sum of those
    rest_s: NDArray[np.float64]  # (3, d, n): what all stages but that one take
    stage_weight_s: NDArray[np.float64]  # (3, d, n): of its backward pass, in gradients of weights
    model_parts: NDArray[np.float64]  # (3, parts, n): all stages one after the other
    model_s: NDArray[np.float64]  # (3, n): the sum of those
    stage_beside_s: NDArray[np.float64]  # (3, d, n): of the heaviest stage's messages, what hides beside other passes
    model_beside_s: NDArray[np.float64]  # (3, n): of all stages' messages
    weight_s: NDArray[np.float64]  # (n,): of all stages, in gradients of weights
    again_flops: NDArray[np.float64]  # (3, n): one micro-batch, all stages, one rank: computed again
    memory_s: NDArray[np.float64]  # (d, n): of the heaviest stage, in memory-bound kernels
    host_s: NDArray[np.float64]  # (d, n): launching that stage's kernels
    counts_s: NDArray[np.float64]  # (d, n): that stage's forward pass waiting for the host to know experts' tokens
    dense_params: NDArray[np.float64]  # (d, n): trainable, heaviest stage, one rank
    expert_params: NDArray[np.float64]
    frozen_bytes: NDArray[np.float64]  # of what is not trained, as it is gathered
    forward_flops: NDArray[np.float64]  # (n,): one micro-batch, all stages, one rank
    wire_s: NDArray[np.float64]  # (blocks, n): messages of every block at datasheet rates
    stages: tuple[NDArray[np.float64], NDArray[np.intp]]  # as `stage_weights`
    partials: tuple[Partial, ...]  # what the modes after the first three are
    stack: Stack
    sizes: tuple[int, ...]  # layers of each stage where they are named
    block_lines: NDArray[np.float64]  # (blocks, 3, parts + 3, n): as `_block_lines`
    kernels: DeviceKernels  # of every block; for a table of other links
    matrices: Matrices | None  # of the heaviest stage, where the optimizer orthogonalises them
    fresh_bytes: NDArray[np.float64] | None = None  # (n,): as `fresh_bytes`, where the device is a CPU
    pairs_passes: bool = False  # experts' messages run beside passes of other micro-batches, whatever the schedule
    pairs_crossing: NDArray[np.bool_] | None = None  # (n,): those between nodes do so, where stages have several chunks
    moved_bytes: NDArray[np.float64] | None = None  # (modes, d, n): as `moved_bytes`, where activations move
    jitter_frac: float = JITTER_FRAC  # standard deviation of step times between ranks, over their mean
    serial: bool = False  # neither other passes, nor virtual stages, nor copies to the host hide anything: upper bound

    @property
    def lines(self) -> tuple[str, ...]:
        """Names of the rows of `stage_parts`."""
        return (*STAGE_PARTS, EXPERT_IMBALANCE)[: len(self.stage_parts)]

    def modes(self, layout: Layout, degree: Index, inner: Index) -> tuple[StepTable, tuple[Index, Index, Index]]:
        """A table that has the recompute of every candidate of `layout`, and the places of each in its columns by mode.

        The places are those in the axes of mode, degree and inner combination. The table is this one, unless the first
        blocks of stages are computed again: how many there are is no axis, and the columns by mode are those of the
        candidates one by one.
        """
        first, mode = first_blocks(layout), mode_index(layout, self.partials)
        if not first.any():
            return self, (mode, degree, inner)
        shape = np.broadcast_shapes(mode.shape, np.shape(degree), np.shape(inner), first.shape)
        mode, d, n, first = (np.broadcast_to(each, shape).ravel() for each in (mode, degree, inner, first))
        beside = [each[mode, d, n] for each in (self.stage_weight_s, self.stage_beside_s)]
        stage = np.concatenate([self.stage_parts[:, mode, d, n], beside])
        rest = [self.weight_s[n], self.model_beside_s[mode, n], self.again_flops[mode, n]]
        model = np.concatenate([self.model_parts[mode, :, n].T, rest])
        some = first > 0
        stage[:, some], model[:, some] = self._first_sums(d[some], n[some], first[some])
        columns = _columns_by_mode(stage[:, None, None], model[None])
        moved = self.moved_bytes if self.moved_bytes is None else self.moved_bytes[mode, d, n][None, None]
        zero = np.zeros(shape, dtype=np.intp)
        return replace(self, **columns, moved_bytes=moved), (zero, zero, np.arange(mode.size).reshape(shape))

    def _first_sums(self, degree: Index, inner: Index, first: Index) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """`_some_sums` of candidates one by one, (parts + 2, candidates) and (parts + 3, candidates).

        The `first` blocks of each stage are computed again.
        """
        (degrees, firsts), place = distinct(degree, first)
        kinds, heads, order = len(self.stack.kinds), self.stack.output_heads, self.stack.order
        weights, counts = [], []
        for pp, blocks in zip(self.degrees[degrees].tolist(), firsts.tolist(), strict=True):
            some = Partial(first=blocks)
            weights.append(stage_weights(order, kinds, (pp,), self.sizes, some, heads)[0])
            counts.append(stage_layer_counts(order, kinds, pp, self.sizes, some, heads).sum(axis=0))
        most = max(map(len, weights))
        padded = np.stack([np.concatenate([own, own[:1].repeat(most - len(own), axis=0)]) for own in weights])
        lines = _partly(self.block_lines)[:, 0, :, inner]  # (candidates, blocks, parts + 3)
        stages = (padded[place] @ lines)[:, :, :-1]
        busiest = stages[:, :, : lines.shape[2] - BESIDE].sum(axis=2).argmax(axis=1)
        times = np.pad(np.stack(counts), ((0, 0), (1, 1)), constant_values=1.0)
        return stages[np.arange(len(place)), busiest].T, (times[place, None] @ lines)[:, 0].T

    @property
    def floor_s(self) -> NDArray[np.float64]:
        """Seconds of the heaviest stage at peak compute, datasheet memory and wire rates, (3, d, n)."""
        kernels, (weights, starts) = self.kernels[-1], self.stages
        floors = _rows(kernels, "peak_s"), _rows(kernels, "traffic_s"), self.wire_s
        return np.stack([heaviest(starts, weights, floor) for floor in floors])

    @property
    def software(self) -> TrainingStack:
        """The training stack of the recipe."""
        return self.recipe.stack


def step_table(
    model: Model,
    recipe: Recipe,
    rates: Rates,
    fabric: Fabric,
    inner: Inner,
    degrees: NDArray[np.int64],
    *,
    sequence_parallel: bool = True,
    kernels: DeviceKernels | None = None,
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
    split = run_model(model, recipe.frozen, recipe.stack)
    model, stack = split.model, split.model.stacks[0]
    rates = training_rates(rates, recipe.stack, recipe.precision)
    shape = recipe.shape(model, inner.micro_batch)
    shared = block_contexts(model, recipe, rates, fabric, inner, shape, sequence_parallel=sequence_parallel)
    # a search has kernels of the fullest rank, too, where one of its combinations spreads experts
    kernels = kernels[: len(shared)] if kernels else [model_kernels(split, context) for context in shared]
    loaded = [_block_times(split, *each) for each in zip(shared, kernels, strict=True)]
    lines = _block_lines(loaded, recipe, rates.value["train_contention"])
    kinds, deep = len(stack.kinds), tuple(degrees.tolist())
    weights, starts = stage_weights(stack.order, kinds, deep, sizes, output_heads=stack.output_heads)
    if like is not None:
        dense, expert, still = like.dense_params, like.expert_params, like.frozen_bytes
        host, counts = like.host_s, like.counts_s
        matrices = like.matrices
    else:
        waits = not rates.is_host
        linkless = _link_independent(split, inner, recipe, weights, starts, waits=waits)
        dense, expert, still, host, counts, matrices = linkless
    return StepTable(
        recipe=recipe, rates=rates, fabric=fabric, width=stack.width, num_layers=stack.num_layers,
        degrees=degrees, inner=inner,
        seq_tokens=np.broadcast_to(recipe.computed_tokens(inner.micro_batch)[0], inner.micro_batch.shape),
        memory_s=heaviest(starts, weights, _rows(kernels[-1], "memory_s")), host_s=host, counts_s=counts,
        dense_params=dense, expert_params=expert, frozen_bytes=still,
        wire_s=_rows(loaded[-1], "wire_s"), stages=(weights, starts), kernels=kernels, partials=partials,
        fresh_bytes=fresh_bytes(model, recipe, inner) if rates.is_host else None,
        matrices=matrices, stack=stack, sizes=sizes, block_lines=lines,
        pairs_passes=any(has_fused_experts(items, recipe) for items, _, _ in block_list(model)),
        pairs_crossing=_crosses_nodes(shared[0], inner) if recipe.stack.pairs_network and model.has_experts else None,
        **_block_sums(stack, degrees, sizes, partials, lines, kernels[0]),
    )  # fmt: skip


def _crosses_nodes(context: BlockContext, inner: Inner) -> NDArray[np.bool_]:
    """True where the ranks that share experts reach beyond the fast links, by inner column.

    Source: Megatron-Core, `parallel_state`: they are neighbours, behind those of one expert.
    Assumes: a domain holds whole groups where they fit.
    """
    return np.asarray(inner.ep * inner_tp(context.split) > context.fabric.domain)


class TowerBlock(NamedTuple):
    """One kind of layer of a tower, or what stands before or after its layers, as often as `times` says.

    Towers stand beside the layers that a pipeline cuts: an encoder, an image or sound tower. They run on the first
    stage.
    """

    name: str
    stack: Stack
    items: tuple[Item, ...]
    times: int
    in_layers: bool

    def context(self, model: Model, context: BlockContext) -> BlockContext:
        """`context` with the tower's own tokens: what one sample makes, or as many as the text has."""
        return replace(context, shape=stack_shape(model, self.stack, context.shape.batch, context.shape.query))


def tower_blocks(model: Model) -> Iterator[TowerBlock]:
    """The blocks of every tower that a training step of `model` runs."""
    for stack in model.stacks[1:]:
        if runs(model, stack):
            yield TowerBlock(f"{stack.name}: before the layers", stack, stack.before, 1, in_layers=False)
            for index, kind in enumerate(stack.kinds):
                name, times = f"{stack.name}: {kind.name}", stack.order.count(index)
                yield TowerBlock(name, stack, kind.items, times, in_layers=True)
            yield TowerBlock(f"{stack.name}: after the layers", stack, stack.after, 1, in_layers=False)


def tower_items(model: Model) -> tuple[Item, ...]:
    """Every item of the towers, as often as it occurs."""
    return tuple(item for block in tower_blocks(model) for _ in range(block.times) for item in block.items)


def block_list(model: Model) -> list[tuple[tuple[Item, ...], int, bool]]:
    """(items, width, in_layers) of every block: before, each kind of layer, after; of the model's first stack."""
    stack = model.stacks[0]
    kinds = [(kind.items, stack.width, True) for kind in stack.kinds]
    return [(stack.before, stack.width, False), *kinds, (stack.after, stack.width, False)]


def block_contexts(
    model: Model,
    recipe: Recipe,
    rates: Rates,
    fabric: Fabric,
    inner: Inner,
    shape: Shape,
    *,
    sequence_parallel: bool = True,
) -> list[BlockContext]:
    """The contexts of all blocks of a table: the micro-batch and its split; evenly routed, then as the fullest rank."""
    load = expert_load(model, recipe, inner.ep)
    split = Split(
        tp=inner.tp, cp=inner.cp, ep=inner.ep, expert_tp=recipe.expert_tp(inner.tp, inner.ep),
        sequence_parallel=sequence_parallel,
    )  # fmt: skip
    loads = [np.minimum(load, 1.0), load] if np.any(np.asarray(load) != 1) else [1.0]
    context = BlockContext(recipe, rates, fabric, shape, split)
    return [replace(context, split=replace(split, expert_load=of_rank)) for of_rank in loads]


def model_kernels(split: SplitModel, context: BlockContext) -> list[Kernels]:
    """The kernels of every block at the clock that they leave; those of the towers stand before the layers."""
    first, *others = [
        block_kernels(items, replace(context, block=block), in_layers=inside)
        for (items, _, inside), block in zip(block_list(split.model), split.blocks, strict=True)
    ]
    for tower in tower_blocks(split.model):
        own = tower.context(split.model, replace(context, block=split.towers))
        first = first.plus(tower.times, block_kernels(tower.items, own, in_layers=tower.in_layers))
    return at_sustained_clock(split.model.stacks[0], (first, *others), context.rates)


def at_sustained_clock(stack: Stack, blocks: Sequence[BoostedKernels], rates: Rates) -> list[Kernels]:
    """The kernels of a stack, and of what stands before and after its layers, at the clock that they leave together.

    Source: `flopwise.cost.sustained.clock_frac`. Assumes: power is averaged over many layers, and the backward pass is
    made up as the forward pass is; what waits for messages or a pipeline does not count.
    """
    times = (1, *(stack.order.count(kind) for kind in range(len(stack.kinds))), 1)
    each = [*zip(times, blocks, strict=True)]
    peak_s: Floats = sum(count * block.forward_peak_s for count, block in each)
    forward_s: Floats = sum(count * block.whole.forward_s for count, block in each)
    clocked_s: Floats = sum(count * block.clocked.forward_s for count, block in each)
    power, exponent = rates.value[POWER], rates.value["train_clock_exponent"]
    clock = clock_frac(power, exponent, peak_s, clocked_s, forward_s - clocked_s, rates.value[MEMORY_POWER])
    return [block.at(clock) for block in blocks]


def _block_times(split: SplitModel, context: BlockContext, kernels: list[Kernels]) -> list[BlockTimes]:
    """Every block with its messages; the tensor-parallel ones of the towers stand before the layers.

    Source: `tensor_parallel_s` over the towers' blocks, of their own width and tokens.
    Assumes: towers are cut by the same tp as the layers.
    """
    first, *others = [
        BlockTimes.of(items, width, replace(context, block=block), each)
        for (items, width, _), block, each in zip(block_list(split.model), split.blocks, kernels, strict=True)
    ]
    backward = split.towers.backward
    for tower in tower_blocks(split.model):
        own = tower.context(split.model, replace(context, block=split.towers))
        seconds, wire = tensor_parallel_s(tower.items, tower.stack.width, own)
        first = replace(
            first,
            tp_s=first.tp_s + tower.times * seconds,
            wire_s=first.wire_s + (2 if backward else 1) * tower.times * wire,
            backward=first.backward or backward,
        )
    return [first, *others]


def _rows(blocks: Sequence[Kernels | BlockTimes], name: str) -> NDArray[np.float64]:
    """One column of every block: (blocks, n)."""
    return np.stack([getattr(block, name) for block in blocks])


def _block_lines(loaded: list[list[BlockTimes]], recipe: Recipe, contention: float) -> NDArray[np.float64]:
    """`BlockTimes.lines` of evenly routed blocks, (blocks, modes, parts + 3, n); a part more where routing is uneven.

    That is what the fullest rank adds to the others; what stands beside the parts stays last. What stands before and
    after the layers is never computed again.
    """
    modes = range(RECOMPUTE_MODES)

    def each_mode(block: BlockTimes, *, inside: bool) -> list[NDArray[np.float64]]:
        lines = [block.lines(mode, recipe, contention) for mode in (modes if inside else modes[:1])]
        return lines if inside else lines * RECOMPUTE_MODES

    even, *fullest = [
        np.stack([each_mode(block, inside=0 < place < len(blocks) - 1) for place, block in enumerate(blocks)])
        for blocks in loaded
    ]
    if not fullest:
        return even
    added = (fullest[0] - even)[:, :, :-BESIDE].sum(axis=2, keepdims=True)
    return np.concatenate([even[:, :, :-BESIDE], added, even[:, :, -BESIDE:]], axis=2)


def _block_sums(
    stack: Stack,
    degrees: NDArray[np.int64],
    sizes: tuple[int, ...],
    partials: tuple[Partial, ...],
    lines: NDArray[np.float64],
    kernels: list[Kernels],
) -> dict[str, Any]:
    """Sums over the blocks of the heaviest stage and of all: seconds and operations of one micro-batch.

    `lines`: those of every block, (blocks, 3, parts + 3, n). Modes are none, selective and full, then `partials`: full
    recompute of some layers, while others, and what stands before and after the layers, keep everything.

    Source and assumptions: `_some_sums`.
    """
    times = np.concatenate([[1.0], np.bincount(np.asarray(stack.order), minlength=len(stack.kinds)), [1.0]])
    sums = [_some_sums(stack, degrees, sizes, None, lines)]
    if partials:
        partly = _partly(lines)
        sums += [_some_sums(stack, degrees, sizes, some, partly) for some in partials]
    stages, whole = zip(*sums, strict=True)
    return {
        **_columns_by_mode(np.concatenate(stages, axis=1), np.concatenate(whole)),
        "forward_flops": np.tensordot(times, _rows(kernels, "forward_flops"), 1),
    }


def _partly(lines: NDArray[np.float64]) -> NDArray[np.float64]:
    """`lines` of blocks that keep everything, and then of layers that are computed again; modes are one."""
    return np.concatenate([lines[:-1, :1], lines[1:-1, 2:], lines[-1:, :1]])


def _some_sums(
    stack: Stack, degrees: NDArray[np.int64], sizes: tuple[int, ...], some: Partial | None, blocks: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """Sums of the lines of `blocks` over the heaviest stage, (parts + 2, modes, d, n), and all, (modes, parts + 3, n).

    `some`: the layers that are computed again, of lines as `_partly` has them; None: each mode is of all layers.

    Source: sums over blocks. Assumes: `first` of a `Partial` comes with a single pipeline degree.
    """
    kinds = len(stack.kinds)
    weights, starts = stage_weights(stack.order, kinds, tuple(degrees.tolist()), sizes, some, stack.output_heads)
    counts = stage_layer_counts(stack.order, kinds, int(degrees[0]), sizes, some, stack.output_heads).sum(axis=0)
    stage = _heaviest_parts(weights, starts, blocks[:, :, :-1], blocks.shape[2] - BESIDE)
    return stage, np.tensordot(np.concatenate([[1.0], counts, [1.0]]), blocks, 1)


def _columns_by_mode(stage: NDArray[np.float64], model: NDArray[np.float64]) -> dict[str, Any]:
    """The columns of a `StepTable` by mode, and seconds in gradients of weights, of sums as `_some_sums` has them."""
    stage_s, model_s = stage[:-2].sum(axis=0), model[:, :-BESIDE].sum(axis=1)
    return {
        "stage_parts": stage[:-2],
        "stage_s": stage_s,
        "rest_s": np.maximum(model_s[:, None] - stage_s, 0.0),
        "stage_weight_s": stage[-2],
        "stage_beside_s": stage[-1],
        "model_parts": model[:, :-BESIDE],
        "model_s": model_s,
        "weight_s": model[0, -3],
        "model_beside_s": model[:, -2],
        "again_flops": model[:, -1],
    }


def _heaviest_parts(
    weights: NDArray[np.float64], starts: NDArray[np.intp], lines: NDArray[np.float64], summed: int
) -> NDArray[np.float64]:
    """Parts of the stage that takes longest: (blocks, modes, parts, n) to (parts, modes, d, n).

    The first `summed` parts add up to a stage's time; others come along.
    """
    stages = np.tensordot(weights, lines, 1)
    totals = stages[:, :, :summed].sum(axis=2)
    ends = [*starts[1:].tolist(), len(weights)]
    ranges = zip(starts.tolist(), ends, strict=True)
    first = np.stack([totals[start:end].argmax(axis=0) + start for start, end in ranges])  # of equals the first
    _, modes, parts, columns = stages.shape
    row = (first * modes + np.arange(modes)[:, None]) * (parts * columns) + np.arange(columns)
    found: NDArray[np.float64] = stages.ravel().take(row + (np.arange(parts) * columns)[:, None, None, None])
    return found.swapaxes(1, 2)


def _link_independent(
    split: SplitModel,
    inner: Inner,
    recipe: Recipe,
    weights: NDArray[np.float64],
    starts: NDArray[np.intp],
    *,
    waits: bool,
) -> tuple[
    NDArray[np.float64],
    NDArray[np.float64],
    NDArray[np.float64],
    NDArray[np.float64],
    NDArray[np.float64],
    Matrices | None,
]:
    """Figures of the heaviest stage without links, (d, n), and the matrices that are orthogonalised, or None.

    The figures are dense and experts' parameters, frozen bytes, seconds of the host, and of the device for counts.

    `waits`: the host is another than the device, and waits for it in layers with experts.
    """
    model, towers = split.model, tower_items(split.model)
    listed = [(items, block) for (items, _, _), block in zip(block_list(model), split.blocks, strict=True)]
    stored = np.minimum(weights, 1.0) if model.stacks[0].shared_weights else weights
    parameters = [_rank_parameters(model, items, block, inner, recipe) for items, block in listed]
    parameters[0] = parameters[0] + _rank_parameters(model, towers, split.towers, inner, recipe)
    dense, expert, still = (heaviest(starts, stored, np.stack([p[i] for p in parameters])) for i in range(3))
    launched = [((*listed[0][0], *towers), listed[0][1]), *listed[1:]]
    each = [_launch_s(*part, recipe, inner.ep, waits=waits) for part in launched]
    host = heaviest(starts, weights, np.stack(np.broadcast_arrays(*each, inner.ep)[:-1]))
    waited = [_counts_s(items, recipe, waits=waits) for items, _ in launched]
    counts = heaviest(starts, weights, np.stack(np.broadcast_arrays(*waited, inner.ep)[:-1]))
    matrices = None
    if recipe.optimizer.newton_schulz_steps:
        matrices = _matrices(split, recipe, inner, stored, starts)
    return dense, expert, still, host, counts, matrices


def _trained_items(model: Model, recipe: Recipe, items: Sequence[Item], block: Block) -> list[Item]:
    """The items of a block whose weights have gradients, adapters apart."""
    whole = [] if recipe.lora is None else extra_items(model, recipe.lora)
    return [item for item in items if (block.trains(item) if recipe.lora is None else item in whole)]


def _rank_parameters(
    model: Model, items: tuple[Item, ...], block: Block, inner: Inner, recipe: Recipe
) -> NDArray[np.float64]:
    """(dense, experts' parameters with gradients, bytes of those without) on one rank, of a block; (3, n)."""
    one, lora, trained = np.ones(len(inner.tp)), recipe.lora, _trained_items(model, recipe, items, block)
    dense = sharded_parameters((i for i in trained if not isinstance(i, Experts)), inner.tp, 1)
    cut = recipe.expert_tp(inner.tp, inner.ep)
    experts = sharded_parameters((i for i in trained if isinstance(i, Experts)), inner.tp, inner.ep, expert_tp=cut)
    if lora is not None:
        dense = dense + adapter_parameters((i for i in items if not isinstance(i, Experts)), lora, inner.tp)
    base = BF16 if lora is None else lora.base
    rest = (i for i in items if i not in trained)
    still = frozen_bytes(model, rest, base, inner.tp, inner.ep, expert_tp=cut, most=ACT_BYTES)
    return np.stack([dense * one, experts * one, still * one])


MAPPED_BYTES = 32 * 2**20
"""Allocations from this size on the C library maps anew each time: glibc, mallopt(3), M_MMAP_THRESHOLD on 64 bits."""
LOSS_TENSORS = 4
"""Tensors as large as the logits in PyTorch's cross-entropy: these, their log-softmax, its gradient, theirs."""


def fresh_bytes(model: Model, recipe: Recipe, inner: Inner) -> NDArray[np.float64]:
    """Bytes of a micro-batch in tensors so large that their pages are new each time; shape of the inner columns.

    Gradients of embedding and head, which are dense and freed with each step, and what the loss makes of the logits.

    Source: glibc's malloc (`MAPPED_BYTES`); PyTorch's `embedding_dense_backward` and `zero_grad(set_to_none=True)`.
    Assumes: smaller ones come from memory that was used before; no other tensor is as large.
    """
    stack, elem = model.stacks[0], recipe.elem_bytes
    heads = [i for i in stack.after if isinstance(i, Linear) and i.outputs == model.vocab]
    tables = [i.rows * i.dim for i in stack.before if isinstance(i, Embedding)]
    tables += [i.inputs * i.outputs for i in heads if not i.tied]
    grads = 0.0 if recipe.lora is not None else sum(n * elem for n in tables if n * elem >= MAPPED_BYTES)
    tokens = inner.micro_batch * recipe.computed_tokens(inner.micro_batch)[0]
    logits = tokens * elem * sum(i.outputs for i in heads)
    return np.broadcast_to(grads + LOSS_TENSORS * np.where(logits >= MAPPED_BYTES, logits, 0.0), tokens.shape)


EXPERT_LAUNCH_S = 1e-5
"""Host time of one expert's product where each is a kernel of its own: PyTorch's eager dispatch, 5 to 10 µs."""


def _launch_s(items: tuple[Item, ...], block: Block, recipe: Recipe, ep: Ints, *, waits: bool) -> Floats:
    """Host time to launch one micro-batch of a block: one launch an item forward, two backward; shape of `ep`.

    The matrices of adapters are items of their own.

    A block whose experts drop nothing takes `routing_s` besides, a third of it forward: counts of tokens come back to
    the host, which `waits` and sizes what it launches next by them. Products of experts that are kernels of their own
    are launched one by one, three for each of an expert's, and two casts more in low precision.

    Source: host time of a launch by stack (data/stacks.json); PyTorch eager dispatch of an expert's product, 5-10 µs;
    Megatron Core MoE report (arXiv:2603.07685) on hosts that fine-grained experts keep busy: experts with a capacity,
    whose shapes are known, and counts that stay on the device need no host; Megatron-Bridge pull requests 3983, 4249
    and 4606: a step of fused experts is recorded as one CUDA graph, which starts at once.
    Assumes: one launching thread a GPU.
    """
    if has_fused_experts(items, recipe):
        return np.zeros(np.shape(ep))
    software, passes = recipe.stack, 3.0 if block.backward else 1.0
    adapters = [] if recipe.lora is None else adapter_matrices(items, recipe.lora)
    total: Floats = passes * (len(items) + len(adapters)) * software.launch_s
    experts = [item for item in items if isinstance(item, Experts)]
    if not (waits and experts) or recipe.capacity_factor is not None or not software.routing_s:
        return total
    if grouped_kernel(software, recipe.precision) == "split":
        local_experts = sum(np.ceil(item.experts / ep) for item in experts)
        total = (
            total
            + local_experts * (passes + (passes + 1.0) / 2.0 * (recipe.precision in LOW_PRECISIONS)) * EXPERT_LAUNCH_S
        )
    return total + passes * software.routing_s / 3.0


def _counts_s(items: tuple[Item, ...], recipe: Recipe, *, waits: bool) -> float:
    """Seconds for which a block's forward pass waits until the host knows how many tokens each expert takes.

    The device copies the counts to the host and has nothing to do until the host has read them, sized the buffers and
    launched the next kernels: that hides behind nothing, however busy the device is. The backward pass knows them.

    Source: Megatron Core MoE report (arXiv:2603.07685) on the host's synchronisation in dropless layers, which its
    fused kernels and experts with a capacity do without; the same wait in torchtitan, DeepSpeed and transformers, whose
    all-to-all takes lists of the host (`tolist`, `.cpu()` of the counts).
    Assumes: one wait a layer of experts.
    """
    experts = any(isinstance(item, Experts) for item in items)
    if not (waits and experts) or recipe.capacity_factor is not None or has_fused_experts(items, recipe):
        return 0.0
    return recipe.stack.counts_s


def _matrices(
    split: SplitModel, recipe: Recipe, inner: Inner, stored: NDArray[np.float64], starts: NDArray[np.intp]
) -> Matrices:
    """Matrices that the optimizer orthogonalises, by pipeline degree: of layers and towers, or the adapters."""
    model, lora = split.model, recipe.lora
    listed = [items for items, _, _ in block_list(model)]
    towers = _trained_items(model, recipe, tower_items(model), split.towers)
    trained = [_trained_items(model, recipe, items, block) for items, block in zip(listed, split.blocks, strict=True)]
    trained[0] += towers
    layers = (
        hidden_matrices(own) if lora is None else [*adapter_matrices(items, lora)]
        for items, own in zip(listed[1:-1], trained[1:-1], strict=True)
    )
    hidden = [hidden_matrices(towers), *layers, []]
    cut, steps = recipe.expert_tp(inner.tp, inner.ep), recipe.optimizer.newton_schulz_steps
    return Matrices.of(hidden, trained, inner, cut, steps, stored, starts)
