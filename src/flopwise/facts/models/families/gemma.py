"""Gemma 3n and 4: inputs for each layer, keys and values shared by layers, experts beside a dense block."""

from __future__ import annotations

from dataclasses import replace

from flopwise.facts.architecture import Embedding, Item, Layer, Linear, Model, Norm, Pointwise, Stack, Weight
from flopwise.facts.models.attend import Attention, attention
from flopwise.facts.models.blocks import RMS, Items, Mixture, activation, mlp, moe, residual
from flopwise.facts.models.families.llama import Traits, language_model, windows
from flopwise.facts.models.families.multimodal import joined, text_part
from flopwise.facts.models.families.vision import DYNAMIC_PIXELS, heads_and_width
from flopwise.facts.models.fields import Fields

_TRAITS = Traits(bias="attention_bias", out_bias="attention_bias", mlp_bias=False, embed_scale=True)


def _per_layer_inputs(c: Fields, width: int, layers: int) -> tuple[Items, Items]:
    """What makes an input of its own for every layer (before them), and what mixes it in (at the end of each)."""
    dim = c.count("hidden_size_per_layer_input")
    if not dim:
        return (), ()
    # the table is read, never multiplied, and can stay off the accelerator: "effective" sizes such as E4B leave it out
    before = (
        Embedding(
            name="embed_tokens_per_layer",
            rows=c.size("vocab_size_per_layer_input"),
            dim=dim * layers,
            counted_active=False,
        ),
        Linear(name="per_layer_projection", inputs=width, outputs=dim * layers, reads="embed/scale"),
        Norm(name="per_layer_norm", dim=dim, groups=layers),
        residual("per_layer/add", dim * layers, "embed_tokens_per_layer"),
    )
    after = (
        Linear(name="per_layer/gate", inputs=width, outputs=dim),
        Pointwise(name="per_layer/act", dim=dim, kind="gelu", gated=True),
        Linear(name="per_layer/projection", inputs=dim, outputs=width),
        RMS("per_layer/norm", width),
        residual("per_layer/residual", width, "mlp/residual"),
    )
    return before, after


