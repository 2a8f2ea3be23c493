"""Megatron-LM: pretrain_gpt.py with the model's shape and the plan's layout, precision, batch and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator

from flopwise.exports.command import Command
from flopwise.exports.decoder_shape import DecoderShape
from flopwise.exports.deployment import Deployment
from flopwise.exports.exported import Files
from flopwise.exports.launch import launch_files, launcher, step_counts
from flopwise.training.job import TrainJob
from flopwise.training.stages import even_layers
from flopwise.training.widths import resident_grad_dtype
from flopwise.values import replace

PROGRAM = "pretrain_gpt.py"
OPTIMIZERS = {"adamw": "adam", "sgd": "sgd", "muon": "muon"}
PRECISIONS: dict[str, tuple[str, ...]] = {
    "fp32": (),
    "fp16": ("--fp16",),
    "bf16": ("--bf16",),
    "fp8": ("--bf16", "--fp8-format", "hybrid", "--fp8-recipe", "tensorwise"),
    "fp8_block": ("--bf16", "--fp8-format", "e4m3", "--fp8-recipe", "blockwise"),
    "mxfp8": ("--bf16", "--fp8-format", "e4m3", "--fp8-recipe", "mxfp8"),
    "nvfp4": ("--bf16", "--fp4-format", "e2m1", "--fp4-recipe", "nvfp4"),
}
"""Formats of `cost.precisions` as Megatron-Core has them."""
RECOMPUTED = {"attention": ("core_attn",), "fine": ("layernorm", "moe_act", "mla_up_proj")}
"""Modules that selective recompute runs again, by the stack's kind of it."""
RECIPES = ("nemo", "nemo-2026")
"""Stacks that turn on what NVIDIA's performance recipes do."""
PLAIN_STACKS = ("megatron-te", "megatron-2026", "megatron-2021", *RECIPES)


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why Megatron-LM cannot train the plan."""
    job, layout = deployment.train_job, deployment.candidate.layout
    yield from DecoderShape.reasons(deployment.model, layout["seq_len"])
    if job.recipe.lora is not None or job.recipe.frozen is not None:
        yield "pretrain_gpt.py trains all weights; plan adapters and frozen parts with --stack fsdp-compile"
    stack = deployment.facts.stack(PLAIN_STACKS[0])
    if layout["zero"] > stack.zero:
        one = f"Megatron's distributed optimizer is ZeRO {stack.zero}, not {layout['zero']}"
        yield f"{one}; plan again with --stack {stack.name}"
    if layout["precision"] not in PRECISIONS:
        yield f"Megatron-Core has no {layout['precision']}; it has {', '.join(PRECISIONS)} (--precision)"
    if job.recipe.optimizer.name not in OPTIMIZERS:
        yield f"Megatron-LM has no optimizer {job.recipe.optimizer.name}; it has {', '.join(OPTIMIZERS)}"
    if layout["schedule"] != "1f1b":
        yield f"Megatron-Core has no schedule {layout['schedule']}; plan again with --schedule 1f1b"
    if "attn_proj" in job.recipe.modules:
        yield "Megatron-Core has no module attn_proj to recompute; plan again without it (--recompute-modules)"
    if set(layout.get("offload", ())) - {"optimizer"}:
        yield "Megatron-LM offloads optimizer states alone; plan again with --stack deepspeed-zero3"
    if deployment.accelerator.vendor.lower() not in {"nvidia", "amd"}:
        yield f"Megatron-LM runs on NVIDIA and AMD GPUs, not on {deployment.accelerator.name}"
    if any(getattr(item, "gated", False) and item.kind != "silu" for item in deployment.model.stacks[0].items):  # type: ignore[union-attr]  # gates alone are gated
        yield f"Megatron-LM gates by SiLU; {deployment.model.name} has another activation"


def command(deployment: Deployment) -> Command:
    """pretrain_gpt.py with its arguments, without its launcher."""
    job, model = deployment.train_job, deployment.model
    shape = DecoderShape.of(model)
    groups = (
        _network(shape, job), _attention(shape), _experts(shape, job), _parallel(deployment, shape), _precision(job),
        _recompute(job, shape), _training(deployment), _data(deployment, shape),
    )  # fmt: skip
    return Command(
        args=(deployment.settings.script or PROGRAM, *(word for words in groups for word in words)),
        env={"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, secret_env={"HF_TOKEN": "weights_secret"},
        assumptions=tuple(_assumptions(deployment, shape)),
    )  # fmt: skip


def export(deployment: Deployment) -> Files:
    """`run.sh`, which is started in Megatron-LM's folder on each machine."""
    one = command(deployment)
    return launch_files(deployment, replace(one, args=(*launcher(deployment), *one.args)), here=False)


