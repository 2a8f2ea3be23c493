"""What one rank must do for one item of a layer: floating-point operations, elements moved, and their dimensions.

A multiply and an add are two operations. `Work.flops` counts what PyTorch's FlopCounterMode counts: matrix products,
convolutions and attention in full, whatever the mask; `Work.causal_flops` counts only what the mask lets through, as
flash kernels run it. Norms, activations and residuals count no operations there: they move bytes.

Letters: as in `flopwise.facts.architecture`; on one rank a dimension is what is left after the `Split`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Literal, TYPE_CHECKING

from flopwise.facts.architecture import (
    Attend,
    Convolution,
    Experts,
    Item,
    Layer,
    Linear,
    Norm,
    Pointwise,
    Recurrence,
    Stream,
    Table,
    Weight,
)
from flopwise.ops.types import Floats, Ints, ceil_div, least, most

if TYPE_CHECKING:
    from collections.abc import Callable

WorkKind = Literal["matmul", "grouped", "attention", "norm", "pointwise", "gather", "conv", "recurrence"]
Trainable = Literal["all", "none"] | frozenset[str]
"""Whose weights get gradients: everything, nothing, or nothing but adapters on the items of these names (LoRA)."""

SEQUENTIAL_READS = {"residual": 2, "gate": 2}
BACKWARD_FLASH = 2.5  # five matrix products backward (scores again, dV, dP, dQ, dK) for two forward


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`batch` sequences with `query` new tokens each, of which each may see `context` tokens (cached and new)."""

    batch: Ints
    query: Ints
    context: Ints
    encoder: Ints = 0  # tokens of the encoder that cross-attention sees


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How ranks share one layer: `Shape` is what one data-parallel rank is given, `Work` what is left for one rank."""

    tp: Ints = 1  # heads, hidden columns, vocabulary
    ep: Ints = 1  # experts
    cp: Ints = 1  # tokens of a sequence
    sequence_parallel: bool = True  # norms and residuals divide tokens by tp
    expert_tp: Ints | None = None  # tp inside an expert; None: as tp
    ep_own_tokens: bool = True  # each ep rank brings its own tokens (False: all see one batch, ep out of tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One operation of one layer on one rank; every number may be an array of candidates.

    m, n, k: an (m x k) by (k x n) product, summed over the `groups` of a grouped one; None where there is no product.
    Elements are counted, not bytes: the caller knows the formats.
    """

    name: str
    kind: WorkKind
    flops: Floats = 0.0
    causal_flops: Floats = 0.0
    m: Ints | None = None
    n: Ints | None = None
    k: Ints | None = None
    groups: Ints = 1  # experts this rank holds
    touched: Floats = 1.0  # distinct experts that any token chose, expected
    weight_elems: Floats = 0.0  # weight elements read
    in_elems: Floats = 0.0
    out_elems: Floats = 0.0
    kv_elems: Floats = 0.0  # cached elements read (attention), state elements (recurrence)
    heads: Ints = 0
    kv_heads: Ints = 0
    qk_dim: int = 0
    v_dim: int = 0
    latent_dim: int | None = None  # MLA: what is cached, shared by all heads
    batch: Ints = 0
    query: Ints = 0
    context: Ints = 0
    window: int | None = None
    causal: bool = False
    pairs: Floats = 0.0  # (query, key) pairs that the mask lets through, one sequence, one head


def local_units(whole: Ints, parts: Ints, unit: Ints = 1) -> Ints:
    """What the fullest of `parts` ranks holds of `whole`, cut in multiples of `unit`."""
    return ceil_div(ceil_div(whole, unit), parts) * unit


def local_heads(heads: Ints, tp: Ints) -> Ints:
    """Heads on one rank; at least one: key-value heads are replicated when tp exceeds them.

    Source: Megatron-LM and vLLM, grouped-query attention under tensor parallelism.
    """
    return most(ceil_div(heads, tp), 1)


