"""Listening, and serving until interrupted."""

from __future__ import annotations

import socket
from socket import AddressFamily

import click
import uvicorn

from flopwise.web.guard import Access
from flopwise.web.server import create_app

MOST_CONNECTIONS = 256
IDLE_S = 15


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises: OSError: names the address."""
    family = AddressFamily.AF_INET6 if ":" in host else AddressFamily.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family, backlog=128)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), f"{host}:{port}") from None


def serve(bound: socket.socket, group: click.Group, access: Access) -> None:
    """Serve the commands of `group` until interrupted; requests are not logged, since their addresses are questions."""
    config = uvicorn.Config(
        create_app(group, access), log_level="warning", access_log=False, server_header=False, lifespan="on",
        limit_concurrency=MOST_CONNECTIONS, timeout_keep_alive=IDLE_S, timeout_graceful_shutdown=3,
        proxy_headers=False, ws="none",
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[bound])
