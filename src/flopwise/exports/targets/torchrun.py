"""torchrun: run.sh starts the processes of one machine, with the program of the plan's stack and its files."""

from __future__ import annotations

from flopwise.exports.deployment import Deployment
from flopwise.exports.exported import Files
from flopwise.exports.launch import launch_files
from flopwise.exports.training_command import training_command, training_refusals

refusals = training_refusals


def export(deployment: Deployment) -> Files:
    """`run.sh`, to be started on each machine, with what it reads."""
    return launch_files(deployment, training_command(deployment))
