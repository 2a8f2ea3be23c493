"""Which process a question goes to: the one that may have kept what it needs."""

from __future__ import annotations

import asyncio
import contextlib

from flopwise.web.pool import Pool, Progress, Reply, Worker
from flopwise.web.questions import Question

ENDLESS = "endless"


class _Answering(Worker):
    """A process in name only, whose answers say which one it is."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.stops = number, 0

    async def ready(self) -> None:
        """It is."""

    async def ask(self, question: Question, progress: Progress | None) -> Reply:
        del progress
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
