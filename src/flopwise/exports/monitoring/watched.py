"""A monitored workload with the figures and thresholds of its plan, from a plan or a whole assessment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from flopwise.errors import InfeasibleError
from flopwise.exports.deployment import Deployment, resource_name
from flopwise.exports.fleet import FleetDeployment
from flopwise.exports.monitoring.signals import Meters
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.catalog import Facts
from flopwise.fleet.assessment import Alert, Allotment
from flopwise.search.spec import TRAINING
from flopwise.training.estimate import TrainEstimate
from flopwise.units import DAY_S, HOUR_S, HOURS_PER_MONTH
from flopwise.values import dataclass

DAYS_PER_MONTH = HOURS_PER_MONTH * HOUR_S / DAY_S


@dataclass(frozen=True, kw_only=True)
class WatchedWorkload:
    """A running workload: its machines, their price, and the plan's figures and thresholds by key.

    `deployment` is None for machines that people work on. `steady_usd_per_hour`: hourly cost besides machines.
    """

    title: str
    facts: Facts
    accelerator: Accelerator
    num_gpus: int
    num_machines: int
    usd_per_hour: float  # of all of its machines
    steady_usd_per_hour: float = 0.0
    alerts: Mapping[str, Alert]
    figures: Mapping[str, Any]  # of the assessment: with their intervals
    planned_usd: float | None  # per day for services, per run for runs
    deployment: Deployment | None = None
    environment: str = ""
    runs_per_month: float = 1.0
    num_kinds: int = 1  # of machines that it is split over
    changing: bool = False  # its machines come and go with the traffic

    @property
    def name(self) -> str:
        """The label `workload` of its series."""
        return resource_name(self.title) if self.deployment is None else self.deployment.name

    @property
    def ends(self) -> bool:
        """True if it is a run with an end."""
        return self.trains or self.task == "batch"

    @property
    def task(self) -> str:
        """Its task; "develop" for machines that people work on."""
        return "develop" if self.deployment is None else self.deployment.task

    @property
    def trains(self) -> bool:
        """True if it is a training run."""
        return self.task in TRAINING

    @property
    def engine(self) -> str:
        """The inference engine; empty if there is none."""
        return "" if self.deployment is None else str(self.deployment.candidate.layout.get("engine", ""))

    @cached_property
    def meters(self) -> Meters:
        """Its metrics."""
        base = self.facts.engine(self.engine).name if self.engine else ""
        servers = () if self.deployment is None else self.deployment.pools
        pools = tuple(one.pool for one in servers if one.pool)
        return Meters.of(self.name, self.facts, self.accelerator, "run" if self.trains else base, pools)

    @property
    def capacity_bytes(self) -> float:
        """Memory of one device, or of one machine without devices."""
        return self.accelerator.hbm_bytes if self.deployment is None else self.deployment.candidate.capacity_bytes

    def value(self, figure: str, end: str = "value") -> float | None:
        """A figure of the plan, or an end of its interval."""
        figure_value = self.figures.get(figure)
        return figure_value.get(end) if isinstance(figure_value, Mapping) else figure_value if end == "value" else None

    def percentile(self, latency: str) -> str:
        """The percentile at which the plan has a latency; p95 in an assessment of a file that has none."""
        expected = self.figures.get(latency)
        return str(expected.get("percentile", "p95")) if isinstance(expected, Mapping) else "p95"

    @cached_property
    def estimate(self) -> TrainEstimate | None:
        """The estimate of a training run; None for others."""
        from flopwise.training.estimate import estimate  # noqa: PLC0415 - training alone

        return (
            None if self.deployment is None or self.deployment.training is None else estimate(self.deployment.training)
        )


def watched_plan(deployment: Deployment) -> WatchedWorkload:
    """The workload of a plan, with the thresholds that an assessment would have."""
    from flopwise.fleet.expected import expected_figures  # noqa: PLC0415 - a whole assessment has them
    from flopwise.fleet.workload_alerts import figure_alerts, interruption_alert, spend_alert  # noqa: PLC0415 - same

    candidate, workload = deployment.candidate, deployment.workload
    expected = expected_figures(workload, candidate, deployment.offer, deployment.facts)
    ends = workload.task in (*TRAINING, "batch")
    high = candidate.cost_usd if candidate.cost_usd_high is None else candidate.cost_usd_high
    times = 1.0 if ends else DAYS_PER_MONTH
    alerts = [
        *figure_alerts(deployment.title, workload, candidate, expected),
        spend_alert(deployment.title, "run" if ends else "day", candidate.cost_usd, high, times),
    ]
    if candidate.purchase == "spot":
        rate = deployment.facts.spot(candidate.provider, candidate.gpu).interruptions_per_s
        hours = candidate.paid_s / HOUR_S if ends else HOURS_PER_MONTH
        alerts.append(interruption_alert(deployment.title, rate * HOUR_S * hours * candidate.num_instances))
    return WatchedWorkload(
        title=deployment.title, facts=deployment.facts, accelerator=deployment.accelerator,
        num_gpus=candidate.num_gpus, num_machines=candidate.num_instances, usd_per_hour=candidate.usd_per_hour,
        alerts={alert.key: alert for alert in alerts}, figures=expected.figures,
        planned_usd=candidate.cost_usd / times, deployment=deployment,
    )  # fmt: skip


def watched_fleet(fleet: FleetDeployment) -> list[WatchedWorkload]:
    """The workloads of an assessment that have machines, with the thresholds of its monitoring.

    Raises: InfeasibleError: none of them is planned.
    """
    if not fleet.deployments:
        reason = "no workload runs on machines that a plan chose, so there are no figures to watch"
        raise InfeasibleError(f"nothing of {fleet.name} can be watched", [reason])
    return list(_watched_workloads(fleet, fleet.deployments[0].facts))


def _watched_workloads(fleet: FleetDeployment, facts: Facts) -> Iterator[WatchedWorkload]:
    assessment = fleet.assessment
    deployments = {w.result.name: w.parts for w in fleet.workloads}
    scaled = {service.workload for service in assessment.scaled}
    for result in assessment.workloads:
        rows = [r for r in assessment.allocation if r.workload == result.name and r.role != "idle" and r.gpu]
        primary = [r for r in rows if r.role == "primary"]
        if not primary or (result.name not in deployments and result.kind != "develop"):
            continue
        main = max(primary, key=lambda row: row.usd_per_month)
        parts = deployments.get(result.name, ())
        deployment = next((d for row, d in parts if row == main), parts[0][1] if parts else None)
        month = assessment.usd_per_month.by_workload.get(result.name, 0.0)
        alerts = {a.key: a for a in assessment.monitoring if a.workload == result.name}
        times = _times(alerts, result.runs_per_month, result.schedule)
        yield WatchedWorkload(
            title=result.name, facts=facts,
            accelerator=facts.accelerators[main.gpu] if deployment is None else deployment.accelerator,
            num_gpus=sum(r.num_gpus for r in primary), num_machines=sum(r.count for r in primary),
            usd_per_hour=sum(r.count * _hourly(r) for r in primary),
            steady_usd_per_hour=max(0.0, month - sum(r.usd_per_month for r in rows)) / HOURS_PER_MONTH,
            alerts=alerts, figures=result.best.get("figures", {}), planned_usd=month / times if times else None,
            deployment=deployment, environment=result.environment, num_kinds=len(rows),
            runs_per_month=result.runs_per_month or 1.0, changing=result.name in scaled,
        )  # fmt: skip


def _hourly(row: Allotment) -> float:
    return row.usd_per_hour or 0.0


def _times(alerts: Mapping[str, Alert], runs: float | None, schedule: Mapping[str, Any] | None) -> float | None:
    """Number of runs or days per month."""
    if "spend_usd_per_run" in alerts:
        return runs
    return DAYS_PER_MONTH if schedule is None else float(schedule["days_per_month"])
