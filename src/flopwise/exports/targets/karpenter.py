"""Karpenter on AWS: a NodePool of the plan's machines, and the EC2NodeClass that launches them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flopwise.errors import InfeasibleError
from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import yaml_text
from flopwise.exports.exported import Files
from flopwise.exports.fleet import FleetDeployment
from flopwise.exports.node_pools import NodePool, fleet_pools, plan_pool
from flopwise.exports.spec import ExportSettings
from flopwise.exports.terraform import TAG

PROVIDER = "aws"
IDLE = "5m"
"""For how long a node that carries no run is kept: those of a queue follow one another."""
BUDGET = "10%"
"""Nodes of a service that may be replaced at once."""
Object = dict[str, Any]


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why Karpenter cannot launch the machines."""
    if deployment.candidate.provider != PROVIDER:
        yield (
            f"the plan is for {deployment.candidate.provider}, and Karpenter is exported for AWS only: plan again "
            "with --provider aws"
        )
    elif deployment.accelerator.kind == "cpu" and not deployment.offer.vcpus:
        yield f"the CPUs of {deployment.offer.instance} are not known, so that no limit can be set"


def export(deployment: Deployment) -> Files:
    """The node pool of a plan."""
    pool = plan_pool(deployment)
    return Files(
        files={"karpenter.yaml": yaml_text(*_objects(pool, deployment.settings, deployment.title))},
        apply=("kubectl apply -f karpenter.yaml",), assumptions=tuple(_notes([pool])),
    )  # fmt: skip


def export_fleet(fleet: FleetDeployment) -> Files:
    """The node pools of all workloads, a file for each region. Raises InfeasibleError: nothing stands on AWS."""
    regions = fleet_pools(fleet, PROVIDER)
    if not regions:
        raise InfeasibleError("karpenter has nothing to write", ["no machine of the plan is one of AWS"])
    files = {
        f"{region}/karpenter.yaml": yaml_text(
            *(part for pool in pools for part in _objects(pool, fleet.settings, fleet.assessment.name))
        )
        for region, pools in regions.items()
    }
    apply = tuple(f"kubectl --context {region} apply -f {region}/karpenter.yaml" for region in regions)
    notes = [*_notes([pool for pools in regions.values() for pool in pools])]
    return Files(
        files=files,
        apply=apply,
        assumptions=(*notes, "the context of each region's cluster has the name of the region"),
    )


def _objects(pool: NodePool, settings: ExportSettings, title: str) -> tuple[Object, Object]:
    return _node_class(pool, settings, title), _node_pool(pool, title)


def _metadata(pool: NodePool, title: str) -> Object:
    return {"name": pool.name, "annotations": {"flopwise.dev/title": title}}


def _node_pool(pool: NodePool, title: str) -> Object:
    """Machines of one type, as many as the plan has; nodes of runs go when they are empty."""
    requirements = [
        ("node.kubernetes.io/instance-type", [pool.instance]),
        ("karpenter.sh/capacity-type", _capacity_types(pool)),
        ("topology.kubernetes.io/region", [pool.region]),
    ]
    taints = [{"key": pool.resource, "value": "present", "effect": "NoSchedule"}] if pool.resource else []
    runs = pool.least == 0
    disruption: Object = {
        "consolidationPolicy": "WhenEmpty", "consolidateAfter": IDLE if runs else "Never",
        "budgets": [{"nodes": "100%", "reasons": ["Empty"]}, {"nodes": "0", "reasons": ["Drifted", "Underutilized"]}]
        if runs else [{"nodes": BUDGET}],
    }  # fmt: skip
    limits = {pool.resource: pool.nodes * pool.gpus_per_node} if taints else {"cpu": pool.nodes * (pool.vcpus or 0)}
    spec: Object = {
        "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": pool.name},
        "requirements": [{"key": key, "operator": "In", "values": values} for key, values in requirements],
        "taints": taints, "expireAfter": "Never",
    }  # fmt: skip
    return {
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": _metadata(pool, title),
        "spec": {
            "template": {"metadata": {"labels": {TAG: pool.name}}, "spec": spec},
            "disruption": disruption, "limits": limits,
        },
    }  # fmt: skip


def _capacity_types(pool: NodePool) -> list[str]:
    if pool.spot:
        return ["spot"]
    return ["reserved", "on-demand"] if pool.has_commitment else ["on-demand"]


def _node_class(pool: NodePool, settings: ExportSettings, title: str) -> Object:
    """The launch settings of machines: newest image with its driver, subnets and groups of the cluster, one disk."""
    cluster = settings.value("cluster")
    discovery = [{"tags": {"karpenter.sh/discovery": cluster}}]
    spec: Object = {
        "amiSelectorTerms": [{"alias": "al2023@latest"}], "role": f"KarpenterNodeRole-{cluster}",
        "subnetSelectorTerms": discovery, "securityGroupSelectorTerms": discovery,
    }  # fmt: skip
    if pool.has_commitment:
        spec["capacityReservationSelectorTerms"] = [{"tags": {TAG: pool.name}}]
    if pool.local_disk:
        spec["instanceStorePolicy"] = "RAID0"
    disk = {
        "volumeType": "gp3", "volumeSize": f"{pool.disk_gb}Gi", "iops": 3000, "throughput": 1000, "encrypted": True,
        "deleteOnTermination": True,
    }  # fmt: skip
    spec["blockDeviceMappings"] = [{"deviceName": "/dev/xvda", "ebs": disk}]
    spec["metadataOptions"] = {"httpTokens": "required", "httpPutResponseHopLimit": 2}
    spec["tags"] = {TAG: pool.name}
    return {
        "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": _metadata(pool, title), "spec": spec,
    }  # fmt: skip


def _notes(pools: Sequence[NodePool]) -> Iterator[str]:
    yield "Karpenter 1 runs in the cluster, as its guide describes: role, discovery tags of subnets and groups"
    yield "images are the newest of Amazon Linux 2023; Karpenter takes the one with the driver of the machine"
    if any(pool.least == 0 for pool in pools):
        yield f"nodes of runs are kept for {IDLE} after the last run, and are not disrupted before"
    if any(pool.least for pool in pools):
        yield f"nodes of services stay; {BUDGET} of them may be replaced at once, when their image has changed"
    if any(pool.has_commitment for pool in pools):
        yield f"capacity reservations with the tag {TAG} are used first; reserved prices are bought separately"
    if any(pool.together for pool in pools):
        yield "Karpenter has no cluster placement groups: terraform-aws places nodes that work together in one"
