"""Kustomize: manifests as a base for each environment, and an overlay for each that they are applied to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from flopwise.exports.emit import yaml_text

HEAD = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
ENVIRONMENTS = ("development", "staging", "production")
ONE: Mapping[str, Mapping[str, int]] = {
    "Deployment": {"replicas": 1},
    "LeaderWorkerSet": {"replicas": 1},
    "ScaledObject": {"minReplicaCount": 1, "maxReplicaCount": 1},
    "HorizontalPodAutoscaler": {"minReplicas": 1, "maxReplicas": 1},
}
"""What leaves one replica, by kind."""


def overlays(files: Mapping[str, str], bases: Mapping[str, str], namespace: Callable[[str], str]) -> dict[str, str]:
    """Overlays for the manifests below some folders, by the environment that each folder is planned for.

    Those that are planned run as planned, in their `namespace`. Of development, staging and production those that are
    not run what production has (or the first that is planned), with one replica of each service.
    """
    resources = {environment: _manifests(files, below) for environment, below in bases.items()}
    planned = {environment: below for environment, below in bases.items() if resources[environment]}
    if not planned:
        return {}
    made = {
        f"{below}/kustomization.yaml": yaml_text({**HEAD, "resources": resources[environment]})
        for environment, below in planned.items()
    }
    model = "production" if "production" in planned else next(iter(planned))
    for environment in dict.fromkeys((*planned, *ENVIRONMENTS)):
        base, own = planned.get(environment, planned[model]), environment in planned
        patches = [] if own else list(_patches(files, base, resources[model]))
        rules = {
            **HEAD, "namespace": namespace(environment), "resources": ["namespace.yaml", f"../../{base}"],
            "labels": [{"pairs": {"flopwise.dev/environment": environment}}],
        }  # fmt: skip
        place = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace(environment)}}
        made[f"overlays/{environment}/namespace.yaml"] = yaml_text(place)
        made[f"overlays/{environment}/kustomization.yaml"] = yaml_text(
            rules | ({"patches": patches} if patches else {})
        )
    return made


def _manifests(files: Mapping[str, str], below: str) -> list[str]:
    """The files below a folder that hold Kubernetes objects alone, by their paths in it."""
    paths = sorted(path for path in files if path.startswith(f"{below}/") and path.endswith(".yaml"))
    return [path.removeprefix(f"{below}/") for path in paths if all(map(_is_object, yaml.safe_load_all(files[path])))]


def _is_object(document: Any) -> bool:
    """Whether a document of YAML is a Kubernetes object."""
    return isinstance(document, dict) and {"apiVersion", "kind", "metadata"} <= set(document)


def _patches(files: Mapping[str, str], below: str, manifests: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Patches that leave one replica of each service."""
    for path in manifests:
        for one in yaml.safe_load_all(files[f"{below}/{path}"]):
            change = {key: value for key, value in ONE.get(one["kind"], {}).items() if key in one["spec"]}
            if change:
                steps = [{"op": "replace", "path": f"/spec/{key}", "value": value} for key, value in change.items()]
                yield {"target": {"kind": one["kind"], "name": one["metadata"]["name"]}, "patch": yaml_text(steps)}
