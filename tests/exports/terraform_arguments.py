"""Arguments and blocks of the resources that exported Terraform uses, as the providers document them.

Source: website/docs of hashicorp/terraform-provider-aws (eks_node_group @05389d4, launch_template @00a3530,
ec2_instance_type, fsx_lustre_file_system @0148137, budgets_budget, autoscaling_schedule @02910ee), -google
(container_node_pool @020ce19, container_cluster @007fdb8, billing_budget @0937ec5) and -azurerm
(kubernetes_cluster_node_pool @006f87e, consumption_budget @081874f), read on 2026-11-22.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_META = {"count", "for_each", "depends_on", "provider", "lifecycle"}
_LIFECYCLE = {"ignore_changes", "precondition", "create_before_destroy"}

ARGUMENTS: dict[str, set[str]] = {
    "data.aws_eks_cluster": {"name", "region"},
    "data.aws_ec2_instance_type": {"instance_type", "region"},
    "data.aws_iam_policy_document": {"statement", "version"},
    "data.aws_iam_policy_document.statement": {"actions", "principals", "effect", "resources", "sid"},
    "data.aws_iam_policy_document.statement.principals": {"type", "identifiers"},
    "data.aws_eks_node_group": {"cluster_name", "node_group_name", "region"},
    "aws_iam_role": {"name", "name_prefix", "assume_role_policy", "tags", "description"},
    "aws_iam_role_policy_attachment": {"policy_arn", "role"},
    "aws_security_group": {"name", "name_prefix", "description", "vpc_id", "ingress", "egress", "tags"},
    "aws_security_group.ingress": {"from_port", "to_port", "protocol", "self", "cidr_blocks"},
    "aws_security_group.egress": {"from_port", "to_port", "protocol", "self", "cidr_blocks"},
    "aws_placement_group": {"name", "strategy", "partition_count", "spread_level", "tags"},
    "aws_launch_template": {
        "name", "name_prefix", "instance_type", "image_id", "user_data", "block_device_mappings", "metadata_options",
        "tag_specifications", "placement", "network_interfaces", "capacity_reservation_specification",
        "instance_market_options", "vpc_security_group_ids", "tags",
    },
    "aws_launch_template.block_device_mappings": {"device_name", "ebs", "no_device", "virtual_name"},
    "aws_launch_template.block_device_mappings.ebs": {
        "volume_type", "volume_size", "iops", "throughput", "encrypted", "delete_on_termination", "kms_key_id",
    },
    "aws_launch_template.metadata_options": {"http_tokens", "http_endpoint", "http_put_response_hop_limit"},
    "aws_launch_template.tag_specifications": {"resource_type", "tags"},
    "aws_launch_template.placement": {"group_name", "group_id", "availability_zone", "tenancy"},
    "aws_launch_template.network_interfaces": {
        "device_index", "network_card_index", "interface_type", "delete_on_termination", "security_groups", "subnet_id",
    },
    "aws_launch_template.capacity_reservation_specification": {
        "capacity_reservation_preference", "capacity_reservation_target",
    },
    "aws_launch_template.capacity_reservation_specification.capacity_reservation_target": {
        "capacity_reservation_id", "capacity_reservation_resource_group_arn",
    },
    "aws_launch_template.instance_market_options": {"market_type", "spot_options"},
    "aws_eks_node_group": {
        "cluster_name", "node_group_name", "node_role_arn", "subnet_ids", "ami_type", "capacity_type", "tags", "labels",
        "launch_template", "scaling_config", "update_config", "taint", "instance_types", "disk_size", "version",
    },
    "aws_eks_node_group.launch_template": {"id", "name", "version"},
    "aws_eks_node_group.scaling_config": {"min_size", "desired_size", "max_size"},
    "aws_eks_node_group.update_config": {"max_unavailable", "max_unavailable_percentage"},
    "aws_eks_node_group.taint": {"key", "value", "effect"},
    "aws_fsx_lustre_file_system": {
        "storage_capacity", "subnet_ids", "deployment_type", "per_unit_storage_throughput", "security_group_ids",
    },
    "aws_autoscaling_schedule": {
        "autoscaling_group_name", "scheduled_action_name", "min_size", "max_size", "desired_capacity", "recurrence",
        "time_zone", "start_time", "end_time",
    },
    "aws_budgets_budget": {
        "name", "name_prefix", "budget_type", "limit_amount", "limit_unit", "time_unit", "cost_filter", "cost_types",
        "notification", "tags", "account_id",
    },
    "aws_budgets_budget.cost_filter": {"name", "values"},
    "aws_budgets_budget.notification": {
        "comparison_operator", "threshold", "threshold_type", "notification_type", "subscriber_email_addresses",
        "subscriber_sns_topic_arns",
    },
    "google_container_node_pool": {
        "name", "cluster", "location", "project", "node_locations", "initial_node_count", "node_count", "node_config",
        "management", "autoscaling", "placement_policy", "network_config", "upgrade_settings", "version",
    },
    "google_container_node_pool.management": {"auto_repair", "auto_upgrade"},
    "google_container_node_pool.autoscaling": {
        "total_min_node_count", "total_max_node_count", "min_node_count", "max_node_count", "location_policy",
    },
    "google_container_node_pool.placement_policy": {"type", "policy_name", "tpu_topology"},
    "google_container_node_pool.network_config": {
        "enable_private_nodes", "additional_node_network_configs", "accelerator_network_profile", "pod_range",
    },
    "google_container_node_pool.network_config.additional_node_network_configs": {"network", "subnetwork"},
    "google_container_node_pool.node_config": {
        "machine_type", "spot", "image_type", "disk_type", "disk_size_gb", "oauth_scopes", "resource_labels", "labels",
        "gvnic", "workload_metadata_config", "guest_accelerator", "reservation_affinity", "taint", "service_account",
    },
    "google_container_node_pool.node_config.gvnic": {"enabled"},
    "google_container_node_pool.node_config.workload_metadata_config": {"mode"},
    "google_container_node_pool.node_config.guest_accelerator": {
        "type", "count", "gpu_driver_installation_config", "gpu_partition_size", "gpu_sharing_config",
    },
    "google_container_node_pool.node_config.guest_accelerator.gpu_driver_installation_config": {"gpu_driver_version"},
    "google_container_node_pool.node_config.reservation_affinity": {"consume_reservation_type", "key", "values"},
    "data.google_project": {"project_id"},
    "google_monitoring_notification_channel": {"display_name", "type", "labels", "project"},
    "google_billing_budget": {
        "billing_account", "display_name", "amount", "budget_filter", "threshold_rules", "all_updates_rule",
    },
    "google_billing_budget.amount": {"specified_amount", "last_period_amount"},
    "google_billing_budget.amount.specified_amount": {"currency_code", "units", "nanos"},
    "google_billing_budget.budget_filter": {"projects", "labels", "services", "calendar_period"},
    "google_billing_budget.threshold_rules": {"threshold_percent", "spend_basis"},
    "google_billing_budget.all_updates_rule": {
        "monitoring_notification_channels", "disable_default_iam_recipients", "pubsub_topic", "schema_version",
    },
    "data.azurerm_kubernetes_cluster": {"name", "resource_group_name"},
    "data.azurerm_resource_group": {"name"},
    "azurerm_proximity_placement_group": {"name", "location", "resource_group_name", "tags", "zone"},
    "azurerm_kubernetes_cluster_node_pool": {
        "name", "kubernetes_cluster_id", "vm_size", "mode", "priority", "eviction_policy", "spot_max_price",
        "auto_scaling_enabled", "node_count", "min_count", "max_count", "os_disk_size_gb", "vnet_subnet_id", "zones",
        "node_labels", "node_taints", "capacity_reservation_group_id", "proximity_placement_group_id", "tags",
    },
    "azurerm_consumption_budget_resource_group": {
        "name", "resource_group_id", "amount", "time_grain", "time_period", "filter", "notification",
    },
    "azurerm_consumption_budget_resource_group.time_period": {"start_date", "end_date"},
    "azurerm_consumption_budget_resource_group.filter": {"dimension", "tag"},
    "azurerm_consumption_budget_resource_group.filter.tag": {"name", "operator", "values"},
    "azurerm_consumption_budget_resource_group.notification": {
        "operator", "threshold", "threshold_type", "contact_emails", "contact_groups", "contact_roles", "enabled",
    },
}  # fmt: skip


def unknown_arguments(parsed: Mapping[str, Any]) -> list[str]:
    """Arguments and blocks of a parsed file that their resource does not have."""
    found = list[str]()
    for section, prefix in (("resource", ""), ("data", "data.")):
        for block in parsed.get(section, []):
            for kind, named in block.items():
                for body in named.values():
                    found += _unknown(f"{prefix}{_bare(kind)}", body, top=True)
    return found


def _bare(name: str) -> str:
    return name.strip('"')


def _unknown(path: str, body: Mapping[str, Any], *, top: bool = False) -> Iterator[str]:
    known = _known(path)
    if known is None:
        yield f"{path}: not in the table"
        return
    for name, inner in _parts(body):
        if name not in known | (_META if top else set()):
            yield f"{path}.{name}"
        for block in inner:
            yield from _unknown(f"{path}.{name}", block)


def _known(path: str) -> set[str] | None:
    if path.endswith(".lifecycle"):
        return _LIFECYCLE
    return {"condition", "error_message"} if path.endswith(".precondition") else ARGUMENTS.get(path)


def _parts(body: Mapping[str, Any]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Names of arguments and blocks, dynamic ones among them, with the blocks of that name."""
    for name, value in body.items():
        if name == "dynamic":
            for kind, inner in ((kind, one) for block in value for kind, one in block.items() if kind[:2] != "__"):
                yield _bare(kind), inner["content"]
        elif not name.startswith("__"):
            blocks = value if isinstance(value, list) else []
            yield name, [one for one in blocks if isinstance(one, dict) and "__is_block__" in one]
