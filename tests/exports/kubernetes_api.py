"""What a Kubernetes API server says of a manifest: published schemas, our own of CRDs, and rules that none holds."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema_rs
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import extend
from referencing import Registry
from tools import RefusedError, need

OLDEST = (1, 28)
SCHEMAS = Path(__file__).parent / "schemas"
COMMON = json.loads((SCHEMAS / "common.json").read_text())["$defs"]


def kubernetes(text: str) -> list[dict[str, Any]]:
    """The documents of a manifest, each valid in every Kubernetes version from 1.28 on; unknown kinds are refused."""
    try:
        documents = [document for document in yaml.load_all(text, Loader=_UniqueKeys) if document is not None]
    except yaml.YAMLError as error:
        raise RefusedError(str(error)) from error
    faults = [] if documents else ["no document"]
    seen = set()
    for document in documents:
        if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
            faults.append(f"no Kubernetes object: {str(document)[:80]}")
            continue
        metadata = document.get("metadata") or {}
        name = f"{document['kind']}/{metadata.get('name')}"
        identity = (document.get("apiVersion"), document["kind"], metadata.get("namespace"), metadata.get("name"))
        found = [*_faults(document), *(["stands twice"] if identity in seen else [])]
        faults += [f"{name}: {fault}" for fault in dict.fromkeys(found)]
        seen.add(identity)
    if faults:
        raise RefusedError("\n".join(faults))
    return documents


_FOUND: dict[str, list[str]] = {}
"""Faults of documents that were read: targets share objects, and so do the environments of a bundle."""


def _faults(document: Mapping[str, Any]) -> list[str]:
    text = repr(document)
    if text not in _FOUND:
        _FOUND[text] = [*_schema_faults(document), *_rule_faults(document)]
    return _FOUND[text]


class _UniqueKeys(yaml.CSafeLoader):
    """Refuses a key that stands twice, as kubectl does."""


def _unique_mapping(loader: _UniqueKeys, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    if len(keys) != len(set(keys)):
        raise yaml.constructor.ConstructorError(None, None, "a key stands twice", node.start_mark)
    return loader.construct_mapping(node, deep=True)


_UniqueKeys.add_constructor("tag:yaml.org,2002:map", _unique_mapping)


# --- schemas


def _pattern(_validator: Any, pattern: str, value: Any, _schema: Any) -> Iterator[ValidationError]:
    """JSON Schema's `$` is the end of the text; Python's also stands before a last line end."""
    if isinstance(value, str) and not re.search(re.sub(r"\$(?=\)*$)", r"\\Z", pattern), value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


_Validator: Any = extend(Draft202012Validator, {"pattern": _pattern})  # type: ignore[no-untyped-call]


@functools.cache
def versions() -> tuple[tuple[int, int], ...]:
    """The Kubernetes versions whose schemas are installed, from the oldest that we hold to."""
    names = (path.name for path in _published().iterdir())
    found = {(int(m[1]), int(m[2])) for name in names if (m := re.fullmatch(r"v(\d+)\.(\d+)\.\d+-local-strict", name))}
    return tuple(sorted(version for version in found if version >= OLDEST))


def _published() -> Path:
    package = importlib.util.find_spec("kubernetes_validate")
    need(package is not None, "kubernetes-validate", "make dev")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "kubernetes-json-schema"


def _named(version: tuple[int, int]) -> list[tuple[str, dict[str, Any]]]:
    paths = [_folder(version) / "_definitions.json", *SCHEMAS.glob("*.json")]
    return [(document["$id"], document) for document in (json.loads(path.read_text()) for path in paths)]


@functools.cache
def _registries(version: tuple[int, int]) -> tuple[Registry[Any], jsonschema_rs.Registry]:
    return Registry().with_contents(_named(version)), jsonschema_rs.Registry(_named(version))


def _folder(version: tuple[int, int]) -> Path:
    return _published() / f"v{version[0]}.{version[1]}.0-local-strict"


@functools.cache
def _validators(version: tuple[int, int], api_version: str, kind: str) -> tuple[Any, Any] | None:
    """One that says what is wrong, and one in Rust that says at once whether anything is."""
    group, _, number = api_version.rpartition("/")
    own = SCHEMAS / f"{group}_{number}.json"
    if own.is_file():
        document = json.loads(own.read_text())
        if kind not in document["x-kinds"]:
            return None
        schema = _with_envelope(document, api_version, kind) | {
            "$id": document["$id"],
            "$defs": document.get("$defs", {}),
        }
    else:
        stem = "-".join([kind.lower(), *([group.split(".")[0]] if group else []), number])
        path = _folder(version) / f"{stem}.json"
        if not path.is_file() or (group and not group.endswith(".k8s.io") and "." in group):
            return None
        schema = json.loads(path.read_text()) | {"required": ["apiVersion", "kind", "metadata"]}
    ours, quick = _registries(version)
    return _Validator(schema, registry=ours), jsonschema_rs.Draft202012Validator(schema, registry=quick)


def _with_envelope(document: Mapping[str, Any], api_version: str, kind: str) -> dict[str, Any]:
    """An object of a CRD: what `x-kinds` lists beside the parts that all objects have; some need no metadata."""
    schema, named = document["x-kinds"][kind], [] if document.get("x-nameless") else ["metadata"]
    metadata = {"$ref": "/api/_definitions.json#/$defs/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}
    envelope = {"apiVersion": {"const": api_version}, "kind": {"const": kind}, "metadata": metadata}
    return {
        "type": "object",
        "required": ["apiVersion", "kind", *named, *schema["required"]],
        "additionalProperties": False,
        "properties": envelope | schema["properties"],
    }


def _schema_faults(document: Mapping[str, Any]) -> Iterator[str]:
    api_version, kind = str(document.get("apiVersion")), document["kind"]
    for version in versions():
        validators = _validators(version, api_version, kind)
        if validators is None:
            yield f"no schema of {api_version} {kind} for Kubernetes {version[0]}.{version[1]}"
            return
        validator, quick = validators
        if quick.is_valid(document):
            continue
        error = best_match(validator.iter_errors(document))
        if error is not None:
            place = ".".join(str(part) for part in error.absolute_path)
            yield f"{place}: {error.message[:400]} (Kubernetes {version[0]}.{version[1]})"
            return


# --- rules that schemas leave to the server

CHOICES: Mapping[str, frozenset[str]] = {
    "imagePullPolicy": frozenset({"Always", "IfNotPresent", "Never"}),
    "restartPolicy": frozenset({"Always", "OnFailure", "Never"}),
    "whenUnsatisfiable": frozenset({"DoNotSchedule", "ScheduleAnyway"}),
    "completionMode": frozenset({"Indexed", "NonIndexed"}),
    "concurrencyPolicy": frozenset({"Allow", "Forbid", "Replace"}),
    "medium": frozenset({"", "Memory"}),
    "effect": frozenset({"NoSchedule", "PreferNoSchedule", "NoExecute"}),
    "preemptionPolicy": frozenset({"PreemptLowerPriority", "Never"}),
}
POD_HOLDERS = frozenset({"Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob", "Pod"})
"""Kinds whose restart policy is a pod's."""
LABEL_NAMED = frozenset({"Service", "Namespace", "LeaderWorkerSet", "JobSet", "RayService", "RayCluster", "RayJob"})
"""Kinds whose names become host names."""


