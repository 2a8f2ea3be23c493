"""What the tests of the web ask, and a server that they share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.testclient import TestClient

from flopwise import cli
from flopwise.cli.app import app
from flopwise.web import pool
from flopwise.web.guard import Access
from flopwise.web.server import Limits, create_app

HOST = "localhost"
TIMED = ("elapsed_s",)
"""Keys that say how long an answer took."""


@contextmanager
def client(limits: Limits | None = None, token: str | None = None) -> Iterator[TestClient]:
    """A client of a server in this process, whose questions other processes answer; none is warmed up for a person."""
    application = create_app(app, Access.of(HOST, token), limits)
    with pytest.MonkeyPatch.context() as here:
        here.setattr(pool, "WARM_UP", ())
        with TestClient(application, base_url=f"http://{HOST}") as one:
            yield one


def printed(argv: list[str], capsys: Any) -> Any:
    """What the command line prints with --json, without what is different each time."""
    cli.main([*argv, "--json"])
    return untimed(json.loads(capsys.readouterr().out))


def untimed(document: Any) -> Any:
    return {k: v for k, v in document.items() if k not in TIMED} if isinstance(document, dict) else document
