"""BERT and its descendants: post-norm encoders with learned positions."""

from __future__ import annotations

from flopwise.facts.architecture import Item, Model, Pointwise, Stack, Table
from flopwise.facts.models.blocks import LAYER_NORM, Attention, Items, activation, attention, distinct, mlp, residual
from flopwise.facts.models.fields import Fields


def post_norm_layer(a: Attention, hidden: int, act: str, *, dropout: bool) -> Items:
    """A layer of the original Transformer: attention, add, norm; feed-forward, add, norm."""
    w = a.width
    drop = (lambda name: (Pointwise(name=name, dim=w, kind="dropout"),)) if dropout else (lambda _name: ())
    return (
        *attention(a, "input"), *drop("attention/dropout"), residual("attention/residual", w, "input"), LAYER_NORM("attention/norm", w),
        *mlp(w, hidden, activation(act), "attention/norm", gated=False, bias=True), *drop("mlp/dropout"), residual("mlp/residual", w, "attention/norm"), LAYER_NORM("mlp/norm", w),
    )  # fmt: skip


def bert(c: Fields) -> Model:
    """BERT, RoBERTa, XLM-R and ELECTRA: the encoder with its pooler (ELECTRA has none), without a task's head."""
    width, layers = c.size("hidden_size"), c.layers()
    heads, kv_heads, head_dim = c.heads(width, kv_key="num_kv_heads_absent")
    dropout = c.number("hidden_dropout_prob", 0.1) > 0
    a = Attention(
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        bias=True,
        out_bias=True,
        causal=False,
        cached=False,
        dropout=c.number("attention_probs_dropout_prob", 0.1) > 0,
    )
    layer = post_norm_layer(a, c.size("intermediate_size"), c.text("hidden_act", "gelu"), dropout=dropout)
    vocab, positions = c.size("vocab_size"), c.size("max_position_embeddings")
    embed = c.maybe("embedding_size") or width
    from flopwise.facts.architecture import Linear  # noqa: PLC0415

    project: tuple[Item, ...] = (
        (Linear(name="embed/project", inputs=embed, outputs=width, bias=True),) if embed != width else ()
    )
    before = (
        Table(name="embed_tokens", rows=vocab, dim=embed, shard="row"),
        Table(name="embed_positions", rows=positions, dim=embed, position=True),
        Table(name="embed_types", rows=c.size("type_vocab_size", 2), dim=embed),
        Pointwise(name="embed/add", dim=embed, kind="residual"),
        LAYER_NORM("embed/norm", embed),
        *((Pointwise(name="embed/dropout", dim=embed, kind="dropout"),) if dropout else ()),
        *project,
    )
    after: tuple[Item, ...] = (
        Linear(name="pooler", inputs=width, outputs=width, bias=True, stream="samples"),
        Pointwise(name="pooler/tanh", dim=width, kind="tanh", stream="samples"),
    )
    if c.model_type == "electra":
        after = ()
    kinds, order = distinct([layer] * layers)
    stack = Stack(name="encoder", width=width, before=before, kinds=kinds, order=order, after=after)
    return Model(name="", model_type=c.model_type, kind="encoder", stacks=(stack,), vocab=vocab, max_position=positions)
