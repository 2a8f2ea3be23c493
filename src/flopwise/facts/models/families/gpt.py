"""GPT-2 and its contemporaries: the first GPT, CTRL, XGLM, OPT, BLOOM, GPT-J, GPT-NeoX, Falcon, MPT, PaLM; DBRX."""

from __future__ import annotations

from functools import partial

from flopwise.facts.architecture import Embedding, Item, Linear, Model, Norm, Pointwise, Weight
from flopwise.facts.models.attend import Attention, attention
from flopwise.facts.models.blocks import (
    LAYER_NORM,
    Arrangement,
    Items,
    Mixture,
    Normal,
    activation,
    decoder,
    layer_of,
    mlp,
    moe,
    one_of_each,
    residual,
)
from flopwise.facts.models.fields import Fields
from flopwise.values import dataclass, replace

NO_BIAS = Normal(kind="layernorm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A decoder of this generation: attention and feed-forward of one form throughout."""

    attention: Attention
    hidden: int
    act: str = "gelu"
    norm: Normal = LAYER_NORM
    arrangement: Arrangement = "pre"
    gated: bool = False
    bias: bool = True  # of the feed-forward block
    head_bias: bool = False
    tied: bool = True  # where the configuration does not say
    dropout: bool = False
    positions: int = 0  # rows of a learned position table; 0: none
    max_position: int | None = None
    final_norm: bool = True
    before: Items = ()
    windows: tuple[int | None, ...] = ()  # a layer; (): none


def model(c: Fields, f: Frame, embed: int = 0) -> Model:
    """The model of a frame; `embed`: the width of the embedding, where it differs."""
    width, vocab = f.attention.width, c.size("vocab_size")
    wide: list[Item] = []
    if f.positions:
        wide += Embedding("embed_positions", f.positions, width, position=True), residual("embed/add", width)
    if f.dropout and c.model_type not in ("opt", "bloom"):  # these two drop nothing between embedding and first layer
        wide.append(Pointwise("embed/dropout", width, "dropout"))
    into = (Linear("embed/project_in", embed, width),) if embed else ()
    out = (Linear("embed/project_out", width, embed),) if embed else ()

    def feed(source: str) -> Items:
        return mlp(width, f.hidden, activation(f.act), source, gated=f.gated, bias=f.bias)

    def layer(window: int | None) -> Items:
        attend = partial(attention, replace(f.attention, window=window))
        return layer_of(f.arrangement, width, f.norm, attend, feed, dropout=f.dropout)

    norm: Norm | None = f.norm("norm", width) if f.final_norm else None
    stack = decoder(
        width, vocab, one_of_each(f.windows or (None,) * c.layers(), layer), norm, embed_dim=embed,
        tied=c.flag("tie_word_embeddings", default=f.tied), head_bias=f.head_bias, before=(*into, *f.before, *wide),
        after=out,
    )  # fmt: skip
    positions = f.max_position or f.positions or None
    return Model(kind="decoder", stacks=(stack,), vocab=vocab, max_position=positions)


def heads_of(c: Fields, width: int, *, bias: bool = True, fused: bool = False) -> Attention:
    """Multi-head attention without rope."""
    heads, _, dim = c.heads(width, kv_key="")
    return Attention(
        width=width, heads=heads, kv_heads=heads, head_dim=dim, bias=bias, out_bias=bias, fused=fused
    )  # fmt: skip


def gpt2(c: Fields) -> Model:
    """GPT-2, and GPT-3 and Megatron models of its form: one fused qkv matrix, learned positions, tied head.

    StarCoder (gpt_bigcode) has one key-value head.
    """
    width = c.size("hidden_size")
    a = replace(heads_of(c, width, fused=True), dropout=c.number("attn_pdrop") > 0)
    star = c.model_type == "gpt_bigcode"
    if star and c.flag("multi_query", default=True):
        a = replace(a, kv_heads=1)
    return model(c, Frame(
        attention=a, hidden=c.maybe("n_inner") or 4 * width, dropout=c.number("resid_pdrop") > 0,
        act="gelu" if star else c.text("activation_function", "gelu"), positions=c.size("max_position_embeddings"),
    ))  # fmt: skip


def gpt_neo(c: Fields) -> Model:
    """GPT-Neo: unbiased q, k, v; every other layer sees a window."""
    width, layers = c.size("hidden_size"), c.layers()
    kinds: list[str] = []
    for entry in c.sequence("attention_types") or [[["global", "local"], layers // 2]]:
        if not (
            isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], list) and isinstance(entry[1], int)
        ):
            raise c.wrong("attention_types", entry, "entries such as [['global', 'local'], 12] are needed")
        kinds += entry[0] * min(entry[1], layers)
    window = c.maybe("window_size")
    return model(c, Frame(
        attention=replace(heads_of(c, width), bias=False), hidden=c.maybe("intermediate_size") or 4 * width,
        positions=c.size("max_position_embeddings"),
        windows=tuple(window if k == "local" else None for k in (kinds + ["global"] * layers)[:layers]),
    ))  # fmt: skip


def gptj(c: Fields) -> Model:
    """GPT-J and CodeGen: parallel blocks that share one norm, unbiased attention, a biased head."""
    width = c.size("hidden_size")
    a = heads_of(c, width, bias=False, fused=c.model_type == "codegen")
    return model(c, Frame(
        attention=replace(a, rope_dim=c.maybe("rotary_dim") or a.head_dim), hidden=c.maybe("n_inner") or 4 * width,
        arrangement="parallel", head_bias=True, tied=False, dropout=c.number("resid_pdrop") > 0,
        max_position=c.maybe("max_position_embeddings"),
    ))  # fmt: skip


def gpt_neox(c: Fields) -> Model:
    """GPT-NeoX and Pythia: parallel blocks with a norm each, a quarter of each head rotated."""
    a = heads_of(c, c.size("hidden_size"), bias=c.flag("attention_bias", default=True), fused=True)
    rope = min(a.head_dim, max(0, int(a.head_dim * c.number("rotary_pct", 0.25))))
    return model(c, Frame(
        attention=replace(a, rope_dim=rope), hidden=c.size("intermediate_size"), tied=False,
        arrangement="parallel-two" if c.flag("use_parallel_residual", default=True) else "pre",
        max_position=c.maybe("max_position_embeddings"),
    ))  # fmt: skip


def opt(c: Fields) -> Model:
    """OPT: learned positions with two spare rows; the 350M model norms late and has a narrower embedding."""
    width, positions = c.size("hidden_size"), c.size("max_position_embeddings")
    bias, before = c.flag("enable_bias", default=True), c.flag("do_layer_norm_before", default=True)
    affine = c.flag("layer_norm_elementwise_affine", default=True)
    embed = c.maybe("word_embed_proj_dim") or width
    return model(c, Frame(
        attention=heads_of(c, width, bias=bias), hidden=c.size("ffn_dim"), bias=bias, act="relu",
        norm=Normal(kind="layernorm", bias=affine, affine=affine), arrangement="pre" if before else "post-add",
        final_norm=before and not c.flag("_remove_final_layer_norm"), positions=positions + 2, max_position=positions,
        dropout=c.number("dropout") > 0,
    ), embed if embed != width else 0)  # fmt: skip


def bloom(c: Fields) -> Model:
    """BLOOM: ALiBi in place of positions, a norm after the embedding."""
    width = c.size("hidden_size")
    return model(c, Frame(
        attention=heads_of(c, width, fused=True), hidden=4 * width, before=(LAYER_NORM("embed/norm", width),),
        max_position=c.maybe("seq_length", 2048), dropout=c.number("hidden_dropout") > 0,
    ))  # fmt: skip


def mpt(c: Fields) -> Model:
    """MPT: ALiBi, no bias anywhere."""
    width = c.size("hidden_size")
    return model(c, Frame(
        attention=heads_of(c, width, bias=False, fused=True), hidden=4 * width, norm=NO_BIAS, bias=False,
        max_position=c.maybe("max_position_embeddings"),
    ))  # fmt: skip


def falcon(c: Fields) -> Model:
    """Falcon: one key-value head (7B), or a few and a norm for each of two parallel blocks (40B, 180B)."""
    width = c.size("hidden_size")
    bias, new = c.flag("bias"), c.flag("new_decoder_architecture")
    parallel = new or c.flag("parallel_attn", default=True)
    a = heads_of(c, width, bias=bias, fused=True)
    if new:
        kv_heads = c.size("num_kv_heads", a.heads)
        if a.heads % kv_heads:
            raise c.wrong("num_kv_heads", kv_heads, f"it must divide num_attention_heads = {a.heads}")
        a = replace(a, kv_heads=kv_heads)
    elif c.flag("multi_query", default=True):
        a = replace(a, kv_heads=1)
    two = new and (c.maybe("num_ln_in_parallel_attn") or 2) == 2
    return model(c, Frame(
        attention=replace(a, rope_dim=0 if c.flag("alibi") else a.head_dim), bias=bias,
        hidden=c.maybe("ffn_hidden_size") or 4 * width, max_position=c.maybe("max_position_embeddings", 2048),
        arrangement="parallel-two" if two else "parallel" if parallel else "pre",
    ))  # fmt: skip


def palm(c: Fields) -> Model:
    """PaLM: parallel blocks, one key-value head, SwiGLU of 4 D, no biases, one matrix for embedding and head."""
    width, heads, dim = c.size("hidden_size"), c.size("num_attention_heads"), c.size("head_dim")
    return model(c, Frame(
        attention=Attention(width=width, heads=heads, kv_heads=1, head_dim=dim, rope_dim=dim), hidden=4 * width,
        norm=NO_BIAS, gated=True, bias=False, act="silu", arrangement="parallel",
        max_position=c.maybe("max_position_embeddings", 2048),
    ))  # fmt: skip


def openai_gpt(c: Fields) -> Model:
    """The first GPT: GPT-2 whose norms follow the sums, and none at the end."""
    width = c.size("hidden_size")
    a = replace(heads_of(c, width, fused=True), dropout=c.number("attn_pdrop") > 0)
    return model(c, Frame(
        attention=a, hidden=4 * width, act=c.text("afn", "gelu"), dropout=c.number("resid_pdrop") > 0,
        arrangement="post-add", final_norm=False, positions=c.size("max_position_embeddings"),
    ))  # fmt: skip


def ctrl(c: Fields) -> Model:
    """CTRL: pre-norm blocks, sinusoidal positions, a head with a bias that shares the embedding's matrix."""
    return model(c, Frame(
        attention=heads_of(c, c.size("hidden_size")), hidden=c.size("dff"), act="relu", head_bias=True,
        dropout=c.number("resid_pdrop") > 0, max_position=c.maybe("max_position_embeddings"),
    ))  # fmt: skip


def biogpt(c: Fields) -> Model:
    """BioGPT (learned positions with two spare rows) and XGLM (sinusoidal ones): pre-norm, biases throughout."""
    width, xglm = c.size("hidden_size"), c.model_type == "xglm"
    positions = c.size("max_position_embeddings")
    heads = c.size("attention_heads") if xglm else c.size("num_attention_heads")
    if width % heads:
        raise c.wrong("hidden_size", width, f"it must be a multiple of the {heads} attention heads")
    probabilities = c.number("attention_dropout" if xglm else "attention_probs_dropout_prob")
    return model(c, Frame(
        attention=Attention(
            width=width, heads=heads, kv_heads=heads, head_dim=width // heads, bias=True, out_bias=True,
            dropout=probabilities > 0,
        ),
        hidden=c.size("ffn_dim" if xglm else "intermediate_size"), positions=0 if xglm else positions + 2,
        dropout=c.number("dropout" if xglm else "hidden_dropout_prob") > 0, max_position=positions,
        act=c.text("activation_function" if xglm else "hidden_act", "gelu"),
    ))  # fmt: skip


def gpt_neox_japanese(c: Fields) -> Model:
    """GPT-NeoX Japanese: sequential blocks without biases, but for one of the last attention's output."""
    width = c.size("hidden_size")
    a = heads_of(c, width, bias=False, fused=True)
    built = model(c, Frame(
        attention=replace(a, rope_dim=a.head_dim), hidden=c.size("intermediate_multiple_size", 4) * width,
        bias=False, max_position=c.maybe("max_position_embeddings"),
    ))  # fmt: skip
    stack = built.stacks[0]
    bias = Weight("attention_bias_of_the_last_layer", width)
    return replace(built, stacks=(replace(stack, after=(bias, *stack.after)),))


def dbrx(c: Fields) -> Model:
    """DBRX: grouped-query attention and gated experts under norms without bias; sizes in nested configurations."""
    width, heads = c.size("hidden_size"), c.size("num_attention_heads")
    attends, feeds = c.part("attn_config"), c.part("ffn_config")
    if width % heads:
        raise c.wrong("d_model", width, f"it must be a multiple of n_heads = {heads}")
    dim, kv_heads = width // heads, attends.size("kv_n_heads", 8)
    a = Attention(width=width, heads=heads, kv_heads=kv_heads, head_dim=dim, rope_dim=dim, fused=True)
    experts = Mixture(
        width=width, experts=feeds.size("moe_num_experts", 16), top_k=feeds.size("moe_top_k", 4),
        hidden=feeds.size("ffn_hidden_size", 10752),
    )  # fmt: skip
    layer = layer_of("pre", width, NO_BIAS, partial(attention, a), partial(moe, experts))
    stack = decoder(width, c.size("vocab_size"), [layer] * c.layers(), NO_BIAS("norm", width), tied=False)
    positions = c.maybe("max_position_embeddings")
    return Model(kind="decoder", stacks=(stack,), vocab=c.size("vocab_size"), max_position=positions)
