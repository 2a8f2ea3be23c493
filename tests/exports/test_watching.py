"""What Prometheus, its operator, Alertmanager and Grafana say of their files; a real server reads and fires."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from dashboards import grafana
from export_samples import WORKLOADS, sample_deployment, sample_export
from tools import RefusedError
from validators import (
    alertmanager,
    kubernetes,
    metrics_page,
    prometheus_server,
    promtool_config,
    promtool_rules,
    promtool_test,
    query,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "fleet"))
from small import answer

from flopwise.exports.fleet import FleetDeployment
from flopwise.exports.server import serving_command
from flopwise.exports.spec import ExportSettings
from flopwise.exports.targets import exported_assessment
from flopwise.facts.catalog import load_facts

SAMPLES = ("pretrain-spot", "serve", "serve-tgi", "serve-llamacpp", "serve-sglang", "serve-trtllm", "encode", "batch")
METRICS = Path(__file__).parent / "engines" / "metrics.csv"
DEVICE = """
DCGM_FI_DEV_GPU_UTIL{{gpu="0"}} 97
DCGM_FI_DEV_FB_USED{{gpu="0"}} 70000
DCGM_FI_DEV_FB_FREE{{gpu="0"}} 10000
DCGM_FI_DEV_GPU_TEMP{{gpu="0"}} 60
DCGM_FI_DEV_POWER_USAGE{{gpu="0"}} 500
DCGM_FI_DEV_XID_ERRORS{{gpu="0"}} {xid}
"""


def written(folder: Path, files: Mapping[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def until(holds: Callable[[], bool], seconds: float = 120.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.2)
    return False


def fast(files: Mapping[str, str], addresses: Mapping[str, str]) -> dict[str, str]:
    """The files with reads and rules each second, and targets at other addresses."""
    made = dict[str, str]()
    for path, text in files.items():
        made[path] = text.replace('"1m"', '"1s"').replace('"15s"', '"1s"').replace("- localhost:9093", "- 127.0.0.1:1")
        if path.startswith("targets/"):
            (row,) = yaml.safe_load(text)
            made[path] = yaml.safe_dump([row | {"targets": [addresses[Path(path).stem]]}])
    return made


@pytest.mark.parametrize("sample", SAMPLES)
def test_prometheus_takes_its_configuration(sample: str, tmp_path: Path) -> None:
    rules, scrape = sample_export("prometheus", sample).files, sample_export("prometheus-scrape", sample).files
    promtool_config(written(tmp_path, {**rules, **scrape}) / "prometheus.yml")
    wrong = scrape["prometheus.yml"].replace("scrape_interval", "scrape_intervall", 1)
    with pytest.raises(RefusedError):
        promtool_config(written(tmp_path, {"prometheus.yml": wrong}) / "prometheus.yml")


def test_a_service_is_read_on_every_machine_and_each_replica_at_its_port() -> None:
    """Eight devices of a machine and replicas of two: four ports from vLLM's on."""
    deployment = sample_deployment("serve")
    files = sample_export("prometheus-scrape", "serve", machines="10.0.0.7").files
    each = deployment.gpus_per_node // deployment.gpus_per_replica
    (engine,) = yaml.safe_load(files["targets/engine.yaml"])
    ports = [int(one.split(":")[1]) for one in engine["targets"]]
    assert ports == [8000 + n for n in range(min(each, deployment.replicas))]
    assert engine["labels"] == {"workload": "chat", "__meta_title": "chat"}
    (devices,) = yaml.safe_load(files["targets/gpu.yaml"])
    assert devices["targets"] == ["10.0.0.7:9400"]
    fields = {line.split(",")[0] for line in files["dcgm-counters.csv"].splitlines()[1:]}
    used = set(re.findall(r"DCGM_\w+", sample_export("prometheus", "serve").files["rules.yaml"]))
    assert used <= fields
    assert "PROF_PIPE_TENSOR_ACTIVE" in str(fields)


