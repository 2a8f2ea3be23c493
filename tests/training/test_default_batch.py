"""The batch where nobody says: within the critical batch of the run, as far as the layout can share it."""

from __future__ import annotations

from typing import Any

import pytest

from flopwise import plan, train
from flopwise.training.answer import TrainAnswer


def answer(**options: Any) -> TrainAnswer:
    """The training of a model with token layers."""
    found = train(options.pop("model", "Llama-3.1-8B"), **options)
    assert isinstance(found, TrainAnswer)
    return found


def default_note(found: TrainAnswer) -> str:
    """The assumption on the batch."""
    (note,) = (note for note in found.assumptions if note.startswith("a global batch of"))
    return note


@pytest.mark.parametrize(
    ("options", "sequences"),
    [
        ({"gpu": "64xh100", "tokens": "10B"}, 512),  # 2.39 M tokens are 583 sequences of 4,096
        ({"model": "Qwen3-235B-A22B", "gpu": "256xh100", "tokens": "100B"}, 1024),  # 5.02 M are 1,226
        ({"gpu": "1024xh100", "tokens": "1B"}, 192),  # 870 k are 212: fewer than accelerators, in pipelines
    ],
)
def test_a_default_keeps_to_the_critical_batch(options: dict[str, Any], sequences: int) -> None:
    found = answer(**options)
    assert found.estimate.job.recipe.global_batch == sequences
    assert found.rules is not None
    assert sequences * 4096 <= found.rules.critical_batch_tokens
    assert not any("above the critical batch" in note for note in found.rules.notes)
    assert "by default, within the critical batch of about" in default_note(found)


def test_a_default_that_is_within_is_as_it_was() -> None:
    found = answer(gpu="64xh100", tokens="10T")
    assert found.estimate.job.recipe.global_batch == 1024
    assert default_note(found).startswith("a global batch of 1,024 sequences by default (")
    assert answer(gpu="64xh100").estimate.job.recipe.global_batch == 1024


def test_long_sequences_are_shared_by_context_ranks() -> None:
    """A million tokens of a sequence on 256 accelerators: one sequence a step, and not one for each of them."""
    found = answer(gpu="256xh100", tokens="1B", seq="1M")
    assert found.estimate.job.recipe.global_batch == 1
    assert int(found.estimate.job.layout.cp) == 256
    assert "a global batch of 1 sequence by default, the least that the layout can share" in default_note(found)


def test_a_layout_that_is_given_has_the_batch_that_it_needs() -> None:
    found = answer(gpu="256xh100", tokens="100M", fsdp=True)
    assert found.estimate.job.recipe.global_batch == 256
    assert "the least that the layout can share, above the critical batch" in default_note(found)
    piped = answer(gpu="64xh100", tokens="100M", tp=4, pp=4)
    assert piped.estimate.job.recipe.global_batch == 48  # three for each of four replicas with four stages to fill


def test_a_plan_has_the_same_default() -> None:
    found = plan("Llama-3.1-8B", task="pretrain", tokens="10B", gpus=["h100"])
    assert found.plans[0].layout["global_batch"] == 512
    assert any("512 sequences by default, within the critical batch" in note for note in found.assumptions)
