"""Recording a server: a middleware for any ASGI application, of nothing but asyncio."""

from __future__ import annotations

import atexit
import os
import platform
import threading
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from flopwise.callbacks.safe_writer import SafeWriter
from flopwise.records.model import Run
from flopwise.units import HOUR_S

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
REPORT_S = 10.0
"""Seconds between two samples of requests a second, and two events about errors."""


class RecordingMiddleware:
    """`app = RecordingMiddleware(app)`: every request's time to the first byte, time to the end, status and pieces.

    A run begins with the server or its first request, and ends with it; each worker process has its own. Requests of
    `ignore` (health checks, metrics) are passed on only. An answer in several pieces, as of a stream of tokens, also
    has the time of the first of them as `ttft_s` and the mean time between two as `itl_s`.
    """

    def __init__(
        self, app: Application, *, store: str | Path | None = None, name: str = "service", model: str | None = None,
        price_usd_per_hour: float | None = None, ignore: tuple[str, ...] = ("/health", "/metrics", "/ping"),
    ) -> None:  # fmt: skip
        """`price_usd_per_hour`: of the machines of this process."""
        self.app, self._store, self._ignore = app, store, ignore
        self._name, self._model, self._price = name, model, price_usd_per_hour
        self.run: Run | None = None
        """As the store has it, once a request has come."""
        self._writer: Any = None
        self._pid = 0
        self._lock = threading.Lock()
        self._running = self._done = self._failed = 0
        self._statuses = Counter[str]()
        self._reported_s = 0.0

    def _begin(self) -> None:
        """Start the run of this process; a forked process has a run of its own."""
        if self._pid == os.getpid():
            return
        with self._lock:
            self._pid, self._running, self._done, self._failed = os.getpid(), 0, 0, 0
            self._start_s, self._wall_s = time.perf_counter(), time.time()
            self._reported_s = self._start_s
            self.run = Run(
                run_id=uuid.uuid4().hex, name=self._name, task="serve", started_at_s=self._wall_s, model=self._model,
                host=platform.node() or None, price_usd_per_hour=self._price, settings={"pid": self._pid},
            )  # fmt: skip
            self._writer = SafeWriter(self._store, self.run, "requests are")
            atexit.register(self.end)

    def end(self) -> None:
        """End the run and write the remaining values. The next request begins another run."""
        if self._pid == os.getpid():
            self._report(last=True)
            self._writer.end("finished")
            self._pid = 0
            atexit.unregister(self.end)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass the request on, and measure its answer."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, self._watching_shutdown(send))
            return
        if scope["type"] != "http" or scope.get("path") in self._ignore:
            await self.app(scope, receive, send)
            return
        self._begin()
        answer = _Answer(send)
        self._running += 1
        try:
            await self.app(scope, receive, answer)
        except BaseException as error:
            answer.failure = type(error).__name__
            raise
        finally:
            self._running -= 1
            self._record(answer)

    def _watching_shutdown(self, send: Send) -> Send:
        async def watching(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                self._begin()
            elif message["type"].startswith("lifespan.shutdown"):
                self.end()
            await send(message)

        return watching

    def _record(self, answer: _Answer) -> None:
        """Write what one answer took."""
        now_s = time.perf_counter()
        self._done += 1
        if answer.is_failure:
            self._failed += 1
            self._statuses[answer.failure or f"status {answer.status}"] += 1
        values: dict[str, float] = {}
        if answer.first_s is not None:
            values["ttfb_s"] = answer.first_s - answer.start_s
        if answer.last_s is not None and not answer.is_failure:
            values |= {"e2e_s": answer.end_s - answer.start_s, "chunks": float(answer.chunks)}
            if answer.chunks > 1 and answer.first_s is not None:
                values["ttft_s"] = answer.first_s - answer.start_s
                values["itl_s"] = (answer.last_s - answer.first_s) / (answer.chunks - 1)
        if values:
            self._writer.add(self._at(now_s), values)
        if now_s - self._reported_s >= REPORT_S:
            self._report()

    def _report(self, *, last: bool = False) -> None:
        """Write the rate since the last report, and an event for each kind of failure."""
        now_s = time.perf_counter()
        if self._done or last:
            rate = self._done / max(1e-9, now_s - self._reported_s)
            values = {"requests_per_s": rate, "requests_running": float(self._running)}
            values["failed_requests"] = float(self._failed)
            if self._price is not None:
                values["cost_usd"] = self._price * (now_s - self._start_s) / HOUR_S
            self._writer.add(self._at(now_s), values)
        for what, count in self._statuses.items():
            self._writer.event("failed_requests", f"{count:,} requests failed: {what}", at_s=self._at(now_s))
        self._statuses.clear()
        self._done, self._reported_s = 0, now_s

    def _at(self, now_s: float) -> float:
        return self._wall_s + now_s - self._start_s


class _Answer:
    """Passes an answer on, and notes when its pieces left."""

    def __init__(self, send: Send) -> None:
        self._send, self.start_s = send, time.perf_counter()
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.end_s = self.start_s
        self.status, self.chunks, self.failure, self._is_whole = 0, 0, "", False

    @property
    def is_failure(self) -> bool:
        """True if an error was answered, or no whole answer given."""
        return bool(self.failure) or self.status >= 500 or not self._is_whole

    async def __call__(self, message: Message) -> None:
        """Pass a message on; a piece counts when it has been taken."""
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
        await self._send(message)
        if message["type"] == "http.response.body":
            now_s = self.end_s = time.perf_counter()
            self._is_whole = not message.get("more_body", False)
            if message.get("body"):
                self.chunks += 1
                self.first_s = now_s if self.first_s is None else self.first_s
                self.last_s = now_s
            elif self._is_whole:
                self.first_s = now_s if self.first_s is None else self.first_s
                self.last_s = self.last_s or now_s
