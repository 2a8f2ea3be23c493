"""The simulator is compiled beside the first page; questions that need it wait, and are told why."""

from __future__ import annotations

import asyncio
import time

import pytest

from flopwise.web import warm_up as warm_up_file
from flopwise.web.warm_up import COMPILING, SimulatorWarmUp


async def _waits(warm_up: SimulatorWarmUp, noun: str) -> tuple[float, list[tuple[str, float]]]:
    """Seconds that a noun waits, and what its progress is told."""
    told: list[tuple[str, float]] = []
    begun = time.monotonic()
    await warm_up.ready(noun, lambda what, done, *_: told.append((what, done)))
    return time.monotonic() - begun, told


def test_only_what_is_simulated_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up_file, "LINE", ("--version",))
    monkeypatch.setattr(warm_up_file, "BEAT_S", 0.01)

    async def waits() -> None:
        warm_up = SimulatorWarmUp()
        assert (await _waits(warm_up, "simulate"))[1] == []  # not begun: nobody opened a page
        warm_up.begin()
        try:
            task = warm_up._task
            warm_up.begin()
            assert warm_up._task is task
            assert (await _waits(warm_up, "plan"))[1] == []
            waited_s, told = await _waits(warm_up, "simulate")
            assert waited_s > 0.02
            assert {what for what, _ in told} == {COMPILING}
            assert [done for _, done in told] == sorted(done for _, done in told)
            assert warm_up._process is not None
            assert warm_up._process.returncode == 0
            assert (await _waits(warm_up, "simulate"))[1] == []
        finally:
            await warm_up.close()

    asyncio.run(waits())


def test_it_ends_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up_file, "LINE", ("simulate", "Llama-3.1-8B", "--gpu", "h100", "--rate", "1", "--json"))

    async def ended() -> int | None:
        warm_up = SimulatorWarmUp()
        await warm_up.close()  # of one that has not begun there is nothing to end
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
