"""Bands are as wide as the measurements of a device's architecture allow."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import pytest

from flopwise.cost.cluster import cluster
from flopwise.cost.intervals import ErrorBand, device_band
from flopwise.errors import SpecError
from flopwise.facts.calibration import FamilyRows, MeasuredFamilies
from named import FACTS

CLASSES = (
    "training.dense", "training.moe", "serving.ttft.server", "serving.tpot.server.dense",
    "serving.throughput.batch.moe",
)  # fmt: skip


def width(band: ErrorBand) -> float:
    """Of a band, as a logarithm."""
    return math.log(band.high / band.low)


def device(name: str, what: str = "training.dense") -> ErrorBand:
    """The band of a device by its name."""
    found = FACTS.resolve(name)
    return device_band(what, cluster(found.accelerator, ambiguous=found.note))


@pytest.mark.parametrize(
    ("name", "what"),
    list(product(("TPU v5e", "TPU v6e", "TPU v4", "Gaudi2", "Gaudi3", "Trainium1", "Trainium2"), CLASSES)),
)
def test_no_band_of_another_maker_is_narrower_than_an_h100s(name: str, what: str) -> None:
    for h100 in ("H100", "H100-SXM-80"):
        assert width(device(name, what)) >= width(device(h100, what))


@pytest.mark.parametrize("name", ["K80", "P100-SXM2-16", "T4"])
def test_training_on_an_architecture_that_nobody_measured_is_wider_and_says_so(name: str) -> None:
    band, seen = device(name), device("A100-SXM-80")
    assert band.family_rows == 0
    assert band.evidence.startswith("no measured run on this architecture")
    assert "no measured run on this architecture" in band.source
    measured = FACTS.calibration.measured["training"]
    assert band.spread == pytest.approx(measured.family_out)
    assert width(band) == pytest.approx(measured.family_out * width(seen))


def test_the_rows_that_are_named_are_those_of_the_architecture() -> None:
    """Those of a TPU are not the 250 of all dense runs."""
    families = FACTS.calibration.measured["training"].families
    tpu, h100 = device("TPU v6e"), device("H100-SXM-80")
    assert tpu.family_rows == families["tpu-v6e"].classes["training.dense"] < tpu.rows / 10
    assert h100.family_rows == families["hopper"].classes["training.dense"] < h100.rows
    assert h100.family_rows < families["hopper"].rows  # its mixtures are of another class
    assert (h100.spread, tpu.evidence[:2]) == (1.0, str(tpu.family_rows))
    assert device("Gaudi3").spread >= FACTS.calibration.measured["training"].maker_out  # rows of one publisher alone


def family(rows: int, sources: int, spread: float, maker: str = "A gpu") -> FamilyRows:
    """Rows of a family."""
    return FamilyRows(maker=maker, rows=rows, sources=sources, spread=spread)


def test_what_a_familys_rows_vouch_for() -> None:
    """Enough rows of several sources that the band holds: 1. One source, or a bad fit: no less than leaving it out."""
    known = MeasuredFamilies(
        families={
            "good": family(40, 5, 1.1), "bad": family(40, 5, 4.0), "single": family(40, 1, 1.0),
            "few": family(3, 3, 1.0), "foreign": family(30, 1, 2.5, "B tpu"), "far": family(30, 1, 9.0, "B tpu"),
        },
        family_out=2.0, maker_out=3.0,
    )  # fmt: skip
    spreads = {name: known.spread(name, one.maker) for name, one in known.families.items()}
    assert spreads == {"good": 1.0, "bad": 4.0, "single": 2.0, "few": 2.0, "foreign": 3.0, "far": 9.0}
    assert (known.spread("new", "A gpu"), known.spread("new", "B tpu"), known.spread("new", "C npu")) == (2.0, 3.0, 3.0)


def test_a_file_that_is_not_one_of_coverage_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "coverage.json"
    for text in ("{}", '{"kinds": {"training": {"families": {"x": {"rows": 1}}}}}', '{"kinds": [1]}'):
        file.write_text(text)
        with pytest.raises(SpecError, match="fit_coverage"):
            MeasuredFamilies.by_kind(file)
