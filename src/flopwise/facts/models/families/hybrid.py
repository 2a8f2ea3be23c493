"""State-space models and hybrids: Mamba, Jamba, Bamba, Granite 4, Falcon-H1, Nemotron-H, Qwen3-Next, LFM2 ..."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from flopwise.facts.architecture import Model
from flopwise.facts.models.attend import Attention, attention
from flopwise.facts.models.blocks import RMS, Items, Mixture, activation, arranged, mlp, moe, residual
from flopwise.facts.models.families.llama import Traits, language_model, plain_feed, standard_attention
from flopwise.facts.models.families.moe import Manner, mixture, sparse_layers
from flopwise.facts.models.fields import Fields
from flopwise.facts.models.recurrent import delta_net, lightning, mamba1, mamba2, short_convolution

Block = Callable[[str], Items]
_PLAIN = Traits(bias=False, out_bias=False, mlp_bias=False)


def _rows(kinds: list[str], make: Callable[[str], Items]) -> list[Items]:
    """One layer of each kind, built once, in the order given."""
    built = {k: make(k) for k in dict.fromkeys(kinds)}
    return [built[k] for k in kinds]


def mamba(c: Fields) -> Model:
    """Mamba and Falcon-Mamba: norm, selective scan, add; no feed-forward block."""
    width = c.size("hidden_size")
    inner = int(c.size("expand", 2)) * width
    rank = c.value("time_step_rank", "auto")
    rank = math.ceil(width / 16) if rank in ("auto", None) else c.size("time_step_rank")
    scan = mamba1(
        width,
        "norm",
        inner=inner,
        state=c.size("state_size"),
        rank=rank,
        kernel=c.size("conv_kernel", 4),
        bias=c.flag("use_bias"),
        conv_bias=c.flag("use_conv_bias", default=True),
    )
    layer = (RMS("norm", width), *scan, residual("residual", width, "input"))
    return _stateful(c, width, layer)


def mamba_two(c: Fields) -> Model:
    """Mamba 2 without attention."""
    width = c.size("hidden_size")
    heads, dim = c.size("num_heads"), c.size("head_dim")
    if heads * dim != c.size("expand", 2) * width:
        raise c.wrong(
            "num_heads", heads, f"num_heads x head_dim must equal expand x hidden_size = {c.size('expand', 2) * width}"
        )
    scan = mamba2(
        width,
        "norm",
        heads=heads,
        head_dim=dim,
        state=c.size("state_size"),
        groups=c.size("n_groups", 1),
        kernel=c.size("conv_kernel", 4),
        bias=c.flag("use_bias"),
        conv_bias=c.flag("use_conv_bias", default=True),
        chunk=c.size("chunk_size", 256),
    )
    return _stateful(c, width, (RMS("norm", width), *scan, residual("residual", width, "input")))


def _stateful(c: Fields, width: int, layer: Items) -> Model:
    base = Attention(width=width, heads=1, kv_heads=1, head_dim=width)  # only its width is read
    return language_model(c, _PLAIN, base, [layer] * c.layers())


def _mamba2_of(c: Fields, width: int, inner: int, *, norm: bool = True) -> Block:
    """The Mamba 2 block of Bamba's kind of configuration (keys `mamba_*`)."""
    heads = c.size("mamba_n_heads")
    dim = c.value("mamba_d_head")
    if dim in (None, "auto"):
        if inner % heads:
            raise c.wrong("mamba_n_heads", heads, f"it must divide the inner width {inner}")
        head_dim = inner // heads
    else:
        head_dim = c.size("mamba_d_head")
    if heads * head_dim != inner:
        raise c.wrong("mamba_n_heads", heads, f"mamba_n_heads x mamba_d_head must equal the inner width {inner}")
    return lambda source: mamba2(
        width,
        source,
        heads=heads,
        head_dim=head_dim,
        state=c.size("mamba_d_state"),
        groups=c.size("mamba_n_groups", 1),
        kernel=c.size("mamba_d_conv", 4),
        bias=c.flag("mamba_proj_bias"),
        conv_bias=c.flag("mamba_conv_bias", default=True),
        norm=norm,
        chunk=c.size("mamba_chunk_size", 256),
    )


