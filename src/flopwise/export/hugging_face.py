"""The exported train.py, which runs Hugging Face's Trainer, and the files it reads."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from flopwise.export.command import Command
from flopwise.export.deployment import Deployment
from flopwise.export.emit import json_text
from flopwise.export.step_counts import LEFT_TO_USER, step_counts

PROGRAM = "train.py"
ARGUMENTS = "training_arguments.json"


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why Trainer cannot run the plan's layout."""
    layout = deployment.candidate.layout
    for degree, what in (("pp", "pipeline"), ("tp", "tensor"), ("cp", "context"), ("ep", "expert")):
        if layout[degree] > 1:
            yield f"Trainer has no {what} parallelism ({degree} {layout[degree]}); plan again with --{degree} 1"


def command(deployment: Deployment) -> Command:
    """The program with its arguments and files, without its launcher."""
    program = deployment.settings.script or PROGRAM
    made = {ARGUMENTS: json_text(training_arguments(deployment))}
    if deployment.settings.script is None:
        made[PROGRAM] = files("flopwise.export").joinpath("programs", PROGRAM).read_text(encoding="utf-8")
    return Command(
        args=(program, ARGUMENTS), secret_env={"HF_TOKEN": "weights_secret"}, files=made, assumptions=(LEFT_TO_USER,)
    )  # fmt: skip


def training_arguments(deployment: Deployment) -> dict[str, Any]:
    """Fields of transformers.TrainingArguments that the plan sets."""
    layout, run = deployment.candidate.layout, step_counts(deployment)
    return {
        "output_dir": deployment.value("output"),
        "max_steps": run.steps,
        "per_device_train_batch_size": layout["micro_batch"],
        "gradient_accumulation_steps": run.accumulation,
        "save_strategy": "steps",
        "save_steps": run.checkpoint_steps,
        "bf16": layout["precision"] == "bf16",
        "fp16": layout["precision"] == "fp16",
        "gradient_checkpointing": layout["recompute"] != "none",
    }
