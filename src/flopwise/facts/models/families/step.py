"""Step 3, 3.5 and 3.7: windowed layers with more heads, a gate a head, many small experts with a shared one."""

from __future__ import annotations

from functools import partial

from flopwise.facts.architecture import Convolution, Item, Linear, Model, Pointwise
from flopwise.facts.models.attend import Attention, attention
from flopwise.facts.models.blocks import RMS, Items, layer_of, moe, one_of_each
from flopwise.facts.models.families.llama import NO_BIASES, Traits, language_model, plain_feed, standard_attention
from flopwise.facts.models.families.moe import Manner, expert_names, mixture
from flopwise.facts.models.families.multimodal import text_part, vision_model
from flopwise.facts.models.families.vision import Tower, patches_of
from flopwise.facts.models.fields import Fields
from flopwise.values import replace

_MANNER = Manner(experts="n_routed_experts", hidden="moe_intermediate_size", shared="share_expert_dim")


def _sparse(c: Fields, layers: int) -> list[bool]:
    """The layers with experts: by `mlp_layer_types` or the older `moe_layers_enum`, else all but three."""
    if c.has("mlp_layer_types"):
        return [k == "sparse" for k in c.per_layer("mlp_layer_types", layers, "sparse")]
    listed = c.value("moe_layers_enum")
    if listed is None:
        return [i >= 3 for i in range(layers)]
    texts = listed.split(",") if isinstance(listed, str) else listed if isinstance(listed, list) else []
    chosen = {int(str(t).strip()) for t in texts if str(t).strip().isdigit()}
    return [i in chosen for i in range(layers)]


def step_text(c: Fields) -> Model:
    """The language model of Step 3.5 and 3.7."""
    t = Traits(mlp_bias=False, qk_norm="head")
    base = standard_attention(c, t)
    width, layers = base.width, c.layers()
    window = c.maybe("sliding_window")
    other = c.value("attention_other_setting")
    more = c.maybe("num_sliding_attention_heads")
    if more is None and isinstance(other, dict):
        more = c.within(other, "", c.where, nested=True).maybe("num_attention_heads")
    local = replace(base, heads=more or base.heads, window=window)
    experts = mixture(c, _MANNER, width)
    dense = plain_feed(c, t, c.size("intermediate_size"))
    kinds = c.per_layer("layer_types", layers, "full_attention")

    def gated_attention(a: Attention, source: str) -> Items:
        *first, out = attention(a, source)
        gate = Linear("attention/g_proj", width, a.heads, shard="column", reads=source)
        times = Pointwise("attention/gate", a.heads * a.head_dim, "sigmoid", shard="column")
        return *first, gate, times, out

    def layer(key: tuple[str, bool]) -> Items:
        a = local if key[0] == "sliding_attention" else base
        return layer_of("pre", width, RMS, partial(gated_attention, a), partial(moe, experts) if key[1] else dense)

    sparse = _sparse(c, layers)
    return language_model(c, one_of_each(zip(kinds, sparse, strict=True), layer), expert_names(sparse), traits=t)


def step3_text(c: Fields) -> Model:
    """The language model of Step 3: one key-value head, and queries made through a matrix of low rank.

    Source: Step-3 report, arXiv 2507.19427 (multi-matrix factorization attention); vLLM, models/step3_text.py.
    """
    width, heads, head_dim, rank = (
        c.size(key) for key in ("hidden_size", "num_attention_heads", "head_dim", "share_q_dim")
    )
    base = Attention(width=width, heads=heads, kv_heads=1, head_dim=head_dim, rope_dim=head_dim)
    experts = mixture(c, replace(_MANNER, experts="moe_num_experts", top_k="moe_top_k"), width)
    dense = plain_feed(c, NO_BIASES, c.size("intermediate_size"))

    def attend(source: str) -> Items:
        query, *rest = attention(base, source)
        assert isinstance(query, Linear)
        narrow = Linear("attention/q_a_proj", width, rank, reads=source), RMS("attention/q_a_norm", rank)
        return *narrow, replace(query, inputs=rank, reads=""), *rest

    def layer(sparse: bool) -> Items:
        return layer_of("pre", width, RMS, attend, partial(moe, experts) if sparse else dense)

    sparse = _sparse(c, c.layers())
    return language_model(c, one_of_each(sparse, layer), expert_names(sparse), tied=False)


def step(c: Fields) -> Model:
    """Step 3.7 with its perception encoder."""
    text = text_part(c, "step3p5")
    v = c.part("vision_config", "step3p5_vision")
    width = v.maybe("width") or v.size("hidden_size")
    heads = v.maybe("heads") or v.size("num_attention_heads")
    patches, inputs = patches_of(v)
    tower = Tower(
        width=width, heads=heads, hidden=int(width * v.number("mlp_ratio", 4.0)),
        layers=v.maybe("layers") or v.layers(), patch_inputs=inputs, patches=patches,
        patch_bias=False, positions=patches, pre_norm=True, post_norm=False,
        layer_scale=True, rope=True, act=v.text("hidden_act", "gelu"),
    )  # fmt: skip
    down: tuple[Item, ...] = (
        Convolution("downsample.1", width, 9, outputs=2 * width, stride=4, rows_per_token=4),
        Convolution("downsample.2", 2 * width, 9, outputs=4 * width, stride=4),
        Linear("projector/fc", 4 * width, text.stacks[0].width, bias=c.flag("projector_bias")),
    )
    return vision_model(text, tower.stack("vision"), down, max(1, patches // 16))
