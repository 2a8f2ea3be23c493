"""A node pool of an AKS cluster: size, priority, taints, and a placement group for nodes that work together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flopwise.exports.node_pools import NodePool, short_name
from flopwise.exports.spec import ExportSettings
from flopwise.exports.terraform import (
    AZURERM,
    Expression,
    HclBlock,
    PoolModule,
    Variable,
    azure_account,
    azure_provider,
    block,
    name_variable,
    pool_tags,
    resource_label,
    tags_variable,
    terraform_block,
    terraform_files,
)  # fmt: skip

LONGEST = 12
"""Characters of a node pool's name, lower-case letters and digits alone."""
SPOT = "kubernetes.azure.com/scalesetpriority"


def _files(title: str, pools: Sequence[NodePool], settings: ExportSettings) -> dict[str, str]:
    blocks = [
        terraform_block(azurerm=AZURERM),
        azure_provider(),
        block(
            "data", "azurerm_kubernetes_cluster", "this", name=Expression("var.cluster"),
            resource_group_name=Expression("var.resource_group"),
        ),
    ]  # fmt: skip
    for pool in pools:
        blocks += _pool(pool)
    return terraform_files(title, blocks, list(_variables(pools, settings)))


def _pool(pool: NodePool) -> Iterator[HclBlock]:
    """The node pool, behind a proximity placement group where its nodes work together."""
    label, known = resource_label(pool.name), "data.azurerm_kubernetes_cluster.this"
    taints = [f"{SPOT}=spot:NoSchedule"] if pool.spot else []
    taints += [f"{pool.resource}=present:NoSchedule"] if pool.resource else []
    arguments: dict[str, Any] = {
        "name": short_name(pool.name.replace("-", ""), LONGEST),
        "kubernetes_cluster_id": Expression(f"{known}.id"), "vm_size": pool.instance, "mode": "User",
        "priority": "Spot" if pool.spot else "Regular",
    }  # fmt: skip
    if pool.spot:
        arguments |= {"eviction_policy": "Delete", "spot_max_price": Expression("var.spot_max_price")}
    arguments |= {
        "auto_scaling_enabled": True, "node_count": pool.first, "min_count": pool.least, "max_count": pool.nodes,
        "os_disk_size_gb": Expression(f"max(var.disk_gb, {pool.disk_gb})"),
        "vnet_subnet_id": Expression('var.subnet_id == "" ? null : var.subnet_id'),
        "zones": Expression("length(var.zones) > 0 ? var.zones : null"),
    }  # fmt: skip
    if pool.spot:
        arguments["node_labels"] = {SPOT: "spot"}
    if taints:
        arguments["node_taints"] = taints
    if pool.has_commitment:
        arguments["capacity_reservation_group_id"] = Expression(
            f'lookup(var.capacity_reservations, "{pool.name}", null)'
        )
    if pool.together:
        group = "azurerm_proximity_placement_group"
        arguments["proximity_placement_group_id"] = Expression(f"{group}.{label}.id")
        yield block(
            "resource", group, label, name=pool.name, location=Expression(f"{known}.location"),
            resource_group_name=Expression(f"{known}.node_resource_group"), tags=Expression("var.tags"),
        )  # fmt: skip
    arguments["tags"] = pool_tags(pool.name)
    place = block(
        "precondition", condition=Expression(f'{known}.location == "{pool.region}"'),
        error_message=f"The plan's machines are in {pool.region}: take a cluster there.",
    )  # fmt: skip
    lifecycle = block("lifecycle", ignore_changes=[Expression("node_count")], blocks=[place])
    yield HclBlock(("resource", "azurerm_kubernetes_cluster_node_pool", label), arguments, [lifecycle])


def _variables(pools: Sequence[NodePool], settings: ExportSettings) -> Iterator[Variable]:
    yield from azure_account(settings, "Resource group of the cluster.")
    yield name_variable(
        "cluster", "Name of the AKS cluster.", settings.value("cluster"),
        "^[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?$", "1 to 63 letters, digits, hyphens and underscores.",
    )  # fmt: skip
    yield Variable(name="subnet_id", meaning="Subnet of the nodes (default: that of the cluster).", default="")
    yield Variable(
        name="zones", meaning="Availability zones of the nodes (default: any).", kind="list(string)", default=[],
        check='alltrue([for zone in var.zones : contains(["1", "2", "3"], zone)])', message='"1", "2" or "3".',
    )  # fmt: skip
    yield Variable(
        name="disk_gb", meaning="Disk of a node, in GB; at least what the plan needs.", kind="number", default=0,
    )  # fmt: skip
    if any(pool.spot for pool in pools):
        yield Variable(
            name="spot_max_price", meaning="Highest price of a spot node, in USD per hour; -1: the on-demand price.",
            kind="number", default=-1, check="var.spot_max_price == -1 || var.spot_max_price > 0",
            message="-1, or above 0.",
        )  # fmt: skip
    if any(pool.has_commitment for pool in pools):
        yield Variable(
            name="capacity_reservations", meaning="Capacity reservation groups by node pool.", kind="map(string)",
            default={},
        )  # fmt: skip
    yield tags_variable()


def _notes(pools: Sequence[NodePool]) -> Iterator[str]:
    yield "the AKS cluster exists; pools use its operating system and network"
    if any(pool.resource for pool in pools):
        yield "AKS installs the driver; the vendor's device plugin runs in the cluster"
    if any(pool.has_commitment for pool in pools):
        yield "a reserved price is a reservation or savings plan that is bought separately"
    if any(pool.together for pool in pools):
        yield "nodes that work together share a proximity placement group; sizes with an r have InfiniBand"
    yield "disks hold one copy of the weights and 100 GB of system, images and logs"


MODULE = PoolModule(
    provider="azure", cloud="Azure", nodes="Node pool", cluster="an AKS cluster", files=_files, notes=_notes,
)  # fmt: skip
refusals, export, export_fleet = MODULE.refusals, MODULE.export, MODULE.export_fleet
