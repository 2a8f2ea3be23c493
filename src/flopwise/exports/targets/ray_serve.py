"""A service on Ray: Ray Serve's LLM application with the plan's engine arguments, and a RayService that runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flopwise.exports import kubernetes_service as serving
from flopwise.exports.autoscaling import scaling_rule
from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import yaml_text
from flopwise.exports.exported import Files
from flopwise.exports.kubernetes import config_map, metadata, placement_notes
from flopwise.exports.ray_cluster import NOTES, ray_cluster
from flopwise.exports.targets.vllm import engine_options


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why Ray Serve cannot run the plan."""
    engine = deployment.candidate.layout["engine"]
    if engine != "vllm":
        yield f"Ray Serve's LLM application runs vLLM, and the plan is for {engine}: plan again with --engine vllm"
        return
    if deployment.candidate.layout.get("dp", 1) > 1:
        yield "data-parallel attention (dp) needs another Ray application: take a candidate with dp 1 (--rank)"
    if deployment.task == "encode":
        yield "Ray Serve's LLM application serves chat, and the plan is for an encoder: export kubernetes instead"
    yield from serving.server_refusals(deployment)


def export(deployment: Deployment) -> Files:
    """`serve.yaml`, the application for `serve deploy`, and `rayservice.yaml`, which runs it on Kubernetes."""
    command = serving.server(deployment)
    application = {"applications": [_application(deployment, command.args)]}
    one = {
        "apiVersion": "ray.io/v1", "kind": "RayService", "metadata": metadata(deployment),
        "spec": {
            "serveConfigV2": yaml_text(application), "rayClusterConfig": ray_cluster(deployment, command),
        },
    }  # fmt: skip
    return Files(
        files={
            "serve.yaml": yaml_text(application),
            "rayservice.yaml": yaml_text(*config_map(deployment, command), *serving.weight_claims(deployment), one),
        },
        apply=("kubectl apply -f rayservice.yaml",),
        assumptions=(
            *command.assumptions, *placement_notes(deployment),
            *NOTES, "the image has ray[serve,llm] and vLLM (rayproject/ray-llm)",
        ),
    )  # fmt: skip


def _application(deployment: Deployment, args: Sequence[str]) -> dict[str, Any]:
    """The application: replicas of one engine, each of which takes its batch, and their bounds."""
    rule, slots = scaling_rule(deployment), deployment.candidate.layout["max_batch"]
    source, options = engine_options(args)
    return {
        "name": "llm", "route_prefix": "/", "import_path": "ray.serve.llm:build_openai_app",
        "args": {"llm_configs": [{
            "model_loading_config": {"model_id": deployment.title, "model_source": source},
            "engine_kwargs": options,
            "deployment_config": {
                "max_ongoing_requests": slots + rule.waiting,
                "autoscaling_config": {
                    "min_replicas": deployment.replicas, "max_replicas": deployment.replicas,
                    "target_ongoing_requests": rule.running,
                },
            },
        }]},
    }  # fmt: skip
