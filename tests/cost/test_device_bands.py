"""Bands are as wide as the measurements of a device's architecture allow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import flopwise
from flopwise.cost.cluster import cluster
from flopwise.cost.intervals import OTHER_SOFTWARE, ErrorBand, device_band
from flopwise.errors import InfeasibleError, MissingFactError, SpecError
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


@pytest.mark.parametrize("name", ["K80", "P100-SXM2-16", "GTX 1080 Ti"])
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


QUESTIONS: dict[str, dict[str, Any]] = {
    "dense": {"model": "Llama-3.1-8B", "gpus": 8}, "one device": {"model": "gpt2", "gpus": 1},
    "adapters": {"model": "Llama-3.1-8B", "gpus": 8, "lora": 16}, "mixture": {"model": "Mixtral-8x7B", "gpus": 64},
    "sampled": {"model": "resnet50", "gpus": 1}, "large": {"model": "Llama-3.1-70B", "gpus": 2048},
}  # fmt: skip
FOREIGN = [name for name, device in FACTS.accelerators.items() if device.kind in OTHER_SOFTWARE]
H100S = ("H100-SXM-80", "H100-PCIe-80")


def log_widths(answer: Mapping[str, Any], names: Iterable[str]) -> list[float]:
    """Of the intervals of some figures of an answer."""
    ends = [(answer[f"{name}low"], answer[f"{name}high"]) for name in names]
    return [math.log(high / low) for low, high in ends]


@pytest.mark.parametrize("question", QUESTIONS)
def test_no_run_on_other_software_is_surer_than_on_an_h100(question: str) -> None:
    """Of all TPUs, Gaudis, Trainiums and their like, whatever nobody stated of the run."""
    asked, seen = QUESTIONS[question], 0
    least = max(log_widths(flopwise.train(gpu=name, **asked).to_dict(), [""])[0] for name in H100S)
    for name in FOREIGN:
        try:
            found = flopwise.train(gpu=name, **asked).to_dict()
        except (MissingFactError, SpecError, InfeasibleError):  # a rate or a link that nobody knows
            continue
        seen += 1
        assert log_widths(found, [""])[0] >= least * (1 - 1e-9), name
    assert seen >= 10


def test_what_nobody_stated_makes_no_run_on_other_software_surer() -> None:
    for name in FOREIGN:
        try:
            stated = flopwise.train("Llama-3.1-8B", gpu=name, gpus=8, stack="xla")
        except (MissingFactError, SpecError):
            continue
        (width,), (open_width,) = (
            log_widths(one.to_dict(), [""]) for one in (stated, flopwise.train("Llama-3.1-8B", gpu=name, gpus=8))
        )
        assert open_width >= width


def test_no_service_on_other_software_is_surer_than_on_an_h100() -> None:
    names = ("ttft_s_", "tpot_s_", "output_tokens_per_s_")
    least = log_widths(flopwise.serve("Llama-3.1-8B", gpu="H100-SXM-80", concurrency=16).to_dict(), names)
    for name in FOREIGN:
        try:
            found = flopwise.serve("Llama-3.1-8B", gpu=name, concurrency=16).to_dict()
        except (MissingFactError, SpecError):
            continue
        if found["ttft_s"] is not None:
            assert all(own >= other for own, other in zip(log_widths(found, names), least, strict=True)), name
