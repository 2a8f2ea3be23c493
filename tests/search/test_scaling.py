"""Ways of spreading a job: each point is the estimate of its layout, the hybrid is the best, and reasons hold."""

from __future__ import annotations

from typing import Any

import pytest

import flopwise
from flopwise.api.compare import compare
from flopwise.errors import SpecError
from flopwise.search.scaling import BENT_FRAC, STRATEGIES, CompareAnswer, ScalingPoint
from flopwise.training.estimate import estimate
from flopwise.training.job import TrainJob

ASKED: dict[str, Any] = {"gpu": "h100", "gpus": 64, "seq": 4096, "global_batch": 64}


@pytest.fixture(scope="module")
def strong() -> CompareAnswer:
    return compare("Qwen2.5-1.5B", **ASKED)


def points(answer: CompareAnswer, strategy: str) -> dict[int, ScalingPoint]:
    return {p.num_gpus: p for p in answer.comparison.points if p.strategy == strategy}


def test_every_way_is_asked_on_every_power_of_two(strong: CompareAnswer) -> None:
    for strategy in STRATEGIES:
        if strategy != "expert":  # a dense model
            assert list(points(strong, strategy)) == [1, 2, 4, 8, 16, 32, 64], strategy
    assert not points(strong, "expert")


def test_every_point_is_the_estimate_of_its_layout(strong: CompareAnswer) -> None:
    shown = [p for p in strong.comparison.points if p.layout is not None]
    assert len(shown) > 30
    for point in shown[::5]:
        assert point.layout is not None
        job = TrainJob(model=strong.model, recipe=strong.recipe, layout=point.layout, cluster=strong.cluster)
        found = estimate(job)
        assert point.step_s == pytest.approx(found.step_s, rel=1e-9)
        assert point.memory_bytes == pytest.approx(float(found.memory.total_bytes), rel=1e-9)


def test_no_single_way_is_faster_than_the_hybrid(strong: CompareAnswer) -> None:
    best = points(strong, "hybrid")
    for point in strong.comparison.points:
        if point.fits:
            assert point.step_s is not None
            assert point.step_s >= (best[point.num_gpus].step_s or 0.0) * (1 - 1e-12)


def test_efficiency_is_of_the_reference_and_what_bends_has_a_reason(strong: CompareAnswer) -> None:
    reference = strong.comparison.reference
    assert reference is not None
    assert reference.samples_per_s is not None
    each = reference.samples_per_s / reference.num_gpus
    for point in strong.comparison.points:
        if point.fits:
            assert point.samples_per_s is not None
            assert point.efficiency_frac == pytest.approx(point.samples_per_s / point.num_gpus / each)
        if not point.fits or (point.efficiency_frac or 0) < 0.95:
            assert point.reason
    for bend in strong.comparison.bends:
        if bend.num_gpus is not None:
            where = points(strong, bend.strategy)[bend.num_gpus]
            assert (where.efficiency_frac or 0.0) < BENT_FRAC


def test_reasons_name_what_stops_each_way() -> None:
    answer = compare("Qwen2.5-1.5B", **(ASKED | {"global_batch": 32}))
    assert "exhausted" in points(answer, "data")[64].reason
    assert "12 attention heads" in points(answer, "tensor")[8].reason
    assert "28 layers" in points(answer, "pipeline")[32].reason
    assert "exposed" in points(answer, "tensor")[4].reason
    large = compare("Llama-3.1-70B", gpu="h100", gpus=8, seq=4096, global_batch=8)
    assert "does not fit" in points(large, "data")[8].reason


def test_weak_scaling_keeps_the_batch_of_each_accelerator_and_bends_less(strong: CompareAnswer) -> None:
    weak = compare("Qwen2.5-1.5B", **ASKED, weak=True)
    assert {p.num_gpus: p.global_batch for p in weak.comparison.points} == {n: n for n in (1, 2, 4, 8, 16, 32, 64)}
    a, b = points(weak, "zero-1")[64], points(strong, "zero-1")[64]
    assert a.step_s == pytest.approx(b.step_s)  # the same batch on all accelerators
    assert (a.efficiency_frac or 0) >= (b.efficiency_frac or 0)


def test_experts_are_a_way_of_their_own_in_mixtures() -> None:
    answer = compare("Mixtral-8x7B", gpu="h200", gpus=16, seq=2048, global_batch=64)
    spread = points(answer, "expert")[16].layout
    assert spread is not None
    assert (int(spread.ep), int(spread.dp)) == (8, 16)


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"tp": 2}, "leave out"), ({"expert_tp": 1}, "leave out"), ({"recompute": "full"}, "leave out"),
        ({"gpus": 1}, "2 or more"),
    ],
)  # fmt: skip
def test_comparisons_that_cannot_be(said: dict[str, Any], match: str) -> None:
    with pytest.raises(SpecError, match=match):
        compare("Qwen2.5-1.5B", **(ASKED | said))


def test_the_best_of_a_comparison_is_no_slower_than_what_train_chooses() -> None:
    chosen = flopwise.train("Qwen2.5-1.5B", **ASKED).estimate
    best = points(compare("Qwen2.5-1.5B", **ASKED), "hybrid")[64]
    assert (best.step_s or 0) <= chosen.step_s * (1 + 1e-9)
