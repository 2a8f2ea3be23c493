"""Attention that FlashAttention is not built for: heads beyond 256, and windows that are dense masks."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flopwise.cost.cluster import cluster
from flopwise.cost.rates import rates
from flopwise.cost.sustained import BACKWARD_RATE, efficient_attention, training_rates
from flopwise.facts.architecture import Attend
from flopwise.facts.software import beyond_flash
from flopwise.ops.shapes import Shape, Split
from flopwise.training.blocks import BlockContext, kernels_of
from flopwise.training.estimate import estimate
from flopwise.training.job import TrainJob
from flopwise.training.layer_sums import memory_table
from flopwise.training.layout import Layout, Recipe
from flopwise.training.step_figures import StepFigures
from named import FACTS, recipe_with

SLIDING = Attend(name="attention/attend", heads=16, kv_heads=8, qk_dim=256, v_dim=256, window=1024)
FULL = Attend(name="attention/attend", heads=16, kv_heads=2, qk_dim=512, v_dim=512)
GEMMA = FACTS.model("Gemma-4-26B-A4B")


def pass_seconds(item: Attend, recipe: Recipe, tokens: int, gpu: str = "H200") -> list[float]:
    """Seconds of one attention at the boost clock, forward and backward."""
    machines = cluster(FACTS.accelerator(gpu), gpus_per_node=8, network_bytes_per_s_per_gpu=50e9)
    boosted = training_rates(machines.rates, recipe.stack)
    context = BlockContext(recipe, boosted, machines.fabric, Shape(batch=1, query=tokens, context=tokens), Split())
    kernels = kernels_of((item,), context, in_layers=True)
    return [float(np.ravel(kernel.seconds)[0]) for kernel in kernels]


def hugging_face(**how: Any) -> Recipe:
    return recipe_with(seq_len=8192, stack="hf-trainer", **how)


def test_a_window_under_pytorchs_attention_costs_what_was_measured() -> None:
    """verl-project/verl, pull request 7131: 16 heads of 256, 8,192 tokens, forward and backward on an H200.

    72 ms with the window of 1,024 as a dense mask, 2.25 ms where FlashAttention 2 skips what it hides.
    """
    masked, skipped = (sum(pass_seconds(SLIDING, hugging_face(attention=a), 8192)) for a in ("sdpa", "flash"))
    assert masked == pytest.approx(72e-3, rel=0.25)
    assert skipped == pytest.approx(2.25e-3, rel=0.25)


@pytest.mark.parametrize(("gpu", "measured"), [("RTX 4090", 85e12), ("L20", 58e12)])
def test_heads_of_512_run_at_the_measured_rate_of_the_memory_efficient_kernel(gpu: str, measured: float) -> None:
    """xlite-dev/ffpa-attn, README (2025), `SDPA EA`, heads of 512: forward TFLOP/s without a mask."""
    boosted = training_rates(rates(FACTS.accelerator(gpu)), FACTS.stack("hf-trainer"))
    forward, _ = efficient_attention(boosted, 512)
    assert forward * boosted.value["attention_frac"] * boosted.peak["bf16"] == pytest.approx(measured, rel=0.1)


def test_its_backward_pass_takes_as_much_longer_as_was_measured() -> None:
    """xlite-dev/ffpa-attn, pull request 137, heads of 512: 4.94 and 29.57 ms, 19.01 and 100.24, 74.78 and 355.31."""
    forward, backward = pass_seconds(FULL, hugging_face(), 16_384)
    assert backward / forward == pytest.approx(5.3, rel=0.03)
    assert 355.31 / 74.78 < 5.3 < 29.57 / 4.94


def test_small_heads_under_a_mask_run_as_flash_attention_1() -> None:
    boosted = training_rates(rates(FACTS.accelerator("A100-SXM-80")), FACTS.stack("hf-trainer"))
    assert efficient_attention(boosted, 128) == pytest.approx((boosted.value["train_attention_first"], BACKWARD_RATE))


def test_a_mask_is_computed_whole_from_the_windows_length_on() -> None:
    """All 1,024^2 pairs of a head, where causal attention has half of them; below the window there is no mask."""
    recipe = hugging_face(attention="sdpa")
    for tokens, pairs in ((1024, 1024.0**2), (1023, 1023 * 1024 / 2)):
        machines = cluster(FACTS.accelerator("H200"))
        shape = Shape(batch=1, query=tokens, context=tokens)
        context = BlockContext(recipe, training_rates(machines.rates, recipe.stack), machines.fabric, shape, Split())
        forward, backward = kernels_of((SLIDING,), context, in_layers=True)
        assert float(np.ravel(forward.work.causal_flops)[0]) == pairs * 4 * 16 * 256
        assert backward.work.causal_flops == 2.5 * forward.work.causal_flops


def test_transformers_masks_windows_from_their_length_on_and_nothing_else() -> None:
    """masking_utils.py: without a mask `is_causal` goes to PyTorch's attention, whose flash kernel takes no mask."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        pytest.skip("torch and transformers are not installed")
    from transformers.masking_utils import _ignore_causal_mask_sdpa

    def has_mask(tokens: int, window: int | None) -> bool:
        return not _ignore_causal_mask_sdpa(None, tokens, tokens, 0, 0, window)

    assert [has_mask(tokens, 1024) for tokens in (1023, 1024, 16_384)] == [False, True, True]
    assert not has_mask(16_384, None)


