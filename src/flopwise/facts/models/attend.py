"""Builders of attention blocks: grouped-query self-attention in its many manners, cross-attention, latent attention.

Names and `reads` as in `blocks`; dimensions: see the legend of `facts.architecture`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from flopwise.facts.architecture import Attend, Item, Linear, Norm, Pointwise
from flopwise.facts.models.blocks import RMS, Items, Normal


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """What an attention block is like, whatever its layer's place: heads, biases, norms, masks."""

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int = 0  # of a value head, where it differs from head_dim
    bias: bool = False  # on q, k and v
    k_bias: bool | None = None  # where the key projection differs from the others (Whisper)
    out_bias: bool = False
    rope_dim: int = 0  # dimensions of a head that are rotated; 0: none
    qk_norm: Literal["", "head", "full"] = ""  # one norm a head, or one over all heads together
    qk_normal: Normal = RMS
    qk_own_weights: bool = False  # a norm weight for each head, not one for all (Cohere)
    v_norm: bool = False  # values normalised without a weight (Gemma 4)
    fused: bool = False  # one matrix for q, k and v
    causal: bool = True
    window: int | None = None
    chunk: int | None = None
    sinks: bool = False
    gated: bool = False  # q_proj makes a sigmoid gate beside the queries (Qwen3-Next)
    cached: bool = True
    dropout: bool = False
    position_bias: int = 0
    kv_shared: bool = False  # uses the keys and values of an earlier layer
    k_is_v: bool = False  # values are the keys: no v_proj (Gemma 4's global layers)


def attention(a: Attention, source: str, prefix: str = "attention") -> Items:
    """Self-attention that reads the item `source`: projections, norms, rope, softmax attention, output."""
    rotated = a.heads + (0 if a.kv_shared else a.kv_heads)
    v_dim = a.v_dim or a.head_dim
    rope = (Pointwise(name=f"{prefix}/rope", dim=rotated * a.rope_dim, kind="rope", shard="column"),)
    gate = (Pointwise(name=f"{prefix}/gate", dim=a.heads * v_dim, kind="sigmoid", gated=True, shard="column"),)
    attend = Attend(
        name=f"{prefix}/attend",
        heads=a.heads,
        kv_heads=a.kv_heads,
        qk_dim=a.head_dim,
        v_dim=v_dim,
        causal=a.causal,
        window=a.window,
        chunk=a.chunk,
        sinks=a.sinks,
        cached=a.cached,
        position_bias=a.position_bias,
        kv_shared=a.kv_shared,
        dropout=a.dropout,
    )
    out = Linear(name=f"{prefix}/o_proj", inputs=a.heads * v_dim, outputs=a.width, bias=a.out_bias, shard="row")
    return (
        *_projections(a, source, prefix),
        *_qk_norms(a, prefix),
        *(rope if a.rope_dim else ()),
        attend,
        *(gate if a.gated else ()),
        replace(out, shard_unit=v_dim),
    )


def _projections(a: Attention, source: str, prefix: str) -> Items:
    """The matrices that make queries, keys and values; one where they are fused."""
    v_dim = a.v_dim or a.head_dim
    q, k, v = a.heads * a.head_dim, a.kv_heads * a.head_dim, a.kv_heads * v_dim
    first = Linear(
        name=f"{prefix}/q_proj",
        inputs=a.width,
        outputs=2 * q if a.gated else q,
        bias=a.bias,
        shard="column",
        reads=source,
        shard_unit=2 * a.head_dim if a.gated else a.head_dim,
    )
    if a.fused:
        joined = replace(first, name=f"{prefix}/qkv_proj", outputs=q + k + v)
        return (replace(joined, shard_unit=a.head_dim, heads=a.kv_heads, kv_outputs=k + v),)
    if a.kv_shared:
        return (first,)
    key = replace(
        first,
        name=f"{prefix}/k_proj",
        outputs=k,
        bias=a.bias if a.k_bias is None else a.k_bias,
        shard_unit=a.head_dim,
        heads=a.kv_heads,
    )
    value = replace(key, name=f"{prefix}/v_proj", outputs=v, bias=a.bias, shard_unit=v_dim)
    return (first, key) if a.k_is_v else (first, key, value)


