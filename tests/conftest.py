"""What all tests share: property tests that draw the same inputs every time, and a folder of prices for each test."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# `make test` says the same of the same tree every time; `make fuzz` draws other inputs in each run, and many of them.
settings.register_profile("fixed", derandomize=True, database=None, deadline=None)
settings.register_profile(
    "fuzz", max_examples=1000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("FLOPWISE_HYPOTHESIS", "fixed"))

_PLACE = Path(tempfile.mkdtemp(prefix="flopwise-tests-"))
_COUNT = itertools.count()
atexit.register(shutil.rmtree, _PLACE, ignore_errors=True)
# no test sees prices that the person who runs it has imported, nor imports any there
os.environ["FLOPWISE_PRICES"] = str(_PLACE / "none")  # before any test module loads facts


@pytest.fixture(autouse=True)
def _prices_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a folder of prices of its own, which does not exist until it imports some."""
    monkeypatch.setenv("FLOPWISE_PRICES", str(_PLACE / str(next(_COUNT))))
