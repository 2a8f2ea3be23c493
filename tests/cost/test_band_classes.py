"""Bands are looked up by class, and where a class has none, by the class above it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flopwise.cost.intervals import error_band
from flopwise.errors import MissingFactError
from named import FACTS


def test_a_class_without_a_band_takes_the_one_above_and_remembers_what_was_asked() -> None:
    band = error_band("kernels.gemm.no-such-class", FACTS.calibration)
    assert (band.name, band.exact_name) == ("kernels.gemm", "kernels.gemm.no-such-class")
    wide = band.wider(2.0, "a guess")
    assert (wide.exact_name, wide.spread) == (band.exact_name, 2.0)
    assert wide.low < band.low < band.median < band.high < wide.high
    with pytest.raises(MissingFactError, match="astrology"):
        error_band("astrology", FACTS.calibration)


MODULES = ("framework.seen", "framework.unseen", "transformers.seen", "transformers.unseen")


@pytest.mark.parametrize(
    "name",
    [
        "weights",
        *(f"memory.{what}.{whose}" for what in ("full", "adapters", "quantised") for whose in MODULES),
        "memory.serving",
        "kernels.gemm",
        *(f"{kind}.{what}" for kind in ("training", "gpu_hours") for what in ("dense", "moe")),
        "serving.ttft.server",
        "serving.tpot.server.dense",
        "serving.throughput.local",
    ],
)
def test_every_class_that_estimates_ask_for_has_a_band(name: str) -> None:
    band = error_band(name, FACTS.calibration)
    assert 0 < band.low < band.median < band.high
    assert band.rows > 0


def test_intervals_and_odds_end_where_physics_does() -> None:
    band = error_band("serving.ttft", FACTS.calibration)
    low, high = band.interval(1.0)
    cut = band.interval(1.0, floor=0.9)
    assert low < 0.9
    assert [float(end) for end in cut] == pytest.approx([0.9, max(float(high), 0.9)])
    assert [float(end) for end in band.interval(1.0, ceiling=low / 2)] == pytest.approx([float(low) / 2] * 2)
    assert float(band.probability_at_most(1.0, 0.8)) > 0
    assert float(band.probability_at_most(1.0, 0.8, floor=0.9)) == 0
    assert float(band.probability_at_most(1.0, 0.95, floor=0.9)) == float(band.probability_at_most(1.0, 0.95))


@pytest.mark.parametrize(("low", "high", "ends"), [(1.2, 3.0, (2.0, 6.0)), (0.3, 0.9, (0.6, 2.0))])
def test_an_interval_holds_the_figure_that_it_is_of(low: float, high: float, ends: tuple[float, float]) -> None:
    """Of a class whose measurements lie on one side of what is predicted, 2."""
    one_sided = replace(error_band("kernels.gemm", FACTS.calibration), low=low, high=high)
    assert one_sided.interval(2.0) == pytest.approx(ends)


@pytest.mark.parametrize(("floor", "ceiling"), [(0.97, None), (None, 0.98), (0.5, 2.0), (1.2, 0.9)])
def test_an_interval_of_a_number_is_that_of_a_column(floor: float | None, ceiling: float | None) -> None:
    band = error_band("kernels.gemm", FACTS.calibration)
    alone = band.interval(1.0, floor=floor, ceiling=ceiling)
    column = band.interval(np.ones(1), floor=floor, ceiling=ceiling)
    assert [[end] for end in alone] == [np.asarray(end).tolist() for end in column]
