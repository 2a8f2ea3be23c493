"""Speech encoders over raw sound: wav2vec 2.0, HuBERT, UniSpeech and UniSpeech-SAT; a token is a frame."""

from __future__ import annotations

import math
from functools import partial

from flopwise.facts.architecture import Convolution, Item, Linear, Model, Pointwise, Weight
from flopwise.facts.models.attend import Attention, attention
from flopwise.facts.models.blocks import LAYER_NORM, Arrangement, Items, activation, layer_of, mlp, residual, stack_of
from flopwise.facts.models.fields import Fields
from flopwise.facts.models.heads import labels, sequence_classifier

_CONVOLUTIONS = ("conv_dim", "conv_kernel", "conv_stride")


def _sizes(c: Fields) -> list[tuple[int, int, int]]:
    """Channels, kernel and stride of each convolution."""
    columns = [c.sequence(key) or [] for key in _CONVOLUTIONS]
    if not columns[0] or len({len(column) for column in columns}) > 1:
        raise c.wrong("conv_dim", columns[0], f"{', '.join(_CONVOLUTIONS)} of one length are needed")
    if not all(isinstance(size, int) and 0 < size < 10**6 for column in columns for size in column):
        raise c.wrong("conv_dim", columns[0], "whole numbers are needed")
    return list(zip(*columns, strict=True))


def _stem(c: Fields, width: int) -> Items:
    """The convolutions over samples, their norms, and the projection of a frame; of one frame, those of all strides.

    Source: arXiv:2006.11477 section 2; Wav2Vec2FeatureEncoder of transformers 5.
    """
    sizes, before = _sizes(c), 1
    every = c.text("feat_extract_norm", "group") == "layer"
    items: list[Item] = []
    for index, (channels, kernel, stride) in enumerate(sizes):
        rows = math.prod(later for _, _, later in sizes[index + 1 :])
        bias = c.flag("conv_bias")
        items.append(
            Convolution(f"conv{index}", before, kernel, outputs=channels, bias=bias, stride=stride, rows_per_token=rows)
        )
        if every or index == 0:
            items.append(LAYER_NORM(f"conv{index}/norm", channels))
        items.append(Pointwise(f"conv{index}/act", rows * channels, "gelu"))
        before = channels
    if c.flag("feat_proj_layer_norm", default=True):
        items.append(LAYER_NORM("project/norm", before))
    return *items, Linear("project", before, width, bias=True)


def _positions(c: Fields, width: int) -> Items:
    """A grouped convolution, its kernel kept as direction and length (weight normalisation), added to the frames."""
    taps, groups = c.size("num_conv_pos_embeddings", 128), c.size("num_conv_pos_embedding_groups", 16)
    if width % groups:
        raise c.wrong("num_conv_pos_embedding_groups", groups, f"it must divide hidden_size = {width}")
    return (
        Convolution("positions", width // groups, taps, outputs=width),
        Weight("positions/lengths", taps),
        Pointwise("positions/act", width, "gelu"),
        residual("positions/add", width),
    )


def _ends(c: Fields, width: int) -> Items:
    """The head that `architectures` names: letters for CTC, classes of clips, or none."""
    named = c.sequence("architectures") or [""]
    first = named[0] if isinstance(named[0], str) else ""
    if first.endswith("ForCTC"):
        return (Linear("lm_head", width, c.size("vocab_size"), bias=True),)
    if first.endswith("ForSequenceClassification"):
        inner = c.size("classifier_proj_size", 256)
        return Linear("projector", width, inner, bias=True), sequence_classifier(inner, labels(c))
    if first and not first.endswith("Model"):
        raise c.wrong("architectures", first, "base models, CTC and classifiers of clips are described")
    return ()


def speech(c: Fields) -> Model:
    """Convolutions over sound, then BERT's encoder, normed after its sums or before its blocks (large models)."""
    width, heads = c.size("hidden_size"), c.size("num_attention_heads")
    if width % heads:
        raise c.wrong("hidden_size", width, f"it must be a multiple of num_attention_heads = {heads}")
    for key in ("add_adapter", "use_weighted_layer_sum"):
        if c.flag(key):
            raise c.wrong(key, c.value(key), "encoders without it are described")
    if c.maybe("adapter_attn_dim") is not None:
        raise c.wrong("adapter_attn_dim", c.value("adapter_attn_dim"), "layers without adapters are described")
    a = Attention(
        width=width, heads=heads, kv_heads=heads, head_dim=width // heads, bias=True, out_bias=True, causal=False,
        cached=False, dropout=c.number("attention_dropout") > 0,
    )  # fmt: skip
    act = activation(c.text("hidden_act", "gelu"))
    feed = partial(mlp, width, c.size("intermediate_size"), act, gated=False, bias=True)
    kind: Arrangement = "pre" if c.flag("do_stable_layer_norm") else "post-add"
    layer = layer_of(kind, width, LAYER_NORM, partial(attention, a), feed, dropout=c.number("hidden_dropout") > 0)
    masks = c.number("mask_time_prob", 0.05) > 0 or c.number("mask_feature_prob") > 0
    mask: Items = (Weight("masked_frame", width),) if masks or c.model_type == "unispeech-sat" else ()
    norm = LAYER_NORM("norm", width)
    before = (*_stem(c, width), *mask, *_positions(c, width), *(() if kind == "pre" else (norm,)))
    after = (*((norm,) if kind == "pre" else ()), *_ends(c, width))
    stack = stack_of("encoder", width, before, [layer] * c.layers(), after)
    return Model(kind="encoder", stacks=(stack,), vocab=c.size("vocab_size", 32))
