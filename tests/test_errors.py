"""Nearest names, and what folding names may not hide."""

from __future__ import annotations

import json
from importlib import resources

import pytest

from flopwise.errors import UnknownNameError, fold, nearest_names
from flopwise.facts.formats import weight_format
from flopwise.facts.models import load_model, model_names
from flopwise.facts.software import engine, optimizer, stack


@pytest.mark.parametrize(
    ("given", "first", "second"),
    [("opt-1.3c", "OPT-1.3b", "OPT-13b"), ("opt-13c", "OPT-13b", "OPT-1.3b"), ("OPT 1.3", "OPT-1.3b", "OPT-13b")],
)
@pytest.mark.parametrize("known", [["OPT-13b", "OPT-1.3b", "GPT-2"], ["GPT-2", "OPT-1.3b", "OPT-13b"]])
def test_a_dot_hides_no_name(given: str, first: str, second: str, known: list[str]) -> None:
    assert nearest_names(given, known)[:2] == (first, second)


def test_one_name_in_two_cases_is_named_once() -> None:
    assert nearest_names("h10", ["H100", "h100", "A100"]).count("H100") == 1
    assert "h100" not in nearest_names("h10", ["H100", "h100", "A100"])


def test_the_catalog_names_both_sizes() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_model("OPT-1.3bx")
    assert {"OPT-1.3b", "OPT-13b"} <= set(caught.value.nearest)


def test_no_more_than_asked_for() -> None:
    known = ["a-1.1", "a-11", "a11", "A.1.1"]
    assert len(nearest_names("a11", known, limit=2)) == 2
    assert nearest_names("", known) == ()


def test_models_that_fold_alike_are_told_apart() -> None:
    alike: dict[str, list[str]] = {}
    for name in model_names():
        alike.setdefault(fold(name), []).append(name)
    pairs = [names for names in alike.values() if len(names) > 1]
    assert ["OPT-1.3b", "OPT-13b"] in [sorted(p) for p in pairs]
    for name in (n for names in pairs for n in names):
        assert load_model(name).name == name


def test_folded_tables_hold_no_two_names_that_fold_alike() -> None:
    data = json.loads(resources.files("flopwise").joinpath("data/formats.json").read_text(encoding="utf-8"))
    assert all(weight_format(n).name == n for n in data["weights"])
    assert all(weight_format(f"gguf {n}").name == n for n in data["gguf"])  # F16 and MXFP4 alone are checkpoint formats
    assert len({fold(n) for n in data["gguf"]}) == len(data["gguf"])
    owners: dict[str, str] = {}
    for name, row in data["weights"].items():
        for spelling in (name, *row["aliases"]):
            assert owners.setdefault(fold(spelling), name) == name, spelling
    for file, find in (("optimizers.csv", optimizer), ("stacks.csv", stack), ("engines.csv", engine)):
        text = resources.files("flopwise").joinpath(f"data/{file}").read_text(encoding="utf-8")
        names = [line.split(",")[0] for line in text.splitlines()[1:] if line and not line.startswith("#")]
        assert len({fold(n) for n in names}) == len(names)
        assert all(find(n).name == n for n in names)
