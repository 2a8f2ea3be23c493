"""Grafana: a dashboard of what is measured beside what is planned, and the files that provision it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import json_text, yaml_text
from flopwise.exports.exported import Files
from flopwise.exports.fleet import FleetDeployment
from flopwise.exports.monitoring.alert_rules import WatchRule, watch_rules
from flopwise.exports.monitoring.quantities import LATENCIES, latencies, quantities, record_of
from flopwise.exports.monitoring.watched import WatchedWorkload, watched_fleet, watched_plan
from flopwise.exports.spec import PLACEHOLDERS, ExportSettings

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT, ACROSS = 8, 8, 3
"""Of a panel in Grafana's grid of 24 columns, and how many stand side by side."""
PANELS = {
    "device_busy_ratio": ("Utilisation", "percentunit"), "memory_ratio": ("Device memory", "percentunit"),
    "temperature_celsius": ("Temperature", "celsius"), "power_watts": ("Power", "watt"), "devices": ("Devices", "none"),
    "cost_usd_per_hour": ("Cost per hour", "currencyUSD"),
    "cost_usd_per_day": ("Cost of 24 hours, against its limit", "currencyUSD"),
    "tokens_per_second": ("Tokens per second", "none"),
    "output_tokens_per_second": ("Output tokens per second", "none"),
    "requests_per_second": ("Requests per second", "reqps"), "requests_waiting": ("Requests waiting", "none"),
    "requests_running": ("Requests running", "none"), "cache_ratio": ("Cache in use", "percentunit"),
    "load_ratio": ("Load of replicas", "percentunit"), "mfu_ratio": ("MFU, by tokens", "percentunit"),
    "tensor_ratio": ("MFU, by counters", "percentunit"), "goodput_ratio": ("Goodput", "percentunit"),
    "cost_usd_per_1k_tokens": ("Cost of 1,000 tokens", "currencyUSD"),
    "energy_joules_per_token": ("Energy per token", "joule"),
    "checkpoint_age_seconds": ("Age of the last checkpoint", "s"), "latency_seconds": ("Latency", "s"),
    "time_to_first_token_seconds": ("Time to first token", "s"),
    "time_per_token_seconds": ("Time per output token", "s"),
}  # fmt: skip
"""Of each recorded quantity the title of its panel, and Grafana's unit."""
BY_DEVICE = {"device_busy_ratio": "busy", "memory_ratio": "memory_used", "temperature_celsius": "temperature",
             "power_watts": "power"}  # fmt: skip
"""Quantities that have a line for each device as well."""
BY_POOL = {"requests_waiting": "waiting", "requests_running": "running"}
"""Quantities that have a line for each pool as well, where prompts have servers of their own."""


def export(deployment: Deployment) -> Files:
    """`dashboard.json` of one plan, and how Grafana finds it."""
    watched = watched_plan(deployment)
    return _files([watched], deployment.name, watched.title, deployment.settings)


def export_fleet(fleet: FleetDeployment) -> Files:
    """One dashboard with a row for each workload of an assessment."""
    return _files(watched_fleet(fleet), fleet.name, fleet.settings.name or fleet.assessment.name or fleet.name,
                  fleet.settings)  # fmt: skip


def _files(workloads: Sequence[WatchedWorkload], name: str, title: str, settings: ExportSettings) -> Files:
    address = settings.prometheus or PLACEHOLDERS["prometheus"]
    return Files(
        files={
            "dashboard.json": json_text(_dashboard(workloads, name, title)),
            "provisioning/dashboards/flopwise.yaml": yaml_text(_provider()),
            "provisioning/datasources/prometheus.yaml": yaml_text(_data_source(address)),
        },
        apply=("mkdir -p /var/lib/grafana/dashboards && cp dashboard.json /var/lib/grafana/dashboards/",
               "cp -r provisioning/. /etc/grafana/provisioning/"),
        assumptions=(
            "Prometheus has the rules of the target prometheus",
            "Grafana is installed from its package: /etc/grafana and /var/lib/grafana; restart it afterwards",
        ),
    )  # fmt: skip


def _provider() -> dict[str, Any]:
    options = {"path": "/var/lib/grafana/dashboards"}
    one = {"name": "flopwise", "folder": "flopwise", "type": "file", "allowUiUpdates": False, "options": options}
    return {"apiVersion": 1, "providers": [one]}


def _data_source(address: str) -> dict[str, Any]:
    one = {"name": "Prometheus", "type": "prometheus", "access": "proxy", "url": address,
           "isDefault": True}  # fmt: skip
    return {"apiVersion": 1, "datasources": [one]}


