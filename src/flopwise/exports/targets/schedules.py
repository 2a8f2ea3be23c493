"""Off outside the hours: KEDA's cron for services on Kubernetes, and schedules of AWS's node groups as Terraform."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from flopwise.errors import InfeasibleError
from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import yaml_text
from flopwise.exports.exported import Files
from flopwise.exports.fleet import FleetDeployment
from flopwise.exports.node_pools import NodePool, fleet_pools, plan_pool, workload_hours
from flopwise.exports.spec import ExportSettings
from flopwise.exports.terraform import (
    APPLY,
    AWS,
    Expression,
    HclBlock,
    Variable,
    aws_cluster,
    block,
    resource_label,
    terraform_block,
    terraform_files,
)
from flopwise.fleet.schedules import ALL_DAYS, DAY_MIN, USUAL, WEEK_MIN, WeeklySchedule

CLOCK = "Etc/UTC"
STAYS = ("serve", "encode", "develop")
"""Kinds of workloads without an end: runs stop by themselves."""
Spans = tuple[tuple[int, int], ...]
Object = dict[str, Any]


def export(deployment: Deployment) -> Files:
    """The usual working hours for a service: a plan has no hours of its own."""
    hours, pool = USUAL["development"], plan_pool(deployment)
    objects = [_scaled_object(servers, hours) for servers in deployment.pools]
    files, apply = {"keda.yaml": yaml_text(*objects)}, ["kubectl apply -f keda.yaml"]
    if deployment.candidate.provider == "aws":
        title = f"Hours of the node group of {deployment.title}."
        files |= _aws_files(title, {pool.name: [(hours, pool.nodes)]}, pool.region, deployment.settings)
        apply += APPLY
    start, stop = hours.times
    usual = (
        f"a plan has no hours: Monday to Friday, {start} to {stop}, as in a development environment; for the hours "
        "of a fleet, export the folder of its report"
    )
    return Files(files=files, apply=tuple(apply), assumptions=(usual, *_notes()))


def export_fleet(fleet: FleetDeployment) -> Files:
    """The hours of the fleet's services and machines. Raises InfeasibleError: none has hours."""
    results = {one.name: one for one in fleet.assessment.workloads}
    hours = {
        name: when for name, one in results.items()
        if one.kind in STAYS and (when := workload_hours(one)) is not None and not when.always
    }  # fmt: skip
    if not hours:
        raise InfeasibleError("schedules has nothing to write", ["no service or machine of the fleet has hours"])
    clusters: dict[str, list[Object]] = {}
    for workload in fleet.workloads:
        for row, deployment in workload.parts:
            if row.workload in hours:
                clusters.setdefault(f"{row.provider}/{row.region}", []).extend(
                    _scaled_object(servers, hours[row.workload]) for servers in deployment.pools
                )
    files = {f"{place}/keda.yaml": yaml_text(*objects) for place, objects in clusters.items()}
    apply = [f"kubectl apply -f {path}" for path in files]
    for region, pools in fleet_pools(fleet, "aws").items():
        groups = {pool.name: _group_hours(fleet, pool, hours) for pool in pools}
        if groups := {name: parts for name, parts in groups.items() if any(not when.always for when, _ in parts)}:
            folder, title = f"aws/{region}", f"Hours of the node groups in {region}."
            made = _aws_files(title, groups, region, fleet.settings)
            files |= {f"{folder}/{path}": text for path, text in made.items()}
            apply += [f"(cd {folder} && {command})" for command in APPLY]
    scheduled = {row["metadata"]["annotations"]["flopwise.dev/title"] for part in clusters.values() for row in part}
    return Files(files=files, apply=tuple(apply), assumptions=(*_notes(), *_left_out(fleet, hours, scheduled)))


def _left_out(fleet: FleetDeployment, hours: Mapping[str, WeeklySchedule], scheduled: set[str]) -> Iterator[str]:
    rows = fleet.assessment.allocation
    bare = {row.provider for row in rows if row.workload in hours and row.workload not in scheduled} - {"aws"}
    for provider in sorted(bare):
        yield f"machines for people on {provider} have no service to scale: their pool empties when their pods are gone"
    if not any(row.provider == "aws" for row in rows if row.workload in hours):
        yield "nodes are removed by the cluster autoscaler once their pods are gone"


def _group_hours(
    fleet: FleetDeployment, pool: NodePool, hours: Mapping[str, WeeklySchedule]
) -> list[tuple[WeeklySchedule, int]]:
    """The hours and node counts of a pool: of services with hours, and of those that stay on."""
    scaled = {one.workload for one in fleet.assessment.scaled}
    always = [(USUAL["production"], pool.least)] if pool.least else []
    rows = [
        row for row in fleet.assessment.allocation
        if (row.provider, row.region, row.instance, row.purchase) == ("aws", pool.region, pool.instance, pool.purchase)
        and row.workload in pool.workloads and row.workload in hours and row.workload not in scaled
    ]  # fmt: skip
    return [*always, *((hours[row.workload], row.count) for row in rows)]


# KEDA


