"""Malformed input of every kind ends with exit code 2 and exactly one clear message; never with a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bad_inputs import BASES, GOOD_FILES, OTHER_BASES, Case, cases, commands

from flopwise import cli

CASES = list(cases())


def _command(case: Case) -> str:
    return case.argv[0] if case.argv and case.argv[0] in commands() else "no command"


def _holds(code: int, out: str, err: str) -> None:
    assert code == 2, f"exit {code}: {out[:300]}{err[:600]}"
    if out:  # of `--json`, whose document is the error
        assert f"error: {json.loads(out)['error']['message']}\n" == err
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    assert len(err) < 1500, "a message is to be read"
    assert all(c.isprintable() or c == "\n" for c in err)
    assert "Traceback" not in err
    assert len(err.split()) >= 4, f"what was given, what is allowed: {err}"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No network, no settings of the person who runs the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("FLOPWISE_FACTS", raising=False)


def test_the_table_is_large_and_no_case_stands_in_it_twice() -> None:
    assert len(CASES) >= 200
    assert len({(case.argv, tuple(case.files.items())) for case in CASES}) == len(CASES)


GOOD = [BASES[name] for name in commands()] + [argv for (name, _), argv in OTHER_BASES.items() if name in commands()]


@pytest.mark.parametrize("argv", sorted(set(GOOD)), ids=" ".join)
def test_what_the_cases_change_is_an_answer_by_itself(
    argv: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Case("base", argv, GOOD_FILES).write(tmp_path)
    assert cli.main(argv) in {0, 1}, capsys.readouterr().err


@pytest.mark.parametrize("command", sorted({_command(case) for case in CASES}))
def test_malformed_input_gets_one_clear_message(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = list[Exception]()
    for number, case in enumerate(one for one in CASES if _command(one) == command):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        case.write(folder)
        before = sorted(folder.rglob("*"))
        try:
            code = cli.main(case.argv)
            _holds(code, *capsys.readouterr())
            assert sorted(folder.rglob("*")) == before, "nothing is left behind"
        except Exception as error:  # noqa: BLE001 - every case of the command is tried
            error.add_note(f"{case.label}: {' '.join(case.argv)}")
            failures.append(error)
    if failures:
        raise ExceptionGroup(f"{len(failures)} cases of {command}", failures)


@pytest.mark.parametrize("case", CASES[::200], ids=lambda c: c.label)
def test_the_process_says_the_same(case: Case, tmp_path: Path) -> None:
    case.write(tmp_path)
    ended = subprocess.run(
        [sys.executable, "-m", "flopwise", *case.argv],
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONUTF8": "1"},
    )
    _holds(ended.returncode, ended.stdout.decode(), ended.stderr.decode())
