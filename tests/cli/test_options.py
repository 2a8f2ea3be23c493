from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwise import cli
from flopwise.cli import options
from flopwise.cli.questions import assumption_list
from flopwise.cost.cluster import cluster
from flopwise.errors import FlopwiseError, SpecError
from flopwise.facts.catalog import load_facts

PARAM = click.Option(["--it"])


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (options.BYTES, "80GB", 80e9),
        (options.BYTES, "80GiB", 80 * 2**30),
        (options.COUNT, "2T", 2e12),
        (options.TOKENS, "8k", 8000),
        (options.WHOLE_OR_ZERO, "0", 0),
        (options.SECONDS, "500ms", 0.5),
        (options.SECONDS, "30d", 30 * 86400),
        (options.RATE, "3600/hour", 1.0),
        (options.BANDWIDTH, "400Gbps", 50e9),
        (options.USD, "$2.50", 2.5),
        (options.FRACTION, "40%", 0.4),
        (options.FRACTION, "1", 1.0),
        (options.FRACTION_OR_ZERO, "0", 0.0),
        (options.Name("gpu"), " h100 ", "h100"),
    ],
)
def test_quantities_are_read_with_their_units(kind: Any, text: str, value: float | str) -> None:
    assert kind.convert(text, PARAM, None) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (options.BYTES, "0"),
        (options.COUNT, "-1"),
        (options.TOKENS, "1.5"),
        (options.TOKENS, "1e12"),
        (options.FRACTION, "0"),
        (options.FRACTION, "101%"),
        (options.FRACTION_OR_ZERO, "-1%"),
        (options.FRACTION, "%"),
        (options.Name("gpu"), "a\0b"),
    ],
)
def test_what_is_out_of_range_is_said_with_the_options_name(kind: Any, text: str) -> None:
    with pytest.raises(SpecError, match="--it"):
        kind.convert(text, PARAM, None)


ANY_KIND = st.sampled_from(
    [options.BYTES, options.COUNT, options.SECONDS, options.RATE, options.BANDWIDTH, options.USD, options.FRACTION,
     options.FLOPS, options.TOKENS, options.WHOLE_OR_ZERO, options.Name("x")]
)  # fmt: skip


@given(ANY_KIND, st.one_of(st.text(), st.floats().map(str), st.from_regex(r"[0-9.,_eE+-]{1,12}[a-zA-Z/%$]{0,6}")))
def test_any_text_is_read_or_refused_on_purpose(kind: Any, text: str) -> None:
    value, said = 0.0, "--it"
    try:
        value = kind.convert(text, PARAM, None)
    except FlopwiseError as refused:
        said = str(refused)
    assert "--it" in said
    assert isinstance(value, str) or 0 <= value < float("inf")


WORDS = st.sampled_from(
    ["gpus", "instances", "models", "h100", "7B", "--json", "--gpu", "--seq", "--batch", "1k", "-1", "--facts", ".",
     "--", "--help", "--kind", "cpu", "nan", "--vendor=AMD", "--min-memory=80GB", "--region", "us-*", "-h", "--version"]
)  # fmt: skip


@settings(deadline=None)  # the first listing reads the facts
@given(st.lists(st.one_of(WORDS, st.text(max_size=8)), max_size=6))
def test_no_command_line_is_a_defect(argv: list[str]) -> None:
    assert cli.main(argv) in {0, 1, 2}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path_factory.getbasetemp() / "hub"))


def test_a_command_adds_json_and_its_examples(capsys: pytest.CaptureFixture[str]) -> None:
    @options.command("x", "flopwise x 1", "flopwise x 2")
    def command() -> None:
        """Do nothing."""

    run: Callable[..., Any] = command.main
    run(["--help"], standalone_mode=False)
    out = capsys.readouterr().out
    assert out.endswith("Examples:\n  flopwise x 1\n  flopwise x 2\n")
    assert "--json" in out


@pytest.mark.parametrize(
    ("line", "near"),
    [
        (["train", "gpt2", "--gpu", "h100", "--precision", "fp4"], "nvfp4"),
        (["plan", "gpt2", "--objective", "tmie"], "time"),
        (["gpus", "--kind", "gpus"], "gpu"),
    ],
)
def test_one_of_few_names_is_answered_with_the_nearest(
    line: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(line) == 2
    assert f"; nearest: {near}" in capsys.readouterr().err


def test_values_that_stand_in_are_told_in_one_line() -> None:
    rates_of = cluster(load_facts().accelerator("H100-SXM-80"))
    lent = [told for told in rates_of.assumptions if "stands in" in told]
    assert len(lent) > 1
    lines = assumption_list(["first", *lent, "last"]).splitlines()
    assert lines[:3] == ["Assumptions", "  - first", "  - last"]
    assert len(lines) == 4
    assert all(told.split(":")[0] in lines[3] for told in lent)
    assert assumption_list(["plain"]).splitlines()[1:] == ["  - plain"]


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("-2%", -0.02), ("0", 0.0), ("-0.5", -0.5), ("3", 3.0)])
def test_a_change_has_a_sign_and_no_range_of_its_own(text: str, share: float) -> None:
    assert options.CHANGE.convert(text, None, None) == pytest.approx(share)


@pytest.mark.parametrize("text", ["--5%", "much", "", "-"])
def test_a_change_is_a_number(text: str) -> None:
    with pytest.raises(SpecError):
        options.CHANGE.convert(text, None, None)