def rows(stream: Stream, shape: Shape, split: Split) -> Floats:
    """Rows of a stream on one rank: tokens are divided by cp, encoder tokens and samples as well as far as they go."""
    if stream == "tokens":
        return shape.batch * (shape.query / split.cp)
    if stream == "encoder":
        return shape.batch * (shape.encoder / split.cp)
    return shape.batch * 1.0


def attended_pairs(item: Attend, query: Ints, context: Ints) -> Floats:
    """(query, key) pairs that the mask lets through in one sequence: the last `query` of `context` positions ask.

    Causal: the query at position p sees p + 1 keys; a window caps that at w, a chunk restarts it every c positions, a
    selection caps it at the number of keys chosen.

    Source: counting; for query = context = S it is S (S + 1) / 2, which papers round to S**2 / 2.
    Assumes: a window of a bidirectional layer is centred and never cut off by the ends of the sequence.
    """
    if item.cross or not item.causal:
        return 1.0 * query * (least(context, item.window) if item.window and not item.cross else context)
    first = context - query
    if item.chunk is not None:
        return _chunked_sum(context, item.chunk) - _chunked_sum(first, item.chunk)
    cap = min((c for c in (item.window, item.select) if c is not None), default=None)
    if cap is None:
        return query * (first + 0.5 * (query + 1))
    return _capped_sum(context, cap) - _capped_sum(first, cap)


def _capped_sum(n: Ints, cap: int) -> Floats:
    """min(1, cap) + ... + min(n, cap)."""
    short = least(n, cap)
    return 0.5 * short * (short + 1) + (n - short) * 1.0 * cap


