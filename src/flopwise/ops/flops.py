"""Floating-point operations of a whole model, forward and backward: as PyTorch counts them, as flash kernels run them.

A multiply-add is two operations. "Counted" is what torch.utils.flop_counter.FlopCounterMode reports: matrix products,
convolutions and attention in full; "causal" leaves out what masks and windows hide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from flopwise.errors import MissingFactError
from flopwise.facts.architecture import Item, Model, Stack
from flopwise.ops.backward import backward_works
from flopwise.ops.shapes import Shape, Split, Trainable, Work
from flopwise.ops.types import Floats, Ints
from flopwise.ops.work import item_work
from flopwise.values import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One kind of operation of a model, summed over the layers that do it."""

    name: str
    flops: Floats
    bytes: Floats


WHOLE = Split(sequence_parallel=False)


def encoder_tokens(model: Model, seq: Ints) -> Ints:
    """Tokens that cross-attention sees: the encoder's output for one sample, or as many as the text has.

    Source: the towers' tables of tensors. Assumes: one sample (image, sound) for each sequence.
    """
    for stack in model.stacks[1:]:
        if stack.tokens_per_sample is not None:
            return stack.tokens_per_sample
    return seq


def stack_shape(model: Model, stack: Stack, batch: Ints, seq: Ints, *, encoder: Ints | None = None) -> Shape:
    """The shape of one forward pass of a stack without a cache: its own tokens, and the encoder's that it looks at.

    Source: none needed. Assumes: an encoder without a fixed length runs over `encoder` tokens, or `seq` when None.
    """
    seen = encoder_tokens(model, seq) if encoder is None else encoder
    tokens = seq if stack is model.stacks[0] else seen
    if stack.tokens_per_sample is not None:
        tokens = stack.tokens_per_sample
    return Shape(batch=batch, query=tokens, context=tokens, encoder=seen)


def runs(model: Model, stack: Stack) -> bool:
    """True if a pass over text runs this stack: a multimodal model's towers run only on images or sound.

    Source: transformers, forward passes without pixels or sound. Assumes: an encoder-decoder always encodes.
    """
    return stack is model.stacks[0] or model.kind in ("encoder-decoder", "vision")


def stack_works(stack: Stack, shape: Shape) -> Iterator[tuple[str, int, list[Work]]]:
    """(part, layers, works) of a stack: "before", each kind of layer with how often it occurs, "after".

    Source: `item_work`. Assumes: as there; learned tokens (class token, registers) join after the first product.
    """

    def works(items: Iterable[Item], shape: Shape = shape) -> list[Work]:
        return [work for item in items if (work := item_work(item, shape, WHOLE)) is not None]

    stem = replace(shape, query=shape.query - stack.extra_tokens)
    yield "before", 1, [*works(stack.before[:1], stem), *works(stack.before[1:])]
    for index, layer in enumerate(stack.kinds):
        yield layer.name, stack.order.count(index), works(layer.items)
    yield "after", 1, works(stack.after)


def _raw_inputs(stack: Stack) -> frozenset[str]:
    """Items that read what nobody differentiates (pixels, sound): the first product of a stem without a table.

    Source: PyTorch's autograd: no gradient is formed for an input that asks for none.
    Assumes: only the first product of a stem reads raw data.
    """
    works = (item_work(item, Shape(batch=1, query=1, context=1, encoder=1), WHOLE) for item in stack.before)
    first = next((work for work in works if work is not None), None)
    return frozenset({first.name}) if first is not None and first.kind in ("conv", "matmul") else frozenset()


def _all_works(
    model: Model, batch: Ints, seq: Ints, encoder: Ints | None = None, *, towers: bool = False
) -> Iterator[tuple[Stack, int, list[Work]]]:
    """(stack, how often, works) of every part of a model that a pass runs."""
    for stack in model.stacks:
        if towers or runs(model, stack):
            shape = stack_shape(model, stack, batch, seq, encoder=encoder)
            yield from ((stack, layers, works) for _, layers, works in stack_works(stack, shape))


