"""Mixtures of experts on Llama's frame: Mixtral, Qwen MoE, OLMoE, gpt-oss, GLM-4.5, MiniMax-M2, Llama 4 ..."""

from __future__ import annotations

from functools import partial

from flopwise.facts.architecture import Model
from flopwise.facts.models.attend import Attention, attention
from flopwise.facts.models.blocks import (
    LAYER_NORM,
    RMS,
    Items,
    Mixture,
    activation,
    layer_of,
    mlp,
    moe,
    one_of_each,
    residual,
)
from flopwise.facts.models.families.llama import (
    NO_BIAS,
    NO_BIASES,
    Traits,
    flag,
    language_model,
    plain_feed,
    standard_attention,
    windows,
)
from flopwise.facts.models.fields import Fields
from flopwise.values import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """The keys under which a family keeps the numbers of its experts, and their peculiarities."""

    traits: Traits = NO_BIASES
    experts: str = "num_local_experts"
    hidden: str = "intermediate_size"
    top_k: str = "num_experts_per_tok"
    shared: str = ""  # key of the shared experts' columns
    shared_count: str = ""  # key of the number of shared experts, each as wide as a routed one
    shared_gate: bool = False
    shared_bias: str = ""  # key of the flag that gives shared experts biases
    dense: str = "intermediate_size"  # key of the dense layers' columns
    bias: bool = False  # experts and router have biases
    clamped: bool = False  # the inputs of the experts' activation are limited
    selection_bias: bool = False  # a learned number an expert that only their selection sees
    sinks: bool = False
    gated_attention: bool = False


FINE_GRAINED = Manner(experts="n_routed_experts", hidden="moe_intermediate_size", shared_count="n_shared_experts")
"""Many small experts, some of them for all tokens, as DeepSeek names them."""
_SCALED = Traits(scaled=True, embed_scale=True)
MANNERS: dict[str, Manner] = {
    "mixtral": Manner(),
    "qwen2_moe": Manner(
        traits=Traits(bias="qkv_bias", out_bias=False, mlp_bias=False), experts="num_experts",
        hidden="moe_intermediate_size", shared="shared_expert_intermediate_size", shared_gate=True,
    ),
    "qwen3_moe": Manner(
        traits=Traits(mlp_bias=False, qk_norm="head"), experts="num_experts", hidden="moe_intermediate_size",
    ),
    "phimoe": Manner(traits=Traits(norm=LAYER_NORM, head_bias="lm_head_bias")),
    "olmoe": Manner(traits=Traits(qk_norm="full"), experts="num_experts"),
    "granitemoe": Manner(traits=_SCALED),
    "granitemoeshared": Manner(traits=_SCALED, shared="shared_intermediate_size"),
    "gpt_oss": Manner(bias=True, clamped=True, sinks=True, traits=Traits()),
    "minimax_m2": Manner(traits=Traits(bias=False, out_bias=False, qk_norm="full")),
    "minimax_m3_vl_text": Manner(
        traits=replace(NO_BIASES, qk_norm="head"), shared="shared_intermediate_size", dense="dense_intermediate_size",
    ),
    "glm4_moe": replace(
        FINE_GRAINED, traits=Traits(out_bias=False, mlp_bias=False, qk_norm="head", qk_norm_key="use_qk_norm"),
    ),
    "dots1": replace(FINE_GRAINED, traits=Traits(qk_norm="head")),
    "mimo_v2_flash": replace(FINE_GRAINED, shared_count="", traits=Traits(out_bias=False, mlp_bias=False)),
}  # fmt: skip
_NAMED = Manner(experts="num_experts", hidden="moe_intermediate_size", shared_count="num_shared_experts")
MANNERS |= {
    "afmoe": replace(
        _NAMED, traits=Traits(mlp_bias=False, qk_norm="head", arrangement="sandwich"), selection_bias=True,
        gated_attention=True,
    ),
    "cohere2_moe": replace(
        _NAMED, traits=Traits(norm=NO_BIAS, arrangement="parallel", mlp_bias=False, rope_on_windows_only=True),
        hidden="intermediate_size",
    ),
    "ernie4_5_moe": Manner(
        traits=Traits(bias="use_bias", out_bias="use_bias", mlp_bias="use_bias", head_bias="use_bias"),
        shared_bias="use_bias", experts="moe_num_experts",
        hidden="moe_intermediate_size", top_k="moe_k", shared_count="moe_num_shared_experts", selection_bias=True,
    ),
    "exaone_moe": replace(_NAMED, traits=replace(NO_BIASES, qk_norm="head")),
    "flex_olmo": replace(MANNERS["olmoe"], traits=Traits(qk_norm="full", arrangement="post")),
    "granitemoe_swa": replace(MANNERS["granitemoeshared"], sinks=True),
    "hy_v3": replace(_NAMED, traits=Traits(qk_norm="head"), shared_bias="mlp_bias"),
    "hunyuan_v1_moe": Manner(
        traits=Traits(mlp_bias=False, qk_norm="head"), experts="num_experts", top_k="moe_topk",
        shared="intermediate_size",
    ),
    "mellum": replace(MANNERS["qwen3_moe"], experts="num_local_experts"),
    "solar_open": replace(FINE_GRAINED, traits=Traits(out_bias=False, mlp_bias=False)),
}  # fmt: skip
MANNERS["laguna"] = replace(
    MANNERS["afmoe"], traits=Traits(mlp_bias=False, qk_norm="head"), shared="shared_expert_intermediate_size",
    shared_count="",
)  # fmt: skip
MANNERS["grok"] = Manner(
    traits=replace(NO_BIASES, arrangement="sandwich", embed_scale=True), hidden="moe_intermediate_size",
    shared="intermediate_size",
)  # fmt: skip
"""Grok 2: a dense block beside the experts. Source: SGLang, models/grok.py (`residual_moe`)."""
MANNERS["sarvam_moe"] = MANNERS["glm4_moe"]
MANNERS["qwen3_vl_moe_text"] = MANNERS["qwen3_moe"]


