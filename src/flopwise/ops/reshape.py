"""The same model with one dimension changed: what shape advice compares.

Each function returns a new model whose tables differ in that dimension alone; widths elsewhere stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from flopwise.facts.architecture import (
    Attend,
    Convolution,
    Embedding,
    Experts,
    Item,
    Layer,
    Linear,
    Model,
    Norm,
    Pointwise,
    Recurrence,
    Stack,
)

Change = Callable[[Item], Item]


def with_items(model: Model, change: Change, *, stack: str | None = None, layer: str | None = None) -> Model:
    """`model` with every item changed; in one stack, or in its layers of one name, where these are given.

    Source: the model's tables. Assumes: nothing.
    """

    def of_layer(kind: Layer) -> Layer:
        if layer is not None and kind.name != layer:
            return kind
        return replace(kind, items=tuple(map(change, kind.items)))

    def of_stack(part: Stack) -> Stack:
        if stack is not None and part.name != stack:
            return part
        kinds = tuple(map(of_layer, part.kinds))
        if layer is not None:
            return replace(part, kinds=kinds)
        return replace(part, before=tuple(map(change, part.before)), kinds=kinds, after=tuple(map(change, part.after)))

    return replace(model, stacks=tuple(map(of_stack, model.stacks)))


def with_vocabulary(model: Model, vocab: int) -> Model:
    """`model` with so many rows of embeddings and columns of logits.

    Source: the model's tables. Assumes: tables and products outside the layers that have its size hold it.
    """
    was = model.vocab

    def change(item: Item) -> Item:
        if isinstance(item, Embedding) and item.rows == was and not item.position:
            return replace(item, rows=vocab)
        if isinstance(item, Linear) and item.outputs == was:
            return replace(item, outputs=vocab)
        return item

    changed = with_items(model, lambda item: item)  # layers keep their width even where it equals the vocabulary's
    stacks = tuple(
        replace(s, before=tuple(map(change, s.before)), after=tuple(map(change, s.after))) for s in changed.stacks
    )
    return replace(changed, vocab=vocab, stacks=stacks)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """The hidden dimension of one feed-forward block: the product that makes it and the one that reads it."""

    path: str  # what its items' names begin with
    width: int
    up: tuple[str, ...]
    down: str
    experts: bool


def feed_forwards(items: Sequence[Item]) -> list[FeedForward]:
    """The feed-forward blocks among the items of a layer: pairs of products cut by columns, then by rows.

    Source: the model's tables. Assumes: a block's items share a path.
    """
    found = []
    mixers = {i.name.rsplit("/", 1)[0] for i in items if isinstance(i, Attend | Recurrence | Convolution)}
    for down in items:
        path = down.name.rsplit("/", 1)[0]
        if not isinstance(down, Linear | Experts) or down.shard != "row" or path in {down.name, *mixers}:
            continue
        widths = (down.inputs, 2 * down.inputs)
        ups = [i for i in items if isinstance(i, type(down)) and i.name.startswith(f"{path}/") and i.outputs in widths]
        names = tuple(i.name for i in ups if i.shard == "column")
        if names:
            wide = isinstance(down, Experts)
            found.append(FeedForward(path=path, width=down.inputs, up=names, down=down.name, experts=wide))
    return found


def with_feed_forward(model: Model, stack: str, layer: str, block: FeedForward, width: int) -> Model:
    """`model` whose feed-forward `block` is so wide in the layers of that name.

    Source: the model's tables. Assumes: gate and up are as wide as down reads, or one product of both.
    """
    was = block.width

    def change(item: Item) -> Item:
        if isinstance(item, Linear | Experts) and item.name in block.up:
            return replace(item, outputs=item.outputs // was * width)
        if isinstance(item, Linear | Experts) and item.name == block.down:
            return replace(item, inputs=width)
        if isinstance(item, Pointwise) and item.name.startswith(f"{block.path}/") and item.dim == was:
            return replace(item, dim=width)
        return item

    return with_items(model, change, stack=stack, layer=layer)


def with_heads(model: Model, stack: str, layer: str, attend: Attend, heads: int, kv_heads: int, dim: int) -> Model:
    """`model` with so many heads of so many dimensions under one attention's path; projections keep their columns.

    heads x dim and kv_heads x dim must be what they were.

    Source: the model's tables. Assumes: queries, keys and values of the same dimension.
    """
    assert heads * dim == attend.heads * attend.qk_dim
    assert kv_heads * dim == attend.kv_heads * attend.qk_dim
    path = attend.name.rsplit("/", 1)[0] + "/"

    def change(item: Item) -> Item:
        if not item.name.startswith(path):
            return item
        if isinstance(item, Attend):
            return replace(item, heads=heads, kv_heads=kv_heads, qk_dim=dim, v_dim=dim)
        if isinstance(item, Linear):
            unit = dim if item.shard_unit == attend.qk_dim else item.shard_unit
            return replace(item, shard_unit=unit, heads=kv_heads if item.heads == attend.kv_heads else item.heads)
        if isinstance(item, Norm) and item.dim == attend.qk_dim:
            return replace(item, dim=dim, groups=item.groups * attend.qk_dim // dim)
        return item

    return with_items(model, change, stack=stack, layer=layer)


def with_window(model: Model, was: int, window: int) -> Model:
    """`model` whose attention windows of `was` tokens hold `window`.

    Source: the model's tables. Assumes: nothing.
    """
    return with_items(
        model, lambda item: replace(item, window=window) if isinstance(item, Attend) and item.window == was else item
    )


def with_dimension(model: Model, stack: str, was: int, size: int) -> Model:
    """`model` whose products, norms and elementwise operations of `was` columns have `size`: padded with zeros.

    Source: the model's tables. Assumes: what has that size is that dimension.
    """

    def change(item: Item) -> Item:
        if isinstance(item, Linear | Experts):
            inputs, outputs = (size if d == was else d for d in (item.inputs, item.outputs))
            return replace(item, inputs=inputs, outputs=outputs)
        if isinstance(item, Norm | Pointwise | Embedding) and item.dim == was:
            return replace(item, dim=size)
        return item

    return with_items(model, change, stack=stack)
