"""What one rank must do for one item of a layer: floating-point operations, elements moved, and their dimensions.

A multiply and an add are two operations. `Work.flops` counts what PyTorch's FlopCounterMode counts: matrix products,
convolutions and attention in full, whatever the mask; `Work.causal_flops` counts only what the mask lets through, as
flash kernels run it. Norms, activations and residuals count no operations there: they move bytes.

Letters: as in `flopwise.facts.architecture`; on one rank a dimension is what is left after the `Split`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch

from flopwise.facts.architecture import (
    Attend,
    Convolution,
    Embedding,
    Experts,
    Item,
    Linear,
    Norm,
    Pointwise,
    Recurrence,
    Stream,
    Weight,
)
from flopwise.ops.shapes import Shape, Split, Work, local_heads, local_units, rows
from flopwise.ops.types import Floats, Ints, ceil_div, least, most

_READS = {"residual": 2, "gate": 2}


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
    """(k, n): inputs and outputs of the weight that one rank holds.

    Source: Megatron-LM (arXiv 1909.08053) section 3. Assumes: the fullest rank is described; key-value heads are held
    whole, at least one a rank.
    """
    k: Ints = item.inputs
    n: Ints = item.outputs
    if item.shard == "column":
        shared = (item.kv_outputs or item.outputs) if item.heads else 0
        n = local_units(item.outputs - shared, split.tp, item.shard_unit)
        if shared:
            n = n + local_heads(item.heads, split.tp) * (shared // item.heads)
    elif item.shard == "row":
        k = local_units(k, split.tp, item.shard_unit)
    return k, n


@item_work.register
def _(item: Linear, shape: Shape, split: Split) -> Work:
    m = 1.0 * item.fixed_rows or rows(item.stream, shape, split)
    k, n = linear_dims(item, split)
    flops = 2.0 * m * n * k
    return Work(
        name=item.name, kind="matmul", flops=flops, causal_flops=flops, m=m, n=n, k=k,
        weight_elems=1.0 * n * k + (n if item.bias else 0), in_elems=m * k, out_elems=m * n,
    )  # fmt: skip


def inner_tp(split: Split) -> Ints:
    """Ranks that share one expert.

    Source: Megatron-LM, expert tensor parallelism. Assumes: tp cuts experts too unless the split says otherwise.
    """
    return split.tp if split.expert_tp is None else split.expert_tp


def of_experts(item: Item) -> bool:
    """True if an item is part of a layer of experts: its router, the experts, those that all tokens share.

    Source: names of the items (`flopwise.facts.models.blocks`). Assumes: nothing further.
    """
    return isinstance(item, Experts) or item.name.startswith(("router", "experts/", "shared/"))


def of_dense_mlp(item: Item) -> bool:
    """True if an item is part of a dense feed-forward part, its residual apart.

    Source: names of the items (`flopwise.facts.models.blocks`). Assumes: nothing further.
    """
    return item.name.startswith("mlp/") and item.name != "mlp/residual"


def projects_attention(item: Item) -> bool:
    """True if an item is part of an attention block but not attention itself.

    Source: names of the items (`flopwise.facts.models.blocks`). Assumes: nothing further.
    """
    return item.name.startswith("attention/") and not isinstance(item, Attend)


def is_activation(item: Item) -> bool:
    """True if an item is the activation function of a feed-forward part or of a recurrent block.

    Source: names of the items (`flopwise.facts.models.blocks`). Assumes: nothing further.
    """
    return isinstance(item, Pointwise) and item.name.endswith("/act")


def activates_experts(item: Item) -> bool:
    """True if an item is the activation function of routed experts. Source and assumptions: `is_activation`."""
    return is_activation(item) and item.name.startswith("experts/")


def has_gated_experts(items: Iterable[Item]) -> bool:
    """True if routed experts of `items` have a gated activation. Source and assumptions: `is_activation`."""
    return any(activates_experts(item) and isinstance(item, Pointwise) and item.gated for item in items)


def expert_token_share(split: Split) -> Floats:
    """Share of a micro-batch's tokens that one rank brings to its experts: all, or its part of the tp group's.

    Where experts are cut as all else is, every rank of a tensor-parallel group computes all of its tokens; where they
    are whole, each of its ranks sends its part of the sequence to them.

    Source: Liu et al. 2025 (arXiv:2504.14960) section 3, MoE parallel folding.
    Assumes: a group of `expert_tp` ranks has its tokens from as many ranks of the tp group.
    """
    return inner_tp(split) / split.tp


def expert_dims(item: Experts, split: Split) -> tuple[Ints, Ints, Ints]:
    """(experts held, k, n) on one rank.

    Source: Megatron-LM, expert parallelism. Assumes: experts are spread evenly, the fullest rank is described.
    """
    tp = inner_tp(split)
    k = local_units(item.inputs, tp) if item.shard == "row" else item.inputs
    n = local_units(item.outputs, tp) if item.shard == "column" else item.outputs
    return ceil_div(item.experts, split.ep), k, n


@item_work.register
def _(item: Experts, shape: Shape, split: Split) -> Work:
    local_experts, k, n = expert_dims(item, split)
    tokens = rows("tokens", shape, split)
    everyone = tokens * expert_token_share(split) * split.ep if split.ep_own_tokens else tokens
    m = everyone * item.top_k * local_experts / item.experts * split.expert_load
    touched = touched_experts(item.experts, item.top_k, everyone, local_experts) * split.touched_load
    flops = 2.0 * m * n * k
    return Work(
        name=item.name, kind="grouped", flops=flops, causal_flops=flops, m=m, n=n, k=k, groups=local_experts,
        touched=touched,
        weight_elems=touched * (1.0 * n * k + (n if item.bias else 0)), in_elems=m * k, out_elems=m * n,
    )  # fmt: skip


def cached_elems_per_token(item: Attend, tp: Ints = 1) -> Ints:
    """Elements that one layer caches for one key on one rank: K and V of its heads, or the latent whole.

    Keys and values that are one tensor are cached once.

    Source: DeepSeek-V2 (arXiv 2405.04434) section 2.1 for the latent; otherwise K (H_qk + H_v).
    Assumes: a latent is held whole by every rank of tp, as vLLM and SGLang do.
    """
    if item.latent_dim is not None:
        return item.latent_dim
    return local_heads(item.kv_heads, tp) * _key_elems(item)


def _key_elems(item: Attend) -> int:
    """Elements of one key and its value in one head."""
    return item.qk_dim + (0 if item.key_is_value else item.v_dim)


@item_work.register
def _(item: Attend, shape: Shape, split: Split) -> Work:
    context = shape.encoder if item.cross else shape.context
    keys = present_keys(item, context)
    query = shape.query / split.cp
    heads = ceil_div(item.heads, split.tp)
    kv_heads = local_heads(item.kv_heads, split.tp)
    pairs = attended_pairs(item, shape.query, context) / split.cp
    read = shape.batch * 1.0 * seen_tokens(item, context, shape.query)
    per_pair = 2.0 * heads * (item.qk_dim + item.v_dim)
    seen = shape.batch * pairs
    causal_flops = seen * per_pair
    if item.latent_dim is not None:
        # A few queries over a long latent run on it directly (absorbed); many unfold it into keys and values first.
        unfold = 2.0 * shape.batch * (context - shape.query) * item.latent_dim * heads * (item.qk_dim + item.v_dim)
        causal_flops = least(causal_flops + unfold, seen * 4.0 * heads * item.latent_dim)
    return Work(
        name=item.name, kind="attention", flops=1.0 * shape.batch * query * keys * per_pair,
        causal_flops=causal_flops,
        in_elems=shape.batch * query * heads * item.qk_dim + read * kv_heads * _key_elems(item),
        out_elems=shape.batch * query * heads * item.v_dim, kv_elems=read * cached_elems_per_token(item, split.tp),
        heads=heads, kv_heads=kv_heads, qk_dim=item.qk_dim, v_dim=item.v_dim,
        latent_dim=item.qk_dim if item.key_is_value and item.kv_heads == 1 else item.latent_dim, batch=shape.batch,
        query=query, context=keys,
        window=None if item.compress else item.window if item.window is not None else item.chunk,
        causal=item.causal and not item.cross, pairs=pairs,
    )  # fmt: skip


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
    if item.per_expert:  # on routed copies: whole rows of what one rank's experts are given
        columns = local_units(item.dim, inner_tp(split)) if item.shard else item.dim
        copies = rows("tokens", shape, split) * item.per_expert * split.expert_load
        elems = copies * columns * (expert_token_share(split) if split.ep_own_tokens else 1.0 / split.ep)
    else:
        elems = _shared_elems(item.dim, item.shard, item.stream, shape, split)
    reads = 2 if item.gated else _READS.get(item.kind, 1)
    flops = 2.0 * item.mixes * elems
    return Work(
        name=item.name, kind="pointwise", flops=flops, causal_flops=flops, in_elems=reads * elems, out_elems=elems
    )


@item_work.register
def _(item: Embedding, shape: Shape, split: Split) -> Work:
    m = rows(item.stream, shape, split)
    read = m * item.dim / (split.tp if item.shard else 1)
    return Work(name=item.name, kind="gather", weight_elems=read, out_elems=m * item.dim)


@item_work.register
def _(item: Convolution, shape: Shape, split: Split) -> Work:
    m = rows(item.stream, shape, split) * item.rows_per_token
    cut: Ints = split.tp if item.shard else 1
    outputs = item.channels if item.outputs is None else item.outputs
    inputs = 1 if item.outputs is None else item.channels
    local = ceil_div(outputs, cut)
    flops = 2.0 * m * local * inputs * item.kernel
    read = m * item.stride * (local if item.outputs is None else item.channels)
    return Work(
        name=item.name, kind="conv", flops=flops, causal_flops=flops,
        weight_elems=1.0 * local * (inputs * item.kernel + int(item.bias)), in_elems=read, out_elems=m * local,
    )  # fmt: skip


@item_work.register
def _(item: Recurrence, shape: Shape, split: Split) -> Work:
    heads = ceil_div(item.heads, split.tp) if item.shard else item.heads
    m = rows("tokens", shape, split)
    scan, counted = recurrence_flops(item, shape.query)
    state = 2.0 * shape.batch * item.state * heads / item.heads  # read, and written again
    per_token = heads * (2 * item.key_dim + 2 * item.value_dim)
    return Work(
        name=item.name, kind="recurrence", flops=m * heads * counted, causal_flops=m * heads * scan,
        in_elems=m * per_token, out_elems=m * heads * item.value_dim, kv_elems=state, heads=heads,
        qk_dim=item.key_dim, v_dim=item.value_dim, batch=shape.batch, query=shape.query / split.cp,
        context=shape.context,
    )  # fmt: skip


_REFERENCE_READS = {
    "delta": (2, 1, 3),
    "kda": (2, 1, 3),
    "mamba2": (1, 1, 2),
    "lightning": (1, 1, 2),
    "retention": (1, 1, 2),
}


def recurrence_flops(item: Recurrence, query: Ints) -> tuple[Floats, Floats]:
    """(operations of the scan, operations PyTorch's counter sees in the reference code), per token and head.

    Step by step a state of key_dim x value_dim is updated and read: 2 products of that size, 3 for delta rules (the old
    value is read first). In blocks of `chunk` tokens the same work becomes matrix products inside the block (causal:
    half of its pairs) and between blocks; short queries run step by step. The reference code computes blocks in full
    and pads the last one (all but lightning attention); of Mamba-1 only the read of the state is a matrix product.

    Source: Mamba-2 (arXiv 2405.21060) section 6; Gated DeltaNet (arXiv 2412.06464) section 3.3; transformers 5.23, the
    torch code of the families.
    Assumes: the elementwise decay is not counted, as elsewhere; triangular solves are not counted.
    """
    state = 2.0 * item.key_dim * item.value_dim
    products = 3.0 if item.kind in ("delta", "kda") else 2.0
    if item.kind not in _REFERENCE_READS:
        return products * state, state if item.kind == "mamba1" else 0.0
    keys, values, reads = _REFERENCE_READS[item.kind]
    pair = keys * item.key_dim + values * item.value_dim
    block = least(query, item.chunk)
    scan: Floats = products * state + (block - 1) * 1.0 * pair
    if item.kind == "lightning":
        return scan, 2.0 * block * pair + reads * state
    blocks, tokens = ceil_div(query, item.chunk), query + (query == 0)  # a step in a column may read none
    counted = blocks * item.chunk * (2.0 * item.chunk * pair + reads * state) / tokens
    if item.kind == "mamba2":  # states are passed on by a product over all pairs of blocks
        counted = counted + (blocks + 1) ** 2 * state / tokens
    single = (query == 1) * 1.0  # decoding takes one step of the recurrence, in no block
    return scan, single * products * state + (1.0 - single) * counted


def attended_pairs(item: Attend, query: Ints, context: Ints) -> Floats:
    """(query, key) pairs that the mask admits in one sequence, for the last `query` of `context` positions.

    Causal: the query at position p sees p + 1 keys; a window caps that at w, a chunk restarts it every c positions, a
    selection caps it at the number of keys chosen. With compression it sees, besides its window (if any), the keys of
    the (p + 1) // r finished groups of r tokens, and a selection caps those.

    Source: counting; for query = context = S it is S (S + 1) / 2, which papers round to S**2 / 2.
    Assumes: a window of a bidirectional layer is centred and never cut off by the ends of the sequence.
    """
    if item.cross or not item.causal:
        return 1.0 * query * (least(context, item.window) if item.window and not item.cross else context)
    first = context - query
    if item.chunk is not None:
        return _chunked_sum(context, item.chunk) - _chunked_sum(first, item.chunk)
    if item.compress:
        pairs = _grouped_sum(context, item.compress, item.select) - _grouped_sum(first, item.compress, item.select)
        if item.window is None:
            return pairs
        return pairs + _capped_sum(context, item.window) - _capped_sum(first, item.window)
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


def _grouped_sum(n: Ints, size: int, cap: int | None) -> Floats:
    """min(1 // size, cap) + ... + min(n // size, cap)."""
    short = n if cap is None else least(n, cap * size - 1)  # from cap * size on, the cap holds
    groups = short // size
    total: Floats = 0.5 * size * groups * (groups - 1) + groups * (short % size + 1.0)
    return total if cap is None else total + most(n - short, 0) * 1.0 * cap


def present_keys(item: Attend, context: Ints) -> Ints:
    """Keys that exist while `context` tokens are attended to, masked ones included.

    A key a token; with compression one for each finished group, after those of the tokens themselves where the item
    has a window.

    Source: transformers 5.23, DeepSeek V4, which masks them all.
    Assumes: a group that is not full yet is no key.
    """
    if not item.compress:
        return context
    groups = context // item.compress
    return groups if item.window is None else context + groups


def seen_tokens(item: Attend, context: Ints, query: Ints = 1) -> Ints:
    """Cached keys that the last `query` queries of a sequence read together: all, or those in their windows.

    Source: counting. Assumes: chunks are reached as windows are; selections of different queries do not overlap.
    """
    if item.compress:
        groups = context // item.compress
        seen = groups if item.select is None else least(groups, item.select * query)
        return seen if item.window is None else seen + least(context, item.window + query - 1)
    if item.select is not None:
        return least(context, item.select * query)
    cap = item.window if item.window is not None else item.chunk
    return context if cap is None or item.cross else least(context, cap + query - 1)


def touched_experts(experts: int, top_k: int, tokens: Floats, local_experts: Ints) -> Floats:
    """Expected number of `local_experts` that at least one of `tokens` tokens chose, with uniform routing.

    local_experts * (1 - (1 - k / E) ** tokens).

    Source: balls into bins, each token choosing k of E without repetition.
    Assumes: the router spreads tokens evenly; a skewed router touches fewer.
    """
    return local_experts * (1.0 - (1.0 - top_k / experts) ** tokens)
