"""Uneven routing in the step and its memory: what must hold, and what other parts of the tree count independently."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flopwise.cost.cluster import cluster
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.ops.routing import hottest_rank_load
from flopwise.provenance import walk
from flopwise.training.estimate import estimate, single_table
from flopwise.training.explain import train_figure
from flopwise.training.job import TrainJob
from flopwise.training.layout import Inner, Layout
from flopwise.training.memory import step_memory
from flopwise.training.step import owned_params, step_parts
from flopwise.training.step_table import step_table
from named import recipe_with

H100 = cluster(load_facts().accelerator("H100-SXM-80"), gpus_per_node=8, network_bytes_per_s_per_gpu=50e9)
MOE = load_model("Qwen3-30B-A3B")


def job(recipe: dict[str, Any] | None = None, **layout: Any) -> TrainJob:
    shape: dict[str, Any] = {"dp": 16, "ep": 8, "zero": 1, **layout}
    wanted = recipe_with(seq_len=4096, global_batch=64, stack="megatron-te", **(recipe or {}))
    return TrainJob(model=MOE, recipe=wanted, layout=Layout(**shape), cluster=H100)


def lines(recipe: dict[str, Any], **layout: Any) -> dict[str, float]:
    return dict(estimate(job(recipe, **layout)).breakdown)


def test_balanced_routing_has_no_line_and_changes_nothing() -> None:
    assert "expert_imbalance" not in lines({})
    assert "expert_imbalance" not in lines({"expert_skew": 1.0})


@pytest.mark.parametrize("recompute", [0, 1, 2])
def test_skew_costs_what_its_line_says_and_touches_no_other_line(recompute: int) -> None:
    layout = {"recompute": recompute, "micro_batch": 4}  # enough work to hide the host
    even, before = lines({}, **layout), 0.0
    for skew in (1.5, 3.0, 16.0):
        found = lines({"expert_skew": skew}, **layout)
        own = found.pop("expert_imbalance")
        assert own > before
        found["stragglers"] *= 1 - own / (sum(found.values()) + own - found["stragglers"])  # a share of the step
        assert found == pytest.approx(even, rel=1e-9)
        before = own


def test_one_rank_with_all_experts_is_not_skewed() -> None:
    assert lines({"expert_skew": 8.0}, ep=1) == lines({}, ep=1)


def test_a_capacity_costs_the_same_whatever_the_skew_and_drops_more_with_it() -> None:
    plain, skewed = (estimate(job({"capacity_factor": 1.25, "expert_skew": skew})) for skew in (1.0, 4.0))
    assert plain.breakdown == skewed.breakdown
    assert dict(plain.breakdown)["expert_imbalance"] > 0
    assert plain.dropped_frac is not None
    assert skewed.dropped_frac is not None
    assert plain.dropped_frac < 0.01 < skewed.dropped_frac < 1
    assert estimate(job()).dropped_frac is None


def test_capacity_below_one_computes_less() -> None:
    assert estimate(job({"capacity_factor": 0.5})).step_s < estimate(job()).step_s


@pytest.mark.parametrize("capacity", [0.01, 0.25, 0.5])
def test_dropped_tokens_do_not_count_into_mfu(capacity: float) -> None:
    """The config: 48 layers, 8 experts a token, each three products of 2,048 x 768; a multiply and an add each."""
    whole, part = estimate(job()), estimate(job({"capacity_factor": capacity}))
    done, less = (one.mfu_frac * one.step_s * one.num_gpus * 989.4e12 / 3 for one in (whole, part))
    assert part.dropped_frac == pytest.approx(1 - capacity, abs=1e-3)
    assert done - less == pytest.approx((part.dropped_frac or 0) * 48 * 8 * 3 * 2 * 2048 * 768 * 64 * 4096, rel=1e-4)
    assert part.mfu_frac < 1
    assert part.mfu_full_attention_frac < 1


def test_a_skew_of_ranks_equals_a_capacity_of_that_load() -> None:
    load = float(hottest_rank_load(128, 4.0, 8))
    skewed, capped = (dict(estimate(job(how)).breakdown) for how in ({"expert_skew": 4.0}, {"capacity_factor": load}))
    assert skewed.pop("launch") > capped.pop("launch") == 0.0  # of a capacity there is nothing to wait for
    assert skewed == pytest.approx(capped, rel=1e-9)


def test_bounds_hold_with_uneven_routing() -> None:
    for recipe in ({"expert_skew": 4.0}, {"capacity_factor": 2.0}, {"capacity_factor": 0.7}):
        result = estimate(job(recipe))
        assert result.lower_bound_s <= result.step_s <= result.upper_bound_s
        assert sum(s for _, s in result.breakdown) == pytest.approx(result.step_s)


def test_memory_grows_by_the_experts_activations_of_the_fullest_rank() -> None:
    """Twice the load adds what it adds once more: the experts' tensors are in proportion to their tokens."""
    held = [
        float(step_memory(MOE, job({"capacity_factor": c}).recipe, job().layout).items["activations"])
        for c in (1.0, 2.0, 3.0)
    ]
    assert held[0] < held[1]
    assert held[2] - held[1] == pytest.approx(held[1] - held[0])
    layers, tokens = MOE.stacks[0].num_layers, 4096
    hidden, width, top_k = 768, 2048, 8
    least = layers * tokens * top_k * (width + 3 * hidden) * 2  # what goes in; gate and up, and their product
    assert held[1] - held[0] >= least
    balanced = float(step_memory(MOE, job().recipe, job().layout).items["activations"])
    assert balanced == held[0]


