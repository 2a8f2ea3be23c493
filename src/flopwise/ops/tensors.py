"""Parameters: how many elements each tensor of a model has, exactly, and how many of them lie on one rank.

A count is what `sum(p.numel() for p in model.parameters())` gives for the model of transformers that the configuration
makes: tied weights once, buffers (router corrections, rotary tables, BatchNorm statistics) not at all,
multi-token-prediction layers only where the configuration asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from flopwise.errors import MissingFactError
from flopwise.facts.architecture import Attend, Convolution, Embedding, Experts, Item, Linear, Model, Norm, Weight
from flopwise.ops.types import Floats, Ints
from flopwise.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorGroup:
    """The tensors of one item: `numel` elements in each of `layers` layers, `active_numel` of them for one token."""

    name: str
    stack: str
    numel: int  # in one layer
    layers: int
    active_numel: int  # in one layer


def _weight_and_bias(item: Item) -> tuple[int, int]:  # noqa: PLR0911 - a line for each kind of item
    """Elements of an item's weight and of its bias."""
    match item:
        case Linear():
            return (0 if item.tied else item.inputs * item.outputs), (item.outputs if item.bias else 0)
        case Experts():
            return item.experts * item.inputs * item.outputs, (item.experts * item.outputs if item.bias else 0)
        case Norm():
            dim = item.dim * (item.groups if item.own_weights else 1) if item.affine else 0
            return dim, (dim if item.bias else 0)
        case Embedding():
            return item.rows * item.dim, 0
        case Weight():
            return item.numel, 0
        case Convolution():
            dense = item.channels * (item.outputs or 1) * item.kernel
            return dense, ((item.outputs or item.channels) if item.bias else 0)
        case Attend():
            return (item.heads if item.sinks else 0) + item.position_bias, 0
        case _:
            return 0, 0


def item_parameters(item: Item) -> int:
    """Elements of an item's own tensors: weight and bias; a tied weight has none.

    Source: the shapes of torch.nn.Linear (outputs x inputs, outputs), Embedding, LayerNorm, Conv1d; checked against
    transformers in tests/ops/test_tensors.py.
    Assumes: biases of grouped experts are one vector an expert.
    """
    return sum(_weight_and_bias(item))


def item_active_parameters(item: Item) -> int:
    """Elements that one token goes through: of experts `top_k` of all, of anything else everything.

    Source: the definition by which model cards state "A" in names such as 30B-A3B: all but the experts that a token
    skips.
    Assumes: input embedding and head are both counted (once where tied).
    """
    if isinstance(item, Experts):
        return item_parameters(item) // item.experts * item.top_k
    if isinstance(item, Embedding) and not item.counted_active:
        return 0
    return item_parameters(item)


def tensor_groups(model: Model) -> list[TensorGroup]:
    """Every item that holds parameters, with the number of layers that repeat it, in the order in which they run.

    Source: the tables of `facts.architecture`.
    Assumes: nothing further.
    """
    groups: list[TensorGroup] = []
    for stack in model.stacks:
        counts = [0] * len(stack.kinds)
        for kind in stack.stored_order:
            counts[kind] += 1
        parts: list[tuple[str, tuple[Item, ...], int]] = [("", stack.before, 1)]
        parts += [(f"{layer.name}/", layer.items, counts[i]) for i, layer in enumerate(stack.kinds)]
        parts.append(("", stack.after, 1))
        for prefix, items, layers in parts:
            groups.extend(
                TensorGroup(
                    name=f"{stack.name}/{prefix}{item.name}",
                    stack=stack.name,
                    numel=numel,
                    layers=layers,
                    active_numel=item_active_parameters(item),
                )
                for item in items
                if (numel := item_parameters(item))
            )
    return groups


def parameters(model: Model) -> int:
    """All parameters of a model, tied ones once.

    Source: as `item_parameters`; for networks without tables the published count.
    Assumes: nothing further.
    Raises: MissingFactError: the network is known by published figures only, and its size is not among them.
    """
    if model.published is not None and not model.stacks:
        if model.published.parameters is None:
            raise MissingFactError(
                f"the number of parameters of {model.name} is not known; add it to models.jsonl (published: parameters)"
            )
        return model.published.parameters
    return sum(g.numel * g.layers for g in tensor_groups(model))


def active_parameters(model: Model) -> int:
    """Parameters that one token goes through: all but the routed experts it skips.

    Source: as `item_active_parameters`.
    Assumes: a multimodal model's towers all count; dense models have everything active.
    Raises: MissingFactError: as `parameters`.
    """
    if model.published is not None and not model.stacks:
        return parameters(model)
    return sum(g.active_numel * g.layers for g in tensor_groups(model))


def sharded_parameters(items: Iterable[Item], tp: Ints, ep: Ints, *, expert_tp: Ints | None = None) -> Floats:
    """Elements of `items` on one rank; shape of `tp` and `ep` broadcast.

    Columns and rows are cut by `tp`, a row-parallel bias and unsharded items stay whole, key and value projections are
    replicated once `tp` exceeds their heads; experts are spread over `ep`, and each is cut by `expert_tp` (None: by
    `tp`).

    Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3, for columns and rows; Megatron-LM and vLLM for replicated
    heads.
    Assumes: dimensions divide evenly; vocabularies are not padded.
    """
    inner = tp if expert_tp is None else expert_tp
    total: Floats = np.zeros(np.broadcast_shapes(np.shape(tp), np.shape(ep), np.shape(inner)))
    for item in items:
        weight, bias = _weight_and_bias(item)
        if weight + bias == 0:
            continue
        shard = item.shard if not isinstance(item, Attend) else "column"
        if isinstance(item, Experts):
            cut_bias: Floats = bias / inner if shard == "column" else float(bias)
            total = total + (weight / inner + cut_bias) / ep if shard else total + (weight + bias) / ep
        elif shard == "column":
            total = total + _column(item, weight + bias, tp)
        elif shard == "row" and not isinstance(item, Embedding):
            total = total + (weight / tp + bias)
        else:
            total = total + ((weight + bias) / tp if shard else float(weight + bias))
    return total if np.ndim(total) else float(total)


def _column(item: Item, numel: int, tp: Ints) -> Floats:
    """A column-parallel item's elements on one rank, key-value heads replicated where `tp` exceeds them."""
    if not isinstance(item, Linear) or not item.heads:
        return numel / tp
    shared = numel * (item.kv_outputs or item.outputs) / item.outputs
    return (numel - shared) / tp + shared / np.minimum(tp, item.heads)
