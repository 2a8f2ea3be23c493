"""Prometheus: alert and recording rules with the plan's own thresholds, and tests of them for promtool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import yaml_text
from flopwise.exports.exported import Files
from flopwise.exports.fleet import FleetDeployment
from flopwise.exports.monitoring.alert_rules import WatchRule, watch_rules
from flopwise.exports.monitoring.rule_file import FLEET, INTERVAL, annotations_of, fleet_rules, labels_of, rule_groups
from flopwise.exports.monitoring.signals import EVAL_MINUTES, Series
from flopwise.exports.monitoring.watched import WatchedWorkload, watched_fleet, watched_plan
from flopwise.fleet.assessment import Alert

TEST_INTERVAL = "5m"
"""Between the evaluations of a test: a fifth of the work, and no alert needs more."""
AlertCase = tuple[WatchRule, str, str]
"""A rule, the name of its workload and its title."""
APPLY = ("promtool check rules rules.yaml", "promtool test rules tests.yaml")


def export(deployment: Deployment) -> Files:
    """`rules.yaml` and `tests.yaml` of one plan."""
    return _files([watched_plan(deployment)])


def export_fleet(fleet: FleetDeployment) -> Files:
    """The same of all workloads of an assessment, in one file."""
    return _files(watched_fleet(fleet), [a for a in fleet.assessment.monitoring if not a.workload])


def _files(workloads: Sequence[WatchedWorkload], fleet: Sequence[Alert] = ()) -> Files:
    rules = {"groups": rule_groups(workloads, fleet)}
    return Files(
        files={"rules.yaml": yaml_text(rules), "tests.yaml": yaml_text(_rule_tests(workloads, fleet))}, apply=APPLY,
        assumptions=tuple(note for watched in workloads for note in rule_notes(watched)),
    )  # fmt: skip


def rule_notes(watched: WatchedWorkload) -> list[str]:
    """Sentences on the basis and the limits of a workload's rules."""
    notes = [
        f"every series of {watched.title} needs the label workload={watched.name}, which other export targets set",
        "cost counts the devices that report, at the plan's price; monthly cost needs a retention of 31 days",
    ]
    if watched.meters.device is None:
        notes.append(f"no exporter of {watched.accelerator.name} is known: rules on its devices are left out")
    elif watched.meters.device.name != "dcgm":
        notes.append(
            f"{watched.meters.device.name} reports less than DCGM: rules on Xid errors and counters are left out"
        )
    if watched.engine and watched.meters.software is None:
        notes.append(f"no metrics of {watched.engine} are known: rules on its requests are left out")
    if watched.num_kinds > 1:
        notes.append(f"{watched.title} has {watched.num_kinds} kinds of machines: its cost uses their mean price")
    return notes


def _rule_tests(workloads: Sequence[WatchedWorkload], fleet: Sequence[Alert] = ()) -> dict[str, Any]:
    """Tests for promtool: each alert fires on series beyond its threshold, and none on the plan's own values."""
    rules = [(rule, watched.name, watched.title) for watched in workloads for rule in watch_rules(watched)]
    rules += [(rule, FLEET, "all workloads") for rule in fleet_rules(fleet, workloads)]
    cases = dict[str, list[AlertCase]]()
    for case in rules:
        cases.setdefault(case[0].alert, []).append(case)
    firing = {alert: _firing_series(same) for alert, same in cases.items()}
    alone = [alert for alert, same in cases.items() if same[0][0].tested_alone]
    packs = _packs((series, alert) for alert, series in firing.items() if alert not in alone)
    packs += [(firing[alert], [alert]) for alert in alone]
    tests = [
        _firing_test(f"{', '.join(alerts)} fire{'s' * (len(alerts) == 1)}", series, [cases[a] for a in alerts])
        for series, alerts in packs
    ]
    resting = (({**rule.signal.series(rule.quiet_value), **rule.quiet_series}, rule.alert) for rule, _, _ in rules)
    for number, (series, alerts) in enumerate(_packs(resting), start=1):
        tests.append(_quiet_test(f"none fires on the plan's own values, part {number}", series, alerts))
    order = [*(watched.title for watched in workloads), *([FLEET] if fleet else [])]
    head = {"rule_files": ["rules.yaml"], "evaluation_interval": TEST_INTERVAL, "group_eval_order": order}
    return head | {"tests": tests}


def _firing_series(cases: Sequence[AlertCase]) -> dict[str, str]:
    """Series on which an alert fires for each workload that has it."""
    return {name: values for rule, _, _ in cases for name, values in rule.signal.series(rule.firing_value).items()}


def _packs(parts: Iterable[tuple[Series, str]]) -> list[tuple[dict[str, str], list[str]]]:
    """Series that go together in one test, with the alerts they are of; money is given as record_of, so apart.

    Each test evaluates all rules of the file: few tests take a fraction of the time of one for each alert.
    """
    packs: list[tuple[dict[str, str], list[str]]] = []
    for series, alert in parts:
        for pack, alerts in packs:
            money = {any(name.startswith("flopwise:") for name in one) for one in (pack, series)}
            if len(money) == 1 and all(pack.get(name, values) == values for name, values in series.items()):
                pack.update(series)
                alerts.append(alert)
                break
        else:
            packs.append((dict(series), [alert]))
    return packs


def _firing_test(name: str, series: Series, alerts: Sequence[Sequence[AlertCase]]) -> dict[str, Any]:
    """A test in which each of the alerts fires for each workload that has it."""
    return {
        "name": name, "interval": INTERVAL, "input_series": _input(series),
        "alert_rule_test": [
            {
                "eval_time": f"{EVAL_MINUTES}m", "alertname": cases[0][0].alert,
                "exp_alerts": [_firing_alert(*case) for case in cases],
            }
            for cases in alerts
        ],
    }  # fmt: skip


def _firing_alert(rule: WatchRule, workload: str, title: str) -> dict[str, Any]:
    """The alert that Prometheus sends for a workload."""
    notes = {key: text.replace('{{ "{{" }}', "{{") for key, text in annotations_of(rule, title).items()}
    value = rule.signal.value_of(rule.firing_value)
    labels = {**rule.signal.labels, **labels_of(rule, workload)}
    return {"exp_labels": labels, "exp_annotations": notes | {"value": f"{value:.4g}"}}


def _quiet_test(name: str, series: Series, alerts: Iterable[str]) -> dict[str, Any]:
    """A test in which none of the alerts fires."""
    return {
        "name": name, "interval": INTERVAL, "input_series": _input(series),
        "alert_rule_test": [
            {"eval_time": f"{EVAL_MINUTES}m", "alertname": alert, "exp_alerts": []} for alert in dict.fromkeys(alerts)
        ],
    }  # fmt: skip


def _input(series: Series) -> list[dict[str, str]]:
    return [{"series": one, "values": values} for one, values in series.items()]
