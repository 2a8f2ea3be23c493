"""vLLM's server: one command for a replica, with the plan's layout, formats and limits."""

from __future__ import annotations

from collections.abc import Iterator

from flopwise.export.command import Command
from flopwise.export.deployment import Deployment
from flopwise.export.emit import command_text, comment_text, script_text
from flopwise.export.exported import Files

PORT = 8000


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why vLLM cannot run the plan."""
    engine = deployment.candidate.layout["engine"]
    if engine != "vllm":
        yield f"the plan is for {engine}; plan again with --engine vllm"


def command(deployment: Deployment) -> Command:
    """The server of one replica."""
    job, layout = deployment.serving, deployment.candidate.layout
    assert job is not None
    args = ["vllm", "serve", deployment.model_id, "--tensor-parallel-size", str(layout["tp"])]
    if layout["pp"] > 1:
        args += ["--pipeline-parallel-size", str(layout["pp"])]
    args += ["--max-num-seqs", str(layout["max_batch"]), "--port", str(PORT)]
    return Command(
        args=tuple(args), secret_env={"HF_TOKEN": "weights_secret"}, port=PORT, health_path="/health",
        metrics_path="/metrics",
    )  # fmt: skip


def export(deployment: Deployment) -> Files:
    """`serve.sh`, which starts one replica."""
    one = command(deployment)
    about = comment_text(f"One of {deployment.replicas} replicas of {deployment.title}.")
    return Files(
        files={"serve.sh": script_text(about, f"exec {command_text(one.args, one.env)}")},
        apply=("./serve.sh",), assumptions=one.assumptions,
    )  # fmt: skip
