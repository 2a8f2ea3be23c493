"""Llama and the many that are Llama with a bias, a norm or a window more: Mistral, Qwen, Gemma, Phi ..."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

from flopwise.facts.architecture import PREDICTED_HEAD, Item, Layer, Linear, Model, Pointwise, Weight
from flopwise.facts.models.attend import Attention, attention
from flopwise.facts.models.blocks import (
    LAYER_NORM,
    RMS,
    Arrangement,
    Block,
    Items,
    Normal,
    activation,
    decoder,
    layer_of,
    mlp,
    one_of_each,
    residual,
)
from flopwise.facts.models.fields import Fields
from flopwise.values import dataclass, replace

NO_BIAS = Normal(kind="layernorm")
NO_WEIGHT = Normal(kind="layernorm", affine=False)
WEIGHTLESS = Normal(affine=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The differences of a family from Llama. A flag may be the name of the configuration's key that sets it."""

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
    inner_norms: bool = False  # a norm before each block's last matrix (BitNet)
    act_weights: int = 0  # learned scalars of the activation (Apertus)
    sinks: bool = False
    scaled: bool = False  # multiplies the residual branches by a constant (Granite)
    embed_scale: bool = False
    embed_norm: bool = False
    rope_on_windows_only: bool = False


NO_BIASES = Traits(bias=False, out_bias=False, mlp_bias=False)
TRAITS: dict[str, Traits] = {
    "llama": Traits(),
    "mistral": NO_BIASES,
    "ministral": NO_BIASES,
    "ministral3": NO_BIASES,
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
        norm=LAYER_NORM, arrangement="parallel", bias=True, out_bias=True, mlp_bias=True, head_bias=True, gated=False,
        qk_norm="head", qk_norm_key="qk_layernorm", qk_normal=LAYER_NORM,
    ),
    "phi3": Traits(bias=False, out_bias=False, mlp_bias=False, fused_attention=True, fused_mlp=True),
    "glm": Traits(out_bias=False, mlp_bias=False, fused_mlp=True),
    "glm4": Traits(out_bias=False, mlp_bias=False, fused_mlp=True, arrangement="sandwich"),
    "cohere": Traits(
        norm=NO_BIAS, arrangement="parallel", mlp_bias=False, qk_norm="head", qk_norm_key="use_qk_norm",
        qk_normal=NO_BIAS, qk_own_weights=True,
    ),
    "cohere2": Traits(norm=NO_BIAS, arrangement="parallel", mlp_bias=False, rope_on_windows_only=True),
    "nemotron": Traits(norm=LAYER_NORM, gated=False),
    "starcoder2": Traits(norm=LAYER_NORM, bias="use_bias", out_bias="use_bias", mlp_bias="use_bias", gated=False),
    "stablelm": Traits(
        norm=LAYER_NORM, bias="use_qkv_bias", out_bias=False, mlp_bias=False, qk_norm="head",
        qk_norm_key="qk_layernorm", qk_normal=NO_BIAS, qk_own_weights=True,
    ),
}  # fmt: skip
_SCALED = Traits(scaled=True, embed_scale=True)
TRAITS |= {
    "apertus": Traits(mlp_bias=False, gated=False, qk_norm="head", act_weights=2),
    "bitnet": Traits(mlp_bias=False, inner_norms=True),
    "cwm": Traits(bias=False, out_bias=False),
    "granite_swa": replace(_SCALED, sinks=True),
    "hunyuan_v1_dense": Traits(out_bias="attention_bias", mlp_bias=False, qk_norm="head"),
    "hyperclovax": replace(_SCALED, arrangement="sandwich"),
    "iquestcoder": Traits(),
    "jais2": Traits(norm=LAYER_NORM, gated=False),
    "nanochat": Traits(
        norm=WEIGHTLESS, mlp_bias=False, gated=False, qk_norm="head", qk_normal=WEIGHTLESS, embed_norm=True
    ),
    "persimmon": Traits(
        norm=LAYER_NORM, bias=True, out_bias=True, mlp_bias=True, gated=False, fused_attention=True, qk_norm="head",
        qk_norm_key="qk_layernorm", qk_normal=LAYER_NORM,
    ),
    "phi3small": Traits(norm=LAYER_NORM, bias=True, out_bias=True, mlp_bias=True, fused_attention=True, fused_mlp=True),
    "vaultgemma": Traits(mlp_bias=False, embed_scale=True),
}  # fmt: skip
TRAITS |= {"qwen2_vl_text": TRAITS["qwen2"], "qwen2_5_vl_text": TRAITS["qwen2"], "qwen3_vl_text": TRAITS["qwen3"]}