def jamba(c: Fields) -> Model:
    """Jamba: Mamba 1 with an attention layer in `attn_layer_period`, experts in every `expert_layer_period`-th."""
    base = replace(standard_attention(c, _PLAIN), rope_dim=0)
    width, layers = base.width, c.layers()
    inner = c.size("mamba_expand", 2) * width
    rank = c.value("mamba_dt_rank", "auto")
    rank = math.ceil(width / 16) if rank in ("auto", None) else c.size("mamba_dt_rank")

    def scan(source: str) -> Items:
        return mamba1(
            width,
            source,
            inner=inner,
            state=c.size("mamba_d_state"),
            rank=rank,
            kernel=c.size("mamba_d_conv", 4),
            bias=c.flag("mamba_proj_bias"),
            conv_bias=c.flag("mamba_conv_bias", default=True),
            norms=True,
        )

    dense = plain_feed(c, _PLAIN, width, c.size("intermediate_size"))
    experts = mixture(c, Manner(experts="num_experts"), width) if c.count("num_experts") > 1 else None
    period, offset = c.size("attn_layer_period"), c.count("attn_layer_offset")
    e_period, e_offset = c.size("expert_layer_period"), c.count("expert_layer_offset")
    kinds = [
        ("attention" if i % period == offset else "mamba")
        + ("-moe" if experts and i % e_period == e_offset else "-dense")
        for i in range(layers)
    ]

    def make(kind: str) -> Items:
        attend: Block = (lambda source: attention(base, source)) if kind.startswith("attention") else scan
        feed: Block = (lambda source: moe(experts, source)) if experts and kind.endswith("moe") else dense
        return arranged("pre", width, RMS, attend, feed)

    return language_model(c, _PLAIN, base, _rows(kinds, make), kinds)


def bamba(c: Fields) -> Model:
    """Bamba: Mamba 2 with attention in the layers listed."""
    base = standard_attention(c, Traits())
    scan = _mamba2_of(c, base.width, int(c.size("mamba_expand", 2) * base.width))
    feed = plain_feed(c, Traits(), base.width, c.size("intermediate_size"))
    listed = c.sequence("attn_layer_indices") or []
    kinds = ["attention" if i in listed else "mamba" for i in range(c.layers())]

    def make(kind: str) -> Items:
        return arranged("pre", base.width, RMS, (lambda s: attention(base, s)) if kind == "attention" else scan, feed)

    return language_model(c, Traits(), base, _rows(kinds, make), kinds)


def granite_hybrid(c: Fields) -> Model:
    """Granite 4: Mamba 2 or attention, then experts (where there are any) beside a shared gated block."""
    t = Traits(scaled=True, embed_scale=True)
    base = standard_attention(c, t)
    base = replace(base, rope_dim=base.rope_dim if c.value("position_embedding_type") == "rope" else 0)
    width, act = base.width, activation(c.text("hidden_act", "silu"))
    scan = _mamba2_of(c, width, c.size("mamba_expand", 2) * width)
    experts = mixture(c, Manner(), width) if c.count("num_local_experts") > 0 else None
    shared = c.size("shared_intermediate_size")

    def feed(source: str) -> Items:
        both = mlp(width, shared, act, source, fused=True, prefix="shared" if experts else "mlp")
        return (*moe(experts, source), *both, residual("shared/add", width)) if experts else both

    kinds = c.per_layer("layer_types", c.layers(), "mamba")

    def make(kind: str) -> Items:
        return arranged(
            "pre", width, RMS, (lambda s: attention(base, s)) if kind == "attention" else scan, feed, scale=True
        )

    return language_model(c, t, base, _rows(kinds, make), kinds)


