"""Parts of Kubernetes objects that several targets share: names, nodes, resources, pods and their volumes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flopwise.exports.command import Command
from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import yaml_text
from flopwise.exports.exported import Files
from flopwise.facts.kubernetes import OTHER, NodeRecord
from flopwise.facts.tables import ANY

NAME_LABEL = "app.kubernetes.io/name"
COMPONENT_LABEL = "app.kubernetes.io/component"
"""Label that tells the pools of a deployment and its router apart.

Source: Kubernetes documentation, recommended labels.
"""
FOLDER = "/flopwise"
"""Working folder of a container, with the files of its command."""
SHM_BYTES_PER_DEVICE = 2 * 1024**3
GIB = 1024**3
MIB = 1024**2
SYSTEM_CPUS, SYSTEM_BYTES = 0.5, GIB
"""Resources left on each node for agents of logs, metrics, network and devices."""
Object = dict[str, Any]


# names and documents


def labels(deployment: Deployment) -> dict[str, str]:
    """Labels that identify the objects of a deployment."""
    component = {COMPONENT_LABEL: deployment.pool} if deployment.pool else {}
    return {NAME_LABEL: deployment.name, **component, "app.kubernetes.io/managed-by": "flopwise"}


def metadata(deployment: Deployment, suffix: str = "", more: Mapping[str, str] | None = None) -> Object:
    """Name, namespace if given, labels (with `more`) and the title as an annotation."""
    settings = deployment.settings
    place = {} if settings.namespace is None else {"namespace": settings.namespace}
    return {
        "name": deployment.object_name + (f"-{suffix}" if suffix else ""), **place,
        "labels": labels(deployment) | dict(more or {}), "annotations": {"flopwise.dev/title": deployment.title},
    }  # fmt: skip


def own_metadata(deployment: Deployment, suffix: str) -> Object:
    """Metadata of what stands beside the replicas, named apart from them: their services must not select it."""
    return metadata(deployment, suffix, {NAME_LABEL: f"{deployment.name}-{suffix}"})


def manifests(path: str, *objects: Object, assumptions: Sequence[str] = ()) -> Files:
    """One file with all objects, in the order in which `kubectl apply` creates them."""
    return Files(files={path: yaml_text(*objects)}, apply=(f"kubectl apply -f {path}",), assumptions=tuple(assumptions))


# nodes


def node_records(deployment: Deployment, role: str) -> list[NodeRecord]:
    """The facts of one role for the nodes of a deployment, for all purchase options."""
    rows, chip = deployment.facts.kubernetes_nodes, deployment.accelerator
    devices = (chip.name, deployment.offer.instance, f"{chip.vendor} {chip.kind}")
    own = any(row.provider == deployment.offer.provider for row in rows)
    provider = deployment.offer.provider if own else OTHER
    return [row for row in rows if row.role == role and row.fits(provider, devices)]


def device_resource(deployment: Deployment) -> str | None:
    """The resource that counts the accelerators of a node; None for CPUs."""
    return next((row.key for row in node_records(deployment, "resource")), None)


def node_refusals(deployment: Deployment) -> Iterator[str]:
    """Reasons why pods cannot request the plan's nodes."""
    chip, offer = deployment.accelerator, deployment.offer
    if chip.kind != "cpu" and device_resource(deployment) is None:
        yield f"no device plugin is known for {chip.name}; plan with a --gpu of NVIDIA, AMD, AWS, Google or Gaudi"
    if chip.kind == "cpu" and (offer.vcpus is None or offer.ram_bytes is None):
        yield f"the vCPUs or the memory of {offer.instance} are not known; plan with another --instance"
    if chip.kind == "tpu" and not any(row.key.endswith("topology") for row in node_records(deployment, "label")):
        yield f"the topology label of {offer.instance} is not known; plan with --instance tpu-v6e-1, -4 or -8"


def node_labels(deployment: Deployment) -> dict[str, str]:
    """Labels of the plan's nodes, for all purchase options."""
    instance = deployment.offer.instance.partition("+")[0]
    rows = [row for row in node_records(deployment, "label") if row.purchase == ANY]
    return {row.key: instance if row.value == "{instance}" else row.value for row in rows}


