"""The server of a replica, whichever engine its plan is for: what containers, tasks and queues run."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from flopwise.export.command import Command
from flopwise.export.deployment import Deployment

SERVERS = {
    "vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "tensorrt_llm", "llama.cpp": "llamacpp", "tgi": "tgi",
}  # fmt: skip
"""Engines with the module of their target."""


def serving_command(deployment: Deployment) -> Command:
    """The server of one replica of a service, or of its share of a batch, that `serving_refusals` has no word against.

    A replica on several machines is started on each, with NODE_RANK, its number from 0, and MASTER_ADDR, the address of
    the first; a share of a batch with REPLICA, its number from 0.
    """
    made: Command = _server(deployment).command(deployment)
    return made


def serving_refusals(deployment: Deployment) -> Iterator[str]:
    """Why no server of these can run the plan."""
    assert deployment.serving is not None
    engine = deployment.serving.engine.name
    if engine in SERVERS:
        yield from _server(deployment).refusals(deployment)
    else:
        yield f"{engine} has no server among the exports: plan again with --engine {', '.join(SERVERS)}"


def _server(deployment: Deployment) -> Any:
    """The module of the target that is the plan's engine."""
    assert deployment.serving is not None
    return import_module(f"flopwise.export.targets.{SERVERS[deployment.serving.engine.name]}")
