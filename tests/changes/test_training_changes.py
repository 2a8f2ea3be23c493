"""Changes of a training job: what is offered can be trained, under one name in every question."""

from __future__ import annotations

from typing import Any

import pytest

import flopwise
from flopwise.changes.explanation import sensitivities
from flopwise.changes.training import CHANGES, MOVING, SAVING, TrainingSetup, training_changes
from flopwise.ops.degrees import check_expert_parallel, check_pipeline, check_tensor_parallel
from named import FACTS, train_answer


@pytest.mark.parametrize(
    ("model", "how"),
    [
        ("gpt2", {"gpus": 8, "tp": 4}), ("Llama-3.1-8B", {"gpus": 8, "zero": 3}),
        ("Mixtral-8x7B", {"gpus": 16, "ep": 8, "zero": 1}), ("Llama-3.1-8B", {"gpus": 8, "pp": 4, "lora": 16}),
        ("Llama-3.1-8B", {"gpus": 4, "zero": 3, "recompute": "full", "recompute_every": 2}),
    ],
    ids=str,
)  # fmt: skip
def test_heads_experts_layers_and_gpus_allow_each_change(model: str, how: dict[str, Any]) -> None:
    job = train_answer(model, gpu="h100", seq=1024, **how).estimate.job
    gpus, seen = int(job.layout.num_gpus), set()
    for name, recipe, layout in training_changes(TrainingSetup(job.model, job.recipe, job.layout, FACTS), CHANGES):
        check_tensor_parallel(job.model, int(layout.tp))
        check_expert_parallel(job.model, int(layout.ep))
        check_pipeline(job.model, int(layout.pp))
        assert int(recipe.seq_len) % int(layout.cp) == 0
        assert int(layout.num_gpus) == gpus * (2 if "twice the GPUs" in name else 1), name
        assert (recipe, layout) != (job.recipe, job.layout), name
        assert name not in seen, "a name stands for one change"
        seen.add(name)


def test_degrees_that_heads_do_not_allow_are_no_remedy() -> None:
    """GPT-2 XL has 25 heads: no power of two above 1 divides them, while 48 layers make two stages."""
    remedies = flopwise.memory("gpt2-xl", gpu="t4", micro_batch=16, dp=2).remedies
    degrees = {remedy.change.split()[0] for remedy in remedies}
    assert "pp" in degrees
    assert "tp" not in degrees


def test_one_change_has_one_name_in_every_question() -> None:
    answer = train_answer("Llama-3.1-8B", gpu="h100", gpus=8, dp=8, zero=3, seq=8192, micro_batch=4)
    memory = flopwise.memory("Llama-3.1-8B", gpu="l4", dp=8, zero=3, seq=8192, micro_batch=4)
    moved = {row.change for row in sensitivities(answer)}
    saved = {row.change for row in memory.remedies}
    assert {"recompute full", "micro-batch 2", "tp 2, dp 4"} <= moved & saved
    planned = flopwise.plan(
        {
            "model": "Llama-3.2-1B", "task": "finetune", "data": {"tokens": 1e7},
            "constraints": {"gpus": ["h100"], "providers": ["aws"], "max_gpus": 8},
        }
    )  # fmt: skip
    job = {lever.change for lever in planned.levers}
    assert {"global batch x 2", "twice the GPUs (dp)", "8-bit AdamW"} <= job
    assert set(SAVING) | set(MOVING) == set(CHANGES)
