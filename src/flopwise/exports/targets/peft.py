"""PEFT: the adapters' configuration (LoRA, DoRA, QLoRA with bitsandbytes), with a train.py that trains them."""

from __future__ import annotations

from collections.abc import Iterator

from flopwise.exports import hugging_face
from flopwise.exports.deployment import Deployment
from flopwise.exports.exported import Files
from flopwise.exports.launch import launch_files, launcher
from flopwise.values import replace


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why PEFT cannot train the plan."""
    job = deployment.train_job
    if job.recipe.lora is None:
        yield "the plan trains all weights; plan again with adapters (--lora RANK or --qlora)"
    yield from hugging_face.refusals(deployment)


def export(deployment: Deployment) -> Files:
    """`adapter_config.json`, `quantization.json` where weights are quantised, the program and `run.sh`."""
    one = hugging_face.trainer_command(deployment)
    return launch_files(deployment, replace(one, args=(*launcher(deployment), *one.args)))
