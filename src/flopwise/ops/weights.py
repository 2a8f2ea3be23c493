"""Bytes of a model's weights in a format: the whole checkpoint, and what one rank of a layout holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from flopwise.facts.architecture import Attend, Convolution, Embedding, Experts, Item, Linear, Model, Stack
from flopwise.facts.formats import BF16, MXFP4, LayerPlace, WeightFormat, tensor_role
from flopwise.ops.tensors import item_parameters, parameters, sharded_parameters
from flopwise.ops.types import Array, Floats, Ints
from flopwise.values import replace


def _matrix(item: Item) -> tuple[int, int, int] | None:
    """(copies, outputs, inputs) of an item's matrix, or None where it has none of its own."""
    match item:
        case Linear():
            return None if item.tied else (1, item.outputs, item.inputs)
        case Experts():
            return item.experts, item.outputs, item.inputs
        case Embedding():
            return 1, item.rows, item.dim
        case Convolution():
            return 1, item.channels * (item.outputs or 1), item.kernel
        case _:
            return None


def item_weight_bytes(item: Item, fmt: WeightFormat, place: LayerPlace, *, tied: bool = False) -> float:
    """Bytes of one item's tensors in `fmt`; an embedding that is also the head (`tied`) is stored as the head.

    Source: `data/weight_formats.csv` and `data/gguf_formats.csv`, row by row.
    Assumes: biases, norms and routers stay in the format's unquantised type.
    """
    numel = item_parameters(item)
    shape = _matrix(item)
    if shape is None:
        return numel * fmt.vector_bytes
    role = tensor_role(item)
    if role == "embedding" and tied and fmt.kind == "gguf":
        role = "head"
    matrix = shape[0] * shape[1] * shape[2]
    return fmt.tensor_bytes(item, role, place, shape) + (numel - matrix) * fmt.vector_bytes


def _place(model: Model, stack: Stack) -> LayerPlace:
    """Properties of the model that the choice of types asks for: grouped heads, experts, family."""
    items = [item for layer in stack.kinds for item in layer.items]
    attend = next((i for i in items if isinstance(i, Attend)), None)
    experts = next((i.experts for i in items if isinstance(i, Experts)), 0)
    gqa = attend.heads // attend.kv_heads if attend is not None and attend.kv_heads else 1
    falcon, mxfp4 = model.model_type == "falcon", model.checkpoint_format == MXFP4
    return LayerPlace(
        layers=stack.num_layers, gqa=gqa, experts=experts, falcon=falcon, mxfp4=mxfp4, fp8_linear=model.fp8_linear
    )


def _is_tied(stack: Stack) -> bool:
    return any(isinstance(i, Linear) and i.tied for i in stack.after)


def _formats(model: Model, fmt: WeightFormat) -> Iterable[tuple[Stack, WeightFormat]]:
    """The format of each stack: vision and audio towers stay unquantised; GGUF files hold the text stack only."""
    quantised = fmt.is_quantised
    for index, stack in enumerate(model.stacks):
        text = index == 0 or stack.name in ("encoder", "decoder")
        if text or not quantised:
            yield stack, fmt
        elif fmt.kind == "weights":
            yield stack, BF16


@lru_cache(maxsize=256)
def weight_bytes(model: Model, fmt: WeightFormat) -> int:
    """Bytes of all of a model's weights in `fmt`, scales included: those of a checkpoint's tensors.

    Source: the formats' rows; checked against published file sizes.
    Assumes: a GGUF file's few megabytes of metadata are left out; its vision tower is a file of its own.
    """
    return round(sum(weight_groups(model, fmt).values()))


def changes_weights(model: Model, fmt: WeightFormat) -> bool:
    """False if `fmt` quantises none of the model's tensors, so that its weights stay as they are in 16 bits.

    Source: as `weight_bytes`: mxfp4 is of experts and feed-forward layers, of which Mamba 2 has none.
    Assumes: as `weight_bytes`.
    """
    return not fmt.is_quantised or weight_bytes(model, fmt) < weight_bytes(model, BF16)


def weight_groups(model: Model, fmt: WeightFormat) -> dict[str, float]:
    """`weight_bytes` by tensor group: path -> bytes over all layers.

    Source: as `weight_bytes`.
    Assumes: as `weight_bytes`; a network without a table of layers is stored unquantised.
    Raises: MissingFactError: not even its number of parameters is known.
    """
    groups: dict[str, float] = {}
    if not model.stacks:  # known by published figures: no tensor to tell apart
        return {"parameters": parameters(model) * fmt.vector_bytes}
    for stack, own in _formats(model, fmt):
        place, tied = _place(model, stack), _is_tied(stack)
        for item in (*stack.before, *stack.after):
            name = f"{stack.name}/{item.name}"
            groups[name] = groups.get(name, 0.0) + item_weight_bytes(item, own, place, tied=tied)
        layers = (
            (k, replace(place, layer=n) if own.differs_by_layer else place) for n, k in enumerate(stack.stored_order)
        )
        for (kind, at), count in Counter(layers).items():
            for item in stack.kinds[kind].items:
                name = f"{stack.name}/{stack.kinds[kind].name}/{item.name}"
                groups[name] = groups.get(name, 0.0) + count * item_weight_bytes(item, own, at)
    return {name: size for name, size in groups.items() if size}


