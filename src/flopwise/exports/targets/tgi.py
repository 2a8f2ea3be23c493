"""Text Generation Inference: its launcher with the shards, the formats and the limits of a plan."""

from __future__ import annotations

from collections.abc import Iterator

from flopwise.exports.command import Command
from flopwise.exports.deployment import Deployment
from flopwise.exports.replica import (
    PLAIN,
    TEMPLATE_TOKENS,
    caches_prefixes,
    context_limit,
    draft_source,
    engine_refusals,
    from_hub,
    image,
    longest_request,
    weights_source,
)
from flopwise.exports.server import with_batch_client

PORT = 3000
ONLINE = {
    "fp8": ("--quantize", "fp8"), "fp8-tensor": ("--quantize", "fp8"), "llm-int8": ("--quantize", "bitsandbytes"),
    "nf4": ("--quantize", "bitsandbytes-nf4"), "nf4-dq": ("--quantize", "bitsandbytes-nf4"),
}  # fmt: skip
"""What it makes of 16-bit weights while it loads them."""
QUEUE = 4
"""Requests in the server for each that runs: more of them are refused at once."""


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why TGI cannot run the plan."""
    yield from engine_refusals(deployment, "tgi")
    job = deployment.serve_job
    if deployment.task == "encode":
        yield "TGI generates text, not embeddings: plan with --engine vllm or sglang"
    if job.layout.pp > 1 or job.layout.dp > 1 or job.layout.ep > 1 or deployment.nodes_per_replica > 1:
        yield f"TGI splits a model by tensors on one machine; the plan has {job.layout.text}: plan with --engine vllm"
    if job.kv_dtype.name not in {*PLAIN, "fp8"}:
        yield f"TGI has no cache in {job.kv_dtype.name}: plan with --kv-dtype bf16 or fp8"
    if job.weights.name == "fp32":
        yield "TGI has no weights in fp32: plan with --weights bf16"
    how = draft_source(deployment)
    if how is not None and how.kind != "ngram":
        yield f"TGI speculates with n-grams, not with {how.kind}: plan with --draft ngram"


def command(deployment: Deployment) -> Command:
    """The server of one replica; for a batch with the client that sends its share."""
    job, most = deployment.serve_job, deployment.candidate.layout["max_batch"]
    source = weights_source(deployment, ONLINE)
    limit, notes = context_limit(deployment)
    args = ["text-generation-launcher", "--model-id", source.id, "--num-shard", str(job.layout.tp), *source.options]
    plain = PLAIN.get(job.weights.name)
    args += ["--dtype", plain] if plain else []
    args += ["--kv-cache-dtype", "fp8_e4m3fn"] if job.kv_dtype.name == "fp8" else []
    args += ["--max-concurrent-requests", str(QUEUE * most), *_tokens(deployment, limit)]
    if (share := deployment.workload.limits.memory_fraction) is not None:
        args += ["--cuda-memory-fraction", f"{share:g}"]
    if (how := draft_source(deployment)) is not None:
        args += ["--speculate", str(how.tokens)]
    args += ["--hostname", "0.0.0.0", "--port", str(PORT)]  # noqa: S104 - a container's own
    queue = f"more than {QUEUE * most:,} requests in the server ({QUEUE} per running request) are refused"
    made = Command(
        args=tuple(args), env={"PREFIX_CACHING": "1" if caches_prefixes(deployment) else "0"},
        secret_env=from_hub(source.id), image=image(deployment), port=PORT, health_path="/health",
        metrics_path="/metrics", assumptions=(*source.notes, *notes, queue),
    )  # fmt: skip
    return with_batch_client(deployment, made) if deployment.task == "batch" else made


def _tokens(deployment: Deployment, limit: int | None) -> list[str]:
    """Tokens of a prompt, of a sequence, of a step of prompts, and of all sequences that run."""
    job, longest = deployment.serve_job, longest_request(deployment)
    running = deployment.candidate.layout["max_batch"] * job.context
    if limit is None or longest is None:
        return ["--max-batch-total-tokens", str(max(running, deployment.model.max_position or 0))]
    prompt = longest[0] + TEMPLATE_TOKENS
    step = max(job.software.prefill_tokens, prompt)
    return [
        "--max-input-tokens", str(prompt), "--max-total-tokens", str(limit), "--max-batch-prefill-tokens", str(step),
        "--max-batch-total-tokens", str(max(running, limit)),
    ]  # fmt: skip