def _scaled_object(deployment: Deployment, hours: WeeklySchedule) -> Object:
    """The replicas of a service or of one of its pools within its hours, and none outside."""
    many = deployment.nodes_per_replica > 1
    target = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"} if many else {}
    place = {} if deployment.settings.namespace is None else {"namespace": deployment.settings.namespace}
    triggers = [
        {"type": "cron", "metadata": {
            "timezone": CLOCK, "start": start, "end": stop, "desiredReplicas": str(deployment.replicas),
        }}
        for start, stop in _cron_pairs(_spans(hours.windows))
    ]  # fmt: skip
    return {
        "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
        "metadata": {
            "name": f"{deployment.object_name}-hours", **place, "annotations": {"flopwise.dev/title": deployment.title},
        },
        "spec": {
            "scaleTargetRef": {**target, "name": deployment.object_name}, "minReplicaCount": 0,
            "maxReplicaCount": deployment.replicas, "triggers": triggers,
        },
    }  # fmt: skip


def _spans(windows: Spans) -> Spans:
    """Windows of the week that touch as one; one that goes on into Monday ends after the week."""
    spans: list[tuple[int, int]] = []
    for start, stop in windows:
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(stop, spans[-1][1]))
        else:
            spans.append((start, stop))
    if len(spans) > 1 and spans[0][0] == 0 and spans[-1][1] == WEEK_MIN:
        (_, stop), *others, (start, _) = spans
        spans = [*others, (start, WEEK_MIN + stop)]
    return tuple(spans)


def _cron_pairs(spans: Spans) -> Iterator[tuple[str, str]]:
    """(start, stop) as cron has them, one pair for all days of the same times."""
    groups: dict[tuple[int, int], list[int]] = {}
    for start, stop in spans:
        groups.setdefault((start % DAY_MIN, stop - start), []).append(start // DAY_MIN)
    for (clock, length), days in groups.items():
        end = clock + length
        yield _cron(clock, days), _cron(end % DAY_MIN, [day + end // DAY_MIN for day in days])


def _cron(clock: int, days: Iterable[int]) -> str:
    """A time of the day on days of the week; cron counts Sunday as 0."""
    numbers = sorted({(day + 1) % 7 for day in days})
    text = "*" if len(numbers) == len(ALL_DAYS) else ",".join(map(str, numbers))
    return f"{clock % 60} {clock // 60} * * {text}"


# AWS


def _aws_files(
    title: str, groups: Mapping[str, Sequence[tuple[WeeklySchedule, int]]], region: str, settings: ExportSettings
) -> dict[str, str]:
    blocks = [
        terraform_block(aws=AWS),
        block("provider", "aws", region=Expression("var.region")),
        *(part for name, parts in groups.items() for part in _group_blocks(name, parts)),
    ]
    variables = [
        Variable(name="region", meaning="AWS region of the cluster.", default=region),
        aws_cluster(settings),
        Variable(name="time_zone", meaning="Time zone of the hours, such as Europe/Berlin.", default=CLOCK),
    ]  # fmt: skip
    return terraform_files(title, blocks, variables)


def _group_blocks(name: str, parts: Sequence[tuple[WeeklySchedule, int]]) -> Iterator[HclBlock]:
    """A node group, and an action at each time of the week at which its size changes."""
    label = resource_label(name)
    yield block(
        "data", "aws_eks_node_group", label, cluster_name=Expression("var.cluster"), node_group_name=name,
    )  # fmt: skip
    group = f"data.aws_eks_node_group.{label}.resources[0].autoscaling_groups[0].name"
    for (clock, size), days in _changes(parts).items():
        action = f"{name}-{clock // 60:02d}{clock % 60:02d}-{size}"
        yield block(
            "resource", "aws_autoscaling_schedule", resource_label(action), scheduled_action_name=action,
            autoscaling_group_name=Expression(group), recurrence=_cron(clock, days),
            time_zone=Expression("var.time_zone"), min_size=size, desired_capacity=size, max_size=-1,
        )  # fmt: skip


def _changes(parts: Sequence[tuple[WeeklySchedule, int]]) -> dict[tuple[int, int], list[int]]:
    """Days of the week by (minute of the day, nodes from then on), wherever the number of nodes changes."""
    cuts = sorted({end % WEEK_MIN for when, _ in parts for window in when.windows for end in window})
    sizes = [sum(n for when, n in parts if any(a <= cut < b for a, b in when.windows)) for cut in cuts]
    changes: dict[tuple[int, int], list[int]] = {}
    for number, (cut, size) in enumerate(zip(cuts, sizes, strict=True)):
        if size != sizes[number - 1]:
            changes.setdefault((cut % DAY_MIN, size), []).append(cut // DAY_MIN)
    return changes


def _notes() -> Iterator[str]:
    yield f"hours are in {CLOCK}; set the time zone of the fleet in time_zone, and in timezone of KEDA's triggers"
    yield "services are Deployments or LeaderWorkerSets of the same name, and KEDA runs in the cluster"
    yield (
        "a Deployment can have one ScaledObject only: if another one scales it by its queue, move the cron triggers "
        "there"
    )