def test_a_server_records_what_an_exporter_sends_and_fires(tmp_path: Path) -> None:
    """At 97 % and 12.5 % of free memory, the fault of a GPU fires, and clears when it is gone."""
    rules, scrape = sample_export("prometheus", "serve").files, sample_export("prometheus-scrape", "serve").files
    engine = "vllm:num_requests_waiting 3\nvllm:num_requests_running 7\nvllm:kv_cache_usage_perc 0.25\n"
    with metrics_page(DEVICE.format(xid=0)) as (devices, page), metrics_page(engine) as (server, _):
        written(tmp_path, fast({**rules, **scrape}, {"gpu": devices, "engine": server}))
        with prometheus_server(tmp_path) as url:

            def value(expression: str) -> float | None:
                found = query(url, expression)
                return float(found[0]["value"][1]) if found else None

            of_chat = '{workload="chat"}'
            assert until(lambda: value(f"flopwise:memory_ratio{of_chat}") is not None)
            assert value(f"flopwise:memory_ratio{of_chat}") == pytest.approx(7 / 8)
            assert value(f"flopwise:device_busy_ratio{of_chat}") == pytest.approx(0.97)
            hour = sample_deployment("serve").candidate
            assert until(lambda: value(f"flopwise:cost_usd_per_hour{of_chat}") is not None)
            each = hour.usd_per_hour / hour.num_gpus
            assert value(f"flopwise:cost_usd_per_hour{of_chat}") == pytest.approx(each), "one device reports"
            assert until(lambda: value(f"flopwise:requests_waiting{of_chat}") == 3)
            assert value(f"flopwise:cache_ratio{of_chat}") == 0.25
            fault = 'ALERTS{alertname="XidHardwareError",alertstate="firing",severity="critical"}'
            assert not query(url, fault)
            page[0] = DEVICE.format(xid=79)
            assert until(lambda: bool(query(url, fault)))
            assert query(url, fault)[0]["metric"]["gpu"] == "0"
            page[0] = DEVICE.format(xid=0)
            assert until(lambda: not query(url, fault))
            board = json.loads(sample_export("grafana", "serve").files["dashboard.json"])
            for panel in board["panels"]:
                for target in panel["targets"]:
                    query(url, target["expr"].replace("$instance", ".*"))


