"""Gemma 3n and 4: inputs for each layer, keys and values shared by layers, experts beside a dense block."""

from __future__ import annotations

from functools import partial

from flopwise.facts.architecture import Embedding, Item, Linear, Model, Norm, Pointwise, Weight
from flopwise.facts.models.attend import Attention, attention
from flopwise.facts.models.blocks import (
    RMS,
    Items,
    Mixture,
    activation,
    layer_of,
    mlp,
    moe,
    one_of_each,
    residual,
    stack_of,
)
from flopwise.facts.models.families.llama import Traits, language_model, windows
from flopwise.facts.models.families.multimodal import text_part, vision_model
from flopwise.facts.models.families.vision import DYNAMIC_PIXELS, heads_and_width
from flopwise.facts.models.fields import Fields
from flopwise.values import replace

_TRAITS = Traits(bias="attention_bias", out_bias="attention_bias", mlp_bias=False, embed_scale=True)


def _per_layer_inputs(c: Fields, width: int, layers: int) -> tuple[Items, Items]:
    """The items that make an input for every layer (before them), and those that mix it in (at its end)."""
    dim = c.count("hidden_size_per_layer_input")
    if not dim:
        return (), ()
    # the table is read, never multiplied, and can stay off the accelerator: "effective" sizes such as E4B leave it out
    before = (
        Embedding("embed_tokens_per_layer", c.size("vocab_size_per_layer_input"), dim * layers, counted_active=False),
        Linear("per_layer_projection", width, dim * layers, reads="embed/scale"),
        Norm("per_layer_norm", dim, groups=layers),
        residual("per_layer/add", dim * layers, "embed_tokens_per_layer"),
    )
    after = (
        Linear("per_layer/gate", width, dim),
        Pointwise("per_layer/act", dim, "gelu", gated=True),
        Linear("per_layer/projection", dim, width),
        RMS("per_layer/norm", width),
        residual("per_layer/residual", width, "mlp/residual"),
    )
    return before, after


def _normed_attention(c: Fields, width: int, heads: int, kv_heads: int, head_dim: int) -> Attention:
    """Attention as text and image tower have it: queries, keys and values normalised head by head, rope on all."""
    bias = c.flag("attention_bias")
    return Attention(
        width=width, heads=heads, kv_heads=kv_heads, head_dim=head_dim, bias=bias, out_bias=bias, rope_dim=head_dim,
        qk_norm="head", v_norm=True,
    )  # fmt: skip


