"""Nearest names, and what folding names may not hide."""

from __future__ import annotations

import pytest

from flopwise.data import DATA
from flopwise.errors import UnknownNameError, fold, nearest_names
from flopwise.facts.formats import CHECKPOINT_FORMATS, GGUF_FORMATS
from flopwise.facts.models.catalog import load_model
from flopwise.facts.reliability import FAILURES
from flopwise.facts.software import ENGINES, OPTIMIZERS, STACKS
from flopwise.facts.storage import STORAGE
from named import FACTS


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
    for name in FACTS.models.names:
        alike.setdefault(fold(name), []).append(name)
    pairs = [names for names in alike.values() if len(names) > 1]
    assert ["OPT-1.3b", "OPT-13b"] in [sorted(p) for p in pairs]
    for name in (n for names in pairs for n in names):
        assert load_model(name).name == name


def test_folded_tables_hold_no_two_names_that_fold_alike() -> None:
    for table in (CHECKPOINT_FORMATS, GGUF_FORMATS, OPTIMIZERS, STACKS, ENGINES, STORAGE, FAILURES):
        owners: dict[str, str] = {}
        for row in table.overlay({}, DATA / table.file).values():
            for spelling in (row.name, *row.aliases):
                assert owners.setdefault(fold(spelling), row.name) == row.name, spelling
    assert all(
        FACTS.weight_format(n).name == n for (n,) in CHECKPOINT_FORMATS.overlay({}, DATA / CHECKPOINT_FORMATS.file)
    )
    mixtures = [name for (name,) in GGUF_FORMATS.overlay({}, DATA / GGUF_FORMATS.file)]
    assert all(FACTS.weight_format(f"gguf {name}").name == name for name in mixtures)  # F16 alone is a checkpoint's
    for rows, find in (
        (FACTS.optimizers, FACTS.optimizer), (FACTS.stacks, FACTS.stack), (FACTS.engines, FACTS.engine),
    ):  # fmt: skip
        assert all(find(name).name == name for name in rows)


def test_few_names_are_all_named_where_none_is_near() -> None:
    assert str(UnknownNameError("provider", "amazn", ["aws", "gcp", "aws"])) == (
        "unknown provider 'amazn'; known: aws, gcp"
    )
    assert "known:" not in str(UnknownNameError("model", "amazn", [f"x{n}" for n in range(41)]))
    assert str(UnknownNameError("provider", "aws2", ["aws", "gcp"])) == "unknown provider 'aws2'; nearest: aws"


@pytest.mark.parametrize(("given", "nearest"), [("h1oo", "H100-SXM-80"), ("hh100", "H100-SXM-80"), ("l4o", "L40")])
def test_a_name_with_letters_for_digits_or_of_a_longer_one_is_near(given: str, nearest: str) -> None:
    assert nearest in nearest_names(given, ["A10", "B100", "H100-SXM-80", "L4", "L40", "MI100"])[:2]


def test_names_in_one_text_are_said_to_be_given_one_by_one() -> None:
    message = str(UnknownNameError("provider", "aws,gcp", ["aws", "gcp", "azure"], "Allowed: text"))
    assert message == (
        "unknown provider 'aws,gcp'; nearest: aws, gcp; several names are given one by one, each with the option. "
        "Allowed: text"
    )
