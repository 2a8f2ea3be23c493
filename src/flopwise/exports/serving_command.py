"""The server command of a replica for the engine of its plan, for use in containers, tasks and queues."""

from __future__ import annotations

from importlib import import_module

from flopwise.errors import InfeasibleError
from flopwise.exports.command import Command
from flopwise.exports.deployment import Deployment
from flopwise.exports.replica import one_kind_refusals

SERVERS = {
    "vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "tensorrt_llm", "llama.cpp": "llamacpp", "tgi": "tgi",
    "tei": "tei",
}  # fmt: skip
"""Engines with the module of their target."""


def serving_command(deployment: Deployment) -> Command:
    """The server of one replica of a service, or of its share of a batch.

    A replica on several machines is started on each, with NODE_RANK, its number from 0, and MASTER_ADDR, the address of
    the first; a share of a batch with REPLICA, its number from 0.

    Raises:
        InfeasibleError: no server is exported for the engine, or it cannot run the plan; gives the reasons.
    """
    assert deployment.serving is not None
    engine, title = deployment.serving.engine.name, repr(deployment.title[:80])
    if engine not in SERVERS:
        reason = f"no server is exported for {engine}: plan again with --engine {', '.join(SERVERS)}"
        raise InfeasibleError(f"no server for {title}", [reason])
    server = import_module(f"flopwise.exports.targets.{SERVERS[engine]}")
    if reasons := list(one_kind_refusals(deployment)) or list(server.refusals(deployment)):
        raise InfeasibleError(f"{engine} cannot run {title}", reasons)
    made: Command = server.command(deployment)
    return made
