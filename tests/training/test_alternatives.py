"""Training memory where inputs are left open: each is taken at both ends, named, and held by the interval."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flopwise import cli
from flopwise.facts.models.catalog import load_model
from flopwise.training.alternatives import UnstatedInput, other_settings, usual_stacks
from flopwise.training.layout import Layout
from flopwise.training.memory import memory_class, memory_method, step_memory
from named import FACTS, lora_with, recipe_with


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.main(["memory", "Llama-3.2-1B", *arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_open_inputs_are_named_and_widen_the_interval(capsys: pytest.CaptureFixture[str]) -> None:
    most = ("--recompute", "full", "--stack", "hf-trainer", "--seq", "4k")
    complete, silent = answer(capsys, "--micro-batch", "2", *most), answer(capsys, *most)
    assert complete["unstated"] == []
    [batch] = silent["unstated"]
    assert batch["name"] == "micro-batch"
    assert any(note.startswith("micro-batch not stated: ") for note in silent["assumptions"])
    spread = [found["high_bytes"] / found["per_gpu_bytes"] for found in (complete, silent)]
    assert spread[1] == pytest.approx(spread[0] * batch["high"])


def test_the_ends_are_the_memory_of_the_job_as_others_run_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Four sequences a micro-batch instead of one, nothing else changed."""
    found = answer(capsys, "--recompute", "none", "--stack", "torchtune-compile", "--seq", "2048")
    [batch] = found["unstated"]
    model, recipe = load_model("Llama-3.2-1B"), recipe_with(seq_len=2048, global_batch=1, stack="torchtune-compile")
    one, four = (
        float(step_memory(model, other, layout).total_bytes)
        for size in (1, 4)
        for layout, other in [
            other_settings(Layout(micro_batch=1), recipe, model, {"micro-batch"})["micro-batch"][size // 2]
        ]
    )
    assert batch["high"] == pytest.approx(four / one, rel=1e-6)
    assert found["per_gpu_bytes"] == pytest.approx(one, rel=1e-6)


def test_memory_holds_what_sequences_of_other_lengths_take(capsys: pytest.CaptureFixture[str]) -> None:
    most = ("--micro-batch", "2", "--recompute", "full", "--stack", "hf-trainer")
    silent, long, short = answer(capsys, *most), answer(capsys, *most, "--seq", "8k"), answer(capsys, *most, "--seq=2k")
    [length] = silent["unstated"]
    assert length["name"] == "sequence length"
    assert any(note.startswith("sequence length not stated: ") for note in silent["assumptions"])
    assert length["high"] == pytest.approx(long["per_gpu_bytes"] / silent["per_gpu_bytes"])
    assert length["low"] == pytest.approx(short["per_gpu_bytes"] / silent["per_gpu_bytes"])
    assert silent["low_bytes"] <= short["per_gpu_bytes"]
    assert long["per_gpu_bytes"] <= silent["high_bytes"]


def test_the_floor_is_that_of_the_leanest_stack(capsys: pytest.CaptureFixture[str]) -> None:
    """Adapters on 16-bit weights: no end lies below weights and states, which no stack can do without."""
    found = answer(capsys, "--lora", "16", "--lora-targets", "all-linear")
    weights = 2.0 * 1.2358e9
    assert found["low_bytes"] >= weights
    assert {one["name"] for one in found["unstated"]} == {"stack", "micro-batch", "recompute", "sequence length"}


def test_stacks_of_others_run_on_the_device_and_have_the_degrees() -> None:
    recipe = recipe_with(seq_len=2048, global_batch=8, stack="fsdp-compile")
    alone = [stack.name for stack in usual_stacks(Layout(), recipe, None, FACTS)]
    assert alone == ["fsdp-eager", "megatron-te", "hf-trainer"]
    assert "hf-trainer" not in [stack.name for stack in usual_stacks(Layout(tp=2), recipe, None, FACTS)]


def test_classes_tell_methods_modules_and_distance_apart() -> None:
    hf, megatron = FACTS.stack("hf-trainer"), FACTS.stack("megatron-te")
    measured = {"hf-trainer adapters": 74}
    assert memory_class(hf, "adapters", measured) == "memory.adapters.transformers.seen"
    assert memory_class(hf, "quantised", measured) == "memory.quantised.transformers.unseen"
    assert memory_class(megatron, "full", measured) == "memory.full.framework.unseen"
    assert memory_class(megatron, "full", {"megatron-te full": 9}) == "memory.full.framework.seen"
    nobody = memory_class(FACTS.stack("in-house"), "full", {"in-house full": 9})
    assert nobody == "memory.full.framework.unseen", "rows of others' own software say nothing of this one's"


def test_methods_are_told_by_what_the_adapters_stand_on() -> None:
    recipe = recipe_with(seq_len=2048, global_batch=8, stack="hf-trainer")
    plain, packed = lora_with(rank=8), lora_with(rank=8, base=FACTS.weight_format("nf4"))
    assert memory_method(recipe) == "full"
    assert memory_method(recipe_with(seq_len=2048, global_batch=8, stack="hf-trainer", lora=plain)) == "adapters"
    assert memory_method(recipe_with(seq_len=2048, global_batch=8, stack="hf-trainer", lora=packed)) == "quantised"


def test_an_input_that_changes_nothing_is_not_worth_a_word() -> None:
    assert not UnstatedInput(name="interleave", low=0.999, high=1.001).matters
    assert UnstatedInput(name="interleave", low=0.9, high=1.0).matters
