"""A run or a batch on Ray: a RayJob that makes its cluster, starts the plan's command on it, and takes it down."""

from __future__ import annotations

from flopwise.exports import kubernetes as parts
from flopwise.exports import kubernetes_training as training
from flopwise.exports.deployment import Deployment
from flopwise.exports.exported import Files
from flopwise.exports.ray_cluster import ENTRYPOINT, launch_command, launch_notes, launch_refusals, ray_cluster

refusals = launch_refusals


def export(deployment: Deployment) -> Files:
    """`rayjob.yaml`: the RayJob, with its files and the claims of its folders."""
    command, queue = launch_command(deployment), training.queue_label(deployment)
    one = {
        "apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": parts.metadata(deployment, more=queue),
        "spec": {
            "entrypoint": ENTRYPOINT, "submissionMode": "K8sJobMode", "shutdownAfterJobFinishes": True,
            "backoffLimit": training.restarts(deployment), **({"suspend": True} if queue else {}),
            "rayClusterSpec": ray_cluster(deployment, command),
        },
    }  # fmt: skip
    return parts.manifests(
        "rayjob.yaml", *parts.config_map(deployment, command), *training.run_claims(deployment), one,
        assumptions=launch_notes(deployment, command),
    )  # fmt: skip
