"""What a training step costs on a device that is its own host: launches add up, large tensors have new pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from lossless import SHAPE, VOCAB, WIDTH, job, lines, machine

from flopwise.facts.models.config import model_from_config
from flopwise.training.job import TrainJob
from flopwise.training.layout import Layout
from named import FACTS, recipe_with

SMALL = model_from_config({**SHAPE, "hidden_size": 256, "vocab_size": 2048, "num_hidden_layers": 2}, name="small")


def on_host(model: Any = None) -> TrainJob:
    """A job in fp32 on one device that is a CPU; 2 sequences of 256 tokens."""
    cluster = machine(fresh_bytes_per_s=2e9, train_host_ratio=1.0)
    peak = {**cluster.rates.peak, "fp32": 1e12}
    cluster = replace(cluster, rates=replace(cluster.rates, is_host=True, peak=peak))
    recipe = recipe_with(seq_len=256, global_batch=2, stack="hf-trainer-2026", precision="fp32")
    layout = Layout(micro_batch=2)
    return replace(job(cluster=cluster), recipe=recipe, layout=layout, **({} if model is None else {"model": model}))


def test_launching_adds_to_computing_where_both_run_on_one_thread() -> None:
    own, ratio = lines(on_host(SMALL)), lines(on_host_with_ratio(2.0))
    stack = FACTS.stack("hf-trainer-2026")
    stages = SMALL.stacks[0]
    items = len(stages.before) + len(stages.after) + sum(len(stages.kinds[k].items) for k in stages.order)
    assert own["launch"] == pytest.approx(3 * items * stack.launch_s)  # one launch an item forward, two backward
    assert ratio["launch"] == pytest.approx(2 * own["launch"])
    device = on_host(SMALL)
    apart = replace(device.cluster, rates=replace(device.cluster.rates, is_host=False))
    assert lines(replace(device, cluster=apart))["launch"] < own["launch"]  # hidden behind what the device does


def on_host_with_ratio(ratio: float) -> TrainJob:
    found = on_host(SMALL)
    value = {**found.cluster.rates.value, "train_host_ratio": ratio}
    return replace(found, cluster=replace(found.cluster, rates=replace(found.cluster.rates, value=value)))


def test_tensors_of_32_mib_cost_their_pages_every_time() -> None:
    # gradients of embedding and head, and four tensors as large as the logits of 512 tokens, all above 32 MiB; fp32
    large = VOCAB * WIDTH * 4 * 2 + 4 * (2 * 256 * VOCAB * 4)
    assert lines(on_host())["fresh_memory"] == pytest.approx(large / 2e9)


def test_smaller_tensors_come_from_memory_that_was_used_before() -> None:
    assert lines(on_host(SMALL))["fresh_memory"] == 0.0  # 2 MiB of gradients, 4 MiB of logits
    assert "fresh_memory" not in lines(job())  # a GPU's allocator keeps what it has


def test_a_cpu_does_not_wait_for_itself_to_count_tokens_of_experts() -> None:
    experts = {**SHAPE, "model_type": "mixtral", "hidden_size": 256, "vocab_size": 2048, "num_local_experts": 4,
               "num_experts_per_tok": 2, "num_hidden_layers": 2}  # fmt: skip
    model = model_from_config(experts, name="experts")
    stack, stages = FACTS.stack("hf-trainer-2026"), model.stacks[0]
    items = len(stages.before) + len(stages.after) + sum(len(stages.kinds[k].items) for k in stages.order)
    found = lines(on_host(model))["launch"]
    assert found == pytest.approx(3 * items * stack.launch_s)  # of each item, three times; a GPU's host waits besides:
    assert 2 * stack.routing_s > 0.01 * found


def test_the_fused_optimizer_of_2026_and_clipping_move_40_bytes_a_parameter() -> None:
    stack = FACTS.stack("hf-trainer-2026")
    # AdamW in fp32: weight, two states read and written, gradient read; clipping: gradient read twice, written once
    assert stack.optimizer_passes * 28 == pytest.approx(28 + 12, rel=2e-3)
