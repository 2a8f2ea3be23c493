"""The page of a run and of a comparison: one file, nothing from elsewhere, no name becomes markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from imported_runs import expectation, stored

import flopwise.records.reports as api
from flopwise.report.blocks import Curve, Curves, Document, Section
from flopwise.report.pages import curves_svg, html, markdown

VILE = "<script>alert('x')</script>"


class Tags(HTMLParser):
    """All tags with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def tags(page: str) -> list[tuple[str, dict[str, str | None]]]:
    reader = Tags()
    reader.feed(page)
    return reader.seen


def test_the_page_of_a_run_stands_alone(tmp_path: Path) -> None:
    plan = expectation({"forward": 0.6, "data_parallel": 0.4}, step_s=1.0)
    series = {"step_s": [1.5 + 0.01 * n for n in range(30)], "data_wait_s": [0.3] * 30, "loss": [2.0] * 30}
    stored(tmp_path / "runs.db", series, name=VILE, gpus=8, expected=plan, settings={"seq": VILE})
    api.explain_run(VILE, store=tmp_path / "runs.db", page=tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text()
    assert "Slower than the plan" in page
    seen = tags(page)
    assert {tag for tag, _ in seen}.isdisjoint({"script", "link", "img", "iframe"})
    assert all(not (held.get("src") or (held.get("href") or "#").startswith("http")) for _, held in seen)
    assert page.count('class="curve c0"') == 2 * 3  # step times, losses, waiting for data: wide and narrow
    assert 'class="band"' in page
    assert "Every figure is computed from" not in page


def test_the_page_of_a_comparison(tmp_path: Path) -> None:
    for name in ("first", "second"):
        stored(tmp_path / "runs.db", {"step_s": [1.0, 1.1] * 10}, name=name, settings={"zero": name})
    api.compare_runs(["first", "second"], store=tmp_path / "runs.db", page=tmp_path / "runs.html")
    page = (tmp_path / "runs.html").read_text()
    assert page.count('class="curve c1"') >= 1
    assert re.search(r"<td[^>]*>zero</td>", page)


def test_a_chart_spans_its_points_and_its_ticks() -> None:
    block = Curves(
        "t", [Curve("a", [(0.0, 1.0), (10.0, 3.0)])], [(0.0, "0"), (10.0, "10")], [(0.0, "0"), (4.0, "4")], (1.0, 2.0)
    )
    picture = curves_svg(block)
    # 86 and 852 are the frame's ends; 1 of 0 to 4 lies a quarter up its 200 units below a margin of 6
    assert 'd="M86 156L852 56"' in picture
    assert '<rect x="86" y="106" width="766" height="50" class="band"/>' in picture
    assert curves_svg(Curves("t", [Curve("a", [(0.0, float("nan"))])], [], [])).endswith("></svg>")
    document = Document("t", "", [Section("s", (block,))])
    assert "| a | 1 | 3 |" in markdown(document)
    assert "<svg" in html(document)
