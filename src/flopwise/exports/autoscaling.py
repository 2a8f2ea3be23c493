"""Autoscaling of a service by its plan: thresholds of waiting and running requests, bounds and delays."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from flopwise.exports.deployment import Deployment
from flopwise.exports.kubernetes_service import server_refusals
from flopwise.exports.replica import start_ends_s
from flopwise.search.deployments import PREFILL_BUSY
from flopwise.search.serving_option import latency_targets
from flopwise.values import dataclass

WAIT_S = 1.0
"""Time that a request may wait if the plan has no latency target, in seconds."""
LONGEST_WINDOW_S = 3600
LONGEST_PERIOD_S = 1800
"""Limits of a HorizontalPodAutoscaler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRule:
    """Thresholds per replica and bounds on replicas; `period_s`: until a new one serves, `calm_s`: before removal."""

    waiting: int
    running: int
    least: int
    most: int
    period_s: int
    calm_s: int


def scaling_rule(deployment: Deployment) -> ScalingRule:
    """The scaling rule of a service.

    The threshold of waiting requests is the number that a replica starts within the target of the first token; that of
    running requests is the number in flight at the planned load of a replica (Little's law), at most its batch. The
    minimum of replicas follows from the quietest hour, the maximum from the upper end of the plan's interval.

    Source: J. D. C. Little (1961); the plan's capacity, latency, batch and interval.
    Assumes: load is spread evenly; a quiet hour needs replicas in proportion to its rate.
    """
    chosen, workload = deployment.candidate, deployment.workload
    layout, capacity = chosen.layout, chosen.figures.get("requests_per_s_capacity") or 0.0
    each = capacity / deployment.replicas
    limits = [one.seconds for name, one in latency_targets(workload).items() if one is not None and name != "tpot"]
    slots = int(layout["max_batch"]) * int(layout.get("dp", 1))
    in_flight = math.ceil(each * PREFILL_BUSY * chosen.seconds)
    spread, rates = (chosen.cost_usd_high or chosen.cost_usd) / chosen.cost_usd, workload.profile
    quiet = min(rates) / max(rates) if rates else 1 / workload.peak
    start_s = start_ends_s(deployment)[1]
    fresh_s = start_s + deployment.facts.start_s("machine", "image")
    return ScalingRule(
        waiting=max(1, math.floor(min(limits, default=WAIT_S) * each)), running=max(1, min(slots, in_flight)),
        least=max(1, math.ceil(round(deployment.replicas * quiet, 6))),
        most=math.ceil(round(deployment.replicas * spread, 6)),
        period_s=min(LONGEST_PERIOD_S, math.ceil(start_s)), calm_s=min(LONGEST_WINDOW_S, math.ceil(2 * fresh_s)),
    )  # fmt: skip


def scaling_refusals(deployment: Deployment) -> Iterator[str]:
    """Reasons why a service is not or cannot be autoscaled."""
    if reasons := list(server_refusals(deployment)):
        yield from reasons
        return
    rule = scaling_rule(deployment)
    if rule.least == rule.most:
        yield (
            f"the plan needs {rule.least} replicas at all times: describe how traffic varies (traffic.profile or "
            "traffic.peak)"
        )
    for meaning in ("waiting", "running"):
        if not engine_metric(deployment, meaning):
            yield f"no metric of {meaning} requests is known for {deployment.candidate.layout['engine']}"


def engine_metric(deployment: Deployment, meaning: str) -> str:
    """The engine's metric of `waiting` or `running` requests; empty if it is not known."""
    engine = deployment.serve_job.engine.name
    records = (row for row in deployment.facts.metric_records if (row.exporter, row.meaning) == (engine, meaning))
    return next((row.metric for row in records), "")


def scaled_object(deployment: Deployment) -> dict[str, str]:
    """The object that is scaled."""
    if deployment.nodes_per_replica > 1:
        return {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": deployment.name}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment.name}


def series(deployment: Deployment, meaning: str) -> str:
    """PromQL for the metric's series of all replicas; names of pods begin with that of the deployment."""
    place = f'namespace="{deployment.settings.namespace}", ' if deployment.settings.namespace else ""
    return f'{engine_metric(deployment, meaning)}{{{place}pod=~"{deployment.name}-.+"}}'


def behaviour(rule: ScalingRule) -> dict[str, Any]:
    """Scaling behaviour: at most doubling within the time in which new replicas start."""
    return {
        "scaleUp": {
            "stabilizationWindowSeconds": 0,
            "policies": [{"type": "Percent", "value": 100, "periodSeconds": rule.period_s}],
        },
        "scaleDown": {
            "stabilizationWindowSeconds": rule.calm_s,
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": rule.period_s}],
        },
    }


def rule_notes(deployment: Deployment) -> tuple[str, ...]:
    """Notes on the origin of the thresholds."""
    rule, chosen = scaling_rule(deployment), deployment.candidate
    first, batch = scaled_object(deployment)["kind"].lower(), chosen.layout["max_batch"]
    kind = "kubernetes" if first == "deployment" else first
    return (
        (
            f"{rule.least} to {rule.most} replicas (the plan has {deployment.replicas}): the bounds follow from the "
            "quietest hour of the traffic and the upper end of the plan's interval"
        ),
        (
            f"a replica is full with {rule.running} requests in flight (its largest batch is {batch}), and "
            f"overloaded with {rule.waiting} waiting"
        ),
        (
            f"a new replica serves after {rule.period_s} s, or once its machine and image are ready; a surplus one "
            f"is removed after {rule.calm_s} s"
        ),
        f"the scaler acts on the {first} {deployment.name}: export {kind} first",
    )
