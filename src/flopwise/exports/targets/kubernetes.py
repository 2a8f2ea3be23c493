"""A service on Kubernetes: a Deployment with a pod a replica, its Service, and what keeps enough replicas there."""

from __future__ import annotations

from collections.abc import Iterator

from flopwise.exports import kubernetes as parts
from flopwise.exports import kubernetes_service as serving
from flopwise.exports.command import Command
from flopwise.exports.deployment import Deployment
from flopwise.exports.exported import Files
from flopwise.exports.kubernetes import Object


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why no Deployment can serve the plan."""
    if deployment.nodes_per_replica > 1:
        yield f"a replica takes {deployment.nodes_per_replica} machines: export leaderworkerset instead"
    yield from serving.server_refusals(deployment)


def export(deployment: Deployment) -> Files:
    """`kubernetes.yaml`: Deployment, Service and PodDisruptionBudget."""
    command = serving.server(deployment)
    return parts.manifests(
        "kubernetes.yaml", *parts.config_map(deployment, command), *serving.weight_claims(deployment),
        _deployment(deployment, command), serving.service(deployment, command), serving.disruption_budget(deployment),
        assumptions=(*command.assumptions, *_notes(deployment)),
    )  # fmt: skip


def _spare(deployment: Deployment) -> int:
    """Replicas that the plan's machines hold beyond the plan's own."""
    inside = deployment.gpus_per_node // deployment.gpus_per_replica
    return deployment.num_nodes * inside - deployment.replicas


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
    return round(deployment.facts.start_s("machine", "image") + serving.start_ends_s(deployment)[1]) + 600


def _notes(deployment: Deployment) -> Iterator[str]:
    yield from parts.placement_notes(deployment)
    yield serving.start_note(deployment)
    if _spare(deployment) <= 0 and deployment.replicas == 1:
        yield "its only replica takes a whole machine: the service is down during updates"