def _chunked_sum(n: Ints, chunk: int) -> Floats:
    """1 + ... + chunk, again and again, over n terms."""
    rest = n % chunk
    return (n // chunk) * (0.5 * chunk * (chunk + 1)) + 0.5 * rest * (rest + 1)


def seen_tokens(item: Attend, context: Ints) -> Ints:
    """Cached tokens that the next query of a sequence reads: all, the window, what the chunk holds, the selection."""
    caps = [c for c in (item.window, item.chunk, item.select) if c is not None]
    return least(context, min(caps)) if caps else context


def touched_experts(experts: int, top_k: int, tokens: Floats, held: Ints) -> Floats:
    """Distinct experts, of the `held` ones, that at least one of `tokens` tokens chose: expectation, uniform routing.

    held * (1 - (1 - k / E) ** tokens).

    Source: balls into bins, each token choosing k of E without repetition.
    Assumes: the router spreads tokens evenly; a skewed router touches fewer.
    """
    return held * (1.0 - (1.0 - top_k / experts) ** tokens)


@singledispatch
def item_work(item: Item, shape: Shape, split: Split) -> Work | None:
    """The work of one item on one rank; None for parameters without an operation.

    Source: definitions in the module legend. Assumes: shards are cut as the item says; the fullest rank is described.
    """
    del shape, split
    raise TypeError(f"no operation count for {type(item).__name__}")


@item_work.register
def _(item: Weight, shape: Shape, split: Split) -> Work | None:
    del item, shape, split
    return None


def linear_dims(item: Linear, split: Split) -> tuple[Ints, Ints]:
    """(k, n): inputs and outputs of the weight that one rank holds."""
    k: Ints = item.inputs
    n: Ints = item.outputs
    if item.shard == "column":
        n = (
            local_heads(item.heads, split.tp) * (item.outputs // item.heads)
            if item.heads
            else local_units(n, split.tp, item.shard_unit)
        )
    elif item.shard == "row":
        k = local_units(k, split.tp, item.shard_unit)
    return k, n


@item_work.register
def _(item: Linear, shape: Shape, split: Split) -> Work:
    m = rows(item.stream, shape, split)
    k, n = linear_dims(item, split)
    flops = 2.0 * m * n * k
    return Work(
        name=item.name,
        kind="matmul",
        flops=flops,
        causal_flops=flops,
        m=m,
        n=n,
        k=k,
        weight_elems=1.0 * n * k + (n if item.bias else 0),
        in_elems=m * k,
        out_elems=m * n,
    )


def expert_dims(item: Experts, split: Split) -> tuple[Ints, Ints, Ints]:
    """(experts held, k, n) on one rank."""
    tp = split.tp if split.expert_tp is None else split.expert_tp
    k = local_units(item.inputs, tp) if item.shard == "row" else item.inputs
    n = local_units(item.outputs, tp) if item.shard == "column" else item.outputs
    return ceil_div(item.experts, split.ep), k, n


@item_work.register
def _(item: Experts, shape: Shape, split: Split) -> Work:
    held, k, n = expert_dims(item, split)
    tokens = rows("tokens", shape, split)
    everyone = tokens * split.ep if split.ep_own_tokens else tokens
    m = everyone * item.top_k * held / item.experts
    touched = touched_experts(item.experts, item.top_k, everyone, held)
    flops = 2.0 * m * n * k
    return Work(
        name=item.name,
        kind="grouped",
        flops=flops,
        causal_flops=flops,
        m=m,
        n=n,
        k=k,
        groups=held,
        touched=touched,
        weight_elems=touched * (1.0 * n * k + (n if item.bias else 0)),
        in_elems=m * k,
        out_elems=m * n,
    )


def cached_elems_per_token(item: Attend, tp: Ints = 1) -> Ints:
    """Elements that one layer caches for one token on one rank: K and V of its heads, or the latent whole.

    Source: DeepSeek-V2 (arXiv 2405.04434) section 2.1 for the latent; otherwise K (H_qk + H_v).
    """
    if item.latent_dim is not None:
        return item.latent_dim
    return local_heads(item.kv_heads, tp) * (item.qk_dim + item.v_dim)


@item_work.register
def _(item: Attend, shape: Shape, split: Split) -> Work:
    context = shape.encoder if item.cross else shape.context
    query = shape.query / split.cp
    heads = ceil_div(item.heads, split.tp)
    kv_heads = local_heads(item.kv_heads, split.tp)
    pairs = attended_pairs(item, shape.query, context) / split.cp
    per_pair = 2.0 * heads * (item.qk_dim + item.v_dim)
    seen = shape.batch * pairs
    causal_flops = seen * per_pair
    if item.latent_dim is not None:
        # A few queries over a long latent run on it directly (absorbed); many unfold it into keys and values first.
        unfold = 2.0 * shape.batch * (context - shape.query) * item.latent_dim * heads * (item.qk_dim + item.v_dim)
        causal_flops = least(causal_flops + unfold, seen * 4.0 * heads * item.latent_dim)
    return Work(
        name=item.name,
        kind="attention",
        flops=1.0 * shape.batch * query * context * per_pair,
        causal_flops=causal_flops,
        in_elems=shape.batch * (query * heads * item.qk_dim + 1.0 * context * kv_heads * (item.qk_dim + item.v_dim)),
        out_elems=shape.batch * query * heads * item.v_dim,
        kv_elems=1.0 * shape.batch * seen_tokens(item, context) * cached_elems_per_token(item, split.tp),
        heads=heads,
        kv_heads=kv_heads,
        qk_dim=item.qk_dim,
        v_dim=item.v_dim,
        latent_dim=item.latent_dim,
        batch=shape.batch,
        query=query,
        context=context,
        window=item.window if item.window is not None else item.chunk,
        causal=item.causal and not item.cross,
        pairs=pairs,
    )


def _shared_elems(dim: int, shard: str, stream: Stream, shape: Shape, split: Split) -> Floats:
    """Elements of a tensor of `dim` a row on one rank: inside the tp region its columns are cut, outside its rows."""
    m = rows(stream, shape, split)
    if shard:
        return m * local_units(dim, split.tp)
    return m * dim / split.tp if split.sequence_parallel else m * dim * 1.0


@item_work.register
def _(item: Norm, shape: Shape, split: Split) -> Work:
    if item.shard:
        elems = rows(item.stream, shape, split) * local_heads(item.groups, split.tp) * item.dim
    else:
        elems = _shared_elems(item.dim * item.groups, "", item.stream, shape, split)
    weight = item.dim * (int(item.affine) + int(item.bias))
    return Work(name=item.name, kind="norm", weight_elems=float(weight), in_elems=elems, out_elems=elems)


@item_work.register
def _(item: Pointwise, shape: Shape, split: Split) -> Work:
    copies = item.per_expert or 1
    elems = copies * _shared_elems(item.dim, item.shard, item.stream, shape, split)
    reads = 2 if item.gated else SEQUENTIAL_READS.get(item.kind, 1)
    return Work(name=item.name, kind="pointwise", in_elems=reads * elems, out_elems=elems)


@item_work.register
def _(item: Table, shape: Shape, split: Split) -> Work:
    m = rows(item.stream, shape, split)
    read = m * item.dim / (split.tp if item.shard else 1)
    return Work(name=item.name, kind="gather", weight_elems=read, out_elems=m * item.dim)


@item_work.register
def _(item: Convolution, shape: Shape, split: Split) -> Work:
    m = rows(item.stream, shape, split)
    cut: Ints = split.tp if item.shard else 1
    outputs = item.channels if item.outputs is None else item.outputs
    inputs = 1 if item.outputs is None else item.channels
    local = ceil_div(outputs, cut)
    flops = 2.0 * m * local * inputs * item.kernel
    read = m * item.stride * (local if item.outputs is None else item.channels)
    return Work(
        name=item.name,
        kind="conv",
        flops=flops,
        causal_flops=flops,
        weight_elems=1.0 * local * (inputs * item.kernel + int(item.bias)),
        in_elems=read,
        out_elems=m * local,
    )


@item_work.register
def _(item: Recurrence, shape: Shape, split: Split) -> Work:
    heads = ceil_div(item.heads, split.tp) if item.shard else item.heads
    m = rows("tokens", shape, split)
    scan, counted = recurrence_flops(item, shape.query)
    state = shape.batch * (item.state * 1.0) * heads / item.heads
    per_token = heads * (2 * item.key_dim + 2 * item.value_dim)
    return Work(
        name=item.name,
        kind="recurrence",
        flops=m * heads * counted,
        causal_flops=m * heads * scan,
        in_elems=m * per_token,
        out_elems=m * heads * item.value_dim,
        kv_elems=state,
        heads=heads,
        qk_dim=item.key_dim,
        v_dim=item.value_dim,
        batch=shape.batch,
        query=shape.query / split.cp,
        context=shape.context,
    )


def recurrence_flops(item: Recurrence, query: Ints) -> tuple[Floats, Floats]:
    """(operations of the scan, operations PyTorch's counter sees in the reference code), per token and head.

    Step by step a state of key_dim x value_dim is decayed, updated and read: 2 products of that size, 3 for delta rules
    (the old value is read first). In blocks of `chunk` tokens the same work becomes matrix products inside the block
    (chunk / 2 pairs a token, causal) and between blocks; short queries run step by step.

    Source: Mamba-2 (arXiv 2405.21060) section 6, table of costs; counted: reference code of transformers, where
    only the read of the state (Mamba-1) is a matrix product.
    Assumes: the elementwise decay is not counted, as elsewhere.
    """
    step = 2.0 * item.key_dim * item.value_dim
    products = 3.0 if item.kind in ("delta", "kda") else 2.0
    block = least(query, item.chunk)
    scan: Floats = products * step + (0.0 if item.kind == "mamba1" else (block - 1) * (item.key_dim + item.value_dim))
    return scan, step if item.kind == "mamba1" else 0.0


def layer_works(layer: Layer, shape: Shape, split: Split) -> list[Work]:
    """The works of a layer's items in the order in which they run, forward.

    Source: `item_work`. Assumes: as there.
    """
    works = (item_work(item, shape, split) for item in layer.items)
    return [work for work in works if work is not None]


def _product_gradients(work: Work, *, weight: bool, inputs: bool) -> list[Work]:
    """The two products behind y = x W: dx = dy W^T and dW = x^T dy, with the same operations each."""
    grads = []
    if inputs:
        grads.append(
            replace(
                work, name=f"{work.name}/dgrad", n=work.k, k=work.n, in_elems=work.out_elems, out_elems=work.in_elems
            )
        )
    if weight:
        grads.append(
            replace(
                work,
                name=f"{work.name}/wgrad",
                m=work.k,
                k=work.m,
                in_elems=work.in_elems + work.out_elems,
                out_elems=work.weight_elems,
                weight_elems=0.0,
            )
        )
    return grads


def _attention_gradient(work: Work) -> Work:
    return replace(
        work,
        name=f"{work.name}/grad",
        flops=2.0 * work.flops,
        causal_flops=BACKWARD_FLASH * work.causal_flops,
        in_elems=work.in_elems + 2.0 * work.out_elems,
        out_elems=work.in_elems,
    )


def _moving_gradient(work: Work) -> Work:
    """Backward of memory-bound work: reads what came in and the gradient, writes the gradient of what came in."""
    return replace(
        work,
        name=f"{work.name}/grad",
        flops=2.0 * work.flops,
        causal_flops=2.0 * work.causal_flops,
        in_elems=work.in_elems + work.out_elems,
        out_elems=work.in_elems,
    )


_SINGLE: dict[str, Callable[[Work], Work]] = {
    "attention": _attention_gradient,
    "norm": _moving_gradient,
    "pointwise": _moving_gradient,
    "gather": _moving_gradient,
    "recurrence": _moving_gradient,
}


def backward_works(
    works: list[Work], *, trainable: Trainable = "all", no_input_grad: frozenset[str] = frozenset()
) -> list[Work]:
    """The works of the backward pass, last item first.

    Two products for each forward one (towards the input and towards the weight), attention 2 (as PyTorch's unfused
    code) or 2.5 (flash: scores once more) times forward. `trainable` other than "all" drops the weights' gradients;
    adapters bring their own works. `no_input_grad` names items whose input needs no gradient (pixels, audio frames).

    Source: Kaplan et al. 2020 (arXiv 2001.08361) section 2.1; Dao 2023 (arXiv 2307.08691) section 4.1 for 2.5.
    Assumes: embeddings are trained when everything is, so the first layer has an input gradient.
    """
    backward: list[Work] = []
    for work in reversed(works):
        if work.kind in _SINGLE:
            if not (work.kind == "gather" and trainable != "all"):
                backward.append(_SINGLE[work.kind](work))
        else:
            backward += _product_gradients(work, weight=trainable == "all", inputs=work.name not in no_input_grad)
    return backward


def adapter_items(item: Linear, rank: int) -> tuple[Linear, Linear]:
    """The two products of a low-rank adapter on `item`: inputs x rank and rank x outputs, cut as the item itself is.

    Source: Hu et al. 2021 (arXiv 2106.09685) section 4.1.
    """
    down = Linear(
        name=f"{item.name}/lora_a",
        inputs=item.inputs,
        outputs=rank,
        shard="row" if item.shard == "row" else "",
        shard_unit=item.shard_unit if item.shard == "row" else 1,
        stream=item.stream,
        reads=item.reads,
    )
    up = Linear(
        name=f"{item.name}/lora_b",
        inputs=rank,
        outputs=item.outputs,
        shard="column" if item.shard == "column" else "",
        shard_unit=item.shard_unit if item.shard == "column" else 1,
        heads=item.heads,
        stream=item.stream,
    )
    return down, up
