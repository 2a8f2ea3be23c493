"""SGLang's server with the layout, the formats and the limits of a plan."""

from __future__ import annotations

import math
from collections.abc import Iterator

from flopwise.exports.command import Command
from flopwise.exports.deployment import PREFILL, Deployment
from flopwise.exports.pools import pool_refusals, router_command
from flopwise.exports.replica import (
    PLAIN,
    caches_prefixes,
    context_limit,
    draft_source,
    engine_refusals,
    from_hub,
    image,
    memory_frac,
    offloaded_gib,
    request_notes,
    weights_source,
)
from flopwise.exports.server import IDLE_S, on_each_machine, with_batch_client
from flopwise.serving.job import ServeJob

PORT = 30000
INIT_PORT = 5000
"""Where processes of several machines meet."""
_BITS_AND_BYTES = ("--quantization", "bitsandbytes", "--load-format", "bitsandbytes")
ONLINE = {
    "fp8": ("--quantization", "fp8"), "fp8-tensor": ("--quantization", "fp8"), "mxfp8": ("--quantization", "mxfp8"),
    "nf4": _BITS_AND_BYTES, "nf4-dq": _BITS_AND_BYTES,
}  # fmt: skip
"""What it makes of 16-bit weights while it loads them."""
CACHE = {"bf16": "bfloat16", "fp8": "fp8_e4m3", "nvfp4": "nvfp4"}


