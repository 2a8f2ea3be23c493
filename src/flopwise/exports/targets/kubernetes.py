"""A service on Kubernetes: a Deployment with a pod a replica, its Service, and what keeps enough replicas there.

A plan with separate servers for prompts has a Deployment for each pool, and a router behind the Service.
"""

from __future__ import annotations

from collections.abc import Iterator

from flopwise.exports import kubernetes as parts
from flopwise.exports import kubernetes_service as serving
from flopwise.exports.command import Command
from flopwise.exports.deployment import DECODE, PREFILL, Deployment
from flopwise.exports.exported import Files
from flopwise.exports.kubernetes import Object
from flopwise.exports.replica import start_ends_s

ALONE = {
    "": "its only replica takes a whole machine", PREFILL: "one server alone reads prompts",
    DECODE: "one server alone writes answers",
}  # fmt: skip
"""Of a pool with a single server."""


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why no Deployment can serve the plan."""
    if (nodes := max(servers.nodes_per_replica for servers in deployment.pools)) > 1:
        yield f"a replica takes {nodes} machines: export leaderworkerset instead"
    yield from serving.pods_refusals(deployment)


def export(deployment: Deployment) -> Files:
    """`kubernetes.yaml`: Deployment, Service and PodDisruptionBudget; of pools each its own, and a router."""
    return serving.service_files("kubernetes.yaml", deployment, _deployment, _notes(deployment))


def _spare(deployment: Deployment) -> int:
    """Replicas that the plan's machines hold beyond the plan's own; none is counted on beside another pool."""
    inside = deployment.gpus_per_node // deployment.gpus_per_replica
    return 0 if deployment.pool else deployment.num_nodes * inside - deployment.replicas


def _deployment(deployment: Deployment, command: Command) -> Object:
    """The Deployment: new pods come first where the machines have room for one more, else old ones go first."""
    spec = serving.serving_pod(deployment, command, deployment.gpus_per_replica)
    room = _spare(deployment) > 0
    update = {"maxSurge": 1, "maxUnavailable": 0} if room else {"maxSurge": 0, "maxUnavailable": 1}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": parts.metadata(deployment),
        "spec": {
            "replicas": deployment.replicas, "selector": {"matchLabels": serving.selector(deployment)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": update},
            "progressDeadlineSeconds": _deadline_s(deployment),
            "template": serving.template(deployment, command, spec),
        },
    }  # fmt: skip


def _deadline_s(deployment: Deployment) -> int:
    """Seconds after which a rollout that makes no progress has failed: a machine, its image and a slow start."""
    return round(deployment.facts.start_s("machine", "image") + start_ends_s(deployment)[1]) + 600


def _notes(deployment: Deployment) -> Iterator[str]:
    yield from parts.placement_notes(deployment)
    for servers in deployment.pools:
        yield serving.start_note(servers)
        if _spare(servers) <= 0 and servers.replicas == 1:
            yield f"{ALONE[servers.pool]}: the service is down during updates"
