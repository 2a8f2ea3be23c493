"""BERT and its descendants: RoBERTa, ELECTRA, DistilBERT, MPNet, ALBERT, DeBERTa, ModernBERT."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from flopwise.facts.architecture import Convolution, Embedding, Item, Linear, Model, Pointwise
from flopwise.facts.models.attend import Attention, attention
from flopwise.facts.models.blocks import (
    LAYER_NORM,
    Block,
    Items,
    Normal,
    activation,
    layer_of,
    mlp,
    one_of_each,
    residual,
    stack_of,
)
from flopwise.facts.models.families.gpt import heads_of
from flopwise.facts.models.fields import Fields


def bidirectional(c: Fields, *, dropout: str = "attention_probs_dropout_prob") -> Attention:
    """Multi-head attention without a mask, with biases throughout."""
    return replace(heads_of(c, c.size("hidden_size")), causal=False, cached=False, dropout=c.number(dropout) > 0)


def post_norm_layer(a: Attention, hidden: int, act: str, *, dropout: bool, extra: Items = ()) -> Items:
    """A layer of the original Transformer: attention, add, norm; feed-forward, add, norm."""
    feed = partial(mlp, a.width, hidden, activation(act), gated=False, bias=True)
    attend: Block = lambda source: (*extra, *attention(a, source))  # noqa: E731 - beside `feed`
    return layer_of("post-add", a.width, LAYER_NORM, attend, feed, dropout=dropout)


def pooler(width: int) -> Items:
    """The projection of the first token that BERT's next-sentence head reads."""
    return (
        Linear("pooler", width, width, bias=True, stream="samples"),
        Pointwise("pooler/tanh", width, "tanh", stream="samples"),
    )


def encoder(c: Fields, width: int, before: Items, rows: list[Items], after: Items = ()) -> Model:
    """An encoder model of one stack."""
    stack, positions = stack_of("encoder", width, before, rows, after), c.maybe("max_position_embeddings")
    return Model(kind="encoder", stacks=(stack,), vocab=c.size("vocab_size"), max_position=positions)


def embeddings(c: Fields, dim: int, *, types: int, positions: int, dropout: bool) -> Items:
    """Word, position and type embeddings, their sum and its norm."""
    out: list[Item] = [Embedding("embed_tokens", c.size("vocab_size"), dim, shard="row")]
    if positions:
        out.append(Embedding("embed_positions", positions, dim, position=True))
    if types:
        out.append(Embedding("embed_types", types, dim))
    out += [residual("embed/add", dim), LAYER_NORM("embed/norm", dim)]
    if dropout:
        out.append(Pointwise("embed/dropout", dim, "dropout"))
    return tuple(out)


def bert(c: Fields) -> Model:
    """BERT, RoBERTa, XLM-R, MPNet, ELECTRA, ALBERT: the encoder with its pooler, without a task's head."""
    a, layers = bidirectional(c), c.layers()
    dropout = c.number("hidden_dropout_prob") > 0
    layer = post_norm_layer(a, c.size("intermediate_size"), c.text("hidden_act", "gelu"), dropout=dropout)
    embed = c.maybe("embedding_size") or a.width
    mpnet = c.model_type == "mpnet"
    project = (Linear("embed/project", embed, a.width, bias=True),)
    types = 0 if mpnet else c.count("type_vocab_size", 2)
    before = (
        *embeddings(c, embed, types=types, positions=c.size("max_position_embeddings"), dropout=dropout),
        *(project if embed != a.width or c.model_type == "albert" else ()),
    )
    if mpnet:  # one table of relative positions for all layers
        buckets = c.size("relative_attention_num_buckets", 32)
        before = (*before, Embedding("embed_relative", buckets, a.heads, position=True))
    after = () if c.model_type == "electra" else pooler(a.width)
    return encoder(c, a.width, before, [layer] * layers, after)


def albert(c: Fields) -> Model:
    """ALBERT: BERT whose layers all share one set of weights."""
    if c.count("num_hidden_groups", 1) != 1 or c.count("inner_group_num", 1) != 1:
        raise c.wrong("num_hidden_groups", c.value("num_hidden_groups"), "only one group of one layer is described")
    shared = bert(c)
    stack = shared.stacks[0]
    return replace(shared, stacks=(replace(stack, shared_weights=True),))


