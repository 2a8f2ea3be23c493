"""ZeRO stages that a training stack has: what is searched, what is advised, and what is said of the others."""

import numpy as np
import pytest

from flopwise.api.train import train
from flopwise.cost.cluster import cluster
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.search.layout_search import layout_search
from flopwise.search.scaling import comparison
from flopwise.training.layout import Layout
from named import FACTS, recipe_with, training_remedies


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
    note = "megatron-te shards by ZeRO 1 at most"
    beyond = train("Llama-3.1-8B", gpu="h100", gpus=8, stack="megatron", zero=3)
    within = train("Llama-3.1-8B", gpu="h100", gpus=8, stack="megatron", zero=1)
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
