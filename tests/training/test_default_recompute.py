"""What is computed again where nobody says: one default for the memory of a step and for its time."""

from __future__ import annotations

from typing import Any

import pytest

from flopwise import memory, train
from flopwise.facts.models.catalog import load_model
from flopwise.training.answer import TrainAnswer
from flopwise.training.layout import Layout
from flopwise.training.memory import step_memory
from flopwise.training.memory_answer import TrainingMemoryAnswer
from named import recipe_with

MODEL = "Llama-3.1-8B"


def answers(**options: Any) -> tuple[TrainingMemoryAnswer, TrainAnswer]:
    """Memory and speed by the same options."""
    held, timed = memory(MODEL, **options), train(MODEL, **options)
    assert isinstance(held, TrainingMemoryAnswer)
    assert isinstance(timed, TrainAnswer)
    return held, timed


@pytest.mark.parametrize("gpu", ["4090", "h100"])
def test_a_quantised_base_is_computed_again_by_default(gpu: str) -> None:
    """As PEFT, torchtune and LLaMA-Factory have it."""
    held, timed = answers(gpu=gpu, qlora=True, seq=2048)
    assert held.layout.recompute == timed.estimate.job.layout.recompute == 2
    assert held.layout.recompute_first == timed.estimate.job.layout.recompute_first == 0
    assert held.fits
    assert timed.fits
    assert memory(MODEL, gpu=gpu, qlora=True, seq=2048, recompute="none").per_gpu_bytes > 1.5 * held.per_gpu_bytes


def test_a_base_in_16_bits_is_not() -> None:
    held, _ = answers(gpu="h200", lora=16, seq=2048)
    assert held.layout.recompute == 0


def test_more_is_computed_again_where_it_would_not_fit() -> None:
    """By hand: the kinds in their order, against the device."""
    options = {"gpu": "4xa100-80gb", "fsdp": True, "seq": 8192, "global_batch": 128}
    held, timed = answers(**options)
    recipe = recipe_with(seq_len=8192, global_batch=128, stack="fsdp-compile")
    plain, selective = (
        float(step_memory(load_model(MODEL), recipe, Layout(dp=4, zero=3, recompute=mode)).total_bytes)
        for mode in (0, 1)
    )
    assert held.capacity_bytes is not None
    assert selective < held.capacity_bytes < plain
    assert held.layout.recompute == timed.estimate.job.layout.recompute == 1
    assert held.per_gpu_bytes == timed.memory.per_gpu_bytes == pytest.approx(selective)
    for one in (held, timed):
        assert any(
            "recompute selective by default, as with recompute none it takes" in note for note in one.assumptions
        )
    assert timed.laid_out == "given"
    assert not answers(**options, recompute="none")[0].fits


def test_what_accumulated_gradients_add_is_named() -> None:
    """Memory is that of a single micro-batch where no batch is given; a run of several holds gradients between them."""
    options = {"gpu": "8xh100", "fsdp": True, "seq": 8192, "micro_batch": 1}
    held, timed = answers(**options)
    assert timed.estimate.job.recipe.global_batch > 8
    more = f"{timed.memory.per_gpu_bytes / 2**30:.2f} GiB"
    assert any("one micro-batch a step; with gradients accumulated" in n and more in n for n in held.assumptions)
    again, same = answers(**options, global_batch=512)
    assert again.per_gpu_bytes == same.memory.per_gpu_bytes == timed.memory.per_gpu_bytes
    assert not any("one micro-batch a step" in note for note in again.assumptions)


def test_odds_that_stand_on_what_nobody_stated_say_so() -> None:
    held = memory(MODEL, gpu="8xh100", zero=1)
    assert isinstance(held, TrainingMemoryAnswer)
    assert held.fits is False
    assert held.fits_probability is not None
    assert held.stated_probability is not None
    assert held.stated_probability < 0.75 * held.fits_probability
    assert "with these settings: another stack, not stated, may take less)" in held.verdict
    stated = memory(MODEL, gpu="8xh100", zero=1, stack="fsdp-compile", recompute="none", micro_batch=1, seq=4096)
    assert "with these settings" not in stated.verdict
