from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwise import cli
from flopwise.cli import options
from flopwise.cli.app import COMMANDS, app
from flopwise.cli.options import MOST_USED, QuestionCommand, by_section
from flopwise.cli.parts import assumption_list
from flopwise.cost.cluster import cluster
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.options import TOKENS, OptionError

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


def test_a_value_is_named_as_it_is_spelled() -> None:
    spelled = click.Option(["--it", "-i"])
    assert options.Value(TOKENS).convert("8k", spelled, None) == 8000
    with pytest.raises(SpecError, match=r"^--it: "):
        options.Value(TOKENS).convert("1.5", spelled, None)


def test_an_option_that_does_not_go_with_others_is_named_as_it_is_spelled() -> None:
    @options.command("x")
    @options.add("--long-name", TOKENS, "It.", field="it")
    def command(*, it: int | None) -> None:
        raise OptionError("it" if it else "other", "does not go")

    run: Callable[..., Any] = command.main
    with pytest.raises(SpecError, match=r"^--long-name: does not go$"):
        run(["--long-name", "3"], standalone_mode=False)
    with pytest.raises(SpecError, match=r"^other: does not go$"):
        run([], standalone_mode=False)


LONG = 40
"""Options from which a help needs those that are used most first."""


def test_a_long_help_begins_with_what_is_used_most(capsys: pytest.CaptureFixture[str]) -> None:
    """Each option stands once, the most used before all others."""
    for name in (name for section in COMMANDS.values() for name in section):
        command = app.get_command(click.Context(app), name)
        assert command is not None
        if not isinstance(command, QuestionCommand) or not command.most_used:
            unheaded = by_section(command.params)[""]
            assert len(command.params) < LONG or len(unheaded) >= 10, name
            continue
        assert cli.main([name, "--help"]) == 0
        _, _, text = capsys.readouterr().out.partition(f"\n{MOST_USED}:\n")
        spelled = {p.name: max(p.opts, key=len) for p in command.params if isinstance(p, click.Option)}
        lines = [line for line in text.splitlines() if re.match(r"  -{1,2}\w", line)]
        first = [next(word for word in line.replace(",", " ").split() if word.startswith("--")) for line in lines]
        assert first[: len(command.most_used)] == [spelled[option] for option in command.most_used], name
        assert len(first) == len(set(first)), name
        assert "\nOptions:\n" in text
