"""What a container or a machine runs: the words of a command, its environment, and where it listens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from flopwise.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program with its arguments; of several machines the same on each.

    `files`: what it reads, by paths below its working folder, with their text. `env` holds plain values,
    `secret_env` for a variable the setting (`weights_secret`) of the secret that holds it.
    """

    args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    port: int | None = None
    health_path: str = ""
    metrics_path: str = ""
    metrics_port: int | None = None  # where metrics stand on a port of their own
    assumptions: tuple[str, ...] = ()


def with_slots(text: str, command: Command, first: int = 0) -> str:
    """A command of one of several replicas on a machine, each on ports of its own by the shell's `slot`."""
    ports = {"--port": (command.port, first), "--prometheus-port": (command.metrics_port, 0)}
    for option, (port, above) in ports.items():
        before, found, after = text.rpartition(f"{option} {port}")
        if found:
            added = f"{port} + {above} + slot" if above else f"{port} + slot"
            text = f'{before}{option} "$(({added}))"{after}'
    return text
