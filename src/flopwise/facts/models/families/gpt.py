"""GPT-2 and its contemporaries: OPT, BLOOM, GPT-J, GPT-NeoX, GPT-Neo, Falcon, MPT, GPT-BigCode, PaLM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from flopwise.facts.architecture import Embedding, Item, Linear, Model, Norm, Pointwise
from flopwise.facts.models.attend import Attention, attention
from flopwise.facts.models.blocks import (
    LAYER_NORM,
    Arrangement,
    Items,
    Normal,
    activation,
    arranged,
    decoder,
    mlp,
    residual,
)
from flopwise.facts.models.fields import Fields

NO_BIAS = Normal(kind="layernorm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A decoder of this generation: attention and feed-forward of one form throughout."""

    attention: Attention
    hidden: int
    layers: int
    vocab: int
    act: str = "gelu"
    norm: Normal = LAYER_NORM
    arrangement: Arrangement = "pre"
    gated: bool = False
    bias: bool = True  # of the feed-forward block
    head_bias: bool = False
    tied: bool = True
    dropout: bool = False
    positions: int = 0  # rows of a learned position table; 0: none
    max_position: int | None = None
    final_norm: bool = True
    embed_dim: int = 0
    before: Items = ()
    windows: tuple[int | None, ...] = ()  # a layer; (): as `attention` says


def model(c: Fields, f: Frame) -> Model:
    """The model of a frame."""
    width = f.attention.width
    embed = f.embed_dim or width
    wide: list[Item] = []
    if f.positions:
        wide.append(Embedding(name="embed_positions", rows=f.positions, dim=width, position=True))
        wide.append(residual("embed/add", width))
    if f.dropout and c.model_type not in ("opt", "bloom"):  # these two drop nothing between embedding and first layer
        wide.append(Pointwise(name="embed/dropout", dim=width, kind="dropout"))
    projected = embed != width
    into = (Linear(name="embed/project_in", inputs=embed, outputs=width),) if projected else ()
    out = (Linear(name="embed/project_out", inputs=width, outputs=embed),) if projected else ()

    def layer(a: Attention) -> Items:
        return arranged(f.arrangement, width, f.norm, _reader(a), feed, dropout=f.dropout)

    def feed(source: str) -> Items:
        return mlp(width, f.hidden, activation(f.act), source, gated=f.gated, bias=f.bias)

    kinds = {w: layer(replace(f.attention, window=w)) for w in set(f.windows)} if f.windows else {}
    rows = [kinds[w] for w in f.windows] if f.windows else [layer(f.attention)] * f.layers
    norm: Norm | None = f.norm("norm", width) if f.final_norm else None
    stack = decoder(
        width,
        f.vocab,
        rows,
        norm,
        tied=f.tied,
        head_bias=f.head_bias,
        embed_dim=f.embed_dim,
        before=(*into, *f.before, *wide),
        after=out,
    )
    positions = f.max_position or f.positions or None
    return Model(
        name="", model_type=c.model_type, kind="decoder", stacks=(stack,), vocab=f.vocab, max_position=positions
    )


def _reader(a: Attention) -> Callable[[str], Items]:
    return lambda source: attention(a, source)


def heads_of(c: Fields, width: int) -> Attention:
    """Multi-head attention with biases throughout and no rope."""
    heads, _, head_dim = c.heads(width, kv_key="")
    return Attention(width=width, heads=heads, kv_heads=heads, head_dim=head_dim, bias=True, out_bias=True)


def gpt2(c: Fields) -> Model:
    """GPT-2, and GPT-3 and Megatron models of its form: one fused qkv matrix, learned positions, tied head."""
    width = c.size("hidden_size")
    a = replace(heads_of(c, width), fused=True, dropout=c.number("attn_pdrop") > 0)
    return model(c, Frame(
        attention=a, hidden=c.maybe("n_inner") or 4 * width, layers=c.layers(), vocab=c.size("vocab_size"),
        act=c.text("activation_function", "gelu"), dropout=c.number("resid_pdrop") > 0,
        positions=c.size("max_position_embeddings"), tied=c.flag("tie_word_embeddings", default=True),
    ))  # fmt: skip


