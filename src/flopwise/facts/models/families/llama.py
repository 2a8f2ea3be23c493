"""Llama and the many that are Llama with a bias, a norm or a window more: Mistral, Qwen, Gemma, Phi ..."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from flopwise.facts.architecture import Model, Pointwise
from flopwise.facts.models.attend import Attention, attention
from flopwise.facts.models.blocks import (
    LAYER_NORM,
    RMS,
    Arrangement,
    Items,
    Normal,
    activation,
    arranged,
    decoder,
    mlp,
)
from flopwise.facts.models.fields import Fields

NO_BIAS = Normal(kind="layernorm")
NO_WEIGHT = Normal(kind="layernorm", affine=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """How a family departs from Llama. A flag may be the name of the configuration's key that sets it."""

    norm: Normal = RMS
    arrangement: Arrangement = "pre"
    bias: bool | str = "attention_bias"  # of q, k and v
    out_bias: bool | str = "attention_bias"
    mlp_bias: bool | str = "mlp_bias"
    head_bias: bool | str = False
    gated: bool = True
    fused_attention: bool = False
    fused_mlp: bool = False
    qk_norm: Literal["", "head", "full"] = ""
    qk_norm_key: str = ""  # the key that switches the norm on; "": always
    qk_normal: Normal = RMS
    qk_own_weights: bool = False
    scaled: bool = False  # multiplies the residual branches by a constant (Granite)
    embed_scale: bool = False
    rope_on_windows_only: bool = False


TRAITS: dict[str, Traits] = {
    "llama": Traits(),
    "mistral": Traits(bias=False, out_bias=False, mlp_bias=False),
    "ministral": Traits(bias=False, out_bias=False, mlp_bias=False),
    "ministral3": Traits(bias=False, out_bias=False, mlp_bias=False),
    "qwen2": Traits(bias=True, out_bias=False, mlp_bias=False),
    "qwen3": Traits(mlp_bias=False, qk_norm="head"),
    "internlm2": Traits(bias="bias", out_bias="bias", mlp_bias=False),
    "internlm3": Traits(bias="qkv_bias", out_bias="bias", mlp_bias="bias"),
    "granite": Traits(scaled=True, embed_scale=True),
    "smollm3": Traits(),
    "seed_oss": Traits(out_bias="attention_out_bias"),
    "arcee": Traits(gated=False),
    "helium": Traits(out_bias=False),
    "ernie4_5": Traits(bias="use_bias", out_bias="use_bias", mlp_bias="use_bias"),
    "exaone4": Traits(bias=False, out_bias=False, mlp_bias=False, qk_norm="head", arrangement="post"),
    "olmo": Traits(norm=NO_WEIGHT, mlp_bias=False),
    "olmo2": Traits(mlp_bias=False, qk_norm="full", arrangement="post"),
    "olmo3": Traits(mlp_bias=False, qk_norm="full", arrangement="post"),
    "gemma": Traits(mlp_bias=False, embed_scale=True),
    "gemma2": Traits(mlp_bias=False, embed_scale=True, arrangement="sandwich"),
    "gemma3_text": Traits(mlp_bias=False, embed_scale=True, arrangement="sandwich", qk_norm="head"),
    "phi": Traits(
        norm=LAYER_NORM,
        arrangement="parallel",
        bias=True,
        out_bias=True,
        mlp_bias=True,
        head_bias=True,
        gated=False,
        qk_norm="head",
        qk_norm_key="qk_layernorm",
        qk_normal=LAYER_NORM,
    ),
    "phi3": Traits(bias=False, out_bias=False, mlp_bias=False, fused_attention=True, fused_mlp=True),
    "glm": Traits(out_bias=False, mlp_bias=False, fused_mlp=True),
    "glm4": Traits(out_bias=False, mlp_bias=False, fused_mlp=True, arrangement="sandwich"),
    "cohere": Traits(
        norm=NO_BIAS,
        arrangement="parallel",
        mlp_bias=False,
        qk_norm="head",
        qk_norm_key="use_qk_norm",
        qk_normal=NO_BIAS,
        qk_own_weights=True,
    ),
    "cohere2": Traits(norm=NO_BIAS, arrangement="parallel", mlp_bias=False, rope_on_windows_only=True),
    "nemotron": Traits(norm=LAYER_NORM, gated=False),
    "starcoder2": Traits(norm=LAYER_NORM, bias="use_bias", out_bias="use_bias", mlp_bias="use_bias", gated=False),
    "stablelm": Traits(
        norm=LAYER_NORM,
        bias="use_qkv_bias",
        out_bias=False,
        mlp_bias=False,
        qk_norm="head",
        qk_norm_key="qk_layernorm",
        qk_normal=NO_BIAS,
        qk_own_weights=True,
    ),
}
TRAITS |= {"qwen2_vl_text": TRAITS["qwen2"], "qwen2_5_vl_text": TRAITS["qwen2"], "qwen3_vl_text": TRAITS["qwen3"]}


def flag(c: Fields, value: bool | str) -> bool:
    """A trait's flag: fixed, or as the configuration's key of that name says."""
    return c.flag(value) if isinstance(value, str) else value


