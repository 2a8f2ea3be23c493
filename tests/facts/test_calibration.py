"""Calibration files: complete, unambiguous, told on their page, and refused with a reason when they are wrong."""

# ruff: noqa: E501 - tables read better in one line a row
from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from flopwise.cost.rates import rates
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.calibration import Calibration, parameters_from, read_parameters
from named import FACTS, train_answer

ROOT = Path(__file__).parents[2]
GOOD: dict[str, Any] = {
    "name": "dram_frac", "scope": "any", "value": 0.9, "unit": "ratio", "meaning": "m", "fitted_on": "f", "source": "s",
    "date": "2026-11-21",
}  # fmt: skip


def test_every_parameter_says_what_it_is_and_where_it_comes_from() -> None:
    for p in FACTS.calibration.parameters:
        assert p.unit, p
        assert p.meaning.endswith("."), p
        assert p.fitted_on, p
        assert p.source, p
        assert len(p.date) == len("2026-11-21"), p


def test_fractions_of_datasheet_rates_stay_below_one() -> None:
    for p in FACTS.calibration.parameters:
        if p.unit.startswith("fraction of"):
            assert 0 < p.value <= 1, p


def test_one_parameter_has_one_meaning_and_unit() -> None:
    seen: dict[str, tuple[str, str]] = {}
    for p in FACTS.calibration.parameters:
        assert seen.setdefault(p.name, (p.unit, p.meaning)) == (p.unit, p.meaning), p.name


def test_the_page_is_what_the_files_say() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "calibration_page.py"))
    assert made["PAGE"].read_text(encoding="utf-8") == made["page"](), "run: python docs/generate.py"


def test_the_page_lists_each_value_that_nothing_measured() -> None:
    """A value has a fit or a publication, or stands in the list of those that are assumed; nothing is set in silence."""
    page = (ROOT / "docs" / "calibration.md").read_text(encoding="utf-8")
    assert "## Values that nothing measured" in page
    listed = page.partition("## Values that nothing measured")[2].partition("\n## ")[0]
    assumed = [p for p in FACTS.calibration.parameters if "assumed" in p.source or "no measurement" in p.fitted_on]
    assert assumed
    for p in assumed:
        assert f"| {p.name} | {p.scope} | {p.value:.4g} | {p.source} |" in listed, p
    assert listed.count("\n| ") == len(assumed) + 1, "and no other; the header is a line, too"
    assert all(p.source.strip() and p.fitted_on.strip() for p in FACTS.calibration.parameters)


def test_the_nearest_scope_answers() -> None:
    table = FACTS.calibration
    assert table.find("dram_frac", ("hopper", "any")).scope == "hopper"
    assert table.find("dram_frac", ("unheard-of", "any")).scope == "any"
    assert table.without(("hopper",)).find("dram_frac", ("hopper", "any")).scope == "any"
    with pytest.raises(MissingFactError, match="unheard-of"):
        table.find("unheard-of", ("any",))


def test_replacing_values_leaves_the_rest() -> None:
    table = FACTS.calibration
    other = table.with_values({("dram_frac", "any"): 0.5})
    assert other.find("dram_frac", ("any",)).value == 0.5
    assert len(other.parameters) == len(table.parameters)
    with pytest.raises(SpecError, match="no parameter"):
        table.with_values({("dram_frac", "nowhere"): 0.5})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("{}", "a list"),
        (json.dumps([{"name": "x"}]), "entry 1"),
        (json.dumps([GOOD | {"value": "fast"}]), "not a number"),
        (json.dumps([GOOD, GOOD | {"value": -1}]), "entry 2"),
        ('[{"name": "dram_frac", "scope": "any", "value": NaN, "unit": "", "meaning": "", "fitted_on": "", "source": "", "date": ""}]', "not a number"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        parameters_from(text, "kernels.json")


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    assert read_parameters(tmp_path) == []
    (tmp_path / "mine.json").write_text(json.dumps([GOOD]), encoding="utf-8")
    assert read_parameters(tmp_path)[0].value == 0.9
    with pytest.raises(SpecError, match="twice"):
        Calibration((*read_parameters(tmp_path),) * 2)


def test_a_nearer_share_of_16_bits_stands_in_for_that_of_fp32() -> None:
    """A probed machine has one share of its own, 1; families whose products in fp32 others measured have two."""
    shipped = FACTS.calibration
    assert shipped.find("matmul_frac.fp32", ("volta", "any")).value == 0.874
    assert shipped.find("matmul_frac.fp32", ("cdna3", "amd", "gpu", "any")).name == "matmul_frac.bf16"
    assert shipped.find("matmul_frac.fp32", ("unheard-of", "any")).name == "matmul_frac.fp32"
    assert shipped.find("matmul_frac.bf16", ("gp100", "any")).scope == "any"


def test_products_with_more_scales_are_never_the_faster_ones() -> None:
    """What is not measured on a family is no better there than what is: AMD's fp8 by blocks against its fp8 by tensors."""
    with_units = [chip for name in FACTS.accelerators if "fp8" in (chip := FACTS.accelerator(name)).peak]
    shares = {chip.architecture: rates(chip).value for chip in with_units}
    assert {"CDNA3", "CDNA4", "Hopper", "Blackwell"} <= set(shares)
    for architecture, value in shares.items():
        assert value["matmul_frac.fp8_block"] <= value["matmul_frac.fp8"], architecture


@pytest.mark.parametrize("gpu", ["mi300x", "mi355x"])
def test_scales_of_rows_and_blocks_train_no_faster_than_those_of_tensors(gpu: str) -> None:
    layout = {"gpus": 8, "dp": 8, "fsdp": True, "micro_batch": 1, "global_batch": 128, "recompute": "full"}
    tensor, *others = (
        train_answer("Llama-3.1-70B", gpu=gpu, precision=precision, **layout).estimate.tokens_per_s
        for precision in ("fp8", "fp8_rowwise", "fp8_block")
    )
    assert max(others) <= tensor
