"""Processes that answer questions: a few, each with its facts loaded; a question is stopped by an interrupt.

A question waits for a free process, runs for a limited time, and is stopped where nobody waits for it any more. A
process that does not stop, or ends, is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import flopwise
from flopwise.values import dataclass
from flopwise.web.questions import Question

LENGTH = struct.Struct(">I")
PROGRAM = "flopwise.cli.answering"
STOP_S = 3.0
"""How long an interrupted process may take before it is replaced."""
SEARCHES = ("assess", "check", "plan")
"""Nouns that a process answers sooner after another of the kind."""
MACHINES = "--provider=aws --gpu=l4 --gpu=l40s --gpu=a100-80gb --gpu=h100 --json"
WARM_UP = tuple(
    Question("plan", tuple(f"plan Llama-3.1-8B {line} {MACHINES}".split()), {})
    for line in ("--task=serve --rate=1", "--task=finetune --lora=8 --tokens=10M")
)
"""What each process is asked while nobody asks: the first plan of a person finds modules, facts and the compiled
simulator loaded."""
QUIET_S = 0.1
"""How long nobody may have asked before a warm-up that made way for a question is taken up again."""
PATIENCE_S = 0.3
"""How long a question that is no search waits for a place before a warm-up makes way for it: most take no longer."""
MOMENT_S = 0.05
"""How long a question waits for the process that answered its noun last: what it takes to notice a changed question."""


class Listener(Protocol):
    """Receiver of a question's progress, before its reply."""

    def note(self, what: str, done: float, total: float | None, note: str) -> None:
        """Report progress: the work, the amount done, and the total."""

    def rank(self, name: str, plan: str) -> None:
        """Plans of a search before its answer, as JSON: `first`, those of a few machines, or `ranked`, all of them."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to a question: exit code, document as the command line prints it, message, notes and files."""

    code: int
    document: str
    message: str
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    files: dict[str, str]


class BusyError(Exception):
    """Too many questions wait already."""


class TimeLimitError(Exception):
    """A question took longer than it may."""


class LostError(Exception):
    """The process ended before it answered: out of memory, or killed."""


def process_environment() -> dict[str, str]:
    """The environment of a process of this very flopwise, without the server's token."""
    home = str(Path(flopwise.__file__).parents[1])
    paths = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {name: text for name, text in os.environ.items() if name != "FLOPWISE_WEB_TOKEN"} | {"PYTHONPATH": paths}


class Worker:
    """One process."""

    def __init__(self) -> None:
        self.process: asyncio.subprocess.Process | None = None
        self.answered: dict[str, int] = {}
        """Nouns that it answered, with the number of the latest question: what that one computed may be kept."""
        self.warm_ups = 0
        """Questions that nobody asked and it answered."""
        self.stopping = False
        self.idle = asyncio.Event()
        self.idle.set()
        self._starting: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()

    def merit(self, noun: str) -> tuple[int, bool, int, bool, int]:
        """The suitability for a question as a sort key: the latest search of the kind first, then least other use.

        What is warm is for searches, where there is a choice.
        """
        latest = self.answered.get(noun, 0)
        searched, searches = not self.answered.keys().isdisjoint(SEARCHES), noun in SEARCHES
        warmth = self.warm_ups if searches else -self.warm_ups
        return latest if searches else 0, not searched, warmth, self.process is not None, latest

    async def ready(self) -> None:
        """Start it where it does not run; returns once it takes questions. A start goes on without who awaits it."""
        if self._starting is None or (self._starting.done() and not self._runs()):
            self._begun.clear()
            self._starting = asyncio.create_task(self._start())
            self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._starting)

    def _runs(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def _start(self) -> None:
        try:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", PROGRAM, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the server
                env=process_environment(),
            )  # fmt: skip
        finally:
            self._begun.set()
        while "ready" not in await self._message():
            pass

    async def ask(self, question: Question, listener: Listener | None, *, compiles: bool = True) -> Reply:
        """The reply to a question; not `compiles`: no simulation where that takes a compiler. Raises: LostError."""
        await self.ready()
        await self._send(
            {
                "argv": question.argv, "files": dict(question.files), "ranks": listener is not None,
                "compiles": compiles,
            }
        )  # fmt: skip
        while "code" not in (message := await self._message()):
            if listener is not None and "progress" in message:
                listener.note(*message["progress"])
            elif listener is not None:
                listener.rank(*next(iter(message.items())))
        message["reasons"], message["notes"] = tuple(message["reasons"]), tuple(message["notes"])
        return Reply(**message)

    async def warm_up(self, question: Question) -> None:
        """Answer a question that nobody asked."""
        await self.ask(question, None, compiles=False)
        self.warm_ups += 1

    async def stop(self) -> None:
        """End the question that runs, and the process where that does not end it; one that starts has no question."""
        if self._starting is None or not self._starting.done() or self.process is None:
            return
        try:
            self.process.send_signal(signal.SIGINT)
            async with asyncio.timeout(STOP_S):
                while "code" not in await self._message():
                    pass
        except (LostError, TimeoutError, ProcessLookupError):
            await self.end()

    async def end(self) -> None:
        """End the process."""
        starting = self._starting
        if starting is not None and not starting.done() and asyncio.current_task() is not starting:
            await self._begun.wait()  # asyncio does not stop what it is about to start
            starting.cancel()
            await asyncio.wait([starting])
        process, self.process = self.process, None
        self.answered, self.warm_ups = {}, 0
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _send(self, message: Any) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        data = json.dumps(message).encode()
        self.process.stdin.write(LENGTH.pack(len(data)) + data)
        try:
            await self.process.stdin.drain()
        except ConnectionError:
            raise LostError from None

    async def _message(self) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        try:
            head = await self.process.stdout.readexactly(LENGTH.size)
            message: dict[str, Any] = json.loads(await self.process.stdout.readexactly(LENGTH.unpack(head)[0]))
        except asyncio.IncompleteReadError:
            await self.end()
            raise LostError from None
        return message


