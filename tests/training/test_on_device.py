"""Recipes as devices can run them: number formats, attention kernels, fp32 copies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import flopwise
from flopwise.cost.rates import rates
from flopwise.search.plan import plan
from flopwise.search.run_job import candidate_job
from flopwise.search.workload import resolve
from flopwise.training.estimate import TrainEstimate, estimate
from flopwise.training.layout import Recipe
from flopwise.training.on_device import FP16, recipe_on
from flopwise.training.widths import trained_widths
from named import FACTS


def asked(stack: str = "fsdp-compile", **fields: Any) -> Recipe:
    return Recipe(seq_len=1024, global_batch=8, optimizer=FACTS.optimizer("adamw"), stack=FACTS.stack(stack), **fields)


@pytest.mark.parametrize(
    ("gpu", "precision", "attention"),
    [
        ("t4", "fp16", "sdpa"), ("V100-SXM2-16", "fp16", "sdpa"), ("P100-PCIe-16", "fp16", "sdpa"),
        ("k80", "fp32", "eager"),  # units for neither 16-bit format, and older than memory-efficient attention
        ("a100", "bf16", "flash"), ("l4", "bf16", "flash"), ("mi300x", "bf16", "flash"), ("tpu-v6e", "bf16", "flash"),
    ],
)  # fmt: skip
def test_a_device_trains_in_what_it_has_units_and_kernels_for(gpu: str, precision: str, attention: str) -> None:
    recipe, _ = recipe_on(asked(), FACTS.accelerator(gpu))
    assert (recipe.precision, recipe.attention) == (precision, attention)
    again, _ = recipe_on(recipe, FACTS.accelerator(gpu))
    assert again is recipe


def test_a_recipe_that_runs_as_it_is_stays_the_same() -> None:
    recipe = asked()
    assert recipe_on(recipe, FACTS.accelerator("h100")) == (recipe, ())
    assert recipe_on(recipe, FACTS.accelerator("h100"))[0] is recipe


@pytest.mark.parametrize(
    ("gpu", "precision"), [("h100", "fp8_block"), ("rtx-4090", "fp8_block"), ("b200", "mxfp8"), ("mi355x", "mxfp8")]
)
def test_scales_of_32_elements_need_units_for_them(gpu: str, precision: str) -> None:
    """OCP Microscaling Formats 1.0: Blackwell and CDNA 4 have the units; Hopper and Ada scale whole blocks."""
    recipe, notes = recipe_on(asked("megatron-te", precision="mxfp8"), FACTS.accelerator(gpu))
    assert recipe.precision == precision
    assert any("no units for mxfp8" in note for note in notes) == (precision != "mxfp8")


def test_fp16_names_loss_scaling_and_keeps_fp32_masters() -> None:
    """A stack of pure 16-bit weights has 2 bytes a parameter; in fp16 an fp32 copy stands beside: 2 + 4."""
    pure = replace(FACTS.stack("fsdp-compile"), weights_dtype="compute", master_weights=False)
    recipe, notes = recipe_on(replace(asked(), stack=pure), FACTS.accelerator("t4"))
    assert FP16 in notes
    widths = trained_widths(recipe)
    assert (widths.weights, widths.master) == (2.0, 4.0)
    chosen, notes = recipe_on(replace(asked(precision="fp16"), stack=pure), FACTS.accelerator("h100"))
    assert chosen.master_weights
    assert notes == (FP16,)


@pytest.mark.parametrize("gpu", ["t4", "V100-SXM2-16", "P100-PCIe-16"])
def test_train_says_what_old_devices_do_without(gpu: str) -> None:
    answer = flopwise.train("gpt2", gpu=gpu, seq=1024, global_batch=8)
    recipe = dict(answer.settings)["recipe"]
    assert recipe.startswith("fp16, adamw, sdpa attention")
    said = " ".join(answer.assumptions)
    assert "has no bf16 units: trained in fp16" in said
    assert "loss scaling" in said
    assert "FlashAttention-2" in said


def test_memory_of_training_is_of_what_the_device_runs() -> None:
    answer = flopwise.memory("gpt2", task="train", gpu="t4", seq=1024)
    assert dict(answer.settings)["recipe"].startswith("fp16")
    assert any("loss scaling" in text for text in answer.assumptions)


def test_a_plan_has_each_device_s_own_precision() -> None:
    workload = resolve(
        {
            "model": "gpt2", "task": "pretrain", "data": {"tokens": "50M", "seq_len": 1024, "global_batch": 64},
            "constraints": {"gpus": ["t4", "l4"], "max_gpus": 4},
        }
    )  # fmt: skip
    answer = plan(workload, FACTS)
    assert {(c.gpu, c.layout["precision"]) for c in answer.plans} == {("T4", "fp16"), ("L4", "bf16")}
    assert any("T4 has no bf16 units" in text for text in answer.assumptions)
    old = next(c for c in answer.plans if c.gpu == "T4")
    offer = next(o for o in FACTS.offers if o.key == (old.provider, old.instance, old.region))
    again = estimate(candidate_job(workload, FACTS.model("gpt2"), FACTS, offer, old))
    assert again.job.recipe.precision == "fp16"
    assert again.step_s == pytest.approx(old.figures["step_s"], rel=1e-6)


@pytest.mark.parametrize("stack", ["hf-trainer-2026", "fsdp-eager-2026", "fsdp-compile-2026"])
@pytest.mark.parametrize(
    ("gpu", "kernel"),
    [
        ("h100", "cudnn"), ("b200", "cudnn"), ("b300", "cudnn"), ("gb300", "cudnn"),
        ("a100", "fa2"), ("l40s", "fa2"), ("rtx-4090", "fa2"), ("rtx-5090", "fa2"), ("mi300x", "fa2"),
    ],
)  # fmt: skip
def test_pytorch_of_2026_takes_cudnn_s_attention_on_hopper_and_blackwell(stack: str, gpu: str, kernel: str) -> None:
    """PyTorch, sdp_utils.cpp, check_prefer_cudnn_attention: compute capabilities 9 and 10."""
    recipe, notes = recipe_on(asked(stack), FACTS.accelerator(gpu))
    assert (recipe.stack.attention_kernel, notes) == (kernel, ())
    assert recipe_on(recipe, FACTS.accelerator(gpu))[0] is recipe


def test_pytorch_s_own_choice_is_as_fast_as_the_kernels_it_takes() -> None:
    """At 131,072 tokens attention is most of a step: cuDNN's rate on Hopper over that of FlashAttention-2 there."""
    found = {
        stack: flopwise.train(
            "Llama-3.2-1B", gpu="h100", seq=131_072, global_batch=1, micro_batch=1, recompute="full", stack=stack
        ).estimate.step_s
        for stack in ("fsdp-eager", "fsdp-eager-2026")
    }
    there = rates(FACTS.accelerator("h100")).value
    gain = there["train_attention_frac.cudnn"] / there["train_attention_frac.fa2"]
    assert 1.0 + 0.5 * (gain - 1.0) < found["fsdp-eager"] / found["fsdp-eager-2026"] < gain


def test_models_of_tokens_train_in_tf32() -> None:
    """The tensor units' rate on operands of 32 bits: memory of fp32, an A100's products up to eight times as fast."""
    full, tf32, half = (
        flopwise.train("gpt2-xl", gpu="a100-80gb", precision=name, micro_batch=8, seq=1024, global_batch=8).estimate
        for name in ("fp32", "tf32", "bf16")
    )
    assert isinstance(full, TrainEstimate)
    assert isinstance(tf32, TrainEstimate)
    assert isinstance(half, TrainEstimate)
    assert full.memory.total_bytes == tf32.memory.total_bytes > half.memory.total_bytes
    assert half.step_s < tf32.step_s < full.step_s < 8 * tf32.step_s
    assert tf32.step_s > 1.8 * half.step_s  # half the rate, twice the bytes
    old = flopwise.train("gpt2", gpu="v100", micro_batch=2, precision="tf32", seq=512, global_batch=2)
    assert "V100-SXM2-16 has no tf32 units: trained in fp32" in old.assumptions
    assert old.estimate.job.recipe.precision == "fp32"
