"""Builders of the parts of which layers are made: each returns items in the order in which they run.

Names are paths: `attention/q_proj`, `mlp/gate_proj`, `experts/down_proj`. `reads` names the item whose output an item takes,
where that is not the item before it: q, k and v all read the norm. Dimensions: see the legend of `facts.architecture`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from flopwise.facts.architecture import (
    Attend,
    Experts,
    Item,
    Layer,
    Linear,
    Norm,
    Pointwise,
    Shard,
    Stack,
    Table,
    Weight,
)

Items = tuple[Item, ...]
Act = Literal["silu", "gelu", "relu", "relu2", "tanh", "sigmoid"]
NormKind = Literal["rmsnorm", "layernorm"]

_ACTS: dict[str, Act] = {
    "silu": "silu",
    "swish": "silu",
    "swiglu": "silu",
    "relu": "relu",
    "relu2": "relu2",
    "squared_relu": "relu2",
    "tanh": "tanh",
}


def activation(name: str) -> Act:
    """The kind of activation that a configuration's `hidden_act` means; anything else is some form of GELU."""
    return _ACTS.get(name.lower(), "gelu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Normal:
    """How a family normalises: LayerNorm or RMSNorm, with or without bias and weight."""

    kind: NormKind = "rmsnorm"
    bias: bool = False
    affine: bool = True

    def __call__(self, name: str, dim: int, *, reads: str = "", groups: int = 1, shard: Shard = "") -> Norm:
        """A norm of that manner over `dim` elements."""
        return Norm(
            name=name,
            dim=dim,
            kind=self.kind,
            bias=self.bias,
            affine=self.affine,
            groups=groups,
            reads=reads,
            shard=shard,
        )


RMS = Normal()
LAYER_NORM = Normal(kind="layernorm", bias=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """What an attention block is like, whatever its layer's place: heads, biases, norms, masks."""

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    bias: bool = False  # on q, k and v
    out_bias: bool = False
    rope_dim: int = 0  # dimensions of a head that are rotated; 0: none
    qk_norm: Literal["", "head", "full"] = ""  # one norm a head, or one over all heads together
    qk_norm_kind: Normal = RMS
    k_bias: bool | None = None  # where the key projection differs from the others (Whisper)
    fused: bool = False  # one matrix for q, k and v
    causal: bool = True
    window: int | None = None
    chunk: int | None = None
    sinks: bool = False
    gated: bool = False  # q_proj makes a sigmoid gate beside the queries (Qwen3-Next)
    cached: bool = True
    dropout: bool = False
    position_bias: int = 0
    kv_shared: bool = False
    v_norm: bool = False
    k_is_v: bool = False  # values are the keys: no v_proj (Gemma 4's global layers)


def attention(a: Attention, source: str, prefix: str = "attention") -> Items:
    """Self-attention that reads the item `source`: projections, norms, rope, softmax attention, output."""
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    items: list[Item] = []
    q_outputs = 2 * q if a.gated else q
    if a.fused:
        items.append(
            Linear(
                name=f"{prefix}/qkv_proj",
                inputs=a.width,
                outputs=q + 2 * kv,
                bias=a.bias,
                shard="column",
                reads=source,
                shard_unit=a.head_dim,
                heads=a.kv_heads,
                kv_outputs=2 * kv,
            )
        )
    else:
        items.append(
            Linear(
                name=f"{prefix}/q_proj",
                inputs=a.width,
                outputs=q_outputs,
                bias=a.bias,
                shard="column",
                reads=source,
                shard_unit=q_outputs // a.heads,
            )
        )
        if not a.kv_shared:
            k_bias = a.bias if a.k_bias is None else a.k_bias
            k = Linear(
                name=f"{prefix}/k_proj",
                inputs=a.width,
                outputs=kv,
                bias=k_bias,
                shard="column",
                reads=source,
                shard_unit=a.head_dim,
                heads=a.kv_heads,
            )
            items.append(k)
            if not a.k_is_v:
                items.append(replace(k, name=f"{prefix}/v_proj", bias=a.bias))
    items.extend(_qk_norms(a, prefix))
    if a.rope_dim:
        rotated = a.heads + (0 if a.kv_shared else a.kv_heads)
        items.append(Pointwise(name=f"{prefix}/rope", dim=rotated * a.rope_dim, kind="rope", shard="column"))
    items.append(
        Attend(
            name=f"{prefix}/attend", heads=a.heads, kv_heads=a.kv_heads, qk_dim=a.head_dim, v_dim=a.head_dim, causal=a.causal, window=a.window, chunk=a.chunk,
            sinks=a.sinks, cached=a.cached, position_bias=a.position_bias, kv_shared=a.kv_shared, dropout=a.dropout,
        )
    )  # fmt: skip
    if a.gated:
        items.append(Pointwise(name=f"{prefix}/gate", dim=q, kind="sigmoid", gated=True, shard="column"))
    items.append(
        Linear(name=f"{prefix}/o_proj", inputs=q, outputs=a.width, bias=a.out_bias, shard="row", shard_unit=a.head_dim)
    )
    return tuple(items)


def _qk_norms(a: Attention, prefix: str) -> Items:
    """Norms of queries, keys and values, one weight a head dimension or one over all heads."""
    if not a.qk_norm:
        return ()
    sizes = (
        ("q_norm", a.heads, True),
        ("k_norm", a.kv_heads, not a.kv_shared),
        ("v_norm", a.kv_heads, a.v_norm and not a.kv_shared),
    )
    projection = {"q_norm": "q_proj", "k_norm": "k_proj", "v_norm": "k_proj" if a.k_is_v else "v_proj"}
    out: list[Item] = []
    for name, heads, present in sizes:
        if not present:
            continue
        norm = replace(a.qk_norm_kind, affine=False) if name == "v_norm" else a.qk_norm_kind
        dim, groups = (a.head_dim, heads) if a.qk_norm == "head" else (heads * a.head_dim, 1)
        source = "qkv_proj" if a.fused else projection[name]
        out.append(
            norm(
                f"{prefix}/{name}", dim, groups=groups, reads=f"{prefix}/{source}", shard="column" if groups > 1 else ""
            )
        )
    return tuple(out)


def cross_attention(
    a: Attention, source: str, encoder_width: int, prefix: str = "cross", shared_kv: bool = False
) -> Items:
    """Attention of decoder tokens over the encoder's: keys and values run over the encoder stream."""
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    k_bias = a.bias if a.k_bias is None else a.k_bias
    k = Linear(
        name=f"{prefix}/k_proj",
        inputs=encoder_width,
        outputs=kv,
        bias=k_bias,
        shard="column",
        stream="encoder",
        reads="encoder",
        shard_unit=a.head_dim,
        heads=a.kv_heads,
    )
    return (
        Linear(
            name=f"{prefix}/q_proj",
            inputs=a.width,
            outputs=q,
            bias=a.bias,
            shard="column",
            reads=source,
            shard_unit=a.head_dim,
        ),
        *(() if shared_kv else (k, replace(k, name=f"{prefix}/v_proj", bias=a.bias))),
        *_qk_norms(a, prefix),
        Attend(
            name=f"{prefix}/attend",
            heads=a.heads,
            kv_heads=a.kv_heads,
            qk_dim=a.head_dim,
            v_dim=a.head_dim,
            causal=False,
            cross=True,
            dropout=a.dropout,
        ),
        Linear(name=f"{prefix}/o_proj", inputs=q, outputs=a.width, bias=a.out_bias, shard="row", shard_unit=a.head_dim),
    )


def mlp(
    width: int,
    hidden: int,
    act: Act,
    source: str,
    *,
    gated: bool = True,
    bias: bool = False,
    out_bias: bool | None = None,
    fused: bool = False,
    prefix: str = "mlp",
    out_width: int = 0,
) -> Items:
    """Feed-forward block that reads `source`: gated (three matrices, or two where gate and up are one) or plain (two)."""
    ends = bias if out_bias is None else out_bias
    down = Linear(name=f"{prefix}/down_proj", inputs=hidden, outputs=out_width or width, bias=ends, shard="row")
    point = Pointwise(name=f"{prefix}/act", dim=hidden, kind=act, gated=gated, shard="column")
    up = Linear(name=f"{prefix}/up_proj", inputs=width, outputs=hidden, bias=bias, shard="column", reads=source)
    if not gated:
        return up, point, down
    if fused:
        return replace(up, name=f"{prefix}/gate_up_proj", outputs=2 * hidden), point, down
    return replace(up, name=f"{prefix}/gate_proj"), up, point, down


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """A mixture of experts: router, routed experts, shared experts."""

    width: int
    experts: int
    top_k: int
    hidden: int  # of one expert
    act: Act = "silu"
    gated: bool = True
    bias: bool = False
    shared_hidden: int = 0  # all shared experts together
    shared_gate: bool = False  # a scalar gate scales what the shared experts add (Qwen2-MoE)
    router_bias: bool = False  # a bias of the router's linear
    correction: bool = False  # a parameter a expert that corrects the routing (not a buffer)
    latent: int = 0  # experts work in this smaller width, between two projections (Nemotron 3)
    shared_bias: bool = False


def moe(m: Mixture, source: str) -> Items:
    """Mixture-of-experts block that reads `source`."""
    inner, into = (m.latent, "latent/down_proj") if m.latent else (m.width, source)
    first = Experts(name="experts/gate_up_proj" if m.gated else "experts/up_proj", experts=m.experts, top_k=m.top_k, inputs=inner, outputs=(2 if m.gated else 1) * m.hidden, bias=m.bias, shard="column", reads=into)  # fmt: skip
    items: list[Item] = [
        Linear(name="router", inputs=m.width, outputs=m.experts, bias=m.router_bias, reads=source),
        Pointwise(name="router/softmax", dim=m.experts, kind="softmax"),
    ]
    if m.correction:
        items.append(Weight(name="router/correction", numel=m.experts))
    if m.latent:
        items.append(Linear(name="latent/down_proj", inputs=m.width, outputs=m.latent, reads=source))
    items += [
        first,
        Pointwise(name="experts/act", dim=m.hidden, kind=m.act, gated=m.gated, shard="column", per_expert=m.top_k),
        replace(first, name="experts/down_proj", inputs=m.hidden, outputs=inner, shard="row", reads=""),
        Pointwise(name="experts/combine", dim=inner, kind="scale", per_expert=m.top_k),
    ]
    if m.latent:
        items.append(Linear(name="latent/up_proj", inputs=m.latent, outputs=m.width))
    if m.shared_hidden:
        items.extend(mlp(m.width, m.shared_hidden, m.act, source, gated=m.gated, bias=m.shared_bias, prefix="shared"))
        if m.shared_gate:
            items.append(Linear(name="shared/gate", inputs=m.width, outputs=1, reads=source))
            items.append(Pointwise(name="shared/scale", dim=m.width, kind="scale"))
        items.append(Pointwise(name="shared/add", dim=m.width, kind="residual"))
    return tuple(items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Multi-head latent attention (DeepSeek V2, V3): one compressed vector a token is cached instead of keys and values."""

    width: int
    heads: int
    q_rank: int | None  # None: queries are projected directly
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    bias: bool = False
    index_heads: int = 0  # of the sparse-attention indexer (V3.2); 0: dense attention
    index_dim: int = 0
    index_topk: int = 0


def latent_attention(a: Latent, source: str, *, indexer: Items = ()) -> Items:
    """Latent attention that reads `source`, in the form that the prefill computes (keys and values expanded)."""
    p, qk = "attention", a.nope_dim + a.rope_dim
    if a.q_rank:
        q: Items = (
            Linear(name=f"{p}/q_a_proj", inputs=a.width, outputs=a.q_rank, bias=a.bias, reads=source),
            RMS(f"{p}/q_a_norm", a.q_rank),
            Linear(name=f"{p}/q_b_proj", inputs=a.q_rank, outputs=a.heads * qk, shard="column", shard_unit=qk),
        )
    else:
        q = (
            Linear(
                name=f"{p}/q_proj", inputs=a.width, outputs=a.heads * qk, shard="column", shard_unit=qk, reads=source
            ),
        )
    unit = a.nope_dim + a.v_dim
    return (
        *q,
        Linear(name=f"{p}/kv_a_proj", inputs=a.width, outputs=a.kv_rank + a.rope_dim, bias=a.bias, reads=source),
        RMS(f"{p}/kv_a_norm", a.kv_rank),
        Linear(name=f"{p}/kv_b_proj", inputs=a.kv_rank, outputs=a.heads * unit, shard="column", shard_unit=unit),
        Pointwise(name=f"{p}/rope", dim=(a.heads + 1) * a.rope_dim, kind="rope", shard="column"),
        *indexer,
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


def residual(name: str, width: int, reads: str = "") -> Pointwise:
    """The addition that ends a block."""
    return Pointwise(name=name, dim=width, kind="residual", reads=reads)


def pre_norm(
    width: int, norm: Normal, attend: Items, feed: Items, *, dropout: bool = False, scale: bool = False
) -> Items:
    """The usual layer: norm, attention, add; norm, feed-forward, add. `attend` reads `input_norm`, `feed` reads `post_norm`."""
    drop = (Pointwise(name="attention/dropout", dim=width, kind="dropout"),) if dropout else ()
    times = (Pointwise(name="attention/scale", dim=width, kind="scale"),) if scale else ()
    return (
        norm("input_norm", width), *attend, *drop, *times, residual("attention/residual", width),
        norm("post_norm", width), *feed, *(replace(d, name="mlp/dropout") for d in drop), *(replace(t, name="mlp/scale") for t in times), residual("mlp/residual", width),
    )  # fmt: skip


def decoder(
    width: int,
    vocab: int,
    layers: list[Items],
    norm: Norm | None,
    *,
    tied: bool,
    before: Items = (),
    names: list[str] | None = None,
    head_bias: bool = False,
    embed_dim: int = 0,
    after: Items = (),
    name: str = "decoder",
) -> Stack:
    """A token decoder: embedding, `layers` (equal ones are one kind), final norm, vocabulary-sized head."""
    kinds, order = distinct(layers, names)
    ends: Items = () if norm is None else (norm,)
    head = Linear(name="lm_head", inputs=embed_dim or width, outputs=vocab, bias=head_bias, shard="column", tied=tied)
    return Stack(
        name=name,
        width=width,
        before=(Table(name="embed_tokens", rows=vocab, dim=embed_dim or width, shard="row"), *before),
        kinds=kinds,
        order=order,
        after=(*ends, *after, head),
    )


def distinct(layers: list[Items], names: list[str] | None = None) -> tuple[tuple[Layer, ...], tuple[int, ...]]:
    """The distinct kinds among `layers`, and for each layer which kind it is."""
    seen: dict[int, int] = {}
    kinds: list[Layer] = []
    order: list[int] = []
    index: dict[Items, int] = {}
    for i, items in enumerate(layers):
        known = seen.get(id(items))
        if known is None:
            known = index.get(items)
            if known is None:
                known = index[items] = len(kinds)
                kinds.append(Layer(name=names[i] if names else "block", items=items))
            seen[id(items)] = known
        order.append(known)
    return tuple(kinds), tuple(order)
