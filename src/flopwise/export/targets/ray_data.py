"""Ray Data: vLLM's replicas of a plan answer a file of requests on a Ray cluster."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

from flopwise.export.deployment import Deployment
from flopwise.export.emit import json_text
from flopwise.export.exported import Files
from flopwise.export.targets import vllm

PROGRAM = "ray_batch.py"
BATCHES = 8
"""Batches that a replica works on at once; together they are twice what its engine runs, so that it never waits."""
OF_A_SERVER = {"--host", "--port", "--enable-metrics", "--model"}
"""Options of vLLM's programs that its engine does not have."""


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why Ray Data cannot run the plan."""
    yield from vllm.refusals(deployment)


def export(deployment: Deployment) -> Files:
    """`batch.json`, and the program that reads it."""
    command, layout = vllm.command(deployment), deployment.candidate.layout
    model, options = _engine_options(command.args)
    job = {
        "title": deployment.title, "input": deployment.value("data"), "output": deployment.value("output"),
        "max_tokens": deployment.workload.output_tokens,
        "processor": {
            "model_source": model, "concurrency": deployment.replicas, "max_concurrent_batches": BATCHES,
            "batch_size": max(1, math.ceil(2 * layout["max_batch"] / BATCHES)), "engine_kwargs": options,
        },
    }  # fmt: skip
    program = resources.files("flopwise.export.programs").joinpath(PROGRAM).read_text(encoding="utf-8")
    return Files(
        files={"batch.json": json_text(job), PROGRAM: program},
        apply=(f"ray job submit --working-dir . -- python3 {PROGRAM} batch.json",),
        assumptions=(*command.assumptions, *_notes(deployment)),
    )  # fmt: skip


def _engine_options(args: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """(the weights, what the engine is told) of the words of vLLM's command, whose options it names alike."""
    words, options, model = list(args[args.index("vllm") + 2 :]), dict[str, Any](), ""
    while words:
        word = words.pop(0)
        value = words.pop(0) if word.startswith("--") and words and not words[0].startswith("--") else None
        if not word.startswith("--") or word == "--model":
            model = value or word
        elif word not in OF_A_SERVER:
            off = value is None and word.startswith("--no-")
            name = word.removeprefix("--no-" if off else "--").replace("-", "_")
            options[name] = not off if value is None else _plain(value)
    return model, options


def _plain(text: str) -> Any:
    """A number or an object where the text is one."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _notes(deployment: Deployment) -> Iterator[str]:
    gpus = deployment.gpus_per_replica
    yield f"the Ray cluster has {deployment.num_nodes} x {deployment.offer.instance}, or {gpus} free devices a replica"
    yield "the cluster's image has ray[data,llm] 2.60 with vLLM, and HF_TOKEN where the weights are gated"
    yield "answers have no randomness (temperature 0) where a request does not say"
