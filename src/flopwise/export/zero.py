"""DeepSpeed's configuration of a plan: ZeRO, offloading, precision, batch, clipping, activation checkpointing."""

from __future__ import annotations

from typing import Any

from flopwise.export.deployment import Deployment
from flopwise.export.step_counts import step_counts

CLIPPING = 1.0
"""Norm of the gradients: the default of transformers' Trainer, which has to say the same."""


def deepspeed_config(deployment: Deployment) -> dict[str, Any]:
    """The document that DeepSpeed reads; `auto` is filled in by transformers from TrainingArguments."""
    layout = deployment.candidate.layout
    precision, zero = layout["precision"], int(layout["zero"])
    offload = {part for part in ("optimizer", "parameters") if part in layout.get("offload", ())}
    config: dict[str, Any] = {
        "train_batch_size": layout["global_batch"],
        "train_micro_batch_size_per_gpu": layout["micro_batch"],
        "gradient_accumulation_steps": step_counts(deployment).accumulation,
        "gradient_clipping": CLIPPING,
        "bf16": {"enabled": precision == "bf16"},
        "fp16": {"enabled": precision == "fp16"},
        "zero_optimization": {"stage": zero, "overlap_comm": True, "contiguous_gradients": True},
    }
    if precision == "fp16":
        config["fp16"] |= {"loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000, "min_loss_scale": 1}
    optimization = config["zero_optimization"]
    if zero == 3:
        optimization["stage3_gather_16bit_weights_on_model_save"] = True
    if "optimizer" in offload:
        optimization["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        adamw = dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")
        config["optimizer"] = {"type": "AdamW", "params": adamw}
    if "parameters" in offload:
        optimization["offload_param"] = {"device": "cpu", "pin_memory": True}
    if layout["recompute"] != "none":
        on_host = "activations" in layout.get("offload", ())
        config["activation_checkpointing"] = {"partition_activations": False, "cpu_checkpointing": on_host}
    return config
