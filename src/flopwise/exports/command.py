"""The command of a container or a machine: its words, environment and port."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from flopwise.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program with its arguments, the same on all machines.

    `files`: text of the files that it reads, by path in its working folder. `env`: variables with plain values.
    `secret_env`: variables by the setting that names their secret (`weights_secret`). `address_env`: the variable for
    the address at which other servers reach this one. `port_env`: variables of further ports: the first one, and how
    many each server takes. `annotations`: of its pods on Kubernetes.
    """

    args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, str] = field(default_factory=dict)
    address_env: str = ""
    port_env: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    port: int | None = None
    health_path: str = ""
    metrics_path: str = ""
    metrics_port: int | None = None  # if metrics have a separate port
    bootstrap_port: int | None = None  # where servers of another pool ask for caches, if an option names it
    assumptions: tuple[str, ...] = ()


def with_slots(text: str, command: Command, first: int = 0) -> str:
    """The command of one of several replicas on a machine, with ports that depend on the shell's `slot`."""
    ports = {"--port": (command.port, first), "--prometheus-port": (command.metrics_port, 0)}
    ports["--disaggregation-bootstrap-port"] = (command.bootstrap_port, 0)
    for option, (port, above) in ports.items():
        before, separator, after = text.rpartition(f"{option} {port}")
        if separator:
            added = f"{port} + {above} + slot" if above else f"{port} + slot"
            text = f'{before}{option} "$(({added}))"{after}'
    return text
