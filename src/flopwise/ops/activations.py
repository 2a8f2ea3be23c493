"""Activation memory: bytes that the forward pass leaves for the backward pass, of a layer and of a whole model."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.architecture import Attend, Experts, Item, Layer, Linear, Model, Norm, Pointwise, Stack
from flopwise.ops.flops import runs, stack_shape
from flopwise.ops.habits import habit_of
from flopwise.ops.saved import Setting, Trace, outside, trace_items
from flopwise.ops.shapes import Shape, Split, rows
from flopwise.ops.types import Floats, Ints
from flopwise.ops.work import linear_dims

Recompute = Literal["none", "selective", "full"]
Loss = Literal["full", "chunked", "none"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")


def _modes(recompute: str | Ints) -> Ints:
    """Recompute as a number or numbers: 0 none, 1 selective, 2 full."""
    if isinstance(recompute, str):
        if recompute not in RECOMPUTE:
            raise SpecError(f"recompute: {recompute!r} is not known; allowed: {', '.join(RECOMPUTE)}")
        return RECOMPUTE.index(recompute)
    return recompute


def _by_mode(mode: Ints, trace: Trace, entry: Floats) -> Floats:
    """Bytes of a traced layer under each mode: everything, without scores, or nothing but its input."""
    if isinstance(mode, np.ndarray):
        options = [np.asarray(x) for x in (_total(trace), _total(trace, scores=False), entry)]
        return np.select([mode == 0, mode == 1], options[:2], options[2])
    return entry if mode == 2 else _total(trace, scores=mode == 0)


def _total(trace: Trace, *, scores: bool = True) -> Floats:
    total: Floats = 0.0
    for key, nbytes in trace.kept.items():
        if scores or key not in trace.scores:
            total = total + nbytes
    return total


def layer_activation_bytes(
    layer: Layer, width: int, batch: Ints, seq: Ints, *, recompute: str | Ints = "none", **setting: Any
) -> Floats:
    """Bytes that one layer keeps on one rank for `batch` sequences of `seq` tokens; broadcasts over arrays.

    `recompute`: none, selective (the score-sized tensors are given up) or full (only the layer's input is kept), or
    numbers 0 to 2; while a layer is recomputed, all of what it keeps under "none" lives besides. `setting`: fields of
    `Setting`, beside the shape.

    Source: Korthikanti et al. 2022 (arXiv 2205.05198) equations 1 to 6 for "fused"; recorded runs in tests/oracle for
    the others.
    Assumes: parameters and activations of one dtype; fused kernels' row statistics (8 bytes a row) are left out; batch
    above 1 (eager attention on one sequence may keep views where it otherwise copies); with sequence parallelism a
    fully recomputed layer keeps its shard of the input.
    Raises: SpecError: unknown implementation or recompute mode.
    """
    given = Setting(shape=Shape(batch=batch, query=seq, context=seq), **setting)
    trace = trace_items(layer.items, given, width)
    return _by_mode(_modes(recompute), trace, outside(width, "tokens", given) * given.elem_bytes)


def fine_bytes(layer: Layer, width: int, shape: Shape, split: Split, elem_bytes: float, *, eight_bits: bool) -> Floats:
    """Bytes that one layer keeps where what is cheap is computed again: norms, activations, latent attention's inputs.

    Up-projections of latent attention run again, so that its compressed form is kept instead of queries, keys and
    values; experts' results are weighted before their last product, which so keeps none. `eight_bits`: what experts'
    products and their activation read is kept in 8 bits.

    Source: DeepSeek-V3 report (arXiv 2412.19437) sections 3.2.3 and 3.3.3; Megatron-Core, `recompute_modules`
    (layernorm, mla_up_proj, moe_act).
    Assumes: fused kernels with flash attention.
    """
    setting = Setting(shape=shape, split=split, elem_bytes=elem_bytes)
    again = {item.name for item in layer.items if isinstance(item, Norm | Pointwise) and "residual" not in item.name}
    again |= {f"{i.name}/{x}" for i in layer.items if isinstance(i, Attend) and i.latent_dim for x in "qkv"}
    narrow = set()
    for item in layer.items:
        if isinstance(item, Experts) and item.shard == "row":
            again.add(item.name)
        elif isinstance(item, Experts):
            narrow |= {item.name, f"{item.name}/permuted"}
    total: Floats = 0.0
    for key, nbytes in trace_items(layer.items, setting, width).kept.items():
        if key not in again:
            total = total + (nbytes / elem_bytes if eight_bits and key in narrow else nbytes)
    return total


def _head(stack: Stack, vocab: int) -> Linear | None:
    """The product that makes logits, if the stack ends in one."""
    return next((i for i in reversed(stack.after) if isinstance(i, Linear) and vocab and i.outputs == vocab), None)


def loss_bytes(model: Model, setting: Setting, loss: Loss) -> Floats:
    """Bytes that logits and loss keep: log-probabilities in fp32 for every token and word of the rank's vocabulary.

    "chunked" (fused linear and cross-entropy) keeps no row of the vocabulary, only the gradient of its input.

    Source: PyTorch's log_softmax and nll_loss (the output of the one, the targets of the other); Megatron-LM's
    vocabulary-parallel cross-entropy keeps the fp32 softmax likewise.
    Assumes: a loss over all tokens.
    """
    head = _head(model.stacks[0], model.vocab)
    if head is None or loss == "none":
        return 0.0
    tokens = rows("tokens", setting.shape, setting.split)
    if loss == "chunked":
        return tokens * model.stacks[0].width * setting.elem_bytes
    _, words = linear_dims(head, setting.split)
    capped = setting.elem_bytes if setting.habit.head_softcap and setting.implementation != "fused" else 0.0
    return tokens * words * (4.0 + capped) + tokens * 8.0


def _stack_bytes(stack: Stack, setting: Setting, mode: Ints) -> Floats:
    """Bytes that the items before the layers, the layers and the items after them keep."""
    adapters = setting.trainable != "all"
    total = _total(trace_items(stack.before, setting, stack.width, input_grad=False))
    entry = outside(stack.width, "tokens", setting) * setting.elem_bytes
    for index, layer in enumerate(stack.kinds):
        count = stack.order.count(index)
        each = _by_mode(mode, trace_items(layer.items, setting, stack.width), entry)
        if adapters and stack.order and stack.order[0] == index:  # nothing before the first layer is trained
            first = _by_mode(mode, trace_items(layer.items, setting, stack.width, input_grad=False), entry)
            total, count = total + first, count - 1
        total = total + count * each
    return total + _total(trace_items(stack.after, setting, stack.width))


def model_activation_bytes(
    model: Model,
    batch: Ints,
    seq: Ints,
    *,
    recompute: str | Ints = "none",
    encoder: Ints | None = None,
    loss: Loss = "full",
    **setting: Any,
) -> Floats:
    """Bytes that a whole model keeps on one rank (no pipeline), embeddings, final norm, logits and loss included.

    `setting`: fields of `Setting`, beside the shape and the family's habits.

    Source: as `layer_activation_bytes` and `loss_bytes`.
    Assumes: as there; towers of multimodal models do not run; an encoder's output is kept once for all layers that look
    at it; rotary tables (shared, 2 rows a position) are left out.
    Raises: SpecError: unknown implementation or recompute mode; MissingFactError: a network without a table of layers.
    """
    if not model.stacks:
        raise MissingFactError(
            f"{model.name} is known by published figures only: its activations cannot be counted; add its configuration"
        )
    mode, habit = _modes(recompute), habit_of(model.model_type)
    total: Floats = 0.0
    for stack in model.stacks:
        if not runs(model, stack):
            continue
        shape = stack_shape(model, stack, batch, seq, encoder=encoder)
        given = Setting(shape=shape, habit=habit, **setting)
        total = total + _stack_bytes(stack, given, mode)
        if stack is model.stacks[0]:
            total = total + loss_bytes(model, given, loss)
            if given.implementation == "eager" and habit.mask_argument:
                total = total + (np.asarray(mode) == 2) * (1.0 * batch * seq * seq * given.elem_bytes)
        elif _looked_at(model.stacks[0]):
            total = total + outside(stack.width, "tokens", given) * given.elem_bytes
    return total


def _looked_at(stack: Stack) -> bool:
    """Whether the stack's layers look at an encoder's output."""
    items: list[Item] = [item for layer in stack.kinds for item in layer.items]
    return any(isinstance(item, Linear) and item.stream == "encoder" for item in items)
