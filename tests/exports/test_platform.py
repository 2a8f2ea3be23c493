"""The platform of the examples, assessed once as the documentation says: its report and every file made of it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from test_exported_files import faults, written

import flopwise
from browser import open_browser, printed_pages
from flopwise import cli
from flopwise.fleet.assessment import read_assessment
from flopwise.report.content import document
from flopwise.report.pages import html

ROOT = Path(__file__).parents[2]
COMMAND = "flopwise assess examples/textnlp.yaml -o build/textnlp-report"
"""Of docs/questions/fleet.md; its estimates take half a minute."""


@pytest.fixture(scope="module")
def report() -> Path:
    """The folder that the command writes."""
    assert f"$ {COMMAND}\n" in (ROOT / "docs/questions/fleet.md").read_text(encoding="utf-8")
    with pytest.MonkeyPatch.context() as here:
        here.chdir(ROOT)
        for name in ("FLOPWISE_FACTS", "COLUMNS"):
            here.delenv(name, raising=False)
        assert cli.main(shlex.split(COMMAND)[1:]) == 0
    return ROOT / "build/textnlp-report"


def test_the_command_writes_what_its_page_says(report: Path) -> None:
    assert {"report.html", "report.md", "assessment.json", "plans"} <= {path.name for path in report.iterdir()}
    assert len(list((report / "plans").iterdir())) > 10


@pytest.mark.exports
def test_the_report_is_printed_on_few_pages(report: Path) -> None:
    """All of it, the scenarios as well."""
    with open_browser() as browser:
        page = browser.new_page()
        page.set_content(html(document(read_assessment(report))))
        assert 4 < printed_pages(page) < 12


@pytest.mark.exports
def test_the_whole_platform_is_taken_by_every_tool_and_the_same_each_time(report: Path, tmp_path: Path) -> None:
    files = flopwise.export("bundle", report).files
    assert len(files) > 100
    assert flopwise.export("bundle", report).files == files
    assert list(faults(files, written(files, tmp_path))) == []
