"""Access control: requests from this machine or with the token, for the server's own name, from its own pages."""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flopwise.values import dataclass
from flopwise.web.problems import MEDIA_TYPE, ProblemError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""What every answer says to browsers."""


def is_loopback(host: str) -> bool:
    """True if only this machine reaches a server that listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Access:
    """Access rules: host names that requests may use (empty: any), and the token, if one is required."""

    hosts: frozenset[str]
    token: str | None = None

    @classmethod
    def of(cls, host: str, token: str | None) -> Access:
        """The rules of a server at `host`: any host name with a token, otherwise only those of this machine."""
        return cls(frozenset() if token and not is_loopback(host) else frozenset({*LOOPBACK, host.strip("[]")}), token)

    def check(self, headers: Headers, *, api: bool) -> None:
        """Let a request pass. Raises: ProblemError."""
        named = headers.getlist("host")
        host = _host_name(named[0]) if len(named) == 1 else ""
        if not host or (self.hosts and host not in self.hosts):
            allowed = ", ".join(sorted(self.hosts)) or "one name"
            raise ProblemError("forbidden", f"the request is for the host {host[:80]!r}; this server is {allowed}")
        if not api:
            return
        origin = headers.get("origin")
        if headers.get("sec-fetch-site", "none") == "cross-site" or (
            origin is not None and urlsplit(origin).netloc != named[0]
        ):
            raise ProblemError("forbidden", "requests from pages of other origins are refused")
        if self.token is not None:
            given = headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
                raise ProblemError("unauthorized", "send the header `Authorization: Bearer TOKEN`; see `flopwise web`")


def _host_name(text: str) -> str:
    """The name in a Host header, without its port."""
    try:
        return (urlsplit(f"//{text}").hostname or "").lower()
    except ValueError:
        return ""


class Guard:
    """Lets requests through that may ask, and adds `HEADERS` to every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        """Pages need no token: they hold no answers."""
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, text in HEADERS.items():
                    headers.setdefault(name, text)
            await send(message)

        try:
            self._access.check(Headers(scope=scope), api=scope["path"].startswith("/api/"))
        except ProblemError as problem:
            more = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else {}
            refusal = Response(problem.body(), problem.status, more, MEDIA_TYPE)
            await refusal(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)
