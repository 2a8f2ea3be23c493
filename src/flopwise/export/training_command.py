"""The command that trains a plan, by its stack: what `torchrun` starts on every machine, with the files it reads.

Whoever starts it says by environment variables which machine it is, and where the first one is: PET_NODE_RANK and
PET_MASTER_ADDR (torchrun reads its options from variables of that prefix); PET_MASTER_PORT if not 29500.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flopwise.export import hugging_face
from flopwise.export.command import Command
from flopwise.export.deployment import Deployment


def training_command(deployment: Deployment) -> Command:
    """What each machine of a run starts; alike on all."""
    made = hugging_face.command(deployment)
    return replace(made, args=(*torchrun(deployment), *made.args))


def training_refusals(deployment: Deployment) -> Iterator[str]:
    """Why no command of these can train the plan."""
    yield from hugging_face.refusals(deployment)


def torchrun(deployment: Deployment) -> tuple[str, ...]:
    """The launcher: one process for each accelerator of each machine."""
    nodes, each = deployment.num_nodes, deployment.gpus_per_node
    return ("torchrun", "--nnodes", str(nodes), "--nproc-per-node", str(each))
