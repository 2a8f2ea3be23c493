"""Bytes that training's memory table keeps for the backward pass equal what autograd keeps in the real models."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flopwise.facts.architecture import Linear
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.config import model_from_config
from flopwise.ops.saved import Setting, trace_items
from flopwise.ops.shapes import Shape, Trainable
from flopwise.training.layer_sums import MemoryTable
from flopwise.training.layout import Layout, Lora, Recipe
from named import cpu_bytes

ORACLE = Path(__file__).parents[1] / "oracle"
RECORD: dict[str, Any] = json.loads((ORACLE / "activations.json").read_text())
TARGETS: dict[str, tuple[str, ...]] = {
    "qv": ("q", "v"),
    "all": ("q", "k", "v", "o", "gate", "up", "down"),
    "mlp": ("gate", "up", "down"),
}
OFF = {"gpt2": "attn_pdrop", "bert": "attention_probs_dropout_prob"}
FACTS = load_facts()


def table(config: dict[str, Any], record: dict[str, Any], row: dict[str, Any]) -> MemoryTable:
    """The memory table of training with transformers' modules, as the row was recorded."""
    lora = None
    if row["lora"]:
        lora = Lora(rank=record["rank"], targets=TARGETS[row["lora"]], adapter_dtype="bf16")
    recipe = Recipe(
        seq_len=record["seq"], global_batch=record["batch"], precision="bf16" if row["elem_bytes"] == 2 else "fp32",
        optimizer=FACTS.optimizer("adamw"), stack=replace(FACTS.stack("hf-trainer"), activations=row["attention"]),
        attention="eager" if row["attention"] == "eager" else "flash", lora=lora,
    )  # fmt: skip
    return MemoryTable(model_from_config(config, name=row["case"]), recipe)


def predicted(record: dict[str, Any], row: dict[str, Any]) -> float:
    """What training's table holds for the layers, and by hand what stands before and after them.

    The ends are counted here tensor by tensor; of the loss, log-probabilities in fp32 and targets are kept. PyTorch's
    CPU code keeps masks and statistics in the activations' own dtype (`cpu_bytes`). Beside adapters the first layer
    keeps less, since no gradient goes further; training counts it as the others.
    """
    config = dict(record["configs"][row["case"]])
    if row["attention"] == "sdpa" and row["case"] in OFF:
        config[OFF[row["case"]]] = 0.0
    made, wide = table(config, record, row), row["elem_bytes"]
    sums, _ = made.sums(Layout(micro_batch=record["batch"]))
    layers = sums.activations + sums.autocast_activations if row["autocast"] else sums.activations
    total: float = record["batch"] * float(layers[2 if row["full"] else 0, -1, 0])
    stack = made.model.stacks[0]
    shape = Shape(batch=record["batch"], query=record["seq"], context=record["seq"])
    names: Trainable = frozenset(f"{name}_proj" for name in TARGETS[row["lora"]]) if row["lora"] else "all"
    setting = Setting(
        shape=shape, habit=made.habit, implementation=row["attention"], elem_bytes=wide, autocast=row["autocast"],
        trainable=frozenset() if row["lora"] else "all",
    )  # fmt: skip
    total += cpu_bytes(trace_items(stack.before, setting, stack.width, input_grad=False), wide)
    total += cpu_bytes(trace_items(stack.after, setting, stack.width), wide)
    setting = replace(setting, trainable=names, rank=record["rank"])
    for place, index in enumerate(() if row["full"] else stack.order):
        items = stack.kinds[index].items
        alike = sum(float(size) for size in trace_items(items, setting, stack.width).kept.values())
        kept = trace_items(items, setting, stack.width, input_grad=place > 0 or not row["lora"])
        total += cpu_bytes(kept, wide) - alike
    tokens, words = record["batch"] * record["seq"], config["vocab_size"]
    if any(isinstance(item, Linear) and item.outputs == words for item in stack.after):
        total += tokens * (words * (4.0 + (wide if row["case"] == "gemma2" else 0.0)) + 8.0)
    if row["full"] and row["attention"] == "eager" and row["case"] == "gpt2":  # an argument of the layers, kept once
        total += tokens * record["seq"] * wide
    return total


@pytest.mark.parametrize("row", RECORD["rows"], ids=lambda r: "-".join(str(v) for v in r.values()))
def test_recorded_bytes(row: dict[str, Any]) -> None:
    assert predicted(RECORD, row) == pytest.approx(row["bytes"], rel=0.015)


def test_enough_families() -> None:
    kinds = {(r["case"], r["attention"], r["full"]) for r in RECORD["rows"]}
    both = [n for n in RECORD["configs"] if all((n, a, f) in kinds for a in ("eager", "sdpa") for f in (True, False))]
    assert len(both) >= 5


@pytest.mark.oracle
@pytest.mark.skipif(
    not (os.environ.get("CI") or os.environ.get("FLOPWISE_ORACLE")), reason="derives afresh with CI=true"
)
def test_fresh_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        pytest.skip("torch and transformers are not installed")
    monkeypatch.syspath_prepend(str(ORACLE))
    fresh = importlib.import_module("record_activations").record()
    for row in fresh["rows"]:
        assert predicted(fresh, row) == pytest.approx(row["bytes"], rel=0.015), row
