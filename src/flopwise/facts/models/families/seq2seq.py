"""Encoder-decoder models: T5 and its kin, BART, Whisper."""

from __future__ import annotations

from dataclasses import replace

from flopwise.facts.architecture import Convolution, Embedding, Item, Linear, Model, Pointwise, Stack
from flopwise.facts.models.attend import Attention, attention, cross_attention
from flopwise.facts.models.blocks import LAYER_NORM, RMS, Items, Normal, activation, distinct, mlp, residual
from flopwise.facts.models.fields import Fields


def _model(c: Fields, decoder: Stack, encoder: Stack, vocab: int, positions: int | None) -> Model:
    """The model of the two stacks, the decoder first."""
    return Model(
        name="",
        model_type=c.model_type,
        kind="encoder-decoder",
        stacks=(decoder, encoder),
        vocab=vocab,
        max_position=positions,
    )


def t5(c: Fields) -> Model:
    """T5, mT5, UMT5: RMSNorm before blocks, a learned relative-position bias (one table a stack; UMT5: one a layer)."""
    width, d_kv, heads = c.size("d_model"), c.size("d_kv"), c.size("num_heads")
    hidden, dropout = c.size("d_ff"), c.number("dropout_rate") > 0
    feed = c.text("feed_forward_proj", "relu").split("-")
    gated, act = feed[0] == "gated", activation(feed[-1])
    buckets = c.size("relative_attention_num_buckets", 32)
    a = Attention(width=width, heads=heads, kv_heads=heads, head_dim=d_kv, dropout=dropout)
    own_tables = c.model_type == "umt5"

    def layer(*, decoder: bool, first: bool) -> Items:
        own = replace(a, causal=decoder, cached=decoder, position_bias=buckets * heads if first or own_tables else 0)
        drop = (Pointwise(name="dropout", dim=width, kind="dropout"),) if dropout else ()
        items: list[Item] = [
            RMS("input_norm", width),
            *attention(own, "input_norm"),
            *_named(drop, "attention"),
            residual("attention/residual", width, "input"),
        ]
        last = "attention/residual"
        if decoder:
            items += [
                RMS("cross_norm", width),
                *cross_attention(a, "cross_norm", width),
                *_named(drop, "cross"),
                residual("cross/residual", width, last),
            ]
            last = "cross/residual"
        items += [
            RMS("post_norm", width),
            *mlp(width, hidden, act, "post_norm", gated=gated),
            *_named(drop, "mlp"),
            residual("mlp/residual", width, last),
        ]
        return tuple(items)

    depth = c.layers("num_layers")
    below = c.maybe("num_decoder_layers") or depth
    vocab, tied = c.size("vocab_size"), c.flag("tie_word_embeddings", default=True)
    shared = Embedding(name="embed_tokens", rows=vocab, dim=width, shard="row")
    head = Linear(name="lm_head", inputs=width, outputs=vocab, shard="column", tied=tied)
    encoder_rows = [layer(decoder=False, first=i == 0) for i in range(min(depth, 2))]
    decoder_rows = [layer(decoder=True, first=i == 0) for i in range(min(below, 2))]
    decoder = _stack("decoder", width, (shared,), _repeated(decoder_rows, below), (RMS("norm", width), head))
    encoder = _stack("encoder", width, (), _repeated(encoder_rows, depth), (RMS("norm", width),))
    model = _model(c, decoder, encoder, vocab, c.maybe("n_positions", 512))
    return replace(model, notes=("the encoder reads the decoder's embedding table",))


def _tied(c: Fields) -> bool:
    return c.flag("tie_word_embeddings", default=True)


def _repeated(rows: list[Items], depth: int) -> list[Items]:
    """The first row once, the last as often as the depth asks."""
    return [rows[0]] + [rows[-1]] * (depth - 1)


def _named(items: tuple[Pointwise, ...], part: str) -> tuple[Pointwise, ...]:
    return tuple(replace(i, name=f"{part}/{i.name}") for i in items)


def _stack(
    name: str, width: int, before: Items, rows: list[Items], after: Items, *, tokens: int | None = None
) -> Stack:
    kinds, order = distinct(rows)
    return Stack(name=name, width=width, before=before, kinds=kinds, order=order, after=after, tokens_per_sample=tokens)