def _qk_norms(a: Attention, prefix: str) -> Items:
    """Norms of queries, keys and values: one weight for all heads, one each, or one norm over all heads together."""
    if not a.qk_norm:
        return ()

    def norm(name: str, source: str, heads: int) -> Norm:
        dim, groups = (a.head_dim, heads) if a.qk_norm == "head" else (heads * a.head_dim, 1)
        made = a.qk_normal(
            f"{prefix}/{name}",
            dim,
            groups=groups,
            reads=f"{prefix}/{'qkv_proj' if a.fused else source}",
            shard="column" if groups > 1 and not a.qk_own_weights else "",
        )
        return replace(made, own_weights=True) if a.qk_own_weights else made

    out: list[Item] = [norm("q_norm", "q_proj", a.heads)]
    if not a.kv_shared:
        out.append(norm("k_norm", "k_proj", a.kv_heads))
        if a.v_norm:
            out.append(replace(norm("v_norm", "k_proj" if a.k_is_v else "v_proj", a.kv_heads), affine=False))
    return tuple(out)


def cross_attention(a: Attention, source: str, encoder_width: int, prefix: str = "cross") -> Items:
    """Attention of decoder tokens over the encoder's: keys and values run over the encoder stream."""
    q, k, v = _projections(a, source, prefix)
    assert isinstance(k, Linear)
    assert isinstance(v, Linear)
    attend, out = attention(replace(a, rope_dim=0, qk_norm="", causal=False), source, prefix)[-2:]
    assert isinstance(attend, Attend)
    return (
        q,
        replace(k, inputs=encoder_width, stream="encoder", reads="encoder"),
        replace(v, inputs=encoder_width, stream="encoder", reads="encoder"),
        *(
            replace(n, stream="encoder" if "k_norm" in n.name else "tokens")
            for n in _qk_norms(a, prefix)
            if isinstance(n, Norm)
        ),
        replace(attend, cross=True),
        out,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Multi-head latent attention (DeepSeek V2, V3): one compressed vector a token is cached, not keys and values."""

    width: int
    heads: int
    q_rank: int | None  # None: queries are projected directly
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    bias: bool = False
    index_heads: int = 0  # of the indexer of sparse attention (V3.2); 0: dense attention
    index_dim: int = 0
    index_topk: int = 0


def latent_attention(a: Latent, source: str) -> Items:
    """Latent attention that reads `source`, as a prefill computes it, keys and values expanded."""
    p, qk, unit = "attention", a.nope_dim + a.rope_dim, a.nope_dim + a.v_dim
    direct = Linear(
        name=f"{p}/q_proj", inputs=a.width, outputs=a.heads * qk, shard="column", shard_unit=qk, reads=source
    )
    q: Items = (direct,)
    if a.q_rank:
        q = (
            Linear(name=f"{p}/q_a_proj", inputs=a.width, outputs=a.q_rank, bias=a.bias, reads=source),
            RMS(f"{p}/q_a_norm", a.q_rank),
            replace(direct, name=f"{p}/q_b_proj", inputs=a.q_rank, reads=""),
        )
    return (
        *q,
        Linear(name=f"{p}/kv_a_proj", inputs=a.width, outputs=a.kv_rank + a.rope_dim, bias=a.bias, reads=source),
        RMS(f"{p}/kv_a_norm", a.kv_rank),
        Linear(name=f"{p}/kv_b_proj", inputs=a.kv_rank, outputs=a.heads * unit, shard="column", shard_unit=unit),
        Pointwise(name=f"{p}/rope", dim=(a.heads + 1) * a.rope_dim, kind="rope", shard="column"),
        *(_indexer(a, source) if a.index_heads else ()),
        Attend(
            name=f"{p}/attend",
            heads=a.heads,
            kv_heads=a.heads,
            qk_dim=qk,
            v_dim=a.v_dim,
            latent_dim=a.kv_rank + a.rope_dim,
            select=a.index_topk or None,
        ),
        Linear(
            name=f"{p}/o_proj", inputs=a.heads * a.v_dim, outputs=a.width, bias=a.bias, shard="row", shard_unit=a.v_dim
        ),
    )


def _indexer(a: Latent, source: str) -> Items:
    """The indexer that chooses which keys a query sees; every rank holds it."""
    p, dim = "indexer", a.index_dim
    return (
        Linear(name=f"{p}/q_proj", inputs=a.q_rank or a.width, outputs=a.index_heads * dim, reads="attention/q_a_norm"),
        Linear(name=f"{p}/k_proj", inputs=a.width, outputs=dim, reads=source),
        Norm(name=f"{p}/k_norm", dim=dim, kind="layernorm", bias=True),
        Pointwise(name=f"{p}/rope", dim=(a.index_heads + 1) * a.rope_dim, kind="rope"),
        Linear(name=f"{p}/weights_proj", inputs=a.width, outputs=a.index_heads, reads=source),
        # scores of all visible keys: one product of index_heads x dim a pair, cached as one key of `dim` a token
        Attend(
            name=f"{p}/scores",
            heads=a.index_heads,
            kv_heads=1,
            qk_dim=dim,
            v_dim=0,
        ),
    )
