"""Rules and their tests in the formats of Prometheus and promtool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from flopwise.exports.monitoring.alert_rules import WatchRule, watch_rules
from flopwise.exports.monitoring.quantities import latencies, quantities, record_of, spend_signal
from flopwise.exports.monitoring.signals import PERCENTILES, Signal, number_text
from flopwise.exports.monitoring.watched import WatchedWorkload
from flopwise.fleet.assessment import Alert
from flopwise.units import HOURS_PER_MONTH

INTERVAL = "1m"
FLEET = "the-fleet"
"""The label `workload` of series of the whole fleet."""
VALUE = '{{ printf "%.4g" $value }}'


def rule_groups(workloads: Sequence[WatchedWorkload], fleet: Sequence[Alert] = ()) -> list[dict[str, Any]]:
    """A group per workload with recording rules, the plan's values and alerts; `fleet`: rules of the whole fleet."""
    groups = [
        _group(w.title, [*_recording(w), *_plan(w), *(_alerting(rule, w.name, w.title) for rule in watch_rules(w))])
        for w in workloads
    ]
    if fleet:
        rules = [_alerting(rule, FLEET, "all workloads") for rule in fleet_rules(fleet, workloads)]
        record = {"record": "flopwise:cost_usd_per_hour", "expr": _total(workloads), "labels": {"workload": FLEET}}
        groups.append(_group(FLEET, [record, *rules]))
    return groups


def _total(workloads: Sequence[WatchedWorkload]) -> str:
    names = "|".join(watched.name for watched in workloads)
    return f'sum(flopwise:cost_usd_per_hour{{workload=~"{names}"}})'


def _group(name: str, rules: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {"name": name, "interval": INTERVAL, "rules": list(rules)}


def _recording(watched: WatchedWorkload) -> Iterator[dict[str, Any]]:
    labels = {"workload": watched.name}
    for name, signal in quantities(watched).items():
        yield {"record": f"flopwise:{name}", "expr": signal.expr, "labels": labels}
    for name, percentile, signal in latencies(watched):
        quantile = str(PERCENTILES[percentile])
        yield {"record": f"flopwise:{name}", "expr": signal.expr, "labels": {**labels, "quantile": quantile}}


def _plan(watched: WatchedWorkload) -> Iterator[dict[str, Any]]:
    """The plan's values and the alerts' thresholds as series, so that dashboards can draw them."""
    for name, ends in _plan_lines(watched).items():
        for end, value in ends.items():
            yield _constant(watched.name, name, end, value)
    for rule in watch_rules(watched):
        if rule.signal.expr.startswith("flopwise:"):
            yield _constant(watched.name, rule.quantity, "alert", rule.threshold, alert=rule.alert)


def _plan_lines(watched: WatchedWorkload) -> Mapping[str, Mapping[str, float]]:
    """The plan's values of recorded quantities with the ends of their intervals, for dashboards."""
    figures = {
        "tokens_per_second" if watched.trains else "output_tokens_per_second":
            "tokens_per_s" if watched.trains else "output_tokens_per_s",
        "latency_seconds": "latency_s", "time_to_first_token_seconds": "ttft_s", "time_per_token_seconds": "tpot_s",
        "requests_per_second": "requests_per_s", "mfu_ratio": "mfu_frac",
    }  # fmt: skip
    lines: dict[str, Mapping[str, float]] = {}
    for name, figure in figures.items():
        ends = {
            "plan": watched.value(figure),
            "low": watched.value(figure, "low"),
            "high": watched.value(figure, "high"),
        }
        lines[name] = {end: value for end, value in ends.items() if value is not None}
    hourly = watched.usd_per_hour + watched.steady_usd_per_hour
    lines["cost_usd_per_hour"] = {"plan": hourly}
    if not watched.ends and watched.planned_usd is not None:
        lines["cost_usd_per_day"] = {"plan": watched.planned_usd}
    candidate = None if watched.deployment is None else watched.deployment.candidate
    if candidate is not None:
        lines["memory_ratio"] = {"plan": candidate.memory_bytes / candidate.capacity_bytes}
        busy = candidate.figures.get("busy_frac")
        if busy is not None:
            lines["load_ratio"] = {"plan": busy}
    if watched.accelerator.tdp_w is not None:
        lines["power_watts"] = {"limit": watched.accelerator.tdp_w * watched.num_gpus}
    return {name: ends for name, ends in lines.items() if ends}


def _constant(workload: str, quantity: str, line: str, value: float, **labels: str) -> dict[str, Any]:
    labels = {"workload": workload, "quantity": quantity, "line": line, **labels}
    return {"record": "flopwise:plan", "expr": f"vector({number_text(value)})", "labels": labels}


def _alerting(rule: WatchRule, workload: str, title: str) -> dict[str, Any]:
    """An alert in Prometheus' format."""
    made: dict[str, Any] = {"alert": rule.alert, "expr": rule.expr}
    if rule.for_s:
        made["for"] = f"{rule.for_s:.0f}s"
    return made | {"labels": labels_of(rule, workload), "annotations": annotations_of(rule, title)}


def labels_of(rule: WatchRule, workload: str) -> dict[str, str]:
    """The labels of an alert of a workload."""
    return {"workload": workload, "severity": rule.severity, "quantity": rule.quantity, **rule.labels}


def annotations_of(rule: WatchRule, title: str) -> dict[str, str]:
    """The annotations of an alert: summary, threshold with its reason, value, and action."""
    limit = f"{'above' if rule.above else 'below'} {number_text(float(f'{rule.threshold:.6g}'))}"
    return {
        "summary": template_text(f"{title}: {rule.summary}"), "description": template_text(f"{limit}: {rule.why}"),
        "runbook": template_text(rule.action), "value": VALUE,
    }  # fmt: skip


def template_text(text: str) -> str:
    """Text escaped for Prometheus' templates."""
    return text.replace("{{", '{{ "{{" }}')


def fleet_rules(rows: Sequence[Alert], workloads: Sequence[WatchedWorkload]) -> Iterator[WatchRule]:
    """Alerts on the total cost of all workloads; development machines are stopped first."""
    desks = [watched.title for watched in workloads if watched.environment == "development"]
    stop = f"warn, and stop development machines ({', '.join(desks)}); " if desks else "warn the budget owner; "
    for row in rows:
        hours = {"spend_usd_per_day": 24.0, "spend_usd_this_month": HOURS_PER_MONTH}.get(row.key)
        if hours is None:
            continue
        signal = _spend_of_all(hours, workloads)
        yield WatchRule(
            alert="FleetCostPerDayHigh" if hours == 24.0 else "FleetBudgetSpent", quantity=row.key, signal=signal,
            threshold=row.threshold, severity=row.severity, why=row.why, action=stop + row.action,
            summary=f"{hours:,.0f} hours cost more than planned", labels={"stop": "development"} if desks else {},
        )  # fmt: skip


def _spend_of_all(hours: float, workloads: Sequence[WatchedWorkload]) -> Signal:
    alone = spend_signal(FLEET, hours)
    first = record_of("cost_usd_per_hour", workloads[0].name)
    total = record_of("cost_usd_per_hour", FLEET)
    return Signal(expr=alone.expr, labels={}, series=lambda v: {first: alone.series(v)[total]})