def falcon_h1(c: Fields) -> Model:
    """Falcon-H1: attention and Mamba 2 side by side in every layer."""
    base = standard_attention(c, Traits(out_bias="attention_bias"))
    width = base.width
    scan = _mamba2_of(
        c, width, c.maybe("mamba_d_ssm") or c.size("mamba_expand", 2) * width, norm=c.flag("mamba_rms_norm")
    )
    feed = plain_feed(c, Traits(), width, c.size("intermediate_size"))

    def both(source: str) -> Items:
        return *scan(source), *attention(base, source), residual("attention/merge", width, "mamba/out_proj")

    return language_model(c, Traits(), base, [arranged("pre", width, RMS, both, feed)] * c.layers())


_NEMOTRON = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def nemotron_h(c: Fields) -> Model:
    """Nemotron-H and Nemotron 3: a layer is one block: Mamba 2, attention, feed-forward or experts."""
    base = replace(standard_attention(c, Traits()), rope_dim=0)
    width, act = base.width, activation(c.text("mlp_hidden_act", "relu2"))
    pattern = c.text("hybrid_override_pattern")
    given = c.sequence("layers_block_type")
    kinds = [_NEMOTRON.get(letter, "") for letter in pattern] if given is None else [str(k) for k in given]
    if not kinds or not set(kinds) <= {"mamba", "attention", "mlp", "moe"}:
        raise c.wrong(
            "layers_block_type",
            given or pattern,
            "a list of mamba, attention, mlp, moe is needed, or hybrid_override_pattern of M, *, -, E",
        )
    bias = c.flag("mlp_bias")

    def make(kind: str) -> Items:
        return RMS("norm", width), *block(kind), residual("residual", width, "input")

    def block(kind: str) -> Items:
        if kind == "attention":
            return attention(base, "norm")
        if kind == "mlp":
            return mlp(width, c.size("intermediate_size"), act, "norm", gated=False, bias=bias)
        if kind == "mamba":
            return mamba2(
                width,
                "norm",
                heads=c.size("mamba_num_heads"),
                head_dim=c.size("mamba_head_dim"),
                state=c.size("ssm_state_size"),
                groups=c.size("n_groups"),
                kernel=c.size("conv_kernel", 4),
                bias=c.flag("use_bias"),
                conv_bias=c.flag("use_conv_bias", default=True),
                chunk=c.size("chunk_size", 128),
            )
        m = Mixture(
            width=width,
            experts=c.size("n_routed_experts"),
            top_k=c.size("num_experts_per_tok"),
            hidden=c.size("moe_intermediate_size"),
            act=act,
            gated=False,
            bias=False,
            latent=c.maybe("moe_latent_size") or 0,
            shared_hidden=c.count("moe_shared_expert_intermediate_size") * max(1, c.count("n_shared_experts")),
        )
        return moe(m, "norm")

    return language_model(c, _PLAIN, base, _rows(kinds, make), kinds)