def test_transformers_leaves_large_heads_to_pytorchs_attention() -> None:
    """Its FlashAttention refuses the model, so PyTorch's is the default; frameworks without its modules choose."""
    assert [FACTS.stack(name).usual_attention(GEMMA) for name in ("hf-trainer", "fsdp-eager")] == ["sdpa", "flash"]
    assert FACTS.stack("hf-trainer").usual_attention(FACTS.model("Gemma-3-4B")) == "flash"
    assert FACTS.stack("hf-trainer").usual_attention(None) == "flash"
    assert (beyond_flash(FULL), beyond_flash(SLIDING)) == (True, False)
    latent = (item for stack in FACTS.model("DeepSeek-V4-Flash").stacks for item in stack.items)
    assert not any(beyond_flash(item) for item in latent if isinstance(item, Attend))


@pytest.mark.parametrize("stack", ["megatron-te", "nemo-2026", "fsdp-te"])
def test_transformer_engine_writes_the_scores_of_large_heads(stack: str) -> None:
    """NVIDIA/TransformerEngine, issue 3006: neither FlashAttention nor cuDNN's kernels take heads of 512."""
    usual, eager = (recipe_with(seq_len=8192, stack=stack, attention=a) for a in ("flash", "eager"))
    assert pass_seconds(FULL, usual, 8192) == pass_seconds(FULL, eager, 8192)
    assert pass_seconds(replace(FULL, qk_dim=256, v_dim=256), usual, 8192) != pass_seconds(SLIDING, eager, 8192)


def test_kept_scores_of_large_heads_count_in_memory() -> None:
    """Probabilities in 16 bits of the five full layers of 30: 5 x 16 x 4,096^2 x 2 bytes, less one number a row."""
    layout, sizes = Layout(micro_batch=1), []
    for software in (FACTS.stack("megatron-te"), replace(FACTS.stack("megatron-te"), large_heads="efficient")):
        table = memory_table(GEMMA, recipe_with(seq_len=4096, stack=software))
        sizes.append(float(np.ravel(table.sums(layout)[0].activations[0, -1])[0]))
    assert sizes[0] - sizes[1] == pytest.approx(5 * 16 * 4096 * (4096 * 2 - 4), rel=1e-6)


def test_kernels_of_a_systolic_array_take_any_head() -> None:
    flash, other = (
        pass_seconds(replace(FULL, qk_dim=d, v_dim=d), recipe_with(seq_len=8192, stack="xla"), 8192, "tpu-v6e")
        for d in (256, 512)
    )
    assert other[0] == pytest.approx(flash[0] * (512 + 512 + 256) / (256 + 256 + 256), rel=0.2)


def test_an_estimate_explains_the_kernel_that_it_was_timed_with() -> None:
    recipe = recipe_with(seq_len=4096, global_batch=2, stack="hf-trainer-2026", attention="sdpa")
    machines = cluster(FACTS.accelerator("B300"), gpus_per_node=8)
    found = estimate(TrainJob(model=GEMMA, recipe=recipe, layout=Layout(dp=2, zero=3), cluster=machines))
    device = StepFigures(found).device
    usual, full, sliding = (
        float(device.attention_rate(backward=True, efficient=heads).value or 0.0) for heads in (None, 512, 256)
    )
    assert full == sliding
    over_flash = found.table.rates.value["train_attention_frac.fa2"] / found.table.rates.value["attention_frac"]
    assert full / usual == pytest.approx(0.5 * over_flash * 0.47 / BACKWARD_RATE)