def _items_bytes(
    items: Iterable[Item],
    fmt: WeightFormat,
    place: LayerPlace,
    tp: Ints,
    ep: Ints,
    *,
    tied: bool = False,
    expert_tp: Ints | None = None,
    most: float = float("inf"),
) -> Floats:
    """Bytes of `items` on one rank of tp x ep, at no more than `most` a parameter."""
    total: Floats = np.zeros(np.broadcast_shapes(np.shape(tp), np.shape(ep)))
    for item in items:
        if numel := item_parameters(item):
            each = min(most, item_weight_bytes(item, fmt, place, tied=tied) / numel)
            total = total + sharded_parameters([item], tp, ep, expert_tp=expert_tp) * each
    return total


def layer_prefix_bytes(
    model: Model, fmt: WeightFormat, tp: Array, ep: Array, *, expert_tp: Array | None = None
) -> Array:
    """Bytes of the first l layers of the first stack on one rank, (L + 1) x tp: differences give any stage.

    Source: as `weight_bytes`, cut as `sharded_parameters` says.
    Assumes: `tp` and `ep` are one-dimensional and equally long; an expert is cut by `expert_tp` (None: by `tp`);
    weights that all layers share count with the first.
    """
    inner = None if expert_tp is None else tuple(np.asarray(expert_tp).tolist())
    return _prefix(model, fmt, tuple(np.asarray(tp).tolist()), tuple(np.asarray(ep).tolist()), inner)


@lru_cache(maxsize=512)
def _prefix(
    model: Model, fmt: WeightFormat, tps: tuple[int, ...], eps: tuple[int, ...], expert_tps: tuple[int, ...] | None
) -> Array:
    """`layer_prefix_bytes` by value: a search asks for the same degrees on every machine."""
    tp, ep = np.array(tps), np.array(eps)
    expert_tp = None if expert_tps is None else np.array(expert_tps)
    stack = model.stacks[0]
    place = _place(model, stack)
    known: dict[tuple[object, ...], Floats] = {}
    rows: list[Floats] = [np.zeros(len(tp))]
    for index, kind in enumerate(stack.order):
        at, items = replace(place, layer=index) if fmt.differs_by_layer else place, stack.kinds[kind].items
        by_item = (item_weight_bytes(item, fmt, at) for item in items if item_parameters(item))
        key = (kind, *(by_item if fmt.differs_by_layer else ()))  # types differ from layer to layer; there are few
        if key not in known:
            known[key] = _items_bytes(items, fmt, at, tp, ep, expert_tp=expert_tp)
        rows.append(known[key] if index < len(stack.stored_order) else np.zeros(len(tp)))
    return np.cumsum(np.stack([np.broadcast_to(r, np.shape(tp)) for r in rows]), axis=0)


def frozen_bytes(
    model: Model, items: Iterable[Item], fmt: WeightFormat, tp: Ints, ep: Ints, *, expert_tp: Ints, most: float
) -> Floats:
    """Bytes on one rank of `items` of the first stack in `fmt`, at no more than `most` a parameter; shape of `tp`.

    What is not trained crosses links as it is stored, or as it is computed with where that is narrower. `expert_tp`:
    ranks that share an expert.

    Source: as `weight_bytes`, cut as `sharded_parameters` says; FSDP-QLoRA gathers quantised storage.
    Assumes: where types differ from layer to layer, those of the first.
    """
    stack = model.stacks[0]
    place, tied = _place(model, stack), _is_tied(stack)
    return _items_bytes(items, fmt, place, tp, ep, tied=tied, expert_tp=expert_tp, most=most)


def end_bytes(model: Model, fmt: WeightFormat, tp: Array, ep: Array) -> tuple[Floats, Floats, Floats]:
    """Bytes on one rank of the parts before and after the layers, and of the other stacks.

    Source: as `weight_bytes`.
    Assumes: towers beside the first stack run on the first pipeline stage.
    """
    towers: Floats = 0.0
    before: Floats = 0.0
    after: Floats = 0.0
    for stack, own in _formats(model, fmt):
        place, tied = _place(model, stack), _is_tied(stack)
        ends = [_items_bytes(items, own, place, tp, ep, tied=tied) for items in (stack.before, stack.after)]
        if stack is model.stacks[0]:
            before, after = ends
        else:
            inner: Floats = np.zeros(np.shape(tp))
            for index, kind in enumerate(stack.kinds):
                inner = inner + _items_bytes(kind.items, own, place, tp, ep) * stack.stored_order.count(index)
            towers = towers + ends[0] + ends[1] + inner
    return before, after, towers
