"""Activation bytes against the formulas of the literature, and their properties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwise.errors import SpecError
from flopwise.facts.architecture import Attend, Experts, Layer, Norm
from flopwise.facts.models.catalog import load_model
from flopwise.facts.models.config import model_from_config
from flopwise.facts.software import RECOMPUTE
from flopwise.ops.habits import Habit
from flopwise.ops.saved import Setting, trace_items
from flopwise.ops.shapes import Shape, Split, Trainable
from flopwise.training.layer_sums import layer_activation_bytes
from named import FACTS


def kept_tensors(layer: Layer, width: int, batch: int, seq: int, **options: Any) -> dict[str, Any]:
    shape = Shape(batch=batch, query=seq, context=seq)
    return trace_items(layer.items, Setting(shape=shape, **options), width).kept


def gpt(heads: int, width: int, layers: int = 2) -> Layer:
    config = {"model_type": "gpt2", "vocab_size": 51200, "n_embd": width, "n_head": heads, "n_layer": layers}
    dropouts = {"attn_pdrop": 0.1, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "n_positions": 2048}
    return model_from_config({**config, **dropouts}, name="gpt").stacks[0].kinds[0]


LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}

# Korthikanti et al. 2022, table 2: bytes of a layer divided by s b h. (heads, width): GPT-3 175B, MT-NLG 530B, 1T.
SIZES = {"175B": (96, 12288), "530B": (128, 20480), "1T": (160, 25600)}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("t", [1, 2, 4, 8])
def test_korthikanti_table_2(size: str, t: int) -> None:
    a, h = SIZES[size]
    s, b = 2048, 3
    layer, unit, score = gpt(a, h), s * b * h, 5 * a * s / h

    def kept(recompute: str, *, sequence_parallel: bool) -> float:
        split = Split(tp=t, sequence_parallel=sequence_parallel)
        return float(layer_activation_bytes(layer, h, b, s, recompute=recompute, split=split, flash=False)) / unit

    if t == 1:
        assert kept("none", sequence_parallel=False) == pytest.approx(34 + score)
    assert kept("none", sequence_parallel=False) == pytest.approx(10 + 24 / t + score / t)
    assert kept("none", sequence_parallel=True) == pytest.approx((34 + score) / t)
    assert kept("selective", sequence_parallel=False) == pytest.approx(10 + 24 / t)
    assert kept("selective", sequence_parallel=True) == pytest.approx(34 / t)
    assert kept("full", sequence_parallel=False) == pytest.approx(2)


@pytest.mark.parametrize(("size", "saved"), [("175B", 0.70), ("530B", 0.65)])
def test_korthikanti_share_of_selective_recompute(size: str, saved: float) -> None:
    a, h = SIZES[size]
    none, selective = (
        layer_activation_bytes(gpt(a, h), h, 1, 2048, recompute=r, flash=False) for r in ("none", "selective")
    )
    assert 1 - selective / none == pytest.approx(saved, abs=0.005)


def test_flash_attention_keeps_no_scores() -> None:
    a, h = SIZES["175B"]
    flash = layer_activation_bytes(gpt(a, h), h, 1, 2048)
    assert flash / (2048 * h) == pytest.approx(34, rel=0.01)  # and one fp32 number a head and row


def test_gated_layer_tensor_by_tensor() -> None:
    layer = model_from_config(LLAMA, name="llama").stacks[0].kinds[0]
    kept = kept_tensors(layer, 4096, 1, 1000)
    assert {name: size / 1000 / 2 for name, size in kept.items()} == {
        "input": 4096,
        "input_norm": 4096,
        "attention/attend/q": 4096,
        "attention/attend/k": 1024,
        "attention/attend/v": 1024,
        "attention/attend/logsumexp": 64,
        "attention/attend": 4096,
        "attention/residual": 4096,
        "post_norm": 4096,
        "mlp/gate_proj": 14336,
        "mlp/up_proj": 14336,
        "mlp/act": 14336,
    }


def test_frozen_weights_keep_no_inputs() -> None:
    layer = model_from_config(LLAMA, name="llama").stacks[0].kinds[0]

    def kept(*names: str) -> float:
        trainable: Trainable = frozenset(f"{name}_proj" for name in names) if names else "all"
        options: dict[str, Any] = {"trainable": trainable, "rank": 16} if names else {}
        return float(layer_activation_bytes(layer, 4096, 1, 4096, implementation="sdpa", **options))

    trained, adapters, everywhere = kept(), kept("q", "v"), kept("q", "k", "v", "o", "gate", "up", "down")
    assert adapters < everywhere < trained


def test_unknown_names_are_refused() -> None:
    layer = gpt(4, 64)
    with pytest.raises(SpecError, match="allowed: eager, sdpa, fused"):
        layer_activation_bytes(layer, 64, 1, 8, implementation="flashy")


@given(
    ranks=st.tuples(st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2])),
    batch=st.integers(1, 8),
    seq=st.integers(8, 4096),
    mode=st.sampled_from(RECOMPUTE),
    implementation=st.sampled_from(["eager", "sdpa", "fused"]),
)
def test_grid_equals_scalar(ranks: tuple[int, int], batch: int, seq: int, mode: str, implementation: str) -> None:
    tp, cp = ranks
    layer = model_from_config({**LLAMA, "model_type": "mistral", "sliding_window": 1024}, name="m").stacks[0].kinds[0]
    column = np.array
    grid = layer_activation_bytes(
        layer,
        4096,
        column([batch, 2]),
        column([seq, 64]),
        implementation=implementation,
        recompute=mode,
        split=Split(tp=column([tp, 1]), cp=column([cp, 1])),
    )
    single = layer_activation_bytes(
        layer, 4096, batch, seq, implementation=implementation, recompute=mode, split=Split(tp=tp, cp=cp)
    )
    assert grid[0] == pytest.approx(single)  # type: ignore[index]


@given(
    seq=st.integers(8, 2048),
    tp=st.sampled_from([1, 2, 4, 8]),
    implementation=st.sampled_from(["eager", "sdpa", "fused"]),
)
def test_more_recompute_never_keeps_more(seq: int, tp: int, implementation: str) -> None:
    layer = gpt(8, 512)
    kept = [
        float(
            layer_activation_bytes(layer, 512, 2, seq, implementation=implementation, recompute=m, split=Split(tp=tp))
        )
        for m in RECOMPUTE
    ]
    assert kept[0] >= kept[1] >= kept[2] > 0


def test_one_tensor_as_key_and_value_is_kept_once_and_compressed_keys_count() -> None:
    kinds = load_model("DeepSeek-V4-Flash").stacks[0].kinds
    heavy = next(k for k in kinds if any(isinstance(i, Attend) and i.compress == 128 for i in k.items))
    fused = kept_tensors(heavy, 4096, 2, 300)
    assert "attention/attend/v" not in fused
    assert fused["attention/attend/k"] == 2 * (300 + 2) * 512 * 2
    eager = kept_tensors(heavy, 4096, 2, 300, implementation="eager")
    assert eager["attention/attend/softmax"] == 2 * 64 * 300 * (300 + 2) * 4


def test_the_kernel_of_mamba_2_keeps_its_projection_and_its_scan() -> None:
    """mamba_ssm's MambaSplitConv1dScanCombinedFn saves zxbcdt and out_x; gate, norm and product read one tensor each.

    8 heads of 8 and a group of 16 states: z and x of 64 channels, B and C of 16, a step of each head make 168 a token.
    Kept: the layer's input and its norm (2 x 32), the projection (168), the scan, the gate's result and the norm's (3 x
    64): 424 elements of 2 bytes. Autograd's operations keep the convolution and its activation besides.
    """
    config = {
        "model_type": "mamba2", "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 96, "state_size": 16,
        "num_heads": 8, "head_dim": 8, "expand": 2, "n_groups": 1, "conv_kernel": 4, "use_bias": False,
    }  # fmt: skip
    layer = model_from_config(config, name="mamba").stacks[0].kinds[0]
    kept = kept_tensors(layer, 32, 3, 128)
    assert sum(float(v) for v in kept.values()) == 2 * 424 * 3 * 128
    eager = kept_tensors(layer, 32, 3, 128, implementation="sdpa")
    assert sum(float(v) for v in eager.values()) > 1.5 * 2 * 424 * 3 * 128


def test_a_projection_after_experts_reads_one_row_a_token() -> None:
    """Nemotron 3's experts work in a latent space: what its up-projection keeps is the sum of the copies, not each."""
    model = load_model("Nemotron-3-Super-120B-A12B")
    layer = next(kind for kind in model.stacks[0].kinds if any(i.name == "latent/up_proj" for i in kind.items))
    down = next(item for item in layer.items if isinstance(item, Experts) and item.shard == "row")
    kept = kept_tensors(layer, model.stacks[0].width, 2, 64)
    assert float(kept["experts/combine"]) == 2 * 2 * 64 * down.outputs
    assert float(kept["experts/down_proj"]) == down.top_k * float(kept["experts/combine"])


def test_a_norm_of_one_kernel_keeps_its_input_and_a_number_a_row() -> None:
    """PyTorch's fused RMSNorm; its operations keep an fp32 copy, the normalised rows and the number."""
    layer = model_from_config({**LLAMA, "num_hidden_layers": 1}, name="llama").stacks[0].kinds[0]
    rows, width = 2 * 256, 4096
    fused = kept_tensors(layer, width, 2, 256, implementation="sdpa", habit=Habit(fused_norm=True))
    plain = kept_tensors(layer, width, 2, 256, implementation="sdpa")
    norms = [item.name for item in layer.items if isinstance(item, Norm)]
    assert len(norms) == 2
    assert sum(float(fused[f"{name}/statistics"]) for name in norms) == 2 * rows * 4
    assert sum(map(float, plain.values())) - sum(map(float, fused.values())) == 2 * rows * width * (4 + 2 - 2)
    assert FACTS.stack("fsdp-eager-2026").fused_norms
    assert not FACTS.stack("fsdp-eager").fused_norms
