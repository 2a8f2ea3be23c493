"""Queues of Kueue: a flavor for each kind of machine, quotas of the plan's machines, and who may borrow of whom."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

from flopwise.exports import kubernetes as parts
from flopwise.exports.deployment import Deployment, resource_name
from flopwise.exports.emit import yaml_text
from flopwise.exports.exported import Files
from flopwise.exports.fleet import FleetDeployment
from flopwise.exports.kubernetes import Object

API = "kueue.x-k8s.io/v1beta2"
INSTALLED = "Kueue 0.15 or later is installed (its API v1beta2)"
Machines = Mapping[str, tuple["Deployment", int]]
"""By flavor a deployment on such machines, and how many of them there are."""


def refusals(deployment: Deployment) -> Iterator[str]:
    """Reasons why there is nothing to count."""
    yield from parts.node_refusals(deployment)
    if parts.allocatable(deployment) is None:
        yield (
            f"CPUs and memory of {deployment.offer.instance} are not known, and queues need quotas of both: plan "
            "with an --instance whose vCPUs and memory are known"
        )


def export(deployment: Deployment) -> Files:
    """`kueue.yaml`: a ClusterQueue of the plan's machines, and the LocalQueue that jobs name."""
    queue, machines = deployment.value("queue"), {_flavor(deployment): (deployment, deployment.num_nodes)}
    meta = parts.metadata(deployment)
    place = {key: meta[key] for key in ("namespace",) if key in meta}
    return parts.manifests(
        "kueue.yaml", *_flavors(machines), _cluster_queue(deployment.name, machines, meta["annotations"]),
        _local_queue(queue, deployment.name, place),
        assumptions=(*parts.placement_notes(deployment), INSTALLED),
    )  # fmt: skip


def export_fleet(fleet: FleetDeployment) -> Files:
    """`kueue.yaml`: a ClusterQueue for each environment; those that the allocation lets share machines are a cohort.

    Machines of a workload that shares with nobody are a queue of their own, from which nobody borrows.
    """
    shared: dict[str, dict[str, tuple[Deployment, int]]] = defaultdict(dict)
    alone: dict[str, dict[str, tuple[Deployment, int]]] = defaultdict(dict)
    notes = []
    for workload in fleet.workloads:
        for row, deployment in workload.parts:
            if reasons := list(refusals(deployment)):
                notes.append(f"left out: {workload.result.name[:80]}: {'; '.join(reasons)}")
                continue
            own = alone[workload.result.name] if row.dedicated else shared[workload.result.environment]
            flavor = _flavor(deployment)
            own[flavor] = (deployment, own.get(flavor, (deployment, 0))[1] + row.count)
    queues = [(f"{fleet.name}-{resource_name(name)}", name, machines, True) for name, machines in shared.items()]
    queues += [(f"{fleet.name}-{resource_name(name)}", name, machines, False) for name, machines in alone.items()]
    every = {flavor: one for _, _, machines, _ in queues for flavor, one in machines.items()}
    place = {"namespace": fleet.settings.namespace} if fleet.settings.namespace else {}
    cohort = fleet.name if len(shared) > 1 else None
    objects = [
        part
        for full, name, machines, shares in queues
        for part in (
            _cluster_queue(full, machines, {"flopwise.dev/title": name}, cohort if shares else None),
            _local_queue(resource_name(name), full, place),
        )
    ]  # fmt: skip
    notes += [INSTALLED, "jobs name the queue of their environment, or their own: the label kueue.x-k8s.io/queue-name"]
    return Files(
        files={"kueue.yaml": yaml_text(*_flavors(every), *objects)}, apply=("kubectl apply -f kueue.yaml",),
        assumptions=tuple(notes),
    )  # fmt: skip


def _flavor(deployment: Deployment) -> str:
    """The name of a kind of machine, bought in a way."""
    chosen = deployment.candidate
    return resource_name(f"{chosen.provider} {chosen.instance} {chosen.purchase}")


def _flavors(machines: Machines) -> list[Object]:
    """A ResourceFlavor for each kind of machine: its labels, and the taints that its jobs tolerate."""
    made = []
    for name, (deployment, _) in sorted(machines.items()):
        place = parts.placement(deployment)
        spot = {row.key: row.value for row in parts.node_records(deployment, "label") if row.purchase == "spot"}
        bought = spot if deployment.candidate.purchase == "spot" and len(spot) == 1 else {}
        spec = {"nodeLabels": parts.node_labels(deployment) | bought, "tolerations": place.get("tolerations", [])}
        made.append({
            "apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": name},
            "spec": {key: value for key, value in spec.items() if value},
        })  # fmt: skip
    return made


def _cluster_queue(name: str, machines: Machines, annotations: Object, cohort: str | None = None) -> Object:
    """Quotas of all machines of a queue; what others of its cohort leave over it may borrow."""
    share = {"cohortName": cohort, "preemption": {"reclaimWithinCohort": "Any"}} if cohort else {}
    return {
        "apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": name, "annotations": annotations},
        "spec": {
            **share, "namespaceSelector": {}, "queueingStrategy": "BestEffortFIFO",
            "resourceGroups": [_group(machines)],
        },
    }  # fmt: skip


def _group(machines: Machines) -> Object:
    """Quotas of flavors, all in one group: each has a quota of every resource, none of those its machines lack."""
    quotas = {name: dict(_amounts(deployment, count)) for name, (deployment, count) in sorted(machines.items())}
    every = {resource for amounts in quotas.values() for resource in amounts}
    names = sorted(every, key=lambda name: ("/" in name, name))  # CPUs and memory first
    flavors = [
        {"name": flavor, "resources": [{"name": name, "nominalQuota": amounts.get(name, 0)} for name in names]}
        for flavor, amounts in quotas.items()
    ]
    return {"coveredResources": names, "flavors": flavors}


def _amounts(deployment: Deployment, count: int) -> Iterator[tuple[str, str | int]]:
    """The amounts that so many machines have for pods."""
    free = parts.allocatable(deployment)
    assert free is not None
    yield "cpu", f"{math.floor(free[0] * 1000) * count}m"
    yield "memory", f"{math.floor(free[1] / parts.MIB) * count}Mi"
    if (device := parts.device_resource(deployment)) is not None:
        yield device, deployment.gpus_per_node * count


def _local_queue(name: str, cluster_queue: str, place: Object) -> Object:
    return {
        "apiVersion": API, "kind": "LocalQueue", "metadata": {"name": name, **place},
        "spec": {"clusterQueue": cluster_queue},
    }  # fmt: skip
