"""Node pools as Terraform: values of the plan, arguments that the providers have, variables that check themselves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import validators
from export_samples import expressible, sample_deployment, sample_export, sample_plan
from fleet_samples import sample_fleet
from terraform_arguments import unknown_arguments
from test_hcl import needs_terraform
from test_hcl import terraform as run_terraform

from flopwise.errors import InfeasibleError
from flopwise.exports.deployment import Deployment
from flopwise.exports.exported import Exported
from flopwise.exports.spec import ExportSettings
from flopwise.exports.targets import exported_assessment, exported_plan
from flopwise.exports.terraform import string_text
from flopwise.facts.catalog import load_facts

TARGETS = ("terraform-aws", "terraform-gcp", "terraform-azure")


def parsed(exported: Exported, folder: str = "") -> dict[str, Any]:
    """The configuration of a folder, which the strictest reader takes."""
    texts = [text for path, text in exported.files.items() if path.startswith(folder) and path.endswith(".tf")]
    return validators.terraform("\n".join(texts))


def resource(configuration: dict[str, Any], kind: str) -> dict[str, Any]:
    """The one resource of a kind."""
    (found,) = [named for block in configuration["resource"] for name, named in block.items() if name == f'"{kind}"']
    (body,) = found.values()
    whole: dict[str, Any] = body
    return whole


@pytest.mark.parametrize("target", TARGETS)
def test_the_providers_have_all_arguments(target: str) -> None:
    for sample in expressible(target):
        assert not unknown_arguments(parsed(sample_export(target, sample))), sample


def test_an_argument_that_no_provider_has_is_told() -> None:
    configuration = parsed(sample_export("terraform-aws", "serve"))
    resource(configuration, "aws_eks_node_group")["colour"] = "red"
    resource(configuration, "aws_launch_template")["placement"] = [{"colour": "red", "__is_block__": True}]
    assert unknown_arguments(configuration) == [
        "aws_launch_template.placement.colour", "aws_eks_node_group.colour",
    ]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
def test_plans_of_other_providers_are_refused(target: str) -> None:
    own = {"terraform-aws": "serve-gcp", "terraform-gcp": "serve-azure", "terraform-azure": "serve"}[target]
    with pytest.raises(InfeasibleError) as refused:
        sample_export(target, own)
    assert "plan again with --provider" in str(refused.value.reasons)


@needs_terraform
@pytest.mark.parametrize(
    ("target", "sample"),
    [("terraform-aws", "pretrain"), ("terraform-gcp", "serve-gcp"), ("terraform-azure", "serve-azure")],
)
def test_variables_take_their_example_and_nothing_that_cannot_be(target: str, sample: str, tmp_path: Path) -> None:
    exported = sample_export(target, sample)
    (tmp_path / "variables.tf").write_text(exported.files["variables.tf"])
    (tmp_path / "terraform.tfvars").write_text(exported.files["terraform.tfvars.example"])
    done = run_terraform("plan", "-input=false", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = 'cluster = "no such $ name"\n'
    (tmp_path / "wrong.tfvars").write_text(wrong)
    done = run_terraform("plan", "-input=false", "-var-file=wrong.tfvars", folder=tmp_path)
    assert "Invalid value for variable" in done.stdout + done.stderr


def test_a_service_on_aws() -> None:
    deployment = sample_deployment("serve")
    configuration = parsed(sample_export("terraform-aws", "serve", cluster="prod"))
    group, template = resource(configuration, "aws_eks_node_group"), resource(configuration, "aws_launch_template")
    assert template["instance_type"] == '"p5.48xlarge"'
    assert group["ami_type"] == '"AL2023_x86_64_NVIDIA"'
    assert group["capacity_type"] == '"ON_DEMAND"'
    nodes = deployment.candidate.num_gpus // 8
    (scaling,) = group["scaling_config"]
    assert [scaling[key] for key in ("min_size", "desired_size", "max_size")] == [nodes] * 3
    (taint,) = group["taint"]
    assert (taint["key"], taint["effect"]) == ('"nvidia.com/gpu"', '"NO_SCHEDULE"')
    # 70.6e9 parameters in fp8 and embeddings: 71 to 73 GB, 100 GB for the system, in steps of 50
    assert template["block_device_mappings"][0]["ebs"][0]["volume_size"] == "${max(var.root_volume_gb, 200)}"
    assert "base64encode(local.nvme)" in template["user_data"]


def test_a_run_over_several_machines_of_aws_stands_together() -> None:
    deployment = sample_deployment("pretrain")
    assert deployment.num_nodes > 1
    configuration = parsed(sample_export("terraform-aws", "pretrain"))
    assert resource(configuration, "aws_placement_group")["strategy"] == '"cluster"'
    template, group = resource(configuration, "aws_launch_template"), resource(configuration, "aws_eks_node_group")
    (interfaces,) = template["dynamic"]
    assert "maximum_network_cards" in interfaces['"network_interfaces"']["for_each"]
    (scaling,) = group["scaling_config"]
    assert (scaling["min_size"], scaling["desired_size"]) == (0, deployment.num_nodes)
    assert resource(configuration, "aws_fsx_lustre_file_system")


def test_spot_machines() -> None:
    group = resource(parsed(sample_export("terraform-aws", "pretrain-spot")), "aws_eks_node_group")
    assert group["capacity_type"] == '"SPOT"'


def test_a_service_on_gcp() -> None:
    deployment = sample_deployment("serve-gcp")
    pool = resource(parsed(sample_export("terraform-gcp", "serve-gcp")), "google_container_node_pool")
    (node,) = pool["node_config"]
    assert node["machine_type"] == f'"{deployment.candidate.instance}"'
    (accelerator,) = node["guest_accelerator"]
    assert (accelerator["type"], accelerator["count"]) == ('"nvidia-l4"', deployment.gpus_per_node)
    (scaling,) = pool["autoscaling"]
    assert scaling["total_max_node_count"] == deployment.num_nodes == scaling["total_min_node_count"]


def test_a_run_on_gcp_is_placed_compactly() -> None:
    deployment = sample_deployment("pretrain-moe")
    pool = resource(parsed(sample_export("terraform-gcp", "pretrain-moe")), "google_container_node_pool")
    assert deployment.num_nodes > 1
    assert pool["placement_policy"][0]["type"] == '"COMPACT"'


def test_a_service_on_azure() -> None:
    deployment = sample_deployment("serve-azure")
    pool = resource(parsed(sample_export("terraform-azure", "serve-azure")), "azurerm_kubernetes_cluster_node_pool")
    assert pool["vm_size"] == f'"{deployment.candidate.instance}"'
    assert pool["node_taints"] == ['"nvidia.com/gpu=present:NoSchedule"']
    assert re.fullmatch(r'"[a-z][a-z0-9]{0,11}"', pool["name"])
    assert pool["priority"] == '"Regular"'


def test_a_fleet_has_its_machines_once() -> None:
    fleet = sample_fleet()
    assert sum(row.count for row in fleet.assessment.allocation if row.provider == "aws") == 3
    group = resource(parsed(exported_assessment("terraform-aws", fleet), "us-east-1/"), "aws_eks_node_group")
    (scaling,) = group["scaling_config"]  # the morning's service and the evening's take the same machine
    assert [scaling[key] for key in ("min_size", "desired_size", "max_size")] == [1, 1, 2]
    desks = resource(parsed(exported_assessment("terraform-azure", fleet)), "azurerm_kubernetes_cluster_node_pool")
    assert (desks["min_count"], desks["max_count"]) == (0, 2)
    run = resource(parsed(exported_assessment("terraform-gcp", fleet)), "google_container_node_pool")
    assert run["node_config"][0]["spot"] is True


def _bought(sample: str, purchase: str, **changes: Any) -> Deployment:
    """The first candidate of a sample plan, bought otherwise."""
    plan = sample_plan(sample)
    candidate = msgspec.structs.replace(plan.plans[0], purchase=purchase, **changes)
    return Deployment.of_rank(msgspec.structs.replace(plan, plans=[candidate]), 1, load_facts(), ExportSettings())


@pytest.mark.parametrize(
    ("target", "sample", "kind", "variable"),
    [
        ("terraform-aws", "serve", "aws_launch_template", "var.capacity_reservations"),
        ("terraform-gcp", "serve-gcp", "google_container_node_pool", "var.reservations"),
        ("terraform-azure", "serve-azure", "azurerm_kubernetes_cluster_node_pool", "var.capacity_reservations"),
    ],
)
def test_reserved_machines_stand_in_the_reservation_that_is_named(
    target: str, sample: str, kind: str, variable: str
) -> None:
    exported = exported_plan(target, _bought(sample, "reserved_1y"))
    configuration = parsed(exported)
    assert not unknown_arguments(configuration)
    assert variable in str(resource(configuration, kind))
    assert variable not in str(parsed(sample_export(target, sample)))
    if target == "terraform-aws":
        group = resource(configuration, "aws_eks_node_group")
        assert group["capacity_type"] == '${var.capacity_blocks ? "CAPACITY_BLOCK" : "ON_DEMAND"}'
    assert any("bought separately" in note for note in exported.assumptions)


def test_spot_machines_of_azure_have_its_taint_and_price() -> None:
    configuration = parsed(exported_plan("terraform-azure", _bought("serve-azure", "spot")))
    pool = resource(configuration, "azurerm_kubernetes_cluster_node_pool")
    assert (pool["priority"], pool["eviction_policy"]) == ('"Spot"', '"Delete"')
    assert '"kubernetes.azure.com/scalesetpriority=spot:NoSchedule"' in pool["node_taints"]
    assert not unknown_arguments(configuration)


@pytest.mark.parametrize(
    ("instance", "gpu", "machine"),
    [("tpu-v6e-8", "TPU v6e", "ct6e-standard-8t"), ("c4-standard-8", "Xeon Platinum 8581C", "c4-standard-8")],
)
def test_machines_of_google_without_gpus(instance: str, gpu: str, machine: str) -> None:
    other = _bought("serve-gcp", "on_demand", instance=instance, gpu=gpu, num_gpus=8, num_instances=1)
    node = resource(parsed(exported_plan("terraform-gcp", other)), "google_container_node_pool")["node_config"][0]
    assert node["machine_type"] == f'"{machine}"'
    assert node["disk_type"] == '"hyperdisk-balanced"'
    assert "guest_accelerator" not in node


def test_a_slice_of_many_machines_is_refused() -> None:
    whole = _bought("serve-gcp", "on_demand", instance="tpu-v5p-12288", gpu="TPU v5p", num_gpus=6144, num_instances=1)
    with pytest.raises(InfeasibleError) as refused:
        exported_plan("terraform-gcp", whole)
    assert "slice of many machines" in str(refused.value.reasons)


def test_settings_stay_text() -> None:
    hostile = 'x"${file("/etc/passwd")}\n%{ if true }'
    example = sample_export("terraform-azure", "serve-azure", cluster=hostile).files["terraform.tfvars.example"]
    assert f"cluster        = {string_text(hostile)}\n" in example
    assert "$${file(" in example
