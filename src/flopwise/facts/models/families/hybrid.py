"""State-space models and hybrids: Mamba, Jamba, Bamba, Granite 4, Falcon-H1, Nemotron-H, Qwen3-Next, LFM2 ..."""

from __future__ import annotations

import math
from functools import partial

from flopwise.facts.architecture import Convolution, Linear, Model, Pointwise, Recurrence, Weight
from flopwise.facts.models.attend import attention
from flopwise.facts.models.blocks import (
    RMS,
    Block,
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
    NO_BIASES,
    Traits,
    add_predictors,
    language_model,
    plain_feed,
    standard_attention,
)
from flopwise.facts.models.families.moe import MANNERS, Manner, mixture, sparse_layers
from flopwise.facts.models.fields import Fields
from flopwise.values import dataclass, replace

# blocks that carry a state along the sequence; names and `reads` as in `blocks`


def mamba1(
    width: int, source: str, *, inner: int, state: int, rank: int, kernel: int, bias: bool = False,
    conv_bias: bool = True, norms: bool = False,
) -> Items:  # fmt: skip
    """Mamba's selective scan (arXiv 2312.00752): `inner` channels of `state` elements, step sizes of rank `rank`.

    `norms` adds Jamba's norms of step size, B and C.
    """
    mixed = "mamba/x_proj"
    inside = [RMS(f"mamba/{n}_norm", dim, reads=mixed) for n, dim in (("dt", rank), ("b", state), ("c", state))]
    return (
        Linear("mamba/in_proj", width, 2 * inner, bias=bias, shard="column", reads=source),
        Convolution("mamba/conv", inner, kernel, bias=conv_bias, shard="column"),
        Pointwise("mamba/act", inner, "silu", shard="column"),
        Linear(mixed, inner, rank + 2 * state, shard="row"),
        *(inside if norms else ()),
        Linear("mamba/dt_proj", rank, inner, bias=True, shard="column", reads="mamba/dt_norm" if norms else mixed),
        Weight("mamba/A_log", inner * state, shard="column"),
        Weight("mamba/D", inner, shard="column"),
        Recurrence("mamba/scan", "mamba1", heads=inner, key_dim=state, value_dim=1, state=inner * (state + kernel - 1)),
        Pointwise("mamba/gate", inner, "silu", gated=True, shard="column"),
        Linear("mamba/out_proj", inner, width, bias=bias, shard="row"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Scan:
    """Sizes of a Mamba 2 scan: `heads` x `head_dim` channels, B and C of `state` elements in `groups` groups."""

    heads: int
    head_dim: int
    state: int
    groups: int
    kernel: int  # of the convolution before
    chunk: int = 256  # positions that are computed as products


def mamba2(
    width: int, source: str, scan: Mamba2Scan, *, bias: bool = False, conv_bias: bool = True, norm: bool = True,
    out_bias: bool | None = None,
) -> Items:  # fmt: skip
    """Mamba 2 (arXiv 2405.21060)."""
    heads, head_dim, state, kernel = scan.heads, scan.head_dim, scan.state, scan.kernel
    inner, mixed = heads * head_dim, heads * head_dim + 2 * scan.groups * state
    kept = heads * head_dim * state + mixed * (kernel - 1)
    return (
        Linear("mamba/in_proj", width, inner + mixed + heads, bias=bias, shard="column", reads=source),
        Convolution("mamba/conv", mixed, kernel, bias=conv_bias, shard="column"),
        Pointwise("mamba/act", mixed, "silu", shard="column"),
        Weight("mamba/A_log, D, dt_bias", 3 * heads, shard="column"),
        Recurrence(
            "mamba/scan", "mamba2", heads=heads, key_dim=state, value_dim=head_dim, state=kept, chunk=scan.chunk
        ),
        Pointwise("mamba/gate", inner, "silu", gated=True, shard="column"),
        *((RMS("mamba/norm", inner, shard="column"),) if norm else ()),
        Linear("mamba/out_proj", inner, width, bias=bias if out_bias is None else out_bias, shard="row"),
    )


def delta_net(
    width: int, source: str, *, key_heads: int, value_heads: int, key_dim: int, value_dim: int, kernel: int,
    joined: bool,
) -> Items:  # fmt: skip
    """Gated DeltaNet (arXiv 2412.06464); `joined`: two input matrices (Qwen3-Next) where Qwen3.5 has four."""
    keys, values = key_heads * key_dim, value_heads * value_dim
    mixed = 2 * keys + values
    state = value_heads * key_dim * value_dim + mixed * (kernel - 1)

    def into(name: str, outputs: int) -> Linear:
        return Linear(f"delta/{name}", width, outputs, shard="column", reads=source)

    split = (into("qkv_proj", mixed), into("z_proj", values), into("b_proj", value_heads), into("a_proj", value_heads))
    return (
        *((into("qkvz_proj", mixed + values), into("ba_proj", 2 * value_heads)) if joined else split),
        Convolution("delta/conv", mixed, kernel, bias=False, shard="column"),
        Pointwise("delta/act", mixed, "silu", shard="column"),
        Weight("delta/A_log, dt_bias", 2 * value_heads, shard="column"),
        Recurrence("delta/rule", "delta", heads=value_heads, key_dim=key_dim, value_dim=value_dim, state=state),
        RMS("delta/norm", value_dim, groups=value_heads, shard="column"),
        Pointwise("delta/gate", values, "silu", gated=True, shard="column"),
        Linear("delta/out_proj", values, width, shard="row"),
    )


def lightning(width: int, heads: int, head_dim: int, source: str, *, chunk: int = 256) -> Items:
    """Lightning attention (arXiv 2401.04658) as in MiniMax-01: a decay, a norm and an output gate."""
    inner = heads * head_dim
    attend = Recurrence(
        "lightning/attend", "lightning", heads=heads, key_dim=head_dim, value_dim=head_dim, state=inner * head_dim,
        chunk=chunk,
    )  # fmt: skip
    return (
        Linear("lightning/qkv_proj", width, 3 * inner, shard="column", reads=source),
        Pointwise("lightning/act", 3 * inner, "silu", shard="column"),
        attend,
        RMS("lightning/norm", inner, shard="column"),
        Linear("lightning/gate_proj", width, inner, shard="column", reads=source),
        Pointwise("lightning/gate", inner, "sigmoid", gated=True, shard="column"),
        Linear("lightning/out_proj", inner, width, shard="row"),
    )


def short_convolution(width: int, kernel: int, source: str, *, bias: bool = False) -> Items:
    """LFM2's double-gated short convolution."""
    return (
        Linear("conv/in_proj", width, 3 * width, bias=bias, shard="column", reads=source),
        Pointwise("conv/gate", width, "gate", shard="column"),
        Convolution("conv/conv", width, kernel, bias=bias, shard="column"),
        Recurrence("conv/state", "conv", heads=1, key_dim=0, value_dim=0, state=width * (kernel - 1)),
        Pointwise("conv/gate_out", width, "gate", shard="column"),
        Linear("conv/out_proj", width, width, bias=bias, shard="row"),
    )


# families


def alone(width: int, block: Items) -> Items:
    """A layer of one block, which reads `norm`: norm, block, add."""
    return RMS("norm", width), *block, residual("residual", width, "input")


def step_rank(c: Fields, key: str, width: int) -> int:
    """The rank of Mamba's step sizes: as stated, else a sixteenth of the width."""
    return math.ceil(width / 16) if c.value(key, "auto") in ("auto", None) else c.size(key)


def mamba(c: Fields) -> Model:
    """Mamba and Falcon-Mamba: norm, selective scan, add; no feed-forward block."""
    width = c.size("hidden_size")
    scan = mamba1(
        width, "norm", inner=c.maybe("intermediate_size") or c.size("expand", 2) * width, state=c.size("state_size"),
        rank=step_rank(c, "time_step_rank", width), kernel=c.size("conv_kernel", 4), bias=c.flag("use_bias"),
        conv_bias=c.flag("use_conv_bias", default=True),
    )  # fmt: skip
    return language_model(c, [alone(width, scan)] * c.layers())


def mamba_two(c: Fields) -> Model:
    """Mamba 2 without attention."""
    width, heads, dim = c.size("hidden_size"), c.size("num_heads"), c.size("head_dim")
    inner = c.size("expand", 2) * width
    if heads * dim != inner:
        raise c.wrong("num_heads", heads, f"num_heads x head_dim must equal expand x hidden_size = {inner}")
    scan = Mamba2Scan(
        heads=heads, head_dim=dim, state=c.size("state_size"), groups=c.size("n_groups", 1),
        kernel=c.size("conv_kernel", 4), chunk=c.size("chunk_size", 256),
    )  # fmt: skip
    block = mamba2(width, "norm", scan, bias=c.flag("use_bias"), conv_bias=c.flag("use_conv_bias", default=True))
    return language_model(c, [alone(width, block)] * c.layers())


def mamba1_block(c: Fields, *, norms: bool = False) -> Block:
    """The Mamba block of Jamba's and Zamba's configurations (keys `mamba_*`)."""
    width = c.size("hidden_size")
    return partial(
        mamba1, width, inner=c.size("mamba_expand", 2) * width, state=c.size("mamba_d_state", 16),
        rank=step_rank(c, "mamba_dt_rank", width), kernel=c.size("mamba_d_conv", 4), bias=c.flag("mamba_proj_bias"),
        conv_bias=c.flag("mamba_conv_bias", default=True), norms=norms,
    )  # fmt: skip


def _mamba2_block(c: Fields, inner: int, *, norm: bool = True) -> Block:
    """The Mamba 2 block of Bamba's kind of configuration (keys `mamba_*`)."""
    heads = c.size("mamba_n_heads")
    if c.value("mamba_d_head") in (None, "auto"):
        if inner % heads:
            raise c.wrong("mamba_n_heads", heads, f"it must divide the inner width {inner}")
        head_dim = inner // heads
    else:
        head_dim = c.size("mamba_d_head")
    if heads * head_dim != inner:
        raise c.wrong("mamba_n_heads", heads, f"mamba_n_heads x mamba_d_head must equal the inner width {inner}")
    scan = Mamba2Scan(
        heads=heads, head_dim=head_dim, state=c.size("mamba_d_state"), groups=c.size("mamba_n_groups", 1),
        kernel=c.size("mamba_d_conv", 4), chunk=c.size("mamba_chunk_size", 256),
    )  # fmt: skip
    return partial(
        mamba2, c.size("hidden_size"), scan=scan, bias=c.flag("mamba_proj_bias"),
        conv_bias=c.flag("mamba_conv_bias", default=True), norm=norm,
        out_bias=c.flag("projectors_bias") if c.model_type == "falcon_h1" else None,
    )  # fmt: skip


def jamba(c: Fields) -> Model:
    """Jamba: Mamba 1 with an attention layer in `attn_layer_period`, experts in every `expert_layer_period`-th."""
    base = replace(standard_attention(c, NO_BIASES), rope_dim=0)
    scan, attend = mamba1_block(c, norms=True), partial(attention, base)
    dense = plain_feed(c, NO_BIASES, c.size("intermediate_size"))
    routed: Block | None = None
    if c.count("num_experts") > 1:
        routed = partial(moe, mixture(c, Manner(experts="num_experts"), base.width))
    period, offset = c.size("attn_layer_period"), c.count("attn_layer_offset")
    e_period, e_offset = c.size("expert_layer_period"), c.count("expert_layer_offset")
    attends = ["attention" if i % period == offset else "mamba" for i in range(c.layers())]
    kinds = [f"{k}-{'moe' if routed and i % e_period == e_offset else 'dense'}" for i, k in enumerate(attends)]

    def layer(kind: str) -> Items:
        feed = routed if routed and kind.endswith("moe") else dense
        return layer_of("pre", base.width, RMS, attend if kind.startswith("attention") else scan, feed)

    return language_model(c, one_of_each(kinds, layer), kinds)


def bamba(c: Fields) -> Model:
    """Bamba: Mamba 2 with attention in the layers listed."""
    traits = Traits()
    base = standard_attention(c, traits)
    blocks: dict[str, Block] = {
        "mamba": _mamba2_block(c, c.size("mamba_expand", 2) * base.width),
        "attention": partial(attention, base),
    }
    feed = plain_feed(c, traits, c.size("intermediate_size"))
    listed = c.sequence("attn_layer_indices") or []
    kinds = ["attention" if i in listed else "mamba" for i in range(c.layers())]
    rows = one_of_each(kinds, lambda kind: layer_of("pre", base.width, RMS, blocks[kind], feed))
    return language_model(c, rows, kinds, traits=traits)


def granite_hybrid(c: Fields) -> Model:
    """Granite 4: Mamba 2 or attention, then experts (where there are any) beside a shared gated block."""
    t = Traits(scaled=True, embed_scale=True)
    base = standard_attention(c, t)
    base = replace(base, rope_dim=base.rope_dim if c.value("position_embedding_type") == "rope" else 0)
    width, act = base.width, activation(c.text("hidden_act", "silu"))
    scan, attend = _mamba2_block(c, c.size("mamba_expand", 2) * width), partial(attention, base)
    experts = mixture(c, Manner(), width) if c.count("num_local_experts") > 0 else None
    shared = c.size("shared_intermediate_size")

    def feed(source: str) -> Items:
        both = mlp(width, shared, act, source, fused=True, prefix="shared" if experts else "mlp")
        return (*moe(experts, source), *both, residual("shared/add", width)) if experts else both

    kinds = c.per_layer("layer_types", c.layers(), "mamba")
    rows = one_of_each(
        kinds, lambda kind: layer_of("pre", width, RMS, attend if kind == "attention" else scan, feed, scale=True)
    )
    return language_model(c, rows, kinds, traits=t)


def falcon_h1(c: Fields) -> Model:
    """Falcon-H1: attention and Mamba 2 side by side in every layer."""
    traits = Traits()
    base = standard_attention(c, traits)
    width = base.width
    inner = c.maybe("mamba_d_ssm") or c.size("mamba_expand", 2) * width
    scan = _mamba2_block(c, inner, norm=c.flag("mamba_rms_norm"))

    def both(source: str) -> Items:
        return *scan(source), *attention(base, source), residual("attention/merge", width, "mamba/out_proj")

    layer = layer_of("pre", width, RMS, both, plain_feed(c, traits, c.size("intermediate_size")))
    return language_model(c, [layer] * c.layers(), traits=traits)


_NEMOTRON = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
PREDICTED = 2
"""Further tokens that Nemotron 3 is trained to predict with the one predictor of its configuration, run twice.

Source: Megatron-Bridge, nemotron_3_super.py and nemotron_3_ultra.py: mtp_num_layers 2, mtp_use_repeated_layer. Assumes:
each run has weights of its own, which is 2 % too many of them.
"""


def nemotron_h(c: Fields) -> Model:
    """Nemotron-H and Nemotron 3: a layer is one block: Mamba 2, attention, feed-forward or experts."""
    base = replace(standard_attention(c, Traits()), rope_dim=0)
    width, act = base.width, activation(c.text("mlp_hidden_act", "relu2"))
    pattern = c.text("hybrid_override_pattern")
    given = c.sequence("layers_block_type")
    kinds = [_NEMOTRON.get(letter, "") for letter in pattern] if given is None else [str(k) for k in given]
    if not kinds or not set(kinds) <= set(_NEMOTRON.values()):
        raise c.wrong(
            "layers_block_type",
            given or pattern,
            "a list of mamba, attention, mlp, moe is needed, or hybrid_override_pattern of M, *, -, E",
        )
    bias = c.flag("mlp_bias")

    def block(kind: str) -> Items:
        if kind == "attention":
            return attention(base, "norm")
        if kind == "mlp":
            return mlp(width, c.size("intermediate_size"), act, "norm", gated=False, bias=bias)
        if kind == "mamba":
            scan = Mamba2Scan(
                heads=c.size("mamba_num_heads"), head_dim=c.size("mamba_head_dim"), state=c.size("ssm_state_size"),
                groups=c.size("n_groups"), kernel=c.size("conv_kernel", 4), chunk=c.size("chunk_size", 128),
            )  # fmt: skip
            return mamba2(width, "norm", scan, bias=c.flag("use_bias"), conv_bias=c.flag("use_conv_bias", default=True))
        experts = Mixture(
            width=width, experts=c.size("n_routed_experts"), top_k=c.size("num_experts_per_tok"),
            hidden=c.size("moe_intermediate_size"), act=act, gated=False, latent=c.maybe("moe_latent_size") or 0,
            shared_hidden=c.count("moe_shared_expert_intermediate_size") * max(1, c.count("n_shared_experts")),
        )  # fmt: skip
        return moe(experts, "norm")

    model = language_model(c, one_of_each(kinds, lambda kind: alone(width, block(kind))), kinds)
    predicted = [_NEMOTRON.get(letter, "") for letter in c.text("mtp_hybrid_override_pattern", "*E")]
    if not set(predicted) <= set(_NEMOTRON.values()):
        raise c.wrong("mtp_hybrid_override_pattern", "".join(predicted), "a pattern of M, *, -, E is needed")
    return add_predictors(c, model, [alone(width, block(kind)) for kind in predicted], depth=PREDICTED)


def _layer_types(c: Fields, every: int) -> list[str]:
    """The attention of each layer: as `layer_types` says, else full in the last of `every` layers."""
    if c.has("layer_types"):
        return c.per_layer("layer_types", c.layers(), "")
    return ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(c.layers())]


def qwen_next(c: Fields) -> Model:
    """Qwen3-Next and Qwen3.5: three gated delta-rule layers, then one of gated attention; experts or a dense block."""
    base = replace(standard_attention(c, Traits(qk_norm="head")), gated=True)
    fraction = c.value("partial_rotary_factor")
    base = replace(base, rope_dim=base.rope_dim if fraction is not None else base.head_dim // 4)
    width, layers = base.width, c.layers()
    delta = partial(
        delta_net, width, key_heads=c.size("linear_num_key_heads"), value_heads=c.size("linear_num_value_heads"),
        key_dim=c.size("linear_key_head_dim"), value_dim=c.size("linear_value_head_dim"),
        kernel=c.size("linear_conv_kernel_dim", 4), joined=c.model_type == "qwen3_next",
    )  # fmt: skip
    sparse = sparse_layers(c, layers) if c.count("num_experts") else [False] * layers
    routed: Block | None = partial(moe, mixture(c, MANNERS["qwen2_moe"], width)) if any(sparse) else None
    kinds = _layer_types(c, c.count("full_attention_interval") or 4)
    names = [f"{k.split('_')[0]}-{'moe' if s else 'dense'}" for k, s in zip(kinds, sparse, strict=True)]

    def layer(name: str) -> Items:
        feed = routed if name.endswith("moe") else None
        feed = feed or plain_feed(c, NO_BIASES, c.size("intermediate_size"))
        return layer_of("pre", width, RMS, partial(attention, base) if name.startswith("full") else delta, feed)

    return language_model(c, one_of_each(names, layer), names)


def olmo_hybrid(c: Fields) -> Model:
    """OLMo Hybrid: gated delta-rule layers normed before their blocks, every fourth one OLMo 2's, normed after them.

    Source: OlmoHybridModel of transformers 5; the delta rule: arXiv:2412.06464.
    """
    traits = Traits(mlp_bias=False, qk_norm="full")
    base = standard_attention(c, traits)
    width, keys = base.width, c.size("linear_num_key_heads", base.heads)
    key_dim = c.size("linear_key_head_dim", int(0.75 * width / keys))
    delta = partial(
        delta_net, width, key_heads=keys, value_heads=c.size("linear_num_value_heads", base.heads), key_dim=key_dim,
        value_dim=c.size("linear_value_head_dim", 2 * key_dim), kernel=c.size("linear_conv_kernel_dim", 4),
        joined=False,
    )  # fmt: skip
    kinds = _layer_types(c, 4)
    if not c.has("layer_types") and "full_attention" not in kinds:
        kinds = [*kinds[:-1], "full_attention"]
    feed = plain_feed(c, traits, c.size("intermediate_size"))

    def layer(kind: str) -> Items:
        if kind == "full_attention":
            return layer_of("post", width, RMS, partial(attention, base), feed)
        return layer_of("pre", width, RMS, delta, feed)

    return language_model(c, one_of_each(kinds, layer), kinds, traits=traits)


def minimax(c: Fields) -> Model:
    """MiniMax-01: lightning attention, softmax attention where `layer_types` says, experts."""
    base = standard_attention(c, NO_BIASES)
    routed, chunk = partial(moe, mixture(c, Manner(), base.width)), c.size("block_size", 256)
    if c.has("attn_type_list") and not c.has("layer_types"):
        listed = c.sequence("attn_type_list") or []
        kinds = ["full_attention" if t else "linear_attention" for t in listed[: c.layers()]]
    elif c.has("layer_types"):
        kinds = c.per_layer("layer_types", c.layers(), "")
    else:  # the class's own default alternates
        kinds = ["linear_attention" if (i + 1) % 2 == 0 else "full_attention" for i in range(c.layers())]

    def layer(kind: str) -> Items:
        full = kind == "full_attention"
        linear = partial(lightning, base.width, base.heads, base.head_dim, chunk=chunk)
        return layer_of("pre", base.width, RMS, partial(attention, base) if full else linear, routed, scale=True)

    return language_model(c, one_of_each(kinds, layer), kinds)


def lfm2(c: Fields) -> Model:
    """LFM2: short convolutions with attention between; a feed-forward width that is rounded, or experts."""
    base = standard_attention(c, Traits(bias=False, out_bias=False, qk_norm="head"))
    width, layers = base.width, c.layers()
    hidden = c.size("intermediate_size", c.maybe("block_ff_dim") or None)
    if c.model_type == "lfm2" and c.flag("block_auto_adjust_ff_dim"):
        multiple = c.size("block_multiple_of", 256)
        hidden = int(c.number("block_ffn_dim_multiplier", 1.0) * int(2 * hidden / 3))
        hidden = multiple * ((hidden + multiple - 1) // multiple)
    num_dense = c.count("num_dense_layers") if c.model_type == "lfm2_moe" else layers
    dense: Block = partial(mlp, width, hidden, "silu")
    routed = dense
    if num_dense < layers:
        routed = partial(moe, mixture(c, Manner(experts="num_experts", hidden="moe_intermediate_size"), width))
    if c.has("layer_types"):
        kinds = c.per_layer("layer_types", layers, "conv")
    else:
        listed = c.sequence("full_attn_idxs")
        kinds = ["full_attention" if listed is None or i in listed else "conv" for i in range(layers)]
    names = [f"{k}-{'dense' if i < num_dense else 'moe'}" for i, k in enumerate(kinds)]
    conv = partial(short_convolution, width, c.size("conv_L_cache", 3), bias=c.flag("conv_bias"))

    def layer(name: str) -> Items:
        attend = partial(attention, base) if name.startswith("full") else conv
        return layer_of("pre", width, RMS, attend, routed if name.endswith("moe") else dense)

    return language_model(c, one_of_each(names, layer), names)


def recurrent_gemma(c: Fields) -> Model:
    """RecurrentGemma (Griffin, arXiv 2402.19427): gated linear recurrences, every third layer windowed attention."""
    traits = Traits(out_bias=True, mlp_bias=True, embed_scale=True)
    base = replace(standard_attention(c, traits), window=c.maybe("attention_window_size", 2048))
    width, heads = base.width, c.size("num_attention_heads")
    inner, kernel = c.maybe("lru_width") or base.width, c.size("conv1d_width", 4)
    if inner % heads:
        raise c.wrong("lru_width", inner, f"it must be a multiple of num_attention_heads = {heads}")
    hidden, act = c.size("intermediate_size") // 2, activation(c.text("hidden_activation", "gelu"))

    def recurrent(source: str) -> Items:
        gate = Linear("rglru/input_gate", inner // heads, inner, bias=True, shard="column", reads="rglru/conv")
        return (
            Linear("rglru/y_proj", width, inner, bias=True, shard="column", reads=source),
            Pointwise("rglru/y_act", inner, "gelu", shard="column"),
            Linear("rglru/x_proj", width, inner, bias=True, shard="column", reads=source),
            Convolution("rglru/conv", inner, kernel, shard="column"),
            gate,  # block-diagonal: a matrix a head, as is the next one
            replace(gate, name="rglru/recurrent_gate"),
            Weight("rglru/decay", inner, shard="column"),
            Recurrence("rglru/scan", "mamba1", heads=inner, key_dim=1, value_dim=1, state=inner * kernel),
            Pointwise("rglru/gate", inner, "gate", gated=True, shard="column"),
            Linear("rglru/out_proj", inner, width, bias=True, shard="row"),
        )

    blocks: dict[str, Block] = {"recurrent": recurrent, "attention": partial(attention, base)}
    listed, layers = c.sequence("block_types") or ["recurrent", "recurrent", "attention"], c.layers()
    if not listed or not all(isinstance(k, str) and k in blocks for k in listed):
        raise c.wrong("block_types", listed, "a list of recurrent and attention is needed")
    kinds = [listed[i % len(listed)] for i in range(layers)]
    feed = partial(mlp, width, hidden, act, bias=True)
    rows = one_of_each(kinds, lambda kind: layer_of("pre", width, RMS, blocks[kind], feed))
    return language_model(c, rows, kinds, traits=traits)
