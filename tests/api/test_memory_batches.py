"""The batch of a training step in `memory`: by micro-batches, or as a whole."""

from __future__ import annotations

from functools import partial

import pytest

import flopwise
from flopwise.errors import SpecError


def test_a_global_batch_is_that_many_micro_batches() -> None:
    """Four replicas of two sequences: 32 are four micro-batches, whose gradients are kept between them."""
    step = partial(flopwise.memory, "gpt2", gpu="h100", task="train", dp=4, micro_batch=2, seq=1024)
    one, four = step(grad_accum=1), step(grad_accum=4)
    assert step(global_batch=32).to_dict() == four.to_dict()
    assert step(global_batch_tokens=32 * 1024).to_dict() == four.to_dict()
    assert step(global_batch=8).to_dict() == one.to_dict() != four.to_dict()


def test_a_global_batch_that_cannot_be() -> None:
    with pytest.raises(SpecError, match="a global batch of 30 is no multiple of 8"):
        flopwise.memory("gpt2", task="train", dp=4, micro_batch=2, global_batch=30)
    with pytest.raises(SpecError, match="grad accum: the global batch is given as well"):
        flopwise.memory("gpt2", task="train", grad_accum=2, global_batch=30)


def test_a_pipeline_without_a_batch_has_as_many_micro_batches_as_stages() -> None:
    """1F1B keeps the activations of as many micro-batches as stages on the first: train fills it, and so is memory."""

    piped = partial(
        flopwise.memory, "Llama-3.1-8B", task="train", gpu="h100", stack="megatron-te", seq=4096, dp=2, pp=4,
        micro_batch=1, recompute="none",
    )  # fmt: skip
    one, four, open_ = piped(grad_accum=1), piped(grad_accum=4), piped()
    assert open_.per_gpu_bytes == four.per_gpu_bytes == piped(global_batch=8).per_gpu_bytes
    kept = [dict(found.items)["activations"] for found in (one, four)]
    assert kept[1] == pytest.approx(4 * kept[0], rel=0.02)
    assert "4 micro-batches a step, which fill the pipeline (--grad-accum)" in open_.assumptions
    assert not any("fill the pipeline" in note for note in (*one.assumptions, *four.assumptions))
    trained = flopwise.train(
        "Llama-3.1-8B", gpu="h100", gpus=8, stack="megatron-te", seq=4096, dp=2, pp=4, micro_batch=1, recompute="none"
    ).memory
    assert trained is not None
    assert trained.per_gpu_bytes == pytest.approx(open_.per_gpu_bytes)
