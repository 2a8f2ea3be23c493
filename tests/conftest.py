"""What all tests share: none of them sees prices that the person who runs them has imported, nor imports any there."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import tempfile
from pathlib import Path

import pytest

_PLACE = Path(tempfile.mkdtemp(prefix="flopwise-tests-"))
_COUNT = itertools.count()
atexit.register(shutil.rmtree, _PLACE, ignore_errors=True)
os.environ["FLOPWISE_PRICES"] = str(_PLACE / "none")  # before any test module loads facts


@pytest.fixture(autouse=True)
def _prices_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a folder of prices of its own, which does not exist until it imports some."""
    monkeypatch.setenv("FLOPWISE_PRICES", str(_PLACE / str(next(_COUNT))))
