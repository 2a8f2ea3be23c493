"""The batch of a training step in `memory`: by micro-batches, or as a whole."""

from __future__ import annotations

from functools import partial

import pytest

import flopwise
from flopwise.errors import SpecError


def test_a_global_batch_is_that_many_micro_batches() -> None:
    """Four replicas of two sequences: 32 are four micro-batches, whose gradients are kept between them."""
    step = partial(flopwise.memory, "gpt2", gpu="h100", task="train", dp=4, micro_batch=2, seq=1024)
    one, four = step(), step(grad_accum=4)
    assert step(global_batch=32).to_dict() == four.to_dict()
    assert step(global_batch_tokens=32 * 1024).to_dict() == four.to_dict()
    assert step(global_batch=8).to_dict() == one.to_dict() != four.to_dict()


def test_a_global_batch_that_cannot_be() -> None:
    with pytest.raises(SpecError, match="a global batch of 30 is no multiple of 8"):
        flopwise.memory("gpt2", task="train", dp=4, micro_batch=2, global_batch=30)
    with pytest.raises(SpecError, match="grad accum: the global batch is given as well"):
        flopwise.memory("gpt2", task="train", grad_accum=2, global_batch=30)