def _attentions(c: Fields, layers: int) -> list[Attention]:
    """Attention of each layer of Gemma 4 (larger heads in global layers) or 3n; the last share keys and values."""
    width = c.size("hidden_size")
    heads, kv_heads, head_dim = c.heads(width)
    full = base = _normed_attention(c, width, heads, kv_heads, head_dim)
    if c.model_type == "gemma4_text":
        dim = c.size("global_head_dim", 512)
        same = c.flag("attention_k_eq_v")
        kv = c.maybe("num_global_key_value_heads") if same else None
        if kv and heads % kv:
            raise c.wrong("num_global_key_value_heads", kv, f"it must divide num_attention_heads = {heads}")
        full = replace(base, head_dim=dim, rope_dim=dim // 4, kv_heads=kv or kv_heads, k_is_v=same)
    seen = windows(c, layers)
    if c.model_type == "gemma4_text" and seen:
        seen[-1] = None  # the class forces the last layer to be global
    first = layers - min(layers, c.count("num_kv_shared_layers"))
    return [
        replace(
            full if w is None else base, window=w, kv_shared=i >= first, k_is_v=w is None and full.k_is_v and i < first
        )
        for i, w in enumerate(seen)
    ]


def gemma4_text(c: Fields) -> Model:
    """Gemma 4's language model."""
    layers, width = c.layers(), c.size("hidden_size")
    hidden, act = c.size("intermediate_size"), activation(c.text("hidden_activation", "gelu"))
    before, after = _per_layer_inputs(c, width, layers)
    experts = None
    if c.flag("enable_moe_block"):
        experts = Mixture(
            width=width, experts=c.size("num_experts"), top_k=c.size("top_k_experts"),
            hidden=c.size("moe_intermediate_size"), act=act,
        )  # fmt: skip
    wide = c.flag("use_double_wide_mlp")

    def layer(a: Attention) -> Items:
        feed: list[Item] = [*mlp(width, hidden * (2 if wide and a.kv_shared else 1), act, "post_norm")]
        if experts:
            routed = moe(experts, "experts/norm")
            feed += [
                RMS("mlp/norm_1", width),
                Norm("router/norm", width, affine=False, reads="attention/residual"),
                Weight("router/scales", width + experts.experts),
                Linear("router", width, experts.experts, reads="router/norm"),
                routed[1],
                RMS("experts/norm", width, reads="attention/residual"),
                *routed[2:],
                RMS("experts/norm_2", width),
                residual("experts/add", width, "mlp/norm_1"),
            ]
        return *layer_of("sandwich", width, RMS, partial(attention, a), lambda _: tuple(feed)), *after

    return language_model(c, one_of_each(_attentions(c, layers), layer), traits=_TRAITS, before=before)


def _hidden_sizes(c: Fields, layers: int) -> list[int]:
    """Hidden size of each layer's feed-forward: one for all, or a list."""
    given = c.value("intermediate_size")
    if not isinstance(given, list):
        return [c.size("intermediate_size")] * layers
    sizes = [int(v) for v in given[:layers] if isinstance(v, int) and v > 0]
    if len(sizes) != layers:
        raise c.wrong("intermediate_size", given, f"a size, or a list of {layers} sizes, is needed")
    return sizes


def gemma3n_text(c: Fields) -> Model:
    """Gemma 3n's language model: four residual streams that predict and correct one another, low-rank residuals."""
    layers, width = c.layers(), c.size("hidden_size")
    sizes = _hidden_sizes(c, layers)
    act = activation(c.text("hidden_activation", "gelu"))
    streams, rank = c.size("altup_num_inputs", 4), c.size("laurel_rank", 64)
    before, after = _per_layer_inputs(c, width, layers)
    altup: Items = (
        RMS("altup/norm", width),
        Linear("altup/router", width, streams),
        Linear("altup/prediction", streams, streams * streams),
        Pointwise("altup/predict", streams * width, "scale", mixes=streams),
    )
    correct: Items = (  # the router again, on what the layer made
        Norm("altup/norm_again", width, affine=False),
        Linear("altup/router_again", width, streams, tied=True),
        Linear("altup/correction", streams, streams),
        Pointwise("altup/correct", streams * width, "scale"),
        Weight("altup/output_scale", width),
    )
    laurel: Items = (
        Linear("laurel/left", width, rank, reads="input_norm"),
        Linear("laurel/right", rank, width),
        RMS("laurel/norm", width),
        residual("laurel/residual", width, "input_norm"),
    )

    def layer(key: tuple[Attention, int]) -> Items:
        return (
            *altup,
            RMS("input_norm", width),
            *laurel,
            *attention(key[0], "input_norm"),
            RMS("attention/norm", width),
            residual("attention/residual", width, "input"),
            residual("attention/laurel", width, "laurel/residual"),
            RMS("post_norm", width),
            *mlp(width, key[1], act, "post_norm"),
            RMS("mlp/norm", width),
            residual("mlp/residual", width, "attention/laurel"),
            *correct,
            *after,
        )

    into = tuple(Linear(f"altup/into.{i}", width, width, reads="embed/scale") for i in range(streams - 1))
    rows = one_of_each(zip(_attentions(c, layers), sizes, strict=True), layer)
    model = language_model(c, rows, traits=_TRAITS, before=(*into, *before))
    stack = model.stacks[0]
    out = tuple(Linear(f"altup/out.{i}", width, width, reads="input") for i in range(streams - 1))
    return replace(model, stacks=(replace(stack, after=(*out, *stack.after)),))


def gemma3n(c: Fields) -> Model:
    """Gemma 3n: the language model only; its MobileNet image tower and audio tower are not described."""
    text = text_part(c, "gemma3n_text")
    return replace(text, notes=(*text.notes, "image and audio towers are not counted"))


def gemma4(c: Fields) -> Model:
    """Gemma 4 with its image tower; an audio tower is not described."""
    text = text_part(c, "gemma4_text")
    if not c.has("vision_config"):
        return replace(text, notes=(*text.notes, "no image tower in this configuration"))
    v = c.part("vision_config", "gemma4_vision")
    width, heads = heads_and_width(v)
    kv_heads, dim = v.size("num_key_value_heads", heads), v.maybe("head_dim") or width // heads
    a = replace(_normed_attention(v, width, heads, kv_heads, dim), causal=False, cached=False)
    feed = partial(mlp, width, v.size("intermediate_size"), activation(v.text("hidden_activation", "gelu")))
    layer = layer_of("sandwich", width, RMS, partial(attention, a), feed)
    patch, rows = v.size("patch_size"), v.size("position_embedding_size")
    before = (
        Linear("patch_embed", 3 * patch * patch, width),
        Weight("embed_positions", 2 * rows * width),
        residual("embed/add", width),
    )
    patches = (DYNAMIC_PIXELS // patch) ** 2
    tower = stack_of("vision", width, before, [layer] * v.layers(), tokens=patches)
    out = (Norm("projector/norm", width, affine=False), Linear("projector/fc", width, text.stacks[0].width))
    pooled = max(1, patches // v.size("pooling_kernel_size", 3) ** 2)
    model = vision_model(text, tower, out, pooled, dynamic=True)
    return replace(model, notes=(*model.notes, "an audio tower is not counted")) if c.has("audio_config") else model
