"""Parts of services on Kubernetes: probes that allow for the start, graceful termination, disruption budgets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any

from flopwise.errors import InfeasibleError
from flopwise.exports import kubernetes
from flopwise.exports.command import Command
from flopwise.exports.deployment import Deployment
from flopwise.exports.exported import Files
from flopwise.exports.kubernetes import Object
from flopwise.exports.pools import ROUTER, pool_notes, pool_refusals
from flopwise.exports.replica import SLOWEST, start_ends_s
from flopwise.fleet.workload_alerts import BUSY_LIMIT
from flopwise.ops.weights import weight_bytes

ROUTERS = 2
"""Routers of a service with pools, so that it answers while one is replaced; each keeps no state that another needs."""
PERIOD_S = 10
FAILURES = 3
DRAIN_S = 10
"""Time until endpoints remove a terminating pod, in seconds."""
MOST_STOP_S = 3600


def server(deployment: Deployment) -> Command:
    """The command of one replica."""
    from flopwise.exports.server import serving_command  # noqa: PLC0415 - refusals of others need it not

    return serving_command(deployment)


def routing(deployment: Deployment) -> Command:
    """The router of a plan with pools, whose engine has one; without the servers."""
    from flopwise.exports.server import SERVERS  # noqa: PLC0415 - as in `server`

    module = import_module(f"flopwise.exports.targets.{SERVERS[deployment.serve_job.engine.name]}")
    made: Command = module.router(deployment)
    return made


def server_refusals(deployment: Deployment) -> Iterator[str]:
    """Reasons why pods cannot serve the plan as one kind of server."""
    yield from kubernetes.node_refusals(deployment)
    yield from _command_refusals(deployment)


def _command_refusals(deployment: Deployment) -> Iterator[str]:
    """Reasons why no server of a deployment can be started."""
    try:
        server(deployment)
    except InfeasibleError as error:
        yield from error.reasons


def pods_refusals(deployment: Deployment) -> Iterator[str]:
    """Reasons why pods cannot serve the plan, be it as one kind of server or as two pools."""
    yield from kubernetes.node_refusals(deployment)
    yield from pool_refusals(deployment, _command_refusals)


def service_files(
    file: str, deployment: Deployment, group: Callable[[Deployment, Command], Object], assumptions: Iterable[str],
    leader: dict[str, str] | None = None,
) -> Files:  # fmt: skip
    """The file of a service: the `group` of pods of each pool, what clients ask, and budgets of disruptions.

    `leader`: additional labels of the pods that answer.
    """
    commands = [server(servers) for servers in deployment.pools]
    notes = [note for command in commands for note in command.assumptions]
    notes += pool_notes(deployment, routing(deployment)) if len(commands) > 1 else []
    return kubernetes.manifests(
        file, *kubernetes.config_map(deployment, commands[0]), *weight_claims(deployment),
        *map(group, deployment.pools, commands), *entrance(deployment, leader),
        *(disruption_budget(servers, leader) for servers in deployment.pools), assumptions=(*notes, *assumptions),
    )  # fmt: skip


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
    """The labels that select the pods of a service, or of one of its pools."""
    component = {kubernetes.COMPONENT_LABEL: deployment.pool} if deployment.pool else {}
    return {kubernetes.NAME_LABEL: deployment.name, **component}


def template(deployment: Deployment, command: Command, spec: Object) -> Object:
    """A pod template with annotations for Prometheus."""
    meta = kubernetes.metadata(deployment)
    meta["annotations"] |= command.annotations
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


def entrance(deployment: Deployment, more: dict[str, str] | None = None) -> list[Object]:
    """The Service that clients ask, and of a plan with pools the router behind it with the rights that it needs.

    `more`: additional labels of the pods that answer. The router finds the servers of both pools by their labels.

    Source: vllm-project/router, docs/environment/kubernetes.md; sgl-model-gateway/README.md.
    """
    if len(deployment.pools) == 1:
        return [service(deployment, server(deployment), more)]
    router, account = routing(deployment), kubernetes.metadata(deployment, ROUTER)
    labels = account["labels"] = account["labels"] | {kubernetes.COMPONENT_LABEL: ROUTER}
    name, place = account["name"], {key: value for key, value in account.items() if key == "namespace"}
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": account}
    rights = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    chosen = {kubernetes.NAME_LABEL: deployment.name, kubernetes.COMPONENT_LABEL: ROUTER}
    check = {"httpGet": {"path": router.health_path, "port": "http"}, "periodSeconds": PERIOD_S}
    ready = {"httpGet": {"path": "/readiness", "port": "http"}, "periodSeconds": PERIOD_S}
    container = {
        "name": ROUTER, "image": router.image, "command": _discovering(deployment, router, more),
        "env": [{"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}],
        "ports": [{"name": "http", "containerPort": router.port},
                  {"name": "metrics", "containerPort": router.metrics_port}],
        "readinessProbe": ready | {"timeoutSeconds": 5}, "livenessProbe": check | {"timeoutSeconds": 30},
        "securityContext": {"allowPrivilegeEscalation": False},
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(DRAIN_S)]}}},
    }  # fmt: skip
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        {"kind": "Role", **rbac, "rules": rights},
        {
            "kind": "RoleBinding", **rbac, "subjects": [{"kind": "ServiceAccount", "name": name, **place}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        },
        {
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": account,
            "spec": {
                "replicas": ROUTERS, "selector": {"matchLabels": chosen},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "serviceAccountName": name, "enableServiceLinks": False, "containers": [container],
                        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                        "terminationGracePeriodSeconds": stop_s(deployment),
                    },
                },
            },
        },
        service(deployment, router, {kubernetes.COMPONENT_LABEL: ROUTER}),
    ]  # fmt: skip


def _discovering(deployment: Deployment, router: Command, more: dict[str, str] | None) -> list[str]:
    """The words of a router that finds the servers of its namespace by their labels."""
    words = [*router.args, "--service-discovery", "--service-discovery-port", str(router.port)]
    words += ["--service-discovery-namespace", "$(NAMESPACE)"]
    for servers in deployment.pools:
        labels = selector(servers) | (more or {})
        words += [f"--{servers.pool}-selector", *(f"{key}={value}" for key, value in labels.items())]
    return words


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
    job = deployment.serve_job
    return kubernetes.claims(deployment, {"weights": float(weight_bytes(job.model, job.weights))})