def placement(deployment: Deployment) -> Object:
    """nodeSelector, affinity and tolerations that schedule pods on the plan's machines."""
    spot = deployment.candidate.purchase == "spot"
    marks = [row for row in node_records(deployment, "label") if row.purchase == "spot"]
    expressions = [{"key": row.key, "operator": "In" if spot else "NotIn", "values": [row.value]} for row in marks]
    terms = [{"matchExpressions": [one]} for one in expressions] if spot else [{"matchExpressions": expressions}]
    rule = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    taints = [row for row in node_records(deployment, "toleration") if spot or row.purchase == ANY]
    tolerations = [
        {"key": row.key, **({"operator": "Equal", "value": row.value} if row.value else {"operator": "Exists"}),
         "effect": row.effect}
        for row in taints
    ]  # fmt: skip
    fields = {
        "nodeSelector": node_labels(deployment),
        "affinity": rule if expressions else {},
        "tolerations": tolerations,
    }
    return {name: value for name, value in fields.items() if value}


def placement_notes(deployment: Deployment) -> Iterator[str]:
    """Assumptions on the nodes."""
    offer, chip = deployment.offer, deployment.accelerator
    yield f"the cluster has {deployment.num_nodes} x {offer.instance} of {offer.provider} in {offer.region}"
    if not node_labels(deployment) and chip.kind != "cpu":
        yield (
            f"no label of nodes with {chip.name} is known: pods are scheduled on any node with "
            f"{device_resource(deployment)}"
        )
    if deployment.candidate.purchase == "spot" and "affinity" not in placement(deployment):
        yield f"no label of spot nodes of {offer.provider} is known: pods do not select them"


# resources


def allocatable(deployment: Deployment) -> tuple[float, float] | None:
    """(CPUs, bytes) of a node that are available to pods; None: those of the machine are not known.

    Source: GKE documentation, node sizes: reserved are 6 % of the first CPU, 1 % of the next, 0.5 % of two more, 0.25 %
    of the others; 25 % of the first 4 GiB of memory, 20 % of the next 4, 10 % of the next 8, 6 % of the next 112, 2 %
    of the others, and 100 MiB before pods are evicted. Assumes: other providers reserve no more.
    """
    cpus, memory = deployment.offer.vcpus, deployment.offer.ram_bytes
    if cpus is None or memory is None:
        return None
    kept = _in_bands(cpus, ((1, 0.06), (1, 0.01), (2, 0.005), (math.inf, 0.0025)))
    bands = ((4 * GIB, 0.25), (4 * GIB, 0.2), (8 * GIB, 0.1), (112 * GIB, 0.06), (math.inf, 0.02))
    reserved_bytes = _in_bands(memory, bands) + 100 * MIB
    return cpus - kept - min(SYSTEM_CPUS, cpus / 4), memory - reserved_bytes - min(SYSTEM_BYTES, memory / 8)


def _in_bands(amount: float, bands: Sequence[tuple[float, float]]) -> float:
    """A progressive share of an amount: the sum of each share times its bracket."""
    total, left = 0.0, amount
    for width, share in bands:
        total += share * min(left, width)
        left -= min(left, width)
    return total


def resources(deployment: Deployment, devices: int) -> Object:
    """Requests and limits of a pod with `devices` of a node's accelerators: its share of CPUs and memory.

    CPUs have no limit, so that a pod can use idle ones. A pod without a device has a node for itself. A pod that
    communicates with other nodes requests all network cards of the node, if a device plugin counts them.
    """
    name, free = device_resource(deployment), allocatable(deployment)
    share = devices / max(1, deployment.gpus_per_node)
    requests, limits = dict[str, Any](), dict[str, Any]()
    if free is not None:
        requests["cpu"] = f"{math.floor(free[0] * share * 1000)}m"
        requests["memory"] = limits["memory"] = f"{math.floor(free[1] * share / MIB)}Mi"
    if name is not None:
        requests[name] = limits[name] = devices
    cards = network_cards(deployment)
    return {"requests": requests | cards, "limits": limits | cards}


def network_cards(deployment: Deployment) -> dict[str, int]:
    """The resource of a node's network cards, if a replica or a run has several machines; else empty."""
    if deployment.nodes_per_replica == 1:
        return {}
    return {row.key: int(row.value) for row in node_records(deployment, "network")}


# pods


def environment(deployment: Deployment, command: Command, more: Mapping[str, Any] | None = None) -> list[Object]:
    """Environment of a container: values, references to secrets, and `more` (a `valueFrom`, or text with `$(NAME)`).

    `more` comes first, as other values may refer to it. Secrets are optional: without one its variable is missing,
    which is sufficient for public weights.
    """
    more = dict(more or {})
    if command.address_env:
        more[command.address_env] = {"fieldRef": {"fieldPath": "status.podIP"}}
    ports = {key: str(first) for key, (first, _) in command.port_env.items()}
    values = {**command.env, **ports}
    plain = [{"name": key, "value": _literal(value)} for key, value in values.items() if key not in more]
    given = [
        {"name": key, **({"valueFrom": value} if isinstance(value, Mapping) else {"value": value})}
        for key, value in more.items()
    ]
    secret = [
        {"name": key, "valueFrom": {"secretKeyRef": {
            "name": deployment.value(setting), "key": "token", "optional": True,
        }}}
        for key, setting in command.secret_env.items()
    ]  # fmt: skip
    return [*given, *plain, *secret]