def test_columns_of_skewed_layouts_are_the_single_estimates() -> None:
    recipe = recipe_with(seq_len=4096, global_batch=64, stack="megatron-te", expert_skew=3.0)
    ep = np.array([1, 2, 8, 16])
    one = np.ones_like(ep)
    table = step_table(MOE, recipe, H100.rates, H100.fabric, Inner(one, one, ep, one), np.array([1]))
    parts = step_parts(table, np.arange(4), np.zeros(4, dtype=np.intp), Layout(dp=16, ep=ep, zero=1))
    total = sum(np.broadcast_to(v, 4) for v in parts.values())
    single = [estimate(replace(job(ep=int(e)), recipe=recipe)).step_s for e in ep]
    assert total == pytest.approx(single)


@pytest.mark.parametrize("layout", [
    {"zero": 1}, {"zero": 2}, {"zero": 0}, {"zero": 1, "ep": 16}, {"zero": 3, "ep": 4}, {"zero": 1, "dp": 8, "cp": 2},
    {"zero": 3, "shard": 4, "ep": 8}, {"zero": 3, "shard": 8, "ep": 2},
])  # fmt: skip
def test_the_optimizer_updates_the_parameters_whose_states_memory_holds(layout: dict[str, Any]) -> None:
    found = job(**layout)
    first = np.zeros(1, dtype=np.intp)
    owned = float(np.asarray(owned_params(single_table(found), first, first, found.layout))[0])
    states = float(step_memory(MOE, found.recipe, found.layout).items["optimizer states"])
    assert states == pytest.approx(8 * owned, rel=1e-6)


def test_the_tree_says_where_the_imbalance_comes_from() -> None:
    figures = {f.name: f.value for f in walk(train_figure(estimate(job({"expert_skew": 3.0}))))}
    assert figures["load of the fullest rank over the mean"] == pytest.approx(float(hottest_rank_load(128, 3.0, 8)))
    imbalance = figures["expert imbalance"]
    assert isinstance(imbalance, float)
    assert imbalance > 0


@pytest.mark.parametrize(("recipe", "said"), [
    ({"expert_skew": 0.9}, "expert skew 0.9"), ({"expert_skew": float("nan")}, "expert skew nan"),
    ({"expert_skew": float("inf")}, "expert skew inf"), ({"expert_skew": 17.0}, "allowed: 1 to 16"),
    ({"capacity_factor": 0.0}, "capacity factor 0"), ({"capacity_factor": -1.0}, "capacity factor -1"),
    ({"capacity_factor": float("nan")}, "capacity factor nan"),
])  # fmt: skip
def test_routing_that_cannot_be_is_refused(recipe: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        estimate(job(recipe))


def test_more_experts_than_ranks_or_tokens_allow_is_refused() -> None:
    with pytest.raises(SpecError, match="ep 256 is more than the 128 experts"):
        estimate(replace(job(dp=256, ep=256), recipe=recipe_with(seq_len=4096, global_batch=256)))
    with pytest.raises(SpecError, match=r"128 experts .* has only"):
        estimate(replace(job(dp=1, ep=1), recipe=recipe_with(seq_len=64, global_batch=1)))
    with pytest.raises(SpecError, match="no experts"):
        estimate(replace(job({"expert_skew": 2.0}, ep=1), model=load_model("Llama-3.1-8B")))
