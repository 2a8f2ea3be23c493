"""The exported train.py, which runs Hugging Face's Trainer, and its files, such as PEFT's adapter configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, Literal

from flopwise.exports.command import Command
from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import json_text
from flopwise.exports.launch import LEFT_TO_USER, step_counts
from flopwise.facts.models.sizes import size_of, typical_config
from flopwise.facts.software import platform
from flopwise.training.layout import Recipe
from flopwise.training.memory import step_memory
from flopwise.training.on_device import recipe_on
from flopwise.training.widths import trained_widths
from flopwise.units import format_gib
from flopwise.values import replace

PROGRAM, ARGUMENTS, JOB = "train.py", "training_arguments.json", "job.json"
ADAPTER, QUANTIZATION, DEEPSPEED, OWN_MODEL = "adapter_config.json", "quantization.json", "deepspeed.json", "model"
Sharding = Literal["none", "ddp", "fsdp", "deepspeed"]
"""How replicas are synchronised and their states sharded: none (one process), DDP, FSDP2, DeepSpeed."""
STACK = "hf-trainer"
SAME = (
    "hf-trainer",
    "hf-trainer-2026",
    "deepspeed-zero3",
    "fsdp-eager",
    "fsdp-2023",
    "fsdp-compile",
    "fsdp-compile-2025",
    "fsdp-compile-2026",
)
"""Stacks that train.py reproduces: FSDP2 or DeepSpeed around a model, compiled or not."""
PLATFORMS = {"nvidia", "amd", "intel", "cpu", "apple"}
OPTIMIZERS = {
    "adamw": "adamw_torch_fused", "adamw-8bit": "adamw_bnb_8bit", "paged-adamw": "paged_adamw_32bit",
    "paged-adamw-8bit": "paged_adamw_8bit", "adamw-4bit": "adamw_torch_4bit", "adafactor": "adafactor", "sgd": "sgd",
    "adagrad": "adagrad", "lion": "lion_32bit", "lion-8bit": "lion_8bit",
}  # fmt: skip
"""transformers' names of the optimizers in data/optimizers.csv."""
CLIPPING = 1.0
"""Maximum norm of the gradients: the default of transformers' Trainer, which DeepSpeed's file must repeat."""
MOST_WORKERS, USUAL_WORKERS = 8, 2
"""Loader processes per accelerator: the maximum, and the default if the vCPUs are not known."""


def refusals(deployment: Deployment, sharding: Sharding | None = None) -> Iterator[str]:
    """Reasons why train.py cannot run the plan with this sharding (None: that of the plan's stack)."""
    job, layout = deployment.train_job, deployment.candidate.layout
    for lacking in deployment.facts.stack(STACK).missing(layout):
        yield f"Trainer has no {lacking}; {_instead(deployment)}"
    if deployment.model.kind not in {"decoder", "encoder"} or not deployment.model.vocab:
        yield f"train.py trains decoders and encoders of text; {deployment.model.name} is a {deployment.model.kind}"
    if platform(deployment.accelerator) not in PLATFORMS:
        yield f"train.py runs on GPUs and CPUs; {deployment.accelerator.name} needs the trainer of its vendor"
    if layout["precision"] not in DTYPES:
        yield f"Trainer computes in 16 or 32 bits, not in {layout['precision']}; plan again with --precision bf16"
    if job.recipe.optimizer.name not in OPTIMIZERS:
        yield f"Trainer has no optimizer {job.recipe.optimizer.name}; it has {', '.join(OPTIMIZERS)}"
    if job.recipe.capacity_factor is not None:
        yield "models of transformers drop no tokens; plan again without routing.capacity_factor"
    if (frozen := job.recipe.frozen) is not None and (frozen.towers or frozen.but_last is not None):
        yield f"train.py freezes embedding, head and first layers, not {frozen.text}"
    yield from _adapter_refusals(deployment)
    yield from _sharding_refusals(deployment, sharding or planned_sharding(deployment))
    yield from _memory_refusals(deployment)


