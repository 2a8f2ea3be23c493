"""What all tests share: property tests that draw the same inputs every time; prices and recorded runs for each test."""

from __future__ import annotations

import atexit
import gc
import itertools
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from setup_beside import FAILED, setup_state

pytest_plugins = ["databases"]

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
os.environ["FLOPWISE_RUNS"] = str(_PLACE / "none.db")
os.environ["FLOPWISE_CONFIG"] = ""  # nobody's own settings
os.environ["FLOPWISE_CALIBRATIONS"] = str(_PLACE / "no profiles")
# a worker of xdist has one core: further threads of a library would wait in loops for the neighbour's
for _pool in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_pool, "1")


gc.disable()  # until all is collected, which makes much and leaves nothing over
_ALLOCATIONS = 50_000
"""Between two looks for what nothing refers to: Python's 700 are for less memory than a worker has."""

LONGEST = (
    "exports/test_vllm_server.py",
    "exports/test_platform.py",
    "exports/test_training_tools.py",
    "exports/test_ray_data.py",
    "ops/test_flops_oracle.py",
    "search/test_sweep.py",
)
"""Files with a test of half a minute or more: begun last, it would leave the other core idle."""
LATE = ("tests/exports", "tests/records", "tests/telemetry", "tests/web", "tests/report", "tests/test_notebook.py")
"""Where tests need programs, environments or checked types, which are made while the others run."""


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    root = config.rootpath

    def place(item: pytest.Item) -> tuple[bool, bool]:
        path = item.path.relative_to(root).as_posix()
        return path.startswith(LATE), not path.endswith(LONGEST)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Leave what stays to the end out of later collections: thousands of tests are looked through in each of them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, 20, 50)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    if setup_state() == "failed":
        item.session.shouldstop = FAILED


@pytest.fixture(autouse=True)
def _data_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a folder of prices and a store of runs of its own, which do not exist until it makes them."""
    monkeypatch.setenv("FLOPWISE_PRICES", str(_PLACE / str(next(_COUNT))))
    monkeypatch.setenv("FLOPWISE_RUNS", str(_PLACE / f"{next(_COUNT)}.db"))
    monkeypatch.setenv("FLOPWISE_CALIBRATIONS", str(_PLACE / f"profiles {next(_COUNT)}"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[[str], tuple[int, str, str]]:
    """Runs a command line; its exit code, stdout and stderr."""
    from flopwise import cli

    def go(line: str) -> tuple[int, str, str]:
        code = cli.main(shlex.split(line))
        out, err = capsys.readouterr()
        return code, out, err

    return go
