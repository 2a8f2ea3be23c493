"""text-embeddings-inference: its router with the format and the batches of a plan for an encoder."""

from __future__ import annotations

from collections.abc import Iterator

from flopwise.exports.command import Command
from flopwise.exports.deployment import Deployment
from flopwise.exports.replica import PLAIN, engine_refusals, from_hub, image, weights_source
from flopwise.facts.software import platform

PORT, METRICS_PORT = 3000, 9000
QUEUE = 4
"""Requests in the server for each input of a batch: more of them are refused at once."""
TAGS = {"7.5": "turing-", "8.0": "", "8.6": "86-", "8.9": "89-", "9.0": "hopper-"}
"""What stands before the version in the image's tag, by compute capability.

Source: text-embeddings-inference documentation, supported hardware."""


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why text-embeddings-inference cannot run the plan."""
    yield from engine_refusals(deployment, "tei")
    job = deployment.serve_job
    if deployment.task != "encode":
        yield "text-embeddings-inference generates no text: plan with --engine vllm"
    if job.num_gpus > 1:
        yield f"text-embeddings-inference runs on one device; the plan has {job.layout.text}: plan with --engine vllm"
    if job.weights.name not in ("fp16", "fp32"):
        yield f"text-embeddings-inference has no weights in {job.weights.name}: plan with --weights fp16"


def command(deployment: Deployment) -> Command:
    """The server of one replica."""
    job, most = deployment.serve_job, deployment.candidate.layout["max_batch"]
    source = weights_source(deployment, {})
    tokens = max(most * job.input_tokens, deployment.model.max_position or job.input_tokens)  # the longest input, alone
    args = [
        "text-embeddings-router", "--model-id", source.id, "--dtype", PLAIN[job.weights.name],
        "--max-batch-requests", str(most), "--max-batch-tokens", str(tokens),
        "--max-concurrent-requests", str(QUEUE * most), "--hostname", "0.0.0.0",  # noqa: S104 - a container's own
        "--port", str(PORT), "--prometheus-port", str(METRICS_PORT),
    ]  # fmt: skip
    queue = f"more than {QUEUE * most:,} requests in the server ({QUEUE} per input of a batch) are refused"
    return Command(
        args=tuple(args), secret_env=from_hub(source.id), image=_image(deployment), port=PORT, health_path="/health",
        metrics_path="/metrics", metrics_port=METRICS_PORT, assumptions=(*source.notes, queue),
    )  # fmt: skip


def _image(deployment: Deployment) -> str:
    """The container image with the tag of the device's architecture."""
    name, device = image(deployment), deployment.accelerator
    if deployment.settings.image or platform(device) != "nvidia":
        return name
    before, _, version = name.rpartition(":")
    return f"{before}:{TAGS.get(str(device.compute_capability), '')}{version}"
