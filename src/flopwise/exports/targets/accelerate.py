"""Accelerate: its configuration (FSDP, DeepSpeed or DDP), TrainingArguments, and the train.py that reads them."""

from __future__ import annotations

from typing import Any

from flopwise.exports import hugging_face
from flopwise.exports.command import Command
from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import command_text, comment_text, script_text, yaml_text
from flopwise.exports.exported import Files
from flopwise.exports.launch import run_title
from flopwise.facts.software import platform

CONFIG = "accelerate.yaml"
MEETING = """: "${NODE_RANK:?the number of this machine, from 0}"
: "${MASTER_ADDR:?the address of machine 0}\""""
MACHINE = '--machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR" --main_process_port "${MASTER_PORT:-29500}"'
refusals = hugging_face.refusals
SEVERAL = {"intel": "MULTI_XPU"}
"""Accelerate's names of plain data parallelism where it is not MULTI_GPU: that of CPUs too, for under MULTI_CPU the
launcher starts one process; TrainingArguments say that they are CPUs."""


def accelerate_config(deployment: Deployment) -> dict[str, Any]:
    """Accelerate's configuration file."""
    layout, sharding = deployment.candidate.layout, hugging_face.planned_sharding(deployment)
    built_for = platform(deployment.accelerator) or ""
    kinds = {"fsdp": "FSDP", "deepspeed": "DEEPSPEED", "none": "NO", "ddp": SEVERAL.get(built_for, "MULTI_GPU")}
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kinds[sharding],
        "num_machines": deployment.num_nodes,
        "num_processes": deployment.candidate.num_gpus,
        "machine_rank": 0,
        "use_cpu": built_for == "cpu" and sharding == "none",
        "rdzv_backend": "static",
        "same_network": True,
        "main_training_function": "main",
    }
    if sharding == "fsdp":
        config["fsdp_config"] = fsdp_config(hugging_face.fsdp_config(deployment))
    if sharding == "deepspeed":
        config["deepspeed_config"] = {
            "deepspeed_config_file": hugging_face.DEEPSPEED, "zero3_init_flag": layout["zero"] == 3,
            "deepspeed_multinode_launcher": "standard",
        }  # fmt: skip
    else:
        config["mixed_precision"] = layout["precision"] if layout["precision"] in {"bf16", "fp16"} else "no"
    if layout["shard"]:
        sizes = {"dp_replicate_size": layout["dp"] // layout["shard"], "dp_shard_size": layout["shard"]}
        config["parallelism_config"] = {f"parallelism_config_{name}": size for name, size in sizes.items()}
    return config


def fsdp_config(arguments: dict[str, Any]) -> dict[str, Any]:
    """FSDP as Accelerate's file has it, from what TrainingArguments say."""
    names = {"cpu_offload": "offload_params"}
    return {f"fsdp_{names.get(name, name)}": value for name, value in arguments.items()}


def command(deployment: Deployment) -> Command:
    """train.py with its files, without its launcher: what shards stands in Accelerate's file."""
    sharding = hugging_face.planned_sharding(deployment)
    arguments = hugging_face.training_arguments(deployment, sharding)
    arguments.pop("deepspeed", None)
    return hugging_face.program(deployment, sharding, arguments)


def export(deployment: Deployment) -> Files:
    """`accelerate.yaml` and `run.sh`, to be started on each machine, with the program and what it reads."""
    one, nodes = command(deployment), deployment.num_nodes
    launch = command_text(("accelerate", "launch", "--config_file", CONFIG))
    parts = [comment_text(run_title(deployment)), 'cd "$(dirname "$0")"']
    if nodes > 1:
        parts.append(MEETING)
        launch += " " + MACHINE
    if threads := hugging_face.threads(deployment):
        parts.append(f"export {command_text((), threads)}")
    parts.append(f'exec {launch} \\\n  {command_text(one.args)} "$@"')
    start = "./run.sh"
    if nodes > 1:
        start = f"MASTER_ADDR=... NODE_RANK=N ./run.sh  # on each machine, N from 0 to {nodes - 1}"
    files = {**one.files, CONFIG: yaml_text(accelerate_config(deployment)), "run.sh": script_text(*parts)}
    return Files(files=files, apply=(start,), assumptions=one.assumptions)