def mixture(c: Fields, m: Manner, width: int) -> Mixture:
    """The experts of one layer, from the keys that the family uses."""
    experts, hidden, top_k = c.size(m.experts), c.size(m.hidden), c.size(m.top_k)
    if top_k > experts:
        raise c.wrong(m.top_k, top_k, f"it must not exceed {m.experts} = {experts}")
    groups = c.count("n_group") or 1
    groups = groups if experts % groups == 0 else 1
    shared = c.count(m.shared) if m.shared else hidden * c.count(m.shared_count) if m.shared_count else 0
    return Mixture(
        width=width, experts=experts, top_k=top_k, hidden=hidden, act=activation(c.text("hidden_act", "silu")),
        bias=m.bias, clamped=m.clamped, router_bias=m.bias, selection_bias=m.selection_bias,
        shared_bias=flag(c, m.shared_bias or False), shared_hidden=shared, shared_gate=m.shared_gate, groups=groups,
        top_groups=min(c.count("topk_group") or groups, groups),
    )  # fmt: skip


_FIRST = {"afmoe": "num_dense_layers"}
"""The key of the number of dense layers before those with experts, where it is not DeepSeek's."""
_FIRST_IS_DENSE = {"hy_v3", "laguna", "mimo_v2_flash"}
"""Families whose configurations say nothing of it: the first layer alone is dense."""