def gpt_bigcode(c: Fields) -> Model:
    """StarCoder: GPT-2 with one key-value head."""
    width = c.size("hidden_size")
    a = replace(heads_of(c, width), fused=True, dropout=c.number("attn_pdrop") > 0)
    if c.flag("multi_query", default=True):
        a = replace(a, kv_heads=1)
    return model(c, Frame(
        attention=a, hidden=c.maybe("n_inner") or 4 * width, layers=c.layers(), vocab=c.size("vocab_size"),
        dropout=c.number("resid_pdrop") > 0, positions=c.size("max_position_embeddings"),
        tied=c.flag("tie_word_embeddings", default=True),
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
    per_layer = tuple(window if k == "local" else None for k in (kinds + ["global"] * layers)[:layers])
    return model(
        c,
        Frame(
            attention=replace(heads_of(c, width), bias=False),
            hidden=c.maybe("intermediate_size") or 4 * width,
            layers=layers,
            vocab=c.size("vocab_size"),
            positions=c.size("max_position_embeddings"),
            tied=c.flag("tie_word_embeddings", default=True),
            windows=per_layer,
        ),
    )


def gptj(c: Fields) -> Model:
    """GPT-J and CodeGen: parallel blocks that share one norm, unbiased attention, a biased head."""
    width = c.size("hidden_size")
    a = replace(heads_of(c, width), bias=False, out_bias=False, fused=c.model_type == "codegen")
    a = replace(a, rope_dim=c.maybe("rotary_dim") or a.head_dim)
    return model(c, Frame(
        attention=a, hidden=c.maybe("n_inner") or 4 * width, layers=c.layers(), vocab=c.size("vocab_size"),
        arrangement="parallel", head_bias=True, tied=c.flag("tie_word_embeddings"), dropout=c.number("resid_pdrop") > 0,
        max_position=c.maybe("max_position_embeddings"),
    ))  # fmt: skip


def gpt_neox(c: Fields) -> Model:
    """GPT-NeoX and Pythia: parallel blocks with a norm each, a quarter of each head rotated."""
    width = c.size("hidden_size")
    bias = c.flag("attention_bias", default=True)
    a = replace(heads_of(c, width), bias=bias, out_bias=bias, fused=True)
    fraction = c.number("rotary_pct", 0.25)
    return model(
        c,
        Frame(
            attention=replace(a, rope_dim=min(a.head_dim, max(0, int(a.head_dim * fraction)))),
            hidden=c.size("intermediate_size"),
            layers=c.layers(),
            vocab=c.size("vocab_size"),
            tied=c.flag("tie_word_embeddings"),
            arrangement="parallel-two" if c.flag("use_parallel_residual", default=True) else "pre",
            max_position=c.maybe("max_position_embeddings"),
        ),
    )


def opt(c: Fields) -> Model:
    """OPT: learned positions with two spare rows; the 350M model norms late and has a narrower embedding."""
    width = c.size("hidden_size")
    bias, before = c.flag("enable_bias", default=True), c.flag("do_layer_norm_before", default=True)
    a = replace(heads_of(c, width), bias=bias, out_bias=bias)
    embed = c.maybe("word_embed_proj_dim") or width
    norm = Normal(
        kind="layernorm",
        bias=c.flag("layer_norm_elementwise_affine", default=True),
        affine=c.flag("layer_norm_elementwise_affine", default=True),
    )
    return model(
        c,
        Frame(
            attention=a,
            hidden=c.size("ffn_dim"),
            layers=c.layers(),
            vocab=c.size("vocab_size"),
            bias=bias,
            act="relu",
            norm=norm,
            arrangement="pre" if before else "post-add",
            final_norm=before and not c.flag("_remove_final_layer_norm"),
            positions=c.size("max_position_embeddings") + 2,
            max_position=c.size("max_position_embeddings"),
            embed_dim=embed if embed != width else 0,
            tied=c.flag("tie_word_embeddings", default=True),
            dropout=c.number("dropout") > 0,
        ),
    )


def bloom(c: Fields) -> Model:
    """BLOOM: ALiBi in place of positions, a norm after the embedding."""
    width = c.size("hidden_size")
    return model(
        c,
        Frame(
            attention=replace(heads_of(c, width), fused=True),
            hidden=4 * width,
            layers=c.layers(),
            vocab=c.size("vocab_size"),
            before=(LAYER_NORM("embed/norm", width),),
            tied=c.flag("tie_word_embeddings", default=True),
            max_position=c.maybe("seq_length", 2048),
            dropout=c.number("hidden_dropout") > 0,
        ),
    )


def mpt(c: Fields) -> Model:
    """MPT: ALiBi, no bias anywhere."""
    width = c.size("hidden_size")
    a = replace(heads_of(c, width), bias=False, out_bias=False, fused=True)
    return model(
        c,
        Frame(
            attention=a,
            hidden=4 * width,
            layers=c.layers(),
            vocab=c.size("vocab_size"),
            norm=NO_BIAS,
            bias=False,
            tied=c.flag("tie_word_embeddings", default=True),
            max_position=c.maybe("max_position_embeddings"),
        ),
    )


def falcon(c: Fields) -> Model:
    """Falcon: one key-value head (7B), or a few and a norm for each of two parallel blocks (40B, 180B)."""
    width = c.size("hidden_size")
    bias, new = c.flag("bias"), c.flag("new_decoder_architecture")
    parallel = new or c.flag("parallel_attn", default=True)
    a = replace(heads_of(c, width), bias=bias, out_bias=bias, fused=True)
    if new:
        kv_heads = c.size("num_kv_heads", a.heads)
        if a.heads % kv_heads:
            raise c.wrong("num_kv_heads", kv_heads, f"it must divide num_attention_heads = {a.heads}")
        a = replace(a, kv_heads=kv_heads)
    elif c.flag("multi_query", default=True):
        a = replace(a, kv_heads=1)
    two = new and (c.maybe("num_ln_in_parallel_attn") or 2) == 2
    return model(
        c,
        Frame(
            attention=replace(a, rope_dim=0 if c.flag("alibi") else a.head_dim),
            hidden=c.maybe("ffn_hidden_size") or 4 * width,
            layers=c.layers(),
            vocab=c.size("vocab_size"),
            bias=bias,
            tied=c.flag("tie_word_embeddings", default=True),
            arrangement="parallel-two" if two else "parallel" if parallel else "pre",
            max_position=c.maybe("max_position_embeddings", 2048),
        ),
    )


def palm(c: Fields) -> Model:
    """PaLM: parallel blocks, one key-value head, SwiGLU of 4 D, no biases, one matrix for embedding and head."""
    width = c.size("hidden_size")
    heads, head_dim = c.size("num_attention_heads"), c.size("head_dim")
    a = Attention(width=width, heads=heads, kv_heads=1, head_dim=head_dim, rope_dim=head_dim)
    return model(
        c,
        Frame(
            attention=a,
            hidden=4 * width,
            layers=c.layers(),
            vocab=c.size("vocab_size"),
            norm=NO_BIAS,
            gated=True,
            bias=False,
            act="silu",
            arrangement="parallel",
            max_position=c.maybe("max_position_embeddings", 2048),
        ),
    )
