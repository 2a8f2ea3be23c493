"""Builders of the parts of which layers are made: each returns items in the order in which they run.

Names are paths: `attention/q_proj`, `mlp/gate_proj`, `experts/down_proj`. `reads` names the item whose output an item
takes, where that is not the item before it: q, k and v all read the norm. Dimensions: see the legend of
`facts.architecture`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from flopwise.facts.architecture import (
    Embedding,
    Experts,
    Item,
    Layer,
    Linear,
    Norm,
    Pointwise,
    Shard,
    Stack,
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
    """Feed-forward block that reads `source`: gated (three matrices, or two where `fused`) or plain (two)."""
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
    groups: int = 1  # of experts; a token goes to those of at most `top_groups`
    top_groups: int = 1


def moe(m: Mixture, source: str) -> Items:
    """Mixture-of-experts block that reads `source`."""
    inner, into = (m.latent, "latent/down_proj") if m.latent else (m.width, source)
    first = Experts(
        name="experts/gate_up_proj" if m.gated else "experts/up_proj",
        experts=m.experts,
        top_k=m.top_k,
        inputs=inner,
        outputs=(2 if m.gated else 1) * m.hidden,
        bias=m.bias,
        shard="column",
        reads=into,
        groups=m.groups,
        top_groups=m.top_groups,
    )
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


def residual(name: str, width: int, reads: str = "") -> Pointwise:
    """The addition that ends a block."""
    return Pointwise(name=name, dim=width, kind="residual", reads=reads)


Arrangement = Literal["pre", "sandwich", "post", "post-add", "parallel", "parallel-two"]
Block = Callable[[str], Items]
"""Makes a block's items, given the name of the item that it reads."""


def arranged(
    kind: Arrangement,
    width: int,
    norm: Normal,
    attend: Block,
    feed: Block,
    *,
    dropout: bool = False,
    scale: bool = False,
) -> Items:
    """One layer of attention and feed-forward blocks; `input` names what comes into the layer.

    pre: norm, attention, add; norm, feed-forward, add. sandwich: a norm after each block too. post: only those (OLMo
    2).
    post-add: each norm after the sum (the original Transformer, BERT).
    parallel: both blocks read one norm, one sum at the end. parallel-two: the same with a norm for each.
    """

    def ended(part: str) -> Items:
        drop = (Pointwise(name=f"{part}/dropout", dim=width, kind="dropout"),) if dropout else ()
        times = (Pointwise(name=f"{part}/scale", dim=width, kind="scale"),) if scale else ()
        after = (norm(f"{part}/norm", width),) if kind in ("sandwich", "post") else ()
        return *drop, *times, *after

    first, last = residual("attention/residual", width, "input"), residual("mlp/residual", width, "attention/residual")
    input_norm = norm("input_norm", width)
    if kind == "post":
        return *attend("input"), *ended("attention"), first, *feed("attention/residual"), *ended("mlp"), last
    if kind == "post-add":
        middle, end = norm("attention/norm", width), norm("mlp/norm", width)
        last = replace(last, reads="attention/norm")
        return *attend("input"), *ended("attention"), first, middle, *feed("attention/norm"), *ended("mlp"), last, end
    if kind == "parallel":
        return input_norm, *attend("input_norm"), *ended("attention"), *feed("input_norm"), *ended("mlp"), first, last
    post_norm = norm("post_norm", width, reads="input" if kind == "parallel-two" else "")
    if kind == "parallel-two":
        return (
            input_norm,
            *attend("input_norm"),
            *ended("attention"),
            post_norm,
            *feed("post_norm"),
            *ended("mlp"),
            first,
            last,
        )
    return (
        input_norm,
        *attend("input_norm"),
        *ended("attention"),
        first,
        post_norm,
        *feed("post_norm"),
        *ended("mlp"),
        last,
    )


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
        before=(Embedding(name="embed_tokens", rows=vocab, dim=embed_dim or width, shard="row"), *before),
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
