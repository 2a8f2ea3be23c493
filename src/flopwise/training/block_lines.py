"""The blocks of a model under a recipe as lines of seconds, and their sums over stages under each recompute mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flopwise.ops.shapes import Shape, Split
from flopwise.training.blocks import (
    BlockContext,
    BlockTimes,
    Kernels,
    again_flops,
    again_s,
    block_kernels,
    block_times,
    tensor_parallel_s,
)
from flopwise.training.stages import Partial, stage_layer_counts, stage_sums, stage_weights
from flopwise.training.towers import tower_blocks, tower_context

if TYPE_CHECKING:
    from flopwise.cost.fabric import Fabric
    from flopwise.cost.rates import Rates
    from flopwise.facts.architecture import Item, Model, Stack
    from flopwise.facts.software import TrainingStack
    from flopwise.ops.types import Floats
    from flopwise.training.frozen import SplitModel
    from flopwise.training.layout import Inner, Recipe

EXPERT_IMBALANCE = "expert_imbalance"
"""The line of what uneven routing adds to the others; there only where routing is uneven."""
STAGE_PARTS = ("forward", "backward", "recompute", "tensor_parallel", "context_parallel", "expert_parallel")
"""Lines of a step that each block of a stage adds to."""
RECOMPUTE_MODES = 3
"""None, selective, full."""
BESIDE = 3
"""Rows of `stage_lines` after those of `STAGE_PARTS`."""


def block_list(model: Model) -> list[tuple[tuple[Item, ...], int, bool]]:
    """(items, width, in_layers) of every block: before, each kind of layer, after; of the model's first stack."""
    stack = model.stacks[0]
    kinds = [(kind.items, stack.width, True) for kind in stack.kinds]
    return [(stack.before, stack.width, False), *kinds, (stack.after, stack.width, False)]


def contexts(
    recipe: Recipe,
    software: TrainingStack,
    rates: Rates,
    fabric: Fabric,
    inner: Inner,
    shape: Shape,
    *,
    sequence_parallel: bool,
    load: Floats,
) -> list[BlockContext]:
    """What all blocks of a table share: the micro-batch and how it is cut; evenly routed, then as the fullest rank."""
    split = Split(tp=inner.tp, cp=inner.cp, ep=inner.ep, sequence_parallel=sequence_parallel)
    loads = [np.minimum(load, 1.0), load] if np.any(np.asarray(load) != 1) else [1.0]
    return [
        BlockContext(
            recipe=recipe,
            software=software,
            rates=rates,
            fabric=fabric,
            shape=shape,
            split=replace(split, expert_load=of_rank),
        )
        for of_rank in loads
    ]


def kernel_columns(split: SplitModel, context: BlockContext) -> list[Kernels]:
    """The kernels of every block; those of the towers stand before the layers."""
    first, *others = [
        block_kernels(items, replace(context, block=block), in_layers=inside)
        for (items, _, inside), block in zip(block_list(split.model), split.blocks, strict=True)
    ]
    return [with_towers(first, split.model, replace(context, block=split.towers)), *others]


def rows_of(found: Sequence[Kernels | BlockTimes], name: str) -> NDArray[np.float64]:
    """One column of every block: (blocks, n)."""
    return np.stack([getattr(one, name) for one in found])


def blocks_with_messages(split: SplitModel, context: BlockContext, kernels: list[Kernels]) -> list[BlockTimes]:
    """Every block with its messages; those of the towers stand before the layers."""
    found = [
        block_times(items, width, replace(context, block=block), each)
        for (items, width, _), block, each in zip(block_list(split.model), split.blocks, kernels, strict=True)
    ]
    return [with_tower_messages(found[0], split.model, replace(context, block=split.towers)), *found[1:]]


def block_lines(
    loaded: list[list[BlockTimes]], software: TrainingStack, selective: str, contention: float
) -> NDArray[np.float64]:
    """`stage_lines` of evenly routed blocks, (blocks, modes, parts + 3, n); one part more where routing is uneven.

    That is what the fullest rank adds to the others; what stands beside the parts stays last. What stands before and
    after the layers is never computed again.
    """
    modes = range(RECOMPUTE_MODES)
    even, *fullest = [
        np.stack(
            [
                [stage_lines(block, mode * inside, software, selective, contention) for mode in modes]
                for block, inside in zip(blocks, (False, *(True,) * (len(blocks) - 2), False), strict=True)
            ]
        )
        for blocks in loaded
    ]
    if not fullest:
        return even
    added = (fullest[0] - even)[:, :, :-BESIDE].sum(axis=2, keepdims=True)
    return np.concatenate([even[:, :, :-BESIDE], added, even[:, :, -BESIDE:]], axis=2)


def with_towers(first: Kernels, model: Model, context: BlockContext) -> Kernels:
    """`first`, the kernels before the layers, with those of the towers.

    Source: sum over the towers' blocks.
    Assumes: towers stand on the first pipeline stage.
    """
    for block in tower_blocks(model):
        found = block_kernels(block.items, tower_context(model, block.stack, context), in_layers=block.in_layers)
        sums = {f.name: getattr(first, f.name) + block.times * getattr(found, f.name) for f in fields(Kernels)}
        first = Kernels(**sums)
    return first


