"""Recompute of some blocks, and stages with layers of their own choosing, against sums over blocks one by one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwise.cost.cluster import cluster
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.ops.shapes import Split
from flopwise.training.estimate import estimate, single_table
from flopwise.training.job import TrainJob
from flopwise.training.layer_sums import layer_activation_bytes
from flopwise.training.layout import Inner, Layout
from flopwise.training.memory import step_memory
from flopwise.training.schedules import NAMES
from flopwise.training.spec import TrainingSpec
from flopwise.training.stages import Partial, even_layers, recomputed_layers, recomputes_all, stage_layer_counts
from flopwise.training.step import others_s
from flopwise.training.step_table import step_table
from named import recipe_with

H100 = cluster(load_facts().accelerator("H100-SXM-80"), gpus_per_node=8, network_bytes_per_s_per_gpu=50e9)
RECIPE = recipe_with(seq_len=4096, global_batch=32, stack="megatron-te")


def job(model: str = "Llama-3.1-8B", **layout: Any) -> TrainJob:
    return TrainJob(model=load_model(model), recipe=RECIPE, layout=Layout(**layout), cluster=H100)


def lines(asked: TrainJob) -> dict[str, float]:
    return dict(estimate(asked).breakdown)


def kept_bytes(asked: TrainJob, again: list[bool], layers: range) -> float:
    """Activations of `layers`, one micro-batch, each layer counted on its own."""
    stack, layout = asked.model.stacks[0], asked.layout
    split = Split(tp=np.array(layout.tp), ep=np.array(1), cp=np.array(1), sequence_parallel=True)
    total = 0.0
    for index in layers:
        total += float(
            layer_activation_bytes(
                stack.kinds[stack.order[index]], stack.width, 1, RECIPE.seq_len, implementation="fused",
                recompute="full" if again[index] else "none", elem_bytes=2.0, split=split, flash=True,
                weighted_first=True,
            )
        )  # fmt: skip
    return total


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "DeepSeek-V2-Lite"])
@pytest.mark.parametrize("some", [{"recompute_every": 2}, {"recompute_every": 5}, {"recompute_first": 3}])
def test_activations_are_the_sum_over_blocks(name: str, some: dict[str, int]) -> None:
    """Against none at all, which the oracle of autograd's saved bytes holds: the difference is what blocks give up."""
    one, none = (job(name, tp=2, recompute=r, **extra) for r, extra in ((2, some), (0, {})))
    layers = one.model.stacks[0].num_layers
    first, every = some.get("recompute_first", 0), some.get("recompute_every", 1)
    again = [i < first if first else (i + 1) % every == 0 for i in range(layers)]
    found = [float(step_memory(j.model, j.recipe, j.layout).items["activations"]) for j in (none, one)]
    expected = [kept_bytes(none, a, range(layers)) for a in ([False] * layers, again)]
    assert found[0] - found[1] == pytest.approx(expected[0] - expected[1], rel=1e-9)


