"""A whole assessment as what targets read: of each workload the candidates that the allocation takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from flopwise.export.deployment import Deployment, FleetDeployment, WorkloadDeployments, of_candidate

if TYPE_CHECKING:
    from flopwise.export.spec import ExportSettings
    from flopwise.facts.catalog import Facts
    from flopwise.fleet.assessment import Allotment, Assessment
    from flopwise.search.answer import Plan


def fleet_deployment(
    assessment: Assessment, plans: Mapping[str, Plan], facts: Facts, settings: ExportSettings
) -> FleetDeployment:
    """The deployments of an assessment, with the plans of its workloads by their names.

    Raises:
        SpecError, UnknownNameError: a model or a device is no longer among the facts.
    """
    workloads = (
        WorkloadDeployments(result=result, parts=tuple(_parts(result.name, assessment, plan, facts, settings)))
        for result in assessment.workloads
        if (plan := plans.get(result.name)) is not None
    )
    return FleetDeployment(
        assessment=assessment, workloads=tuple(w for w in workloads if w.parts), settings=settings
    )  # fmt: skip


def _parts(
    workload: str, assessment: Assessment, plan: Plan, facts: Facts, settings: ExportSettings
) -> Iterator[tuple[Allotment, Deployment]]:
    """Rows of the allocation with the candidate of the plan that each stands for; rows of APIs have none."""
    for row in assessment.allocation:
        if row.workload != workload:
            continue
        place = (row.provider, row.region, row.instance)
        alike = [c for c in plan.plans if (c.provider, c.region, c.instance) == place]
        chosen = next((c for c in alike if c.purchase == row.purchase), alike[0] if alike else None)
        if chosen is not None:
            yield row, of_candidate(plan, chosen, facts, settings, workload)
