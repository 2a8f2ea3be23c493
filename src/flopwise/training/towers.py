"""Towers beside the layers that a pipeline cuts: an encoder, an image or sound tower. They run on the first stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from flopwise.ops.flops import runs, stack_shape
from flopwise.training.blocks import BlockContext

if TYPE_CHECKING:
    from flopwise.facts.architecture import Item, Model, Stack


class TowerBlock(NamedTuple):
    """One kind of layer of a tower, or what stands before or after its layers, as often as `times` says."""

    name: str
    stack: Stack
    items: tuple[Item, ...]
    times: int
    in_layers: bool


def tower_blocks(model: Model) -> Iterator[TowerBlock]:
    """The blocks of every tower that a training step of `model` runs."""
    for stack in model.stacks[1:]:
        if runs(model, stack):
            yield TowerBlock(f"{stack.name}: before the layers", stack, stack.before, 1, in_layers=False)
            for index, kind in enumerate(stack.kinds):
                yield TowerBlock(
                    f"{stack.name}: {kind.name}", stack, kind.items, stack.order.count(index), in_layers=True
                )
            yield TowerBlock(f"{stack.name}: after the layers", stack, stack.after, 1, in_layers=False)


def tower_context(model: Model, stack: Stack, context: BlockContext) -> BlockContext:
    """`context` with the tower's own tokens: what one sample makes, or as many as the text has.

    Source: `flopwise.ops.flops.stack_shape`. Assumes: one sample of the tower a sequence.
    """
    shape = stack_shape(model, stack, context.shape.batch, context.shape.query)
    return replace(context, shape=shape)


def tower_items(model: Model) -> tuple[Item, ...]:
    """Every item of the towers, as often as it occurs."""
    return tuple(item for block in tower_blocks(model) for _ in range(block.times) for item in block.items)
