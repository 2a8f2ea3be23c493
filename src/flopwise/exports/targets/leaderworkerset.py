"""A service whose replicas take several machines each: a LeaderWorkerSet, whose leaders answer; one of each pool."""

from __future__ import annotations

from collections.abc import Iterator

from flopwise.exports import kubernetes as parts
from flopwise.exports import kubernetes_service as serving
from flopwise.exports.command import Command
from flopwise.exports.deployment import Deployment
from flopwise.exports.exported import Files
from flopwise.exports.kubernetes import Object

WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
"""Label of a pod: its number in its replica; that of the leader is 0."""


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why no LeaderWorkerSet can serve the plan."""
    if max(servers.nodes_per_replica for servers in deployment.pools) == 1:
        yield "a replica fits on one machine: export kubernetes instead"
    yield from serving.pods_refusals(deployment)


def export(deployment: Deployment) -> Files:
    """`leaderworkerset.yaml`: LeaderWorkerSet, Service and PodDisruptionBudget of the leaders."""
    notes = (
        *parts.placement_notes(deployment), *map(serving.start_note, deployment.pools),
        "LeaderWorkerSet 0.8 or later is installed; a replica starts again as a whole when one of its pods does",
        "machines of a replica are close together if their node pool has a placement group",
    )  # fmt: skip
    return serving.service_files("leaderworkerset.yaml", deployment, _set, notes, {WORKER_INDEX: "0"})


def _set(deployment: Deployment, command: Command) -> Object:
    """The LeaderWorkerSet: each machine of a replica is told its number and where the leader is."""
    more = {
        "NODE_RANK": {"fieldRef": {"fieldPath": f"metadata.labels['{WORKER_INDEX}']"}},
        "MASTER_ADDR": "$(LWS_LEADER_ADDRESS)",
    }
    devices = min(deployment.gpus_per_replica, deployment.gpus_per_node)
    leader = serving.serving_pod(deployment, command, devices, more)
    worker = parts.pod(deployment, command, devices, more=more)
    worker["terminationGracePeriodSeconds"] = leader["terminationGracePeriodSeconds"]
    worker["containers"][0].pop("ports", None)
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
        "metadata": parts.metadata(deployment),
        "spec": {
            "replicas": deployment.replicas, "startupPolicy": "LeaderCreated",
            "rolloutStrategy": {
                "type": "RollingUpdate", "rollingUpdateConfiguration": {"maxSurge": 0, "maxUnavailable": 1},
            },
            "leaderWorkerTemplate": {
                "size": deployment.nodes_per_replica, "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": serving.template(deployment, command, leader),
                "workerTemplate": {"metadata": {"labels": parts.labels(deployment)}, "spec": worker},
            },
        },
    }  # fmt: skip