def _normed_attention(c: Fields, width: int, heads: int, kv_heads: int, head_dim: int) -> Attention:
    """Attention as text and image tower have it: queries, keys and values normalised head by head, rope on all."""
    bias = c.flag("attention_bias")
    return Attention(
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        bias=bias,
        out_bias=bias,
        rope_dim=head_dim,
        qk_norm="head",
        v_norm=True,
    )


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
            width=width,
            experts=c.size("num_experts"),
            top_k=c.size("top_k_experts"),
            hidden=c.size("moe_intermediate_size"),
            act=act,
        )
    wide = c.flag("use_double_wide_mlp")

    def layer(a: Attention) -> Items:
        dense = mlp(width, hidden * (2 if wide and a.kv_shared else 1), act, "post_norm")
        feed: list[Item] = [RMS("post_norm", width), *dense]
        if experts:
            router = (
                Norm(name="router/norm", dim=width, affine=False, reads="attention/residual"),
                Weight(name="router/scales", numel=width + experts.experts),
            )
            routed = moe(experts, "experts/norm")
            feed += [
                RMS("mlp/norm_1", width),
                *router,
                Linear(name="router", inputs=width, outputs=experts.experts, reads="router/norm"),
                routed[1],
                RMS("experts/norm", width, reads="attention/residual"),
                *routed[2:],
                RMS("experts/norm_2", width),
                residual("experts/add", width, "mlp/norm_1"),
            ]
        return (
            RMS("input_norm", width),
            *attention(a, "input_norm"),
            RMS("attention/norm", width),
            residual("attention/residual", width, "input"),
            *feed,
            RMS("mlp/norm", width),
            residual("mlp/residual", width, "attention/residual"),
            *after,
        )

    attends = _attentions(c, layers)
    kinds = {a: layer(a) for a in dict.fromkeys(attends)}
    return language_model(c, _TRAITS, attends[0], [kinds[a] for a in attends], before=before)


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
    act, streams, rank = (
        activation(c.text("hidden_activation", "gelu")),
        c.size("altup_num_inputs", 4),
        c.size("laurel_rank", 64),
    )
    before, after = _per_layer_inputs(c, width, layers)
    altup: Items = (
        RMS("altup/norm", width),
        Linear(name="altup/router", inputs=width, outputs=streams),
        Linear(name="altup/prediction", inputs=streams, outputs=streams * streams),
        Pointwise(name="altup/predict", dim=streams * width, kind="scale", mixes=streams),
    )
    correct: Items = (  # the router again, on what the layer made
        Norm(name="altup/norm_again", dim=width, affine=False),
        Linear(name="altup/router_again", inputs=width, outputs=streams, tied=True),
        Linear(name="altup/correction", inputs=streams, outputs=streams),
        Pointwise(name="altup/correct", dim=streams * width, kind="scale"),
        Weight(name="altup/output_scale", numel=width),
    )
    laurel: Items = (
        Linear(name="laurel/left", inputs=width, outputs=rank, reads="input_norm"),
        Linear(name="laurel/right", inputs=rank, outputs=width),
        RMS("laurel/norm", width),
        residual("laurel/residual", width, "input_norm"),
    )

    def layer(a: Attention, hidden: int) -> Items:
        return (
            *altup,
            RMS("input_norm", width),
            *laurel,
            *attention(a, "input_norm"),
            RMS("attention/norm", width),
            residual("attention/residual", width, "input"),
            residual("attention/laurel", width, "laurel/residual"),
            RMS("post_norm", width),
            *mlp(width, hidden, act, "post_norm"),
            RMS("mlp/norm", width),
            residual("mlp/residual", width, "attention/laurel"),
            *correct,
            *after,
        )

    keys = list(zip(_attentions(c, layers), sizes, strict=True))
    kinds = {k: layer(*k) for k in dict.fromkeys(keys)}
    into = tuple(
        Linear(name=f"altup/into.{i}", inputs=width, outputs=width, reads="embed/scale") for i in range(streams - 1)
    )
    model = language_model(c, _TRAITS, keys[0][0], [kinds[k] for k in keys], before=(*into, *before))
    stack = model.stacks[0]
    out = tuple(Linear(name=f"altup/out.{i}", inputs=width, outputs=width, reads="input") for i in range(streams - 1))
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
    feed = mlp(width, v.size("intermediate_size"), activation(v.text("hidden_activation", "gelu")), "post_norm")
    layer = (
        RMS("input_norm", width),
        *attention(a, "input_norm"),
        RMS("attention/norm", width),
        residual("attention/residual", width, "input"),
        RMS("post_norm", width),
        *feed,
        RMS("mlp/norm", width),
        residual("mlp/residual", width, "attention/residual"),
    )
    patch, rows = v.size("patch_size"), v.size("position_embedding_size")
    before = (
        Linear(name="patch_embed", inputs=3 * patch * patch, outputs=width),
        Weight(name="embed_positions", numel=2 * rows * width),
        residual("embed/add", width),
    )
    patches = (DYNAMIC_PIXELS // patch) ** 2
    tower = Stack(
        name="vision",
        width=width,
        before=before,
        kinds=(Layer(name="block", items=layer),),
        order=(0,) * v.layers(),
        after=(),
        tokens_per_sample=patches,
    )
    out = (
        Norm(name="projector/norm", dim=width, affine=False),
        Linear(name="projector/fc", inputs=width, outputs=text.stacks[0].width),
    )
    pooled = max(1, patches // v.size("pooling_kernel_size", 3) ** 2)
    model = joined(c, text, tower, out, pooled, dynamic=True)
    return replace(model, notes=(*model.notes, "an audio tower is not counted")) if c.has("audio_config") else model
