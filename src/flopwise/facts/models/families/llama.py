"""Llama and the many that are Llama with a bias, a norm or a window more: Mistral, Qwen 2 and 3, InternLM, Granite, SmolLM3 ..."""

from __future__ import annotations

from flopwise.facts.architecture import Model
from flopwise.facts.models.blocks import RMS, Attention, Items, activation, attention, decoder, mlp, pre_norm
from flopwise.facts.models.fields import Fields


def rope_dim(c: Fields, head_dim: int) -> int:
    """How many dimensions of a head are rotated."""
    fraction = c.number("partial_rotary_factor", 1.0)
    parameters = c.value("rope_parameters")
    if isinstance(parameters, dict) and isinstance(parameters.get("partial_rotary_factor"), int | float):
        fraction = parameters["partial_rotary_factor"]
    return max(0, min(head_dim, int(head_dim * fraction)))


def windows(c: Fields, layers: int) -> list[int | None]:
    """The sliding window of each layer: none, one for all, or as `layer_types` says."""
    window = c.maybe("sliding_window")
    if c.value("use_sliding_window") is False:
        window = None
    types = c.sequence("layer_types")
    if types is not None:
        return [
            window if t == "sliding_attention" else None for t in c.per_layer("layer_types", layers, "full_attention")
        ]
    first = c.count("max_window_layers", 0) if c.model_type.startswith("qwen") else 0
    return [window if i >= first else None for i in range(layers)]


def standard_attention(c: Fields, **changes: object) -> Attention:
    """The grouped-query attention that a Llama-like configuration describes."""
    width = c.size("hidden_size")
    heads, kv_heads, head_dim = c.heads(width)
    t = c.model_type
    bias = {"qwen2": True, "internlm3": c.flag("qkv_bias"), "internlm2": c.flag("bias")}.get(
        t, c.flag("attention_bias")
    )
    out_bias = {
        "qwen2": False,
        "internlm3": c.flag("bias"),
        "internlm2": c.flag("bias"),
        "seed_oss": c.flag("attention_out_bias"),
        "helium": False,
    }.get(t, c.flag("attention_bias"))
    base = Attention(
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        bias=bias,
        out_bias=out_bias,
        rope_dim=rope_dim(c, head_dim),
        qk_norm="head" if t == "qwen3" else "",
    )
    return base if not changes else _replaced(base, changes)


def _replaced(a: Attention, changes: dict[str, object]) -> Attention:
    from dataclasses import replace  # noqa: PLC0415

    return replace(a, **changes)  # type: ignore[arg-type]


def llama(c: Fields) -> Model:
    """Pre-norm decoder: RMSNorm, rotary grouped-query attention, gated feed-forward."""
    base = standard_attention(c)
    layers, hidden = c.layers(), c.size("intermediate_size")
    bias = c.flag("bias") if c.model_type == "internlm3" else c.flag("mlp_bias")
    act = activation(c.text("hidden_act", "silu"))
    feed = mlp(base.width, hidden, act, "post_norm", bias=bias, gated=c.model_type != "arcee")
    built: dict[int | None, Items] = {}
    rows = []
    for window in windows(c, layers):
        if window not in built:
            built[window] = pre_norm(
                base.width,
                RMS,
                attention(_replaced(base, {"window": window}), "input_norm"),
                feed,
                scale=c.model_type == "granite",
            )
        rows.append(built[window])
    vocab = c.size("vocab_size")
    stack = decoder(base.width, vocab, rows, RMS("norm", base.width), tied=c.flag("tie_word_embeddings"))
    return Model(
        name="",
        model_type=c.model_type,
        kind="decoder",
        stacks=(stack,),
        vocab=vocab,
        max_position=c.maybe("max_position_embeddings"),
    )
