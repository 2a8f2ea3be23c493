"""What ends a question of the web app without ending its process."""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flopwise.cli import answering
from flopwise.cli.answering import PREPARATIONS, interrupt
from flopwise.cli.run import EXIT_INTERRUPTED


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


def test_a_process_prepares_for_searches_while_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a question comes; one that was stopped while the process prepared is not answered after it."""
    ran: list[object] = []
    codes = {"ends": 0}

    def run(line: object, _: object) -> dict[str, int]:
        ran.append(line)
        return {"code": codes["ends"]}

    monkeypatch.setattr(answering, "_run", run)
    monkeypatch.setattr(answering, "QUIET_S", 0.01)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as source, os.fdopen(writing, "wb", buffering=0) as questions:
        assert answering._prepare(source)
        assert ran == list(PREPARATIONS)
        codes["ends"] = EXIT_INTERRUPTED
        assert answering._prepare(source)  # nobody asked what was stopped
        ran.clear()
        questions.write(b"a question")
        assert answering._prepare(source)
        assert not ran
        monkeypatch.setattr(answering, "_waits", lambda _, most_s: most_s == 0.0)  # it comes while the first runs
        assert not answering._prepare(source)
        assert ran == [PREPARATIONS[0]]
    monkeypatch.undo()
    assert answering._prepare(io.BytesIO())  # no pipe: nobody knows, so it is answered at once


@pytest.mark.parametrize("line", PREPARATIONS, ids=lambda line: line[line.index("--task") + 1])
def test_preparations_are_questions_with_an_answer(line: tuple[str, ...]) -> None:
    assert answering._run(line, lambda _: None)["code"] == 0
