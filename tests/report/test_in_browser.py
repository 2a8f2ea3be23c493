"""The report in a browser: nothing wider than a phone, tables on a screen, what is folded not on paper."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

sys.path.insert(0, str(Path(__file__).parents[1] / "fleet"))
from small import answer

from browser import open_browser, printed_pages
from flopwise.report.blocks import Document, Section, Table
from flopwise.report.content import document
from flopwise.report.pages import html
from flopwise.report.plan_page import plan_document


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as found:
        yield found


def _page(browser: Browser, made: Document, width: int) -> Page:
    page = browser.new_page(viewport={"width": width, "height": 844})
    page.set_content(html(made))
    return page


OPEN_ALL = "() => { for (const one of document.querySelectorAll('details')) one.open = true; }"


def _documents() -> list[Document]:
    plans = answer().plans
    return [document(answer().assessment), *(plan_document(plan, name) for name, plan in plans.items())]


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_nothing_is_wider_than_the_screen(browser: Browser, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 844})
    for made in _documents():
        page.set_content(html(made))
        page.evaluate(OPEN_ALL)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, made.title
    page.close()


UNREAD = """(one, least) => {
  const frame = one.getBoundingClientRect();
  const scale = frame.width / (one.viewBox?.baseVal.width || frame.width);
  const isRead = (text) => {
    const box = text.getBoundingClientRect();
    const size = parseFloat(getComputedStyle(text).fontSize) * scale;
    return size >= least && box.left >= frame.left - 1 && box.right <= frame.right + 1;
  };
  return [...one.querySelectorAll("text, td")].filter((text) => !isRead(text)).map((text) => text.textContent);
}"""
"""Texts of a picture that are smaller than so many pixels, or lie outside of it."""


@pytest.mark.parametrize(("width", "least"), [(390, 10), (700, 8), (1280, 10)])
def test_pictures_show_every_text_at_a_size_that_is_read(browser: Browser, width: int, least: int) -> None:
    """One drawing of each is shown, the one that suits the screen, and both hold the same figures."""
    page = _page(browser, document(answer().assessment), width)
    page.evaluate(OPEN_ALL)
    assert page.locator("figure").count() > 5
    for figure in page.locator("figure").all():
        shown = figure.locator(".picture, table").filter(visible=True)
        assert shown.count() == 1
        assert shown.evaluate(UNREAD, least) == []
        wide, narrow = (figure.locator(f".picture.{kind} .value").all_text_contents() for kind in ("wide", "narrow"))
        assert wide == narrow or not narrow


def test_rows_are_records_on_a_phone_and_rows_on_a_screen(browser: Browser) -> None:
    made = document(answer().assessment)
    phone, screen = (_page(browser, made, width) for width in (390, 1280))
    for page, head, shown in ((phone, False, "grid"), (screen, True, "table-cell")):
        table = page.locator("#s2 table.records")
        assert table.locator("thead").is_visible() is head
        cell = table.locator("tbody td:not(.e)").nth(1)
        assert cell.evaluate("c => getComputedStyle(c).display") == shown
    label = phone.locator("#s2 td:not(.e)").nth(1)
    assert label.evaluate("c => getComputedStyle(c, '::before').content") == '"kind"'
    assert phone.locator("#s2 td").first.evaluate("c => getComputedStyle(c).fontWeight") == "600"


def test_a_phone_shows_the_first_rows_of_a_table_until_all_are_wanted(browser: Browser) -> None:
    rows = [(f"row {number}", "text") for number in range(9)]
    made = Document("a", "b", [Section("All", (Table(["name", ""], rows, first=9),))])
    phone, screen = (_page(browser, made, width) for width in (390, 1280))
    assert screen.get_by_text("row 8").is_visible()
    assert not screen.get_by_text("all 9 rows").is_visible()
    assert printed_pages(phone) == 1
    assert [phone.get_by_text(f"row {number}").is_visible() for number in (3, 4, 8)] == [True, False, False]
    phone.get_by_text("all 9 rows").click()
    assert phone.get_by_text("row 8").is_visible()


def test_what_is_folded_opens_and_is_not_printed(browser: Browser) -> None:
    rows = [(f"row {number}", "text") for number in range(400)]
    open_table = Document("a", "b", [Section("All", (Table(["name", ""], rows, first=400),))])
    part = Document("a", "b", [Section("All", (Table(["name", ""], rows, first=10),))])
    section = Document("a", "b", [replace(open_table.sections[0], folded=True)])
    assert printed_pages(_page(browser, open_table, 1280)) > 4
    for made in (part, section):
        page = _page(browser, made, 1280)
        assert printed_pages(page) == 1
        assert not page.get_by_text("row 399").is_visible()
        for media in ("print", "screen"):
            page.emulate_media(media=media)
            assert page.get_by_text("row 9", exact=True).is_visible() is (made is part), media
        page.locator("summary").click()
        assert page.get_by_text("row 399").is_visible()
    page = _page(browser, section, 1280)
    assert not page.locator(".paper").is_visible()
    page.emulate_media(media="print")
    assert not page.get_by_role("heading", name="All").is_visible(), "a heading over nothing"
    assert page.locator(".paper").inner_text().startswith("Not printed, because they are folded: All.")
    page.emulate_media(media="screen")
    page.locator("summary").click()
    page.emulate_media(media="print")
    assert page.get_by_role("heading", name="All").is_visible()
    assert part.sections[0].blocks[0].rest == rows[10:]  # type: ignore[union-attr]


def test_every_picture_has_a_title(browser: Browser) -> None:
    page = _page(browser, document(answer().assessment), 1280)
    titles = page.locator("svg > title")
    assert titles.count() == page.locator("svg").count() > 2
    assert all(titles.all_text_contents())
