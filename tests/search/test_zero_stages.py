"""ZeRO stages and degrees that a training stack has: what is searched, advised, and said of the others."""

from typing import Any

import numpy as np
import pytest

from flopwise.api.plan import plan
from flopwise.cost.cluster import cluster
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.search.layout_search import layout_search
from flopwise.search.scaling import comparison
from flopwise.training.layout import Layout
from flopwise.training.spec import DataSpec
from named import FACTS, recipe_with, train_answer, training_remedies


@pytest.mark.parametrize(
    ("name", "stages"),
    [("megatron-te", {0, 1}), ("megatron-deepspeed", {0, 1}), ("nanotron", {0, 1}), ("fsdp-compile", {0, 1, 2, 3})],
)
def test_the_search_holds_the_stages_of_the_stack_and_no_others(name: str, stages: set[int]) -> None:
    model = load_model("gpt2")
    space = layout_search(model, recipe_with(seq_len=1024, global_batch=64, stack=name), most=64).space
    _, _, layout = space.at_rows(np.arange(space.size))
    assert set(np.unique(layout.zero)) == stages
    assert np.any(np.asarray(layout.shard) > 0) == (3 in stages)


def test_a_stage_asked_for_is_estimated_and_told() -> None:
    note = "megatron-te supports ZeRO up to stage 1"
    beyond = train_answer("Llama-3.1-8B", gpu="h100", gpus=8, stack="megatron", zero=3)
    within = train_answer("Llama-3.1-8B", gpu="h100", gpus=8, stack="megatron", zero=1)
    assert any(note in told for told in beyond.assumptions)
    assert not any(note in told for told in within.assumptions)
    assert float(beyond.memory.per_gpu_bytes) < float(within.memory.per_gpu_bytes)


@pytest.mark.parametrize(("name", "most"), [("megatron-te", 1), ("fsdp-compile", 3)])
def test_remedies_stay_within_the_stack(name: str, most: int) -> None:
    model, layout = load_model("Llama-3.1-8B"), Layout(dp=8)
    recipe = recipe_with(seq_len=4096, global_batch=8, stack=name)
    found = [r.change for r in training_remedies(model, recipe, layout, 80e9)]
    stages = [int(change.split()[2]) for change in found if change.startswith("ZeRO stage")]
    assert stages
    assert max(stages) == most == FACTS.stack(name).zero


def test_a_comparison_leaves_out_what_the_stack_does_not_have() -> None:
    model = load_model("gpt2")
    chip = cluster(load_facts().accelerator("H100-SXM-80"))
    for name, estimated in (("megatron-te", False), ("fsdp-compile", True)):
        points = comparison(model, recipe_with(seq_len=1024, global_batch=64, stack=name), chip, 4).points
        sharded = [p for p in points if p.strategy == "fsdp"]
        assert [p.num_gpus for p in sharded] == [1, 2, 4]
        assert all((p.step_s is not None) == estimated for p in sharded)
        assert estimated or {p.reason for p in sharded} == {"megatron-te shards by ZeRO 1 at most"}


@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        ("hf-trainer", set()), ("deepspeed-zero3", set()), ("unsloth", set()), ("torchtune-eager", {"tp", "cp"}),
        ("nanotron", {"tp", "pp", "ep"}), ("megatron-te", {"tp", "pp", "cp", "ep"}),
    ],
)  # fmt: skip
def test_the_search_holds_the_degrees_of_the_stack_and_no_others(name: str, degrees: set[str]) -> None:
    model = load_model("Mixtral-8x7B")
    space = layout_search(model, recipe_with(seq_len=32768, global_batch=64, stack=name), most=64).space
    _, _, layout = space.at_rows(np.arange(space.size))
    assert {name for name in ("tp", "pp", "cp", "ep") if np.max(getattr(layout, name)) > 1} == degrees


def test_a_degree_asked_for_is_estimated_and_a_stack_that_has_it_is_named() -> None:
    layout: dict[str, Any] = {"gpu": "h100", "gpus": 8, "tp": 2, "dp": 4}
    what = "hf-trainer does not support tensor parallelism (tp 2): estimated as if it did"
    note = f"{what}; megatron-te supports the whole layout"
    assert any(note in told for told in train_answer("Llama-3.1-8B", stack="hf", **layout).assumptions)
    assert not any(
        "parallelism" in told for told in train_answer("Llama-3.1-8B", stack="megatron", **layout).assumptions
    )
    sharded = train_answer("Llama-3.1-8B", stack="deepspeed", zero=3, **layout).assumptions
    assert any(
        "deepspeed-zero3 does not support tensor parallelism" in told and "--stack fsdp-eager" in told
        for told in sharded
    )


def test_advice_and_comparisons_leave_out_degrees_that_the_stack_does_not_have() -> None:
    model, chip = load_model("Llama-3.1-8B"), cluster(load_facts().accelerator("H100-SXM-80"))
    for name, has in (("hf-trainer", False), ("megatron-te", True)):
        recipe = recipe_with(seq_len=4096, global_batch=8, stack=name)
        changes = [r.change for r in training_remedies(model, recipe, Layout(dp=8), 80e9)]
        assert any(change.startswith(("tp ", "pp ")) for change in changes) == has
        tensor = next(p for p in comparison(model, recipe, chip, 4).points if (p.strategy, p.num_gpus) == ("tensor", 4))
        assert tensor.reason == ("" if has else "hf-trainer has no tensor parallelism (tp 4)")


def test_a_batch_that_nobody_gave_can_be_shared_by_the_ranks_of_a_machine() -> None:
    """500k tokens in sequences of 1,024 are 488: 50 steps of 10, which 8 ranks without another degree cannot share."""
    task = {
        "model": "gpt2",
        "task": "finetune",
        "data": {"tokens": "500k", "seq_len": 1024},
        "method": {"kind": "lora"},
    }
    found = plan({**task, "constraints": {"instances": ["p5.48xlarge"], "stack": "hf-trainer"}})
    assert {(c.num_gpus, c.layout["dp"], c.layout["global_batch"]) for c in found.plans[:1]} == {(8, 8, 8)}
    model, steps = load_model("gpt2"), 50
    runs = {size: DataSpec(tokens=1024.0 * steps * size) for size in (3, 7, 9, 13, 40)}
    assert {size: run.batch(model, 1024, tunes=True)[0] for size, run in runs.items()} == {
        3: 2,
        7: 4,
        9: 8,
        13: 16,
        40: 40,
    }
