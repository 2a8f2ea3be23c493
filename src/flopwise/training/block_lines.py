"""The blocks of a model under a recipe, as lines of seconds: what `flopwise.training.step` adds up over stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flopwise.ops.work import Shape, Split
from flopwise.training.blocks import BlockContext, BlockTimes, Kernels, block_kernels, block_times
from flopwise.training.recompute import BESIDE, RECOMPUTE_MODES, stage_lines
from flopwise.training.towers import with_tower_messages, with_towers

if TYPE_CHECKING:
    from flopwise.cost.fabric import Fabric
    from flopwise.cost.rates import Rates
    from flopwise.facts.architecture import Item, Model
    from flopwise.facts.software import TrainingStack
    from flopwise.ops.types import Floats
    from flopwise.training.frozen import Split as Halves
    from flopwise.training.layout import Recipe
    from flopwise.training.step import Inner

EXPERT_IMBALANCE = "expert_imbalance"
"""The line of what uneven routing adds to the others; there only where routing is uneven."""


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


def kernel_columns(split: Halves, context: BlockContext) -> list[Kernels]:
    """The kernels of every block; those of the towers stand before the layers."""
    first, *others = [
        block_kernels(items, replace(context, block=block), in_layers=inside)
        for (items, _, inside), block in zip(block_list(split.model), split.blocks, strict=True)
    ]
    return [with_towers(first, split.model, replace(context, block=split.towers)), *others]


def rows_of(found: Sequence[Kernels | BlockTimes], name: str) -> NDArray[np.float64]:
    """One column of every block: (blocks, n)."""
    return np.stack([getattr(one, name) for one in found])


def blocks_with_messages(split: Halves, context: BlockContext, kernels: list[Kernels]) -> list[BlockTimes]:
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
