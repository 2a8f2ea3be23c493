"""Replicas that follow the engine's own queue: a ScaledObject of KEDA, which asks Prometheus."""

from __future__ import annotations

from flopwise.exports import kubernetes as parts
from flopwise.exports.autoscaling import behaviour, rule_notes, scaled_object, scaling_refusals, scaling_rule, series
from flopwise.exports.deployment import Deployment
from flopwise.exports.exported import Files
from flopwise.exports.kubernetes import Object

refusals = scaling_refusals
POLL_S = 15
FAILURES = 3


def export(deployment: Deployment) -> Files:
    """`keda.yaml`: the ScaledObject."""
    notes = (
        *rule_notes(deployment),
        "KEDA 2.14 or later is installed; if Prometheus is unavailable, the plan's number of replicas runs",
    )
    return parts.manifests("keda.yaml", _scaled_object(deployment), assumptions=notes)


def _scaled_object(deployment: Deployment) -> Object:
    rule = scaling_rule(deployment)
    return {
        "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": parts.metadata(deployment),
        "spec": {
            "scaleTargetRef": scaled_object(deployment), "minReplicaCount": rule.least, "maxReplicaCount": rule.most,
            "pollingInterval": POLL_S, "cooldownPeriod": rule.calm_s,
            "fallback": {"failureThreshold": FAILURES, "replicas": deployment.replicas},
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behaviour(rule)}},
            "triggers": [_trigger(deployment, meaning, getattr(rule, meaning)) for meaning in ("waiting", "running")],
        },
    }  # fmt: skip


def _trigger(deployment: Deployment, meaning: str, threshold: int) -> Object:
    """A query of Prometheus over all replicas; the threshold is of one."""
    return {
        "type": "prometheus", "name": meaning, "metricType": "AverageValue",
        "metadata": {
            "serverAddress": deployment.value("prometheus"), "query": f"sum({series(deployment, meaning)})",
            "threshold": str(threshold),
        },
    }  # fmt: skip