def with_tower_messages(first: BlockTimes, model: Model, context: BlockContext) -> BlockTimes:
    """`first`, the block before the layers, with the tensor-parallel messages of the towers.

    Source: `flopwise.training.blocks.tensor_parallel_s` over the towers' blocks, of their own width and tokens.
    Assumes: towers are cut by the same tp as the layers.
    """
    for block in tower_blocks(model):
        own = tower_context(model, block.stack, context)
        seconds, wire = tensor_parallel_s(block.items, block.stack.width, own)
        passes = 2 if context.block.backward else 1
        first = replace(
            first,
            tp_s=first.tp_s + block.times * seconds,
            wire_s=first.wire_s + passes * block.times * wire,
            backward=first.backward or context.block.backward,
        )
    return first


def stage_lines(
    block: BlockTimes, mode: int, software: TrainingStack, selective: str, contention: float
) -> NDArray[np.float64]:
    """The parts of `STAGE_PARTS` of one block under one recompute mode, then `BESIDE` them. Shape (parts + 3, n).

    Those are seconds of the backward pass in gradients of weights, seconds of experts' messages that hide as well where
    another micro-batch's passes run beside them, and operations that run again (FLOP).

    Source: Korthikanti et al. 2022 (arXiv:2205.05198) section 5; messages of a forward pass come again with it;
    DeepSeek-V3 report (arXiv:2412.19437) section 3.2.1 for passes side by side.
    Assumes: selective recompute repeats no message; side by side, all that takes no longer than the layer's passes
    hides, and slows them by `contention` of its own length.
    """
    kernels = block.kernels
    rerun = (0.0 * kernels.forward_s, again_s(kernels, selective), kernels.forward_s)[mode]
    flops = (0.0 * kernels.forward_flops, again_flops(kernels, selective), kernels.forward_flops)[mode]
    passes = 3.0 if mode == 2 else 2.0  # forward, backward, and forward again
    if not block.backward:
        rerun, flops, passes = 0.0 * kernels.forward_s, 0.0 * kernels.forward_flops, 1.0
    routed = passes * _exposed_s(block.ep_s, software.ep_overlap, kernels.forward_s)
    hidden = np.minimum(passes * block.ep_s, kernels.forward_s + kernels.backward_s + rerun)
    beside = passes * block.ep_s - (1.0 - contention) * hidden
    return np.stack(
        [
            kernels.forward_s,
            kernels.backward_s,
            rerun,
            passes * _exposed_s(block.tp_s, software.tp_overlap, kernels.forward_s),
            passes * block.cp_s,
            routed,
            kernels.weight_s,
            np.maximum(routed - beside, 0.0),
            flops,
        ]
    )


def mode_parts(
    stack: Stack,
    degrees: NDArray[np.int64],
    sizes: tuple[int, ...],
    partials: tuple[Partial, ...],
    lines: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lines of the heaviest stage, (parts + 2, modes, d, n), and of all stages together, (modes, parts + 3, n).

    `lines`: those of every block, (blocks, 3, parts + 3, n). Modes are none, selective and full, then `partials`: full
    recompute of some layers, while others, and what stands before and after the layers, keep everything.

    Source: sums over blocks. Assumes: `first` of a `Partial` comes with a single pipeline degree.
    """
    kinds = len(stack.kinds)
    stages, whole = [], []
    for some in (None, *partials):
        held = lines
        if some is not None:
            held = np.concatenate([lines[:-1, :1], lines[1:-1, 2:], lines[-1:, :1]])
        weights, starts = stage_weights(stage_sums(stack.order, kinds, degrees, sizes, some))
        stages.append(heaviest_parts(weights, starts, held[:, :, :-1], lines.shape[2] - BESIDE))
        counts = stage_layer_counts(stack.order, kinds, int(degrees[0]), sizes, some).sum(axis=0)
        whole.append(np.tensordot(np.concatenate([[1.0], counts, [1.0]]), held, 1))
    return np.concatenate(stages, axis=1), np.concatenate(whole)


def _exposed_s(message_s: Floats, overlap: float, compute_s: Floats) -> Floats:
    """What is left of messages of which a share may hide behind compute, but no more than there is compute."""
    return message_s - np.minimum(overlap * message_s, compute_s)


def heaviest_parts(
    weights: NDArray[np.float64], starts: NDArray[np.intp], lines: NDArray[np.float64], summed: int
) -> NDArray[np.float64]:
    """Parts of the stage that takes longest: (blocks, modes, parts, n) to (parts, modes, d, n).

    The first `summed` parts add up to a stage's time; others come along.
    """
    stages = np.tensordot(weights, lines, 1)
    totals = stages[:, :, :summed].sum(axis=2)
    sizes = np.diff([*starts.tolist(), len(weights)])
    longest = np.repeat(np.maximum.reduceat(totals, starts, axis=0), sizes, axis=0)
    places = np.where(totals == longest, np.arange(len(weights))[:, None, None], len(weights))
    first = np.minimum.reduceat(places, starts, axis=0)  # of equals the first
    modes, columns = np.arange(stages.shape[1])[:, None], np.arange(stages.shape[3])
    return stages.transpose(2, 0, 1, 3)[:, first, modes, columns].swapaxes(1, 2)
