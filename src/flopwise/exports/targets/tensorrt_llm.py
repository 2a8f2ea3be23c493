"""TensorRT-LLM: `trtllm-serve` with the layout, the formats and the limits of a plan, and the file it reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flopwise.exports.command import Command
from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import yaml_text
from flopwise.exports.replica import (
    PLAIN,
    caches_prefixes,
    context_limit,
    draft_source,
    engine_refusals,
    from_hub,
    image,
    memory_frac,
    weights_source,
)
from flopwise.exports.server import with_batch_client

PORT = 8000
CONFIG = "trtllm.yaml"
CACHE = {"bf16": "auto", "fp16": "auto", "fp32": "auto", "fp8": "fp8", "nvfp4": "nvfp4"}
DRAFTS = {"ngram": "NGram", "mtp": "MTP", "eagle": "Eagle", "eagle3": "Eagle", "model": "Draft_Target"}


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why TensorRT-LLM cannot run the plan."""
    yield from engine_refusals(deployment, "tensorrt-llm")
    job = deployment.serve_job
    if deployment.task == "encode":
        yield "trtllm-serve generates text, not embeddings: plan with --engine vllm or sglang"
    if deployment.nodes_per_replica > 1:
        yield (
            f"a replica takes {deployment.nodes_per_replica} machines, which trtllm-serve connects by MPI instead of "
            "one command per machine: plan with --engine vllm or sglang, or with larger machines"
        )
    if job.layout.dp > 1 and job.layout.tp > 1:
        yield (
            f"{job.layout.dp} attention replicas of {job.layout.tp} devices each: TensorRT-LLM supports one on each "
            "device or one on all; take another candidate (--rank)"
        )
    if job.kv_dtype.name not in CACHE:
        yield f"TensorRT-LLM has no cache in {job.kv_dtype.name}: plan with --kv-dtype bf16, fp8, nvfp4"
    how = draft_source(deployment)
    if how is not None and how.kind not in DRAFTS:
        yield f"TensorRT-LLM has no {how.kind} decoding: plan with --draft ngram"


def command(deployment: Deployment) -> Command:
    """The server of one replica; for a batch with the client that sends its share."""
    job, layout = deployment.serve_job, deployment.candidate.layout
    source = weights_source(deployment, {})
    limit, notes = context_limit(deployment)
    split = job.layout
    args = ["trtllm-serve", source.id, "--backend", "pytorch", "--tp_size", str(split.tp * split.dp)]
    args += ["--pp_size", str(split.pp)] if split.pp > 1 else []
    args += ["--ep_size", str(split.ep)] if split.ep > 1 else []
    args += ["--max_batch_size", str(layout["max_batch"]), "--max_num_tokens", str(_step_tokens(deployment))]
    args += [] if limit is None else ["--max_seq_len", str(limit)]
    args += ["--kv_cache_free_gpu_memory_fraction", f"{memory_frac(deployment):g}", "--enable_chunked_prefill"]
    args += ["--config", CONFIG, "--host", "0.0.0.0", "--port", str(PORT)]  # noqa: S104 - a container's own
    made = Command(
        args=tuple(args), secret_env=from_hub(source.id), image=image(deployment), port=PORT,
        files={CONFIG: yaml_text(_config(deployment))}, health_path="/health", metrics_path="/prometheus/metrics",
        assumptions=(*source.notes, *notes),
    )  # fmt: skip
    return with_batch_client(deployment, made) if deployment.task == "batch" else made


def _step_tokens(deployment: Deployment) -> int:
    """Tokens of a step: a chunk of prompts, or what all sequences decode."""
    return max(deployment.serve_job.software.prefill_tokens, int(deployment.candidate.layout["max_batch"]))


def _config(deployment: Deployment) -> dict[str, Any]:
    """Settings for which `trtllm-serve` has no option."""
    job = deployment.serve_job
    config: dict[str, Any] = {"return_perf_metrics": True}  # without it there are no Prometheus metrics
    if (plain := PLAIN.get(job.weights.name)) is not None:
        config["dtype"] = plain
    cache = {"dtype": CACHE[job.kv_dtype.name], "enable_block_reuse": caches_prefixes(deployment)}
    config["kv_cache_config"] = {**cache, "free_gpu_memory_fraction": memory_frac(deployment)}
    if job.layout.dp > 1:
        config["enable_attention_dp"] = True
    if (how := draft_source(deployment)) is not None:
        tokens = "num_nextn_predict_layers" if how.kind == "mtp" else "max_draft_len"
        config["speculative_config"] = {"decoding_type": DRAFTS[how.kind], tokens: how.tokens} | (
            {"speculative_model_dir": how.id} if how.id else {}
        )
    return config
