"""BERT and its descendants: RoBERTa, ELECTRA, DistilBERT, MPNet, ALBERT, DeBERTa, ModernBERT, EuroBERT, FNet ..."""

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
from flopwise.facts.models.heads import head, labels, prediction_head, task
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
    grouped: bool = False  # matrices are block-diagonal, as many blocks as the configuration says
    mixing: bool = False  # a Fourier transform over the sequence in place of attention


_PRE_NORM = EncoderManner(pre_norm=True, embed_norm=False)
KIN: dict[str, EncoderManner] = {
    "albert": EncoderManner(projected=True),
    "electra": EncoderManner(pooler=False),
    "esm": replace(_PRE_NORM, types=0),
    "fnet": EncoderManner(projected=True, mixing=True),
    "gte": EncoderManner(rope=True, pooler=False, gated=True, up_bias=False),
    "jina_embeddings_v3": EncoderManner(rope=True),
    "megatron-bert": _PRE_NORM,
    "mpnet": EncoderManner(types=0),
    "nomic_bert": EncoderManner(rope=True, pooler=False, gated=True, bias=False, up_bias=False, down_bias=False),
    "rembert": EncoderManner(embed="input_embedding_size", projected=True),
    "roberta-prelayernorm": EncoderManner(pre_norm=True),
    "roformer": EncoderManner(rope=True, pooler=False),
    "squeezebert": EncoderManner(grouped=True),
    "xlm-roberta-xl": _PRE_NORM,
}


def _mixing_width(c: Fields) -> Attention:
    """FNet's width; its mixing has neither heads nor weights."""
    return Attention(width=c.size("hidden_size"), heads=1, kv_heads=1, head_dim=c.size("hidden_size"), cached=False)