def _published_flops(model: Model, batch: Ints, *, backward: bool) -> Floats:
    facts = model.published
    forward = facts.forward_flops_per_sample if facts else None
    if facts is None or forward is None:
        raise MissingFactError(f"{model.name}: operations of a forward pass are not known; add them to its row")
    if not backward:
        return forward * batch
    if facts.training_flops_per_sample is not None:
        return (facts.training_flops_per_sample - forward) * batch
    return 2.0 * forward * batch


def _forward_sum(
    model: Model, batch: Ints, works: Iterable[tuple[Stack, int, list[Work]]], count: Callable[[Work], Floats]
) -> Floats:
    if not model.stacks:
        return _published_flops(model, batch, backward=False)
    total: Floats = 0.0
    for _, layers, each in works:
        for work in each:
            total = total + layers * count(work)
    return total


def forward_flops(model: Model, batch: Ints, seq: Ints, *, encoder: Ints | None = None, towers: bool = False) -> Floats:
    """Operations of a forward pass over `batch` sequences of `seq` tokens, attention in full; broadcasts.

    `encoder`: tokens of the encoder (None: its fixed number, else `seq`). `towers`: run the vision or audio tower of
    a multimodal model too, once for each sequence.

    Source: torch.utils.flop_counter, which this equals within 0.1 % (tests/oracle).
    Assumes: logits for every token; networks without a table of layers have published figures per sample.
    Raises: MissingFactError: neither a table nor a published figure.
    """
    return _forward_sum(model, batch, _all_works(model, batch, seq, encoder, towers=towers), lambda work: work.flops)


def causal_forward_flops(
    model: Model, batch: Ints, seq: Ints, *, encoder: Ints | None = None, towers: bool = False
) -> Floats:
    """As `forward_flops`, counting only the (query, key) pairs that masks and windows let through.

    Source: as `attended_pairs`. Assumes: kernels skip hidden blocks entirely.
    Raises: MissingFactError: as `forward_flops`.
    """
    return _forward_sum(
        model, batch, _all_works(model, batch, seq, encoder, towers=towers), lambda work: work.causal_flops
    )


def backward_flops(
    model: Model, batch: Ints, seq: Ints, *, encoder: Ints | None = None, trainable: Trainable = "all"
) -> Floats:
    """Operations of the backward pass without recompute: two products for each forward one, attention in full.

    Source: torch.utils.flop_counter on the unfused attention (flash kernels spend 2.5 times forward instead of 2).
    Assumes: as `backward_works`; the first product over pixels or sound has no input gradient.
    Raises: MissingFactError: as `forward_flops`.
    """
    if not model.stacks:
        return _published_flops(model, batch, backward=True)
    total: Floats = 0.0
    for stack, layers, works in _all_works(model, batch, seq, encoder):
        for work in backward_works(works, trainable=trainable, no_input_grad=_raw_inputs(stack)):
            total = total + layers * work.flops
    return total


def operations(model: Model, batch: Ints, seq: Ints) -> list[Operation]:
    """The forward pass operation by operation, summed over layers: operations counted and bytes read and written.

    Source: `item_work`. Assumes: every operation reads its inputs and weights once and writes its output once, all in
    2 bytes an element: what separate kernels with perfect caches move.
    """
    sums: dict[str, tuple[Floats, Floats]] = {}
    for stack, layers, works in _all_works(model, batch, seq):
        for work in works:
            name = work.name if stack is model.stacks[0] else f"{stack.name}/{work.name}"
            moved = (work.weight_elems + work.in_elems + work.out_elems) * 2.0
            flops, nbytes = sums.get(name, (0.0, 0.0))
            sums[name] = flops + layers * work.flops, nbytes + layers * moved
    return [Operation(name=name, flops=flops, bytes=nbytes) for name, (flops, nbytes) in sums.items()]
