"""Encoder-decoder models: T5 and its kin, BART and its kin (mBART, Marian, M2M-100, NLLB-MoE, FSMT ...), Whisper."""

from __future__ import annotations

from functools import partial
from typing import Literal

from flopwise.facts.architecture import Convolution, Embedding, Item, Linear, Model, Pointwise
from flopwise.facts.models.attend import Attention, attention, cross_attention
from flopwise.facts.models.blocks import (
    LAYER_NORM,
    RMS,
    Block,
    Items,
    Mixture,
    activation,
    mlp,
    moe,
    one_of_each,
    residual,
    stack_of,
)
from flopwise.facts.models.fields import Fields
from flopwise.facts.models.heads import architecture, labels, task
from flopwise.values import dataclass, replace

_model = partial(Model, kind="encoder-decoder")
POSITIONS = "max_position_embeddings"


def t5(c: Fields) -> Model:
    """T5, mT5, UMT5: RMSNorm before blocks, a learned relative-position bias (one table a stack; UMT5: one a layer)."""
    width, d_kv, heads = c.size("d_model"), c.size("d_kv"), c.size("num_heads")
    hidden, dropout = c.size("d_ff"), c.number("dropout_rate") > 0
    buckets = c.size("relative_attention_num_buckets", 32)
    a = Attention(width=width, heads=heads, kv_heads=heads, head_dim=d_kv, dropout=dropout)
    own_tables = c.model_type == "umt5"
    dense, routed = _t5_feeds(c, width, hidden)

    def layer(*, decoder: bool, first: bool, sparse: bool) -> Items:
        own = replace(a, causal=decoder, cached=decoder, position_bias=buckets * heads if first or own_tables else 0)
        drop = (Pointwise("dropout", width, "dropout"),) if dropout else ()
        items: list[Item] = [
            RMS("input_norm", width),
            *attention(own, "input_norm"),
            *_with_prefix(drop, "attention"),
            residual("attention/residual", width, "input"),
        ]
        last = "attention/residual"
        if decoder:
            items += [
                RMS("cross_norm", width),
                *cross_attention(a, "cross_norm", width),
                *_with_prefix(drop, "cross"),
                residual("cross/residual", width, last),
            ]
            last = "cross/residual"
        items += [
            RMS("post_norm", width),
            *(routed if sparse else dense)("post_norm"),
            *_with_prefix(drop, "mlp"),
            residual("mlp/residual", width, last),
        ]
        return tuple(items)

    depth = c.layers("num_layers")
    below = c.maybe("num_decoder_layers") or depth
    vocab = c.size("vocab_size")
    shared = Embedding("embed_tokens", vocab, width, shard="row")
    encoder_rows = one_of_each(
        _t5_layers(c, "encoder", depth), lambda key: layer(decoder=False, first=key[0], sparse=key[1])
    )
    decoder_rows = one_of_each(
        _t5_layers(c, "decoder", below), lambda key: layer(decoder=True, first=key[0], sparse=key[1])
    )
    norm = RMS("norm", width)
    if alone := _encoder_end(c, width):
        encoder = stack_of("encoder", width, (shared,), encoder_rows, (norm, *alone[0]))
        return Model(kind="encoder", stacks=(encoder,), vocab=vocab, max_position=c.maybe("n_positions", 512))
    decoder = stack_of("decoder", width, (shared,), decoder_rows, (norm, _head(c, width, vocab)))
    encoder = stack_of("encoder", width, (), encoder_rows, (norm,))
    return _model(
        stacks=(decoder, encoder), vocab=vocab, max_position=c.maybe("n_positions", 512),
        notes=("the encoder reads the decoder's embedding table",),
    )  # fmt: skip


def _encoder_end(c: Fields, width: int) -> tuple[Items, ...]:
    """The items behind an encoder without a decoder, one entry; none where `architectures` has both.

    Source: transformers, modeling_t5.py: `T5EncoderModel`, and `T5ForTokenClassification`, which reads the encoder.
    """
    if kind := task(c):
        return ((Linear("classifier", width, labels(c), bias=True),),) if kind == "TokenClassification" else ()
    return ((),) if architecture(c).endswith("EncoderModel") else ()


def _t5_feeds(c: Fields, width: int, hidden: int) -> tuple[Block, Block]:
    """The dense feed-forward block, and Switch Transformers' of experts, of which a token runs one.

    Source: arXiv:2101.03961 section 2.1.
    """
    if c.model_type != "switch_transformers":
        feed = c.text("feed_forward_proj", "relu").split("-")
        dense = partial(mlp, width, hidden, activation(feed[-1]), gated=feed[0] == "gated")
        return dense, dense
    if not c.flag("tie_word_embeddings", default=True):
        raise c.wrong("tie_word_embeddings", c.value("tie_word_embeddings"), "one table for all is described")
    act = activation(c.text("dense_act_fn", "relu"))
    experts = Mixture(
        width=width, experts=c.size("num_experts"), top_k=1, hidden=hidden, act=act, gated=False,
        router_bias=c.flag("router_bias"),
    )  # fmt: skip
    return partial(mlp, width, hidden, act, gated=False), partial(moe, experts)


