"""Random small configurations of text and image types: parameters and operations as transformers and PyTorch count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flopwise.errors import SpecError
from flopwise.facts.architecture import Convolution, Model
from flopwise.facts.models.config import model_from_config
from flopwise.ops.flops import forward_flops
from flopwise.ops.habits import model_of_modules
from flopwise.ops.tensors import parameters

RECORD: dict[str, Any] = json.loads((Path(__file__).parents[1] / "oracle" / "random.json").read_text(encoding="utf-8"))
ROWS: list[dict[str, Any]] = RECORD["rows"]

OTHER_PARAMETERS = {
    "mt5": "transformers 5 builds no head of its own where `tie_word_embeddings` is false; checkpoints have one",
    "t5": "same",
    "umt5": "same",
}
OTHER_OPERATIONS = {
    "deepseek_v32": "the indexer's scores, 0.5 %",
    "deepseek_v4": "the indexer's scores, 1 %",
    "glm_moe_dsa": "the indexer's scores, 0.5 %",
    "phimoe": "its router runs experts of its own way",
    "recurrent_gemma": "rows that pad the convolution, 0.3 %",
}


def model(row: dict[str, Any]) -> Model:
    return model_from_config(row["config"], name=row["config"]["model_type"])


def padded_convolutions(described: Model) -> float:
    """The counter counts a depthwise convolution over its padding, too: kernel - 1 rows a sequence."""
    batch: int = RECORD["batch"]
    return sum(
        2.0 * stack.order.count(i) * item.kernel * (item.kernel - 1) * batch * item.channels
        for stack in described.stacks
        for i, layer in enumerate(stack.kinds)
        for item in layer.items
        if isinstance(item, Convolution) and item.outputs is None
    )


def test_enough_are_recorded() -> None:
    assert len(ROWS) >= 600
    assert len({row["config"]["model_type"] for row in ROWS}) >= 170


def test_parameters_are_exact() -> None:
    exact = [row for row in ROWS if row["config"]["model_type"] not in OTHER_PARAMETERS]
    wrong = {json.dumps(row["config"]) for row in exact if parameters(model(row)) != row["parameters"]}
    assert wrong == set()
    assert len(exact) >= 0.97 * len(ROWS)


def test_operations_are_within_a_thousandth() -> None:
    counted = [row for row in ROWS if row["forward"]]
    close = [row for row in counted if row["config"]["model_type"] not in OTHER_OPERATIONS]
    for row in close:
        described, shape = model_of_modules(model(row)), {}
        if described.kind == "encoder-decoder":
            shape = {"encoder": RECORD["seq"]}
        ours = forward_flops(described, RECORD["batch"], RECORD["seq"], **shape) + padded_convolutions(described)
        assert ours == pytest.approx(row["forward"], rel=1e-3), row["config"]
    assert len(close) >= 0.92 * len(counted)
    assert len(counted) >= 0.85 * len(ROWS)


def test_modules_that_run_every_expert_cost_more_than_those_a_token_is_sent_to() -> None:
    rows = [row for row in ROWS if row["forward"] and row["config"]["model_type"] == "llama4_text"]
    assert len(rows) >= 3
    for row in rows:
        sent = model(row)
        assert parameters(model_of_modules(sent)) == parameters(sent)
        assert forward_flops(sent, RECORD["batch"], RECORD["seq"]) < 0.9 * row["forward"]


def test_a_head_goes_by_the_task_that_the_configuration_names() -> None:
    sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "max_position_embeddings": 16}

    def of(kind: str, architecture: str) -> int:
        return parameters(model_from_config({"model_type": kind, **sizes, "architectures": [architecture]}, name="x"))

    base = of("bert", "BertModel")
    pooler, transform, norm, labels = 32 * 32 + 32, 32 * 32 + 32, 2 * 32, 2 * 32 + 2
    assert of("bert", "BertForMaskedLM") == base - pooler + transform + norm + 100  # its matrix is the embedding's
    assert of("bert", "BertForSequenceClassification") == base + labels
    assert of("bert", "BertForTokenClassification") == base - pooler + labels
    assert of("bert", "BertForPreTraining") == base + transform + norm + 100 + labels
    head = 100 * 32  # Llama's is untied
    assert of("llama", "LlamaModel") == of("llama", "LlamaForCausalLM") - head
    assert of("llama", "LlamaForSequenceClassification") == of("llama", "LlamaForCausalLM") - head + 2 * 32


def test_modernbert_classifies_the_token_that_it_pools() -> None:
    """Its head runs on one token of a sequence, as transformers' ModernBertForSequenceClassification pools first."""
    sizes = {"vocab_size": 131, "hidden_size": 72, "intermediate_size": 80, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 6, "max_position_embeddings": 96}
    kinds = ("ModernBertModel", "ModernBertForSequenceClassification")
    base, classifier = (
        forward_flops(
            model_from_config({"model_type": "modernbert", **sizes, "architectures": [kind]}, name="x"), 2, 40
        )
        for kind in kinds
    )
    assert classifier - base == 2 * 2 * (72 * 72 + 72 * 2)  # two samples


