"""Pages of HTTP servers: a password goes to the server that it is of, and nowhere else."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from flopwise.errors import SpecError
from flopwise.pages import http_address, page_bytes, shown_address
from flopwise.telemetry.prometheus import PrometheusSource
from flopwise.telemetry.readings import SourceLostError

BASIC = "Basic " + base64.b64encode(b"an:o@e:pass").decode()


@contextmanager
def server(redirect: str = "", body: bytes = b"page") -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """Its address without a scheme, and (path, Authorization) of what was asked."""
    asked: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Authorization")))
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(302 if redirect else 200)
            if redirect:
                self.send_header("Location", redirect)
            self.send_header("Content-Length", "0" if redirect else str(len(body)))
            self.end_headers()
            self.wfile.write(b"" if redirect else body)

        do_POST = do_GET  # noqa: N815 - its name in http.server

        def log_message(self, *_: object) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as one:
        threading.Thread(target=one.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{one.server_port}", asked
        one.shutdown()


def test_a_password_is_sent_to_its_server_and_not_where_that_one_sends_us() -> None:
    with server() as (other, there), server(f"http://{other}/elsewhere") as (first, here):
        assert page_bytes(f"http://an:o%40e%3Apass@{first}/x", timeout_s=5, most_bytes=100) == b"page"
    assert here == [("/x", BASIC)]
    assert there == [("/elsewhere", None)]


def test_a_prometheus_server_that_redirects_gives_no_password_away() -> None:
    with server() as (other, there), server(f"http://{other}/api") as (first, here):
        source = PrometheusSource(f"http://an:o%40e%3Apass@{first}/prom/", [], interval_s=5.0, history_s=60.0)
        assert source.title == f"Prometheus at http://{first}/prom"
        with pytest.raises(SourceLostError, match="does not answer"):
            source.readings()
    assert here == [("/prom/api/v1/query", BASIC)]
    assert [auth for _, auth in there] == [None]


def test_an_address_is_shown_without_its_password() -> None:
    assert shown_address("http://u:p@h:9/x?q=1") == "http://h:9/x?q=1"
    assert shown_address("http://h/x") == "http://h/x"
    assert http_address("u:p@h:9", "url") == "http://u:p@h:9"
    for wrong in ("ftp://u:secret@h", "http://u:secret@", "http://u:secret@h:x", "http://u:secret@[h"):
        with pytest.raises(SpecError, match="give the server's address") as told:
            http_address(wrong, "url")
        assert "secret" not in str(told.value)


def test_a_page_that_is_too_large_or_cut_off_cannot_be_had() -> None:
    with server(body=b"x" * 101) as (first, _), pytest.raises(OSError, match="larger than 100 bytes"):
        page_bytes(f"http://{first}", timeout_s=5, most_bytes=100)


@pytest.mark.parametrize("sent", [b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n"])
def test_a_server_that_sends_a_byte_from_time_to_time_is_not_waited_for(sent: bytes) -> None:
    """Each read is short, in the headers and in the body; all of them together may take no longer than one timeout."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def trickle() -> None:
            with listener.accept()[0] as one, suppress(OSError):
                one.sendall(sent)
                for _ in range(200):
                    time.sleep(0.05)
                    one.sendall(b"a")

        threading.Thread(target=trickle, daemon=True).start()
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            page_bytes(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.5, most_bytes=10_000)
        assert time.monotonic() - start < 5
