"""Karpenter's pools and budgets: limits and amounts of the plan, and readers that refuse what is wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import validators
import yaml
from export_samples import expressible, sample_deployment, sample_export
from fleet_samples import sample_fleet
from terraform_arguments import unknown_arguments
from test_terraform import parsed, resource

from flopwise.errors import InfeasibleError
from flopwise.exports.targets import exported_assessment


def objects(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The node class and the node pool of a file, which Karpenter's schemas take."""
    validators.kubernetes(text)
    node_class, node_pool = yaml.safe_load_all(text)
    return node_class, node_pool


def test_karpenter_launches_the_machines_of_every_plan_of_aws() -> None:
    for sample in expressible("karpenter"):
        deployment = sample_deployment(sample)
        node_class, pool = objects(sample_export("karpenter", sample).files["karpenter.yaml"])
        asked = {row["key"]: row["values"] for row in pool["spec"]["template"]["spec"]["requirements"]}
        assert asked["node.kubernetes.io/instance-type"] == [deployment.candidate.instance]
        spot = deployment.candidate.purchase == "spot"
        assert asked["karpenter.sh/capacity-type"] == (["spot"] if spot else ["on-demand"])
        assert pool["spec"]["limits"] == {"nvidia.com/gpu": deployment.candidate.num_gpus}
        assert pool["spec"]["template"]["spec"]["nodeClassRef"]["name"] == node_class["metadata"]["name"]


def test_nodes_of_runs_go_when_they_are_empty_and_those_of_services_stay() -> None:
    _, run = objects(sample_export("karpenter", "pretrain-spot").files["karpenter.yaml"])
    assert run["spec"]["disruption"]["consolidateAfter"] == "5m"
    assert {"nodes": "0", "reasons": ["Drifted", "Underutilized"]} in run["spec"]["disruption"]["budgets"]
    _, service = objects(sample_export("karpenter", "serve").files["karpenter.yaml"])
    assert service["spec"]["disruption"]["consolidateAfter"] == "Never"


def test_karpenter_refuses_a_pool_that_its_schema_does_not_know() -> None:
    text = sample_export("karpenter", "serve").files["karpenter.yaml"]
    with pytest.raises(AssertionError):
        validators.kubernetes(text.replace("consolidationPolicy: WhenEmpty", "consolidationPolicy: WhenTired"))


def test_karpenter_has_the_pools_of_a_fleet() -> None:
    fleet = sample_fleet()
    _, pool = objects(exported_assessment("karpenter", fleet).files["us-east-1/karpenter.yaml"])
    assert pool["spec"]["limits"] == {"nvidia.com/gpu": 2}


def test_karpenter_is_of_aws_alone() -> None:
    with pytest.raises(InfeasibleError) as refused:
        sample_export("karpenter", "serve-gcp")
    assert "--provider aws" in str(refused.value.reasons)


@pytest.mark.parametrize(
    ("sample", "kind"),
    [
        ("serve", "aws_budgets_budget"), ("serve-gcp", "google_billing_budget"),
        ("serve-azure", "azurerm_consumption_budget_resource_group"),
    ],
)  # fmt: skip
def test_a_plan_has_the_budget_of_its_month(sample: str, kind: str) -> None:
    candidate = sample_deployment(sample).candidate
    configuration = parsed(sample_export("budgets", sample, contact="pay@example.com"))
    assert not unknown_arguments(configuration)
    budget = resource(configuration, kind)
    expected = math.ceil(candidate.cost_usd_high or candidate.cost_usd)
    assert expected >= candidate.usd_per_hour * 730
    amounts = {
        "aws_budgets_budget": budget.get("limit_amount"),
        "google_billing_budget": budget["amount"][0]["specified_amount"][0]["units"] if "google" in kind else None,
        "azurerm_consumption_budget_resource_group": budget.get("amount"),
    }
    assert str(amounts[kind]).strip('"') == str(expected)


def test_a_plan_s_budget_on_aws_counts_what_has_its_tag() -> None:
    exported = sample_export("budgets", "serve", contact="pay@example.com")
    budget = resource(parsed(exported), "aws_budgets_budget")
    assert budget["cost_filter"][0]["values"] == ['"user:flopwise-pool$chat"']
    assert [one["threshold"] for one in budget["notification"]] == [80, 100, 100]
    assert 'contacts = ["pay@example.com"]' in exported.files["terraform.tfvars.example"]


def test_a_fleet_s_budget_is_split_as_its_bill_is() -> None:
    fleet = sample_fleet()
    exported = exported_assessment("budgets", fleet)
    bill = fleet.assessment.usd_per_month
    assert {path.split("/")[0] for path in exported.files} == set(bill.by_provider) == {"aws", "azure", "gcp"}
    budget = resource(parsed(exported, "aws/"), "aws_budgets_budget")
    assert budget["limit_amount"] == f'"{math.floor(5000 * bill.by_provider["aws"] / bill.total)}"'
    assert not unknown_arguments(parsed(exported, "gcp/"))
    assert not unknown_arguments(parsed(exported, "azure/"))


def test_without_a_budget_it_is_the_upper_end_of_the_bill() -> None:
    fleet = sample_fleet()
    free = replace(fleet, assessment=msgspec.structs.replace(fleet.assessment, budget_per_month=None))
    highs = sum(row.usd_high for row in fleet.assessment.allocation if row.provider == "gcp")
    budget = resource(parsed(exported_assessment("budgets", free), "gcp/"), "google_billing_budget")
    assert math.ceil(highs) > math.ceil(fleet.assessment.usd_per_month.by_provider["gcp"])
    assert budget["amount"][0]["specified_amount"][0]["units"] == f'"{math.ceil(highs)}"'
