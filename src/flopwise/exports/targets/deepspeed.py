"""DeepSpeed: its JSON for the plan's ZeRO stage, with the train.py whose TrainingArguments name it."""

from __future__ import annotations

from collections.abc import Iterator

from flopwise.exports import hugging_face
from flopwise.exports.deployment import Deployment
from flopwise.exports.exported import Files
from flopwise.exports.launch import launch_files, launcher
from flopwise.facts.software import platform
from flopwise.values import replace


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why DeepSpeed's ZeRO cannot run the plan."""
    yield from hugging_face.refusals(deployment, "deepspeed")
    built_for = platform(deployment.accelerator)
    if built_for == "apple":
        yield "DeepSpeed does not run on Apple's devices; plan again with --stack hf-trainer"


def export(deployment: Deployment) -> Files:
    """`deepspeed.json`, the program with its arguments, and `run.sh`."""
    arguments = hugging_face.training_arguments(deployment, "deepspeed")
    one = hugging_face.program(deployment, "deepspeed", arguments)
    return launch_files(deployment, replace(one, args=(*launcher(deployment), *one.args)))
