"""Budgets of clouds as Terraform: AWS Budgets, budgets of Google Cloud's billing, consumption budgets of Azure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from flopwise.errors import InfeasibleError
from flopwise.exports.deployment import Deployment
from flopwise.exports.exported import Files
from flopwise.exports.fleet import FleetDeployment
from flopwise.exports.spec import ExportSettings
from flopwise.exports.terraform import (
    APPLY,
    AWS,
    AZURERM,
    GOOGLE,
    TAG,
    Expression,
    HclBlock,
    Variable,
    azure_account,
    azure_provider,
    block,
    gcp_project,
    region_files,
    terraform_block,
    terraform_files,
)
from flopwise.values import dataclass

EARLY, WHOLE = 80, 100
"""Shares of a budget, in percent, at which a message is sent: spent, and spent or forecast."""
THIS_MONTH = "formatdate(\"YYYY-MM-01'T00:00:00Z'\", timestamp())"
"""The first day of the month in which Terraform runs."""
LONGEST = 60
"""Characters of a budget's name in Google Cloud, the fewest of the three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudBudget:
    """USD of a month; of the machines of one pool, or of everything. `first`: month from which on."""

    name: str
    usd: int
    pool: str = ""


Maker = Callable[[Sequence[CloudBudget], ExportSettings], tuple[list[HclBlock], list[Variable]]]


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why no budget can be made."""
    if deployment.candidate.provider not in MAKERS:
        known = ", ".join(MAKERS)
        yield f"budgets of {deployment.candidate.provider} are not supported; plan again with --provider {known}"


def export(deployment: Deployment) -> Files:
    """The budget of a plan: a month of a service, or one run."""
    provider, candidate = deployment.candidate.provider, deployment.candidate
    usd = max(candidate.cost_usd_high or 0.0, candidate.cost_usd)
    budget = CloudBudget(name=deployment.name, usd=math.ceil(usd), pool=deployment.name)
    what = "a month" if deployment.task in {"serve", "encode"} else "one run a month"
    title = f"Budget of {what} of {deployment.title}."
    return Files(
        files=_files(provider, title, [budget], deployment.settings), apply=APPLY,
        assumptions=(f"the budget is the upper end of the plan's cost of {what}", *_notes([provider])),
    )  # fmt: skip


def export_fleet(fleet: FleetDeployment) -> Files:
    """A folder for each provider of the bill that has budgets here. Raises InfeasibleError: none does."""
    bill = fleet.assessment.usd_per_month
    known = {provider: usd for provider, usd in sorted(bill.by_provider.items()) if provider in MAKERS and usd > 0}
    if not known:
        raise InfeasibleError("there is no budget to write", [f"only those of {', '.join(MAKERS)} are written"])
    folders = {
        provider: _files(
            provider, f"Budget of {fleet.assessment.name} on {provider}.",
            [CloudBudget(name=f"{fleet.name}-{provider}", usd=_provider_usd(fleet, provider))], fleet.settings,
        )
        for provider in known
    }  # fmt: skip
    notes = [
        "each provider's budget is the upper end of its machine cost, or its bill with storage and traffic"
        if fleet.assessment.budget_per_month is None
        else f"the fleet's budget, ${fleet.assessment.budget_per_month:,.0f} a month, is split as its bill is"
    ]
    left_out = sorted(set(bill.by_provider) - set(known))
    notes += [f"no budget is written for {', '.join(left_out)}"] if left_out else []
    return region_files(folders, [*notes, *_notes(known)])


def _provider_usd(fleet: FleetDeployment, provider: str) -> int:
    """A provider's share of the fleet's budget; where it has none, the upper end of the provider's bill.

    Source: arithmetic. Assumes: providers share the budget as they share the bill.
    """
    bill, budget = fleet.assessment.usd_per_month, fleet.assessment.budget_per_month
    usd = bill.by_provider[provider]
    if budget is not None:
        return math.floor(budget * usd / bill.total)
    rows = (row for row in fleet.assessment.allocation if row.provider == provider)
    return math.ceil(max(usd, sum(row.usd_high for row in rows)))


def _files(
    provider: str, title: str, budgets: Sequence[CloudBudget], settings: ExportSettings
) -> dict[str, str]:  # fmt: skip
    blocks, variables = MAKERS[provider](budgets, settings)
    is_mail = 'can(regex("^[^@ ]+@[^@ ]+$", one))'
    contact = Variable(
        name="contacts", meaning="Mail addresses that receive the alerts.", kind="list(string)",
        example=[settings.value("contact")], check=f"alltrue([for one in var.contacts : {is_mail}])",
        message="Mail addresses, at least one.",
    )  # fmt: skip
    return terraform_files(title, blocks, [*variables, contact])


def _aws(budgets: Sequence[CloudBudget], settings: ExportSettings) -> tuple[list[HclBlock], list[Variable]]:
    del settings
    blocks = [terraform_block(aws=AWS), block("provider", "aws", region="us-east-1")]
    for budget in budgets:
        tag = block("cost_filter", name="TagKeyValue", values=[f"user:{TAG}${budget.pool}"])
        blocks.append(block(
            "resource", "aws_budgets_budget", "month", name=budget.name, budget_type="COST",
            limit_amount=str(budget.usd), limit_unit="USD", time_unit="MONTHLY",
            blocks=[*([tag] if budget.pool else []), *(
                block(
                    "notification", comparison_operator="GREATER_THAN", threshold=share, threshold_type="PERCENTAGE",
                    notification_type=kind, subscriber_email_addresses=Expression("var.contacts"),
                )
                for share, kind in ((EARLY, "ACTUAL"), (WHOLE, "ACTUAL"), (WHOLE, "FORECASTED"))
            )],
        ))  # fmt: skip
    return blocks, []


def _gcp(budgets: Sequence[CloudBudget], settings: ExportSettings) -> tuple[list[HclBlock], list[Variable]]:
    channels = "google_monitoring_notification_channel.mail"
    blocks = [
        terraform_block(google=GOOGLE),
        block(
            "provider", "google", project=Expression("var.project"), billing_project=Expression("var.project"),
            user_project_override=True,
        ),
        block("data", "google_project", "this", project_id=Expression("var.project")),
        block(
            "resource", "google_monitoring_notification_channel", "mail", for_each=Expression("toset(var.contacts)"),
            display_name=Expression("each.value"), type="email", labels={"email_address": Expression("each.value")},
        ),
    ]  # fmt: skip
    for budget in budgets:
        projects = {"projects": [Expression('"projects/${data.google_project.this.number}"')]}
        labels = {"labels": {TAG: budget.pool}} if budget.pool else {}
        blocks.append(block(
            "resource", "google_billing_budget", "month",
            billing_account=Expression("data.google_project.this.billing_account"), display_name=budget.name[:LONGEST],
            blocks=[
                HclBlock(("budget_filter",), {**projects, **labels}),
                block("amount", blocks=[block("specified_amount", currency_code="USD", units=str(budget.usd))]),
                block("threshold_rules", threshold_percent=EARLY / 100),
                block("threshold_rules", threshold_percent=WHOLE / 100),
                block("threshold_rules", threshold_percent=WHOLE / 100, spend_basis="FORECASTED_SPEND"),
                block(
                    "all_updates_rule",
                    monitoring_notification_channels=Expression(f"[for one in {channels} : one.id]"),
                ),
            ],
        ))  # fmt: skip
    return blocks, [gcp_project(settings)]


def _azure(budgets: Sequence[CloudBudget], settings: ExportSettings) -> tuple[list[HclBlock], list[Variable]]:
    blocks = [
        terraform_block(azurerm=AZURERM),
        azure_provider(),
        block("data", "azurerm_resource_group", "this", name=Expression("var.resource_group")),
    ]
    for budget in budgets:
        tag = block("filter", blocks=[block("tag", name=TAG, values=[budget.pool])])
        blocks.append(block(
            "resource", "azurerm_consumption_budget_resource_group", "month", name=budget.name,
            resource_group_id=Expression("data.azurerm_resource_group.this.id"), amount=budget.usd,
            time_grain="Monthly",
            blocks=[
                block("time_period", start_date=Expression(THIS_MONTH)),
                *([tag] if budget.pool else []),
                *(
                    block(
                        "notification", operator="GreaterThan", threshold=share, threshold_type=kind,
                        contact_emails=Expression("var.contacts"),
                    )
                    for share, kind in ((EARLY, "Actual"), (WHOLE, "Actual"), (WHOLE, "Forecasted"))
                ),
                block("lifecycle", ignore_changes=[Expression("time_period")]),
            ],
        ))  # fmt: skip
    return blocks, [*azure_account(settings, "Resource group that holds the machines.")]


MAKERS: Mapping[str, Maker] = {"aws": _aws, "gcp": _gcp, "azure": _azure}


def _notes(providers: Sequence[str] | Mapping[str, float]) -> Iterator[str]:
    yield (
        f"messages are sent at {EARLY} % and {WHOLE} % of the budget, and when {WHOLE} % is forecast; nothing is "
        "turned off"
    )
    if "aws" in providers:
        yield f"activate {TAG} as a cost allocation tag in AWS: a plan's budget counts the resources with that tag"
    if "gcp" in providers:
        yield "the billing account is that of the project and must be in US dollars"
    if "azure" in providers:
        yield "machines of AKS are in the node resource group (MC_...): give that group"
