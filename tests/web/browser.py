"""The browser of the tests: Debian's chromium, or the reason why its tests are skipped; in CI they fail instead."""

from __future__ import annotations

import os
import shutil

import pytest

ROOT_ARGUMENTS = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []


def need_browser() -> str:
    """The path of chromium."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        reason = "chromium is missing: make programs (as root), or install it"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found
