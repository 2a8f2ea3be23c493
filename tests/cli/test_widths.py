"""What every command prints fits terminals of 80, 100, 120 and 200 columns, and nothing of it is cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from bad_inputs import BASES, GOOD_FILES, Case

from flopwise import cli
from flopwise.cli import progress, render, run

WIDTHS = (80, 100, 120, 200)
assert vars(run)["screen"] is vars(progress)["screen"] is render.screen, "loaded before a test replaces it"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", [name for name in BASES if name not in {"web", "completion"}])  # JSON, and a script
def test_no_line_is_longer_than_the_terminal_and_nothing_is_cut(
    name: str, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Case("", BASES[name], GOOD_FILES).write(tmp_path)
    for module in ("flopwise.cli.render", "flopwise.cli.options"):
        monkeypatch.setattr(f"{module}.screen", lambda *_: render.Screen(width=width))
    assert cli.main(list(BASES[name])) in (0, 1)
    lines = capsys.readouterr().out.split("\n")
    long = [line for line in lines if len(line) > width and not line.lstrip().startswith("flopwise ")]
    assert long == []
    assert "…" not in "".join(lines)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_the_same_on_a_narrow_terminal(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrapped line would be another command of the shell."""
    assert cli.main(["completion", shell]) == 0
    piped = capsys.readouterr().out
    for module in ("flopwise.cli.render", "flopwise.cli.options"):
        monkeypatch.setattr(f"{module}.screen", lambda *_: render.Screen(width=40))
    assert cli.main(["completion", shell]) == 0
    assert capsys.readouterr().out == piped
