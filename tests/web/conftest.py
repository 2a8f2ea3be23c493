"""A server, a browser and its pages, for the tests of one file."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from on_page import SLOWEST_MS, served
from playwright.sync_api import Browser, Page

from browser import open_browser


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as found:
        yield found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture
def page(chromium: Browser, address: str) -> Iterator[Page]:
    """A page whose errors, messages and requests to other machines fail the test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, base_url=address, accept_downloads=True)
    context.set_default_timeout(SLOWEST_MS)
    one = context.new_page()
    wrong: list[str] = []
    one.on("pageerror", lambda error: wrong.append(str(error)))
    one.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    one.on(
        "request", lambda asked: None if asked.url.startswith((address, "blob:", "data:")) else wrong.append(asked.url)
    )
    yield one
    context.close()
    assert not [text for text in wrong if not re.search(r"status of 4\d\d", text)]
