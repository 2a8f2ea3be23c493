"""What a container or a machine runs: the words of a command, its environment, and where it listens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
    assumptions: tuple[str, ...] = ()