def test_dbrx_has_its_published_parameters() -> None:
    sizes = {"d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352, "max_seq_len": 32768}
    nested = {
        "attn_config": {"kv_n_heads": 8},
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    }
    # 132B, of which 36B work on a token: its model card
    assert parameters(model_from_config({"model_type": "dbrx", **sizes, **nested}, name="dbrx")) == 131_596_523_520


SPEECH: dict[str, tuple[dict[str, Any], float]] = {
    "base": (
        {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}, 94.37e6,
    ),
    "large": (
        {
            "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
            "do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True,
        },
        315.44e6,
    ),
}  # fmt: skip
"""Sizes of wav2vec 2.0 and HuBERT, and their parameters as torchaudio's page of models states them."""


@pytest.mark.parametrize("size", SPEECH)
@pytest.mark.parametrize("kind", ["wav2vec2", "hubert"])
def test_encoders_of_sound_have_their_published_size_and_operations(kind: str, size: str) -> None:
    """A frame by hand: convolutions at 64, 32 ... 1 rows, the projection, 128 taps in 16 groups, then the layers."""
    sizes, published = SPEECH[size]
    described = model_from_config({"model_type": kind, "vocab_size": 32, **sizes}, name=kind)
    assert parameters(described) == pytest.approx(published, rel=1e-3)
    width, hidden, layers, frames = sizes["hidden_size"], sizes["intermediate_size"], sizes["num_hidden_layers"], 500
    stem = 512 * (10 * 64 + 512 * (3 * (32 + 16 + 8 + 4) + 2 * (2 + 1)))
    each = 4 * width * width + 2 * width * hidden + 2 * frames * width
    matrices = stem + 512 * width + width * width // 16 * 128 + layers * each
    assert forward_flops(described, 1, frames) == 2 * frames * matrices


T5_SIZES = {
    "vocab_size": 97, "d_model": 48, "d_kv": 8, "d_ff": 80, "num_heads": 5, "num_layers": 3, "num_decoder_layers": 2,
    "feed_forward_proj": "gated-gelu",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "prefix"), [("t5", "T5"), ("mt5", "MT5")])
def test_an_encoder_alone_is_half_of_t5(kind: str, prefix: str) -> None:
    """By hand: a table of 97 x 48, three layers, one table of 32 x 5 for positions and a norm; as transformers 5."""
    layer = 4 * 48 * 40 + 3 * 48 * 80 + 2 * 48
    alone = 97 * 48 + 3 * layer + 32 * 5 + 48
    assert alone == 62_752

    def of(architecture: str) -> Model:
        return model_from_config({"model_type": kind, **T5_SIZES, "architectures": [architecture]}, name="x")

    assert parameters(of(f"{prefix}EncoderModel")) == alone
    assert of(f"{prefix}EncoderModel").kind == "encoder"
    assert parameters(of(f"{prefix}ForTokenClassification")) == alone + 48 * 2 + 2
    assert parameters(of(f"{prefix}Model")) == 117_008
    assert parameters(of(f"{prefix}ForQuestionAnswering")) == 117_008 + 48 * 2 + 2
    both = forward_flops(of(f"{prefix}Model"), 1, 16, encoder=16)
    assert 0.3 < forward_flops(of(f"{prefix}EncoderModel"), 1, 16) / both < 0.6


def test_encoders_that_generate_have_the_head_of_masked_language_models() -> None:
    """RobertaForCausalLM: lm_head.dense 32 x 32 + 32, layer_norm 2 x 32, a bias of 100; its decoder is tied."""
    sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "max_position_embeddings": 16}

    def of(kind: str, architecture: str) -> int:
        return parameters(model_from_config({"model_type": kind, **sizes, "architectures": [architecture]}, name="x"))

    for kind, prefix in (("roberta", "Roberta"), ("electra", "Electra"), ("camembert", "Camembert")):
        assert of(kind, f"{prefix}ForCausalLM") == of(kind, f"{prefix}ForMaskedLM")
    assert of("bert", "BertLMHeadModel") == of("bert", "BertForMaskedLM")
    pooler = 32 * 32 + 32
    head = 32 * 32 + 32 + 2 * 32 + 100
    assert of("roberta", "RobertaForCausalLM") == of("roberta", "RobertaModel") - pooler + head
    assert of("bert", "BertForPreTraining") - of("bert", "BertForMaskedLM") == pooler + 2 * 32 + 2


def test_half_of_bart_is_refused() -> None:
    sizes = {"vocab_size": 100, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64}
    sizes |= {"decoder_ffn_dim": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    config = {"model_type": "bart", **sizes, "architectures": ["BartForCausalLM"]}
    with pytest.raises(SpecError, match="decoder without its encoder is not described"):
        model_from_config(config, name="x")
