"""Names that would be markup, commands, other files or another direction of reading stay names, in every file."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from flopwise.fleet.assessment import Assessment, read_assessment
from flopwise.report.changes import changes
from flopwise.report.content import document
from flopwise.report.pages import html, markdown
from flopwise.report.write import write_report

sys.path.insert(0, str(Path(__file__).parents[1] / "fleet"))
sys.path.insert(0, str(Path(__file__).parent))
from small import answer
from test_write import plan

NAMES = (
    "<script>alert(1)</script>", "</title></style><img src=x onerror=alert(1)>", "a | b |\n|---|---|",
    "# title\n## more", "[x](javascript:alert(1))", "![x](http://x/y.png)", "`code` **bold** _it_ ~~no~~", "nul\0byte",
    "\u202egnp.exe\u202c", "سلام", "日本語のとても長い名前" * 12, '"quoted" & \'single\' {{ 7*7 }} {% raw %}',
    "\x1b[31mred\x1b[0m", "../../etc/passwd", "line\u2028separator", "- item", "1. first", "\t", "a" * 5000,
)  # fmt: skip


def renamed(found: Assessment, name: str) -> Assessment:
    """A real assessment with every name and text of its workloads, fleet and models replaced."""
    plain = json.dumps(msgspec.to_builtins(found))
    for old in ("chat", "small"):
        plain = plain.replace(f'"{old}"', json.dumps(name))
    plain = plain.replace('"Llama-7B"', json.dumps(name + " model"))
    data = json.loads(plain)
    data["assumptions"].append(name)
    data["price_notes"].append(name)
    for row in data["risks"]:
        row["evidence"] = row["mitigation"] = name
    for row in data["workloads"]:
        row["why_not_cheaper"] = name
    return msgspec.convert(data, Assessment)


class Tags(HTMLParser):
    """Tags, attributes, and what is left open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: set[str] = set()
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links |= {value or "" for name, value in attrs if name in {"href", "src"}}
        if tag not in {"meta", "rect", "path", "input"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in {"meta", "rect", "path", "input"}:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def harmless() -> Tags:
    return Tags(html(document(answer().assessment)))


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_stay_names(name: str, harmless: Tags) -> None:
    found = renamed(answer().assessment, name)
    page, text = html(document(found, answer().assessment)), markdown(document(found, answer().assessment))
    tags = Tags(page)
    assert not tags.open
    assert tags.tags <= harmless.tags
    assert tags.attributes <= harmless.attributes
    assert tags.links <= harmless.links | {f"#s{n}" for n in range(1, 30)}
    for whole in (page, text):
        assert not set(whole) & set("\0\x1b\u202e\u2028")
        whole.encode("utf-8")
    for picture in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        ET.fromstring(picture)  # noqa: S314 - our own picture, to see that it is XML
    for part in text.split("\n\n"):
        widths = {len(re.findall(r"(?<!\\)\|", row)) for row in part.splitlines() if row.startswith("|")}
        assert len(widths) <= 1, part[:300]
    headings = [line for line in text.splitlines() if re.match(r"#{1,6} ", line)]
    assert len(headings) == len(re.findall(r"<h[123]>", page)), "no name became a title"
    assert not re.search(r"(?<!\\)\]\((?!plans/)", text), "no name became a link"


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_files_stay_in_their_folder_and_are_read_back(name: str, tmp_path: Path) -> None:
    found = renamed(answer().assessment, name)
    write_report(found, tmp_path / "report", plans={name: plan("x")})
    assert {p.name for p in tmp_path.iterdir()} == {"report"}
    files = sorted(p.name for p in (tmp_path / "report" / "plans").iterdir())
    assert [Path(name).suffix for name in files] == [".html", ".json"]
    assert len({Path(name).stem for name in files}) == 1
    assert re.fullmatch(r"001-[a-z0-9-]{1,60}\.json", files[1])
    assert read_assessment(tmp_path / "report").name == name
    assert list(changes(found, found))
