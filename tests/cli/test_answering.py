"""What ends a question of the web app without ending its process."""

from __future__ import annotations

import importlib
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flopwise.cli.answering import command_line, interrupt
from flopwise.serving.sim.machine_code import cache_folder, is_compiled


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGALRM)}
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_an_interrupt_within_an_import_waits_for_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "interrupted_package"
    package.mkdir()
    (package / "part.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nNAME = 'part'\n")
    (package / "__init__.py").write_text("from .part import NAME\nimport time\ntime.sleep(0.02)\nWHOLE = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    imported = []

    def ask() -> None:
        imported.append(importlib.import_module("interrupted_package"))
        time.sleep(10)

    with pytest.raises(KeyboardInterrupt):
        ask()
    assert [(module.NAME, module.WHOLE, module.part.NAME) for module in imported] == [("part", True, "part")]
    assert sys.modules["interrupted_package"] is imported[0]


def test_any_other_interrupt_ends_the_question_at_once() -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_question_that_may_not_compile_simulates_only_what_is_compiled(
    compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    if compiled:
        folder = cache_folder()
        assert folder is not None
        (folder / "core.o").touch()
    service, run = ["plan", "gpt2", "--task=serve", "--rate=1"], ["plan", "gpt2", "--task=finetune"]
    assert is_compiled(cache_folder()) is compiled
    assert command_line({"argv": service, "compiles": True}) == service
    assert command_line({"argv": run, "compiles": False}) == run
    found = command_line({"argv": service, "compiles": False})
    assert found == (service if compiled else [*service, "--no-simulate"])
