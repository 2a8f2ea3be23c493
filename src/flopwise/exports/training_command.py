"""The command that trains a plan, by its stack: what torchrun starts on every machine, with the files that it reads.

Whoever starts it says by environment variables which machine it is and where the first one is: PET_NODE_RANK and
PET_MASTER_ADDR, and PET_MASTER_PORT where it is not 29500 (torchrun reads its options from variables of that prefix).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from flopwise.exports import hugging_face
from flopwise.exports.command import Command
from flopwise.exports.deployment import Deployment
from flopwise.exports.launch import launcher
from flopwise.exports.targets import megatron, torchtitan


class TrainingProgram(NamedTuple):
    """What torchrun may start: its command without the launcher, and why it cannot run a plan."""

    command: Callable[[Deployment], Command]
    refusals: Callable[[Deployment], Iterator[str]]


TRAINER = TrainingProgram(hugging_face.trainer_command, hugging_face.refusals)
MEGATRON = TrainingProgram(megatron.command, megatron.refusals)
TORCHTITAN = TrainingProgram(torchtitan.command, torchtitan.refusals)


def programs(deployment: Deployment) -> tuple[TrainingProgram, ...]:
    """What may train a plan, best first: the program of its stack, then transformers' Trainer where it fits."""
    stack = deployment.candidate.layout["stack"]
    if stack.startswith("megatron"):
        return (MEGATRON, TRAINER)
    if stack.startswith("fsdp"):
        return (TORCHTITAN, TRAINER) if deployment.task == "pretrain" else (TRAINER, TORCHTITAN)
    return (TRAINER,)


def training_command(deployment: Deployment) -> Command:
    """What each machine of a run starts, alike on all, by the first program that can run it."""
    first = next(program for program in programs(deployment) if not any(program.refusals(deployment)))
    made = first.command(deployment)
    return replace(made, args=(*launcher(deployment), *made.args))


def training_refusals(deployment: Deployment) -> Iterator[str]:
    """Why no program can train the plan; nothing where one can."""
    reasons = [list(program.refusals(deployment)) for program in programs(deployment)]
    if all(reasons):
        yield from dict.fromkeys(reason for of_program in reasons for reason in of_program)
