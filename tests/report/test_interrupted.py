"""Hostile texts in every place of an assessment, and writing that fails or is interrupted at any point."""

from __future__ import annotations

import os
import re
import unicodedata
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from samples import assessment

from flopwise.cli.commands import assess as view
from flopwise.cli.render import Screen
from flopwise.errors import SpecError
from flopwise.fleet.assessment import Assessment
from flopwise.folders import check_folder
from flopwise.report.content import document
from flopwise.report.pages import html, markdown
from flopwise.report.write import write_report

EVIL = (
    "<script>alert(1)</script>",
    "</title></svg></style><img src=x onerror=alert(1)>",
    "[a](javascript:alert(1)) ![b](http://x) `c` | d\n# e\n- f",
    "\x1b[31mred\x1b]0;title\x07 \x9b2J \x00 \x08",
    "\u202egnp.exe \u2066 \u200f",
    "../../etc/passwd",
    "\U0001f4a5" * 50 + "x" * 10_000,
)
STRUCTURE = {
    "version",
    "date",
    "kind",
    "role",
    "purchase",
    "what",
    "price_date",
    "start",
    "starts",
    "first",
    "last",
    "month",
}
"""Keys that a report reads as data, not as a text."""


def poisoned(found: Assessment, evil: str) -> Assessment:
    """The assessment with `evil` behind each text that it shows."""

    def walk(node: Any, key: str = "") -> Any:
        if isinstance(node, dict):
            return {k: walk(v, k) for k, v in node.items()}
        if isinstance(node, list):
            return [walk(v, key) for v in node]
        return f"{node}{evil}" if isinstance(node, str) and key not in STRUCTURE else node

    return msgspec.convert(walk(msgspec.to_builtins(found)), Assessment)


class Tags(HTMLParser):
    """All tags and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.attributes = set[str](), set[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)


def steering(text: str) -> list[str]:
    """Characters that steer a terminal or the direction of a text."""
    return [hex(ord(c)) for c in text if unicodedata.category(c) in {"Cc", "Cf", "Cs"} and c != "\n"]


@pytest.mark.parametrize("evil", EVIL, ids=range(len(EVIL)))
def test_texts_stay_texts_everywhere(evil: str) -> None:
    clean, found = assessment(), poisoned(assessment(), evil)
    whole = document(found, poisoned(assessment(), evil + "old"))
    page = html(whole)
    plain = Tags(html(document(clean, clean)))
    made = Tags(page)
    assert not {"script", "img", "iframe", "object", "a href=javascript"} & made.tags
    assert made.attributes <= plain.attributes | {"style", "class", "x", "y", "d", "width", "height", "text-anchor"}
    assert "javascript:" not in "".join(re.findall(r'href="([^"]*)"', page))
    assert not steering(page)
    text = markdown(whole)
    assert not steering(text)
    assert not re.search(r"(?<!\\)<(script|img|/)", text)
    assert not re.search(r"(?<!\\)\]\(", text)
    assert not re.search(r"^# e|^- f", text, re.MULTILINE)
    shown = "\n".join(view.blocks(found, Screen(), [Path("out") / evil[:40] / "report.html"], found))
    assert not steering(shown)


OLD = {"report.html": "old page", "assessment.json": "{}", "plans/001-old.json": "{}", "notes.txt": "mine"}


def tree(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), OSError(30, "Read-only file system"),
                                     KeyboardInterrupt()], ids=lambda f: type(f).__name__ + str(f)[:12])  # fmt: skip
@pytest.mark.parametrize("before", [{}, OLD], ids=["nothing there", "a report there"])
@pytest.mark.parametrize("call", ["write_bytes", "replace"])
@pytest.mark.parametrize("number", range(1, 7))
def test_a_failure_at_any_point_leaves_what_was_there(
    failure: BaseException, before: dict[str, str], call: str, number: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    goal = tmp_path / "a" / "b" / "report"
    for name, text in before.items():
        (goal / name).parent.mkdir(parents=True, exist_ok=True)
        (goal / name).write_text(text)
    calls = iter(range(1, 1000))
    real = getattr(Path, call)

    def fails(self: Path, *args: Any) -> Any:
        if next(calls) == number:
            raise failure
        return real(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(Path, call, fails)
        try:
            write_report(assessment(), goal)
        except KeyboardInterrupt:
            pass
        except SpecError as error:
            assert "cannot be written" in str(error)  # noqa: PT017 - one of three ways that it may end
        else:
            assert number > 3
            assert (goal / "report.html").read_text().startswith("<!doctype html>")
            return
    assert tree(tmp_path) == {f"a/b/report/{name}": text for name, text in before.items()}
    assert before or not list(tmp_path.iterdir()), "no folder either"


@pytest.mark.parametrize("number", range(1, 4))
def test_a_run_that_is_killed_leaves_each_file_old_or_new(number: int, tmp_path: Path) -> None:
    goal = tmp_path / "report"
    for name, text in OLD.items():
        (goal / name).parent.mkdir(parents=True, exist_ok=True)
        (goal / name).write_text(text)
    calls, real = iter(range(1, 1000)), Path.replace
    child = os.fork()
    if not child:

        def killed(self: Path, target: Path) -> Path:
            if next(calls) == number:
                os._exit(9)
            return real(self, target)

        Path.replace = killed  # type: ignore[method-assign, assignment]
        write_report(assessment(), goal)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    held = tree(goal)
    assert set(OLD) <= set(held)
    assert held["notes.txt"] == "mine"


def test_a_folder_that_takes_no_report_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere")):
        with pytest.raises(SpecError, match=r"a file|cannot be written"):
            check_folder(folder)
    check_folder(tmp_path / "new" / "deep")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
