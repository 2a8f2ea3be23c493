"""Parts of services on Kubernetes: probes that allow for the start, graceful termination, disruption budgets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from flopwise.errors import InfeasibleError
from flopwise.exports import kubernetes
from flopwise.exports.command import Command
from flopwise.exports.deployment import Deployment
from flopwise.exports.kubernetes import Object
from flopwise.fleet.workload_alerts import BUSY_LIMIT
from flopwise.ops.weights import weight_bytes
from flopwise.serving.startup import DEFAULT_STORAGE, cold_start

SLOWEST = "hdd"
"""The slowest storage that weights are expected to come from: the upper end of the start time."""
PERIOD_S = 10
FAILURES = 3
DRAIN_S = 10
"""Time until endpoints remove a terminating pod, in seconds."""
MOST_STOP_S = 3600


def server(deployment: Deployment) -> Command:
    """The command of one replica."""
    from flopwise.exports.server import serving_command  # noqa: PLC0415 - refusals of others need it not

    return serving_command(deployment)


def server_refusals(deployment: Deployment) -> Iterator[str]:
    """Reasons why pods cannot serve the plan."""
    yield from kubernetes.node_refusals(deployment)
    try:
        server(deployment)
    except InfeasibleError as error:
        yield from error.reasons


def start_ends_s(deployment: Deployment) -> tuple[float, float]:
    """Time from a container's start to its first answer, in seconds: weights from a local drive or the slowest storage.

    Source: `flopwise.serving.startup.cold_start`, data/storage.csv. Assumes: the image is on the machine.
    """
    job, facts, network = deployment.serving, deployment.facts, deployment.offer.network_bytes_per_s
    assert job is not None
    slow = facts.storage(SLOWEST)
    slow = replace(slow, read_bytes_per_s=min(slow.read_bytes_per_s, network or math.inf))
    fast, late = cold_start(job, facts.storage(DEFAULT_STORAGE)).seconds, cold_start(job, slow).seconds
    return min(fast, late), max(fast, late)


def start_note(deployment: Deployment) -> str:
    """Assumptions of the startup probe."""
    low, high = start_ends_s(deployment)
    rate = deployment.facts.storage(SLOWEST).read_bytes_per_s
    return (
        f"a replica answers {low:,.0f} to {high:,.0f} s after its container starts, if weights arrive at "
        f"{rate / 1e9:g} GB/s or faster; the startup probe allows for that, and a slower download needs a higher "
        "failureThreshold"
    )


def probes(deployment: Deployment, command: Command) -> Object:
    """Startup, readiness and liveness probes: a start may take its upper end; three failures restart a server."""
    if not command.health_path:
        return {}
    check = {"httpGet": {"path": command.health_path, "port": command.port}, "periodSeconds": PERIOD_S}
    starts = math.ceil(start_ends_s(deployment)[1] / PERIOD_S)
    return {
        "startupProbe": check | {"timeoutSeconds": 5, "failureThreshold": starts},
        "readinessProbe": check | {"timeoutSeconds": 5, "failureThreshold": FAILURES},
        "livenessProbe": check | {"timeoutSeconds": 30, "failureThreshold": FAILURES},
    }


def stop_s(deployment: Deployment) -> int:
    """Termination grace period in seconds: twice the longest planned request, plus the drain."""
    chosen = deployment.candidate
    longest = chosen.seconds_high or chosen.seconds
    if chosen.simulated is not None:
        longest = max(longest, chosen.simulated.e2e_s.get("p99") or 0.0)
    return DRAIN_S + min(MOST_STOP_S, max(30, math.ceil(2 * longest)))


def serving_pod(deployment: Deployment, command: Command, devices: int, more: dict[str, Any] | None = None) -> Object:
    """The spec of a serving pod with probes, graceful termination, and spread over machines and zones."""
    spec = kubernetes.pod(deployment, command, devices, more=more)
    (main,) = spec["containers"]
    main |= probes(deployment, command)
    main["lifecycle"] = {"preStop": {"exec": {"command": ["sleep", str(DRAIN_S)]}}}
    spread = [
        {
            "maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector(deployment)},
        }
        for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
    ]  # fmt: skip
    many = (
        {"topologySpreadConstraints": spread} if deployment.replicas > 1 and deployment.nodes_per_replica == 1 else {}
    )
    return spec | {"terminationGracePeriodSeconds": stop_s(deployment)} | many


def selector(deployment: Deployment) -> dict[str, str]:
    """The label that selects the pods of a service."""
    return {kubernetes.NAME_LABEL: deployment.name}


def template(deployment: Deployment, command: Command, spec: Object, more: dict[str, str] | None = None) -> Object:
    """A pod template with annotations for Prometheus; `more`: additional labels."""
    meta = kubernetes.metadata(deployment, more=more)
    if command.metrics_path:
        meta["annotations"] |= {
            "prometheus.io/scrape": "true", "prometheus.io/port": str(command.port),
            "prometheus.io/path": command.metrics_path,
        }  # fmt: skip
    return {"metadata": {"labels": meta["labels"], "annotations": meta["annotations"]}, "spec": spec}


def service(deployment: Deployment, command: Command, more: dict[str, str] | None = None) -> Object:
    """The Service of a deployment at the port of its server; `more`: additional labels of the selector."""
    port = {"name": "http", "port": command.port, "targetPort": "http", "protocol": "TCP"}
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": kubernetes.metadata(deployment),
        "spec": {"type": "ClusterIP", "selector": selector(deployment) | (more or {}), "ports": [port]},
    }  # fmt: skip


def replicas_away(deployment: Deployment) -> int:
    """Maximum number of unavailable replicas: those not needed at `BUSY_LIMIT`, at least 1.

    Source: arithmetic on the plan's busy share. Assumes: load is spread evenly over the remaining replicas.
    """
    busy = deployment.candidate.figures.get("busy_frac")
    if busy is None:
        return 1
    needed = math.ceil(round(deployment.replicas * busy / BUSY_LIMIT, 6))
    return max(1, deployment.replicas - needed)


def disruption_budget(deployment: Deployment, more: dict[str, str] | None = None) -> Object:
    """The PodDisruptionBudget: drains of nodes remove only replicas that the load does not need."""
    return {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": kubernetes.metadata(deployment),
        "spec": {
            "maxUnavailable": replicas_away(deployment),
            "selector": {"matchLabels": selector(deployment) | (more or {})},
        },
    }  # fmt: skip


def weight_claims(deployment: Deployment) -> list[Object]:
    """Volume claims for folders that a service reads: weights, with their size."""
    job = deployment.serving
    assert job is not None
    return kubernetes.claims(deployment, {"weights": float(weight_bytes(job.model, job.weights))})
