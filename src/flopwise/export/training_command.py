"""The command that trains a plan, by its stack: what torchrun starts on every machine, with the files that it reads.

Whoever starts it says by environment variables which machine it is and where the first one is: PET_NODE_RANK and
PET_MASTER_ADDR, and PET_MASTER_PORT where it is not 29500 (torchrun reads its options from variables of that prefix).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flopwise.export import hugging_face
from flopwise.export.command import Command
from flopwise.export.deployment import Deployment
from flopwise.export.launch import launcher


def training_command(deployment: Deployment) -> Command:
    """What each machine of a run starts; alike on all."""
    made = hugging_face.trainer_command(deployment)
    return replace(made, args=(*launcher(deployment), *made.args))


def training_refusals(deployment: Deployment) -> Iterator[str]:
    """Why no command of these can train the plan."""
    yield from hugging_face.refusals(deployment)
