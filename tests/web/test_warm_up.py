"""The simulator is compiled beside the first page, by a process that ends with the server."""

from __future__ import annotations

import asyncio

import pytest

from flopwise.web import warm_up as warm_up_file
from flopwise.web.warm_up import SimulatorWarmUp


def test_it_begins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up_file, "LINE", ("--version",))

    async def begins() -> None:
        warm_up = SimulatorWarmUp()
        warm_up.begin()
        task = warm_up._task
        warm_up.begin()
        assert task is not None
        assert warm_up._task is task
        await warm_up.end()
        assert warm_up._process is not None
        assert warm_up._process.returncode == 0
        await warm_up.close()

    asyncio.run(begins())


def test_it_ends_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up_file, "LINE", ("simulate", "Llama-3.1-8B", "--gpu", "h100", "--rate", "1", "--json"))

    async def ended() -> int | None:
        warm_up = SimulatorWarmUp()
        await warm_up.end()  # of one that has not begun there is nothing to await
        await warm_up.close()
        warm_up.begin()
        await warm_up.close()  # while it starts
        assert warm_up._process is not None
        return warm_up._process.returncode

    assert asyncio.run(ended()) not in (None, 0)


def test_its_question_is_one_that_is_answered() -> None:
    """Else nothing would be compiled, and nobody would notice."""
    from click.testing import CliRunner

    from flopwise.cli.app import app

    answer = CliRunner().invoke(app, list(warm_up_file.LINE))
    assert answer.exit_code == 0
    assert '"ttft_s"' in answer.stdout
