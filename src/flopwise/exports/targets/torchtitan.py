"""torchtitan: its trainer with the plan's degrees, recompute, compilation, batch, steps and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator

from flopwise.exports.command import Command
from flopwise.exports.deployment import Deployment
from flopwise.exports.exported import Files
from flopwise.exports.launch import launch_files, launcher, step_counts
from flopwise.values import replace

CONFIGS = {
    "meta-llama/Llama-3.1-8B": ("llama3", "llama3_8b"),
    "meta-llama/Llama-3.1-70B": ("llama3", "llama3_70b"),
    "Qwen/Qwen3-0.6B": ("qwen3", "qwen3_0_6b"),
    "Qwen/Qwen3-1.7B": ("qwen3", "qwen3_1_7b"),
    "Qwen/Qwen3-14B": ("qwen3", "qwen3_14b"),
    "Qwen/Qwen3-32B": ("qwen3", "qwen3_32b"),
    "Qwen/Qwen3-30B-A3B": ("qwen3", "qwen3_30b_a3b"),
    "deepseek-ai/DeepSeek-V3": ("deepseek_v3", "deepseek_v3_671b"),
    "openai/gpt-oss-20b": ("gpt_oss", "gpt_oss_20b"),
    "openai/gpt-oss-120b": ("gpt_oss", "gpt_oss_120b"),
}
"""Models that torchtitan has a configuration of: its module and function."""
PRECISIONS = {("llama3_8b", "mxfp8"): "llama3_8b_mxfp8", ("deepseek_v3_671b", "fp8"): "deepseek_v3_671b_float8"}
"""Configurations of a model in a precision below 16 bits."""
SCHEDULES = {
    "1f1b": "1F1B", "gpipe": "GPipe", "zero-bubble": "InterleavedZeroBubble", "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}  # fmt: skip
"""Pipeline schedules of `training.schedules` as torch.distributed.pipelining has them."""
DATASET = "c4_test"
"""The registered data set that reads a column `text` of whatever lies at a path."""


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why torchtitan cannot train the plan."""
    job, layout, model = deployment.train_job, deployment.candidate.layout, deployment.model
    known = CONFIGS.get(model.hf_id or "")
    if known is None:
        yield f"torchtitan has no configuration of {model.name}; it has {', '.join(CONFIGS)}"
    elif layout["precision"] not in {"bf16", "fp32"} and (known[1], layout["precision"]) not in PRECISIONS:
        yield f"torchtitan has no configuration of {model.name} in {layout['precision']}; plan with --precision bf16"
    if job.recipe.lora is not None or job.recipe.frozen is not None:
        yield "torchtitan trains all weights; export adapters and frozen parts by accelerate or peft"
    if job.recipe.optimizer.name != "adamw":
        yield f"torchtitan's configurations have AdamW, not {job.recipe.optimizer.name}; plan again without --optimizer"
    if layout["schedule"] not in SCHEDULES:
        yield f"PyTorch has no schedule {layout['schedule']}; it has {', '.join(SCHEDULES)} (--schedule)"
    offload = set(layout.get("offload", ()))
    if "activations" in offload or len(offload) == 1:
        yield "torchtitan offloads parameters, gradients and states together, and no activations"
    if layout["recompute_every"] > 1 or layout.get("recompute_first"):
        yield "torchtitan recomputes all blocks, fully or in part, not every n-th or the first ones"
    if layout["zero"] and layout["shard"] and layout["cp"] > 1:
        yield "HSDP groups of torchtitan hold whole sequences; plan again without --shard"
    if deployment.accelerator.vendor.lower() not in {"nvidia", "amd", "intel"}:
        yield f"torchtitan runs on NVIDIA, AMD and Intel GPUs, not on {deployment.accelerator.name}"


def command(deployment: Deployment) -> Command:
    """The module torchtitan.train with its arguments, without its launcher."""
    layout = deployment.candidate.layout
    module, config = CONFIGS[deployment.model.hf_id or ""]
    config = PRECISIONS.get((config, layout["precision"]), config)
    options = dict(_options(deployment))
    words = [word for name, value in options.items() for word in ((f"--{name}", value) if value else (f"--{name}",))]
    recompute = {"none": "none", "selective": "selective", "full": "full"}[layout["recompute"]]
    return Command(
        args=("-m", "torchtitan.train", "--module", module, "--config", config, *words,
              f"activation-checkpoint:{recompute}"),
        secret_env={"HF_TOKEN": "weights_secret"}, assumptions=tuple(_assumptions(deployment)),
    )  # fmt: skip


def export(deployment: Deployment) -> Files:
    """`run.sh`, to be started on each machine."""
    one = command(deployment)
    return launch_files(deployment, replace(one, args=(*launcher(deployment), *one.args)), here=False, last=1)