def flag(c: Fields, value: bool | str) -> bool:
    """A trait's flag: fixed, or as the configuration's key of that name says."""
    return c.flag(value) if isinstance(value, str) else value


def rope_dim(c: Fields, head_dim: int) -> int:
    """The number of dimensions of a head that are rotated."""
    fraction = c.number("partial_rotary_factor", 1.0)
    parameters = c.value("rope_parameters")
    if isinstance(parameters, dict):
        given = parameters.get("partial_rotary_factor")
        if isinstance(given, int | float) and 0 <= given <= 1:
            fraction = given
    return max(0, min(head_dim, int(head_dim * fraction)))


PATTERNS = {
    "gemma2": 2, "gemma3_text": 6, "cohere2": 4, "olmo3": 4, "exaone4": 4, "gpt_oss": 2, "gemma4_text": 6,
    "gemma3n_text": 5, "vaultgemma": 2, "cwm": 4, "exaone_moe": 4, "cohere2_moe": 4,
}  # fmt: skip
"""Which layers are global where configurations do not say: one of so many."""


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
    pattern = c.count("sliding_window_pattern") or c.count("_sliding_window_pattern") or PATTERNS.get(c.model_type)
    if not pattern:
        return [window] * layers
    return [window if (i + 1) % pattern else None for i in range(layers)]


def traits_of(c: Fields) -> Traits:
    """The traits of a configuration's family."""
    traits = TRAITS.get(c.model_type, TRAITS["llama"])
    if c.model_type == "stablelm" and c.flag("use_parallel_residual"):
        return replace(traits, arrangement="parallel")
    if c.model_type == "hyperclovax" and not c.flag("use_post_norm", default=True):
        return replace(traits, arrangement="pre")
    return traits


def standard_attention(c: Fields, t: Traits) -> Attention:
    """The grouped-query attention that a Llama-like configuration describes."""
    width = c.size("hidden_size")
    heads, kv_heads, head_dim = c.heads(width)
    return Attention(
        width=width, heads=heads, kv_heads=kv_heads, head_dim=head_dim, bias=flag(c, t.bias),
        out_bias=flag(c, t.out_bias), rope_dim=rope_dim(c, head_dim),
        qk_norm=t.qk_norm if not t.qk_norm_key or c.flag(t.qk_norm_key) else "", qk_normal=t.qk_normal,
        qk_own_weights=t.qk_own_weights, fused=t.fused_attention, dropout=c.number("attention_dropout") > 0,
        out_norm=t.inner_norms, sinks=t.sinks,
    )  # fmt: skip


def language_model(
    c: Fields, rows: list[Items], names: list[str] | None = None, *, traits: Traits = NO_BIASES, before: Items = (),
    tied: bool = True,
) -> Model:  # fmt: skip
    """A decoder of the `rows` given, with embedding, final norm and head; `tied` where the configuration is silent."""
    width, vocab = c.size("hidden_size"), c.size("vocab_size")
    scale: Items = (Pointwise("embed/scale", width, "scale"),) if traits.embed_scale else ()
    if traits.embed_norm:
        scale = (*scale, traits.norm("embed/norm", width))
    stack = decoder(
        width, vocab, rows, traits.norm("norm", width), names=names, before=(*scale, *before),
        tied=c.flag("tie_word_embeddings", default=tied), head_bias=flag(c, traits.head_bias),
    )  # fmt: skip
    positions = c.maybe("max_position_embeddings")
    return Model(kind="decoder", stacks=(stack,), vocab=vocab, max_position=positions)


def add_predictors(c: Fields, model: Model, blocks: list[Items], depth: int = 1) -> Model:
    """`model` with its layers for multi-token prediction, `depth` of `blocks` for each that is configured.

    The last hidden state joins the embedding of a further token; the head runs again on what comes out. They are left
    out of the stack, as transformers does, unless `flopwise_mtp` is set.

    Source: DeepSeek-V3 report (arXiv:2412.19437) section 2.2, one prediction after another, embedding and head shared.
    """
    count = c.count("num_nextn_predict_layers")
    if not count:
        return model
    width, vocab = c.size("hidden_size"), c.size("vocab_size")
    joined = RMS("mtp/embed_norm", width), RMS("mtp/hidden_norm", width), Linear("mtp/project", 2 * width, width)
    head = Linear(PREDICTED_HEAD, width, vocab, shard="column", tied=True)
    parts = [(*joined, *blocks[0]), *blocks[1:]]
    parts[-1] = (*parts[-1], head)
    made = tuple(Layer("mtp", items) for items in parts) * (count * depth)
    predicted = replace(model, num_predictors=count, predictors=made)
    return predicted.with_predictors() if c.flag("flopwise_mtp") else predicted


