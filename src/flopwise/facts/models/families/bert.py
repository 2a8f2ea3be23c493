"""BERT and its descendants: RoBERTa, ELECTRA, DistilBERT, MPNet, ALBERT, DeBERTa, ModernBERT, EuroBERT, ESM ..."""

from __future__ import annotations

from functools import partial

from flopwise.facts.architecture import Convolution, Embedding, Item, Linear, Model, Pointwise, Weight
from flopwise.facts.models.attend import Attention, attention
from flopwise.facts.models.blocks import (
    LAYER_NORM,
    RMS,
    Arrangement,
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
from flopwise.facts.models.families.llama import TRAITS, plain_feed, standard_attention
from flopwise.facts.models.fields import Fields
from flopwise.facts.models.heads import head
from flopwise.values import dataclass, replace


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


def embeddings(c: Fields, dim: int, *, types: int, positions: int, dropout: bool, norm: bool = True) -> Items:
    """Word, position and type embeddings, their sum and its norm."""
    out: list[Item] = [Embedding("embed_tokens", c.size("vocab_size"), dim, shard="row")]
    if positions:
        out.append(Embedding("embed_positions", positions, dim, position=True))
    if types:
        out.append(Embedding("embed_types", types, dim))
    out.append(residual("embed/add", dim))
    if norm:
        out.append(LAYER_NORM("embed/norm", dim))
    if dropout:
        out.append(Pointwise("embed/dropout", dim, "dropout"))
    return tuple(out)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderManner:
    """The differences of a descendant from BERT."""

    pre_norm: bool = False  # norms before the blocks and one at the end, not after the sums
    embed_norm: bool = True
    rope: bool = False  # in place of a table of positions
    pooler: bool = True
    gated: bool = False
    bias: bool = True  # of the attention's matrices
    up_bias: bool = True  # of the feed-forward block's first matrices
    down_bias: bool = True
    types: int | None = None  # of tokens, where the configuration does not say; None: two
    embed: str = "embedding_size"  # key of the embeddings' width, where it is not the layers'
    projected: bool = False  # a projection into the layers' width, even where it is the same


_PRE_NORM = EncoderManner(pre_norm=True, embed_norm=False)
KIN: dict[str, EncoderManner] = {
    "albert": EncoderManner(projected=True),
    "electra": EncoderManner(pooler=False),
    "esm": replace(_PRE_NORM, types=0),
    "gte": EncoderManner(rope=True, pooler=False, gated=True, up_bias=False),
    "jina_embeddings_v3": EncoderManner(rope=True),
    "megatron-bert": _PRE_NORM,
    "mpnet": EncoderManner(types=0),
    "nomic_bert": EncoderManner(rope=True, pooler=False, gated=True, bias=False, up_bias=False, down_bias=False),
    "rembert": EncoderManner(embed="input_embedding_size", projected=True),
    "roberta-prelayernorm": EncoderManner(pre_norm=True),
    "roformer": EncoderManner(rope=True, pooler=False),
    "xlm-roberta-xl": _PRE_NORM,
}


def bert(c: Fields) -> Model:
    """BERT and its kin: the encoder with the head that `architectures` names, else with its pooler alone."""
    kin = KIN.get(c.model_type, EncoderManner())
    a, layers, dropout = bidirectional(c), c.layers(), c.number("hidden_dropout_prob") > 0
    rope = kin.rope or (c.model_type == "esm" and c.text("position_embedding_type", "absolute") == "rotary")
    a = replace(a, bias=kin.bias, out_bias=kin.bias, rope_dim=a.head_dim if rope else 0)
    act, hidden = activation(c.text("hidden_act", "gelu")), c.size("intermediate_size")

    def feed(source: str) -> Items:
        *first, down = mlp(a.width, hidden, act, source, gated=kin.gated, bias=kin.up_bias)
        assert isinstance(down, Linear)
        return *first, replace(down, bias=kin.down_bias)

    arrangement: Arrangement = "pre" if kin.pre_norm else "post-add"
    layer = layer_of(arrangement, a.width, LAYER_NORM, partial(attention, a), feed, dropout=dropout)
    embed = c.maybe(kin.embed) or a.width
    types = 0 if kin.types == 0 else c.count("type_vocab_size", 2)
    positions = 0 if rope else c.size("max_position_embeddings")
    before: Items = embeddings(c, embed, types=types, positions=positions, dropout=dropout, norm=kin.embed_norm)
    if c.model_type == "layoutlm":  # corners, height and width of a token's box
        boxes = c.size("max_2d_position_embeddings", 1024)
        before = (
            *before,
            *(Embedding(f"embed_{place}", boxes, embed, position=True) for place in ("x", "y", "h", "w")),
        )
    if c.model_type == "ernie" and c.flag("use_task_id"):
        before = (*before, Embedding("embed_tasks", c.size("task_type_vocab_size", 3), embed))
    if c.model_type == "roformer":  # a table of sines that is kept with the weights
        before = (*before, Weight("embed_positions", c.size("max_position_embeddings") * a.head_dim))
    if embed != a.width or kin.projected:
        before = (*before, Linear("embed/project", embed, a.width, bias=True))
    if c.model_type == "mpnet":  # one table of relative positions for all layers
        buckets = c.size("relative_attention_num_buckets", 32)
        before = (*before, Embedding("embed_relative", buckets, a.heads, position=True))
    ends: Items = (LAYER_NORM("norm", a.width),) if kin.pre_norm else ()
    contacts: Items = ()
    if c.model_type == "esm":
        contacts = (Weight("contact_head", layers * a.heads + 1),)
        if c.flag("emb_layer_norm_before"):
            before = (*before, LAYER_NORM("embed/norm", a.width))
    after = (*ends, *contacts, *head(c, a.width, pooler(a.width) if kin.pooler else (), embed))
    return encoder(c, a.width, before, [layer] * layers, after)


def eurobert(c: Fields) -> Model:
    """EuroBERT: Llama's layers without a causal mask."""
    base = replace(standard_attention(c, TRAITS["llama"]), causal=False, cached=False)
    feed = plain_feed(c, TRAITS["llama"], c.size("intermediate_size"))
    layer = layer_of("pre", base.width, RMS, partial(attention, base), feed)
    table = Embedding("embed_tokens", c.size("vocab_size"), base.width, shard="row")
    after = (RMS("norm", base.width), *head(c, base.width, (), base.width))
    return encoder(c, base.width, (table,), [layer] * c.layers(), after)


def albert(c: Fields) -> Model:
    """ALBERT: BERT whose layers share weights, all of them or those of a group."""
    if c.count("inner_group_num", 1) != 1:
        raise c.wrong("inner_group_num", c.value("inner_group_num"), "groups of one layer each are described")
    shared, groups = bert(c), c.count("num_hidden_groups", 1)
    stack = shared.stacks[0]
    if groups > stack.num_layers:
        raise c.wrong("num_hidden_groups", groups, f"at most num_hidden_layers = {stack.num_layers} groups")
    return replace(shared, stacks=(replace(stack, shared_weights=True, weight_groups=groups),))


def distilbert(c: Fields) -> Model:
    """DistilBERT: BERT without types and pooler."""
    a = bidirectional(c, dropout="attention_dropout")
    dropout = c.number("dropout") > 0
    layer = post_norm_layer(a, c.size("hidden_dim"), c.text("activation", "gelu"), dropout=dropout)
    before = embeddings(c, a.width, types=0, positions=c.size("max_position_embeddings"), dropout=dropout)
    return encoder(c, a.width, before, [layer] * c.layers(), head(c, a.width, (), a.width))


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
    return encoder(c, base.width, before, rows, (norm("norm", base.width), *head(c, base.width, (), base.width)))


def deberta(c: Fields) -> Model:
    """DeBERTa: relative positions, projected by the content's matrices (v2, v3) or by ones of their own."""
    a, dropout, v2 = bidirectional(c), c.number("hidden_dropout_prob") > 0, c.model_type == "deberta-v2"
    if not v2:
        a = replace(a, k_bias=False)
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
    shared = v2 and c.flag("share_att_key")
    extra: list[Item] = []
    for kind, name in (("c2p", "pos_key_proj"), ("p2c", "pos_query_proj")):
        if relative and kind in kinds:
            # positions through the content's own matrix where it is shared; then content against positions, by head
            table = Linear(f"attention/{name}", width, width, bias=not shared and (v2 or kind == "p2c"), shard="column")
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
    kernel = c.count("conv_kernel_size") if v2 else 0
    if kernel:
        conv = Convolution("conv", width, kernel, outputs=width)
        before = (*before, conv, LAYER_NORM("conv/norm", width))
    return encoder(c, width, before, [layer] * c.layers(), head(c, width, (), width))
