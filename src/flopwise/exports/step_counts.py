"""Settings of a plan's run for any trainer: steps, batches, checkpoints."""

from __future__ import annotations

import math

from flopwise.exports.deployment import Deployment
from flopwise.training.run import job_goodput
from flopwise.values import dataclass

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