def _layer(c: Fields, a: Attention, hidden: int, act: str, *, cross: bool, pre: bool) -> Items:
    """A biased layer of BART (norms after the sums) or Whisper (norms before the blocks)."""
    w, norm = a.width, LAYER_NORM
    drop = (Pointwise(name="dropout", dim=w, kind="dropout"),) if c.number("dropout") > 0 else ()
    out: list[Item] = []
    last = "input"
    crossing = replace(a, causal=False, cached=True)
    parts: list[tuple[str, str, Items]] = [("attention", "input_norm", attention(a, "input_norm" if pre else last))]
    if cross:
        parts.append(("cross", "cross_norm", cross_attention(crossing, "cross_norm" if pre else "attention/norm", w)))
    previous = "cross/norm" if cross else "attention/norm"
    parts.append(
        ("mlp", "post_norm", mlp(w, hidden, activation(act), "post_norm" if pre else previous, gated=False, bias=True))
    )
    for part, before, block in parts:
        out += [norm(before, w)] if pre else []
        out += [*block, *_named(drop, part), residual(f"{part}/residual", w, last)]
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
        width=width,
        heads=heads,
        kv_heads=heads,
        head_dim=width // heads,
        bias=True,
        out_bias=True,
        k_bias=False if whisper else None,
        causal=causal,
        cached=causal,
        dropout=c.number("attention_dropout") > 0,
    )
    return a, c.size(f"{side}_ffn_dim"), c.layers(f"{side}_layers")


def bart(c: Fields) -> Model:
    """BART: learned positions with two spare rows, norms after the sums, one embedding for both halves and the head."""
    width, vocab, positions = c.size("d_model"), c.size("vocab_size"), c.size("max_position_embeddings")
    act = c.text("activation_function", "gelu")
    place = (
        Embedding(name="embed_positions", rows=positions + 2, dim=width, position=True),
        residual("embed/add", width),
        LAYER_NORM("embed/norm", width),
    )
    a, hidden, depth = _half(c, "decoder", causal=True, whisper=False)
    table = Embedding(name="embed_tokens", rows=vocab, dim=width, shard="row")
    head = Linear(name="lm_head", inputs=width, outputs=vocab, shard="column", tied=_tied(c))
    decoder = _stack(
        "decoder", width, (table, *place), [_layer(c, a, hidden, act, cross=True, pre=False)] * depth, (head,)
    )
    a, hidden, depth = _half(c, "encoder", causal=False, whisper=False)
    encoder = _stack("encoder", width, place, [_layer(c, a, hidden, act, cross=False, pre=False)] * depth, ())
    return _model(c, decoder, encoder, vocab, positions)


def whisper(c: Fields) -> Model:
    """Whisper: two convolutions over mel frames, an encoder of 1500 positions, a decoder with cross-attention."""
    width, vocab = c.size("d_model"), c.size("vocab_size")
    mels, source, target = (
        c.size("num_mel_bins", 80),
        c.size("max_source_positions", 1500),
        c.size("max_target_positions", 448),
    )
    act = c.text("activation_function", "gelu")
    a, hidden, depth = _half(c, "decoder", causal=True, whisper=True)
    before: Items = (
        Embedding(name="embed_tokens", rows=vocab, dim=width, shard="row"),
        Embedding(name="embed_positions", rows=target, dim=width, position=True),
        residual("embed/add", width),
    )
    head = Linear(name="lm_head", inputs=width, outputs=vocab, shard="column", tied=_tied(c))
    decoder = _stack(
        "decoder",
        width,
        before,
        [_layer(c, a, hidden, act, cross=True, pre=True)] * depth,
        (Normal(kind="layernorm", bias=True)("norm", width), head),
    )
    a, hidden, depth = _half(c, "encoder", causal=False, whisper=True)
    stem: Items = (
        Convolution(name="conv1", channels=mels, kernel=3, outputs=width, rows_per_token=2),
        Pointwise(name="conv1/gelu", dim=2 * width, kind="gelu"),
        Convolution(name="conv2", channels=width, kernel=3, outputs=width, stride=2),
        Pointwise(name="conv2/gelu", dim=width, kind="gelu"),
        Embedding(name="embed_positions", rows=source, dim=width, position=True),
        residual("embed/add", width),
    )
    rows = [_layer(c, a, hidden, act, cross=False, pre=True)] * depth
    encoder = _stack("encoder", width, stem, rows, (LAYER_NORM("norm", width),), tokens=source)
    return _model(c, decoder, encoder, vocab, target)