def qwen_next(c: Fields) -> Model:
    """Qwen3-Next and Qwen3.5: three gated delta-rule layers, then one of gated attention; experts or a dense block."""
    base = replace(standard_attention(c, Traits(qk_norm="head")), gated=True)
    fraction = c.value("partial_rotary_factor")
    base = replace(base, rope_dim=base.rope_dim if fraction is not None else base.head_dim // 4)
    width, layers = base.width, c.layers()

    def delta(source: str) -> Items:
        return delta_net(
            width,
            source,
            key_heads=c.size("linear_num_key_heads"),
            value_heads=c.size("linear_num_value_heads"),
            key_dim=c.size("linear_key_head_dim"),
            value_dim=c.size("linear_value_head_dim"),
            kernel=c.size("linear_conv_kernel_dim", 4),
            joined=c.model_type == "qwen3_next",
        )

    manner = Manner(
        experts="num_experts",
        hidden="moe_intermediate_size",
        shared="shared_expert_intermediate_size",
        shared_gate=True,
    )
    sparse = sparse_layers(c, layers) if c.count("num_experts") else [False] * layers
    experts = mixture(c, manner, width) if any(sparse) else None
    every = c.count("full_attention_interval") or 4
    if c.has("layer_types"):
        kinds = c.per_layer("layer_types", layers, "")
    else:
        kinds = ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(layers)]
    names = [f"{k.split('_')[0]}-{'moe' if s else 'dense'}" for k, s in zip(kinds, sparse, strict=True)]

    def make(name: str) -> Items:
        attend: Block = (lambda source: attention(base, source)) if name.startswith("full") else delta
        if experts and name.endswith("moe"):
            return arranged("pre", width, RMS, attend, lambda source: moe(experts, source))
        return arranged("pre", width, RMS, attend, plain_feed(c, _PLAIN, width, c.size("intermediate_size")))

    return language_model(c, _PLAIN, base, _rows(names, make), names)


def minimax(c: Fields) -> Model:
    """MiniMax-01: lightning attention, softmax attention where `layer_types` says, experts."""
    base = standard_attention(c, _PLAIN)
    experts = mixture(c, Manner(), base.width)
    layers = c.layers()
    if c.has("layer_types"):
        kinds = c.per_layer("layer_types", layers, "")
    elif c.has("attn_type_list"):
        kinds = ["full_attention" if t else "linear_attention" for t in (c.sequence("attn_type_list") or [])[:layers]]
    else:  # the class's own default alternates
        kinds = ["linear_attention" if (i + 1) % 2 == 0 else "full_attention" for i in range(layers)]

    def make(kind: str) -> Items:
        def attend(source: str) -> Items:
            if kind == "full_attention":
                return attention(base, source)
            return lightning(base.width, base.heads, base.head_dim, source, chunk=c.size("block_size", 256))

        return arranged("pre", base.width, RMS, attend, lambda source: moe(experts, source), scale=True)

    return language_model(c, _PLAIN, base, _rows(kinds, make), kinds)


def lfm2(c: Fields) -> Model:
    """LFM2: short convolutions with attention between; a feed-forward width that is rounded, or experts."""
    base = standard_attention(c, Traits(bias=False, out_bias=False, qk_norm="head"))
    width, layers = base.width, c.layers()
    hidden = c.size("intermediate_size", c.maybe("block_ff_dim") or None)
    if c.model_type == "lfm2" and c.flag("block_auto_adjust_ff_dim"):
        multiple = c.size("block_multiple_of", 256)
        hidden = int(c.number("block_ffn_dim_multiplier", 1.0) * int(2 * hidden / 3))
        hidden = multiple * ((hidden + multiple - 1) // multiple)
    dense = c.count("num_dense_layers") if c.model_type == "lfm2_moe" else layers
    experts = (
        mixture(c, Manner(experts="num_experts", hidden="moe_intermediate_size"), width) if dense < layers else None
    )
    if c.has("layer_types"):
        kinds = c.per_layer("layer_types", layers, "conv")
    else:
        listed = c.sequence("full_attn_idxs")
        kinds = ["full_attention" if listed is None or i in listed else "conv" for i in range(layers)]
    names = [f"{k}-{'dense' if i < dense else 'moe'}" for i, k in enumerate(kinds)]

    def make(name: str) -> Items:
        conv: Block = lambda s: short_convolution(width, c.size("conv_L_cache", 3), s, bias=c.flag("conv_bias"))  # noqa: E731
        attend: Block = (lambda s: attention(base, s)) if name.startswith("full") else conv
        feed: Block = (
            (lambda s: moe(experts, s))
            if experts and name.endswith("moe")
            else (lambda s: mlp(width, hidden, "silu", s))
        )
        return arranged("pre", width, RMS, attend, feed)

    return language_model(c, _PLAIN, base, _rows(names, make), names)
