"""Kustomize: one base of manifests, and an overlay for each environment that it is applied to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from flopwise.export.emit import yaml_text

HEAD = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
OVERLAYS = ("development", "staging", "production")
REPLICATED = {"Deployment": "apps/v1", "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1"}
"""Kinds of objects that run replicas, with their versions."""
SCALERS = ("ScaledObject", "HorizontalPodAutoscaler")
"""Kinds that decide on replicas: where one is there, its limits are what counts."""
NOTE = "overlays: production is as planned; development and staging run one replica of each service"


def kustomized(files: Mapping[str, str], below: str, namespace: str) -> dict[str, str]:
    """Base and overlays for the manifests among `files` below a folder; none where there are none.

    `namespace`: production's; the others are called by it and their own name.
    """
    prefix = f"{below}/"
    manifests = sorted(path for path in files if path.startswith(prefix) and path.endswith(".yaml"))
    objects = [one for path in manifests for one in yaml.safe_load_all(files[path]) if _is_object(one)]
    resources = [
        path.removeprefix(prefix) for path in manifests if all(map(_is_object, yaml.safe_load_all(files[path])))
    ]
    if not resources:
        return {}
    made = {f"{below}/kustomization.yaml": yaml_text({**HEAD, "resources": resources})}
    for overlay in OVERLAYS:
        place = namespace if overlay == "production" else f"{namespace}-{overlay}"
        patches = [] if overlay == "production" else list(_one_replica(objects))
        labels = [{"pairs": {"flopwise.dev/environment": overlay}}]
        made[f"{below}/overlays/{overlay}/namespace.yaml"] = yaml_text(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place}}
        )
        made[f"{below}/overlays/{overlay}/kustomization.yaml"] = yaml_text({
            **HEAD, "namespace": place, "resources": ["namespace.yaml", "../.."], "labels": labels,
            **({"patches": patches} if patches else {}),
        })  # fmt: skip
    return made


def _is_object(document: Any) -> bool:
    """Whether a document of YAML is a Kubernetes object."""
    return isinstance(document, dict) and {"apiVersion", "kind", "metadata"} <= set(document)


def _one_replica(objects: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    """Patches that leave one replica of each service, and none that must not be away."""
    for one in objects:
        kind, change = one["kind"], None
        if kind in REPLICATED:
            change = {"replicas": 1}
        elif kind == "ScaledObject":
            change = {"minReplicaCount": min(1, one["spec"].get("minReplicaCount", 1)), "maxReplicaCount": 1}
        elif kind == "HorizontalPodAutoscaler":
            change = {"minReplicas": 1, "maxReplicas": 1}
        if change is not None:
            target = {"kind": kind, "name": one["metadata"]["name"]}
            patch = [{"op": "replace", "path": f"/spec/{key}", "value": value} for key, value in change.items()]
            yield {"target": target, "patch": yaml_text(patch)}