def _rule_faults(document: Mapping[str, Any]) -> Iterator[str]:
    kind, spec = document["kind"], document.get("spec") or {}
    if kind != "Kustomization":  # an object of the tool's own, not of the server
        yield from _name_faults(document)
    for place, part in _objects(document, ()):
        yield from (f"{'.'.join(place)}: {fault}" for fault in _part_faults(place, part, kind))
        if isinstance(part.get("containers"), list) and all(isinstance(one, dict) for one in part["containers"]):
            claims = [one["metadata"]["name"] for one in spec.get("volumeClaimTemplates", [])]
            yield from (f"{'.'.join(place)}: {fault}" for fault in _pod_faults(part, claims))
    if isinstance(spec, dict):
        yield from RULES.get(kind, _no_faults)(spec)


def _no_faults(_spec: Mapping[str, Any]) -> Iterator[str]:
    yield from ()


def _objects(value: Any, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    if isinstance(value, dict):
        yield place, value
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in pairs:
        yield from _objects(part, (*place, str(key)))


@functools.cache
def _common_validator(definition: str) -> Any:
    return _Validator({**COMMON[definition], "$defs": COMMON})


def _matches(definition: str, value: Any) -> bool:
    return bool(_common_validator(definition).is_valid(value))


def _name_faults(document: Mapping[str, Any]) -> Iterator[str]:
    metadata = document.get("metadata") or {}
    strict = "Label" if document["kind"] in LABEL_NAMED else "Name"
    if not _matches(strict, metadata.get("name")):
        yield f"metadata.name: {metadata.get('name')!r} is not a name"
    if "namespace" in metadata and not _matches("Label", metadata["namespace"]):
        yield f"metadata.namespace: {metadata['namespace']!r} is not a name"


def _part_faults(place: tuple[str, ...], part: Mapping[str, Any], kind: str) -> Iterator[str]:
    last = place[-1] if place else ""
    inside = {"labels", "matchLabels", "nodeSelector"} & {last}
    of_rules = kind == "PrometheusRule" and place[:1] == ("spec",)
    if inside and not of_rules and not _matches("Labels", part):
        yield f"no labels: {dict(part)}"
    if last == "annotations" and place[-2:-1] == ("metadata",) and not all(_matches("LabelKey", key) for key in part):
        yield f"no annotations: {sorted(part)}"
    if kind in POD_HOLDERS | {"PodDisruptionBudget"}:
        yield from (
            f"{key}: {part[key]!r} is none of {', '.join(sorted(allowed))}"
            for key, allowed in CHOICES.items()
            if isinstance(part.get(key), str) and part[key] not in allowed
        )
    if "tolerations" in place[-2:-1]:
        yield from _toleration_faults(part)
    if last in {"limits", "requests"}:
        yield from (
            f"{key}: {value!r} is no quantity" for key, value in part.items() if not _matches("Quantity", value)
        )


def _toleration_faults(toleration: Mapping[str, Any]) -> Iterator[str]:
    operator = toleration.get("operator", "Equal")
    if operator not in {"Exists", "Equal"}:
        yield f"operator: {operator!r} is none of Equal, Exists"
    if operator == "Exists" and "value" in toleration:
        yield "a value beside the operator Exists"
    if operator == "Equal" and not toleration.get("key"):
        yield "no key, which takes the operator Exists"
    if "tolerationSeconds" in toleration and toleration.get("effect") != "NoExecute":
        yield "tolerationSeconds without the effect NoExecute"


def _pod_faults(spec: Mapping[str, Any], claims: Sequence[str]) -> Iterator[str]:
    containers = [*(spec.get("initContainers") or []), *spec["containers"]]
    names = [container.get("name") for container in containers]
    yield from (f"container name {name!r} stands twice" for name in {name for name in names if names.count(name) > 1})
    volumes = [volume.get("name") for volume in spec.get("volumes") or []]
    yield from (f"volume {name!r} stands twice" for name in {name for name in volumes if volumes.count(name) > 1})
    for volume in spec.get("volumes") or []:
        if len(volume.keys() - {"name"}) > 1:
            yield f"volume {volume.get('name')!r} has several sources"
        if not _matches("Label", volume.get("name")):
            yield f"volume {volume.get('name')!r} is not a name"
    for container in containers:
        for fault in _container_faults(container, {*volumes, *claims}):
            yield f"container {container.get('name')!r}: {fault}"


def _container_faults(container: Mapping[str, Any], volumes: set[Any]) -> Iterator[str]:
    if not _matches("Label", container.get("name")):
        yield "no name"
    if "image" in container and not re.fullmatch(r"[A-Za-z0-9][\w.\-/:@]*", str(container["image"])):
        yield f"no image: {container['image']!r}"
    yield from _variable_faults(container.get("env") or [])
    for mount in container.get("volumeMounts") or []:
        if mount.get("name") not in volumes:
            yield f"mounts {mount.get('name')!r}, which is no volume of the pod"
    for port in container.get("ports") or []:
        if not 0 < int(port.get("containerPort", 0)) < 65536:
            yield f"no port: {port.get('containerPort')!r}"
        if "name" in port and not re.fullmatch(r"(?=.*[a-z])[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?", str(port["name"])):
            yield f"no name of a port: {port['name']!r}"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        if probe in container:
            yield from (f"{probe}: {fault}" for fault in _probe_faults(probe, container[probe]))
    yield from _resource_faults(container.get("resources") or {})


def _variable_faults(variables: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    names = [one.get("name") for one in variables]
    for one in variables:
        if not re.fullmatch(r"[-._a-zA-Z][-._a-zA-Z0-9]*", str(one.get("name"))):
            yield f"no environment variable: {one.get('name')!r}"
        if names.count(one.get("name")) > 1:
            yield f"environment variable {one['name']!r} stands twice"
        if "value" in one and "valueFrom" in one:
            yield f"environment variable {one['name']!r} has two values"


def _probe_faults(kind: str, probe: Mapping[str, Any]) -> Iterator[str]:
    if len(probe.keys() & {"httpGet", "exec", "tcpSocket", "grpc"}) != 1:
        yield "exactly one of httpGet, exec, tcpSocket and grpc"
    least = {
        "periodSeconds": 1,
        "timeoutSeconds": 1,
        "failureThreshold": 1,
        "successThreshold": 1,
        "initialDelaySeconds": 0,
    }
    yield from (f"{key} below {low}" for key, low in least.items() if probe.get(key, low) < low)
    if kind != "readinessProbe" and probe.get("successThreshold", 1) != 1:
        yield "successThreshold must be 1"


def _resource_faults(resources: Mapping[str, Any]) -> Iterator[str]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name in sorted({*limits, *requests}):
        if "/" in name:
            if name not in limits or (name in requests and str(requests[name]) != str(limits[name])):
                yield f"{name}: an extended resource has a limit, and its request is the same"
            if not str(limits.get(name, 0)).isdigit():
                yield f"{name}: {limits[name]!r} is no whole number"
        elif name not in {"cpu", "memory", "ephemeral-storage"} and not name.startswith("hugepages-"):
            yield f"{name}: no resource"
        elif name in limits and name in requests and _amount(requests[name]) > _amount(limits[name]):
            yield f"{name}: more is asked for than the limit"


SUFFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0} | {letter: 1e3**rank for rank, letter in enumerate("kMGTPE", 1)}


def _amount(quantity: Any) -> float:
    match = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([numkMGTPE]?)(i?)", str(quantity))
    if match is None:
        return 0.0
    binary = 1024 ** " KMGTPE".index(match[2].upper()) if match[3] else None
    return float(match[1]) * (binary or SUFFIXES[match[2]])


# --- rules of single kinds


def _workload_faults(spec: Mapping[str, Any]) -> Iterator[str]:
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    wanted = (spec.get("selector") or {}).get("matchLabels") or {}
    if not wanted.items() <= labels.items():
        yield f"the selector {wanted} does not match the template's labels {labels}"
    if (template.get("spec") or {}).get("restartPolicy", "Always") != "Always":
        yield "its pods restart always"


def _job_faults(spec: Mapping[str, Any]) -> Iterator[str]:
    restart = ((spec.get("template") or {}).get("spec") or {}).get("restartPolicy", "Always")
    indexed = spec.get("completionMode") == "Indexed"
    if restart == "Always":
        yield "a job's pods restart never or on failure"
    if indexed and spec.get("completions") is None:
        yield "an indexed job states its completions"
    if "backoffLimitPerIndex" in spec and not (indexed and restart == "Never"):
        yield "backoffLimitPerIndex is for indexed jobs whose pods never restart"
    if "podFailurePolicy" in spec and restart != "Never":
        yield "a pod failure policy is for pods that never restart"


def _cron_job_faults(spec: Mapping[str, Any]) -> Iterator[str]:
    if len(str(spec.get("schedule")).split()) != 5:
        yield f"no schedule: {spec.get('schedule')!r}"
    yield from _job_faults((spec.get("jobTemplate") or {}).get("spec") or {})


def _job_set_faults(spec: Mapping[str, Any]) -> Iterator[str]:
    for job in spec.get("replicatedJobs") or []:
        yield from _job_faults((job.get("template") or {}).get("spec") or {})


def _budget_faults(spec: Mapping[str, Any]) -> Iterator[str]:
    if len(spec.keys() & {"minAvailable", "maxUnavailable"}) != 1:
        yield "exactly one of minAvailable and maxUnavailable"


def _autoscaler_faults(spec: Mapping[str, Any]) -> Iterator[str]:
    if spec.get("minReplicas", 1) > spec.get("maxReplicas", 1):
        yield "minReplicas above maxReplicas"
    parts = {
        "Resource": "resource",
        "Pods": "pods",
        "External": "external",
        "Object": "object",
        "ContainerResource": "containerResource",
    }
    for metric in spec.get("metrics") or []:
        if metric.keys() != {"type", parts.get(metric.get("type"), "")}:
            yield f"no metric: {metric}"


def _scaled_object_faults(spec: Mapping[str, Any]) -> Iterator[str]:
    if spec.get("minReplicaCount", 0) > spec.get("maxReplicaCount", 100):
        yield "minReplicaCount above maxReplicaCount"


def _service_faults(spec: Mapping[str, Any]) -> Iterator[str]:
    ports = spec.get("ports") or []
    if len(ports) > 1 and any("name" not in port for port in ports):
        yield "several ports have names"
    if spec.get("type", "ClusterIP") not in {"ClusterIP", "NodePort", "LoadBalancer", "ExternalName"}:
        yield f"no type: {spec['type']!r}"
    yield from (f"no port: {port.get('port')!r}" for port in ports if not 0 < int(port.get("port", 0)) < 65536)


def _ray_job_faults(spec: Mapping[str, Any]) -> Iterator[str]:
    if spec.get("ttlSecondsAfterFinished") and not spec.get("shutdownAfterJobFinishes"):
        yield "ttlSecondsAfterFinished needs shutdownAfterJobFinishes"
    yield from _ray_cluster_faults(spec.get("rayClusterSpec") or {})


def _ray_cluster_faults(spec: Mapping[str, Any]) -> Iterator[str]:
    for group in spec.get("workerGroupSpecs") or []:
        if (
            not group.get("minReplicas", 0)
            <= group.get("replicas", group.get("minReplicas", 0))
            <= group.get("maxReplicas", 0)
        ):
            yield f"group {group.get('groupName')!r}: replicas outside minReplicas and maxReplicas"


RULES = {
    "Deployment": _workload_faults, "StatefulSet": _workload_faults, "DaemonSet": _workload_faults,
    "Job": _job_faults, "CronJob": _cron_job_faults, "JobSet": _job_set_faults,
    "PodDisruptionBudget": _budget_faults, "HorizontalPodAutoscaler": _autoscaler_faults,
    "ScaledObject": _scaled_object_faults, "Service": _service_faults,
    "RayJob": _ray_job_faults, "RayCluster": _ray_cluster_faults,
}  # fmt: skip
