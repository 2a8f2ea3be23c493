"""Questions that are answered later: their progress, their end, and stopping them."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import field
from typing import Any

from starlette.responses import Response

from flopwise.values import dataclass
from flopwise.web.pool import Listener
from flopwise.web.problems import ProblemError

MOST_RUNNING = 8
MOST_KEPT = 32
BEAT_S = 15.0
"""A comment is sent after so long without an event: connections that nobody reads are noticed."""


@dataclass(eq=False)
class AnswerJob:
    """One question and how it stands."""

    noun: str
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    progress: dict[str, Any] | None = None
    rankings: dict[str, str] = field(default_factory=dict)  # `first` or `ranked` plans as JSON, while it runs
    task: asyncio.Task[Response] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def state(self) -> str:
        """running, done, or failed: its result is then a problem."""
        if self.task is None or not self.task.done():
            return "running"
        return "failed" if self.task.cancelled() or self.task.exception() else "done"

    def document(self) -> dict[str, Any]:
        """The job as JSON."""
        return {"id": self.id, "noun": self.noun, "state": self.state, "progress": self.progress}

    def note(self, what: str, done: float, total: float | None, note: str) -> None:
        """Take down progress."""
        self.progress = {"what": what, "done": done, "total": total, "note": note}
        self.changed.set()

    def rank(self, name: str, plan: str) -> None:
        """Take down what is ranked; of all plans it says better than of the first ones."""
        self.rankings = {name: plan}
        self.changed.set()

    def end(self) -> None:
        """Let go of what the answer says better."""
        self.rankings = {}
        self.changed.set()


class Jobs:
    """The jobs of a server; of those that ended the latest are kept."""

    def __init__(self) -> None:
        self._jobs: dict[str, AnswerJob] = {}

    def start(self, noun: str, answer: Callable[[Listener], Awaitable[Response]]) -> AnswerJob:
        """Start a job. Raises: ProblemError: as many run as may."""
        if sum(job.state == "running" for job in self._jobs.values()) >= MOST_RUNNING:
            raise ProblemError(
                "too-many-jobs", f"{MOST_RUNNING} jobs are running or waiting; stop one, or wait for one to end"
            )
        job = AnswerJob(noun)

        async def work() -> Response:
            return await answer(job)

        job.task = asyncio.create_task(work())
        job.task.add_done_callback(lambda _: job.end())
        self._jobs[job.id] = job
        for old in [one for one in self._jobs.values() if one.state != "running"][:-MOST_KEPT]:
            del self._jobs[old.id]
        return job

    def find(self, name: str) -> AnswerJob:
        """A job by its id. Raises: ProblemError."""
        if name not in self._jobs:
            raise ProblemError("unknown", f"no job {name[:40]!r}: it was stopped or has expired")
        return self._jobs[name]

    def documents(self) -> list[dict[str, Any]]:
        """All of them, the latest first."""
        return [job.document() for job in reversed(self._jobs.values())]

    async def stop(self, job: AnswerJob) -> None:
        """Stop a job and forget it."""
        del self._jobs[job.id]
        if job.task is not None:
            job.task.cancel()
            await asyncio.wait([job.task])

    async def close(self) -> None:
        """Stop all."""
        for job in [*self._jobs.values()]:
            await self.stop(job)


async def events(job: AnswerJob) -> AsyncIterator[str]:
    """Server-sent events of a job until it ends; each ranking is sent once."""
    sent = set[str]()
    while True:
        job.changed.clear()
        for name in job.rankings.keys() - sent:
            sent.add(name)
            yield _event(name, job.rankings[name])
        if job.state != "running":
            yield _event("end", json.dumps(job.document()))
            return
        yield _event("progress", json.dumps(job.document()))
        try:
            async with asyncio.timeout(BEAT_S):
                await job.changed.wait()
        except TimeoutError:
            yield ": still here\n\n"


def _event(name: str, data: str) -> str:
    return f"event: {name}\ndata: {data}\n\n"
