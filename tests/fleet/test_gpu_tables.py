"""The table of accelerators: cores, the range of prices over providers, and what each is best for in the fleet."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from small import answer, catalog


def test_prices_range_from_the_lowest_to_the_highest_offer() -> None:
    for row in answer().assessment.gpus:
        offers = [o for o in catalog().offers if o.accelerator == row["gpu"] and not o.retires_on]
        for field, low, high in (
            ("on_demand_usd_per_hour", "usd_per_gpu_hour", "usd_per_gpu_hour_most"),
            ("spot_usd_per_hour", "spot_usd_per_gpu_hour", "spot_usd_per_gpu_hour_most"),
        ):
            prices = [getattr(o, field) / (o.count * o.accelerator_share) for o in offers if getattr(o, field)]
            assert row[low] == pytest.approx(min(prices)) if prices else row[low] is None
            assert row[high] == pytest.approx(max(prices)) if prices else row[high] is None
        assert set(row["providers"]) == {o.provider for o in offers}


def test_the_plan_of_the_t4_has_its_cores() -> None:
    rows = {row["gpu"]: row for row in answer().assessment.gpus}
    assert (rows["T4"]["cores"], rows["T4"]["tensor_cores"]) == (2560, 320)


def test_every_workload_has_an_accelerator_that_is_best_for_it() -> None:
    found = answer().assessment
    best: dict[str, list[str]] = {}
    for row in found.gpus:
        if row.get("best_for_times", 9.0) <= 1.05:
            for name in row["best_for"]:
                best.setdefault(name, []).append(row["gpu"])
    assert set(best) == {"chat", "tune", "nightly", "desks"}
    for choice in found.by_provider:  # what is cheapest over all providers is best for its workload
        mine = [c for c in found.by_provider if c.workload == choice.workload and c.usd_per_month is not None]
        cheapest = min(mine, key=lambda c: c.usd_per_month or 0.0)
        assert cheapest.gpu in best[choice.workload]


def test_an_accelerator_that_is_never_best_says_how_far_it_is_off() -> None:
    others = [row for row in answer().assessment.gpus if row.get("best_for_times", 0.0) > 1.05]
    assert others
    assert all(len(row["best_for"]) == 1 for row in others)


def test_size_classes_and_the_largest_models_are_of_the_fleet() -> None:
    found = answer().assessment
    assert [row["gpu"] for row in found.largest_models] == [row["gpu"] for row in found.gpus]
    sizes = [row["parameters"] for row in found.size_classes]
    assert sizes == sorted(sizes)
    assert {row["size"] for row in found.size_classes} == {"small", "medium", "large"}