def _flag(name: str, value: object) -> tuple[str, ...]:
    return (f"--{name}", str(value))


def _network(shape: DecoderShape, job: TrainJob) -> Iterator[str]:
    """The model's shape."""
    yield from _flag("num-layers", shape.layers)
    yield from _flag("hidden-size", shape.width)
    yield from _flag("ffn-hidden-size", shape.hidden)
    yield from _flag("num-attention-heads", shape.heads)
    yield from _flag("seq-length", int(job.recipe.seq_len))
    yield from _flag("max-position-embeddings", max(shape.positions or 0, int(job.recipe.seq_len)))
    yield from _flag("position-embedding-type", "rope" if shape.rotary_frac else "learned_absolute")
    yield from _flag("normalization", "RMSNorm" if shape.norm == "rmsnorm" else "LayerNorm")
    if shape.gated:
        yield "--swiglu"
    elif shape.activation == "relu2":
        yield "--squared-relu"
    if not shape.other_bias:
        yield "--disable-bias-linear"
    if not shape.dropout:
        yield from (*_flag("attention-dropout", 0.0), *_flag("hidden-dropout", 0.0))
    if not shape.tied:
        yield "--untie-embeddings-and-output-weights"


def _attention(shape: DecoderShape) -> Iterator[str]:
    """Heads, or the ranks of compressed keys and values."""
    if (latent := shape.latent) is not None:
        yield "--multi-latent-attention"
        if latent.query_rank is not None:
            yield from _flag("q-lora-rank", latent.query_rank)
        yield from _flag("kv-lora-rank", latent.key_value_rank)
        yield from _flag("qk-head-dim", latent.plain_dim)
        yield from _flag("qk-pos-emb-head-dim", latent.rope_dim)
        yield from _flag("v-head-dim", latent.value_dim)
    else:
        yield from _flag("kv-channels", shape.head_dim)
        if shape.kv_heads != shape.heads:
            yield "--group-query-attention"
            yield from _flag("num-query-groups", shape.kv_heads)
        if 0 < shape.rotary_frac < 1:
            yield from _flag("rotary-percent", shape.rotary_frac)
    if shape.qkv_bias and not shape.other_bias:
        yield "--add-qkv-bias"
    if shape.query_key_norm or shape.latent is not None:
        yield "--qk-layernorm"


def _experts(shape: DecoderShape, job: TrainJob) -> Iterator[str]:
    """Experts and their routing; nothing of a dense model."""
    if (mixture := shape.mixture) is None:
        return
    yield from _flag("num-experts", mixture.experts)
    yield from _flag("moe-router-topk", mixture.top_k)
    yield from _flag("moe-ffn-hidden-size", mixture.hidden)
    if mixture.shared_hidden:
        yield from _flag("moe-shared-expert-intermediate-size", mixture.shared_hidden)
    if not all(shape.expert_layers):
        yield from _flag("moe-layer-freq", f"[{','.join(str(int(one)) for one in shape.expert_layers)}]")
    if mixture.groups > 1:
        yield from _flag("moe-router-num-groups", mixture.groups)
        yield from _flag("moe-router-group-topk", mixture.top_groups)
    if job.recipe.capacity_factor is not None:
        yield from _flag("moe-expert-capacity-factor", job.recipe.capacity_factor)
    tp, ep = int(job.layout.tp), int(job.layout.ep)
    yield from _flag("expert-model-parallel-size", ep)
    yield from _flag("expert-tensor-parallel-size", int(job.recipe.expert_tp(tp, ep)))
    if job.recipe.stack.name in RECIPES:
        yield from _flag("moe-token-dispatcher-type", "flex")
        yield from _flag("moe-flex-dispatcher-backend", "deepep")
    else:
        yield from _flag("moe-token-dispatcher-type", "alltoall")
    yield "--moe-grouped-gemm"


