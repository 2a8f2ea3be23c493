"""What stands on top of an encoder, for the task that `architectures` names.

Source: the `...For<Task>` classes of transformers 5.
"""

from __future__ import annotations

from flopwise.facts.architecture import Item, Linear, Norm, Pointwise, Stream, Weight
from flopwise.facts.models.blocks import LAYER_NORM, Items, activation, mlp
from flopwise.facts.models.fields import Fields

_POOLED = {
    "bert", "albert", "ernie", "fnet", "layoutlm", "megatron-bert", "rembert", "roc_bert", "squeezebert",
}  # fmt: skip
"""Families whose classifier of sequences reads the pooler; the others' has a projection of its own."""
_ALWAYS_POOLED = {"big_bird", "fnet", "layoutlm", "squeezebert"}
"""Families that keep and run their pooler whatever the task."""
_ONE_BIAS = {"rembert", "electra", "esm", "distilbert", "gte"}
"""Families whose untied head has one bias; the others keep one beside their matrix's own."""
_TASKS = (
    "MaskedLM", "PreTraining", "SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice",
    "NextSentencePrediction",
)  # fmt: skip
_GENERATING = ("ForCausalLM", "LMHeadModel")
"""Ends of the names of encoders' classes that generate: the head is that of masked language models."""


def architecture(c: Fields) -> str:
    """The first of `architectures`, the class that a checkpoint is of; "" where none stands."""
    named = c.sequence("architectures")
    return named[0] if named and isinstance(named[0], str) else ""


def task(c: Fields) -> str:
    """The task that the first of `architectures` is for (`MaskedLM` ...); "" for a base model, or where none stands."""
    first = architecture(c)
    return next((name for name in _TASKS if first.endswith(f"For{name}")), "")


def labels(c: Fields) -> int:
    """The number of classes: `num_labels`, else the entries of `id2label`, else two (three of BART)."""
    names, default = c.value("id2label"), 3 if c.model_type == "bart" else 2
    return c.size("num_labels", len(names) if isinstance(names, dict) and names else default)


def head(c: Fields, width: int, pooler: Items, embed: int) -> Items:
    """The items after an encoder's last layer: its task's head, or the `pooler` of the base model.

    `embed`: width of the embeddings, which the head of masked language models returns to.
    """
    kind = "MaskedLM" if architecture(c).endswith(_GENERATING) else task(c)
    if kind in ("", "NextSentencePrediction"):
        return pooler if not kind else (*pooler, sequence_classifier(width, 2))
    if kind == "PreTraining":
        return _pre_training(c, width, pooler, embed)
    before: Items = pooler if c.model_type in _ALWAYS_POOLED else ()
    if c.model_type == "modernbert":
        before = prediction_head(c, width)
    if kind == "MaskedLM":
        return *before, *_masked_tokens(c, width, embed)
    if kind == "TokenClassification":
        return *before, Linear("classifier", width, labels(c), bias=True)
    if kind == "QuestionAnswering":
        before = _answer_block(c, width) if c.model_type == "big_bird" else before
        return *before, Linear("classifier", width, 2, bias=True)
    return _sequence_head(c, width, pooler, before, choice=kind == "MultipleChoice")


def _pre_training(c: Fields, width: int, pooler: Items, embed: int) -> Items:
    """BERT's two heads of pre-training, of which RoCBert has one; ELECTRA's, which tells replaced tokens from given."""
    if c.model_type == "electra":
        return Linear("head/dense", width, width, bias=True), Linear("head/score", width, 1, bias=True)
    pairs = () if c.model_type == "roc_bert" else (sequence_classifier(width, 2),)
    return *_masked_tokens(c, width, embed), *pooler, *pairs


def _sequence_head(c: Fields, width: int, pooler: Items, before: Items, *, choice: bool) -> Items:
    """The head of classifiers of sequences, and of multiple choice, which scores each answer by one number."""
    outputs = 1 if choice else labels(c)
    if c.model_type == "modernbert":  # pools before its head
        return *prediction_head(c, width, stream="samples"), sequence_classifier(width, outputs)
    if choice and c.model_type == "roformer":
        return *before, sequence_classifier(width, outputs)
    if c.model_type in _POOLED or (choice and pooler):
        return *pooler, sequence_classifier(width, outputs)
    if c.model_type == "eurobert":  # pools after its classifier
        return Linear("head/dense", width, width, bias=True), Linear("classifier", width, outputs, bias=True)
    dense = Linear("head/dense", width, width, bias=True, stream="samples")
    act = Pointwise("head/act", width, "tanh", stream="samples")
    return *before, dense, act, sequence_classifier(width, outputs)


def _answer_block(c: Fields, width: int) -> Items:
    """BigBird's feed-forward block and norm between its last layer and the scores of first and last token."""
    block = mlp(
        width, c.size("intermediate_size"), activation(c.text("hidden_act", "gelu")), "", gated=False, bias=True,
        prefix="head",
    )  # fmt: skip
    return *block, LAYER_NORM("head/norm", width)


def sequence_classifier(width: int, outputs: int) -> Linear:
    """Scores of `outputs` classes, one row a sequence."""
    return Linear("classifier", width, outputs, bias=True, stream="samples")


def prediction_head(c: Fields, width: int, stream: Stream = "tokens") -> Items:
    """ModernBERT's projection and norm, before every head; of the one token of a sample that it pools, or of all."""
    norm = Norm("head/norm", width, kind="layernorm", bias=c.flag("norm_bias"), stream=stream)
    dense = Linear("head/dense", width, width, bias=c.flag("classifier_bias"), stream=stream)
    return dense, Pointwise("head/act", width, "gelu", stream=stream), norm


def _masked_tokens(c: Fields, width: int, embed: int) -> Items:
    """The head of masked language models: a transform with its norm, and the vocabulary's matrix with a bias."""
    vocab, tied = c.size("vocab_size"), c.flag("tie_word_embeddings", default=True)
    if c.model_type in ("modernbert", "eurobert"):
        bias = c.flag("decoder_bias", default=True) if c.model_type == "modernbert" else c.flag("mlp_bias")
        return (Linear("lm_head", width, vocab, bias=bias, shard="column", tied=tied),)
    if c.model_type == "rembert":
        embed, tied = c.size("output_embedding_size"), False
    dense: Item = Linear("head/dense", width, embed, bias=True)
    return (
        dense,
        Pointwise("head/act", embed, "gelu"),
        LAYER_NORM("head/norm", embed),
        Linear("lm_head", embed, vocab, bias=True, shard="column", tied=tied),
        *(() if tied or c.model_type in _ONE_BIAS else (Weight("head/bias", vocab),)),
    )
