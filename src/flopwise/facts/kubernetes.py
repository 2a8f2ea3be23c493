"""How nodes of Kubernetes clusters are known: the resources of device plugins, labels, and taints to be tolerated."""

from __future__ import annotations

from typing import Literal

from flopwise.facts import tables
from flopwise.facts.tables import ANY, FactTable, SourcedRow
from flopwise.values import dataclass

OTHER = "other"
"""Providers that have no rows of their own: clusters whose GPUs NVIDIA's feature discovery labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord(SourcedRow):
    """A resource, network cards, a label or a taint of nodes of a provider that have a device, bought in a way.

    `device`: the name of an accelerator, of an instance type, or vendor and kind ("NVIDIA gpu"). `value` may hold
    `{instance}`; of network cards it is how many a node has. Of several labels of one purchase a node has one.
    """

    provider: str
    device: str
    purchase: str
    role: Literal["resource", "network", "label", "toleration"]
    key: str
    value: str = ""
    effect: str = ""

    def fits(self, provider: str, devices: tuple[str, ...]) -> bool:
        """True if the record is of that provider's nodes under one of those names."""
        return self.provider in (ANY, provider) and self.device in (ANY, *devices)


NODES = FactTable(
    file="kubernetes_nodes.csv", meaning="a resource, a label or a taint of nodes in a Kubernetes cluster",
    row=NodeRecord, key=("provider", "device", "purchase", "role", "key"),
    readers={"role": tables.choice("resource", "network", "label", "toleration")},
)  # fmt: skip