def test_a_run_tells_its_progress_to_a_server(tmp_path: Path) -> None:
    rules, scrape = sample_export("prometheus", "lora").files, sample_export("prometheus-scrape", "lora").files
    spec = importlib.util.spec_from_file_location("progress", written(tmp_path, scrape) / "progress.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    run = module.RunProgress(port=0, host="127.0.0.1")
    try:
        with metrics_page(DEVICE.format(xid=0)) as (devices, _):
            address = f"127.0.0.1:{run.server.server_port}"
            written(tmp_path, fast({**rules, **scrape}, {"gpu": devices, "run": address}))
            run.step(131072)
            run.checkpoint()
            with prometheus_server(tmp_path) as url:
                name = 'flopwise_run_tokens_total{workload="support-assistant",job="run"}'
                assert until(lambda: bool(query(url, name)))
                run.step(131072)
                assert until(lambda: query(url, name)[0]["value"][1] == "262144")
                age = 'flopwise:checkpoint_age_seconds{workload="support-assistant"}'
                assert until(lambda: bool(query(url, age)))
                assert 0 <= float(query(url, age)[0]["value"][1]) < 60
                assert until(lambda: bool(query(url, "flopwise:tokens_per_second > 0")))
    finally:
        run.server.shutdown()
        run.server.server_close()


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_operators_objects_are_what_their_schemas_allow(sample: str, tmp_path: Path) -> None:
    text = sample_export("prometheus-operator", sample, namespace="watch").files["monitoring.yaml"]
    objects = kubernetes(text)
    kinds = [one["kind"] for one in objects]
    assert kinds[0] == "PrometheusRule"
    assert {one["metadata"]["namespace"] for one in objects} == {"watch"}
    rules = yaml.safe_load(sample_export("prometheus", sample).files["rules.yaml"])
    assert objects[0]["spec"] == rules
    promtool_rules(written(tmp_path, {"rules.yaml": yaml.safe_dump(objects[0]["spec"])}) / "rules.yaml")
    name = sample_deployment(sample).name
    for one in objects[1:]:
        (endpoint,) = one["spec"].get("endpoints") or one["spec"]["podMetricsEndpoints"]
        told = [*endpoint["relabelings"], *endpoint.get("metricRelabelings", [])]
        assert {"targetLabel": "workload", "replacement": name}.items() <= next(
            part for part in told if part["targetLabel"] == "workload"
        ).items()
    with pytest.raises(RefusedError):
        kubernetes(text.replace("groups:", "group:", 1))


def test_alertmanager_takes_its_routes(tmp_path: Path) -> None:
    text = sample_export("alertmanager", "serve", alert_secret="/run/secrets/hook").files["alertmanager.yml"]
    alertmanager(written(tmp_path, {"alertmanager.yml": text}) / "alertmanager.yml")
    made = yaml.safe_load(text)
    assert {hook["url_file"] for r in made["receivers"] for hook in r["webhook_configs"]} == {"/run/secrets/hook"}
    wrong = written(tmp_path, {"alertmanager.yml": text.replace("receiver: critical", "receiver: nobody")})
    with pytest.raises(RefusedError):
        alertmanager(wrong / "alertmanager.yml")
    placeholder = sample_export("alertmanager", "serve")
    assert [fill.option for fill in placeholder.to_fill] == ["--alert-secret"]


@pytest.mark.parametrize("sample", SAMPLES)
def test_grafana_takes_the_dashboard(sample: str) -> None:
    files = sample_export("grafana", sample).files
    board = json.loads(files["dashboard.json"])
    grafana(board)
    rules = yaml.safe_load(sample_export("prometheus", sample).files["rules.yaml"])
    known = {rule["record"] for group in rules["groups"] for rule in group["rules"] if "record" in rule}
    used = {name for text in re.findall(r'"expr": "(.*)"', files["dashboard.json"])
            for name in re.findall(r"flopwise:\w+", text)}  # fmt: skip
    assert used <= known
    lines = {panel["title"]: panel["fieldConfig"]["defaults"]["thresholds"]["steps"] for panel in board["panels"]}
    if sample == "serve":
        assert [step["value"] for step in lines["Time to first token"]] == [None, 1.0]
    with pytest.raises(RefusedError):
        grafana(board | {"panles": []})


# A whole report


@cache
def fleet() -> FleetDeployment:
    """The small fleet: a chat service, a run that tunes, a batch at night, and desks."""
    found = answer()
    return FleetDeployment.of(found.assessment, found.plans, load_facts(), ExportSettings(name="small"))


@cache
def of_fleet(target: str) -> Mapping[str, str]:
    return exported_assessment(target, fleet()).files


def alerts_of(files: Mapping[str, str]) -> dict[tuple[str, str], dict[str, Any]]:
    """Alerts by workload and name."""
    groups = yaml.safe_load(files["rules.yaml"])["groups"]
    rules = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    return {(rule["labels"]["workload"], rule["alert"]): rule for rule in rules}


def limit(rule: Mapping[str, Any]) -> float:
    return float(rule["expr"].rsplit(" ", 1)[1])


def test_a_report_has_one_file_of_rules_with_its_own_thresholds(tmp_path: Path) -> None:
    found, rows = alerts_of(of_fleet("prometheus")), answer().assessment.monitoring
    names = {"spend_usd_per_day": "CostPerDayHigh", "spend_usd_per_run": "CostPerRunHigh",
             "tokens_per_s": "ThroughputLow", "requests_per_s": "RequestRateHigh",
             "requests_waiting": "RequestsWaiting"}  # fmt: skip
    checked = 0
    for row in rows:
        if row.workload and row.key in names:
            rule = found[row.workload, names[row.key]]
            assert limit(rule) == pytest.approx(row.threshold, rel=1e-9), row
            assert rule["labels"]["severity"] == row.severity
            checked += 1
    assert checked >= 8
    day = next(row for row in rows if not row.workload and row.key == "spend_usd_per_day")
    assert limit(found["the-fleet", "FleetCostPerDayHigh"]) == pytest.approx(day.threshold)
    promtool_rules(written(tmp_path, of_fleet("prometheus")) / "rules.yaml")
    promtool_test(tmp_path / "tests.yaml")


def test_money_above_its_limit_warns_and_stops_development_machines() -> None:
    found = alerts_of(of_fleet("prometheus"))
    for rule in (found["the-fleet", "FleetCostPerDayHigh"], found["desks", "CostPerDayHigh"]):
        assert rule["labels"]["stop"] == "development"
        assert "stop" in rule["annotations"]["runbook"]
    assert "stop" not in found["chat", "CostPerDayHigh"]["labels"]
    routes = yaml.safe_load(of_fleet("alertmanager")["alertmanager.yml"])["route"]["routes"]
    assert {"receiver": "stop-development", "continue": True}.items() <= routes[0].items()


def test_machines_that_people_work_on_have_the_usual_limits() -> None:
    found = alerts_of(of_fleet("prometheus"))
    assert found["desks", "UtilisationHigh"]["expr"] == 'flopwise:device_busy_ratio{workload="desks"} > 0.9'
    assert found["desks", "UtilisationHigh"]["for"] == "600s"
    assert found["desks", "MemoryHigh"]["expr"] == 'flopwise:memory_ratio{workload="desks"} > 0.85'
    assert found["desks", "MemoryHigh"]["for"] == "300s"


def test_what_a_workload_stores_is_part_of_what_it_costs() -> None:
    """A terabyte of the chat service besides its machines, spread over 730 hours."""
    bill = answer().assessment
    machines = sum(row.usd_per_month for row in bill.allocation if row.workload == "chat")
    steady = (bill.usd_per_month.by_workload["chat"] - machines) / 730
    groups = yaml.safe_load(of_fleet("prometheus")["rules.yaml"])["groups"]
    cost = next(r for r in groups[0]["rules"] if r.get("record") == "flopwise:cost_usd_per_hour")
    assert steady > 0.02
    assert float(cost["expr"].rsplit(" + ", 1)[1]) == pytest.approx(steady, rel=1e-6)


def test_a_report_has_one_dashboard_with_a_row_for_each_workload() -> None:
    board = json.loads(of_fleet("grafana")["dashboard.json"])
    grafana(board)
    assert [panel["title"] for panel in board["panels"] if panel["type"] == "row"] == [
        "chat",
        "tune",
        "nightly",
        "desks",
    ]
    assert all(panel["panels"] for panel in board["panels"] if panel["type"] == "row")


def test_a_report_is_read_and_watched_by_an_operator(tmp_path: Path) -> None:
    objects = kubernetes(of_fleet("prometheus-operator")["monitoring.yaml"])
    monitors = [one for one in objects if one["kind"] == "ServiceMonitor"]
    (endpoint,) = monitors[0]["spec"]["endpoints"]
    assert {part["replacement"] for part in endpoint["metricRelabelings"]} == {"chat", "tune", "nightly", "desks"}
    promtool_config(written(tmp_path, {**of_fleet("prometheus"), **of_fleet("prometheus-scrape")}) / "prometheus.yml")
    rows = yaml.safe_load((tmp_path / "targets" / "gpu.yaml").read_text())
    assert [row["labels"]["workload"] for row in rows] == ["chat", "tune", "nightly", "desks"]


# Names of metrics, and where they are


def test_the_engines_send_what_rules_read() -> None:
    """Against the lists of names read from the released packages, and from changes that were merged since."""
    listed = {(row["engine"], row["metric"]): row["kind"] for row in csv.DictReader(METRICS.read_text().splitlines())}
    engines = {engine for engine, _ in listed}
    checked = 0
    for record in load_facts().metric_records:
        if record.exporter in engines:
            whole = record.metric.removesuffix("_sum")
            kind = listed.get((record.exporter, record.metric)) or listed.get((record.exporter, whole))
            assert kind is not None, record.metric
            assert kind == ("histogram" if whole != record.metric else record.kind), record.metric
            checked += 1
    assert checked > 35


@pytest.mark.parametrize("sample", ["serve", "serve-sglang", "serve-trtllm", "serve-tgi", "serve-llamacpp"])
def test_the_engines_listen_where_they_are_read(sample: str) -> None:
    deployment = sample_deployment(sample)
    command, engine = serving_command(deployment), deployment.candidate.layout["engine"]
    exporter = next(one for one in deployment.facts.exporters if one.name == engine)
    assert (exporter.port, exporter.path) == (command.port, command.metrics_path)


def test_samples_cover_every_task() -> None:
    assert {WORKLOADS[name]["task"] for name in (*SAMPLES, "lora")} == {
        "pretrain", "finetune", "serve", "encode", "batch"
    }  # fmt: skip
