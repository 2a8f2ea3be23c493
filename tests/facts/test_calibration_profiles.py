"""Calibration profiles among the facts: where they lie, and that a folder's rows lie below them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flopwise.cost.cluster import cluster
from flopwise.cost.intervals import device_band
from flopwise.cost.rates import rates
from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.calibration import FIELDS
from flopwise.facts.catalog import load_facts
from flopwise.facts.profiles import profile_names, profile_path, profiles_folder
from flopwise.fitting.profile import free_name


def parameter(value: float, scope: str = "hopper") -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(FIELDS, "x")
    return row | {"name": "dram_frac", "scope": scope, "value": value, "date": "2026-11-22"}


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    (folder / "calibration").mkdir(parents=True, exist_ok=True)
    (folder / "calibration" / "own.json").write_text(json.dumps(rows), encoding="utf-8")
    return folder


def profile(name: str, *rows: dict[str, Any]) -> Path:
    folder = write(profiles_folder() / name, *rows)
    (folder / "profile.json").write_text("{}", encoding="utf-8")
    return folder


def test_a_profile_lies_over_the_folder_and_that_over_what_is_shipped(tmp_path: Path) -> None:
    profile("mine", parameter(0.5))
    folder = write(tmp_path / "facts", parameter(0.6), parameter(0.7, "ampere"))
    both = load_facts(folder, "mine")
    assert both.calibration.find("dram_frac", ("hopper",)).value == 0.5
    assert both.calibration.find("dram_frac", ("ampere",)).value == 0.7
    assert load_facts(folder).calibration.find("dram_frac", ("hopper",)).value == 0.6
    assert load_facts().calibration.find("dram_frac", ("hopper",)).profile == ""


def test_an_answer_says_which_constants_are_of_a_profile() -> None:
    profile("mine", parameter(0.5))
    found = rates(load_facts(None, "mine").accelerator("h100"))
    assert found.value["dram_frac"] == 0.5
    assert "H100-SXM-80: dram_frac as calibration profile 'mine' has them" in found.assumptions
    assert not any("profile" in line for line in rates(load_facts().accelerator("h100")).assumptions)


def test_a_profile_that_changes_is_read_again() -> None:
    profile("mine", parameter(0.5))
    assert load_facts(None, "mine").calibration.find("dram_frac", ("hopper",)).value == 0.5
    profile("mine", parameter(0.25), parameter(0.1, "ampere"))
    assert load_facts(None, "mine").calibration.find("dram_frac", ("hopper",)).value == 0.25


def test_errors_of_a_family_hold_for_its_devices_alone() -> None:
    folder = profile("mine", parameter(0.5))
    band = {"low": 0.9, "median": 1.0, "high": 1.1, "rows": 12}
    document = {"source": "test", "date": "2026-11-22", "bands": {"training@hopper": band}}
    (folder / "intervals.json").write_text(json.dumps(document), encoding="utf-8")
    own, shipped = load_facts(None, "mine"), load_facts()
    hopper = device_band("training.moe", cluster(own.accelerator("h100")))
    assert (hopper.low, hopper.high, hopper.rows, hopper.family_rows) == (0.9, 1.1, 12, 12)
    for name, facts in (("a100-80gb", own), ("h100", shipped)):
        here = device_band("training.dense", cluster(facts.accelerator(name)))
        assert here.low < 0.9
        assert here.rows > 12
    assert device_band("serving.tpot.local", cluster(own.accelerator("h100"))).rows != 12


def test_names() -> None:
    assert profile_names() == []
    profile("b", parameter(0.5))
    profile("a", parameter(0.5))
    (profiles_folder() / "no profile").mkdir()
    assert profile_names() == ["a", "b"]
    assert profile_path("a") == profiles_folder() / "a"
    with pytest.raises(UnknownNameError, match="known: a, b"):
        load_facts(None, "c")
    for name in ("../a", "", ".a", "a/b", "a" * 81):
        with pytest.raises(SpecError):
            free_name(name, force=True)
        with pytest.raises(UnknownNameError):
            profile_path(name)
