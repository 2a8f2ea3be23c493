"""Alertmanager: routes by severity, one webhook by reference, and what is silent while something graver fires."""

from __future__ import annotations

from typing import Any

from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import yaml_text
from flopwise.exports.exported import Files
from flopwise.exports.fleet import FleetDeployment
from flopwise.exports.spec import PLACEHOLDERS, ExportSettings

FILE = "alertmanager.yml"
FOLLOW = "ThroughputLow|MfuLow|TensorCoresIdle|BusyWithoutProgress|LatencyHigh|TimeToFirstTokenHigh|TimePerTokenHigh"
"""Alerts that follow from a broken device."""


def export(deployment: Deployment) -> Files:
    """`alertmanager.yml`, the same for every plan but for its references."""
    return _files(deployment.settings)


def export_fleet(fleet: FleetDeployment) -> Files:
    """The same: alerts say themselves which workload they are of."""
    return _files(fleet.settings)


def _files(settings: ExportSettings) -> Files:
    return Files(
        files={FILE: yaml_text(_configuration(settings.alert_secret or PLACEHOLDERS["alert_secret"]))},
        apply=(f"amtool check-config {FILE}", f"alertmanager --config.file={FILE}"),
        assumptions=(
            "one webhook receives all alerts, each with its severity, in Alertmanager's own JSON",
            "its address is in a file, which needs Alertmanager 0.26 or later",
            "critical alerts repeat every hour, warnings twice a day",
            "alerts labelled stop=development also go to the receiver stop-development, which must stop the machines",
        ),
    )  # fmt: skip


def _configuration(secret: str) -> dict[str, Any]:
    groups = ["workload", "alertname"]
    return {
        "route": {
            "receiver": "warning", "group_by": groups, "group_wait": "30s", "group_interval": "5m",
            "repeat_interval": "12h",
            "routes": [
                {"matchers": ['stop="development"'], "receiver": "stop-development", "continue": True},
                {"matchers": ['severity="critical"'], "receiver": "critical", "repeat_interval": "1h",
                 "group_wait": "10s"},
            ],
        },
        "receivers": [
            {"name": name, "webhook_configs": [{"url_file": secret, "send_resolved": True}]}
            for name in ("critical", "warning", "stop-development")
        ],
        "inhibit_rules": [
            {"source_matchers": ['severity="critical"'], "target_matchers": ['severity="warning"'],
             "equal": ["workload", "quantity"]},
            {"source_matchers": ['alertname=~"XidHardwareError|TargetDown"'],
             "target_matchers": [f'alertname=~"{FOLLOW}|MetricsMissing"'], "equal": ["workload"]},
        ],
    }  # fmt: skip
