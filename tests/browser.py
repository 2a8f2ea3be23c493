"""The browser of the tests: Debian's chromium, or the reason why its tests are skipped; in CI they fail instead."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from setup_beside import wait_for_setup

ROOT_ARGUMENTS = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
DRAWING = ["--disable-gpu", "--disable-software-rasterizer"]
"""Debian starts chromium with the GPU's rasterizer, which a machine without one emulates: a quarter of its time."""
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first draws pages with the same engine and no window around them, which would take a sixth of the time."""


def need_browser() -> str:
    """The path of chromium."""
    wait_for_setup()
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        reason = "chromium is missing: make programs (as root), or install it"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser without a window."""
    path = need_browser()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*ROOT_ARGUMENTS, *DRAWING])
        yield browser
        browser.close()


def printed_pages(page: Page) -> int:
    """Pages of A4 that a browser prints of `page`."""
    return len(re.findall(rb"/Type\s*/Page[^s]", page.pdf(format="A4", print_background=True)))
