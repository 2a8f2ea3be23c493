"""GPT-2 and its contemporaries: LayerNorm with bias, biased projections, learned positions."""

from __future__ import annotations

from flopwise.facts.architecture import Model, Pointwise, Table
from flopwise.facts.models.blocks import LAYER_NORM, Attention, activation, attention, decoder, mlp, pre_norm
from flopwise.facts.models.fields import Fields


def gpt2(c: Fields) -> Model:
    """GPT-2, and GPT-3 and Megatron models of its form: one fused qkv matrix, learned positions, tied head."""
    width, layers = c.size("hidden_size"), c.layers()
    heads, kv_heads, head_dim = c.heads(width, kv_key="num_kv_heads_absent")
    dropout = c.number("resid_pdrop", 0.1) > 0
    a = Attention(
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        bias=True,
        out_bias=True,
        fused=True,
        dropout=c.number("attn_pdrop", 0.1) > 0,
    )
    feed = mlp(
        width,
        c.maybe("n_inner") or 4 * width,
        activation(c.text("activation_function", "gelu")),
        "post_norm",
        gated=False,
        bias=True,
    )
    layer = pre_norm(width, LAYER_NORM, attention(a, "input_norm"), feed, dropout=dropout)
    vocab, positions = c.size("vocab_size"), c.size("max_position_embeddings")
    before = (
        Table(name="embed_positions", rows=positions, dim=width, position=True),
        Pointwise(name="embed/add", dim=width, kind="residual"),
    )
    drop = (Pointwise(name="embed/dropout", dim=width, kind="dropout"),) if c.number("embd_pdrop", 0.1) > 0 else ()
    stack = decoder(
        width,
        vocab,
        [layer] * layers,
        LAYER_NORM("norm", width),
        tied=c.flag("tie_word_embeddings", True),
        before=(*before, *drop),
    )
    return Model(name="", model_type=c.model_type, kind="decoder", stacks=(stack,), vocab=vocab, max_position=positions)