def _in_blocks(c: Fields, items: Items) -> Items:
    """SqueezeBERT's matrices: convolutions of kernel one, each of so many blocks of channels (arXiv:2006.11316)."""
    keys = {
        "attention/q_proj": "q_groups", "attention/k_proj": "k_groups", "attention/v_proj": "v_groups",
        "attention/o_proj": "post_attention_groups", "mlp/up_proj": "intermediate_groups",
        "mlp/down_proj": "output_groups",
    }  # fmt: skip

    def block(item: Item) -> Item:
        if not isinstance(item, Linear) or item.name not in keys:
            return item
        count = c.size(keys[item.name], 1 if item.name == "attention/o_proj" else 4)
        if item.inputs % count or item.outputs % count:
            raise c.wrong(keys[item.name], count, f"it must divide {item.inputs} inputs and {item.outputs} outputs")
        return replace(item, inputs=item.inputs // count)

    return tuple(block(item) for item in items)


def _adapter(c: Fields, width: int, layer: Items) -> Items:
    """X-MOD's adapter between a layer's sum and its last norm: one pair of matrices a language, of which one runs.

    Source: arXiv:2205.06266 section 3; XmodOutput of transformers 5, which runs the layer's own norm again before it.
    """
    languages = c.sequence("languages") or ["en_XX"]
    narrow = width // c.size("adapter_reduction_factor", 2)
    down, up = Linear("adapter/down", width, narrow, bias=True), Linear("adapter/up", narrow, width, bias=True)
    rest = (len(languages) - 1) * (2 * width * narrow + width + narrow)
    *before, norm = layer
    own: Items = ()
    if c.flag("adapter_layer_norm"):
        own = (LAYER_NORM("adapter/norm", width),)
    elif c.flag("adapter_reuse_layer_norm", default=True):
        own = (replace(LAYER_NORM("adapter/norm", width), affine=False, bias=False),)
    others: Items = (Weight("adapter/other_languages", rest),) if rest else ()
    act = Pointwise("adapter/act", narrow, activation(c.text("hidden_act", "gelu")))
    return *before, *own, down, act, up, residual("adapter/residual", width), *others, norm


def _spelling_embeddings(c: Fields, width: int, before: Items) -> Items:
    """RoCBERT's embeddings of a character's sound and shape, joined with its own and projected."""
    table, *rest = before
    sizes = [
        (name, c.size(f"{name}_vocab_size"), c.size(f"{name}_embed_dim"))
        for name in ("pronunciation", "shape")
        if c.flag(f"enable_{name}", default=True)
    ]
    tables = tuple(Embedding(f"embed_{name}", rows, dim) for name, rows, dim in sizes)
    joined: Items = ()
    if c.flag("concat_input", default=True):
        joined = (Linear("embed/join", width + sum(dim for _, _, dim in sizes), width, bias=True),)
    return table, *tables, *joined, *rest


def _layer(c: Fields, kin: EncoderManner, a: Attention, *, dropout: bool) -> Items:
    """One layer of BERT's or of its kin's."""
    act, hidden = activation(c.text("hidden_act", "gelu")), c.size("intermediate_size")

    def feed(source: str) -> Items:
        *first, down = mlp(a.width, hidden, act, source, gated=kin.gated, bias=kin.up_bias)
        assert isinstance(down, Linear)
        return *first, replace(down, bias=kin.down_bias)

    pre = kin.pre_norm or (c.model_type == "xmod" and c.flag("pre_norm"))
    arrangement: Arrangement = "pre" if pre else "post-add"
    mixing: Items = (Pointwise("attention/fourier", a.width, "scale", reads="input"),)
    attend: Block = (lambda _: mixing) if kin.mixing else partial(attention, a)
    layer = layer_of(arrangement, a.width, LAYER_NORM, attend, feed, dropout=dropout and not kin.mixing)
    if c.model_type == "xmod":
        return _adapter(c, a.width, layer)
    return _in_blocks(c, layer) if kin.grouped else layer


def bert(c: Fields) -> Model:
    """BERT and its kin: the encoder with the head that `architectures` names, else with its pooler alone."""
    kin = KIN.get(c.model_type, EncoderManner())
    a = _mixing_width(c) if kin.mixing else bidirectional(c)
    layers, dropout = c.layers(), c.number("hidden_dropout_prob") > 0
    rope = kin.rope or (c.model_type == "esm" and c.text("position_embedding_type", "absolute") == "rotary")
    a = replace(a, bias=c.flag("use_bias", default=kin.bias), out_bias=kin.bias, rope_dim=a.head_dim if rope else 0)
    layer = _layer(c, kin, a, dropout=dropout)
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
    if c.model_type == "roc_bert":
        before = _spelling_embeddings(c, a.width, before)
    if c.model_type == "roformer":  # a table of sines that is kept with the weights
        before = (*before, Weight("embed_positions", c.size("max_position_embeddings") * a.head_dim))
    if embed != a.width or kin.projected:
        before = (*before, Linear("embed/project", embed, a.width, bias=True))
    if c.model_type == "mpnet":  # one table of relative positions for all layers
        buckets = c.size("relative_attention_num_buckets", 32)
        before = (*before, Embedding("embed_relative", buckets, a.heads, position=True))
    last = kin.pre_norm or (c.model_type == "xmod" and c.flag("pre_norm"))
    ends: Items = (LAYER_NORM("norm", a.width),) if last else ()
    contacts: Items = ()
    if c.model_type == "esm":
        contacts = (Weight("contact_head", layers * a.heads + 1),)
        if c.flag("emb_layer_norm_before"):
            before = (*before, LAYER_NORM("embed/norm", a.width))
    after = (*ends, *contacts, *head(c, a.width, pooler(a.width) if kin.pooler else (), embed))
    return encoder(c, a.width, before, [layer] * layers, after)


def bert_generation(c: Fields) -> Model:
    """BertGeneration: BERT without types as one half of an encoder-decoder; the decoder has a head without transform.

    Source: arXiv:1907.12461 section 2; BertGenerationDecoder of transformers 5.
    """
    a, dropout = bidirectional(c), c.number("hidden_dropout_prob") > 0
    generates = c.flag("is_decoder")
    a = replace(a, causal=generates, cached=generates)
    layer = post_norm_layer(a, c.size("intermediate_size"), c.text("hidden_act", "gelu"), dropout=dropout)
    vocab, positions = c.size("vocab_size"), c.size("max_position_embeddings")
    named = c.sequence("architectures") or []
    ends: Items = ()
    if any(isinstance(name, str) and name.endswith("Decoder") for name in named):
        tied = c.flag("tie_word_embeddings", default=True)
        ends = (Linear("lm_head", a.width, vocab, bias=True, shard="column", tied=tied),)
        ends = ends if tied else (*ends, Weight("head/bias", vocab))
    before = embeddings(c, a.width, types=0, positions=positions, dropout=dropout)
    return encoder(c, a.width, before, [layer] * c.layers(), ends)


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
    rows[0] = _first_layer(rows[0])
    before = (Embedding("embed_tokens", c.size("vocab_size"), base.width, shard="row"), norm("embed/norm", base.width))
    return encoder(c, base.width, before, rows, (norm("norm", base.width), *head(c, base.width, (), base.width)))


def modernbert_decoder(c: Fields) -> Model:
    """ModernBERT as a decoder (Ettin): causal, a third of the layers see everything, a projection before the head.

    Source: arXiv:2507.11412 section 3; ModernBertDecoderForCausalLM of transformers 5.
    """
    width, vocab, layers = c.size("hidden_size"), c.size("vocab_size"), c.layers()
    a = replace(heads_of(c, width), dropout=c.number("attention_dropout") > 0)
    bias, norm = c.flag("attention_bias"), Normal(kind="layernorm", bias=c.flag("norm_bias"))
    a = replace(a, bias=bias, out_bias=bias, rope_dim=a.head_dim)
    act = activation(c.text("hidden_activation", "gelu"))
    feed = partial(mlp, width, c.size("intermediate_size"), act, bias=c.flag("mlp_bias"), fused=True)
    every, local = max(1, c.count("global_attn_every_n_layers", 3)), c.maybe("local_attention", 128)
    default = ["sliding_attention" if i % every else "full_attention" for i in range(layers)]
    kinds = c.per_layer("layer_types", layers, "") if c.has("layer_types") else default
    window = max(1, local // 2) if local else None

    def layer(window: int | None) -> Items:
        return layer_of("pre", width, norm, partial(attention, replace(a, window=window)), feed)

    rows = one_of_each((window if kind == "sliding_attention" else None for kind in kinds), layer)
    rows[0] = _first_layer(rows[0])
    before = (Embedding("embed_tokens", vocab, width, shard="row"), norm("embed/norm", width))
    after = (norm("norm", width), *_decoder_projection(c, width))
    stack = stack_of("decoder", width, before, rows, after)
    return Model(kind="decoder", stacks=(stack,), vocab=vocab, max_position=c.maybe("max_position_embeddings"))


def _decoder_projection(c: Fields, width: int) -> Items:
    """Layers after the last norm of ModernBERT's decoder: a projection with a norm, and the scores of its task."""
    kind, tied = task(c), c.flag("tie_word_embeddings", default=True)
    named = c.sequence("architectures") or [""]
    if isinstance(named[0], str) and named[0].endswith("Model"):
        return ()
    if kind == "SequenceClassification":
        return *prediction_head(c, width), Linear("score", width, labels(c), bias=c.flag("classifier_bias"))
    bias = c.flag("decoder_bias", default=True)
    scores = Linear("lm_head", width, c.size("vocab_size"), bias=bias, shard="column", tied=tied)
    return *prediction_head(c, width), scores


def _first_layer(layer: Items) -> Items:
    """The first layer of ModernBERT: no norm of its own, what reads it reads the layer's input."""
    return tuple(
        replace(i, reads="input") if isinstance(i, Linear) and i.reads == "input_norm" else i for i in layer[1:]
    )


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
