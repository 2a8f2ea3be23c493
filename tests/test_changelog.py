from __future__ import annotations

import re
from pathlib import Path

from flopwise import __version__
from flopwise.cli.app import COMMANDS

FOLDER = Path(__file__).parent.parent / "changelog.d"
KINDS = ("added", "changed", "fixed", "removed", "accuracy")


def test_every_fragment_is_named_by_issue_and_kind_and_says_something() -> None:
    for path in FOLDER.iterdir():
        if path.name in {"README.md", "template.md"}:
            continue
        assert re.fullmatch(rf"\d+\.({'|'.join(KINDS)})(\.\d+)?\.md", path.name), path.name
        assert len(path.read_text(encoding="utf-8").split()) >= 5, f"{path.name} says nothing"


def test_every_command_is_announced() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (*FOLDER.glob("*.md"), FOLDER.parent / "CHANGELOG.md")]
    for command in (name for section in COMMANDS.values() for name in section):
        named = (f"`flopwise {command}", f"`{command}`")
        assert any(name in text for name in named for text in texts), f"no fragment names {command}: see changelog.d"


def test_the_version_is_released_with_its_changes() -> None:
    assert re.search(
        rf"^## {re.escape(__version__)} \(\d{{4}}-\d\d-\d\d\)$",
        (FOLDER.parent / "CHANGELOG.md").read_text("utf-8"),
        re.MULTILINE,
    )
