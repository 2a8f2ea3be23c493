"""Operations of whole models against published formulas and counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwise.errors import MissingFactError
from flopwise.facts.architecture import Model, Published
from flopwise.facts.models.config import model_from_config
from flopwise.ops.flops import backward_flops, causal_forward_flops, forward_flops, operations
from flopwise.ops.tensors import active_parameters, parameters


def vit(width: int, layers: int, heads: int, hidden: int, patch: int, **more: Any) -> Model:
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": hidden,
    }
    return model_from_config({"model_type": "vit", **sizes, "image_size": 224, "patch_size": patch, **more}, name="vit")


def bert(width: int, layers: int, heads: int, hidden: int) -> Model:
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": hidden,
    }
    return model_from_config(
        {"model_type": "bert", **sizes, "vocab_size": 30522, "max_position_embeddings": 512}, name="bert"
    )


def llama(**more: Any) -> Model:
    base = {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
    }
    return model_from_config({**base, **more}, name="llama")


# Counted with torch 2.13 on the meta device, one sample: BERT with 512 tokens, ViT with one image.
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (bert(768, 12, 12, 3072), 96_637_943_808),
        (bert(1024, 24, 16, 4096), 335_009_546_240),
        (vit(768, 12, 12, 3072, 16), 35_127_656_448),
        (vit(1024, 24, 16, 4096, 16), 123_109_425_152),
        (vit(1280, 32, 16, 5120, 14), 334_590_218_240),
    ],
)
def test_counted_encoders(model: Model, expected: int) -> None:
    assert forward_flops(model, 1, 512) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("seq", [1024, 4096, 8192])
def test_six_n_d_and_the_attention_share(seq: int) -> None:
    """PaLM, appendix B: 6 N a token for all but the embedding, and 12 L H Q T for attention."""
    model = llama()
    matrices = parameters(model) - 128256 * 4096
    norms = 65 * 4096  # norm weights are in no product
    palm = 6 * (matrices - norms) + 12 * 32 * 32 * 128 * seq
    counted = (forward_flops(model, 1, seq) + backward_flops(model, 1, seq)) / seq
    assert counted == pytest.approx(palm)
    assert counted == pytest.approx(6 * parameters(model), rel=0.02 + seq / 40_000)


def test_gpt_3_training_cost_of_brown_et_al() -> None:
    """Table D.1: 3.14e23 operations for 175B parameters and 300B tokens, embedding and attention left out."""
    config = {
        "model_type": "gpt2",
        "n_embd": 12288,
        "n_layer": 96,
        "n_head": 96,
        "vocab_size": 50257,
        "n_positions": 2048,
    }
    model = model_from_config(config, name="gpt3")
    step = forward_flops(model, 1, 2048) + backward_flops(model, 1, 2048)
    assert step / 2048 * 300e9 == pytest.approx(3.14e23, rel=0.05)


def test_megatron_formula_of_narayanan_et_al() -> None:
    """Equation 3 without recompute (factor 72 for 96): 72 B s l h^2 (1 + s/6h + V/12lh)."""
    width, layers, vocab, seq = 12288, 96, 51200, 2048
    config = {
        "model_type": "gpt2",
        "n_embd": width,
        "n_layer": layers,
        "n_head": 96,
        "vocab_size": vocab,
        "n_positions": seq,
    }
    model = model_from_config(config, name="gpt3")
    formula = 72 * seq * layers * width**2 * (1 + seq / (6 * width) + vocab / (12 * layers * width))
    assert forward_flops(model, 1, seq) + backward_flops(model, 1, seq) == pytest.approx(formula)


def test_mixtures_count_active_experts() -> None:
    model = llama(model_type="mixtral", num_local_experts=8, num_experts_per_tok=2)
    matrices = active_parameters(model) - 128256 * 4096 - 65 * 4096
    attention = 2 * 32 * 32 * 2 * 128 * 1024
    assert forward_flops(model, 1, 1024) / 1024 == pytest.approx(2 * matrices + attention)


def test_windows_cut_causal_operations_only() -> None:
    full, windowed = llama(), llama(model_type="mistral", sliding_window=1024)
    assert forward_flops(full, 1, 8192) == forward_flops(windowed, 1, 8192)
    assert causal_forward_flops(windowed, 1, 8192) < causal_forward_flops(full, 1, 8192) < forward_flops(full, 1, 8192)


def test_frozen_weights_have_no_weight_gradients() -> None:
    model = llama()
    trained, frozen = backward_flops(model, 1, 128), backward_flops(model, 1, 128, trainable=frozenset({"q_proj"}))
    attention = 2 * next(o.flops for o in operations(model, 1, 128) if o.name == "attention/attend")
    assert frozen - attention == pytest.approx((trained - attention) / 2)


def test_operations_sum_to_the_whole() -> None:
    model = llama()
    listed = operations(model, 2, 512)
    assert sum(o.flops for o in listed) == pytest.approx(forward_flops(model, 2, 512))
    assert len({o.name for o in listed}) == len(listed)
    weights = 2 * (parameters(model) - 128256 * 4096)
    assert sum(o.bytes for o in operations(model, 1, 1)) == pytest.approx(
        weights, rel=0.01
    )  # one token reads the weights


def test_published_networks_have_their_figures() -> None:
    facts = Published(
        parameters=25_557_032,
        forward_flops_per_sample=8.18e9,
        training_flops_per_sample=None,
        sample_bytes=None,
        sample="image",
    )
    resnet = Model(name="ResNet-50", model_type="resnet", kind="convolutional", stacks=(), published=facts)
    assert forward_flops(resnet, 32, 1) == 32 * 8.18e9
    assert backward_flops(resnet, 32, 1) == 64 * 8.18e9
    unknown = Model(name="X", model_type="x", kind="scientific", stacks=())
    with pytest.raises(MissingFactError, match="X: operations of a forward pass are not known"):
        forward_flops(unknown, 1, 1)


@given(batch=st.integers(1, 512), seq=st.integers(1, 32768))
def test_grid_equals_scalar(batch: int, seq: int) -> None:
    model = llama(num_hidden_layers=2)
    for count in (forward_flops, backward_flops, causal_forward_flops):
        grid = count(model, np.array([[batch], [3]]), np.array([seq, 17]))
        assert grid[0, 0] == pytest.approx(count(model, batch, seq))  # type: ignore[index]
        assert grid[1, 1] == pytest.approx(count(model, 3, 17))  # type: ignore[index]


@given(batch=st.integers(1, 64), seq=st.integers(1, 4096))
def test_more_work_never_costs_less(batch: int, seq: int) -> None:
    model = llama(num_hidden_layers=2)
    assert forward_flops(model, batch + 1, seq) > forward_flops(model, batch, seq)
    assert causal_forward_flops(model, batch, seq + 1) > causal_forward_flops(model, batch, seq)
