"""A client of an OpenAI-compatible server that costs little: closed loops, open loops, each request with its times."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import numpy as np

IDLE_S = 2.0
"""How long a connection may rest: servers close those that rest for five seconds."""
Lengths = Callable[[np.random.Generator], tuple[int, int]]
"""Tokens of one request's prompt and of its answer."""


class Request(NamedTuple):
    """One request as its client saw it; seconds of the clock of this process."""

    prompt: int
    output: int
    start_s: float
    chunks: list[float]  # when each piece of the answer came


class Connection:
    """One connection that stays open between requests."""

    def __init__(self, port: int, model: str) -> None:
        """Nothing is opened yet."""
        self.port, self.model = port, model
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._used_s = 0.0

    async def ask(self, prompt: list[int], output: int) -> Request:
        """One answer of exactly `output` tokens."""
        if self._streams is None or time.perf_counter() - self._used_s > IDLE_S:
            if self._streams is not None:
                self._streams[1].close()
            self._streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self._streams
        body = {"model": self.model, "prompt": prompt, "max_tokens": output, "ignore_eos": True, "stream": True}
        data = json.dumps(body | {"temperature": 0}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: local\r\nContent-Type: application/json"
        head += f"\r\nContent-Length: {len(data)}"
        start = time.perf_counter()
        writer.write(f"{head}\r\n\r\n".encode() + data)
        answer = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in answer.partition(b"\r\n")[0]:
            raise RuntimeError(answer.decode(errors="replace"))
        chunks: list[float] = []
        while size := int(await reader.readline(), 16):
            piece = await reader.readexactly(size + 2)
            if piece.startswith(b"data: {"):
                chunks.append(time.perf_counter())
        await reader.readexactly(2)
        self._used_s = time.perf_counter()
        return Request(len(prompt), output, start, chunks)


def _prompt(rng: np.random.Generator, tokens: int) -> list[int]:
    return [int(token) for token in rng.integers(10, 1000, tokens)]


async def closed_loop(port: int, model: str, users: int, seconds: float, lengths: Lengths, seed: int) -> list[Request]:
    """`users` who ask again as soon as they have their answer, until the time is over."""
    rng, done = np.random.default_rng(seed), list[Request]()
    until = time.perf_counter() + seconds

    async def user() -> None:
        connection = Connection(port, model)
        while time.perf_counter() < until:
            prompt, output = lengths(rng)
            done.append(await connection.ask(_prompt(rng, prompt), output))

    await asyncio.gather(*(user() for _ in range(users)))
    return done


async def open_loop(
    port: int, model: str, rate: Callable[[float], float], seconds: float, lengths: Lengths, seed: int
) -> list[Request]:
    """Requests at random times, `rate(t)` a second on average, whatever is answered."""
    rng, free, tasks = np.random.default_rng(seed), list[Connection](), list[asyncio.Task[Request]]()

    async def one(prompt: list[int], output: int) -> Request:
        connection = free.pop() if free else Connection(port, model)
        answer = await connection.ask(prompt, output)
        free.append(connection)
        return answer

    begin = time.perf_counter()
    due = begin
    while (due := due + float(rng.exponential(1.0 / rate(due - begin)))) < begin + seconds:
        prompt, output = lengths(rng)
        ready = _prompt(rng, prompt)
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        tasks.append(asyncio.create_task(one(ready, output)))
    return list(await asyncio.gather(*tasks))


def results(requests: list[Request]) -> dict[str, Any]:
    """The requests as `vllm bench serve --save-detailed` writes them.

    A piece of an answer may hold several tokens: gaps are as many as tokens, even between first and last piece.
    """
    ordered = sorted(requests, key=lambda r: r.start_s)
    gaps = [
        [(r.chunks[-1] - r.chunks[0]) / max(r.output - 1, 1)] * (r.output - 1) if len(r.chunks) > 1 else []
        for r in ordered
    ]
    return {
        "start_times": [r.start_s for r in ordered], "ttfts": [r.chunks[0] - r.start_s for r in ordered],
        "itls": gaps, "input_lens": [r.prompt for r in ordered], "output_lens": [r.output for r in ordered],
        "completed": len(ordered), "pieces": [len(r.chunks) for r in ordered],
    }  # fmt: skip


def run(work: Coroutine[Any, Any, list[Request]]) -> list[Request]:
    """The requests of a loop."""
    return asyncio.run(work)
