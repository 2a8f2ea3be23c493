"""A node pool of a GKE cluster: accelerators with their drivers, spot, compact placement, TPU slices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flopwise.exports.node_pools import NodePool, short_name
from flopwise.exports.spec import ExportSettings
from flopwise.exports.terraform import (
    GOOGLE,
    Expression,
    HclBlock,
    PoolModule,
    Variable,
    block,
    gcp_project,
    name_variable,
    pool_tags,
    resource_label,
    tags_variable,
    terraform_block,
    terraform_files,
)  # fmt: skip

LONGEST = 40
"""Characters of a node pool's name."""
MEGA = "nvidia-h100-mega-80gb"
"""The H100 of a3-megagpu-8g."""
TPU_MACHINES: Mapping[str, tuple[str, str]] = {
    "tpu-v6e-1": ("ct6e-standard-1t", "1x1"),
    "tpu-v6e-4": ("ct6e-standard-4t", "2x2"),
    "tpu-v6e-8": ("ct6e-standard-8t", "2x4"),
}
"""Slices of one machine: its type and topology. Source: GKE's page "Plan TPUs in GKE" (read 2026-11-22)."""
HYPERDISK = ("a3-ultragpu", "a4-", "c4-", "c4a-", "c4d-", "g4-", "ct6e-")
"""Machine series that take no other kind of disk. Source: Compute Engine's page "Hyperdisk" (read 2026-11-22)."""


def _unknown(pool: NodePool) -> str | None:
    """Why GKE has no such nodes."""
    if pool.accelerator.kind == "tpu" and pool.instance not in TPU_MACHINES:
        return f"{pool.instance} is a slice of many machines; plan with --instance {', '.join(TPU_MACHINES)}"
    if pool.accelerator.kind == "gpu" and not pool.gke_name:
        return f"GKE's name of the {pool.accelerator.name} is not known; plan with another --gpu"
    return None


def _files(title: str, pools: Sequence[NodePool], settings: ExportSettings) -> dict[str, str]:
    blocks = [
        terraform_block(google=GOOGLE),
        block("provider", "google", project=Expression("var.project"), region=Expression("var.region")),
        *(_pool(pool) for pool in pools),
    ]
    return terraform_files(title, blocks, list(_variables(pools, settings)))


def _pool(pool: NodePool) -> HclBlock:
    machine, topology = TPU_MACHINES.get(pool.instance, (pool.instance.partition("+")[0], ""))
    blocks = [_node_config(pool, machine), block("management", auto_repair=True, auto_upgrade=True)]
    blocks.append(block(
        "autoscaling", total_min_node_count=pool.least, total_max_node_count=pool.nodes,
        location_policy="ANY" if pool.spot or pool.has_commitment else "BALANCED",
    ))  # fmt: skip
    if pool.together:
        blocks.append(block("placement_policy", type="COMPACT"))
        blocks.append(_networks())
    elif topology and pool.nodes > 1:
        blocks.append(block("upgrade_settings", max_surge=0, max_unavailable=1))
    return block(
        "resource", "google_container_node_pool", resource_label(pool.name), name=short_name(pool.name, LONGEST),
        cluster=Expression("var.cluster"), location=Expression('var.location == "" ? var.region : var.location'),
        node_locations=Expression("length(var.zones) > 0 ? var.zones : null"), initial_node_count=0,
        blocks=[*blocks, block("lifecycle", ignore_changes=[Expression("initial_node_count")])],
    )  # fmt: skip


def _node_config(pool: NodePool, machine: str) -> HclBlock:
    arguments: dict[str, Any] = {
        "machine_type": machine, "spot": pool.spot, "image_type": "COS_CONTAINERD",
        "disk_type": "hyperdisk-balanced" if machine.startswith(HYPERDISK) else "pd-balanced",
        "disk_size_gb": Expression(f"max(var.disk_gb, {pool.disk_gb})"),
        "oauth_scopes": ["https://www.googleapis.com/auth/cloud-platform"],
        "resource_labels": pool_tags(pool.name),
    }  # fmt: skip
    blocks = [block("gvnic", enabled=True), block("workload_metadata_config", mode="GKE_METADATA")]
    if pool.accelerator.kind == "gpu":
        kind = MEGA if machine.startswith("a3-megagpu") else pool.gke_name
        driver = block("gpu_driver_installation_config", gpu_driver_version="LATEST")
        blocks.append(block("guest_accelerator", type=kind, count=pool.gpus_per_node, blocks=[driver]))
    if pool.has_commitment:
        blocks.append(_reservation(pool.name))
    return HclBlock(("node_config",), arguments, blocks)


