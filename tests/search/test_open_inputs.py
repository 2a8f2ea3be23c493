"""What nobody stated of a run and the search does not choose: named in the plan, with what it makes of it."""

from __future__ import annotations

from typing import Any

import flopwise
from flopwise.facts import defaults


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