def sparse_layers(c: Fields, layers: int) -> list[bool]:
    """A flag for each layer, true where it has experts: not if it is among the first, listed as dense, or skipped."""
    kinds = c.sequence("mlp_layer_types")
    if kinds is not None:
        return [k != "dense" for k in c.per_layer("mlp_layer_types", layers, "sparse")]
    pattern = c.value("moe_layer_freq")
    if isinstance(pattern, list) and len(pattern) >= layers:
        return [bool(p) for p in pattern[:layers]]
    if c.model_type == "ernie4_5_moe":
        first, last = c.count("moe_layer_start_index", 1), c.value("moe_layer_end_index")
        last = last if isinstance(last, int) and last >= 0 else layers - 1
        step = max(1, c.count("moe_layer_interval", 1))
        return [first <= i <= last and (i + 1) % step == 0 for i in range(layers)]
    first = 1 if c.model_type in _FIRST_IS_DENSE else c.count(_FIRST.get(c.model_type, "first_k_dense_replace"))
    if c.model_type == "glm4_moe_lite":
        first = c.count("first_k_dense_replace", 1)
    dense = set(c.sequence("mlp_only_layers") or ())
    step = max(1, c.count("decoder_sparse_step", 1))
    return [i >= first and i not in dense and (i + 1) % step == 0 for i in range(layers)]


def mixture_model(c: Fields) -> Model:
    """Pre-norm decoder whose feed-forward blocks are mixtures of experts, some layers dense."""
    m = MANNERS[c.model_type]
    t = m.traits
    base = replace(standard_attention(c, t), sinks=m.sinks, gate_proj=m.gated_attention)
    width, layers = base.width, c.layers()
    experts, sparse = mixture(c, m, width), sparse_layers(c, layers)
    dense = plain_feed(c, t, c.size(m.dense)) if not all(sparse) else None

    def layer(key: tuple[Attention, bool]) -> Items:
        feed = partial(moe, experts) if key[1] or not dense else dense
        return layer_of(t.arrangement, width, t.norm, partial(attention, key[0]), feed, scale=t.scaled)

    keys = zip(_attentions(c, base, layers), sparse, strict=True)
    return language_model(c, one_of_each(keys, layer), expert_names(sparse), traits=t)


def expert_names(sparse: list[bool]) -> list[str]:
    """Names of the kinds of layers, with experts and without."""
    return ["moe" if has_experts else "dense" for has_experts in sparse]


def _attentions(c: Fields, base: Attention, layers: int) -> list[Attention]:
    """The attention of each layer: full or windowed; MiMo's windowed layers have heads of their own.

    Hunyuan-Large shares keys and values between neighbours. Source: its report, arXiv 2411.02265, section 2.1.
    """
    if c.model_type == "laguna":
        return _own_heads(c, base, layers)
    if c.model_type == "minimax_m3_vl_text":
        return _block_sparse(c, base, layers)
    if c.flag("use_cla"):
        every = c.size("cla_share_factor", 2)
        return [replace(base, kv_shared=i % every > 0) for i in range(layers)]
    if c.model_type != "mimo_v2_flash":
        return [replace(base, window=w) for w in windows(c, layers)]
    full = replace(base, v_dim=c.size("v_head_dim", base.head_dim))
    sinks = c.flag("add_swa_attention_sink_bias", default=True)
    swa = replace(full, kv_heads=2 * base.kv_heads, window=c.maybe("sliding_window"), sinks=sinks)
    if c.has("layer_types"):
        kinds = [k == "sliding_attention" for k in c.per_layer("layer_types", layers, "")]
    else:
        pattern = c.sequence("hybrid_layer_pattern") or [i not in (0, 5) and (i + 1) % 6 != 0 for i in range(layers)]
        kinds = [bool(p) for p in pattern[:layers]]
    return [swa if k else full for k in kinds]


def _block_sparse(c: Fields, base: Attention, layers: int) -> list[Attention]:
    """MiniMax M3's attention: full, or to the best blocks of keys, which an indexer chooses; by layer.

    Source: transformers 5.24, MiniMaxM3VLTextConfig (a checkpoint's `sparse_attention_config` names the same numbers).
    Assumes: the latest block, which a query always sees, is one of the best, as in the kernels that the class names.
    """
    stated = c.part("sparse_attention_config")

    def number(key: str, published: str) -> int:
        return stated.maybe(published) or c.size(key)

    sparse = replace(
        base, index_heads=number("index_n_heads", "sparse_num_index_heads"),
        index_dim=number("index_head_dim", "sparse_index_dim"),
        select=number("index_topk_blocks", "sparse_topk_blocks") * number("index_block_size", "sparse_block_size"),
    )  # fmt: skip
    kinds = c.per_layer("layer_types", layers, "full_attention")
    chosen = stated.sequence("sparse_attention_freq") or [k == "minimax_m3_sparse" for k in kinds]
    return [sparse if i < len(chosen) and chosen[i] else base for i in range(layers)]


