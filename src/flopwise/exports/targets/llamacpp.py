"""llama.cpp: `llama-server` with the layers, the formats and the slots of a plan."""

from __future__ import annotations

from collections.abc import Iterator

from flopwise.exports.command import Command
from flopwise.exports.deployment import Deployment
from flopwise.exports.replica import (
    PLAIN,
    cache_room,
    caches_prefixes,
    context_limit,
    draft_source,
    engine_refusals,
    image,
)
from flopwise.exports.server import with_batch_client
from flopwise.exports.spec import PLACEHOLDERS

PORT = 8080
CACHE = {"bf16": "bf16", "fp16": "f16", "fp32": "f32", "q8_0": "q8_0", "q4_0": "q4_0", "q5_1": "q5_1"}
DRAFTS = {
    "ngram": "ngram-simple", "mtp": "draft-mtp", "eagle3": "draft-eagle3", "model": "draft-simple",
}  # fmt: skip


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why llama.cpp cannot run the plan."""
    yield from engine_refusals(deployment, "llama.cpp")
    job = deployment.serve_job
    if deployment.nodes_per_replica > 1:
        yield (
            f"a replica takes {deployment.nodes_per_replica} machines, and llama-server runs on one: plan with "
            "--engine vllm"
        )
    if job.layout.tp > 1 and job.layout.pp > 1:
        yield "llama-server splits a model by layers or by rows, not both: take another candidate (--rank)"
    if job.layout.dp > 1 or job.layout.ep > 1:
        yield "llama-server neither spreads experts nor has attention replicas: take another candidate (--rank)"
    if job.kv_dtype.name not in CACHE:
        yield f"llama.cpp has no cache in {job.kv_dtype.name}: plan with --kv-dtype {', '.join(CACHE)}"
    how = draft_source(deployment)
    if how is not None and how.kind not in DRAFTS:
        yield f"llama-server has no {how.kind} decoding: plan with --draft ngram, mtp, eagle3 or a model"


def command(deployment: Deployment) -> Command:
    """The server of one replica; for a batch with the client that sends its share."""
    job = deployment.serve_job
    limit, notes = context_limit(deployment)
    whole = limit or deployment.model.max_position or job.context
    most = min(int(deployment.candidate.layout["max_batch"]), max(cache_room(deployment).tokens // whole, 1))
    step = str(job.software.prefill_tokens)
    args = ["llama-server", *_weights(deployment), *_layers(deployment)]
    args += ["--parallel", str(most), "--ctx-size", str(most * whole)]  # taken at the start; slots share it evenly
    args += ["--batch-size", step, "--ubatch-size", step, "--cache-type-k", CACHE[job.kv_dtype.name]]
    args += ["--cache-type-v", CACHE[job.kv_dtype.name]]
    args += ["--flash-attn", "on"] if job.kv_dtype.name not in PLAIN else []  # values in blocks need it
    args += [] if caches_prefixes(deployment) else ["--no-cache-prompt"]
    args += _draft(deployment)
    args += ["--embeddings"] if deployment.task == "encode" else []
    args += ["--metrics", "--host", "0.0.0.0", "--port", str(PORT)]  # noqa: S104 - a container's own
    need = f"llama.cpp reads GGUF files: --model-path must name one of {deployment.model.name} in {job.weights.name}"
    made = Command(
        args=tuple(args), image=image(deployment), port=PORT, health_path="/health", metrics_path="/metrics",
        assumptions=(need, *notes, "the image's tag moves with each build of llama.cpp: pin one with --image"),
    )  # fmt: skip
    return with_batch_client(deployment, made) if deployment.task == "batch" else made


def _weights(deployment: Deployment) -> list[str]:
    """A file, or a repository of the hub with the name of the format."""
    given = deployment.settings.model_path
    if given is not None and not given.endswith(".gguf") and "/" in given and not given.startswith(("/", ".")):
        return ["--hf-repo", f"{given}:{deployment.serve_job.weights.name}"]
    return ["--model", given or PLACEHOLDERS["model_path"]]


def _layers(deployment: Deployment) -> list[str]:
    """Layers on the device, and how several devices share them."""
    job = deployment.serve_job
    if deployment.accelerator.kind == "cpu":
        return []
    layers, away = job.model.stacks[0].num_layers, job.techniques.offload
    stay = "all" if away is None else str(round(layers * (1.0 - away.frac)))
    split = "row" if job.layout.tp > 1 else "layer" if job.layout.pp > 1 else "none"
    return ["--n-gpu-layers", stay, "--split-mode", split]


def _draft(deployment: Deployment) -> list[str]:
    """Options of a draft."""
    if (how := draft_source(deployment)) is None:
        return []
    length = "--spec-ngram-simple-size-m" if how.kind == "ngram" else "--spec-draft-n-max"
    args = ["--spec-type", DRAFTS[how.kind], length, str(how.tokens)]
    return [*args, "--spec-draft-model", deployment.value("draft_path")] if how.id else args
