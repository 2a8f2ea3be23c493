"""What `make test` installs and checks while tests run: tests that need it wait for it; its failure ends them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

import pytest

_STATE = os.environ.get("FLOPWISE_SETUP_STATE")
"""The file that make writes when it is through; where nobody names one, everything is there."""
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flopwise"
"""Where make keeps what is too large to install, or takes too long to check, in each run."""
FAILED = "what make installs or checks beside the tests has failed"
_ROUND_S = 0.2


def setup_state() -> Literal["running", "done", "failed"]:
    """How the rest of the set-up goes."""
    if _STATE is None:
        return "done"
    try:
        text = Path(_STATE).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return "running"
    return "done" if text == "done" else "failed" if text else "running"


def wait_for_setup() -> None:
    """Return when programs and environments are there."""
    while (state := setup_state()) == "running":
        time.sleep(_ROUND_S)
    if state == "failed":
        pytest.fail(FAILED)