def chunk_layers(layers: int, stages: int, chunks: int) -> list[int]:
    """Layers of each virtual stage in order: as `even_layers` has them of each rank, over its chunks.

    Chunk c lies on rank c mod stages. What does not divide is missing in the first chunk of the first rank, which has
    the embedding, and in the last chunks of the others.
    """
    of_ranks = [divmod(count, chunks) for count in even_layers(layers, stages).tolist()]
    sizes = [
        each + (turn >= chunks - left if rank == 0 else turn < left)
        for turn in range(chunks)
        for rank, (each, left) in enumerate(of_ranks)
    ]
    return [int(size) for size in sizes]


def _recipe_flags(job: TrainJob) -> Iterator[str]:
    """The options that NVIDIA's performance recipes turn on for a dense model.

    Source: NVIDIA-NeMo/Megatron-Bridge, scripts/performance; names as in megatron/training/arguments.py.
    """
    if int(job.layout.tp) > 1 and job.layout.sequence_parallel:
        yield "--tp-comm-overlap"
    if "--bf16" in PRECISIONS[job.recipe.precision]:
        yield "--grad-reduce-in-bf16"
    yield "--cross-entropy-loss-fusion"
    yield from _flag("cross-entropy-fusion-impl", "te")


def _parallel(deployment: Deployment, shape: DecoderShape) -> Iterator[str]:
    """Degrees of parallelism, and where layers and states lie."""
    layout, job = deployment.candidate.layout, deployment.train_job
    yield from _flag("tensor-model-parallel-size", layout["tp"])
    yield from _flag("pipeline-model-parallel-size", layout["pp"])
    if layout["pp"] > 1 and shape.layers % (layout["pp"] * layout["interleave"]):
        sizes = chunk_layers(shape.layers, layout["pp"], layout["interleave"])
        stages = "|".join(f"t*{count}" if count else "" for count in sizes)
        yield from _flag("pipeline-model-parallel-layout", f"E{stages}L")
    elif layout["interleave"] > 1:
        yield from _flag("num-virtual-stages-per-pipeline-rank", layout["interleave"])
    if layout["cp"] > 1:
        yield from _flag("context-parallel-size", layout["cp"])
    if layout["tp"] > 1 and job.layout.sequence_parallel:
        yield "--sequence-parallel"
    if layout["zero"]:
        yield "--use-distributed-optimizer"
        yield "--overlap-grad-reduce"
        yield "--overlap-param-gather"
    if job.recipe.stack.name in RECIPES:
        yield from _recipe_flags(job)
    if layout["shard"]:
        yield from _flag("num-distributed-optimizer-instances", layout["dp"] * layout["cp"] // layout["shard"])
    if "optimizer" in layout.get("offload", ()):
        yield "--optimizer-cpu-offload"


def _precision(job: TrainJob) -> Iterator[str]:
    yield from PRECISIONS[job.recipe.precision]
    if job.recipe.precision != "fp32" and resident_grad_dtype(job.recipe) in {"fp32", "both"}:
        yield "--accumulate-allreduce-grads-in-fp32"
    if job.recipe.attention != "eager":
        yield from _flag(
            "attention-backend", "fused" if job.recipe.stack.attention_kernel.startswith("cudnn") else "flash"
        )


def _recompute(job: TrainJob, shape: DecoderShape) -> Iterator[str]:
    """The options of recompute; of some blocks only, as many of the first of each stage."""
    if not int(job.layout.recompute):
        return
    selective = job.recipe.selective or job.recipe.stack.selective
    modules = [{"activation": "moe_act"}.get(name, name) for name in job.recipe.modules]
    if int(job.layout.recompute) == 1 and (modules or selective in RECOMPUTED):
        yield from _flag("recompute-granularity", "selective")
        yield "--recompute-modules"
        yield from modules or RECOMPUTED[selective]
        return
    every, chunks = int(job.layout.recompute_every), int(job.layout.pp) * int(job.layout.interleave)
    blocks = int(job.layout.recompute_first) or (math.ceil(shape.layers / chunks / every) if every > 1 else 0)
    yield from _flag("recompute-granularity", "full")
    yield from _flag("recompute-method", "block" if blocks else "uniform")
    yield from _flag("recompute-num-layers", blocks or 1)


def _training(deployment: Deployment) -> Iterator[str]:
    """Batches, steps and checkpoints."""
    job, layout, run = deployment.train_job, deployment.candidate.layout, step_counts(deployment)
    yield from _flag("micro-batch-size", layout["micro_batch"])
    yield from _flag("global-batch-size", layout["global_batch"])
    yield from _flag("train-iters", run.steps)
    yield from _flag("optimizer", OPTIMIZERS[job.recipe.optimizer.name])
    yield from _flag("lr", deployment.value("learning_rate"))
    yield from _flag("save", deployment.value("output"))
    yield from _flag("load", deployment.value("output"))
    yield from _flag("save-interval", run.checkpoint_steps)
    yield from _flag("ckpt-format", "torch_dist")
    if job.conditions.reliability.asynchronous:
        yield "--async-save"
    if deployment.task == "finetune":
        yield from _flag("pretrained-checkpoint", deployment.value("model_path"))
    yield "--exit-signal-handler"
    yield "--log-throughput"


def _data(deployment: Deployment, shape: DecoderShape) -> Iterator[str]:
    """Data and tokenizer; no validation, of which the plan has none."""
    yield from _flag("data-path", deployment.value("data"))
    yield from _flag("split", "100,0,0")
    yield from _flag("eval-iters", 0)
    if deployment.model.hf_id is None and deployment.settings.model_path is None:
        yield from _flag("tokenizer-type", "NullTokenizer")
        yield from _flag("vocab-size", shape.vocab - 1)
    else:
        yield from _flag("tokenizer-type", "HuggingFaceTokenizer")
        yield from _flag("tokenizer-model", deployment.model.hf_id or deployment.model_id)


def _assumptions(deployment: Deployment, shape: DecoderShape) -> Iterator[str]:
    name = deployment.candidate.layout["stack"]
    yield "start run.sh in the folder of Megatron-LM, or give the path of pretrain_gpt.py with --script"
    yield "schedule, weight decay, clipping and initialisation are Megatron-LM's defaults; pass others to run.sh"
    yield "--data-path: the output of tools/preprocess_data.py, without its extension"
    if shape.rotary_frac:
        yield "--rotary-base is Megatron-LM's default, 10000; --rotary-base changes it"
    if name not in PLAIN_STACKS:
        yield f"the plan's times and memory are those of {name}: plan with --stack megatron-te to see Megatron-LM's"
    if name in RECIPES and shape.mixture is not None:
        yield "DeepEP (deepseek-ai/DeepEP) sends tokens to their experts: it has to be installed"
    if deployment.task == "finetune":
        yield "--pretrained-checkpoint: weights that Megatron-Bridge or tools/checkpoint converted to Megatron's format"
    if shape.mixture is not None:
        yield "routing (softmax or sigmoid, balancing loss) is Megatron-LM's default; the plan does not depend on it"