def rope_dim(c: Fields, head_dim: int) -> int:
    """How many dimensions of a head are rotated."""
    fraction = c.number("partial_rotary_factor", 1.0)
    parameters = c.value("rope_parameters")
    if isinstance(parameters, dict):
        given = parameters.get("partial_rotary_factor")
        if isinstance(given, int | float) and 0 <= given <= 1:
            fraction = given
    return max(0, min(head_dim, int(head_dim * fraction)))


def windows(c: Fields, layers: int) -> list[int | None]:
    """The sliding window of each layer: none, one for all, or as `layer_types` or a pattern says."""
    window = c.maybe("sliding_window")
    if window is None or c.value("use_sliding_window") is False:
        return [None] * layers
    if c.has("layer_types"):
        return [window if t == "sliding_attention" else None for t in c.per_layer("layer_types", layers, "")]
    if c.model_type.startswith("qwen"):
        first = c.count("max_window_layers")
        return [window if i >= first else None for i in range(layers)]
    default = {
        "gemma2": 2,
        "gemma3_text": 6,
        "cohere2": 4,
        "olmo3": 4,
        "exaone4": 4,
        "gpt_oss": 2,
        "gemma4_text": 6,
        "gemma3n_text": 5,
    }
    pattern = c.count("sliding_window_pattern") or c.count("_sliding_window_pattern") or default.get(c.model_type, 0)
    if not pattern:
        return [window] * layers
    return [window if (i + 1) % pattern else None for i in range(layers)]


def traits_of(c: Fields) -> Traits:
    """The traits of a configuration's family."""
    traits = TRAITS.get(c.model_type, TRAITS["llama"])
    if c.model_type == "stablelm" and c.flag("use_parallel_residual"):
        return replace(traits, arrangement="parallel")
    return traits


def standard_attention(c: Fields, t: Traits) -> Attention:
    """The grouped-query attention that a Llama-like configuration describes."""
    width = c.size("hidden_size")
    heads, kv_heads, head_dim = c.heads(width)
    return Attention(
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        bias=flag(c, t.bias),
        out_bias=flag(c, t.out_bias),
        rope_dim=rope_dim(c, head_dim),
        qk_norm=t.qk_norm if not t.qk_norm_key or c.flag(t.qk_norm_key) else "",
        qk_normal=t.qk_normal,
        qk_own_weights=t.qk_own_weights,
        fused=t.fused_attention,
        dropout=c.number("attention_dropout") > 0,
    )


def language_model(
    c: Fields, t: Traits, base: Attention, rows: list[Items], names: list[str] | None = None, *, before: Items = ()
) -> Model:
    """A decoder of the `rows` given, with embedding, final norm and head."""
    vocab = c.size("vocab_size")
    scale = (Pointwise(name="embed/scale", dim=base.width, kind="scale"),) if t.embed_scale else ()
    stack = decoder(
        base.width,
        vocab,
        rows,
        t.norm("norm", base.width),
        tied=c.flag("tie_word_embeddings", default=True),
        head_bias=flag(c, t.head_bias),
        before=(*scale, *before),
        names=names,
    )
    positions = c.maybe("max_position_embeddings")
    return Model(name="", model_type=c.model_type, kind="decoder", stacks=(stack,), vocab=vocab, max_position=positions)


def plain_feed(c: Fields, t: Traits, width: int, hidden: int) -> Callable[[str], Items]:
    """The family's dense feed-forward block of `hidden` columns."""
    act, bias = activation(c.text("hidden_act", "silu")), flag(c, t.mlp_bias)
    return lambda source: mlp(width, hidden, act, source, gated=t.gated, bias=bias, fused=t.fused_mlp)


def llama(c: Fields) -> Model:
    """Decoder of rotary grouped-query attention and a feed-forward block, arranged and normed as the family does."""
    t = traits_of(c)
    base = standard_attention(c, t)
    feed = plain_feed(c, t, base.width, c.size("intermediate_size"))
    layers = c.layers()
    built: dict[tuple[int | None, int], Items] = {}
    rows = []
    for i, window in enumerate(windows(c, layers)):
        rope = 0 if _without_rope(c, t, i, window) else base.rope_dim
        if (window, rope) not in built:
            a = replace(base, window=window, rope_dim=rope)
            built[window, rope] = arranged(t.arrangement, base.width, t.norm, _reader(a), feed, scale=t.scaled)
        rows.append(built[window, rope])
    return language_model(c, t, base, rows)


def _reader(a: Attention) -> Callable[[str], Items]:
    return lambda source: attention(a, source)


def _without_rope(c: Fields, t: Traits, layer: int, window: int | None) -> bool:
    """Whether a layer has no positions at all: every fourth of SmolLM3, the global ones of Command R7B."""
    if t.rope_on_windows_only:
        return window is None
    if c.model_type == "smollm3":
        given = c.sequence("no_rope_layers")
        if given and layer < len(given):
            return not given[layer]
        return (layer + 1) % (c.count("no_rope_layer_interval") or 4) == 0
    return False