def _own_heads(c: Fields, base: Attention, layers: int) -> list[Attention]:
    """Laguna's attention: heads and window of each layer, a gate for each head or for each of its channels."""
    gates = c.value("gating", default=True)
    base = replace(base, gate_per_head=gates in (True, "per-head"))
    heads = c.sequence("num_attention_heads_per_layer") or [base.heads] * layers
    if len(heads) < layers or not all(isinstance(n, int) and n > 0 and n % base.kv_heads == 0 for n in heads):
        allowed = f"{layers} multiples of num_key_value_heads = {base.kv_heads} are needed"
        raise c.wrong("num_attention_heads_per_layer", heads, allowed)
    sees = windows(c, layers) if c.has("layer_types") else [None] * layers
    return [replace(base, heads=n, window=window) for n, window in zip(heads, sees, strict=False)]


def llama4(c: Fields) -> Model:
    """Llama 4's text model: one routed and one shared expert, layers with and without rope and chunked attention."""
    t = Traits(mlp_bias=False)
    base, layers, hidden = standard_attention(c, t), c.layers(), c.size("intermediate_size")
    act = activation(c.text("hidden_act", "silu"))
    experts = Mixture(
        width=base.width, experts=c.size("num_local_experts"), top_k=c.size("num_experts_per_tok"), hidden=hidden,
        act=act, shared_hidden=hidden,
    )  # fmt: skip
    step = max(1, c.count("interleave_moe_layer_step", 1))
    listed = c.sequence("moe_layers")
    chosen = set(range(step - 1, layers, step)) if listed is None else {i for i in listed if isinstance(i, int)}
    given = c.sequence("no_rope_layers") or ()
    every = c.count("no_rope_layer_interval") or 4
    dense = c.size("intermediate_size_mlp", hidden)

    def layer(key: tuple[bool, bool]) -> Items:
        a = replace(base, chunk=c.maybe("attention_chunk_size")) if key[0] else replace(base, rope_dim=0)
        feed = partial(moe, experts) if key[1] else partial(mlp, base.width, dense, act)
        return layer_of("pre", base.width, t.norm, partial(attention, a), feed)

    ropes = [bool(given[i]) if i < len(given) else (i + 1) % every != 0 for i in range(layers)]
    sparse = [i in chosen for i in range(layers)]
    rows = one_of_each(zip(ropes, sparse, strict=True), layer)
    return language_model(c, rows, expert_names(sparse), traits=t)


def arctic(c: Fields) -> Model:
    """Snowflake Arctic: a dense block as wide as the model after attention, and experts that read the layer's input.

    Source: transformers 4.45, models/arctic of vLLM (`use_residual`, ArcticDecoderLayer): three norms a layer.
    """
    base = standard_attention(c, NO_BIASES)
    width, experts = base.width, mixture(c, Manner(), base.width)

    def layer(a: Attention) -> Items:
        return (
            RMS("input_norm", width), *attention(a, "input_norm"), residual("attention/residual", width, "input"),
            RMS("residual_norm", width), *mlp(width, width, experts.act, "residual_norm"),
            residual("mlp/residual", width, "attention/residual"),
            RMS("post_norm", width, reads="input"), *moe(experts, "post_norm"),
            residual("experts/residual", width, "mlp/residual"),
        )  # fmt: skip

    layers = c.layers()
    return language_model(c, one_of_each([base] * layers, layer), expert_names([True] * layers), tied=False)
