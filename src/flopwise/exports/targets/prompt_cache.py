"""Keys and values of prompts that begin alike, in Redis for all replicas of a service, where a plan counts on them."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator

from flopwise.exports import kubernetes as parts
from flopwise.exports import kubernetes_service as serving
from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import yaml_text
from flopwise.exports.exported import Files
from flopwise.exports.kubernetes import Object
from flopwise.exports.replica import caches_prefixes
from flopwise.serving.estimate import job_memory

SUFFIX = "cache"
IMAGE = "redis:8.2-alpine"
PORT = 6379
ROOM = 1.25
"""Memory of the pod over that of the data: Redis counts neither its own tables nor buffers of clients."""
CHUNK_TOKENS = 256
"""Tokens that LMCache keeps together; shorter prefixes are not kept."""


def refusals(deployment: Deployment) -> Iterator[str]:
    """Reasons why no prompts can be cached."""
    yield from serving.server_refusals(deployment)
    job = deployment.serve_job
    if not caches_prefixes(deployment):
        yield "the plan has no prefix cache: plan with --shared-prefix or --prefix-hit"
    if job.engine.name != "vllm":
        yield f"its connector (LMCache) needs vLLM, and the plan is for {job.engine.name}: plan with --engine vllm"
    if deployment.nodes_per_replica > 1:
        yield "it changes a Deployment, and the plan's replicas take several machines each: plan with larger machines"


def export(deployment: Deployment) -> Files:
    """`prompt-cache.yaml`: Redis and who may speak to it; `connector.yaml`: a patch of the service's Deployment."""
    return Files(
        files={
            "prompt-cache.yaml": yaml_text(_redis(deployment), _service(deployment), _policy(deployment)),
            "connector.yaml": yaml_text(_connector(deployment)),
        },
        apply=(
            "kubectl apply -f prompt-cache.yaml",
            f"kubectl patch deployment {deployment.name} --patch-file connector.yaml"
            + (f" --namespace {shlex.quote(deployment.settings.namespace)}" if deployment.settings.namespace else ""),
        ),
        assumptions=(
            f"{IMAGE} keeps {_data_bytes(deployment) / parts.GIB:,.1f} GiB, as much as the KV caches of all replicas",
            "the least recently used prompts are evicted first, and the cache is lost with its pod",
            f"the engine's image has LMCache (lmcache/vllm-openai has both); chunks of {CHUNK_TOKENS} tokens",
            "Redis has no password: only pods of the service reach it, if the cluster enforces network policies",
        ),
    )  # fmt: skip


def _data_bytes(deployment: Deployment) -> int:
    """Bytes of the cache: those that the engines' own caches hold together, of all devices.

    Source: the engine's budget (`flopwise.serving.estimate.job_memory`). Assumes: a second level as large as the first.
    """
    budget = float(job_memory(deployment.serve_job).kv_budget_bytes)
    return math.ceil(budget * deployment.gpus_per_replica * deployment.replicas)


def _selector(deployment: Deployment) -> Object:
    return {"matchLabels": {parts.NAME_LABEL: f"{deployment.name}-{SUFFIX}"}}


def _redis(deployment: Deployment) -> Object:
    """One Redis without persistence, of as much memory as the cache needs."""
    data = math.ceil(_data_bytes(deployment) / parts.MIB)
    memory = f"{math.ceil(data * ROOM)}Mi"
    options = ["--maxmemory", f"{data}mb", "--maxmemory-policy", "allkeys-lru", "--save", "", "--appendonly", "no"]
    container = {
        "name": "redis", "image": IMAGE, "args": ["redis-server", *options],
        "ports": [{"name": "redis", "containerPort": PORT}],
        "readinessProbe": {"exec": {"command": ["redis-cli", "ping"]}, "periodSeconds": 5},
        "livenessProbe": {"tcpSocket": {"port": "redis"}, "periodSeconds": 10},
        "resources": {"requests": {"cpu": "1", "memory": memory}, "limits": {"memory": memory}},
        "securityContext": {"allowPrivilegeEscalation": False, "runAsNonRoot": True, "runAsUser": 999},
    }  # fmt: skip
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": parts.own_metadata(deployment, SUFFIX),
        "spec": {
            "replicas": 1, "selector": _selector(deployment), "strategy": {"type": "Recreate"},
            "template": {
                "metadata": {"labels": parts.own_metadata(deployment, SUFFIX)["labels"]},
                "spec": {
                    "automountServiceAccountToken": False, "enableServiceLinks": False, "containers": [container],
                },
            },
        },
    }  # fmt: skip


def _service(deployment: Deployment) -> Object:
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": parts.own_metadata(deployment, SUFFIX),
        "spec": {
            "selector": _selector(deployment)["matchLabels"],
            "ports": [{"name": "redis", "port": PORT, "targetPort": "redis"}],
        },
    }  # fmt: skip


def _policy(deployment: Deployment) -> Object:
    """The network policy of the cache: only the service's own pods may connect."""
    return {
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": parts.own_metadata(deployment, SUFFIX),
        "spec": {
            "podSelector": _selector(deployment), "policyTypes": ["Ingress"],
            "ingress": [{
                "from": [{"podSelector": {"matchLabels": serving.selector(deployment)}}],
                "ports": [{"protocol": "TCP", "port": PORT}],
            }],
        },
    }  # fmt: skip


def _connector(deployment: Deployment) -> Object:
    """The engine's connector and the address of Redis; hashes are alike on all replicas."""
    transfer = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    settings = {
        "LMCACHE_REMOTE_URL": f"redis://{deployment.name}-{SUFFIX}:{PORT}", "LMCACHE_REMOTE_SERDE": "naive",
        "LMCACHE_CHUNK_SIZE": str(CHUNK_TOKENS), "LMCACHE_LOCAL_CPU": "False", "PYTHONHASHSEED": "0",
    }  # fmt: skip
    container = {
        "name": "main", "args": ["--kv-transfer-config", json.dumps(transfer)],
        "env": [{"name": key, "value": value} for key, value in settings.items()],
    }  # fmt: skip
    return {"spec": {"template": {"spec": {"containers": [container]}}}}
