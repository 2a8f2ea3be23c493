"""Replicas that follow the engine's own queue: a HorizontalPodAutoscaler, with the rules of prometheus-adapter."""

from __future__ import annotations

from flopwise.exports import kubernetes as parts
from flopwise.exports.autoscaling import (
    behaviour,
    engine_metric,
    rule_notes,
    scaled_object,
    scaling_refusals,
    scaling_rule,
)
from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import yaml_text
from flopwise.exports.exported import Files
from flopwise.exports.kubernetes import Object

refusals = scaling_refusals
CHART = "prometheus-adapter"
MEANINGS = ("waiting", "running")


def export(deployment: Deployment) -> Files:
    """`hpa.yaml`, and `prometheus-adapter.yaml`: values of its chart that give the metrics their names."""
    rules = {"rules": {"custom": [_adapter_rule(deployment, meaning) for meaning in MEANINGS]}}
    return Files(
        files={"hpa.yaml": yaml_text(_autoscaler(deployment)), f"{CHART}.yaml": yaml_text(rules)},
        apply=(
            f"helm upgrade --install {CHART} prometheus-community/{CHART} --reuse-values --values {CHART}.yaml",
            "kubectl apply -f hpa.yaml",
        ),
        assumptions=(*rule_notes(deployment), "prometheus-adapter reads a Prometheus that labels series by their pod"),
    )


def _metric_name(deployment: Deployment, meaning: str) -> str:
    """The metric as Kubernetes calls it: without the colon of the engine's name."""
    return engine_metric(deployment, meaning).replace(":", "_")


def _adapter_rule(deployment: Deployment, meaning: str) -> Object:
    """The rule of prometheus-adapter for the metric of a pod: its largest value of a minute."""
    metric = engine_metric(deployment, meaning)
    return {
        "seriesQuery": f'{metric}{{namespace!="",pod!=""}}',
        "resources": {"overrides": {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}},
        "name": {"matches": f"^{metric}$", "as": _metric_name(deployment, meaning)},
        "metricsQuery": "sum(max_over_time(<<.Series>>{<<.LabelMatchers>>}[1m])) by (<<.GroupBy>>)",
    }


def _autoscaler(deployment: Deployment) -> Object:
    """The autoscaler: it adds at most as many replicas as there are until those could have started."""
    rule = scaling_rule(deployment)
    metrics = [
        {"type": "Pods", "pods": {
            "metric": {"name": _metric_name(deployment, meaning)},
            "target": {"type": "AverageValue", "averageValue": str(getattr(rule, meaning))},
        }}
        for meaning in MEANINGS
    ]  # fmt: skip
    return {
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": parts.metadata(deployment),
        "spec": {
            "scaleTargetRef": scaled_object(deployment), "minReplicas": rule.least, "maxReplicas": rule.most,
            "metrics": metrics,
            "behavior": behaviour(rule),
        },
    }  # fmt: skip
