"""The training command of a plan, by its stack: the program that torchrun starts on every machine, with its files.

Environment variables give the number of the machine and the address of the first one: PET_NODE_RANK and
PET_MASTER_ADDR, and PET_MASTER_PORT if it is not 29500 (torchrun reads its options from variables of that prefix).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from flopwise.exports import hugging_face
from flopwise.exports.command import Command
from flopwise.exports.deployment import Deployment
from flopwise.exports.launch import launcher
from flopwise.exports.targets import megatron, torchtitan
from flopwise.values import replace


class TrainingProgram(NamedTuple):
    """A program that torchrun can start: its command without the launcher, and reasons why it cannot run a plan."""

    command: Callable[[Deployment], Command]
    refusals: Callable[[Deployment], Iterator[str]]


TRAINER = TrainingProgram(hugging_face.trainer_command, hugging_face.refusals)
MEGATRON = TrainingProgram(megatron.command, megatron.refusals)
TORCHTITAN = TrainingProgram(torchtitan.command, torchtitan.refusals)


def programs(deployment: Deployment) -> tuple[TrainingProgram, ...]:
    """Programs for a plan, preferred ones first: that of its stack, then transformers' Trainer if it fits."""
    stack = deployment.candidate.layout["stack"]
    if stack.startswith(("megatron", "nemo")):
        return (MEGATRON, TRAINER)
    if stack.startswith("fsdp"):
        return (TORCHTITAN, TRAINER) if deployment.task == "pretrain" else (TRAINER, TORCHTITAN)
    return (TRAINER,)


def training_command(deployment: Deployment) -> Command:
    """The command of each machine of a run, the same on all, with the first program that can run the plan."""
    first = next(program for program in programs(deployment) if not any(program.refusals(deployment)))
    made = first.command(deployment)
    return replace(made, args=(*launcher(deployment), *made.args))


def training_refusals(deployment: Deployment) -> Iterator[str]:
    """Reasons why no program can train the plan; empty if one can."""
    reasons = [list(program.refusals(deployment)) for program in programs(deployment)]
    if all(reasons):
        yield from dict.fromkeys(reason for of_program in reasons for reason in of_program)