def _reservation(name: str) -> HclBlock:
    """Nodes of a reservation, where one is named."""
    known = f'lookup(var.reservations, "{name}", null)'
    content = block(
        "content", consume_reservation_type="SPECIFIC_RESERVATION", key="compute.googleapis.com/reservation-name",
        values=[Expression("reservation_affinity.value")],
    )  # fmt: skip
    return block(
        "dynamic", "reservation_affinity", for_each=Expression(f"{known} == null ? [] : [{known}]"), blocks=[content],
    )  # fmt: skip


def _networks() -> HclBlock:
    """Further network interfaces of the nodes, for GPUDirect, where networks are named."""
    inner = block(
        "content", network=Expression("additional_node_network_configs.value.network"),
        subnetwork=Expression("additional_node_network_configs.value.subnetwork"),
    )  # fmt: skip
    networks = block(
        "dynamic", "additional_node_network_configs", for_each=Expression("var.gpu_networks"), blocks=[inner],
    )  # fmt: skip
    return block("network_config", enable_private_nodes=True, blocks=[networks])


def _variables(pools: Sequence[NodePool], settings: ExportSettings) -> Iterator[Variable]:
    yield gcp_project(settings)
    yield name_variable(
        "cluster", "Name of the GKE cluster.", settings.value("cluster"),
        "^[a-z][a-z0-9-]{0,38}[a-z0-9]$", "Up to 40 lower-case letters, digits and hyphens.",
    )  # fmt: skip
    yield Variable(name="region", meaning="GCP region of the cluster.", default=pools[0].region)
    yield Variable(name="location", meaning="Zone of a zonal cluster; empty: the region.", default="")
    yield Variable(
        name="zones", meaning="Zones of the nodes, where the machines are available (default: those of the cluster).",
        kind="list(string)", default=[], check='alltrue([for zone in var.zones : startswith(zone, "${var.region}-")])',
        message="Zones of the region, such as us-central1-a.",
    )  # fmt: skip
    yield Variable(
        name="disk_gb", meaning="Boot disk of a node, in GB; at least what the plan needs.", kind="number",
        default=0,
    )  # fmt: skip
    if any(pool.has_commitment for pool in pools):
        yield Variable(name="reservations", meaning="Reservations by node pool.", kind="map(string)", default={})
    if any(pool.together for pool in pools):
        yield Variable(
            name="gpu_networks", meaning="Additional networks of the nodes, for GPUDirect between them.",
            kind="list(object({ network = string, subnetwork = string }))", default=[],
        )  # fmt: skip
    yield tags_variable()


def _notes(pools: Sequence[NodePool]) -> Iterator[str]:
    yield "the GKE cluster exists; nodes run as the project's default service account"
    if any(pool.accelerator.kind == "gpu" for pool in pools):
        yield "GKE installs its latest driver, and taints the nodes nvidia.com/gpu=present:NoSchedule by itself"
    if any(pool.has_commitment for pool in pools):
        yield (
            "a reserved price is a committed use discount that is bought separately; name a reservation in "
            "`reservations`"
        )
    if any(pool.together for pool in pools):
        yield "nodes that work together are placed compactly; GPUDirect needs the networks in `gpu_networks`"
    yield "the pool starts empty: GKE's autoscaler adds nodes when pods request them"
    yield "boot disks hold one copy of the weights and 100 GB of system, images and logs"


MODULE = PoolModule(
    provider="gcp", cloud="GCP", nodes="Node pool", cluster="a GKE cluster", files=_files, notes=_notes,
    unknown=_unknown,
)  # fmt: skip
refusals, export, export_fleet = MODULE.refusals, MODULE.export, MODULE.export_fleet
