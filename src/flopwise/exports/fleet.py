"""A whole assessment as input of targets: the allocated candidates of each workload."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from flopwise.exports.deployment import Deployment, resource_name
from flopwise.exports.spec import ExportSettings
from flopwise.facts.catalog import Facts
from flopwise.fleet.assessment import Allotment, Assessment, WorkloadResult
from flopwise.search.answer import Candidate, Plan
from flopwise.units import parse_rate
from flopwise.values import dataclass, replace

OF_ALL_REPLICAS = ("output_tokens_per_s", "requests_per_s_capacity")
OF_ALL_MACHINES = (
    "usd_per_hour", "cost_usd", "cost_usd_low", "cost_usd_high", "energy_joules", "energy_joules_low",
    "energy_joules_high",
)  # fmt: skip
"""Figures and fields of a candidate that are sums over its replicas and machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadDeployments:
    """A workload of a fleet: its assessment and its deployments, with the rows of the bill."""

    result: WorkloadResult
    parts: tuple[tuple[Allotment, Deployment], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDeployment:
    """A whole assessment, ready for export: its workloads that have machines."""

    assessment: Assessment
    workloads: tuple[WorkloadDeployments, ...]
    facts: Facts
    settings: ExportSettings

    @classmethod
    def of(
        cls, assessment: Assessment, plans: Mapping[str, Plan], facts: Facts, settings: ExportSettings
    ) -> FleetDeployment:
        """The deployments of an assessment, with the plans of its workloads by their names.

        Raises:
            SpecError, UnknownNameError: a model or a device is no longer in the facts.
        """
        names = set[str]()
        workloads = (
            WorkloadDeployments(
                result=result, parts=tuple(_parts(result.name, assessment, plan, facts, settings, names))
            )
            for result in assessment.workloads
            if (plan := plans.get(result.name)) is not None
        )
        with_parts = tuple(w for w in workloads if w.parts)
        return cls(assessment=assessment, workloads=with_parts, facts=facts, settings=settings)

    def within(self, environment: str) -> FleetDeployment:
        """The part of the fleet in one environment: its workloads, their rows of the bill and their alerts."""
        whole, names = self.assessment, {w.name for w in self.assessment.workloads if w.environment == environment}
        part = msgspec.structs.replace(
            whole, name=f"{whole.name} {environment}",
            workloads=[w for w in whole.workloads if w.name in names],
            allocation=[row for row in whole.allocation if row.workload in names],
            monitoring=[alert for alert in whole.monitoring if alert.workload in names],
        )  # fmt: skip
        workloads = tuple(w for w in self.workloads if w.result.name in names)
        return replace(self, assessment=part, workloads=workloads)

    @property
    def deployments(self) -> tuple[Deployment, ...]:
        """All deployments, each once, including standby ones."""
        return tuple(deployment for workload in self.workloads for _, deployment in workload.parts)

    @property
    def name(self) -> str:
        """The name of the fleet as a name that is valid in Kubernetes and clouds."""
        return resource_name(self.settings.name or self.assessment.name or "fleet")


def _parts(
    workload: str, assessment: Assessment, plan: Plan, facts: Facts, settings: ExportSettings, names: set[str]
) -> Iterator[tuple[Allotment, Deployment]]:
    """Rows of the allocation with their candidates of the plan; rows of APIs have none.

    Each has a unique label and a name that is not in `names`, built from that of the workload and a number.
    """
    for row in assessment.allocation:
        if row.workload != workload:
            continue
        place = (row.provider, row.region, row.instance)
        alike = [c for c in plan.plans if (c.provider, c.region, c.instance) == place]
        chosen = next((c for c in alike if c.purchase == row.purchase), alike[0] if alike else None)
        if chosen is not None:
            numbered = (workload if number == 1 else f"{workload} {number}" for number in itertools.count(1))
            label = next(label for label in numbered if resource_name(label) not in names)
            names.add(resource_name(label))
            yield row, Deployment.of(*_service_part(plan, chosen, row.count), facts, settings, label)


def _service_part(plan: Plan, chosen: Candidate, count: int) -> tuple[Plan, Candidate]:
    """A plan of a service and its candidate with `count` machines, where the fleet has other machines besides them.

    Traffic, replicas, cost, energy and what all replicas carry are in proportion; other candidates stay as they are.
    """
    if "replicas" not in chosen.layout or count == chosen.num_instances:
        return plan, chosen
    share = count / chosen.num_instances

    def part_of(value: float | None) -> float | None:
        return None if value is None else share * value

    layout = chosen.layout | {"replicas": math.ceil(round(share * chosen.layout["replicas"], 6))}
    figures = {k: part_of(v) if k in OF_ALL_REPLICAS else v for k, v in chosen.figures.items()}
    ends: dict[str, Any] = {name: part_of(getattr(chosen, name)) for name in OF_ALL_MACHINES}
    part = msgspec.structs.replace(
        chosen, num_instances=count, num_gpus=round(share * chosen.num_gpus), layout=layout, figures=figures, **ends
    )
    traffic = plan.workload.get("traffic", {})
    if (rate := traffic.get("requests_per_s")) is None:
        return plan, part
    less = traffic | {"requests_per_s": share * parse_rate(rate)}
    return msgspec.structs.replace(plan, workload=plan.workload | {"traffic": less}), part