def distilbert(c: Fields) -> Model:
    """DistilBERT: BERT without types and pooler."""
    a = bidirectional(c, dropout="attention_dropout")
    dropout = c.number("dropout") > 0
    layer = post_norm_layer(a, c.size("hidden_dim"), c.text("activation", "gelu"), dropout=dropout)
    before = embeddings(c, a.width, types=0, positions=c.size("max_position_embeddings"), dropout=dropout)
    return encoder(c, a.width, before, [layer] * c.layers())


def modernbert(c: Fields) -> Model:
    """ModernBERT: pre-norm, rope, gated, two of three layers with a window; no attention norm in the first."""
    base = bidirectional(c, dropout="attention_dropout")
    bias, norm = c.flag("attention_bias"), Normal(kind="layernorm", bias=c.flag("norm_bias"))
    base = replace(base, bias=bias, out_bias=bias, fused=True, rope_dim=base.head_dim)
    hidden, mlp_bias = c.size("intermediate_size"), c.flag("mlp_bias")
    act = activation(c.text("hidden_activation", "gelu"))
    every, window = max(1, c.count("global_attn_every_n_layers", 3)), c.maybe("local_attention", 128)
    feed = partial(mlp, base.width, hidden, act, bias=mlp_bias, fused=True)

    def layer(window: int | None) -> Items:
        return layer_of("pre", base.width, norm, partial(attention, replace(base, window=window)), feed)

    rows = one_of_each((window if i % every else None for i in range(c.layers())), layer)
    # the first layer has no norm of its own: what reads it reads the layer's input
    rows[0] = tuple(
        replace(i, reads="input") if isinstance(i, Linear) and i.reads == "input_norm" else i for i in rows[0][1:]
    )
    before = (Embedding("embed_tokens", c.size("vocab_size"), base.width, shard="row"), norm("embed/norm", base.width))
    return encoder(c, base.width, before, rows, (norm("norm", base.width),))


def deberta(c: Fields) -> Model:
    """DeBERTa v2 and v3: relative positions, projected by the content's matrices or by ones of their own."""
    a, dropout = bidirectional(c), c.number("hidden_dropout_prob") > 0
    width = a.width
    relative = c.flag("relative_attention")
    rows_of_table = 0
    if relative:
        reach = c.value("max_relative_positions")
        positions = reach if isinstance(reach, int) and reach >= 1 else c.size("max_position_embeddings")
        buckets = c.value("position_buckets")
        rows_of_table = 2 * (buckets if isinstance(buckets, int) and buckets > 0 else positions)
    kinds = c.value("pos_att_type") or []
    kinds = kinds.split("|") if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list):
        raise c.wrong("pos_att_type", kinds, "a list of c2p and p2c is needed")
    shared = c.flag("share_att_key")
    extra: list[Item] = []
    for kind, name in (("c2p", "pos_key_proj"), ("p2c", "pos_query_proj")):
        if relative and kind in kinds:
            # positions through the content's own matrix where it is shared; then content against positions, by head
            table = Linear(f"attention/{name}", width, width, bias=not shared, shard="column")
            extra.append(replace(table, tied=shared, stream="positions", fixed_rows=rows_of_table, reads="positions"))
            extra.append(Linear(f"attention/{kind}", width, rows_of_table, tied=True, shard="row"))
    layer = post_norm_layer(
        a, c.size("intermediate_size"), c.text("hidden_act", "gelu"), dropout=dropout, extra=tuple(extra)
    )
    absolute = c.size("max_position_embeddings") if c.flag("position_biased_input", default=True) else 0
    before: Items = embeddings(c, width, types=c.count("type_vocab_size"), positions=absolute, dropout=dropout)
    if rows_of_table:
        before = (*before, Embedding("embed_relative", rows_of_table, width, position=True))
        if "layer_norm" in c.text("norm_rel_ebd", "none"):
            before = (*before, LAYER_NORM("embed_relative/norm", width))
    kernel = c.count("conv_kernel_size")
    if kernel:
        conv = Convolution("conv", width, kernel, outputs=width)
        before = (*before, conv, LAYER_NORM("conv/norm", width))
    return encoder(c, width, before, [layer] * c.layers())