def _options(deployment: Deployment) -> Iterator[tuple[str, str]]:
    """Options by their paths in torchtitan's configuration; "" for those that are on or off by name."""
    job, layout, run = deployment.train_job, deployment.candidate.layout, step_counts(deployment)
    piped = layout["pp"] > 1
    yield "hf-assets-path", deployment.value("model_path")
    yield "dump-folder", deployment.value("output")
    yield "dataloader.dataset", DATASET
    yield "dataloader.dataset-path", deployment.value("data")
    yield "training.steps", str(run.steps)
    yield "training.seq-len", str(layout["seq_len"])
    yield "training.local-batch-size", str(layout["global_batch"] // layout["dp"] if piped else layout["micro_batch"])
    yield "training.global-batch-size", str(layout["global_batch"])
    yield "training.mixed-precision-param", "float32" if layout["precision"] == "fp32" else "bfloat16"
    yield "training.disable-cuda-graphs", ""
    if layout.get("offload"):
        yield "training.enable-cpu-offload", ""
    replicas = _replicas(deployment)
    yield "parallelism.data-parallel-replicate-degree", str(replicas)
    yield "parallelism.data-parallel-shard-degree", str(layout["dp"] // replicas)
    yield "parallelism.fsdp-reshard-after-forward", "always" if layout["zero"] == 3 else "never"
    yield "parallelism.tensor-parallel-degree", str(layout["tp"])
    if layout["tp"] > 1 and not job.layout.sequence_parallel:
        yield "parallelism.no-enable-sequence-parallel", ""
    yield "parallelism.context-parallel-degree", str(layout["cp"])
    yield "parallelism.expert-parallel-degree", str(layout["ep"])
    yield "parallelism.pipeline-parallel-degree", str(layout["pp"])
    if piped:
        yield from _pipeline(deployment)
    yield ("compile.enable" if "compile" in layout["stack"] else "compile.no-enable"), ""
    yield "checkpoint.enable", ""
    yield "checkpoint.interval", str(run.checkpoint_steps)
    if job.conditions.reliability.asynchronous:
        yield "checkpoint.async-mode", "async"
    if deployment.settings.learning_rate is not None:
        yield "optimizer.param-groups.0.optimizer-kwargs.lr", deployment.value("learning_rate")
    if deployment.task == "finetune":
        yield "checkpoint.initial-load-path", deployment.value("model_path")
        yield "checkpoint.initial-load-in-hf", ""


def _replicas(deployment: Deployment) -> int:
    """Groups that hold the same weights: all ranks without ZeRO, those of HSDP, else one."""
    layout = deployment.candidate.layout
    if not layout["zero"]:
        return int(layout["dp"])
    return int(layout["dp"] // layout["shard"]) if layout["shard"] else 1


def _pipeline(deployment: Deployment) -> Iterator[tuple[str, str]]:
    """Stages of layers as even as they divide, and what one micro-batch is."""
    layout, layers = deployment.candidate.layout, deployment.model.stacks[0].num_layers
    turns = layout["interleave"]
    schedule = "Interleaved1F1B" if turns > 1 and layout["schedule"] == "1f1b" else SCHEDULES[layout["schedule"]]
    yield "parallelism.pipeline-parallel-schedule", schedule
    yield "parallelism.pipeline-parallel-microbatch-size", str(layout["micro_batch"])
    ends = int(turns > 1 and layers % (layout["pp"] * turns) > 0)  # embedding and head count as a layer each
    yield "parallelism.pipeline-parallel-layers-per-stage", str(math.ceil((layers + 2 * ends) / (layout["pp"] * turns)))
    yield "parallelism.pipeline-parallel-first-stage-less-layers", str(ends)
    yield "parallelism.pipeline-parallel-last-stage-less-layers", str(ends)


def _assumptions(deployment: Deployment) -> Iterator[str]:
    layout = deployment.candidate.layout
    yield "optimizer and schedule are those of torchtitan's configuration, the learning rate too if none is given"
    yield "CUDA graphs are off, as in the plan's memory and times"
    yield f"--data: a folder or a hub id with a column `text`, read as torchtitan reads {DATASET}"
    yield "--model-path: the folder of the tokenizer (torchtitan's scripts/download_hf_assets.py)"
    if layout["zero"] in {1, 2}:
        yield (
            f"FSDP2 shards gradients together with optimizer states: ZeRO {layout['zero']} is FSDP that keeps "
            "gathered weights"
        )
    if not layout["stack"].startswith("fsdp"):
        yield f"the plan's times and memory are those of {layout['stack']}: plan with --stack fsdp-compile"
