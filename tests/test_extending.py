"""docs/extending.md, followed word by word in a copy of the sources: each extension takes the places that it names."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import flopwise

ROOT = Path(__file__).parents[1]
PACKAGE = Path(flopwise.__file__).parent
"""As it is installed: with its bytecode, so that a copy starts as soon."""
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MOST_PLACES = 2
"""Files of the sources that exist and that an extension changes, at most; its own new file is no such place."""


def _apply(path: Path, text: str) -> None:
    """Write a block: a new file, further rows or records of a table, or lines behind its first or before its last."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    old = path.read_text(encoding="utf-8")
    if path.suffix == ".csv":
        path.write_text(old + text, encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(json.loads(old) | json.loads(text)), encoding="utf-8")
    else:
        lines = text.splitlines(keepends=True)
        [anchor] = [line for line in (lines[0], lines[-1]) if old.count(line) == 1]
        path.write_text(old.replace(anchor, text), encoding="utf-8")


def _run(line: str, folder: Path) -> str:
    """What a command of the copy in `folder` prints."""
    words = shlex.split(line.removeprefix("$ "))
    assert words[0] == "flopwise"
    ended = subprocess.run(
        [sys.executable, "-P", "-m", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder / "src"), "FLOPWISE_PRICES": str(folder / "prices")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode in (0, 1), ended.stderr
    return ended.stdout + ended.stderr


def test_the_page_has_a_section_for_each_extension() -> None:
    assert list(SECTIONS) == [
        "An engine", "A weight format", "A training precision", "A pipeline schedule", "An optimizer",
        "A layout of price files", "An export target", "A command",
    ]  # fmt: skip


@pytest.mark.parametrize("title", SECTIONS)
def test_an_extension_takes_the_places_that_the_page_names(title: str, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "src" / "flopwise")
    blocks = BLOCK.findall(SECTIONS[title])
    assert len({file for _, file, _ in blocks if (ROOT / file).is_file()}) <= MOST_PLACES
    commands = [text for kind, _, text in blocks if kind == "console"]
    before = [line for text in commands for line in text.splitlines() if line.startswith("$ ")]
    for kind, file, text in blocks:
        if kind != "console":
            _apply(tmp_path / file, text)
    printed = ""
    for line in "".join(commands).splitlines():
        if line.startswith("$ "):
            printed = _run(line, tmp_path)
        else:
            assert re.sub(r"\s+", " ", line) in re.sub(r"\s+", " ", printed), printed
    assert before
    reference = subprocess.run(
        [sys.executable, "-P", "-m", *shlex.split(before[-1].removeprefix("$ "))],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent), "FLOPWISE_PRICES": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        check=False,
    )
    last = commands[-1].splitlines()[-1]
    assert last not in reference.stdout, "the shipped tree has it already: the page shows nothing new"
