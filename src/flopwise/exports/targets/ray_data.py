"""Ray Data: vLLM's replicas of a plan answer a file of requests on a Ray cluster."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib import resources

from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import json_text
from flopwise.exports.exported import Files
from flopwise.exports.targets import vllm

refusals = vllm.refusals
PROGRAM = "ray_batch.py"
BATCHES = 8
"""Batches that a replica works on at once; together they are twice what its engine runs, so that it never waits."""


def export(deployment: Deployment) -> Files:
    """`batch.json`, and the program that reads it."""
    command, layout = vllm.command(deployment), deployment.candidate.layout
    model, options = vllm.engine_options(command.args)
    job = {
        "title": deployment.title, "input": deployment.value("data"), "output": deployment.value("output"),
        "max_tokens": deployment.workload.output_tokens,
        "processor": {
            "model_source": model, "concurrency": deployment.replicas, "max_concurrent_batches": BATCHES,
            "batch_size": max(1, math.ceil(2 * layout["max_batch"] / BATCHES)), "engine_kwargs": options,
        },
    }  # fmt: skip
    program = resources.files("flopwise.exports.programs").joinpath(PROGRAM).read_text(encoding="utf-8")
    return Files(
        files={"batch.json": json_text(job), PROGRAM: program},
        apply=(f"ray job submit --working-dir . -- python3 {PROGRAM} batch.json",),
        assumptions=(*command.assumptions, *_notes(deployment)),
    )  # fmt: skip


def _notes(deployment: Deployment) -> Iterator[str]:
    gpus = deployment.gpus_per_replica
    yield f"the Ray cluster has {deployment.num_nodes} x {deployment.offer.instance}, or {gpus} free devices a replica"
    yield "the cluster's image has ray[data,llm] 2.60 with vLLM, and HF_TOKEN if the weights are gated"
    yield "answers are deterministic (temperature 0) unless a request sets a temperature"
