"""Builders of the parts of which layers are made: each returns items in the order in which they run.

Names are paths: `attention/q_proj`, `mlp/gate_proj`, `experts/down_proj`. `reads` names the item whose output an item
takes, where that is not the item before it: q, k and v all read the norm. Dimensions: see the legend of
`facts.architecture`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Literal, TypeVar

from flopwise.facts.architecture import Embedding, Experts, Item, Layer, Linear, Norm, Pointwise, Shard, Stack, Weight
from flopwise.values import dataclass, replace

Items = tuple[Item, ...]
Act = Literal["silu", "gelu", "relu", "relu2", "tanh", "sigmoid"]
NormKind = Literal["rmsnorm", "layernorm"]

_ACTS: dict[str, Act] = {
    "silu": "silu", "swish": "silu", "swiglu": "silu", "relu": "relu", "relu2": "relu2", "squared_relu": "relu2",
    "tanh": "tanh",
}  # fmt: skip


def activation(name: str) -> Act:
    """The kind of activation that a configuration's `hidden_act` means; anything else is some form of GELU."""
    return _ACTS.get(name.lower(), "gelu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Normal:
    """The normalisation of a family: LayerNorm or RMSNorm, with or without bias and weight."""

    kind: NormKind = "rmsnorm"
    bias: bool = False
    affine: bool = True

    def __call__(self, name: str, dim: int, *, reads: str = "", groups: int = 1, shard: Shard = "") -> Norm:
        """A norm of that manner over `dim` elements."""
        return Norm(
            name, dim, kind=self.kind, bias=self.bias, affine=self.affine, groups=groups, reads=reads, shard=shard
        )


RMS = Normal()
LAYER_NORM = Normal(kind="layernorm", bias=True)


def mlp(
    width: int, hidden: int, act: Act, source: str, *, gated: bool = True, bias: bool = False, fused: bool = False,
    prefix: str = "mlp", inner_norm: bool = False,
) -> Items:  # fmt: skip
    """Feed-forward block that reads `source`: gated (three matrices, or two where `fused`) or plain (two)."""
    norm = (RMS(f"{prefix}/inner_norm", hidden),) if inner_norm else ()
    down = (*norm, Linear(f"{prefix}/down_proj", hidden, width, bias=bias, shard="row"))
    point = Pointwise(f"{prefix}/act", hidden, act, gated=gated, shard="column")
    up = Linear(f"{prefix}/up_proj", width, hidden, bias=bias, shard="column", reads=source)
    if not gated:
        return up, point, *down
    if fused:
        return replace(up, name=f"{prefix}/gate_up_proj", outputs=2 * hidden), point, *down
    return replace(up, name=f"{prefix}/gate_proj"), up, point, *down


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
    clamped: bool = False  # the activation's inputs are limited first
    shared_hidden: int = 0  # all shared experts together
    shared_gate: bool = False  # a scalar gate scales what the shared experts add (Qwen2-MoE)
    shared_bias: bool = False  # shared experts have biases
    router_bias: bool = False  # a bias of the router's linear
    selection_bias: bool = False  # a learned number an expert that only their selection sees (ERNIE 4.5)
    idle: int = 0  # further experts, which return what they are given (LongCat-Flash)
    latent: int = 0  # experts work in this smaller width, between two projections (Nemotron 3)
    groups: int = 1  # of experts; a token goes to those of at most `top_groups`
    top_groups: int = 1


def moe(m: Mixture, source: str) -> Items:
    """Mixture-of-experts block that reads `source`."""
    inner, into = (m.latent, "latent/down_proj") if m.latent else (m.width, source)
    first = Experts(
        "experts/gate_up_proj" if m.gated else "experts/up_proj", experts=m.experts, top_k=m.top_k, inputs=inner,
        outputs=(2 if m.gated else 1) * m.hidden, bias=m.bias, shard="column", reads=into, groups=m.groups,
        top_groups=m.top_groups,
    )  # fmt: skip
    items: list[Item] = [
        Linear("router", m.width, m.experts + m.idle, bias=m.router_bias, reads=source),
        *((Weight("router/selection_bias", m.experts),) if m.selection_bias else ()),
        Pointwise("router/softmax", m.experts + m.idle, "softmax"),
    ]
    if m.latent:
        items.append(Linear("latent/down_proj", m.width, m.latent, reads=source))
    items += [
        first,
        Pointwise("experts/act", m.hidden, m.act, gated=m.gated, shard="column", per_expert=m.top_k, clamped=m.clamped),
        replace(first, name="experts/down_proj", inputs=m.hidden, outputs=inner, shard="row", reads=""),
        Pointwise("experts/combine", inner, "scale", per_expert=m.top_k),
    ]
    if m.latent:
        items.append(Linear("latent/up_proj", m.latent, m.width))
    if m.shared_hidden:
        items += mlp(m.width, m.shared_hidden, m.act, source, gated=m.gated, bias=m.shared_bias, prefix="shared")
        if m.shared_gate:
            items += Linear("shared/gate", m.width, 1, reads=source), Pointwise("shared/scale", m.width, "scale")
        items.append(Pointwise("shared/add", m.width, "residual"))
    return tuple(items)


def residual(name: str, width: int, reads: str = "") -> Pointwise:
    """The addition that ends a block."""
    return Pointwise(name, width, "residual", reads=reads)


Arrangement = Literal["pre", "sandwich", "post", "post-add", "parallel", "parallel-two"]
Block = Callable[[str], Items]
"""Makes a block's items, given the name of the item that it reads."""


def layer_of(
    kind: Arrangement, width: int, norm: Normal, attend: Block, feed: Block, *, dropout: bool = False,
    scale: bool = False,
) -> Items:  # fmt: skip
    """One layer of attention and feed-forward blocks; `input` names what comes into the layer.

    pre: norm, attention, add; norm, feed-forward, add.
    sandwich: a norm after each block too. post: only those (OLMo 2).
    post-add: each norm after the sum (the original Transformer, BERT).
    parallel: both blocks read one norm, one sum at the end. parallel-two: the same with a norm for each.
    """

    def ends(part: str) -> Items:
        drop = (Pointwise(f"{part}/dropout", width, "dropout"),) if dropout else ()
        times = (Pointwise(f"{part}/scale", width, "scale"),) if scale else ()
        after = (norm(f"{part}/norm", width),) if kind in ("sandwich", "post") else ()
        return *drop, *times, *after

    first, last = residual("attention/residual", width, "input"), residual("mlp/residual", width, "attention/residual")
    input_norm = norm("input_norm", width)
    if kind == "post":
        return *attend("input"), *ends("attention"), first, *feed("attention/residual"), *ends("mlp"), last
    if kind == "post-add":
        middle, end = norm("attention/norm", width), norm("mlp/norm", width)
        last = replace(last, reads="attention/norm")
        return (*attend("input"), *ends("attention"), first, middle, *feed("attention/norm"), *ends("mlp"), last, end)
    if kind == "parallel":
        return (input_norm, *attend("input_norm"), *ends("attention"), *feed("input_norm"), *ends("mlp"), first, last)
    post_norm = norm("post_norm", width, reads="input" if kind == "parallel-two" else "")
    attended = (input_norm, *attend("input_norm"), *ends("attention"))
    fed = (post_norm, *feed("post_norm"), *ends("mlp"))
    return (*attended, *fed, first, last) if kind == "parallel-two" else (*attended, first, *fed, last)


def decoder(
    width: int, vocab: int, layers: list[Items], norm: Norm | None, *, tied: bool, before: Items = (),
    names: list[str] | None = None, head_bias: bool = False, embed_dim: int = 0, after: Items = (),
) -> Stack:  # fmt: skip
    """A token decoder: embedding, `layers` (equal ones are one kind), final norm, vocabulary-sized head."""
    ends: Items = () if norm is None else (norm,)
    table = Embedding("embed_tokens", vocab, embed_dim or width, shard="row")
    head = Linear("lm_head", embed_dim or width, vocab, bias=head_bias, shard="column", tied=tied)
    return stack_of("decoder", width, (table, *before), layers, (*ends, *after, head), names=names)


Key = TypeVar("Key", bound=Hashable)


def one_of_each(keys: Iterable[Key], make: Callable[[Key], Items]) -> list[Items]:
    """The layer of each key, in order; layers of equal keys are made once."""
    made: dict[Key, Items] = {}
    return [made[key] if key in made else made.setdefault(key, make(key)) for key in keys]


def stack_of(
    name: str, width: int, before: Items, layers: list[Items], after: Items = (), *, names: list[str] | None = None,
    tokens: int | None = None, extra_tokens: int = 0,
) -> Stack:  # fmt: skip
    """A stack of `layers`; equal ones are one kind, called by its first of `names`."""
    seen: dict[int, int] = {}
    kinds: dict[Items, int] = {}
    labels: list[str] = []
    for label, items in zip(names or ["block"] * len(layers), layers, strict=False):
        if id(items) not in seen:  # hashing a layer is slow
            if items not in kinds:
                kinds[items] = len(kinds)
                labels.append(label)
            seen[id(items)] = kinds[items]
    return Stack(
        name=name, width=width, before=before,
        kinds=tuple(Layer(label, items) for label, items in zip(labels, kinds, strict=True)),
        order=tuple(seen[id(items)] for items in layers),
        after=after, tokens_per_sample=tokens, extra_tokens=extra_tokens,
    )  # fmt: skip