@pytest.mark.parametrize("every", [2, 3, 4, 8])
def test_time_is_the_sum_over_blocks(every: int) -> None:
    """Blocks alike: a share of them costs that share of their forward pass."""
    none, some, whole = (
        lines(job(tp=2, dp=4, recompute=r, recompute_every=n)) for r, n in ((0, 1), (2, every), (2, 1))
    )
    ends = lines(job("Llama-3.1-8B", tp=2, dp=4, recompute=2, recompute_every=32))["recompute"] * 32
    assert some["recompute"] == pytest.approx(ends * (32 // every) / 32)
    assert none["recompute"] == 0
    assert ends == pytest.approx(whole["recompute"])
    for name in ("forward", "backward", "optimizer"):
        assert some[name] == pytest.approx(none[name])
    share = (some["tensor_parallel"] - none["tensor_parallel"]) / none["tensor_parallel"]
    assert share == pytest.approx(0.5 * (32 // every) / 32, rel=0.01)


@pytest.mark.parametrize(
    ("shape", "first", "part"),
    [
        ({}, 1, 1 / 32), ({}, 8, 8 / 32), ({}, 31, 31 / 32), ({"pp": 4}, 2, 2 / 8),
        ({"pp": 4, "interleave": 2}, 3, 3 / 4),
    ],
)  # fmt: skip
def test_first_blocks_take_their_share_of_the_time_of_all(shape: dict[str, Any], first: int, part: float) -> None:
    """32 blocks alike: a stage of four has eight, of two chunks of four, of each of which the first are run again."""
    whole, some = (lines(job(tp=2, **shape, recompute=2, recompute_first=n))["recompute"] for n in (0, first))
    assert some == pytest.approx(part * whole)


@settings(max_examples=40, deadline=None)
@given(
    pp=st.sampled_from([1, 2, 3, 4, 8]), every=st.integers(1, 40), first=st.integers(0, 9),
    interleave=st.sampled_from([1, 2]), name=st.sampled_from(["Llama-3.1-8B", "DeepSeek-V2-Lite"]),
)  # fmt: skip
def test_between_none_and_all(pp: int, every: int, first: int, interleave: int, name: str) -> None:
    """More blocks again: never less time, never more memory, never less HFU over MFU."""
    some = {"recompute_first": first} if first else {"recompute_every": every}
    shape: dict[str, Any] = {"pp": pp, "tp": 2, "interleave": interleave if pp > 1 else 1}
    none, part, whole = (
        estimate(job(name, **shape, recompute=r, **extra)) for r, extra in ((0, {}), (2, some), (2, {}))
    )
    assert none.step_s <= part.step_s * (1 + 1e-12)
    assert part.step_s <= whole.step_s * (1 + 1e-12)
    kept = [float(e.memory.items["activations"]) for e in (none, part, whole)]
    if pp == 1:  # else another stage may be the fullest
        assert kept[0] >= kept[1] * (1 - 1e-12)
        assert kept[1] >= kept[2] * (1 - 1e-12)
    again = [e.hfu_frac / e.mfu_frac for e in (none, part, whole)]
    assert again[0] == pytest.approx(1.0)
    assert again[0] <= again[1] + 1e-12
    assert again[1] <= again[2] + 1e-12
    assert 1.2 < again[2] < 4 / 3  # all layers, but not the head
    assert sum(s for _, s in part.breakdown) == pytest.approx(part.step_s)


def test_selective_recompute_counts_in_hfu() -> None:
    """Attention once more of four passes over the rest: its share of the forward pass."""
    none, some = (estimate(job(tp=2, recompute=r)) for r in (0, 1))
    model = none.job.model
    pairs = 4096 * 4097 / 2
    attention = 4 * pairs * 4096 * 32
    matmuls = (
        2 * 4096 * (model.stacks[0].num_layers * (4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 4096 * 128256)
    )
    share = attention / (attention + matmuls)
    assert some.hfu_frac / some.mfu_frac - 1 == pytest.approx(share / 3, rel=0.02)
    assert none.hfu_frac == pytest.approx(none.mfu_frac)


def test_memory_of_columns_equals_single_layouts() -> None:
    column = Layout(
        pp=np.array([1, 2, 4, 4, 8]), recompute=np.array([2, 2, 2, 0, 1]), recompute_every=np.array([2, 4, 3, 1, 1]),
        schedule=np.array([0, 0, 1, 2, 0]), micro_batch=2, dp=2,
    )  # fmt: skip
    model = load_model("DeepSeek-V2-Lite")
    many = np.asarray(step_memory(model, RECIPE, column).total_bytes)
    assert many.tolist() == pytest.approx(
        [float(step_memory(model, RECIPE, column.at(i)).total_bytes) for i in range(5)]
    )


def test_which_blocks() -> None:
    edges = np.array([0, 3, 8])
    assert recomputed_layers(edges, Partial(every=3)).nonzero()[0].tolist() == [2, 5]
    assert recomputed_layers(edges, Partial(first=2)).nonzero()[0].tolist() == [0, 1, 3, 4]
    counts = stage_layer_counts((0, 0, 1, 1, 1, 1, 1, 1), 2, 2, (3, 5), Partial(first=2))
    assert counts.tolist() == [[0, 1, 2, 0], [0, 3, 0, 2]]


def busiest_s(sizes: tuple[int, ...]) -> float:
    """What the busiest stage takes, of all micro-batches: the lines of the mean stage, and what it takes longer."""
    shown = lines(job(pp=4, tp=2, stage_layers=sizes))
    return sum(shown[n] for n in ("forward", "backward", "recompute", "tensor_parallel", "stage_imbalance"))


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(1, 31), min_size=3, max_size=3, unique=True))
def test_the_step_follows_the_busiest_stage(cuts: list[int]) -> None:
    """Named layers: the largest of layers x one layer's time, with what stands before and after them."""
    layer = busiest_s((29, 1, 1, 1)) - busiest_s((28, 2, 1, 1))
    before, after = busiest_s((29, 1, 1, 1)) - 29 * layer, busiest_s((1, 1, 1, 29)) - 29 * layer
    sizes = tuple(b - a for a, b in pairwise([0, *sorted(cuts), 32]))
    each = [n * layer + (i == 0) * before + (i == 3) * after for i, n in enumerate(sizes)]
    assert busiest_s(sizes) == pytest.approx(max(each))
    shown = lines(job(pp=4, tp=2, stage_layers=sizes))
    assert shown["stage_imbalance"] == pytest.approx(max(each) - sum(each) / 4)
    assert shown["pipeline_bubble"] == pytest.approx((sum(each) - max(each)) / 32)


def test_first_blocks_are_those_of_each_stage() -> None:
    """The last of two stages has 28 of 32 layers: 7 of them computed again save a quarter of what all of them do."""
    cut = Layout(dp=4, pp=2, micro_batch=1, stage_layers=(4, 28))
    modes = (replace(cut, recompute=0), replace(cut, recompute=2), replace(cut, recompute=2, recompute_first=7))
    given = job(pp=2)
    none, every, some = (float(dict(step_memory(given.model, given.recipe, one).items)["activations"]) for one in modes)
    assert none - some == pytest.approx((none - every) / 4, rel=1e-9)


def test_first_blocks_that_are_all_blocks_take_what_all_do() -> None:
    """Eight of the eight on each of four stages; embedding and head are on the first and last one anyhow."""
    every, first = (lines(job(pp=4, tp=2, recompute=2, recompute_first=n)) for n in (0, 8))
    assert first == pytest.approx(every, rel=1e-12)


def test_columns_beside_those_of_first_blocks_stay_as_they_are() -> None:
    table, zero = single_table(job(pp=4, tp=2)), np.zeros(2, dtype=np.intp)
    modes, at = table.modes(Layout(recompute=2, recompute_first=np.array([0, 3])), zero, zero)
    for name in ("stage_s", "rest_s", "stage_weight_s", "stage_beside_s"):
        assert getattr(modes, name)[at][0] == pytest.approx(getattr(table, name)[2, 0, 0], rel=1e-12)
    for name in ("model_s", "model_beside_s", "again_flops"):
        assert getattr(modes, name)[at[0], at[2]][0] == pytest.approx(getattr(table, name)[2, 0], rel=1e-12)
    assert modes.weight_s[at[2]][0] == pytest.approx(table.weight_s[0], rel=1e-12)


def test_a_forward_pass_has_a_third_of_the_messages_where_it_runs_again() -> None:
    """Half of them with one forward and one backward pass, on all stages but the busiest."""
    table, one = single_table(job(pp=4, tp=2)), np.zeros(1, dtype=np.intp)
    messages = (table.model_parts[0, 3:, 0] - table.stage_parts[3:, 0, 0, 0]).sum()
    once, again = (
        others_s(table, (one, one, one), np.array([runs]), NAMES.index("zb-v")).forward_s for runs in (False, True)
    )
    assert messages > 0
    assert np.asarray(once - again) == pytest.approx(messages / 2 - messages / 3, rel=1e-9)


def test_all_blocks_are_computed_again_where_no_number_is_said() -> None:
    columns = Layout(
        recompute=np.array([0, 1, 2, 2, 2]), recompute_every=np.array([1, 1, 1, 2, 1]),
        recompute_first=np.array([0, 0, 0, 0, 3]),
    )  # fmt: skip
    assert recomputes_all(columns).tolist() == [False, False, True, False, False]


def test_memory_of_named_stages_is_that_of_the_fullest() -> None:
    even = job(pp=4, tp=2)
    sizes = tuple(even_layers(32, 4).tolist())
    same = replace(even, layout=replace(even.layout, stage_layers=sizes))
    assert estimate(same).step_s == pytest.approx(estimate(even).step_s)
    found = [float(step_memory(j.model, j.recipe, j.layout).total_bytes) for j in (even, same)]
    assert found[0] == pytest.approx(found[1])
    fewer = replace(even, layout=replace(even.layout, stage_layers=(6, 9, 9, 8)))
    assert float(step_memory(even.model, even.recipe, fewer.layout).total_bytes) < found[0]
    virtual = replace(even, layout=replace(even.layout, interleave=2, stage_layers=(4, 4, 4, 4, 4, 4, 4, 4)))
    plain = replace(even, layout=replace(even.layout, interleave=2))
    assert estimate(virtual).step_s == pytest.approx(estimate(plain).step_s)


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        ({"pp": 4, "stage_layers": (8, 8, 8)}, "give 4 numbers"),
        ({"pp": 4, "stage_layers": (8, 8, 8, 9)}, "add up to the 32 layers"),
        ({"pp": 2, "interleave": 2, "stage_layers": (8, 8, 16)}, "or 4 for the virtual stages"),
        ({"recompute": 1, "recompute_every": 2}, "give recompute full"),
        ({"recompute": 2, "recompute_every": 2, "recompute_first": 2}, "give one of them"),
        ({"recompute": 2, "recompute_every": 0}, "n from 1"),
    ],
)
def test_layouts_that_cannot_be(layout: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        estimate(job(**layout))


@pytest.mark.parametrize(
    ("stages", "most"),
    [
        ({}, 32),  # all layers of Llama-3.1-8B
        ({"pp": 4}, 8),
        ({"pp": 4, "interleave": 2}, 4),
        ({"pp": 3}, 11),  # 11, 11 and 10
        ({"pp": 4, "stage_layers": (7, 9, 9, 7)}, 9),
        ({"pp": 4, "interleave": 2, "stage_layers": (7, 9, 9, 7)}, 5),
        ({"pp": 2, "interleave": 2, "stage_layers": (6, 10, 10, 6)}, 10),
    ],
)
def test_no_more_blocks_are_recomputed_first_than_a_stage_has(stages: dict[str, Any], most: int) -> None:
    spec, model = TrainingSpec(recompute_first=most, **stages), load_model("Llama-3.1-8B")
    assert spec.layout(model).recompute_first == most
    with pytest.raises(SpecError, match=f"first {most + 1} blocks .* at most {most} here; allowed: 1 to {most},"):
        replace(spec, recompute_first=most + 1).layout(model)


def test_a_search_refuses_more_first_blocks_than_there_are() -> None:
    model = load_model("Llama-3.1-8B")
    assert TrainingSpec(recompute_first=32).searched_alike(model).recompute_first == 32
    with pytest.raises(SpecError, match="allowed: 1 to 32"):
        TrainingSpec(recompute_first=33).searched_alike(model)


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "DeepSeek-V2-Lite"])
def test_a_table_has_for_each_degree_and_mode_what_a_table_of_these_alone_has(name: str) -> None:
    asked, some = job(name), (Partial(every=2), Partial(every=3))
    inner = Inner(*(np.array(column) for column in ([1, 2, 2], [1, 1, 2], [1, 1, 1], [1, 2, 1])))
    table = partial(step_table, asked.model, RECIPE, H100.rates, H100.fabric, inner)
    whole = table(np.array([1, 3, 9]), partials=some)
    for d, degree in enumerate(whole.degrees):
        for mode, alone in enumerate(some, start=3):
            one = table(np.array([degree]), partials=(alone,))
            assert one.stage_parts[:, 3, 0] == pytest.approx(whole.stage_parts[:, mode, d], rel=1e-12)
            assert one.model_parts[3] == pytest.approx(whole.model_parts[mode], rel=1e-12)
            for field in ("stage_s", "rest_s", "stage_weight_s", "stage_beside_s"):
                found = getattr(whole, field)[mode, d]
                assert getattr(one, field)[3, 0] == pytest.approx(found, rel=1e-12), field
            for field in ("model_s", "model_beside_s", "again_flops"):
                assert getattr(one, field)[3] == pytest.approx(getattr(whole, field)[mode], rel=1e-12), field