def _t5_layers(c: Fields, side: str, depth: int) -> list[tuple[bool, bool]]:
    """For each layer of a half: is it the first, which holds the table of positions, and has it experts."""
    step = 0
    if c.model_type == "switch_transformers":
        count = c.count(f"num_sparse_{side}_layers", 3)
        step = c.count(f"{side}_sparse_step") if c.has(f"{side}_sparse_step") else depth // (count or 1)
    return [(i == 0, step > 0 and (i % step == 1 or step == 1)) for i in range(depth)]


def _head(c: Fields, width: int, vocab: int) -> Linear:
    tied = c.flag("tie_word_embeddings", default=True)
    return Linear("lm_head", width, vocab, shard="column", tied=tied)


def _with_prefix(items: tuple[Pointwise, ...], part: str) -> tuple[Pointwise, ...]:
    return tuple(replace(i, name=f"{part}/{i.name}") for i in items)


def _layer(
    c: Fields, a: Attention, hidden: int, act: str, *, cross: bool, pre: bool, experts: Mixture | None = None
) -> Items:
    """A biased layer of BART (norms after the sums) or Whisper (norms before the blocks), dense or with `experts`."""
    w, norm = a.width, LAYER_NORM
    drop = (Pointwise("dropout", w, "dropout"),) if c.number("dropout") > 0 else ()
    out: list[Item] = []
    last = "input"
    crossing = replace(a, causal=False, cached=True)
    parts: list[tuple[str, str, Items]] = [("attention", "input_norm", attention(a, "input_norm" if pre else last))]
    if cross:
        parts.append(("cross", "cross_norm", cross_attention(crossing, "cross_norm" if pre else "attention/norm", w)))
    previous = "cross/norm" if cross else "attention/norm"
    source = "post_norm" if pre else previous
    feed = moe(experts, source) if experts else mlp(w, hidden, activation(act), source, gated=False, bias=True)
    parts.append(("mlp", "post_norm", feed))
    for part, before, block in parts:
        out += [norm(before, w)] if pre else []
        out += [*block, *_with_prefix(drop, part), residual(f"{part}/residual", w, last)]
        out += [] if pre else [norm(f"{part}/norm", w)]
        last = f"{part}/residual" if pre else f"{part}/norm"
    return tuple(out)


def _half(c: Fields, side: str, *, causal: bool, whisper: bool) -> tuple[Attention, int, int]:
    """Attention, feed-forward width and depth of the encoder or decoder half."""
    width = c.size("d_model")
    heads = c.size(f"{side}_attention_heads")
    if width % heads:
        raise c.wrong("d_model", width, f"it must be a multiple of {side}_attention_heads = {heads}")
    a = Attention(
        width=width, heads=heads, kv_heads=heads, head_dim=width // heads, bias=True, out_bias=True,
        k_bias=False if whisper else None, causal=causal, cached=causal, dropout=c.number("attention_dropout") > 0,
    )  # fmt: skip
    return a, c.size(f"{side}_ffn_dim"), c.layers(f"{side}_layers")


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfManner:
    """The differences of a translator or summariser from BART."""

    pre: bool = False  # norms before the blocks
    positions: Literal["learned", "sines", ""] = "learned"  # sines: a table kept with the weights; "": computed
    spare: int = 0  # rows of the table beside the positions
    embed_norm: bool = True
    final_norm: bool = False


_PRE = HalfManner(pre=True, embed_norm=False, final_norm=True)
KIN: dict[str, HalfManner] = {
    "bart": HalfManner(spare=2),
    "blenderbot": _PRE,
    "blenderbot-small": HalfManner(),
    "m2m_100": replace(_PRE, positions=""),
    "marian": HalfManner(positions="sines", embed_norm=False),
    "mbart": HalfManner(pre=True, spare=2, final_norm=True),
    "mvp": HalfManner(spare=2),
    "nllb-moe": replace(_PRE, positions=""),
    "pegasus": replace(_PRE, positions="sines"),
    "plbart": HalfManner(spare=2),
}


