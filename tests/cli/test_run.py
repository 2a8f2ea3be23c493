"""How a run ends: exit code, one message, nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import click
import pytest

from flopwise import __version__, cli
from flopwise.cli import options
from flopwise.cli.app import COMMANDS, QUESTIONS, app
from flopwise.errors import InfeasibleError, MissingFactError, SpecError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def go(*argv: str) -> tuple[int, str, str]:
        code = cli.main(argv)
        out, err = capsys.readouterr()
        return code, out, err

    return go


@pytest.fixture
def ends_with(monkeypatch: pytest.MonkeyPatch, run: Run) -> Run:
    def go(failure: BaseException, *argv: str) -> tuple[int, str, str]:
        @options.command("gpus")
        def command() -> None:
            raise failure

        monkeypatch.setattr(app, "get_command", lambda _ctx, _name: command)
        return run("gpus", *argv)

    return go


def process(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flopwise", *argv], capture_output=True, text=True, check=False, env=os.environ | env
    )


def test_version_and_help_answer(run: Run) -> None:
    assert run("--version") == (0, f"flopwise {__version__}\n", "")
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    for section, summaries in COMMANDS.items():
        assert section in out
        for name in summaries:
            assert f"  {name}" in out
    assert run("-h") == (0, out, "")


def test_without_a_command_questions_are_shown_that_can_be_asked(run: Run) -> None:
    code, out, err = run()
    assert (code, err, len(QUESTIONS)) == (0, "", 5)
    for question, line in QUESTIONS.items():
        assert f"{question}\n  flopwise {line}\n" in out
        assert run(*line.split(), "--json")[0] == 0
    assert out.endswith("All commands: flopwise --help\n")


@pytest.mark.parametrize("name", [name for section in COMMANDS.values() for name in section])
def test_a_summary_is_the_first_line_of_the_commands_own_help(run: Run, name: str) -> None:
    code, out, _ = run(name, "--help")
    summary = next(section[name] for section in COMMANDS.values() if name in section)
    assert code == 0
    assert summary in " ".join(out.split())
    assert "--json" in out
    assert "Examples:" in out


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (["gpu"], "did you mean gpus"),
        (["instnaces"], "did you mean instances"),
        (["modles"], "did you mean models"),
        (["--jsn"], "No such option"),
        (["gpus", "--vendr", "AMD"], "--vendor"),
        (["gpus", "--json=5"], "--json"),
        (["gpus", "a", "b"], "unexpected extra argument"),
        (["gpus", "--vendr", "AMD"], "See `flopwise gpus --help`"),
        (["instances", "--purchase", "gift"], "on_demand"),
        (["instances", "--max-price"], "requires an argument"),
    ],
)
def test_misspelt_commands_and_options_get_one_line_with_the_nearest(run: Run, given: list[str], hint: str) -> None:
    code, out, err = run(*given)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert hint in err
    assert err.count("\n") == 1


def test_bad_input_and_missing_facts_are_two(ends_with: Run) -> None:
    assert ends_with(SpecError("--seq: -1 is out of range")) == (2, "", "error: --seq: -1 is out of range\n")
    assert ends_with(MissingFactError("K80: no fp8 rate")) == (2, "", "error: K80: no fp8 rate\n")
    assert ends_with(FileNotFoundError(2, "No such file or directory", "w.yaml")) == (
        2,
        "",
        "error: w.yaml: No such file or directory\n",
    )


def test_no_feasible_answer_is_one_and_lists_its_reasons(ends_with: Run) -> None:
    failure = InfeasibleError("no plan meets the targets", ["120 layouts: out of memory", "8 layouts: too slow"])
    assert ends_with(failure) == (
        1,
        "",
        "no feasible answer: no plan meets the targets\n  - 120 layouts: out of memory\n  - 8 layouts: too slow\n",
    )
    code, out, _ = ends_with(failure, "--json")
    assert code == 1
    assert json.loads(out) == {
        "feasible": False,
        "message": "no plan meets the targets",
        "reasons": ["120 layouts: out of memory", "8 layouts: too slow"],
    }


def test_a_defect_is_one_line_and_its_traceback_comes_on_request(
    ends_with: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLOPWISE_DEBUG", raising=False)
    code, out, err = ends_with(ZeroDivisionError("division\nby zero"))
    assert (code, out, err.count("\n")) == (70, "", 1)
    assert err.startswith("internal error: ZeroDivisionError: division by zero. Please report it")
    monkeypatch.setenv("FLOPWISE_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        ends_with(ZeroDivisionError("x"))


def test_interrupts_and_readers_that_leave_are_quiet(ends_with: Run) -> None:
    assert ends_with(KeyboardInterrupt())[0] == 130
    code, out, err = ends_with(click.exceptions.Abort())
    assert (code, out, err) == (130, "", "")


def test_control_characters_of_an_input_never_reach_the_terminal(run: Run) -> None:
    code, _, err = run("gpus", "h\x1b[31m100\x07\n\u202e")
    assert code == 2
    assert not [c for c in err[:-1] if not c.isprintable()]


def test_a_pipe_that_closes_is_no_error() -> None:
    ended = subprocess.run(
        ["/bin/bash", "-c", f"{sys.executable} -m flopwise instances --json | head -c 10; echo ${{PIPESTATUS[0]}} >&2"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(ended.stdout) == 10
    assert ended.stderr in {"141\n", "0\n"}


def test_output_survives_an_ascii_terminal() -> None:
    ended = process("gpus", "h100", PYTHONIOENCODING="ascii")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "---" in ended.stdout
    assert ended.stdout.isascii()


HEAVY = {
    "numpy", "yaml", "msgspec", "huggingface_hub", "torch", "transformers", "asyncio", "urllib.request", "http.client",
    "ssl", "multiprocessing", "concurrent.futures", "importlib.metadata", "flopwise.api", "flopwise.facts",
    "flopwise.ops", "flopwise.cost", "flopwise.training", "flopwise.serving", "flopwise.search", "flopwise.backtests",
}  # fmt: skip


def _loaded(code: str) -> set[str]:
    ended = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nsys.stderr.write(' '.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(ended.stderr.split())


def test_importing_flopwise_loads_nothing() -> None:
    loaded = _loaded("import flopwise")
    assert {name for name in loaded if name.startswith("flopwise")} == {"flopwise"}
    assert not loaded & (HEAVY | {"click"})


def test_help_loads_nothing_heavy() -> None:
    loaded = _loaded("from flopwise.cli import main\nassert main(['--help']) == 0")
    assert not loaded & HEAVY
    assert {name for name in loaded if name.startswith("flopwise")} == {
        "flopwise", "flopwise.cli", "flopwise.cli.app", "flopwise.cli.render", "flopwise.cli.run", "flopwise.errors",
        "flopwise.values",
    }  # fmt: skip


SLOW = {
    "numpy.ma", "logging", "importlib.resources", "shutil", "zipfile", "msgspec", "yaml", "huggingface_hub",
    "flopwise.serving.estimate", "flopwise.backtests", "flopwise.training.explain", "flopwise.search.plan",
    "flopwise.search.scaling", "fractions",
}  # fmt: skip
"""What the answer to a plain question has no use for, and its start would wait for."""


def test_a_question_loads_nothing_that_it_does_not_ask() -> None:
    arrays = _loaded("import numpy")
    for argv in (
        ["train", "Llama-3.1-8B", "--gpu", "h100", "--gpus", "64"],
        ["memory", "Llama-3.1-8B", "--gpu", "h100"],
    ):
        loaded = _loaded(f"from flopwise.cli import main\nassert main({argv!r}) in (0, 1)")
        slow = SLOW if argv[0] == "train" else SLOW | {"flopwise.training.estimate", "flopwise.cost.kernels"}
        assert not (loaded - arrays) & slow, argv


def test_listing_facts_needs_no_arrays() -> None:
    assert not _loaded("from flopwise.cli import main\nassert main(['gpus', 'h100']) == 0") & {
        "numpy",
        "msgspec",
        "yaml",
    }
