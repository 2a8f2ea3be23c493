"""torchrun on each machine of a run, the script that starts it, and the numbers of steps that any trainer is told."""

from __future__ import annotations

import math

from flopwise.exports.command import Command
from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import command_text, comment_text, script_text
from flopwise.exports.exported import Files
from flopwise.training.run import job_goodput
from flopwise.values import dataclass

MEETING = """: "${PET_NODE_RANK:?the number of this machine, from 0}"
: "${PET_MASTER_ADDR:?the address of machine 0}"
export PET_NODE_RANK PET_MASTER_ADDR"""
"""Variables that run.sh requires on each of several machines; torchrun reads its options from them."""


def launcher(deployment: Deployment) -> tuple[str, ...]:
    """The launcher, torchrun, with one process for each accelerator of each machine."""
    nodes, each = deployment.num_nodes, deployment.gpus_per_node
    return ("torchrun", "--nnodes", str(nodes), "--nproc-per-node", str(each))


def run_title(deployment: Deployment) -> str:
    """The comment at the top of a script."""
    chosen = deployment.candidate
    return f"{deployment.title}: {chosen.num_instances} x {chosen.instance}, {chosen.num_gpus} processes."


def launch_files(deployment: Deployment, one: Command, *, here: bool = True, last: int = 0) -> Files:
    """`run.sh` for each machine, with the files of the command; its arguments are passed to the program.

    `here`: it runs in the folder of its files, else in the current folder. `last`: words of the command after the
    arguments of run.sh.
    """
    nodes = deployment.num_nodes
    parts = [comment_text(run_title(deployment)), *(['cd "$(dirname "$0")"'] if here else [])]
    start = "./run.sh"
    if nodes > 1:
        parts.append(MEETING)
        start = f"PET_MASTER_ADDR=... PET_NODE_RANK=N ./run.sh  # on each machine, N from 0 to {nodes - 1}"
    if one.env:
        parts.append(f"export {command_text((), one.env)}")
    words, after = (one.args[:-last], one.args[-last:]) if last else (one.args, ())
    parts.append(f'exec {command_text(words)} "$@" {command_text(after)}'.rstrip())
    return Files(files={**one.files, "run.sh": script_text(*parts)}, apply=(start,), assumptions=one.assumptions)


LEFT_TO_USER = (
    "the plan does not set the learning rate, its schedule, weight decay and clipping: they are the trainer's "
    "defaults unless arguments of the command change them"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """Figures of a run in steps."""

    steps: int  # of the whole run
    accumulation: int  # micro-batches of a step through one replica
    checkpoint_steps: int  # between checkpoints


def step_counts(deployment: Deployment) -> StepCounts:
    """Number of steps of the run, and between checkpoints, at least 1.

    Source: tokens over tokens of a step; Daly's interval (`training.goodput`) over the time of a step.
    Assumes: steps take as long as planned.
    """
    job = deployment.train_job
    assert job.tokens is not None
    steps = max(1, math.ceil(job.tokens / job.recipe.useful_tokens - 1e-9))
    step_s = deployment.candidate.figures["step_s"]
    assert step_s is not None
    between = max(1, round(float(job_goodput(job)[1].interval_s) / step_s))
    return StepCounts(
        steps=steps, accumulation=round(job.micro_batches), checkpoint_steps=min(between, steps),
    )  # fmt: skip