def bart(c: Fields) -> Model:
    """BART and its kin: one embedding for both halves and the head, positions and norms as the family has them."""
    kin, width, vocab, positions = KIN[c.model_type], c.size("d_model"), c.size("vocab_size"), c.size(POSITIONS)
    for key in ("tie_word_embeddings", "share_encoder_decoder_embeddings"):
        if not c.flag(key, default=True):
            raise c.wrong(key, c.value(key), "only one table for both halves and the head is described")
    if architecture(c).endswith("ForCausalLM"):
        raise c.wrong("architectures", architecture(c), "a decoder without its encoder is not described")
    if c.flag("use_prompt"):
        raise c.wrong("use_prompt", c.value("use_prompt"), "prompts before each layer's keys are not described")
    act = c.text("activation_function", "gelu")
    rows = positions + kin.spare if kin.positions else 0
    table = Embedding("embed_tokens", vocab, width, shard="row")
    places: Items = (Embedding("embed_positions", rows, width, position=True),) if rows else ()
    norm: Items = (LAYER_NORM("embed/norm", width),) if kin.embed_norm else ()
    place: Items = (*places, residual("embed/add", width), *norm)
    ends: Items = (LAYER_NORM("norm", width),) if kin.final_norm else ()
    decoder = stack_of(
        "decoder", width, (table, *place), _layers(c, "decoder", act, pre=kin.pre), (*ends, _head(c, width, vocab))
    )
    layers = _layers(c, "encoder", act, pre=kin.pre)
    return _model(
        stacks=(decoder, stack_of("encoder", width, place, layers, ends)), vocab=vocab, max_position=positions
    )  # fmt: skip


def _layers(c: Fields, side: str, act: str, *, pre: bool) -> list[Items]:
    """The layers of one half; of NLLB-MoE every so many have experts (arXiv:2207.04672 section 6.2)."""
    decodes = side == "decoder"
    a, hidden, depth = _half(c, side, causal=decodes, whisper=False)
    dense = _layer(c, a, hidden, act, cross=decodes, pre=pre)
    if c.model_type != "nllb-moe":
        return [dense] * depth
    experts = Mixture(
        width=a.width, experts=c.size("num_experts"), top_k=2, hidden=hidden, act=activation(act), gated=False,
        bias=True, router_bias=c.flag("router_bias"),
    )  # fmt: skip
    routed, step = _layer(c, a, hidden, act, cross=decodes, pre=pre, experts=experts), c.count(f"{side}_sparse_step", 4)
    return [routed if step and (i + 1) % step == 0 else dense for i in range(depth)]


def fsmt(c: Fields) -> Model:
    """FSMT: the Transformer of WMT19, each half with a vocabulary of its own, sines kept with the weights.

    Source: arXiv:1907.06616 section 3; FSMTForConditionalGeneration of transformers 5.
    """
    width, act = c.size("d_model"), c.text("activation_function", "relu")
    source, target = c.size("src_vocab_size"), c.size("tgt_vocab_size")
    rows = c.size(POSITIONS) + c.count("pad_token_id", 1) + 1
    place: Items = (Embedding("embed_positions", rows, width, position=True), residual("embed/add", width))
    tied = c.flag("tie_word_embeddings")
    head = Linear("lm_head", width, target, shard="column", tied=tied)
    table = Embedding("embed_tokens", target, width, shard="row")
    own: Items = () if tied else (replace(table, rows=source),)
    decoder = stack_of("decoder", width, (table, *place), _layers(c, "decoder", act, pre=False), (head,))
    encoder = stack_of("encoder", width, (*own, *place), _layers(c, "encoder", act, pre=False))
    return _model(stacks=(decoder, encoder), vocab=target, max_position=c.size(POSITIONS))


def whisper(c: Fields) -> Model:
    """Whisper: two convolutions over mel frames, an encoder of 1500 positions, a decoder with cross-attention."""
    width, vocab = c.size("d_model"), c.size("vocab_size")
    source, target = c.size("max_source_positions", 1500), c.size("max_target_positions", 448)
    act = c.text("activation_function", "gelu")
    a, hidden, depth = _half(c, "decoder", causal=True, whisper=True)
    before: Items = (
        Embedding("embed_tokens", vocab, width, shard="row"),
        Embedding("embed_positions", target, width, position=True),
        residual("embed/add", width),
    )
    norm = LAYER_NORM("norm", width)
    rows = [_layer(c, a, hidden, act, cross=True, pre=True)] * depth
    decoder = stack_of("decoder", width, before, rows, (norm, _head(c, width, vocab)))
    a, hidden, depth = _half(c, "encoder", causal=False, whisper=True)
    stem: Items = (
        Convolution("conv1", c.size("num_mel_bins", 80), 3, outputs=width, rows_per_token=2),
        Pointwise("conv1/gelu", 2 * width, "gelu"),
        Convolution("conv2", width, 3, outputs=width, stride=2),
        Pointwise("conv2/gelu", width, "gelu"),
        Embedding("embed_positions", source, width, position=True),
        residual("embed/add", width),
    )
    rows = [_layer(c, a, hidden, act, cross=False, pre=True)] * depth
    encoder = stack_of("encoder", width, stem, rows, (norm,), tokens=source)
    return _model(stacks=(decoder, encoder), vocab=vocab, max_position=target)
