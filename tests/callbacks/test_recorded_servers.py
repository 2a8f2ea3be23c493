"""Recording servers: a middleware around an application that is driven by hand, and the metrics of an engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, MutableMapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from read_back import Recorded

from flopwise.callbacks import EngineRecorder, RecordingMiddleware
from flopwise.errors import SpecError, UnknownNameError

Message = MutableMapping[str, Any]


async def application(scope: Message, receive: Any, send: Any) -> None:
    """Answers by path: in one piece, in four, with an error, or not at all."""
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
    path = scope["path"]
    if path == "/broken":
        raise RuntimeError("no")
    await send({"type": "http.response.start", "status": 500 if path == "/error" else 200, "headers": []})
    if path == "/endless":
        await asyncio.sleep(600)
    if path == "/stream":
        await asyncio.sleep(0.05)
        for _ in range(4):
            await send({"type": "http.response.body", "body": b"token", "more_body": True})
            await asyncio.sleep(0.02)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    else:
        await send({"type": "http.response.body", "body": b"whole"})


async def no_message() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def answered(app: Any, path: str) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await app({"type": "http", "path": path, "method": "GET", "headers": []}, no_message, send)
    return sent


def test_answers_are_passed_on_as_they_are_and_measured(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    app = RecordingMiddleware(application, store=path, name="chat", price_usd_per_hour=2.0)

    async def drive() -> None:
        messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

        async def receive() -> Message:
            message = next(messages)
            if message["type"] == "lifespan.shutdown":
                stream = await answered(app, "/stream")
                assert [m.get("body") for m in stream[1:]] == [b"token"] * 4 + [b""]
                await asyncio.gather(*(answered(app, "/whole") for _ in range(5)))
                await answered(app, "/error")
                await answered(app, "/health")
                with pytest.raises(RuntimeError, match="no"):
                    await answered(app, "/broken")
            return message

        sent: list[str] = []

        async def send(message: Message) -> None:
            sent.append(message["type"])

        await app({"type": "lifespan"}, receive, send)
        assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

    asyncio.run(drive())
    saved = Recorded.of(path)
    assert (saved.run.name, saved.run.task, saved.run.status) == ("chat", "serve", "finished")
    assert len(saved.values("ttfb_s")) == 7  # all but the health check and what was not answered
    assert sorted(saved.values("chunks")) == [1, 1, 1, 1, 1, 4]
    assert saved.values("ttft_s")[0] >= 0.05
    assert saved.values("itl_s")[0] >= 0.02
    assert saved.values("e2e_s").max() >= 0.05 + 4 * 0.02
    assert saved.values("failed_requests")[-1] == 2
    assert sorted(saved.texts("failed_requests")) == [
        "1 requests failed: RuntimeError",
        "1 requests failed: status 500",
    ]
    assert saved.values("requests_running")[-1] == 0


def test_a_client_that_goes_away_is_a_failure_and_the_server_hears_of_it(tmp_path: Path) -> None:
    app = RecordingMiddleware(application, store=tmp_path / "runs.db")

    async def drive() -> None:
        task = asyncio.create_task(answered(app, "/endless"))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(drive())
    app.end()
    saved = Recorded.of(tmp_path / "runs.db")
    assert saved.texts("failed_requests") == ["1 requests failed: CancelledError"]
    assert len(saved.values("e2e_s")) == 0


def test_a_store_that_fails_does_not_fail_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise OSError("disk on fire")

    monkeypatch.setattr("flopwise.records.writer.Writer", refused)
    app = RecordingMiddleware(application, store=tmp_path / "runs.db")
    with pytest.warns(RuntimeWarning, match="disk on fire"):
        sent = asyncio.run(answered(app, "/whole"))
    assert sent[-1]["body"] == b"whole"


def page(requests: int, tokens: int, ttft_s: float, waiting: int = 3) -> str:
    """What vLLM shows after so many requests."""
    return f"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model_name="m",engine="0"}} 5.0
vllm:num_requests_running{{model_name="m",engine="1"}} 7.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{model_name="m"}} {waiting}
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0"}} 0.25
vllm:kv_cache_usage_perc{{engine="1"}} 0.35
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{{model_name="m"}} {requests // 10}
# TYPE vllm:request_success_total counter
vllm:request_success_total{{finished_reason="stop"}} {requests}
vllm:request_success_total{{finished_reason="length"}} 0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{model_name="m"}} {tokens}
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{le="+Inf"}} {requests}
vllm:time_to_first_token_seconds_sum {requests * ttft_s}
vllm:time_to_first_token_seconds_count {requests}
"""


