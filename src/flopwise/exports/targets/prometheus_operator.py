"""The same rules and reads as objects of the Prometheus operator: PrometheusRule, PodMonitor, ServiceMonitor."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import yaml_text
from flopwise.exports.exported import Files
from flopwise.exports.fleet import FleetDeployment
from flopwise.exports.kubernetes import COMPONENT_LABEL, NAME_LABEL
from flopwise.exports.monitoring.rule_file import rule_groups
from flopwise.exports.monitoring.watched import WatchedWorkload, watched_fleet, watched_plan
from flopwise.exports.spec import ExportSettings
from flopwise.fleet.assessment import Alert

FILE = "monitoring.yaml"
DEVICES = {
    "dcgm": ({"app": "nvidia-dcgm-exporter"}, "gpu-metrics"),
    "amd": ({"app.kubernetes.io/name": "metrics-exporter"}, "exporter-port"),
    "node": ({"app.kubernetes.io/name": "prometheus-node-exporter"}, "http-metrics"),
}
"""Labels of an exporter's service, and its port, as the GPU operators' and kube-prometheus-stack's charts name them.

Source: NVIDIA/gpu-operator, ROCm/gpu-operator and prometheus-community/helm-charts, read 2026-11-22.
"""
INTERVAL = "15s"
_META = re.compile("[^A-Za-z0-9_]")
"""Characters that Prometheus writes as _ in the names of its labels."""


def export(deployment: Deployment) -> Files:
    """`monitoring.yaml` of one plan."""
    return _files([watched_plan(deployment)], deployment.name, deployment.settings)


def export_fleet(fleet: FleetDeployment) -> Files:
    """The same of all workloads of an assessment."""
    alerts = [a for a in fleet.assessment.monitoring if not a.workload]
    return _files(watched_fleet(fleet), fleet.name, fleet.settings, alerts)


def _files(
    workloads: Sequence[WatchedWorkload], name: str, settings: ExportSettings, fleet: Sequence[Alert] = ()
) -> Files:
    title = workloads[0].title if len(workloads) == 1 else settings.name or name
    rule = {
        "apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule",
        "metadata": _metadata(name, title, settings), "spec": {"groups": rule_groups(workloads, fleet)},
    }  # fmt: skip
    objects = [rule, *_pod_monitors(workloads, settings), *_service_monitors(workloads, name, title, settings)]
    return Files(
        files={FILE: yaml_text(*objects)}, apply=(f"kubectl apply -f {FILE}",),
        assumptions=(
            "the operator's Prometheus selects rules and monitors without labels of their own, and in all namespaces",
            "device exporters name the pod that uses a device, as those of GPU operators do",
            "names of pods begin with the name of their workload, and pods have the label app.kubernetes.io/name",
            "the list of counters for dcgm-exporter is that of the target prometheus-scrape",
        ),
    )  # fmt: skip


def _metadata(name: str, title: str, settings: ExportSettings) -> dict[str, Any]:
    place = {} if settings.namespace is None else {"namespace": settings.namespace}
    labels = {NAME_LABEL: name, "app.kubernetes.io/managed-by": "flopwise"}
    return {"name": name, **place, "labels": labels, "annotations": {"flopwise.dev/title": title}}


def _pod_monitors(workloads: Sequence[WatchedWorkload], settings: ExportSettings) -> Iterator[dict[str, Any]]:
    """The monitors of engines and runs."""
    for watched in workloads:
        exporter = watched.meters.software
        if exporter is None:
            continue
        pools = watched.meters.pools
        component = f"__meta_kubernetes_pod_label_{_META.sub('_', COMPONENT_LABEL)}"
        of_pool = {"sourceLabels": [component], "targetLabel": "pool"}
        chosen: dict[str, Any] = {"matchLabels": {NAME_LABEL: watched.name}}
        if pools:  # not the router
            chosen["matchExpressions"] = [{"key": COMPONENT_LABEL, "operator": "In", "values": [*pools]}]
        endpoint = {
            **({"targetPort": exporter.port} if watched.trains or exporter.apart else {"port": "http"}),
            "path": exporter.path, "interval": INTERVAL,
            "relabelings": [
                {"targetLabel": "workload", "replacement": watched.name},
                {"targetLabel": "job", "replacement": "run" if watched.trains else "engine"},
                *([of_pool] if pools else []),
            ],
        }  # fmt: skip
        yield {
            "apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitor",
            "metadata": _metadata(watched.name, watched.title, settings),
            "spec": {"selector": chosen, "podMetricsEndpoints": [endpoint]},
        }  # fmt: skip


def _service_monitors(
    workloads: Sequence[WatchedWorkload], name: str, title: str, settings: ExportSettings
) -> Iterator[dict[str, Any]]:
    """The monitors of device exporters: one of each kind for all workloads, told apart by their pods."""
    for exporter, (labels, port) in DEVICES.items():
        mine = [w for w in workloads if w.meters.device is not None and w.meters.device.name == exporter]
        if not mine:
            continue
        whose = [
            {"sourceLabels": ["pod"], "regex": f"{watched.name}(-.*)?", "targetLabel": "workload",
             "replacement": watched.name}
            for watched in sorted(mine, key=lambda watched: len(watched.name))
        ]  # fmt: skip
        endpoint = {
            "port": port, "path": "/metrics", "interval": INTERVAL, "honorLabels": True,
            "relabelings": [{"targetLabel": "job", "replacement": "gpu"}], "metricRelabelings": whose,
        }  # fmt: skip
        yield {
            "apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor",
            "metadata": _metadata(f"{name}-{exporter}", title, settings),
            "spec": {"selector": {"matchLabels": labels}, "namespaceSelector": {"any": True}, "endpoints": [endpoint]},
        }  # fmt: skip