class Pool:
    """`size` processes, for which at most `waiting` questions wait.

    A question goes to the free process that answered its noun last: a search keeps what the next one may share.
    """

    def __init__(self, size: int, waiting: int) -> None:
        """No process runs before `start` or the first question."""
        self._most_waiting, self._waiting, self._number = waiting, 0, 0
        self._workers = [Worker() for _ in range(size)]
        self._free, self._places = [*self._workers], asyncio.Semaphore(size)
        self._warming: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the processes, then warm them up; one that answers already was started by its question."""
        for worker in self._workers:
            await self._places.acquire()
            if worker in self._free:
                self._take(worker)
                try:
                    with contextlib.suppress(LostError):
                        await worker.ready()
                finally:
                    self._give_back(worker)
            else:
                self._places.release()
            await asyncio.sleep(0)
        await self.warm_up(WARM_UP)

    async def warm_up(self, questions: Iterable[Question]) -> None:
        """Have each process answer questions that nobody asked; not where it answered their nouns."""
        for worker in self._workers:
            for question in questions:
                while question.noun not in worker.answered and not await self._is_warm(worker, question):  # noqa: ASYNC110 - nobody says when
                    await asyncio.sleep(QUIET_S)

    async def _is_warm(self, worker: Worker, question: Question) -> bool:
        """Have a process answer a question that nobody asked, until its place is needed. False: it made way."""
        await worker.idle.wait()
        await self._places.acquire()
        if worker not in self._free:
            self._places.release()
            return False
        self._take(worker)
        self._warming = asyncio.create_task(worker.warm_up(question))
        try:
            await asyncio.wait([self._warming])
            if self._warming.cancelled():
                await worker.stop()
                return False
            with contextlib.suppress(LostError):
                self._warming.result()
        finally:
            warming, self._warming = self._warming, None
            warming.cancel()
            self._give_back(worker)
        return True

    async def ask(self, question: Question, limit_s: float, listener: Listener | None = None) -> Reply:
        """The reply to a question; being cancelled stops it.

        Raises:
            BusyError: too many wait already. TimeLimitError: it took more than `limit_s`. LostError: its process ended.
        """
        if self._waiting >= self._most_waiting:
            raise BusyError
        self._waiting += 1
        try:
            worker = await self._worker_for(question.noun)
        finally:
            self._waiting -= 1
        try:
            await worker.ready()
            async with asyncio.timeout(limit_s):
                return await worker.ask(question, listener)
        except TimeoutError:
            await worker.stop()
            raise TimeLimitError from None
        except asyncio.CancelledError:
            worker.stopping = True
            await asyncio.shield(worker.stop())
            raise
        finally:
            if worker.process is not None:
                worker.answered[question.noun] = self._next()  # of two at once the longer one kept more
            self._give_back(worker)

    def _next(self) -> int:
        """The number of a question, later ones larger."""
        self._number += 1
        return self._number

    async def _worker_for(self, noun: str) -> Worker:
        """A free process, the one that answered `noun` last if that is about to be free."""
        last = max(self._workers, key=lambda one: one.answered.get(noun, 0))
        for most_s in (MOMENT_S, STOP_S):
            if noun in last.answered and (most_s == MOMENT_S or last.stopping):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(most_s):
                        await last.idle.wait()
        try:
            async with asyncio.timeout(None if self._warming is None else 0 if noun in SEARCHES else PATIENCE_S):
                await self._places.acquire()
        except TimeoutError:
            if self._warming is not None:
                self._warming.cancel()
            await self._places.acquire()
        worker = max(self._free, key=lambda one: one.merit(noun))
        self._take(worker)
        worker.answered[noun] = self._next()
        return worker

    def _take(self, worker: Worker) -> None:
        """The process is for one question alone."""
        self._free.remove(worker)
        worker.idle.clear()

    def _give_back(self, worker: Worker) -> None:
        """The process is free for the next question."""
        worker.stopping = False
        worker.idle.set()
        self._free.append(worker)
        self._places.release()

    async def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            await worker.end()