def _dashboard(workloads: Sequence[WatchedWorkload], name: str, title: str) -> dict[str, Any]:
    names = "|".join(watched.name for watched in workloads)
    panels: list[dict[str, Any]] = []
    if len(workloads) == 1:
        panels += _grid([*_alert_list(names), *_panels(workloads[0])], 0)
    else:
        panels += _grid([*_alert_list(names), *_overview(names)], 0)
        for watched in workloads:
            top = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in panels)
            panels.append(_row(watched.title, top, _grid(list(_panels(watched)), top + 1)))
    for number, panel in enumerate(_all(panels), start=1):
        panel["id"] = number
    return {
        "uid": f"flopwise-{name[-31:].strip('-')}", "title": title, "tags": ["flopwise"], "timezone": "browser",
        "schemaVersion": 39, "refresh": "30s", "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _variables(names)}, "panels": panels,
    }  # fmt: skip


def _all(panels: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for panel in panels:
        yield panel
        yield from panel.get("panels", [])


def _variables(names: str) -> list[dict[str, Any]]:
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {"name": "instance", "label": "Machine", "type": "query", "datasource": SOURCE, "multi": True,
         "includeAll": True, "allValue": ".*", "refresh": 2,
         "query": f'label_values(up{{workload=~"{names}",job="gpu"}}, instance)'},
    ]  # fmt: skip


def _grid(panels: list[dict[str, Any]], top: int) -> list[dict[str, Any]]:
    """Panels from left to right, row under row."""
    for number, panel in enumerate(panels):
        place = {"x": number % ACROSS * WIDTH, "y": top + number // ACROSS * HEIGHT, "w": WIDTH, "h": HEIGHT}
        panel["gridPos"] = place
    return panels


def _row(title: str, top: int, panels: list[dict[str, Any]]) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": 24, "h": 1}
    return {"type": "row", "title": title, "collapsed": True, "gridPos": place, "panels": panels}


def _alert_list(names: str) -> Iterator[dict[str, Any]]:
    firing = f'count by (workload, alertname, severity) (ALERTS{{alertstate="firing",workload=~"{names}|the-fleet"}})'
    yield _panel("Firing alerts", "none", [(firing, "{{severity}}: {{alertname}}, {{workload}}")], ())


def _overview(names: str) -> Iterator[dict[str, Any]]:
    """A line of cost and throughput for each workload."""
    for record in ("cost_usd_per_hour", "cost_usd_per_day", "device_busy_ratio", "tokens_per_second", "devices"):
        yield _panel(*PANELS[record], [(f'flopwise:{record}{{workload=~"{names}"}}', "{{workload}}")], ())


def _panels(watched: WatchedWorkload) -> Iterator[dict[str, Any]]:
    """Everything that is recorded of a workload, with the plan's lines."""
    rules = watch_rules(watched)
    latency_records = {record for record, _, _ in latencies(watched)}
    for record in [*quantities(watched), *(record for record in LATENCIES.values() if record in latency_records)]:
        queries = [(record_of(record, watched.name), "{{quantile}}" if record in latency_records else "measured")]
        queries += [*_by_device(watched, record), *_by_pool(watched, record)]
        queries.append((f'flopwise:plan{{workload="{watched.name}",quantity="{record}"}}', "{{line}} {{alert}}"))
        limits = [rule for rule in rules if rule.quantity == record and rule.signal.expr.startswith("flopwise:")]
        yield _panel(*PANELS[record], queries, limits)


def _by_pool(watched: WatchedWorkload, record: str) -> Iterator[tuple[str, str]]:
    """A line for each pool of a workload with separate servers for prompts."""
    meaning, meters = BY_POOL.get(record), watched.meters
    meter = None if meaning is None or not meters.pools else meters.record(meaning)
    if meter is not None:
        for pool in meters.pools:
            yield f"sum by (pool) ({meters.select(meter, pool=pool)})", "{{pool}}"


def _by_device(watched: WatchedWorkload, record: str) -> Iterator[tuple[str, str]]:
    """A line for each device of the machines that are chosen."""
    meters = watched.meters
    meaning, device = BY_DEVICE.get(record), meters.device
    meter = None if meaning is None else meters.record(meaning)
    if meter is None or device is None or not device.device or record == "memory_ratio":
        return
    series = meters.select(meter).replace("}", ',instance=~"$instance"}')
    yield f"{series} * {meter.scale:g}", f"{{{{instance}}}} {{{{{device.device}}}}}"


def _panel(title: str, unit: str, queries: Sequence[tuple[str, str]], limits: Sequence[WatchRule]) -> dict[str, Any]:
    """A chart; thresholds of alerts are lines in it."""
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    for rule in sorted(limits[:1], key=lambda rule: rule.threshold):
        steps = [{"color": "green" if rule.above else "red", "value": None},
                 {"color": "red" if rule.above else "green", "value": rule.threshold}]  # fmt: skip
    style = "line" if limits else "off"
    return {
        "type": "timeseries", "title": title, "datasource": SOURCE,
        "description": "; ".join(f"{rule.alert}: {rule.why}" for rule in limits),
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
            for number, (expr, legend) in enumerate(queries)
        ],
        "fieldConfig": {
            "defaults": {
                "unit": unit, "thresholds": {"mode": "absolute", "steps": steps},
                "custom": {"thresholdsStyle": {"mode": style}},
            },
            "overrides": [],
        },
    }  # fmt: skip
