"""How requests reach a service: an HTTPRoute, and for vLLM an InferencePool that picks the replica for each request."""

from __future__ import annotations

import math

from flopwise.exports import kubernetes as parts
from flopwise.exports import kubernetes_service as serving
from flopwise.exports.command import Command
from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import yaml_text
from flopwise.exports.exported import Files
from flopwise.exports.kubernetes import Object
from flopwise.exports.replica import caches_prefixes
from flopwise.exports.targets.leaderworkerset import WORKER_INDEX
from flopwise.search.serving_option import latency_targets

PICKER = "epp"
"""Suffix of what picks endpoints, as the extension's own charts name it."""
PICKER_IMAGE = "registry.k8s.io/gateway-api-inference-extension/epp:v1.0.0"
PICKER_PORTS = {"grpc-ext-proc": 9002, "grpc-health": 9003, "metrics": 9090}
SCORES = {"queue-scorer": 2, "kv-cache-utilization-scorer": 2, "prefix-cache-scorer": 3}
"""Weights of the extension's own chart; the last one only where the plan counts on prompts that begin alike."""
POOLED = ("vllm",)
SLACK = 2.0
"""Of the longest planned request, or of its target, until a request is given up."""
refusals = serving.pods_refusals


def export(deployment: Deployment) -> Files:
    """`gateway.yaml`: the HTTPRoute, and of vLLM the InferencePool with what picks its endpoints."""
    command, one_kind = serving.server(deployment.pools[-1]), len(deployment.pools) == 1
    pooled = deployment.candidate.layout["engine"] in POOLED and deployment.task == "serve" and one_kind
    pool = _pool(deployment, command) if pooled else []
    notes = [
        f"a request times out after {_timeout_s(deployment)} s: {SLACK:g} times the longest planned, or its target",
        "clients stream their answers, and gateways in front of this one need the same timeout",
        "TLS ends at the gateway's listener: the engine speaks plain HTTP inside the cluster",
        "the pods that answer are those of `flopwise export kubernetes` or `leaderworkerset`",
    ]
    if pooled:
        notes.append(f"the gateway speaks the inference extension 1.0; {PICKER_IMAGE} picks endpoints")
    elif not one_kind:
        notes.append("the route ends at the router of both pools, which chooses the servers of each request")
    elif caches_prefixes(deployment):
        notes.append(
            "the plan relies on prompts with a common prefix: a cookie keeps the requests of a conversation on one "
            "replica, if the gateway supports sessionPersistence"
        )
    return parts.manifests("gateway.yaml", *pool, _route(deployment, command, pooled=pooled), assumptions=notes)


def _timeout_s(deployment: Deployment) -> int:
    """Seconds until a request is given up."""
    chosen, target = deployment.candidate, latency_targets(deployment.workload)["latency"]
    longest = max(chosen.seconds_high or chosen.seconds, 0.0 if target is None else target.seconds)
    return math.ceil(SLACK * longest) + 1


def _route(deployment: Deployment, command: Command, *, pooled: bool) -> Object:
    backend = (
        {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": deployment.name}
        if pooled
        else {"name": deployment.name, "port": command.port}
    )
    rule: Object = {
        "matches": [{"path": {"type": "PathPrefix", "value": "/"}}], "backendRefs": [backend],
        "timeouts": {"request": f"{_timeout_s(deployment)}s", "backendRequest": f"{_timeout_s(deployment)}s"},
    }  # fmt: skip
    if caches_prefixes(deployment) and not pooled and deployment.replicas > 1 and len(deployment.pools) == 1:
        rule["sessionPersistence"] = {"type": "Cookie", "sessionName": deployment.name}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": parts.metadata(deployment),
        "spec": {
            "parentRefs": [{"name": deployment.value("gateway")}], "hostnames": [deployment.value("hostname")],
            "rules": [rule],
        },
    }  # fmt: skip


def _pool(deployment: Deployment, command: Command) -> list[Object]:
    """The pool, and its picker with the rights that it needs.

    Source: config/charts/inferencepool of kubernetes-sigs/gateway-api-inference-extension.
    """
    name = f"{deployment.name}-{PICKER}"
    place = {"namespace": deployment.settings.namespace} if deployment.settings.namespace else {}
    leaders = {WORKER_INDEX: "0"} if deployment.nodes_per_replica > 1 else {}
    account = {"kind": "ServiceAccount", "name": name, **place}
    rules = [
        {"apiGroups": ["inference.networking.k8s.io"], "resources": ["inferencepools"]},
        {"apiGroups": ["inference.networking.x-k8s.io"], "resources": ["inferenceobjectives"]},
        {"apiGroups": [""], "resources": ["pods"]},
    ]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": parts.own_metadata(deployment, PICKER)}
    scores = {
        scorer: weight for scorer, weight in SCORES.items() if "prefix" not in scorer or caches_prefixes(deployment)
    }
    config = {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha1", "kind": "EndpointPickerConfig",
        "plugins": [{"type": scorer} for scorer in scores],
        "schedulingProfiles": [{
            "name": "default", "plugins": [{"pluginRef": name, "weight": weight} for name, weight in scores.items()],
        }],
    }  # fmt: skip
    return [
        {
            "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
            "metadata": parts.metadata(deployment),
            "spec": {
                "selector": {"matchLabels": serving.selector(deployment) | leaders},
                "targetPorts": [{"number": command.port}],
                "endpointPickerRef": {"name": name, "kind": "Service", "port": {"number": 9002}},
            },
        },
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": parts.own_metadata(deployment, PICKER)},
        {"kind": "Role", **rbac, "rules": [rule | {"verbs": ["get", "watch", "list"]} for rule in rules]},
        {"kind": "RoleBinding", **rbac, "subjects": [account], "roleRef": role},
        {
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": parts.own_metadata(deployment, PICKER),
            "data": {"plugins.yaml": yaml_text(config)},
        },
        {
            "apiVersion": "v1", "kind": "Service", "metadata": parts.own_metadata(deployment, PICKER),
            "spec": {
                "selector": {parts.NAME_LABEL: name},
                "ports": [{"name": port, "port": number} for port, number in PICKER_PORTS.items()],
            },
        },
        _picker(deployment, name),
    ]  # fmt: skip


def _picker(deployment: Deployment, name: str) -> Object:
    check = {"grpc": {"port": 9003, "service": "inference-extension"}, "periodSeconds": 10}
    container = {
        "name": "epp", "image": PICKER_IMAGE,
        "args": ["--pool-name", deployment.name, "--config-file", "/config/plugins.yaml", "--zap-encoder", "json"],
        "env": [{"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}],
        "ports": [{"name": port, "containerPort": number} for port, number in PICKER_PORTS.items()],
        "livenessProbe": check, "readinessProbe": check,
        "volumeMounts": [{"name": "config", "mountPath": "/config"}],
    }  # fmt: skip
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": parts.own_metadata(deployment, PICKER),
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {parts.NAME_LABEL: name}},
            "template": {
                "metadata": {"labels": {parts.NAME_LABEL: name}},
                "spec": {
                    "serviceAccountName": name, "terminationGracePeriodSeconds": serving.stop_s(deployment),
                    "containers": [container], "volumes": [{"name": "config", "configMap": {"name": name}}],
                },
            },
        },
    }  # fmt: skip
