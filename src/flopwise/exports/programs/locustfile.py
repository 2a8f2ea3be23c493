"""Sends what load.json says to a server of OpenAI's API, and checks its targets at the end.

    locust --headless --locustfile locustfile.py --host http://127.0.0.1:8000 --users 1

Requests arrive at a rate whether or not earlier ones are answered, or a fixed number is in flight. `ttft` is the time
to the first token, `tpot` that of each further one, `latency` that of the whole answer. Exit code 1: a target is
missed.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import gevent
from locust import HttpUser, events, task
from requests.adapters import HTTPAdapter

LOAD = json.loads(Path(os.environ.get("LOAD", Path(__file__).with_name("load.json"))).read_text(encoding="utf-8"))
WORDS = [
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state",
]  # fmt: skip
SECONDS: dict[str, list[float]] = {"ttft": [], "tpot": [], "latency": []}
FAILED: list[str] = []
CONNECTIONS, ANSWER_S = 1000, 600


def gap_seconds() -> float:
    """Time to the next arrival."""
    rate, kind = LOAD["requests_per_s"], LOAD["arrivals"]
    if kind == "uniform":
        return 1.0 / rate
    if kind == "gamma":
        shape = 1.0 / (LOAD["burstiness"] or 1.0) ** 2
        return random.gammavariate(shape, 1.0 / (rate * shape))
    return random.expovariate(rate)


class PlannedUser(HttpUser):
    """All requests: one user sends them, each in a greenlet of its own."""

    def on_start(self) -> None:
        """Ask for the name of the model, and how many tokens it makes of a word."""
        self.client.mount(self.host, HTTPAdapter(pool_maxsize=CONNECTIONS))
        self.lengths = itertools.cycle(LOAD["lengths"])
        self.model = self.client.get("/v1/models", name="models").json()["data"][0]["id"]
        text = " ".join(WORDS)
        body = {"input": text} if LOAD["api"] == "embeddings" else {"prompt": text, "max_tokens": 1}
        reply = self.client.post(f"/v1/{LOAD['api']}", json={"model": self.model, **body}, name="tokens of a word")
        self.word_tokens = reply.json()["usage"]["prompt_tokens"] / len(WORDS)
        self.shared = self.words(LOAD["shared_prefix_tokens"], random.Random(0))
        self.end = time.monotonic() + LOAD["seconds"]
        self.running: list[Any] = []

    @task
    def send(self) -> None:
        """Send requests until the time is up, wait for their answers, and stop."""
        if LOAD["requests_per_s"] is None:
            self.running = [gevent.spawn(self.stream) for _ in range(LOAD["concurrency"])]
        else:
            while time.monotonic() < self.end:
                self.running.append(gevent.spawn(self.request))
                gevent.sleep(gap_seconds())
        gevent.joinall(self.running)
        self.environment.runner.quit()

    def words(self, tokens: int, source: random.Random) -> str:
        """Words with about `tokens` tokens."""
        return " ".join(source.choices(WORDS, k=max(round(tokens / self.word_tokens), 0)))

    def stream(self) -> None:
        """One request after the other."""
        while time.monotonic() < self.end:
            self.request()

    def request(self) -> None:
        """One request, with the times of its tokens."""
        prompt_tokens, answer_tokens = next(self.lengths)
        own = self.words(prompt_tokens - LOAD["shared_prefix_tokens"], random.Random())
        text = f"{self.shared} {own}".strip()
        if LOAD["api"] == "embeddings":
            body: dict[str, Any] = {"model": self.model, "input": text}
        else:
            body = {
                "model": self.model,
                "prompt": text,
                "max_tokens": answer_tokens,
                "ignore_eos": True,
                "stream": True,
            }
            body["stream_options"] = {"include_usage": True}
        start, first, tokens = time.perf_counter(), None, 0
        sent = self.client.post(f"/v1/{LOAD['api']}", json=body, stream=True, catch_response=True, timeout=ANSWER_S)
        with sent as reply:
            try:
                reply.raise_for_status()
                if LOAD["api"] == "embeddings":
                    reply.text  # noqa: B018 - reads it
                else:
                    for line in reply.iter_lines():
                        if line.startswith(b"data: {"):
                            first = first or time.perf_counter()
                            tokens = ((json.loads(line[6:]).get("usage")) or {}).get("completion_tokens", tokens + 1)
            except Exception as error:  # noqa: BLE001 - whatever ends a request is counted
                FAILED.append(repr(error))
                reply.failure(error)
                return
            reply.success()
        end = time.perf_counter()
        self.record("latency", end - start)
        if first is not None:
            self.record("ttft", first - start)
            if tokens > 1:
                self.record("tpot", (end - first) / (tokens - 1))

    def record(self, name: str, seconds: float) -> None:
        """Keep a time, and show it among Locust's figures."""
        SECONDS[name].append(seconds)
        self.environment.events.request.fire(
            request_type="TIME", name=name, response_time=1000 * seconds, response_length=0, exception=None, context={}
        )


@events.quitting.add_listener
def check_targets(environment: Any, **_: Any) -> None:
    """Print the targets that are met; a failed request, or a target without figures, is a miss."""
    missed = [f"{len(FAILED)} requests failed, the first with {FAILED[0]}"] if FAILED else []
    for name, target in LOAD["targets"].items():
        times = sorted(SECONDS[name])
        if not times:
            missed.append(f"{name}: no request was answered")
            continue
        share = target["share"]
        value = sum(times) / len(times) if share is None else times[min(int(share * len(times)), len(times) - 1)]
        what = "mean" if share is None else f"p{100 * share:g}"
        print(f"{name} {what}: {value:.3f} s, target {target['seconds']:g} s, {len(times)} requests")
        if value > target["seconds"]:
            missed.append(f"{name} {what} is {value:.3f} s, over its target of {target['seconds']:g} s")
    for text in missed:
        print(f"missed: {text}")
    environment.process_exit_code = 1 if missed else 0
