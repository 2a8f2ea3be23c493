"""What nobody stated of a run and the search does not choose: named in the plan, with what it makes of it."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

import flopwise
from flopwise import cli
from flopwise.facts import defaults
from flopwise.training.answer import TrainAnswer


def test_a_plan_names_the_stack_that_nobody_stated() -> None:
    """The ends are those of the stacks that people use, by the formulas of a single estimate."""
    question: dict[str, Any] = {"task": "finetune", "lora": 16, "tokens": "20M", "gpu": "2xh100"}
    length, adapters, _ = flopwise.plan("Llama-3.2-1B", **question).unstated
    assert (length.name, adapters.name) == ("sequence length", "adapter targets")
    assert length.speed_low < 1.0 < length.speed_high
    question["seq"] = "2k"
    adapters, _ = flopwise.plan("Llama-3.2-1B", **question).unstated
    assert adapters.name == "adapter targets"
    question["lora_targets"] = "all-linear"
    found = flopwise.plan("Llama-3.2-1B", **question)
    [stack] = found.unstated
    assert stack.name == "stack"
    assert stack.speed_low <= 1.0 <= stack.speed_high
    assert stack.memory_low <= 1.0 <= stack.memory_high
    assert (stack.speed_low, stack.speed_high, stack.memory_low, stack.memory_high) != (1.0, 1.0, 1.0, 1.0)
    assert stack.text in found.assumptions
    named = flopwise.plan("Llama-3.2-1B", **question, stack=defaults.USUAL_ADAPTER_STACKS[0])
    assert named.unstated == []
    assert not any("not stated" in note for note in named.assumptions)


OPEN: dict[str, Any] = {"task": "pretrain", "tokens": "1B", "max_gpus": 1}
"""Nothing of the software and of the length of sequences is stated."""


@pytest.mark.parametrize(
    ("model", "question"),
    [
        ("gpt2", {**OPEN, "gpu": "t4"}),
        ("Llama-3.1-8B", {"task": "finetune", "qlora": True, "tokens": "20M", "gpu": "l40s", "max_gpus": 4}),
    ],
)
def test_a_row_and_its_command_are_as_sure_of_a_run(
    model: str, question: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command leaves open what the question leaves open; figures, intervals and class of errors are the same."""
    for one in flopwise.plan(model, **question).plans[:2]:
        words = shlex.split(one.reproduce)
        assert not {"--stack", "--seq", "--lora-targets"} & set(words)
        capsys.readouterr()
        cli.main([*words[1:], "--json"])
        there = json.loads(capsys.readouterr().out)
        assert there["interval"]["class"] == "training.dense.incomplete"
        assert one.evidence == there["interval"]["evidence"]
        run = there["run"]
        names = ("seconds", "seconds_low", "seconds_high", "cost_usd_low", "cost_usd_high", "energy_joules_high")
        assert [getattr(one, name) for name in names] == pytest.approx([run[name] for name in names], rel=1e-9)


def test_stated_inputs_are_surer_than_open_ones_in_plan_and_train() -> None:
    """One rule: with stack and length stated both take the errors of complete runs, without them the wider interval."""
    stated: dict[str, Any] = {"stack": "fsdp-compile", "seq": 1024, "global_batch": 1024}
    [open_row, *_] = flopwise.plan("gpt2", **OPEN, gpu="t4", global_batch=1024).plans
    [row, *_] = flopwise.plan("gpt2", **OPEN, gpu="t4", **stated).plans
    assert row.seconds == open_row.seconds
    assert row.seconds_low is not None
    assert open_row.seconds_low is not None
    assert row.evidence != open_row.evidence
    for one, given in ((open_row, {"global_batch": 1024}), (row, stated)):
        found = flopwise.train("gpt2", gpu="t4", tokens="1B", **given)
        assert isinstance(found, TrainAnswer)
        assert one.evidence == found.estimate.band.evidence
    wide = flopwise.plan("gpt2", **OPEN, gpu="t4", global_batch=1024, deadline=1.05 * open_row.seconds_low)
    sure = flopwise.plan("gpt2", **OPEN, gpu="t4", **stated, deadline=1.05 * open_row.seconds_low)
    odds = [(p.plans or p.misses)[0].meets["deadline"] for p in (wide, sure)]
    assert odds[0] != odds[1]
