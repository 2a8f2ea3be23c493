"""Pages of HTTP servers: a user and password in an address go to that server alone, and are shown to nobody."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any

from flopwise.errors import SpecError


def shown_address(url: str) -> str:
    """`url` without its user and password: as messages and files may have it."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def http_address(url: str, what: str) -> str:
    """`url`, with http:// where it names no scheme.

    Raises: SpecError: it is no address of HTTP; says so of `what`, without the password.
    """
    try:
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:  # a port that is none raises
            return urllib.parse.urlunsplit(parts)
    except ValueError:  # or brackets that do not close
        pass
    shown = url.rpartition("@")[2]
    raise SpecError(
        f"{what}: give the server's address, such as http://localhost:8000; {shown[:200]!r} is none of HTTP"
    )


def page_bytes(
    url: str, *, timeout_s: float, most_bytes: int, form: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:  # fmt: skip
    """The body of a page, `form` posted where it is given; credentials of the address are not sent on by redirects.

    Raises:
        OSError: it cannot be had within `timeout_s`, is larger than `most_bytes`, or is no answer of HTTP; HTTPError: a
            code above 399.
    """
    parts = urllib.parse.urlsplit(url)
    data = None if form is None else urllib.parse.urlencode(form).encode()
    request = urllib.request.Request(shown_address(url), data=data, headers=dict(headers or {}))  # noqa: S310 - http(s)
    if parts.username is not None:
        user = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        token = base64.b64encode(user.encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {token}")
    try:
        with answer_within(request, timeout_s) as answer:
            body = bytes(answer.read(most_bytes + 1))
    except (HTTPException, ValueError) as fault:
        raise OSError(str(fault) or type(fault).__name__) from None
    if len(body) > most_bytes:
        raise OSError(f"larger than {most_bytes:,} bytes")
    return body


@contextlib.contextmanager
def answer_within(request: urllib.request.Request, timeout_s: float) -> Iterator[Any]:
    """The server's answer, whose body can be read: the connection ends after `timeout_s`, however slowly it sends.

    A timeout of urllib is one of each read: a server that sends a byte from time to time would never end it.

    Raises: OSError: no answer in time, or none of HTTP; HTTPError: a code above 399.
    """
    sockets, is_late = list[socket.socket](), threading.Event()

    def end() -> None:
        is_late.set()
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(timeout_s, end)
    timer.daemon = True
    timer.start()
    try:
        opener = urllib.request.build_opener(_PlainHandler(sockets), _SafeHandler(sockets))
        with opener.open(request, timeout=timeout_s) as answer:
            yield answer
            if is_late.is_set():  # what was read ends in the middle
                raise TimeoutError("timed out")
    except (OSError, HTTPException, ValueError):
        if is_late.is_set():
            raise TimeoutError("timed out") from None
        raise
    finally:
        timer.cancel()


def _noting(kind: type[HTTPConnection], sockets: list[socket.socket]) -> type[HTTPConnection]:
    """Connections of a kind that note their sockets."""

    class Noting(kind):  # type: ignore[valid-type,misc] # http or https
        def connect(self) -> None:
            super().connect()
            sockets.append(self.sock)

    return Noting


class _PlainHandler(urllib.request.HTTPHandler):
    """Opens http addresses, and notes the sockets."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        super().__init__()
        self._connection = _noting(HTTPConnection, sockets)

    def http_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(self._connection, request)


class _SafeHandler(urllib.request.HTTPSHandler):
    """Opens https addresses, and notes the sockets."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        super().__init__()
        self._connection = _noting(HTTPSConnection, sockets)

    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(self._connection, request)
