"""Node pools of a cloud's cluster: one for a plan, for a fleet those of all its workloads."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

from flopwise.exports.deployment import Deployment, resource_name
from flopwise.exports.fleet import FleetDeployment
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.catalog import Facts
from flopwise.facts.formats import BF16
from flopwise.fleet.assessment import Allotment, WorkloadResult
from flopwise.fleet.schedules import WeeklySchedule
from flopwise.ops.weights import weight_bytes
from flopwise.search.spec import TRAINING
from flopwise.values import dataclass

SYSTEM_GB = 100
"""Disk of a node for its system, images and logs. Assumed: images of engines and trainers have 10 to 30 GB unpacked."""
DISK_STEP_GB = 50
GKE_LABEL = "cloud.google.com/gke-accelerator"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePool:
    """Nodes of one instance type in one region with one purchase option.

    `nodes`: maximum number; `first`: initial number; `least`: minimum number. `together`: several nodes have one run or
    replica.
    """

    name: str
    region: str
    instance: str
    accelerator: Accelerator
    gpus_per_node: int
    resource: str  # resource of the accelerators, also the taint's key; empty for CPUs
    gke_name: str  # GKE's name of the accelerator; empty if it has none
    purchase: str
    nodes: int
    first: int
    least: int
    together: bool
    trains: bool
    local_disk: bool
    vcpus: int | None  # of a node
    weights_gb: float
    workloads: tuple[str, ...]

    @property
    def spot(self) -> bool:
        """True if the provider may interrupt its nodes."""
        return self.purchase == "spot"

    @property
    def has_commitment(self) -> bool:
        """True if its nodes are paid for by a commitment."""
        return self.purchase.startswith("reserved")

    @property
    def disk_gb(self) -> int:
        """Disk of a node in GB: system and weights, rounded up."""
        return math.ceil((SYSTEM_GB + self.weights_gb) / DISK_STEP_GB) * DISK_STEP_GB


def plan_pool(deployment: Deployment) -> NodePool:
    """The pool of a plan: permanent nodes for a service; nodes of a run may be removed after its end."""
    candidate = deployment.candidate
    return NodePool(
        name=deployment.name, region=candidate.region, instance=candidate.instance,
        accelerator=deployment.accelerator, gpus_per_node=deployment.gpus_per_node, purchase=candidate.purchase,
        **_names_of(deployment.facts, candidate.provider, candidate.gpu),
        nodes=deployment.num_nodes, first=deployment.num_nodes,
        least=deployment.num_nodes if deployment.task in {"serve", "encode"} else 0,
        together=_spans_nodes(deployment), trains=deployment.training is not None,
        local_disk=bool(deployment.offer.local_disk_bytes), vcpus=deployment.offer.vcpus,
        weights_gb=_weights_gb(deployment),
        workloads=(deployment.title,),
    )  # fmt: skip


def fleet_pools(fleet: FleetDeployment, provider: str) -> dict[str, list[NodePool]]:
    """The pools of a provider's machines by region; machines shared at different hours count once.

    Assumes: workloads without a schedule may run at any time.
    """
    results = {result.name: result for result in fleet.assessment.workloads}
    deployments = {id(row): deployment for workload in fleet.workloads for row, deployment in workload.parts}
    kinds: dict[tuple[str, str, str, str], list[Allotment]] = {}
    for row in fleet.assessment.allocation:
        if row.provider == provider and row.num_gpus:
            own = row.pool if row.dedicated else ""
            kinds.setdefault((row.region, row.instance, row.purchase, own), []).append(row)
    pools: dict[str, list[NodePool]] = {}
    for (region, _, _, own), rows in sorted(kinds.items()):
        mine = [deployments[id(row)] for row in rows if id(row) in deployments]
        pools.setdefault(region, []).append(_fleet_pool(fleet, rows, mine, results, own))
    return pools


def _fleet_pool(
    fleet: FleetDeployment, rows: Sequence[Allotment], mine: Sequence[Deployment],
    results: Mapping[str, WorkloadResult], own: str,
) -> NodePool:  # fmt: skip
    from flopwise.fleet.schedules import most_at_once, slots  # noqa: PLC0415 - plans have no hours

    first = rows[0]
    scaled = {one.workload: one for one in fleet.assessment.scaled}
    hours = [workload_hours(results.get(row.workload)) for row in rows]
    counts = [max(row.count, scaled[row.workload].machines_peak if row.workload in scaled else 0) for row in rows]
    steady = [
        scaled[row.workload].machines_always if row.workload in scaled else row.count
        for row, when in zip(rows, hours, strict=True)
        if row.role == "primary" and when is not None and when.always and _stays(results.get(row.workload))
    ]
    offer = fleet.facts.offers_by_key.get((first.provider, first.instance, first.region))
    return NodePool(
        name=resource_name("-".join(part for part in (first.instance, first.purchase, own) if part)),
        region=first.region, instance=first.instance, accelerator=fleet.facts.accelerators[first.gpu],
        gpus_per_node=first.num_gpus // first.count, purchase=first.purchase,
        **_names_of(fleet.facts, first.provider, first.gpu),
        nodes=int(most_at_once(slots(hours), counts)), first=sum(steady), least=sum(steady),
        together=any(_spans_nodes(one) for one in mine), trains=any(one.training is not None for one in mine),
        local_disk=bool(offer and offer.local_disk_bytes), vcpus=offer.vcpus if offer else None,
        weights_gb=max(map(_weights_gb, mine), default=0.0),
        workloads=tuple(dict.fromkeys(row.workload for row in rows)),
    )  # fmt: skip


def _names_of(facts: Facts, provider: str, gpu: str) -> dict[str, str]:
    """Kubernetes' names of an accelerator: its resource, and GKE's label."""
    chip = facts.accelerators[gpu]
    rows = [row for row in facts.kubernetes_nodes if row.fits(provider, (gpu, f"{chip.vendor} {chip.kind}"))]
    return {
        "resource": next((row.key for row in rows if row.role == "resource"), ""),
        "gke_name": next((row.value for row in rows if row.key == GKE_LABEL), ""),
    }


def workload_hours(result: WorkloadResult | None) -> WeeklySchedule | None:
    """The schedule of a workload; None if it may run at any time."""
    from flopwise.fleet.schedules import schedule  # noqa: PLC0415 - plans have no hours
    from flopwise.fleet.spec import Hours  # noqa: PLC0415 - the same

    if result is None or (result.schedule is None and not _stays(result)):
        return None
    plain = result.schedule
    if plain is None:
        return schedule(Hours(always=True), "", result.name)
    if plain["start"] is None:
        return schedule(Hours(per_day=plain["hours_per_day"], days=plain["days_per_month"]), "", result.name)
    return schedule(Hours(start=plain["start"], stop=plain["stop"], days=plain["days"]), "", result.name)


def _stays(result: WorkloadResult | None) -> bool:
    """True if a workload has no end: services, and machines that people work on."""
    return result is not None and result.kind in {"serve", "encode", "develop"}


def _spans_nodes(deployment: Deployment) -> bool:
    """True if a run, or a replica, is spread over several machines."""
    nodes = deployment.num_nodes if deployment.task in TRAINING else deployment.nodes_per_replica
    return nodes > 1


def _weights_gb(deployment: Deployment) -> float:
    """Size of the weights on disk, in GB: in the engine's format, else in 16 bits."""
    fmt = BF16 if deployment.serving is None else deployment.serving.weights
    return float(weight_bytes(deployment.model, fmt)) / 1e9


def short_name(name: str, longest: int) -> str:
    """A name of at most `longest` characters; a shortened name ends with a part of its hash."""
    return (
        name if len(name) <= longest else name[: longest - 6].strip("-") + hashlib.sha256(name.encode()).hexdigest()[:6]
    )
