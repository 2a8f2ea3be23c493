"""DeepSeek V2, V3, V3.2 and what is built like them (Kimi K2, GLM-4.7-Flash, GLM-5): latent attention, many small experts."""

from __future__ import annotations

from collections.abc import Callable

from flopwise.facts.architecture import Model
from flopwise.facts.models.attend import Latent, latent_attention
from flopwise.facts.models.blocks import RMS, Items, activation, arranged, decoder, mlp, moe, residual
from flopwise.facts.models.families.moe import Manner, mixture, sparse_layers
from flopwise.facts.models.fields import Fields

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
            return lambda source: moe(experts, source)
        return lambda source: mlp(a.width, hidden, act, source)

    kinds = {
        s: arranged("pre", a.width, RMS, lambda source: latent_attention(a, source), feed(s)) for s in set(sparse)
    }
    rows, names = [kinds[s] for s in sparse], ["moe" if s else "dense" for s in sparse]
    vocab = c.size("vocab_size")
    predicted, notes = _predictors(c, a.width, kinds.get(True, next(iter(kinds.values()))))
    stack = decoder(
        a.width, vocab, [*rows, *predicted], RMS("norm", a.width), tied=c.flag("tie_word_embeddings"), names=[*names, *["mtp"] * len(predicted)]
    )
    return Model(
        name="", model_type=c.model_type, kind="decoder", stacks=(stack,), vocab=vocab, max_position=c.maybe("max_position_embeddings"), notes=notes
    )


def _predictors(c: Fields, width: int, layer: Items) -> tuple[list[Items], tuple[str, ...]]:
    """Layers that predict further tokens. Left out, as transformers does, unless the configuration sets `flopwise_mtp`."""
    count = c.count("num_nextn_predict_layers")
    _ = residual
    if not count:
        return [], ()
    if not c.flag("flopwise_mtp"):
        return [], (f"{count} multi-token-prediction layer(s) left out, as transformers does; 'flopwise_mtp': true counts them",)
    from flopwise.facts.architecture import Linear  # noqa: PLC0415

    merged = (RMS("mtp/embed_norm", width), RMS("mtp/hidden_norm", width), Linear(name="mtp/project", inputs=2 * width, outputs=width), *layer)
    return [merged] * count, (f"{count} multi-token-prediction layer(s) counted",)