def _literal(text: str) -> str:
    """Text with `$(NAME)` escaped, which Kubernetes would replace by a variable."""
    return text.replace("$", "$$")


def image(deployment: Deployment, command: Command) -> str:
    """The container image: from the settings, else that of the command, else a placeholder."""
    return deployment.settings.image or command.image or deployment.value("image")


def container(
    deployment: Deployment, command: Command, devices: int, *, name: str = "main", more: Mapping[str, Any] | None = None
) -> Object:
    """The container of a command; `more`: additional environment of the target."""
    port = {"ports": [{"name": "http", "containerPort": command.port}]} if command.port else {}
    return {
        "name": name, "image": image(deployment, command), "command": [_literal(word) for word in command.args],
        **({"workingDir": FOLDER} if command.files else {}), "env": environment(deployment, command, more), **port,
        "resources": resources(deployment, devices),
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": [{"name": volume["name"], "mountPath": path} for volume, path in _volumes(deployment, command)],
    }  # fmt: skip


def pod(
    deployment: Deployment, command: Command, devices: int, *, name: str = "main", more: Mapping[str, Any] | None = None
) -> Object:
    """The spec of a pod that runs a command on `devices` of a node's accelerators, without a service account token."""
    settings = deployment.settings
    pull = {} if settings.pull_secret is None else {"imagePullSecrets": [{"name": settings.pull_secret}]}
    priority = {} if settings.priority is None else {"priorityClassName": settings.priority}
    return {
        "automountServiceAccountToken": False, "enableServiceLinks": False, **pull, **priority,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}, **placement(deployment),
        "containers": [container(deployment, command, devices, name=name, more=more)],
        "volumes": [volume for volume, _ in _volumes(deployment, command, devices)],
    }  # fmt: skip


def _volumes(deployment: Deployment, command: Command, devices: int = 1) -> list[tuple[Object, str]]:
    """(volume, mount path): shared memory, files of the command, and claims for the folders that it uses."""
    shared = {"medium": "Memory", "sizeLimit": f"{SHM_BYTES_PER_DEVICE * devices // MIB}Mi"}
    volumes: list[tuple[Object, str]] = [({"name": "shm", "emptyDir": shared}, "/dev/shm")]  # noqa: S108 - no file of ours
    if command.files:
        items = [{"key": key, "path": path} for key, path in _file_keys(command).items()]
        files = {"name": f"{deployment.name}-files", "items": items}
        volumes.append(({"name": "files", "configMap": files}, FOLDER))
    for name, path in _folders(deployment).items():
        claim = {"claimName": f"{deployment.name}-{name}"}
        volumes.append(({"name": name, "persistentVolumeClaim": claim}, path))
    return volumes


def _file_keys(command: Command) -> dict[str, str]:
    """Paths of a command's files by their keys in a ConfigMap, which has no folders."""
    return {f"file-{number}": path for number, path in enumerate(sorted(command.files))}


def _folders(deployment: Deployment) -> dict[str, str]:
    """Folders that a deployment reads or writes, by purpose; hub ids and URIs are not folders."""
    trains = deployment.serving is None
    paths = {"weights": deployment.model_id}
    if trains or deployment.task == "batch":
        paths |= {"data": deployment.value("data"), "output": deployment.value("output")}
    folders: dict[str, str] = {}
    for name, path in paths.items():
        if path.startswith("/") and path not in folders.values():
            folders[name] = path
    return folders


def config_map(deployment: Deployment, command: Command) -> list[Object]:
    """A ConfigMap of a command's files, if it has any."""
    if not command.files:
        return []
    data = {key: command.files[path] for key, path in _file_keys(command).items()}
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(deployment, "files"), "data": data}]


def claims(deployment: Deployment, bytes_of: Mapping[str, float]) -> list[Object]:
    """Volume claims for the folders of a deployment with their sizes in bytes, shared if there are several nodes."""
    mode = "ReadWriteMany" if deployment.num_nodes > 1 else "ReadWriteOnce"
    return [
        {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata(deployment, name),
            "spec": {
                "accessModes": [mode],
                "resources": {"requests": {"storage": f"{max(1, math.ceil(bytes_of.get(name, 0.0) / GIB))}Gi"}},
            },
        }
        for name in _folders(deployment)
    ]  # fmt: skip
