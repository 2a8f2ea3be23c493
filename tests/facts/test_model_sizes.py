"""Bare sizes: a typical architecture of about that size, and a note that says so."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flopwise.errors import SpecError
from flopwise.facts.models.catalog import load_model
from flopwise.facts.models.sizes import size_of, typical_config
from flopwise.ops.tensors import parameters


@pytest.mark.parametrize(
    ("given", "size"),
    [("7B", 7e9), ("7b", 7e9), ("130M", 130e6), ("1.5B", 1.5e9), ("1T", 1e12), (" 70 B ", 70e9), ("7B params", 7e9)],
)
def test_sizes_people_write(given: str, size: float) -> None:
    assert size_of(given) == pytest.approx(size)


@pytest.mark.parametrize("given", ["B", "7", "7BB", "-7B", "7 bananas", "0x7B", "llama-7B", "nanB", "1e9B", ""])
def test_what_is_no_size(given: str) -> None:
    assert size_of(given) is None


def test_7b_13b_and_70b_are_llama_2() -> None:
    # Touvron et al. 2023 (arXiv 2307.09288): 6.74, 13.0 and 69.0 billion
    assert parameters(load_model("7B")) == 6_738_415_616
    assert parameters(load_model("13B")) == 13_015_864_320
    assert parameters(load_model("70B")) == 68_976_648_192


def test_the_note_says_that_it_is_assumed() -> None:
    model = load_model("7B")
    assert any("is a size, not a model" in note for note in model.notes)
    assert model.confidence == "low"


@given(st.floats(5e6, 5e12))
@example(1.7e9)
@example(3.4e10)
def test_any_size_is_met_as_closely_as_names_round_it(size: float) -> None:
    """LLaMA's 7B has 6.74, its 33B 32.5 and its 65B 65.2 billion (Touvron et al. 2023, table 2): up to 5 %."""
    from flopwise.facts.models.config import model_from_config

    assert parameters(model_from_config(typical_config(size), name="x")) == pytest.approx(size, rel=0.052)


@pytest.mark.parametrize("given", ["1k", "0M", "0.5M", "200T", "999999999T"])
def test_impossible_sizes(given: str) -> None:
    with pytest.raises(SpecError, match="sizes from 1M to 100T"):
        load_model(given)
