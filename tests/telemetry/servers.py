"""A real Prometheus, with recorded blocks or scraping a page, and a page that receives posts."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from setup_beside import wait_for_setup


def program(name: str) -> str:
    """The path of a program; without it the test is skipped, but not in CI."""
    wait_for_setup()
    found = shutil.which(name)
    if found is None:
        if os.environ.get("CI"):
            raise AssertionError(f"{name} is not installed: apt-get install prometheus")
        pytest.skip(f"{name} is not installed")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def prometheus(config: str = "{}", recorded: str = "", port: int = 0) -> Iterator[tuple[str, Callable[[], None]]]:
    """A server on loopback with `recorded` OpenMetrics in its blocks: its address, and what ends it."""
    port = port or free_port()
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+") as log:
        place = Path(folder)
        (place / "prometheus.yml").write_text(config)
        (place / "tsdb").mkdir()
        if recorded:
            (place / "recorded.om").write_text(recorded)
            made = [program("promtool"), "tsdb", "create-blocks-from", "openmetrics", "recorded.om", "tsdb"]
            subprocess.run(made, cwd=place, check=True, capture_output=True)
        server = subprocess.Popen(
            [program("prometheus"), "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb",
             f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"], cwd=place, stdout=log, stderr=log,
        )  # fmt: skip

        def end() -> None:
            server.terminate()
            server.wait()

        try:
            assert until(lambda: _ready(f"http://127.0.0.1:{port}/-/ready")), (place / "log").read_text()
            yield f"http://127.0.0.1:{port}", end
        finally:
            end()


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:  # noqa: S310 - loopback
            return bool(answer.status == 200)
    except OSError:
        return False


def until(condition: Callable[[], bool], seconds: float = 120.0) -> bool:
    """Whether it comes to hold."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


class _Server:
    """A page whose text a function makes, and that keeps what is posted to it."""

    def __init__(self, text: Callable[[str], str] = lambda _: "", codes: tuple[int, ...] = ()) -> None:
        self.posted: list[dict[str, Any]] = []
        self.asked = 0
        outer, answers = self, list(codes)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, text(self.path).encode())

            def do_POST(self) -> None:
                outer.asked += 1
                body = self.rfile.read(int(self.headers["Content-Length"]))
                code = answers.pop(0) if answers else 200
                if code == 200:
                    outer.posted.append(json.loads(body))
                self._answer(code, b"")

            def _answer(self, code: int, body: bytes) -> None:
                self.send_response(code)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def web_server(text: Callable[[str], str] = lambda _: "", codes: tuple[int, ...] = ()) -> Iterator[_Server]:
    """On loopback; `codes`: what the first posts are answered with."""
    server = _Server(text, codes)
    try:
        yield server
    finally:
        server.close()