def loader_workers(deployment: Deployment) -> int:
    """Loader processes per accelerator: one per two vCPUs of its share, 1 to `MOST_WORKERS`.

    Assumes: the other half is for the training processes and the system.
    """
    cpus = deployment.offer.vcpus
    if cpus is None:
        return USUAL_WORKERS
    return int(min(MOST_WORKERS, max(1, cpus // deployment.gpus_per_node // 2)))


def _instead(deployment: Deployment) -> str:
    """The remedy for a layout that Trainer does not support: another candidate of the plan, or another trainer."""
    trainer = deployment.facts.stack(STACK)
    rank = next((c.rank for c in deployment.plan.plans if not trainer.missing(c.layout)), None)
    other = "plan again with --stack megatron-te and export it by megatron"
    return other if rank is None else f"candidate {rank} of the plan needs none (--rank {rank})"


def _sharding_refusals(deployment: Deployment, sharding: Sharding) -> Iterator[str]:
    layout = deployment.candidate.layout
    offload, on_cpu = layout.get("offload", ()), platform(deployment.accelerator) == "cpu"
    if layout["shard"] and (sharding != "fsdp" or layout["zero"] != 3):
        yield "only FSDP shards within groups (HSDP), and fully; plan again without --shard"
    if sharding == "fsdp" and on_cpu:
        yield "accelerate runs FSDP on GPUs alone: on CPUs plan with --stack deepspeed-zero3"
    if sharding == "fsdp" and "parameters" in offload and "optimizer" not in offload:
        yield "FSDP offloads parameters together with optimizer states; plan again with --stack deepspeed-zero3"
    if "activations" in offload and on_cpu:
        yield "activations of a CPU are in host memory already: choose another candidate (--rank)"
    if sharding == "deepspeed" and layout["zero"] == 3 and quantization(deployment, sharded=True):
        yield "DeepSpeed does not shard weights in 4 or 8 bits (ZeRO 3); plan again with --stack hf-trainer"


def _memory_refusals(deployment: Deployment) -> Iterator[str]:
    """The reason if the plan is for another stack and its micro-batch does not fit with Trainer."""
    job, device = deployment.train_job, deployment.accelerator
    if job.recipe.stack.name not in SAME and (needed := trainer_bytes(deployment)) > device.hbm_bytes:
        yield (
            f"with transformers' Trainer, the layout that was planned for {job.recipe.stack.name} needs "
            f"{format_gib(needed)} of "
            f"{format_gib(device.hbm_bytes)} on {device.name}; plan again with --stack {STACK}"
        )


def trainer_recipe(deployment: Deployment) -> Recipe:
    """The plan's recipe with the stack that train.py reproduces: that of the plan if possible."""
    job = deployment.train_job
    if job.recipe.stack.name in SAME:
        return job.recipe
    return recipe_on(replace(job.recipe, stack=deployment.facts.stack(STACK)), deployment.accelerator)[0]


def trainer_bytes(deployment: Deployment) -> float:
    """Memory per accelerator with train.py and the plan's layout, in bytes.

    Source and assumptions: `training.memory.step_memory`.
    """
    job = deployment.train_job
    kind = deployment.accelerator.kind
    total = step_memory(job.model, trainer_recipe(deployment), job.layout, device_kind=kind).total_bytes
    assert isinstance(total, float)
    return total


def planned_sharding(deployment: Deployment) -> Sharding:
    """The sharding: DeepSpeed if the plan's stack is DeepSpeed, or if only DeepSpeed supports the offloading."""
    layout = deployment.candidate.layout
    job, several = deployment.train_job, deployment.candidate.num_gpus > 1
    offload = {part for part in ("optimizer", "parameters") if part in layout.get("offload", ())}
    if layout["stack"].startswith("deepspeed") or offload == {"optimizer"}:
        return "deepspeed"
    least = 1 if job.recipe.lora is None else 3  # FSDP would keep a shard of the frozen weights and all of them
    if offload or (layout["zero"] >= least and several):
        return "fsdp"
    return "ddp" if several else "none"


def trainer_command(deployment: Deployment) -> Command:
    """The program with its arguments and files, without a launcher; the arguments select the sharding."""
    sharding = planned_sharding(deployment)
    arguments = training_arguments(deployment, sharding)
    if sharding == "fsdp":
        arguments |= {"fsdp": True, "fsdp_config": fsdp_config(deployment)}
    return program(deployment, sharding, arguments)


def program(deployment: Deployment, sharding: Sharding, arguments: dict[str, Any]) -> Command:
    """The program with its files; `arguments`: those of TrainingArguments."""
    script, model = deployment.settings.script, own_config(deployment)
    made = {ARGUMENTS: json_text(arguments), JOB: json_text(job_document(deployment))}
    if script is None:
        made[PROGRAM] = files("flopwise.exports").joinpath("programs", PROGRAM).read_text(encoding="utf-8")
    if model is not None:
        made[f"{OWN_MODEL}/config.json"] = json_text(model)
    if deployment.train_job.recipe.lora is not None:
        made[ADAPTER] = json_text(adapter_config(deployment))
    if (quantized := quantization(deployment, sharded=sharding == "fsdp")) is not None:
        made[QUANTIZATION] = json_text(quantized)
    if sharding == "deepspeed":
        made[DEEPSPEED] = json_text(deepspeed_config(deployment))
    return Command(
        args=(script or PROGRAM, ARGUMENTS), env={**mesh(deployment), **threads(deployment)},
        secret_env={"HF_TOKEN": "weights_secret"},
        files=made, assumptions=tuple(_assumptions(deployment, sharding)),
    )  # fmt: skip


def training_arguments(deployment: Deployment, sharding: Sharding) -> dict[str, Any]:
    """Fields of transformers.TrainingArguments that the plan sets."""
    job, layout, run = deployment.train_job, deployment.candidate.layout, step_counts(deployment)
    on_cpu = platform(deployment.accelerator) == "cpu"
    document: dict[str, Any] = {
        "output_dir": deployment.value("output"),
        "run_name": deployment.title,
        "max_steps": run.steps,
        "per_device_train_batch_size": layout["micro_batch"],
        "gradient_accumulation_steps": run.accumulation,
        "save_strategy": "steps",
        "save_steps": run.checkpoint_steps,
        "optim": OPTIMIZERS[job.recipe.optimizer.name],
        "bf16": layout["precision"] == "bf16",
        "fp16": layout["precision"] == "fp16",
        **({"tf32": True} if layout["precision"] == "tf32" else {}),
        "activation_checkpointing": layout["recompute"] != "none" and not _fsdp_recomputes(deployment, sharding),
        "activation_checkpointing_kwargs": {"use_reentrant": False},
        "torch_compile": "compile" in layout["stack"] and not on_cpu,
        "use_cpu": on_cpu,
        "dataloader_num_workers": 0 if on_cpu else loader_workers(deployment),
        "dataloader_pin_memory": not on_cpu,
        "ddp_find_unused_parameters": False,
        "report_to": "none",
    }
    if (every := _recomputed_every(deployment)) > 1:
        document["activation_checkpointing_kwargs"]["every_n_layers"] = every
    if layout["recompute"] != "none" and "activations" in layout.get("offload", ()):
        document["activation_checkpointing_kwargs"]["offload"] = True
    if sharding == "deepspeed":
        document["deepspeed"] = DEEPSPEED
    if deployment.settings.learning_rate is not None:
        document["learning_rate"] = deployment.settings.learning_rate
    return document


def _recomputed_every(deployment: Deployment) -> int:
    """The n of the n-th layers that Trainer computes again: at least as many as the first ones of a plan."""
    layout = deployment.candidate.layout
    first = layout.get("recompute_first")
    return max(deployment.train_job.model.stacks[0].num_layers // first, 1) if first else int(layout["recompute_every"])


def _fsdp_recomputes(deployment: Deployment, sharding: Sharding) -> bool:
    """True if FSDP itself recomputes layers, which avoids gathering their weights once more."""
    layout = deployment.candidate.layout
    whole = layout["recompute"] == "full" and _recomputed_every(deployment) == 1
    return sharding == "fsdp" and whole and "activations" not in layout.get("offload", ())


def fsdp_config(deployment: Deployment) -> dict[str, Any]:
    """FSDP2 for TrainingArguments: ZeRO 3 releases gathered weights after the forward pass, other stages keep them."""
    layout, job = deployment.candidate.layout, deployment.train_job
    return {
        "version": 2,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "reshard_after_forward": layout["zero"] == 3,
        "cpu_offload": "parameters" in layout.get("offload", ()),
        "activation_checkpointing": _fsdp_recomputes(deployment, "fsdp"),
        "cpu_ram_efficient_loading": deployment.task == "finetune",
        "state_dict_type": "SHARDED_STATE_DICT" if job.recipe.lora is None else "FULL_STATE_DICT",
    }


def deepspeed_config(deployment: Deployment) -> dict[str, Any]:
    """DeepSpeed's configuration; transformers fills in `auto` from TrainingArguments."""
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


def mesh(deployment: Deployment) -> dict[str, str]:
    """Accelerate's variables for HSDP; empty if all ranks form one sharding group."""
    layout = deployment.candidate.layout
    if not layout["shard"]:
        return {}
    return {
        "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
        "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": str(layout["dp"] // layout["shard"]),
        "PARALLELISM_CONFIG_DP_SHARD_SIZE": str(layout["shard"]),
    }


def threads(deployment: Deployment) -> dict[str, str]:
    """Thread settings of a process on CPUs, all cores of its socket, because launchers default to one."""
    cores = deployment.offer.vcpus
    if platform(deployment.accelerator) != "cpu" or cores is None:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, int(cores) // deployment.gpus_per_node))}


def own_config(deployment: Deployment) -> dict[str, Any] | None:
    """config.json for a model that is only a size, such as 7B; None for a model with its own."""
    size = size_of(deployment.workload.model)
    if size is None or deployment.settings.model_path is not None or deployment.model.hf_id is not None:
        return None
    return typical_config(size)


def job_document(deployment: Deployment) -> dict[str, Any]:
    """The settings of train.py in addition to TrainingArguments."""
    layout = deployment.candidate.layout
    recipe = trainer_recipe(deployment)
    lora, frozen, documents = recipe.lora, recipe.frozen, recipe.documents
    dtype = "float32" if trained_widths(recipe).weights == 4 else DTYPES[layout["precision"]]
    if lora is not None:
        dtype = DTYPES.get(lora.base.name, DTYPES[layout["precision"]])
    selective = layout["recompute"] == "selective" and recipe.stack.selective != "full"
    return {
        "model": deployment.model_id if own_config(deployment) is None else OWN_MODEL,
        "from_weights": deployment.task == "finetune",
        "objective": "masked" if deployment.model.kind == "encoder" else "causal",
        "dtype": dtype,
        "adapter_dtype": None if lora is None else DTYPES[lora.adapter_dtype],
        "attention": "eager" if recipe.attention == "eager" else "sdpa",
        "data": deployment.value("data"),
        "seq_len": layout["seq_len"],
        "packing": "full" if documents is None else documents.packing,
        "recompute": "operations" if selective else layout["recompute"],
        "offload_activations": layout["recompute"] == "none" and "activations" in layout.get("offload", ()),
        "frozen": {} if frozen is None else {
            "embedding": frozen.embedding, "head": frozen.head, "layers": frozen.first,
        },
    }  # fmt: skip


def _assumptions(deployment: Deployment, sharding: Sharding) -> Iterator[str]:
    """Choices that the plan does not determine, and differences of the program from the plan."""
    job, layout = deployment.train_job, deployment.candidate.layout
    yield LEFT_TO_USER
    yield from _adapter_assumptions(deployment)
    if (name := job.recipe.stack.name) not in SAME:
        needed, device = format_gib(trainer_bytes(deployment)), deployment.accelerator
        yield (
            f"the plan's times are those of {name}; transformers' Trainer needs {needed} of "
            f"{format_gib(device.hbm_bytes)} and other times: plan with --stack {STACK} to see them"
        )
    if sharding == "fsdp" and layout["zero"] in {1, 2}:
        yield (
            f"FSDP2 shards gradients together with optimizer states: ZeRO {layout['zero']} is FSDP that keeps "
            "gathered weights"
        )
    if sharding == "ddp" and layout["zero"]:
        yield f"the states of adapters are small: they are replicated (DDP), not sharded by ZeRO {layout['zero']}"
    if job.recipe.attention == "flash":
        yield "attention is PyTorch's own (sdpa), which runs FlashAttention's kernels where no mask forbids it"
    if first := layout.get("recompute_first"):
        every = _recomputed_every(deployment)
        yield f"every {every} layers one is recomputed, in place of the first {first} of the plan"
    if job_document(deployment)["recompute"] == "operations":
        yield "selective recompute keeps attention and every second matrix product, as in torchtitan"
    if platform(deployment.accelerator) != "cpu":
        yield (
            f"{loader_workers(deployment)} loader processes per accelerator, on half of its share of the vCPUs: the "
            "plan does not know how much one process delivers"
        )
    if job.recipe.documents is None or job.recipe.documents.packing != "padded":
        yield "rows of the data are concatenated and split into full sequences"
    if own_config(deployment) is not None:
        yield (
            f"{deployment.workload.model} is only a size: model/config.json describes a typical model of it, and "
            "data are rows of input_ids"
        )


SIXTEEN_OR_MORE = ("bf16", "fp16", "fp32")
DTYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
QUANTIZED: Mapping[str, Mapping[str, Any]] = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": False},
    "nf4-dq": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "llm-int8": {"load_in_8bit": True},
}
"""Formats of data/weight_formats.csv into which bitsandbytes quantises weights while loading."""
SEPARATE = {
    "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj", "gate": "gate_proj", "up": "up_proj",
    "down": "down_proj",
}  # fmt: skip
_FUSED = {**dict.fromkeys("qkv", "query_key_value"), "o": "dense", "up": "dense_h_to_4h", "down": "dense_4h_to_h"}
_BERT = {
    "q": "query", "k": "key", "v": "value", "o": "attention.output.dense", "up": "intermediate.dense",
    "down": "output.dense",
}  # fmt: skip
MODULES: Mapping[str, Mapping[str, str]] = {
    "gpt2": {**dict.fromkeys("qkv", "c_attn"), "o": "attn.c_proj", "up": "c_fc", "down": "mlp.c_proj"},
    "gptj": {**SEPARATE, "o": "out_proj", "up": "fc_in", "down": "fc_out"},
    "gpt_neox": _FUSED, "falcon": _FUSED, "bloom": _FUSED,
    "phi3": {
        **dict.fromkeys("qkv", "qkv_proj"), "o": "o_proj", **dict.fromkeys(("gate", "up"), "gate_up_proj"),
        "down": "down_proj",
    },
    "phi": {**SEPARATE, "o": "dense", "up": "fc1", "down": "fc2"},
    "opt": {**SEPARATE, "o": "out_proj", "up": "fc1", "down": "fc2"},
    "bert": _BERT, "roberta": _BERT, "xlm-roberta": _BERT,
    **dict.fromkeys(
        ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "olmo2",
         "gpt_oss", "granite", "smollm3"),
        SEPARATE,
    ),
}  # fmt: skip
"""Names of the projections in transformers' modules, by model type."""


def _adapter_refusals(deployment: Deployment) -> Iterator[str]:
    """Reasons why PEFT does not support the plan's adapters; empty if it does."""
    job, model = deployment.train_job, deployment.model
    if (lora := job.recipe.lora) is None:
        return
    if model.model_type not in MODULES:
        yield (
            f"the names of the projections of {model.model_type or model.name} are not known; known: "
            f"{', '.join(sorted(MODULES))}"
        )
    if lora.base.name not in (*SIXTEEN_OR_MORE, *QUANTIZED):
        yield f"bitsandbytes has no {lora.base.name}; plan again with --base-format {' or '.join(QUANTIZED)}"
    if lora.method == "lora-fa" or lora.scales_outputs:
        yield "PEFT's LoRA trains both matrices and does not scale results; plan again with --lora"
    down, out = "down" in lora.targets, "o" in lora.targets
    if MODULES.get(model.model_type) is _BERT and down and not out:
        yield "PEFT identifies modules by the ends of their names: down (output.dense) includes o; target both"


def adapter_config(deployment: Deployment) -> dict[str, Any]:
    """PEFT's adapter_config.json for the plan's adapters."""
    job = deployment.train_job
    lora = job.recipe.lora
    assert lora is not None
    names = MODULES[deployment.model.model_type]
    masked = deployment.model.kind == "encoder"
    whole = [{"embedding": "embed_tokens", "head": "lm_head"}[part] for part in lora.extra_trainable]
    return {
        "peft_type": "LORA",
        "task_type": None if masked else "CAUSAL_LM",
        "base_model_name_or_path": deployment.model_id,
        "r": lora.rank,
        "lora_alpha": lora.rank,
        "lora_dropout": 0.0,
        "use_dora": lora.method == "dora",
        "target_modules": sorted({names[target] for target in lora.targets if target in names}),
        "modules_to_save": whole or None,
        "bias": "none",
        "fan_in_fan_out": deployment.model.model_type == "gpt2",  # whose layers are convolutions of width 1
    }


def quantization(deployment: Deployment, *, sharded: bool) -> dict[str, Any] | None:
    """BitsAndBytesConfig of the frozen weights; None if they have 16 bits or more.

    `sharded`: FSDP shards them, so they must be stored in the compute dtype.
    """
    job = deployment.train_job
    lora = job.recipe.lora
    if lora is None or lora.base.name not in QUANTIZED:
        return None
    config = {"quant_method": "bitsandbytes", **QUANTIZED[lora.base.name]}
    if "load_in_4bit" in config:
        dtype = DTYPES[deployment.candidate.layout["precision"]]
        config["bnb_4bit_compute_dtype"] = dtype
        config["bnb_4bit_quant_storage"] = dtype if sharded else "uint8"
    return config


def _adapter_assumptions(deployment: Deployment) -> tuple[str, ...]:
    """Choices for adapters that the plan does not determine."""
    job = deployment.train_job
    if job.recipe.lora is None:
        return ()
    why = "so that adapters are not scaled (Hu et al. 2021, arXiv:2106.09685, section 4.1)"
    return (f"lora_alpha is the rank, {why}; the plan has neither it nor a dropout",)
