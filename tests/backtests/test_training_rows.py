"""What the words of training rows mean: which software of which year, which layout, which era."""

from __future__ import annotations

from typing import Any

import pytest

from flopwise.backtests.gpu_hours import campaign_frac, early, noted_degrees, predict_row
from flopwise.backtests.training import noted_stack
from named import FACTS


@pytest.mark.parametrize(
    ("software", "year", "found"),
    [
        ("megatron-te", "2025", "megatron-te"),
        ("megatron-te", "2026", "megatron-2026"),
        ("megatron-te", "", "megatron-te"),
        ("megatron-2021", "2026", "megatron-2021"),
        ("fsdp-eager", "2023", "fsdp-2023"),
        ("fsdp-eager", "2024", "fsdp-eager"),
        ("fsdp-eager", "", "fsdp-eager"),
        ("fsdp-fused", "2023", "fsdp-fused"),
    ],
)
def test_the_year_tells_the_generation_of_kernels(software: str, year: str, found: str) -> None:
    assert noted_stack({"stack": software, "year": year}) == found


def test_runs_before_flash_attention_are_told_by_their_report_or_their_precision() -> None:
    assert early({"source": "Luccioni et al. 2022 (arXiv:2211.02001)", "precision": "bf16"})
    assert not early({"source": "LLaMA paper (arXiv:2302.13971)", "precision": "bf16"})
    assert not early({"source": "Pythia paper (arXiv:2304.01373)", "precision": "fp16"})
    assert early({"source": "a logbook", "precision": "fp16"})
    assert not early({"source": "a model card", "precision": "bf16"})


def test_degrees_are_read_as_printed() -> None:
    assert noted_degrees({"source": "384 A100 (TP8 PP4 DP12 + ZeRO)"}) == (("tp", 8), ("pp", 4), ("dp", 12))
    assert noted_degrees({"notes": "PP2 DP192"}) == (("pp", 2), ("dp", 192))
    assert noted_degrees({"notes": "rounded 1.3M; https://x/http2"}) == ()


def _hours(**cells: Any) -> float:
    row = {"id": "x", "model": "Falcon-7B", "gpu": "A100-SXM-80GB", "n_gpus": "64", "tokens_b": "100"}
    found = predict_row(row | {"precision": "bf16"} | cells, FACTS)
    assert found.predicted is not None, found.skipped
    return found.predicted


def test_campaigns_take_more_than_their_steps_and_old_ones_more_than_new_ones() -> None:
    assert 0 < campaign_frac(FACTS.calibration) < 1
    assert _hours(source="arXiv:2205.00001") > 1.2 * _hours(source="arXiv:2305.00001")
    assert _hours(tokens_b="200") == pytest.approx(2 * _hours())


def test_a_stated_layout_is_never_faster_than_the_fastest() -> None:
    assert _hours(notes="PP8 DP8") > _hours()
    assert _hours(notes="TP7") == _hours()  # no such layout: the words meant something else
