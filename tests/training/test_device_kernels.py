"""Kernels of several devices, and of several products, evaluated at once: the figures of each alone."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from flopwise.cost.cluster import cluster
from flopwise.cost.kernels import PLAIN, work_s
from flopwise.cost.rates import together
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.ops.shapes import Work
from flopwise.search.layout_search import device_kernels
from flopwise.search.plan_training import keep_kernels_together
from flopwise.training import estimate as estimate_file
from flopwise.training.blocks import Kernels, products_s
from flopwise.training.estimate import keep_kernels, kept_kernels, single_inner, single_parts, single_table
from flopwise.training.job import TrainJob
from flopwise.training.layout import Inner, Layout
from flopwise.training.step_table import step_table
from named import lora_with, recipe_with

FACTS = load_facts()
CLUSTERS = [cluster(FACTS.accelerator(name)) for name in ("h100", "a100-80gb", "l4", "mi300x", "t4", "tpu-v5p")]
INNER = Inner(*(np.array(column) for column in ([1, 2, 8, 1], [1, 1, 2, 1], [1, 2, 8, 1], [1, 4, 2, 8])))


def same(one: list[list[Kernels]], other: list[list[Kernels]]) -> None:
    assert [len(blocks) for blocks in one] == [len(blocks) for blocks in other]
    for mine, theirs in zip(
        (k for blocks in one for k in blocks), (k for blocks in other for k in blocks), strict=True
    ):
        for field in fields(Kernels):
            np.testing.assert_array_equal(getattr(mine, field.name), getattr(theirs, field.name), err_msg=field.name)


@pytest.mark.parametrize(
    ("model", "lora"), [("Llama-3.1-8B", False), ("Llama-3.1-8B", True), ("Mixtral-8x7B", False)], ids=str
)
def test_devices_together_are_timed_as_each_alone(model: str, lora: bool) -> None:
    found, recipe = load_model(model), recipe_with(seq_len=4096, global_batch=64)
    recipe = replace(recipe, lora=lora_with(rank=16)) if lora else recipe
    kernels = device_kernels(found, recipe, CLUSTERS, INNER)
    forms = {one.rates.form for one in CLUSTERS}
    assert 1 < len(forms) < len(kernels) == len(CLUSTERS)
    for one in CLUSTERS:
        alone = step_table(found, recipe, one.rates, one.fabric, INNER, np.array([1, 2]))
        same(kernels[one.rates.key], alone.kernels)


def test_a_device_without_the_rate_is_left_out() -> None:
    model, recipe = load_model("Llama-3.1-8B"), recipe_with(seq_len=4096, global_batch=64, precision="fp8")
    kernels = device_kernels(model, recipe, CLUSTERS, INNER)
    assert {one.rates.name for one in CLUSTERS if one.rates.key in kernels} >= {"H100-SXM-80", "L4"}
    assert not any(one.rates.key in kernels for one in CLUSTERS if "fp8" not in one.rates.peak)


def test_what_a_search_evaluated_is_kept_for_one_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate_file, "KEPT_KERNELS", 1)
    estimate_file._KERNELS.clear()
    model, recipe, (first, second, *_) = (
        load_model("Mixtral-8x7B"),
        recipe_with(seq_len=4096, global_batch=64),
        CLUSTERS,
    )
    one = Inner(*(np.array([int(column[1])]) for column in (INNER.tp, INNER.cp, INNER.ep, INNER.micro_batch)))
    assert kept_kernels(model, recipe, first.rates, one) is None
    kernels = device_kernels(model, recipe, [first, second], INNER)
    keep_kernels(model, recipe, first.rates, INNER, kernels[first.rates.key])
    found = kept_kernels(model, recipe, first.rates, one)
    assert found is not None
    same(found, step_table(model, recipe, first.rates, first.fabric, one, np.array([1])).kernels)
    assert kept_kernels(model, replace(recipe, precision="fp8"), first.rates, one) is None
    assert kept_kernels(model, recipe, first.rates, replace(one, micro_batch=np.array([3]))) is None
    keep_kernels(model, recipe, second.rates, INNER, kernels[second.rates.key])
    assert kept_kernels(model, recipe, first.rates, one) is None  # the last only


def test_runs_of_one_recipe_are_evaluated_together_as_each_alone() -> None:
    """On three devices, with other degrees and micro-batches on each, whatever the global batch."""
    estimate_file._KERNELS.clear()
    model, recipe = load_model("Mixtral-8x7B"), recipe_with(seq_len=4096, global_batch=64)
    shapes: list[dict[str, Any]] = [
        {"micro_batch": 1},
        {"tp": 2, "micro_batch": 4},
        {"ep": 8, "dp": 8, "micro_batch": 2},
    ]
    jobs = [
        TrainJob(model=model, recipe=recipe, layout=Layout(**shape), cluster=machines)
        for machines, shape in zip(CLUSTERS, shapes, strict=False)
    ]
    keep_kernels_together(jobs)
    for job in jobs:
        inner = single_inner(job.layout)
        found = kept_kernels(model, replace(recipe, global_batch=512), job.cluster.rates, inner)
        assert found is not None
        same(found, step_table(model, recipe, job.cluster.rates, job.cluster.fabric, inner, np.array([1])).kernels)


def test_a_table_that_layouts_share_is_the_one_that_each_has_alone() -> None:
    """To the last bit, whatever was estimated before: replicas, what they shard, schedules, chunks and recompute."""
    estimate_file._kept_table.cache_clear()
    model, recipe = load_model("gpt2"), recipe_with(seq_len=1024, global_batch=64, stack="megatron-deepspeed")
    more: list[dict[str, Any]] = [
        {}, {"dp": 4, "zero": 1}, {"dp": 8, "zero": 3, "shard": 2}, {"schedule": 1}, {"interleave": 3},
        {"recompute": 1}, {"recompute": 2, "recompute_every": 2}, {"recompute": 2, "recompute_first": 1},
        {"recompute": 2, "recompute_first": 1, "interleave": 3}, {"stage_layers": (5, 7)},
        {"stage_layers": (1, 3, 3, 5), "interleave": 2}, {"sequence_parallel": False}, {"offload_activations": True},
        {"offload_activations": True, "interleave": 3, "schedule": 1}, {"dp": 2, "offload_optimizer": True},
        {"offload_activations": True, "recompute": 2, "recompute_first": 1, "interleave": 3, "offload_layers": 1},
    ]  # fmt: skip
    shapes: list[dict[str, Any]] = [{"tp": 2, "pp": 2}, {"tp": 1, "pp": 2}, {"tp": 2, "pp": 2, "micro_batch": 2}]
    for shape in shapes:
        for one in more:
            layout = Layout(**shape, **one)
            job = TrainJob(model=model, recipe=recipe, layout=layout, cluster=CLUSTERS[0])
            alone = estimate_file._table(model, recipe, job.cluster, layout.at(0), None)
            shared = single_table(job)
            assert single_parts(shared, layout) == single_parts(alone, layout), (shape, one)
            np.testing.assert_array_equal(shared.moved_bytes, alone.moved_bytes)
    assert estimate_file._kept_table.cache_info().hits >= 3 * 5


@pytest.mark.parametrize("rows", [1, 5, 20_000])
def test_products_at_once_are_timed_as_each_alone(rows: int) -> None:
    tokens = np.arange(1, rows + 1) * 17.0
    works = [Work(name=f"{n}", kind="matmul", m=tokens, n=n, k=k) for n, k in ((4096, 4096), (1027, 4096), (16, 128))]
    for rates in (CLUSTERS[0].rates, CLUSTERS[4].rates):
        for work, timing in zip(works, products_s(rates, works, PLAIN), strict=True):
            for part, alone in zip(timing, work_s(rates, work), strict=True):
                np.testing.assert_array_equal(part, np.broadcast_to(alone, np.shape(part)))


def test_figures_of_several_devices_stand_where_they_are_put() -> None:
    rates = [cluster(FACTS.accelerator(name)).rates for name in ("h100", "h100-pcie")]
    assert rates[0].form == rates[1].form
    both = together(rates, np.array([1, 0, 1]))
    assert np.asarray(both.hbm_bytes_per_s).tolist() == [rates[i].hbm_bytes_per_s for i in (1, 0, 1)]
    assert np.asarray(both.num_sms).tolist() == [rates[i].num_sms for i in (1, 0, 1)]
    assert together(rates[:1], np.array([0])) is rates[0]
