"""An engine that plays pages: recorded ones, or the same with other numbers."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from flopwise.observations.observation import Watched, watch_engine
from named import FACTS

PAGES = Path(__file__).parent / "pages"


def page(engine: str) -> str:
    """The recorded page of an engine."""
    return next(PAGES.glob(f"{engine}*.txt")).read_text()


def times(text: str, factor: float) -> str:
    """The page with every number of the engine's `factor` times as large."""
    return re.sub(r"(?m)^((?!process_)[^#\n]+) (\S+)$", lambda m: f"{m[1]} {float(m[2]) * factor}", text)


class Clock:
    """A clock that only sleep moves."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-6)


def watched(pages: Sequence[str | Exception], seconds: float | None = None) -> Watched:
    """What watching these pages, one a second, gives; the last one stays."""
    clock, left = Clock(), list(pages)

    def read(url: str) -> str:
        del url
        held = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(held, Exception):
            raise held
        return held

    span = len(pages) - 1 if seconds is None else seconds
    return watch_engine("http://engine:8000", span, FACTS, page=read, clock=clock, sleep=clock.sleep)


@contextmanager
def exporter(pages: Sequence[str], path: str = "/metrics", user: str = "") -> Iterator[str]:
    """A server on loopback that gives the pages one after the other, to `user` (name:password) alone; its address."""
    left = list(pages)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if user and self.headers.get("Authorization") != f"Basic {b64encode(user.encode()).decode()}":
                self.send_error(401)
                return
            if self.path != path:
                self.send_error(404)
                return
            body = (left.pop(0) if len(left) > 1 else left[0]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has there
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