class Exporter:
    """A server of metrics whose page the test sets; None: it answers with an error."""

    def __init__(self) -> None:
        self.page: str | None = ""
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if exporter.page is None or self.path != "/metrics":
                    self.send_error(503)
                    return
                self.send_response(200)
                self.end_headers()
                self.wfile.write(exporter.page.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    one = Exporter()
    yield one
    one.server.shutdown()
    one.server.server_close()


def test_an_engines_metrics_become_those_of_a_run(
    exporter: Exporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(np.arange(0.0, 1e4, 10.0))
    engine = EngineRecorder(exporter.url, store=tmp_path / "runs.db", price_usd_per_hour=3.6)
    engine.begin()
    monkeypatch.setattr("flopwise.callbacks.engine.time.perf_counter", lambda: float(next(clock)))
    engine._start_s = 0.0
    exporter.page = page(100, 5_000, 0.2)
    first = engine.scrape()
    assert engine.engine == "vllm"
    assert first == {"requests_running": 12, "requests_waiting": 3, "cache_frac": pytest.approx(0.3), "cost_usd": 0}
    exporter.page = page(150, 8_000, 0.2, waiting=0)
    second = engine.scrape()  # ten seconds later
    assert second["requests_per_s"] == 5
    assert second["tokens_per_s"] == 300
    assert second["tokens"] == 3_000
    assert second["ttft_s"] == pytest.approx(0.2)
    assert second["preemptions"] == 5
    assert second["cost_usd"] == pytest.approx(0.01)
    exporter.page = page(20, 1_000, 0.4)  # started again: counters from nothing
    third = engine.scrape()
    assert third["requests_per_s"] == 2
    assert third["tokens"] == 4_000
    assert third["ttft_s"] == pytest.approx(0.4)
    exporter.page = None
    assert engine.scrape() == engine.scrape() == {}
    exporter.page = page(30, 1_000, 0.4)
    engine.scrape()
    monkeypatch.undo()
    engine.end()
    saved = Recorded.of(tmp_path / "runs.db")
    kinds = [event.kind for event in saved.events]
    assert kinds == ["engine", "restart", "unreachable", "reachable"]
    assert "503" in saved.texts("unreachable")[0]
    assert (saved.run.task, saved.run.status) == ("serve", "finished")


def test_the_metrics_are_read_while_the_block_runs(exporter: Exporter, tmp_path: Path) -> None:
    exporter.page = page(10, 100, 0.1)
    with EngineRecorder(exporter.url, store=tmp_path / "runs.db", interval=0.02, name="load") as engine:
        while engine.latest.get("requests_per_s") is None:
            pass
    saved = Recorded.of(tmp_path / "runs.db")
    assert (saved.run.name, len(saved.values("requests_running")) >= 2) == ("load", True)


def test_engines_are_told_by_their_names_and_pages_of_others_are_none(exporter: Exporter, tmp_path: Path) -> None:
    engine = EngineRecorder(exporter.url, store=tmp_path / "runs.db")
    exporter.page = "# TYPE node_load1 gauge\nnode_load1 0.5\n"
    assert engine.scrape() == {}
    assert engine.engine is None
    exporter.page = "llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\n"
    assert engine.scrape() == {"requests_running": 2, "requests_waiting": 1}
    assert engine.engine == "llama.cpp"
    exporter.page = "{ no metrics at all"
    assert engine.scrape() == {}


@pytest.mark.parametrize("url", ["ftp://x", "file:///etc/passwd", "http://", ""])
def test_addresses_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(SpecError, match="is none of HTTP"):
        EngineRecorder(url)


def test_a_password_stands_in_no_record(exporter: Exporter, tmp_path: Path) -> None:
    engine = EngineRecorder(exporter.url.replace("//", "//an:secret@"), store=tmp_path / "runs.db")
    engine.begin()
    exporter.page = None
    engine.scrape()
    engine.end()
    saved = Recorded.of(tmp_path / "runs.db")
    assert "secret" not in repr((saved.run, saved.events))


def test_names_of_older_versions_are_known(exporter: Exporter, tmp_path: Path) -> None:
    engine = EngineRecorder(exporter.url, store=tmp_path / "runs.db")
    exporter.page = page(10, 100, 0.1).replace("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    assert engine.scrape()["cache_frac"] == pytest.approx(0.3)


def test_unknown_engines_and_intervals_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="vllm"):
        EngineRecorder("localhost", engine="vlm")
    with pytest.raises(SpecError, match="interval"):
        EngineRecorder("localhost", interval=0)
