"""A Ray cluster of the plan's machines that stays: runs and batches are sent to it."""

from __future__ import annotations

from flopwise.exports import kubernetes as parts
from flopwise.exports import kubernetes_training as training
from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import yaml_text
from flopwise.exports.exported import Files
from flopwise.exports.ray_cluster import ENTRYPOINT, PORTS, launch_command, launch_notes, launch_refusals, ray_cluster

refusals = launch_refusals


def export(deployment: Deployment) -> Files:
    """`raycluster.yaml`: the RayCluster, with the files of the run and the claims of its folders."""
    command = launch_command(deployment)
    one = {
        "apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": parts.metadata(deployment),
        "spec": ray_cluster(deployment, command),
    }  # fmt: skip
    port = PORTS["dashboard"]
    return Files(
        files={
            "raycluster.yaml": yaml_text(
                *parts.config_map(deployment, command), *training.run_claims(deployment), one
            ),
        },
        apply=(
            "kubectl apply -f raycluster.yaml",
            f"kubectl port-forward service/{deployment.name}-head-svc {port} &",
            f"ray job submit --address http://127.0.0.1:{port} -- {ENTRYPOINT}",
        ),
        assumptions=launch_notes(deployment, command),
    )  # fmt: skip
