"""What is not trained costs what PyTorch says it costs, and nothing else changes."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flopwise.cost.cluster import cluster
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.facts.models.config import model_from_config
from flopwise.ops.saved import Setting, trace_items
from flopwise.ops.shapes import Shape, Trainable
from flopwise.ops.tensors import parameters
from flopwise.provenance import walk
from flopwise.training.adapters import trainable_parameters
from flopwise.training.estimate import estimate, single_table, training_flops
from flopwise.training.explain import train_figure
from flopwise.training.frozen import Frozen, split_model
from flopwise.training.job import TrainJob
from flopwise.training.layer_sums import MemoryTable
from flopwise.training.layout import ALL_TARGETS, Layout
from flopwise.training.memory import step_memory
from named import cpu_bytes, lora_with, recipe_with, weight_bytes

ORACLE = Path(__file__).parents[1] / "oracle"
RECORD: dict[str, Any] = json.loads((ORACLE / "frozen.json").read_text())
H100 = cluster(load_facts().accelerator("H100-SXM-80"), gpus_per_node=8, network_bytes_per_s_per_gpu=50e9)


def kept_bytes(record: dict[str, Any], case: str, frozen: str) -> float:
    """What the layers keep in eager code on a CPU."""
    model = model_from_config(record["configs"][case], name=case)
    split = split_model(model, Frozen.of(frozen) if frozen else None)
    first = split.model.stacks[0]
    total = 0.0
    for index, (layer, block) in enumerate(zip(first.kinds, split.blocks[1:-1], strict=True)):
        if block.backward:
            shape = Shape(batch=record["batch"], query=record["seq"], context=record["seq"])
            trained: Trainable = frozenset() if block.frozen else "all"
            setting = Setting(shape=shape, implementation="eager", trainable=trained)
            kept = trace_items(layer.items, setting, first.width)
            total += first.order.count(index) * cpu_bytes(kept, setting.elem_bytes)
    return total


def held_to(record: dict[str, Any]) -> None:
    """Operations, trained parameters, and bytes saved against training everything."""
    whole = {row["case"]: row for row in record["rows"] if not row["frozen"]}
    for row in record["rows"]:
        model = model_from_config(record["configs"][row["case"]], name=row["case"])
        frozen = Frozen.of(row["frozen"]) if row["frozen"] else Frozen()
        forward, both = training_flops(model, frozen, record["batch"], record["seq"], causal=False)
        assert (forward, both) == pytest.approx((row["forward"], row["whole"]), rel=1e-9), row
        table = MemoryTable(model, recipe_with(seq_len=record["seq"], frozen=frozen))
        sums = table.sums(Layout())[0]
        assert sums.dense[-1, 0] + sums.before[0] + sums.after[0] == row["trained"], row
        less = whole[row["case"]]["bytes"] - row["bytes"]
        predicted = kept_bytes(record, row["case"], "") - kept_bytes(record, row["case"], row["frozen"])
        # the lowest layer with gradients keeps a norm less, a frozen head not its input: a tensor each, of four layers
        assert predicted == pytest.approx(less, abs=0.025 * whole[row["case"]]["bytes"]), row


def test_recorded_operations_parameters_and_bytes() -> None:
    held_to(RECORD)


@pytest.mark.oracle
@pytest.mark.skipif(
    not (os.environ.get("CI") or os.environ.get("FLOPWISE_ORACLE")), reason="derives afresh with CI=true"
)
def test_fresh_operations_parameters_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        pytest.skip("torch and transformers are not installed")
    monkeypatch.syspath_prepend(str(ORACLE))
    held_to(importlib.import_module("record_frozen").record())


def job(freeze: str = "", name: str = "Llama-3.1-8B", **layout: Any) -> TrainJob:
    recipe = recipe_with(seq_len=4096, global_batch=64, frozen=Frozen.of(freeze) if freeze else None)
    shape: dict[str, Any] = {"dp": 8, "zero": 3, **layout}
    return TrainJob(model=load_model(name), recipe=recipe, layout=Layout(**shape), cluster=H100)


@pytest.mark.parametrize("layout", [{}, {"dp": 2, "pp": 4, "zero": 1}, {"dp": 4, "tp": 2, "zero": 0, "recompute": 2}])
def test_more_frozen_is_never_slower_and_never_larger(layout: dict[str, Any]) -> None:
    before = estimate(job(**layout))
    for freeze in ("embedding", "embedding,first:8", "embedding,first:31", "all-but-last:0"):
        found = estimate(job(freeze, **layout))
        assert found.step_s <= before.step_s
        assert found.memory.total_bytes <= before.memory.total_bytes
        assert found.lower_bound_s <= found.step_s <= found.upper_bound_s
        assert found.mfu_frac <= found.hfu_frac < 1
        before = found


def test_nothing_frozen_is_the_plain_estimate() -> None:
    for model in ("Llama-3.1-8B", "Qwen3-30B-A3B", "t5-base"):
        plain = job(name=model)
        plain = replace(plain, recipe=replace(plain.recipe, seq_len=512))
        same = replace(plain, recipe=replace(plain.recipe, frozen=Frozen()))
        assert estimate(same).step_s == pytest.approx(estimate(plain).step_s, rel=1e-12)
        assert estimate(same).memory.total_bytes == pytest.approx(estimate(plain).memory.total_bytes, rel=1e-12)


@pytest.mark.parametrize("layout", [{"zero": 0}, {"zero": 1}, {"zero": 3}, {"zero": 3, "ep": 4}, {"zero": 1, "ep": 8}])
@pytest.mark.parametrize("freeze", ["first:20", "embedding,first:20,head", "all-but-last:3"])
def test_weights_are_all_there_and_states_only_of_what_is_trained(layout: dict[str, Any], freeze: str) -> None:
    plain, frozen = job(name="Qwen3-30B-A3B", **layout), job(freeze, "Qwen3-30B-A3B", **layout)
    held = [step_memory(j.model, j.recipe, j.layout).items for j in (plain, frozen)]
    assert held[1]["weights"] == pytest.approx(held[0]["weights"])
    table = single_table(frozen)
    everything = single_table(plain)
    kept = (table.dense_params + table.expert_params + table.frozen_bytes / 2)[0, 0]
    assert kept == pytest.approx((everything.dense_params + everything.expert_params)[0, 0])
    if layout["zero"] == 0:
        trained = table.dense_params + table.expert_params
        assert held[1]["optimizer states"] == pytest.approx(8 * trained[0, 0])


def test_idle_layers_send_no_gradients_and_are_not_run_again() -> None:
    lines = {f: dict(estimate(job(f, dp=4, tp=2, zero=1, recompute=2)).breakdown) for f in ("", "all-but-last:8")}
    assert lines["all-but-last:8"]["forward"] == pytest.approx(lines[""]["forward"])
    assert lines["all-but-last:8"]["backward"] < 0.4 * lines[""]["backward"]
    assert lines["all-but-last:8"]["recompute"] < 0.4 * lines[""]["recompute"]
    ratio = lines["all-but-last:8"]["tensor_parallel"] / lines[""]["tensor_parallel"]
    assert ratio == pytest.approx((8 * 3 + 24) / (32 * 3), rel=0.02)  # forward, backward, forward again; or forward


def test_a_frozen_encoder_keeps_nothing_and_has_no_backward_pass() -> None:
    plain, frozen = job(name="t5-base", micro_batch=4), job("towers", "t5-base", micro_batch=4)
    plain, frozen = (replace(j, recipe=replace(j.recipe, seq_len=512)) for j in (plain, frozen))
    a, b = estimate(plain), estimate(frozen)
    assert b.step_s < a.step_s
    assert float(np.ravel(b.memory.items["activations"])[0]) < float(np.ravel(a.memory.items["activations"])[0])
    assert dict(b.breakdown)["forward"] == pytest.approx(dict(a.breakdown)["forward"])


def test_the_tree_spells_frozen_layers_out() -> None:
    names = {figure.name for figure in walk(train_figure(estimate(job("first:8"))))}
    assert any("(frozen)" in name for name in names)
    assert parameters(split_model(load_model("Llama-3.1-8B"), Frozen.of("first:8")).model) == 8_030_261_248


@pytest.mark.parametrize(
    "text", ["", "heads", "first", "first:", "first:-1", "first:x", "embedding:2", "all-but-last:2.5"]
)
def test_names_that_do_not_exist_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="allowed"):
        Frozen.of(text)


@pytest.mark.parametrize(("freeze", "name"), [
    ("first:33", "Llama-3.1-8B"), ("all-but-last:40", "Llama-3.1-8B"), ("towers", "Llama-3.1-8B"),
    ("all-but-last:0,head", "Llama-3.1-8B"), ("embedding,head,first:32", "Llama-3.1-8B"),
])  # fmt: skip
def test_what_the_model_does_not_have_is_refused(freeze: str, name: str) -> None:
    with pytest.raises(SpecError, match="--freeze"):
        estimate(job(freeze, name))
    with pytest.raises(SpecError, match="adapters"):
        recipe_with(seq_len=512, lora=lora_with(), frozen=Frozen(embedding=True))


@pytest.mark.parametrize("base", ["bf16", "nf4"])
def test_a_frozen_base_is_gathered_as_it_is_stored(base: str) -> None:
    lora = lora_with(rank=16, targets=ALL_TARGETS, base=base)
    plain = job(dp=16)
    adapters = replace(plain, recipe=replace(plain.recipe, lora=lora))
    table = single_table(adapters)
    assert table.frozen_bytes[0, 0] == pytest.approx(weight_bytes(adapters.model, base), rel=1e-3)
    assert table.dense_params[0, 0] == trainable_parameters(adapters.model, lora)
    wider = replace(lora, extra_trainable=("embedding", "head"))
    both = single_table(replace(adapters, recipe=replace(plain.recipe, lora=wider)))
    assert both.dense_params[0, 0] == trainable_parameters(adapters.model, wider)
    lines = [dict(estimate(j).breakdown) for j in (replace(adapters, layout=Layout(dp=16)), adapters, plain)]
    assert lines[0]["data_parallel"] < 0.1 * lines[1]["data_parallel"] < lines[2]["data_parallel"]
    # at least one layer of each pass waits for its weights, over the links between nodes of eight
    exposed = 2 * 4 * weight_bytes(adapters.model, base) / 32 / 50e9 / 8
    assert lines[1]["data_parallel"] > exposed