BOOTSTRAP_PORT = 8998
"""Where servers that answer ask those for prompts for caches; SGLang's default."""
BOOTSTRAP_NOTE = "sglang.ai/bootstrap-port"
"""Annotation of pods in which the router finds that port."""
ROUTER_IMAGE = "lmsysorg/sgl-model-gateway:v0.3.2"


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why SGLang cannot run the plan."""
    if len(deployment.pools) > 1:
        yield from pool_refusals(deployment, refusals)
        return
    yield from engine_refusals(deployment, "sglang")
    job = deployment.serve_job
    if job.kv_dtype.name not in CACHE and not (job.kv_dtype.name in PLAIN and job.weights.name in PLAIN):
        yield f"SGLang has no cache in {job.kv_dtype.name}: plan with --kv-dtype {', '.join(CACHE)}"
    how = draft_source(deployment)
    if how is not None and how.kind == "suffix":
        yield "SGLang has no suffix decoding: plan with --draft ngram"


def command(deployment: Deployment) -> Command:
    """The server of one replica; for a batch with the client that sends its share."""
    job = deployment.serve_job
    source = weights_source(deployment, ONLINE)
    limit, notes = context_limit(deployment)
    args = ["python3", "-m", "sglang.launch_server", "--model-path", source.id, *_parallel(job)]
    args += _formats(job, source.options)
    args += _limits(deployment, limit)
    args += [] if caches_prefixes(deployment) else ["--disable-radix-cache"]
    args += _draft(deployment)
    away = offloaded_gib(deployment)
    args += ["--cpu-offload-gb", str(math.ceil(away))] if away else []
    if how := job.techniques.adapters:
        args += [
            "--enable-lora",
            "--max-loras-per-batch",
            str(how),
            "--max-lora-rank",
            str(job.techniques.adapter_rank),
        ]
    args += ["--is-embedding"] if deployment.task == "encode" else []
    args += ["--device", "cpu"] if deployment.accelerator.kind == "cpu" else []
    args += _pool(deployment)
    args += ["--enable-metrics", "--host", "0.0.0.0"]  # noqa: S104 - a container's own
    boots = deployment.pool == PREFILL
    made = Command(
        args=(*args, "--port", str(PORT)), env={"SGLANG_TIMEOUT_KEEP_ALIVE": IDLE_S},
        secret_env=from_hub(source.id), image=image(deployment), port=PORT, health_path="/health",
        metrics_path="/metrics", assumptions=(*source.notes, *notes, *request_notes(job, "--lora-paths")),
        bootstrap_port=BOOTSTRAP_PORT if boots else None,
        annotations={BOOTSTRAP_NOTE: str(BOOTSTRAP_PORT)} if boots else {},
    )  # fmt: skip
    if deployment.task == "batch":
        return with_batch_client(deployment, made)
    return on_each_machine(
        made, deployment.nodes_per_replica,
        f'--nnodes {deployment.nodes_per_replica} --node-rank "$NODE_RANK" --dist-init-addr "$MASTER_ADDR:{INIT_PORT}"',
    )  # fmt: skip


def _pool(deployment: Deployment) -> list[str]:
    """Options of a server in one of two pools.

    Source: SGLang, docs/advanced_features/pd_disaggregation.md.
    """
    if not deployment.pool:
        return []
    args = ["--disaggregation-mode", deployment.pool, "--disaggregation-transfer-backend", "nixl"]
    boots = ["--disaggregation-bootstrap-port", str(BOOTSTRAP_PORT)]
    return args + (boots if deployment.pool == PREFILL else [])


def router(deployment: Deployment) -> Command:
    """The router of a plan with separate servers for prompts, without their addresses.

    Source: SGLang, sgl-model-gateway/README.md; sglang-router 0.3.2.
    """
    program = ("python3", "-m", "sglang_router.launch_router", "--pd-disaggregation")
    return router_command(deployment, program, ROUTER_IMAGE, PORT, bootstrap_port=BOOTSTRAP_PORT)


def _parallel(job: ServeJob) -> list[str]:
    """Options of the layout; attention replicas are groups of the tensor-parallel ranks."""
    layout = job.layout
    args = ["--tp-size", str(layout.tp * layout.dp)]
    for degree, option in ((layout.dp, "--attn-dp-size"), (layout.pp, "--pp-size"), (layout.ep, "--ep-size")):
        args += [option, str(degree)] if degree > 1 else []
    return args


def _formats(job: ServeJob, online: tuple[str, ...]) -> list[str]:
    """Options of the formats; checkpoints say their own, but for GGUF files."""
    plain = PLAIN.get(job.weights.name)
    args = ["--dtype", plain] if plain else []
    args += ["--quantization", "gguf", "--load-format", "gguf"] if job.weights.kind == "gguf" else online
    follows = plain and job.kv_dtype.name in PLAIN
    return args if follows else [*args, "--kv-cache-dtype", CACHE[job.kv_dtype.name]]


def _limits(deployment: Deployment, limit: int | None) -> list[str]:
    """Sequences of all attention replicas, tokens of a step and of a sequence, memory."""
    job = deployment.serve_job
    most, step = deployment.candidate.layout["max_batch"] * int(job.layout.dp), job.software.prefill_tokens
    args = ["--max-running-requests", str(most), "--chunked-prefill-size", str(step)]
    args += [] if limit is None else ["--context-length", str(limit)]
    order = ["--enable-priority-scheduling", "--schedule-low-priority-values-first"] * (job.policy == "priority")
    return [*args, "--mem-fraction-static", f"{memory_frac(deployment):g}", "--schedule-policy", "fcfs", *order]


def _draft(deployment: Deployment) -> list[str]:
    """Options of a draft; of its tokens one is the target's own, the root of what is verified."""
    if (how := draft_source(deployment)) is None:
        return []
    names = {"ngram": "NGRAM", "mtp": "NEXTN", "eagle": "EAGLE", "eagle3": "EAGLE3", "model": "STANDALONE"}
    args = ["--speculative-algorithm", names[how.kind]]
    args += ["--speculative-draft-model-path", how.id] if how.id else []
    if how.kind != "ngram":
        args += ["--speculative-num-steps", str(how.tokens), "--speculative-eagle-topk", "1"]
    return [*args, "--speculative-num-draft-tokens", str(how.tokens + 1)]