def plain_feed(c: Fields, t: Traits, hidden: int) -> Block:
    """The family's dense feed-forward block of `hidden` columns."""
    width = c.size("hidden_size")
    act, bias = activation(c.text("hidden_act", "silu")), flag(c, t.mlp_bias)
    weights: Items = (Weight("mlp/act_weights", t.act_weights),) if t.act_weights else ()
    return lambda source: (
        *weights,
        *mlp(width, hidden, act, source, gated=t.gated, bias=bias, fused=t.fused_mlp, inner_norm=t.inner_norms),
    )


def llama(c: Fields) -> Model:
    """Decoder of rotary grouped-query attention and a feed-forward block, arranged and normed as the family does."""
    t = traits_of(c)
    base = standard_attention(c, t)
    feed = plain_feed(c, t, c.size("intermediate_size"))
    attends = [
        replace(base, window=window, rope_dim=0 if _without_rope(c, t, i, window) else base.rope_dim)
        for i, window in enumerate(windows(c, c.layers()))
    ]

    def layer(a: Attention) -> Items:
        return layer_of(t.arrangement, a.width, t.norm, partial(attention, a), feed, scale=t.scaled)

    return language_model(c, one_of_each(attends, layer), traits=t)


def nemotron_nas(c: Fields) -> Model:
    """Llama with layers that a search pruned: each with heads and columns of its own, or without either block.

    Source: the code beside nvidia/Llama-3_3-Nemotron-Super-49B-v1 (`block_configs`): so many query heads a key-value
    head, and 2/3 of `ffn_mult` times the width in columns, rounded up to 256. Layers left without both are no layers.
    """
    width, heads, act = c.size("hidden_size"), c.size("num_attention_heads"), activation(c.text("hidden_act", "silu"))
    given = c.sequence("block_configs") or []
    if not given or not all(isinstance(block, dict) for block in given):
        raise c.wrong("block_configs", given, "a list of objects is needed, one a layer")

    def shape(index: int) -> tuple[int | str, int | str]:
        """Key-value heads and columns of a layer; "linear": one matrix in their place, 0: nothing."""
        block = c.within(given[index], "", f"{c.where}: block_configs {index}", nested=True)
        kv_heads, columns = partial(_kv_heads, heads=heads), partial(_columns, width=width)
        return _size_left(block.part("attention"), kv_heads), _size_left(block.part("ffn"), columns)

    base = Attention(width=width, heads=heads, kv_heads=heads, head_dim=width // heads, rope_dim=width // heads)

    def layer(key: tuple[int | str, int | str]) -> Items:
        kv_heads, columns = key
        source, items = "input", tuple[Item, ...]()
        if kv_heads:
            plain = (Linear("attention/linear", width, width, reads="input_norm"),)
            made = plain if isinstance(kv_heads, str) else attention(replace(base, kv_heads=kv_heads), "input_norm")
            items = RMS("input_norm", width), *made, residual("attention/residual", width, "input")
            source = "attention/residual"
        if columns:
            plain = (Linear("mlp/linear", width, width, reads="post_norm"),)
            made = plain if isinstance(columns, str) else mlp(width, columns, act, "post_norm")
            items = *items, RMS("post_norm", width), *made, residual("mlp/residual", width, source)
        return items

    rows = one_of_each(filter(any, map(shape, range(len(given)))), layer)
    return language_model(c, rows, tied=False)


def _size_left(block: Fields, size: Callable[[Fields], int]) -> int | str:
    """The size of what a pruned layer has left of a block; "linear": one matrix in its place, 0: nothing."""
    nothing, linear = block.flag("no_op"), block.flag("replace_with_linear")
    return "linear" if linear else 0 if nothing else size(block)


def _kv_heads(block: Fields, heads: int) -> int:
    """Key-value heads of a pruned layer's attention, which has so many query heads for each."""
    group = block.size("n_heads_in_group")
    if heads % group:
        raise block.wrong("n_heads_in_group", group, f"it must divide num_attention_heads = {heads}")
    return heads // group


def _columns(block: Fields, width: int) -> int:
    """Columns of a pruned layer's feed-forward block."""
    return math.ceil(int(2 * block.number("ffn_mult") * width / 3) / 256) * 256


def _without_rope(c: Fields, t: Traits, layer: int, window: int | None) -> bool:
    """True if a layer has no positions at all: every fourth of SmolLM3, the global ones of Command R7B."""
    if t.rope_on_windows_only:
        return window is None
    if c.model_type == "smollm3":
        given = c.sequence("no_rope_layers")
        if given and layer < len(given):
            return not given[layer]
        return (layer + 1) % (c.count("no_rope_layer_interval") or 4) == 0
    return False
