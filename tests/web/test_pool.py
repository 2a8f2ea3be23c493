"""Which process a question goes to: the one that may have kept what it needs."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from click.testing import CliRunner

from flopwise.cli.app import app
from flopwise.web import pool as pool_file
from flopwise.web.pool import Listener, Pool, Reply, Worker
from flopwise.web.questions import Question

ENDLESS = "endless"


class _Answering(Worker):
    """A process in name only, whose answers say which one it is."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.stops = number, 0

    async def ready(self) -> None:
        """It is."""

    async def ask(self, question: Question, listener: Listener | None, *, compiles: bool = True) -> Reply:
        del listener, compiles
        await asyncio.sleep(60 if question.argv == (ENDLESS,) else 0.01)
        return Reply(0, str(self.number), "", (), (), {})

    async def stop(self) -> None:
        await asyncio.sleep(0.05)
        self.stops += 1


def _pool() -> Pool:
    pool = Pool(2, 8)
    pool._workers = [_Answering(number) for number in range(2)]
    pool._free = [*pool._workers]
    return pool


def _question(noun: str, *argv: str) -> Question:
    return Question(noun, argv, {})


async def _number(pool: Pool, noun: str) -> str:
    return (await pool.ask(_question(noun), 9)).document


def test_a_noun_goes_to_the_process_that_answered_it_last() -> None:
    async def numbers() -> list[str]:
        pool = _pool()
        return [await _number(pool, noun) for noun in ("plan", "serve", "plan", "serve", "gpus", "plan")]

    first, second, *later = asyncio.run(numbers())
    assert {first, second} == {"0", "1"}
    assert [later[0], later[1], later[3]] == [first, second, first]


def test_questions_at_once_go_to_both() -> None:
    async def numbers() -> list[str]:
        pool = _pool()
        return [*await asyncio.gather(*(_number(pool, "plan") for _ in range(4)))]

    assert set(asyncio.run(numbers())) == {"0", "1"}


def test_a_changed_question_waits_for_the_process_that_its_predecessor_is_stopped_on() -> None:
    async def changed() -> tuple[str, str, int]:
        pool = _pool()
        before = await _number(pool, "plan")
        running = asyncio.create_task(pool.ask(_question("plan", ENDLESS), 9))
        await asyncio.sleep(0.02)
        running.cancel()
        after = await _number(pool, "plan")
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert len(pool._free) == 2
        return before, after, sum(one.stops for one in pool._workers)  # type: ignore[attr-defined]

    before, after, stops = asyncio.run(changed())
    assert (before, stops) == (after, 1)


class _Warm(_Answering):
    """A process whose warm-ups take as long as their words say."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.begun = 0

    async def warm_up(self, question: Question) -> None:
        self.begun += 1
        await asyncio.sleep(float(*question.argv))
        self.warm_ups += 1


def test_each_process_is_warmed_up_but_for_what_it_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_file, "WARM_UP", (_question("plan", "0.05"), _question("plan", "0")))

    async def warmed() -> list[list[int]]:
        pool = Pool(2, 8)
        pool._workers = [_Warm(number) for number in range(2)]
        pool._free = [*pool._workers]
        found = []
        await pool.start()
        found.append([worker.warm_ups for worker in pool._workers])
        await _number(pool, "simulate")
        await pool.warm_up([_question("simulate", "0")])
        found.append([worker.warm_ups for worker in pool._workers])
        return found

    once, (first, second) = asyncio.run(warmed())
    assert once == [2, 2]
    assert {first, second} == {2, 3}


@pytest.mark.parametrize(("noun", "lasts_s"), [("plan", "1.5"), ("gpus", "1.5")])
def test_a_warm_up_makes_way_for_a_question_and_is_taken_up_again(
    noun: str, lasts_s: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_file, "WARM_UP", ())

    async def answered() -> tuple[str, list[int]]:
        pool, only = Pool(1, 8), _Warm(7)
        pool._workers, pool._free = [only], [only]
        warming = asyncio.create_task(pool.warm_up([_question("memory", lasts_s)]))
        await asyncio.sleep(0.02)
        number = await asyncio.wait_for(_number(pool, noun), 1)
        before = [only.stops, only.warm_ups]
        await asyncio.wait_for(warming, 9)
        return number, [*before, only.begun, only.warm_ups]

    assert asyncio.run(answered()) == ("7", [1, 0, 2, 1])


def test_a_short_question_waits_for_a_warm_up_that_is_about_to_end() -> None:
    """Pages ask for names of models and devices as they open: else no process of two would ever be warm."""

    async def answered() -> tuple[str, list[int]]:
        pool, only = Pool(1, 8), _Warm(7)
        pool._workers, pool._free = [only], [only]
        warming = asyncio.create_task(pool.warm_up([_question("memory", "0.1")]))
        await asyncio.sleep(0.02)
        number = await _number(pool, "gpus")
        await warming
        return number, [only.stops, only.begun, only.warm_ups]

    assert asyncio.run(answered()) == ("7", [0, 1, 1])


def test_searches_go_to_the_warm_process_and_other_questions_elsewhere() -> None:
    async def numbers() -> tuple[str, str]:
        pool = _pool()
        pool._workers[1].warm_ups = 1
        return await _number(pool, "gpus"), await _number(pool, "plan")

    assert asyncio.run(numbers()) == ("0", "1")


def test_what_is_asked_to_warm_up_has_a_plan() -> None:
    """Else nothing is loaded, and nobody would notice."""
    for question in pool_file.WARM_UP:
        answer = CliRunner().invoke(app, list(question.argv))
        assert answer.exit_code == 0
        assert json.loads(answer.stdout)["plans"]


def test_a_process_starts_though_the_question_that_started_it_is_given_up() -> None:
    async def processes() -> tuple[int, int, str]:
        pool = Pool(1, 8)
        try:
            given_up = asyncio.create_task(pool.ask(_question("gpus", "gpus", "--json"), 60))
            await pool._workers[0]._begun.wait()
            assert pool._workers[0].process is not None
            first = pool._workers[0].process.pid
            given_up.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await given_up
            reply = await pool.ask(_question("gpus", "gpus", "h100", "--json"), 60)
            assert pool._workers[0].process is not None
            return first, pool._workers[0].process.pid, reply.document
        finally:
            await pool.close()

    first, then, document = asyncio.run(processes())
    assert first == then
    assert "H100-SXM-80" in document


def test_a_process_that_starts_is_ended_with_the_pool() -> None:
    async def left() -> int | None:
        pool = Pool(1, 8)
        starting = asyncio.create_task(pool.start())
        await asyncio.sleep(0.01)
        starting.cancel()
        await pool.close()
        begun = pool._workers[0]._starting
        assert begun is not None
        assert begun.done()
        process = pool._workers[0].process
        return None if process is None else process.pid

    assert asyncio.run(left()) is None
