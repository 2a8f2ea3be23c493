"""A server, a browser and its pages, for the tests of one file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from on_page import SLOWEST_MS, served
from playwright.sync_api import Browser, Page, ViewportSize

from browser import open_browser

WINDOW: ViewportSize = {"width": 1280, "height": 900}


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """Of one server for all files: each has processes that answer questions."""
    with served() as found:
        yield found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@dataclass
class Tab:
    """A page with what went wrong on it: errors, messages of them, and requests to other machines."""

    page: Page
    address: str
    wrong: list[str] = field(default_factory=list)

    @classmethod
    def opened(cls, chromium: Browser, address: str) -> Tab:
        """One in a context of its own."""
        context = chromium.new_context(
            viewport=WINDOW, reduced_motion="reduce", base_url=address, accept_downloads=True
        )
        context.set_default_timeout(SLOWEST_MS)
        tab = cls(context.new_page(), address)
        tab.page.on("pageerror", lambda error: tab.wrong.append(str(error)))
        tab.page.on("console", lambda said: tab.wrong.append(said.text) if said.type == "error" else None)
        own = (address, "blob:", "data:")
        tab.page.on("request", lambda one: None if one.url.startswith(own) else tab.wrong.append(one.url))
        return tab

    def check(self) -> None:
        """Fail where anything went wrong; requests that the server refuses are no fault of the page."""
        assert not [text for text in self.wrong if not re.search(r"status of 4\d\d", text)]

    def forget(self) -> None:
        """Make the page one that nobody has used: nothing stored, granted, emulated or open."""
        self.page.goto("/static/style.css")  # a file of the same origin that runs nothing
        self.page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
        self.page.context.clear_cookies()
        self.page.context.clear_permissions()
        self.page.emulate_media(media="null", color_scheme="light", reduced_motion="reduce")
        self.page.set_viewport_size(WINDOW)
        self.wrong.clear()


@pytest.fixture(scope="module")
def tab(chromium: Browser, address: str) -> Iterator[Tab]:
    """The page of all tests of a file: a new one starts a process, which costs more than most of them."""
    one = Tab.opened(chromium, address)
    yield one
    one.page.context.close()


@pytest.fixture
def page(tab: Tab) -> Iterator[Page]:
    """A page as a new one, whose errors, messages and requests to other machines fail the test."""
    tab.forget()
    yield tab.page
    tab.check()


@pytest.fixture
def new_page(chromium: Browser, address: str) -> Iterator[Page]:
    """A page that the test may change for good; it is watched like `page`."""
    tab = Tab.opened(chromium, address)
    yield tab.page
    tab.page.context.close()
    tab.check()
