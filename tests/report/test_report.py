"""Reports: every part is there, nothing in a name becomes markup, and a folder holds all of it or nothing."""

from __future__ import annotations

import re
import runpy
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwise.errors import SpecError
from flopwise.fleet.assessment import read_assessment
from flopwise.report import write
from flopwise.report.content import document
from flopwise.report.pages import html, markdown, markdown_text
from flopwise.report.words import usd
from flopwise.report.write import plan_file, write_report

sys.path.insert(0, str(Path(__file__).parent))
from samples import assessment, workload

TITLES = (
    "Summary", "Workloads", "Recommendations", "Performance expected", "Monthly cost",
    "Allocation over providers", "Savings",
    "What the policies cost", "If things change", "Risks", "Roadmap", "Monitoring", "Model sizes",
    "Accelerators compared", "Instances considered", "Assumptions and sources",
)  # fmt: skip
HOSTILE = '<script>alert("x")</script> | [a](javascript:b) `c` **d** & "e" \n# f'


class Page(HTMLParser):
    """Collects tags, attributes and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in {"meta", "rect", "path"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in {"meta", "rect", "path"}:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_every_part_is_in_both() -> None:
    made = document(assessment())
    page, text = Page(html(made)), markdown(made)
    assert not page.open
    for title in TITLES:
        assert title in page.texts
        assert f"## {title}" in text
    for figure in ("$1,200", "$925 to $1,525", "75.0 %", "$4,120", "T4: TPOT 80 ms misses 50 ms", "2 x L4"):
        assert any(figure in t for t in page.texts), figure
        assert figure.replace("|", "\\|") in text.replace("\\", ""), figure


def test_the_page_needs_nothing_else_and_runs_nothing() -> None:
    page = Page(html(document(assessment())))
    assert not {"script", "link", "iframe", "img", "object"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    loaded = [v for name, v in page.attributes if name in {"src", "href"} and not (v or "").startswith("#")]
    assert loaded == []


def test_plans_are_the_only_files_that_are_led_to() -> None:
    found = assessment(workloads=[workload(plan_file="plans/001-chat.json")])
    page = Page(html(document(found)))
    assert [v for name, v in page.attributes if name == "href" and not (v or "").startswith("#")] == [
        "plans/001-chat.html"
    ]
    assert "[plan](plans/001-chat.html)" in markdown(document(found))


def test_money_is_signed_before_the_dollar() -> None:
    assert [usd(v) for v in (None, 0.5, -0.5, 1234.5, -104.4)] == ["-", "$0.50", "-$0.50", "$1,234", "-$104"]


@pytest.mark.parametrize("place", ["name", "workload", "reason", "assumption"])
def test_hostile_names_stay_text(place: str) -> None:
    found = {
        "name": assessment(HOSTILE),
        "workload": assessment(workloads=[workload(HOSTILE)]),
        "reason": assessment(workloads=[workload(feasible=False, reasons=[HOSTILE])]),
        "assumption": assessment(assumptions=[HOSTILE]),
    }[place]
    page = Page(html(document(found)))
    assert "script" not in page.tags
    assert not page.open
    text = markdown(document(found))
    assert "<script" not in text.replace("\\<", "")
    assert "](javascript" not in text.replace("\\]", "")
    for part in text.split("\n\n"):
        widths = {len(re.findall(r"(?<!\\)\|", row)) for row in part.splitlines() if row.startswith("|")}
        assert len(widths) <= 1


@given(st.text(max_size=200))
def test_escaped_texts_have_no_markup_left(text: str) -> None:
    shown = markdown_text(text)
    assert "\n" not in shown
    assert not re.search(r"(?<!\\)[<>\[\]`*_|]", shown.replace("\\\\", ""))


def test_a_report_is_written_and_read_back(tmp_path: Path) -> None:
    found = assessment()
    files = write_report(found, tmp_path / "a" / "report")
    assert {f.name for f in files} == {"report.html", "report.md", "assessment.json"}
    assert read_assessment(tmp_path / "a" / "report" / "assessment.json") == found
    write_report(assessment("again"), tmp_path / "a" / "report")
    assert read_assessment(tmp_path / "a" / "report" / "assessment.json").name == "again"
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["report"]


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_made: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "markdown", fails)
    with pytest.raises(OSError, match="No space"):
        write_report(assessment(), tmp_path / "report")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("x")
    with pytest.raises(SpecError, match="is a file"):
        write_report(assessment(), tmp_path / "report")


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "..", "", "\0", "Ärger " * 50, HOSTILE])
def test_plan_files_stay_in_their_folder(name: str) -> None:
    assert re.fullmatch(r"plans/\d{3}-[a-z0-9-]+\.json", plan_file(name, 7))


def test_what_is_no_assessment_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"name": 3}')
    with pytest.raises(SpecError, match="not an assessment"):
        read_assessment(path)
    with pytest.raises(SpecError, match="cannot be read"):
        read_assessment(tmp_path / "missing.json")


def test_what_changed_is_told() -> None:
    old, new = assessment(), assessment(usd_per_month=assessment().usd_per_month.__class__(
        **({f: getattr(assessment().usd_per_month, f) for f in assessment().usd_per_month.__struct_fields__}
           | {"total": 1500.0, "by_workload": {"chat": 1200.0, "new": 300.0}})))  # fmt: skip
    text = markdown(document(new, old)).replace("\\", "")
    assert "Since the last assessment" in text
    assert "$1,200 a month on 2026-11-21, now $1,500: +$300" in text
    assert "| workload | new | - | $300 | +$300 |" in text
    assert "Nothing else changed" in markdown(document(old, old))


def test_pictures_show_sections_that_the_report_has() -> None:
    shots = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "screenshots.py"))
    page = html(document(assessment()))
    for titles, header in shots["SHOTS"].values():
        style = shots["only"](page, titles, header=header).split("<style>")[-1].split("</style>")[0]
        assert style.count("#s") == len(titles)
    with pytest.raises(ValueError, match="no section 'Nothing'"):
        shots["only"](page, ("Nothing",), header=True)
