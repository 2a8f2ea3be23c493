"""Builders of attention blocks: grouped-query self-attention in its many manners, cross-attention, latent attention.

Names and `reads` as in `blocks`; dimensions: see the legend of `facts.architecture`.
"""

from __future__ import annotations

from typing import Literal

from flopwise.facts.architecture import Attend, Linear, Norm, Pointwise, Shard
from flopwise.facts.models.blocks import RMS, Items, Normal
from flopwise.values import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """The attributes of an attention block: heads, biases, norms, masks."""

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
    gate_proj: bool = False  # the same by a matrix of its own (AFMoE),
    gate_per_head: bool = False  # with one gate a head, not one a channel (Laguna)
    out_norm: bool = False  # an RMSNorm of all heads together before o_proj (BitNet)
    cached: bool = True
    dropout: bool = False
    position_bias: int = 0
    kv_shared: bool = False  # uses the keys and values of an earlier layer
    k_is_v: bool = False  # values are the keys: no v_proj (Gemma 4's global layers)
    select: int | None = None  # keys that an indexer chooses for each query, in blocks (MiniMax M3)
    index_heads: int = 0  # of that indexer, one for each group of heads
    index_dim: int = 0


_IN_BOTH = (
    "heads", "kv_heads", "causal", "window", "chunk", "sinks", "cached", "position_bias", "kv_shared", "dropout",
    "select",
)  # fmt: skip
"""Fields that an `Attend` has from its `Attention`."""


def attention(a: Attention, source: str, prefix: str = "attention") -> Items:
    """Self-attention that reads the item `source`: projections, norms, rope, softmax attention, output."""
    rotated = a.heads + (0 if a.kv_shared else a.kv_heads)
    v_dim = a.v_dim or a.head_dim
    rope = (Pointwise(f"{prefix}/rope", rotated * a.rope_dim, "rope", shard="column"),)
    gate = (Pointwise(f"{prefix}/gate", a.heads * v_dim, "sigmoid", gated=True, shard="column"),)
    same = {name: getattr(a, name) for name in _IN_BOTH}
    projections, norms, scores = _block_indexer(a, source) if a.index_heads else ((), (), ())
    return (
        *_projections(a, source, prefix),
        *projections,
        *_qk_norms(a, prefix),
        *norms,
        *(rope if a.rope_dim else ()),
        *scores,
        Attend(f"{prefix}/attend", qk_dim=a.head_dim, v_dim=v_dim, **same),
        *(gate if a.gated or a.gate_proj else ()),
        *((RMS(f"{prefix}/out_norm", a.heads * v_dim),) if a.out_norm else ()),
        Linear(f"{prefix}/o_proj", a.heads * v_dim, a.width, bias=a.out_bias, shard="row", shard_unit=v_dim),
    )


def _projections(a: Attention, source: str, prefix: str) -> tuple[Linear, ...]:
    """The matrices that make queries, keys and values; one where they are fused."""
    v_dim = a.v_dim or a.head_dim
    q, k, v = a.heads * a.head_dim, a.kv_heads * a.head_dim, a.kv_heads * v_dim
    k_bias = a.bias if a.k_bias is None else a.k_bias

    def column(name: str, outputs: int, unit: int, *, bias: bool = a.bias, heads: int = 0, kv: int = 0) -> Linear:
        return Linear(
            f"{prefix}/{name}", a.width, outputs, bias=bias, shard="column", reads=source, shard_unit=unit, heads=heads,
            kv_outputs=kv,
        )  # fmt: skip

    if a.fused:
        return (column("qkv_proj", q + k + v, a.head_dim, heads=a.kv_heads, kv=k + v),)
    query = column("q_proj", 2 * q, 2 * a.head_dim) if a.gated else column("q_proj", q, a.head_dim)
    key = column("k_proj", k, a.head_dim, bias=k_bias, heads=a.kv_heads)
    value = column("v_proj", v, v_dim, heads=a.kv_heads)
    if a.gate_proj:
        gates = 1 if a.gate_per_head else v_dim
        return query, key, value, column("gate_proj", a.heads * gates, gates, bias=False)
    return (query,) if a.kv_shared else (query, key) if a.k_is_v else (query, key, value)


def _qk_norms(a: Attention, prefix: str) -> tuple[Norm, ...]:
    """Norms of queries, keys and values: one weight for all heads, one each, or one norm over all heads together."""
    if not a.qk_norm:
        return ()

    def norm(name: str, source: str, heads: int) -> Norm:
        dim, groups = (a.head_dim, heads) if a.qk_norm == "head" else (heads * a.head_dim, 1)
        reads = f"{prefix}/{'qkv_proj' if a.fused else source}"
        shard: Shard = "column" if groups > 1 and not a.qk_own_weights else ""
        plain = a.qk_normal(f"{prefix}/{name}", dim, groups=groups, reads=reads, shard=shard)
        return replace(plain, own_weights=a.qk_own_weights)

    query, key = norm("q_norm", "q_proj", a.heads), norm("k_norm", "k_proj", a.kv_heads)
    value = replace(norm("v_norm", "k_proj" if a.k_is_v else "v_proj", a.kv_heads), affine=False)
    return (query,) if a.kv_shared else (query, key, value) if a.v_norm else (query, key)


