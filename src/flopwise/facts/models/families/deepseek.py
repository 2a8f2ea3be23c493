"""DeepSeek V2, V3, V3.2 and what is built like them: Kimi K2 and Linear, GLM-4.7-Flash, GLM-5."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from flopwise.facts.architecture import Linear, Model
from flopwise.facts.models.attend import Latent, latent_attention
from flopwise.facts.models.blocks import RMS, Items, activation, arranged, decoder, mlp, moe
from flopwise.facts.models.families.moe import Manner, mixture, sparse_layers
from flopwise.facts.models.fields import Fields
from flopwise.facts.models.recurrent import kimi_delta

_MANNER = Manner(experts="n_routed_experts", hidden="moe_intermediate_size", shared_count="n_shared_experts")


def latent(c: Fields) -> Latent:
    """The latent attention that a configuration describes, with the indexer of V3.2 where it has one."""
    indexed = c.model_type in ("deepseek_v32", "glm_moe_dsa")
    return Latent(
        width=c.size("hidden_size"),
        heads=c.size("num_attention_heads"),
        q_rank=c.maybe("q_lora_rank"),
        kv_rank=c.size("kv_lora_rank"),
        nope_dim=c.size("qk_nope_head_dim"),
        rope_dim=c.size("qk_rope_head_dim"),
        v_dim=c.size("v_head_dim"),
        bias=c.flag("attention_bias"),
        index_heads=c.size("index_n_heads") if indexed else 0,
        index_dim=c.size("index_head_dim") if indexed else 0,
        index_topk=c.size("index_topk") if indexed else 0,
    )


def deepseek(c: Fields) -> Model:
    """Pre-norm decoder of latent attention; the first layers dense, the others with routed and shared experts."""
    a = latent(c)
    layers, hidden = c.layers(), c.size("intermediate_size")
    act = activation(c.text("hidden_act", "silu"))
    sparse = sparse_layers(c, layers)
    experts = mixture(c, _MANNER, a.width) if any(sparse) else None

    def feed(has_experts: bool) -> Callable[[str], Items]:
        if has_experts and experts is not None:
            return partial(moe, experts)
        return lambda source: mlp(a.width, hidden, act, source)

    keys = list(zip(sparse, _indexed(c, a, layers), strict=True))
    kinds = {
        (s, b): arranged("pre", a.width, RMS, partial(latent_attention, b), feed(s)) for s, b in dict.fromkeys(keys)
    }
    rows, names = [kinds[k] for k in keys], ["moe" if s else "dense" for s in sparse]
    vocab = c.size("vocab_size")
    predicted, notes = _predictors(c, a.width, rows[-1])
    stack = decoder(
        a.width,
        vocab,
        [*rows, *predicted],
        RMS("norm", a.width),
        tied=c.flag("tie_word_embeddings"),
        names=[*names, *["mtp"] * len(predicted)],
    )
    return Model(
        name="",
        model_type=c.model_type,
        kind="decoder",
        stacks=(stack,),
        vocab=vocab,
        max_position=c.maybe("max_position_embeddings"),
        notes=notes,
    )


def _indexed(c: Fields, a: Latent, layers: int) -> list[Latent]:
    """The attention of each layer: layers that share the selection of an earlier one have no indexer of their own."""
    if not a.index_heads:
        return [a] * layers
    pattern = c.value("index_topk_pattern")
    if c.has("indexer_types"):
        own = [k == "full" for k in c.per_layer("indexer_types", layers, "full")]
    elif isinstance(pattern, str) and len(pattern) >= layers:
        own = [letter == "F" for letter in pattern[:layers]]
    else:
        every, offset = c.size("index_topk_freq", 1), c.count("index_skip_topk_offset", 2)
        own = [max(i - offset + 1, 0) % every == 0 for i in range(layers)]
    return [a if o else replace(a, index_heads=0) for o in own]


def _predictors(c: Fields, width: int, layer: Items) -> tuple[list[Items], tuple[str, ...]]:
    """Layers that predict further tokens: left out, as transformers does, unless `flopwise_mtp` is set."""
    count = c.count("num_nextn_predict_layers")
    if not count:
        return [], ()
    if not c.flag("flopwise_mtp"):
        return [], (
            f"{count} multi-token-prediction layer(s) left out, as transformers does; 'flopwise_mtp': true counts them",
        )
    merged = (
        RMS("mtp/embed_norm", width),
        RMS("mtp/hidden_norm", width),
        Linear(name="mtp/project", inputs=2 * width, outputs=width),
        *layer,
    )
    return [merged] * count, (f"{count} multi-token-prediction layer(s) counted",)


def kimi_linear(c: Fields) -> Model:
    """Kimi Linear: three Kimi-delta layers, then one of latent attention; experts after the first layer."""
    a, layers = latent(c), c.layers()
    given = c.value("linear_attn_config")
    linear = c.within(given if isinstance(given, dict) else {}, "", f"{c.where}: linear_attn_config", nested=True)
    heads = linear.size("num_heads", c.size("linear_num_heads", 32))
    dim = linear.size("head_dim", c.size("linear_head_dim", 128))
    kernel = linear.size("short_conv_kernel_size", c.size("linear_conv_kernel_dim", 4))
    full = linear.sequence("full_attn_layers")
    if c.has("layer_types"):
        kinds = c.per_layer("layer_types", layers, "")
    elif full is not None:  # counted from one in the checkpoints
        kinds = ["full_attention" if i + 1 in full else "linear_attention" for i in range(layers)]
    else:
        kinds = ["full_attention" if i and i % 4 == 0 else "linear_attention" for i in range(layers)]
    first = c.count("first_k_dense_replace", 1)
    sparse = [i >= first for i in range(layers)] if not c.has("mlp_layer_types") else sparse_layers(c, layers)
    manner = Manner(
        experts="num_local_experts",
        hidden="moe_intermediate_size",
        shared_count="n_shared_experts",
        top_k="num_experts_per_tok",
    )
    experts, act, hidden = (
        mixture(c, manner, a.width),
        activation(c.text("hidden_act", "silu")),
        c.size("intermediate_size"),
    )

    def layer(kind: str, has_experts: bool) -> Items:
        attend = (
            (lambda s: latent_attention(a, s))
            if kind == "full_attention"
            else (lambda s: kimi_delta(a.width, heads, dim, kernel, s))
        )
        feed = (lambda s: moe(experts, s)) if has_experts else (lambda s: mlp(a.width, hidden, act, s))
        return arranged("pre", a.width, RMS, attend, feed)

    keys = list(zip(kinds, sparse, strict=True))
    built = {k: layer(*k) for k in dict.fromkeys(keys)}
    vocab = c.size("vocab_size")
    stack = decoder(
        a.width,
        vocab,
        [built[k] for k in keys],
        RMS("norm", a.width),
        tied=c.flag("tie_word_embeddings"),
        names=[k for k, _ in keys],
    )
    positions = c.maybe("max_position_embeddings")
    return Model(name="", model_type=c.model_type, kind="decoder", stacks=(stack,), vocab=vocab, max_position=positions)