def _block_indexer(a: Attention, source: str) -> tuple[Items, Items, Items]:
    """The indexer that chooses blocks of keys for each group of heads: projections, norms with rope, and scores.

    Its query is cut as keys and values are; its one key a token, which every rank has, is cached beside theirs.

    Source: transformers 5.24, MiniMaxM3VLIndexer (no value; a block's score is the best of its keys'); vLLM,
    MinimaxM3QKVParallelLinearWithIndexer (one product makes all five projections). Assumes: choosing takes no time.
    """
    p, dim = "indexer", a.index_dim

    def column(name: str, heads: int) -> Linear:
        return Linear(
            f"{p}/{name}", a.width, heads * dim, shard="column", shard_unit=dim, heads=heads, reads=source
        )  # fmt: skip

    return (
        (column("q_proj", a.index_heads), column("k_proj", 1)),
        (
            RMS(f"{p}/q_norm", dim, groups=a.index_heads, reads=f"{p}/q_proj", shard="column"),
            RMS(f"{p}/k_norm", dim, reads=f"{p}/k_proj"),
            Pointwise(f"{p}/rope", (a.index_heads + 1) * a.rope_dim, "rope"),
        ),
        (Attend(f"{p}/scores", heads=a.index_heads, kv_heads=1, qk_dim=dim, v_dim=0),),
    )


def cross_attention(a: Attention, source: str, encoder_width: int) -> Items:
    """Attention of decoder tokens over the encoder's: keys and values run over the encoder stream."""
    prefix = "cross"
    q, *keys_values = _projections(a, source, prefix)
    attend, out = attention(replace(a, rope_dim=0, qk_norm="", causal=False), source, prefix)[-2:]
    assert isinstance(attend, Attend)
    return (
        q,
        *(replace(item, inputs=encoder_width, stream="encoder", reads="encoder") for item in keys_values),
        *(replace(n, stream="encoder" if "k_norm" in n.name else "tokens") for n in _qk_norms(a, prefix)),
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
    direct = Linear(f"{p}/q_proj", a.width, a.heads * qk, shard="column", shard_unit=qk, reads=source)
    q: Items = (direct,)
    if a.q_rank:
        q = (
            Linear(f"{p}/q_a_proj", a.width, a.q_rank, bias=a.bias, reads=source),
            RMS(f"{p}/q_a_norm", a.q_rank),
            replace(direct, name=f"{p}/q_b_proj", inputs=a.q_rank, reads=""),
        )
    attend = Attend(
        f"{p}/attend", heads=a.heads, kv_heads=a.heads, qk_dim=qk, v_dim=a.v_dim, latent_dim=a.kv_rank + a.rope_dim,
        select=a.index_topk or None,
    )  # fmt: skip
    return (
        *q,
        Linear(f"{p}/kv_a_proj", a.width, a.kv_rank + a.rope_dim, bias=a.bias, reads=source),
        RMS(f"{p}/kv_a_norm", a.kv_rank),
        Linear(f"{p}/kv_b_proj", a.kv_rank, a.heads * unit, shard="column", shard_unit=unit),
        Pointwise(f"{p}/rope", (a.heads + 1) * a.rope_dim, "rope", shard="column"),
        *(_indexer(a, source) if a.index_heads else ()),
        attend,
        Linear(f"{p}/o_proj", a.heads * a.v_dim, a.width, bias=a.bias, shard="row", shard_unit=a.v_dim),
    )


def _indexer(a: Latent, source: str) -> Items:
    """The indexer that chooses which keys a query sees; every rank holds it."""
    p, dim = "indexer", a.index_dim
    return (
        Linear(f"{p}/q_proj", a.q_rank or a.width, a.index_heads * dim, reads="attention/q_a_norm"),
        Linear(f"{p}/k_proj", a.width, dim, reads=source),
        Norm(f"{p}/k_norm", dim, kind="layernorm", bias=True),
        Pointwise(f"{p}/rope", (a.index_heads + 1) * a.rope_dim, "rope"),
        Linear(f"{p}/weights_proj", a.width, a.index_heads, reads=source),
        # scores of all visible keys: one product of index_heads x dim a pair, cached as one key of `dim` a token
        Attend(f"{p}/scores", heads=a.index_heads, kv_heads=1, qk_dim=dim, v_dim=0),
    )
