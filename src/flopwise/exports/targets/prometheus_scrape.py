"""Prometheus' own configuration: what it reads from exporters of devices, engines and runs, on machines by address."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import yaml_text
from flopwise.exports.exported import Files
from flopwise.exports.fleet import FleetDeployment
from flopwise.exports.monitoring.watched import WatchedWorkload, watched_fleet, watched_plan
from flopwise.exports.pools import addresses
from flopwise.exports.spec import PLACEHOLDERS
from flopwise.facts.metrics import ExporterRecord

PROGRAM = "progress.py"
INTERVALS = {"gpu": "15s", "engine": "15s", "run": "15s"}
"""Between reads: a quarter of the rules' interval."""
RETENTION = "31d"


def export(deployment: Deployment) -> Files:
    """`prometheus.yml` with lists of targets for one plan."""
    given = deployment.settings.machines
    return _files([watched_plan(deployment)], None if given is None else [one.strip() for one in given.split(",")])


def export_fleet(fleet: FleetDeployment) -> Files:
    """The same for all workloads of an assessment; addresses are to be filled in."""
    return _files(watched_fleet(fleet), None)


def _files(workloads: Sequence[WatchedWorkload], machines: Sequence[str] | None) -> Files:
    targets: dict[str, list[dict[str, Any]]] = {}
    jobs: dict[tuple[str, str], None] = {}
    for watched in workloads:
        for job, exporter in _exporters(watched):
            jobs[job, exporter.path] = None
            rows = targets.setdefault(f"targets/{_job_name(job, exporter.path)}.yaml", [])
            for pool in (job == "engine" and watched.meters.pools) or ("",):
                of_pool = {"pool": pool} if pool else {}
                rows.append(
                    {
                        "targets": list(_addresses(watched, job, exporter, machines, pool)),
                        "labels": {"workload": watched.name, **of_pool, "__meta_title": watched.title},
                    }
                )
    made = {
        "prometheus.yml": yaml_text(_configuration(jobs)),
        **{path: yaml_text(rows) for path, rows in targets.items()},
    }
    notes = ["rules.yaml of the target prometheus is in the same folder, and Alertmanager runs at localhost:9093"]
    if any(watched.meters.device is not None and watched.meters.device.name == "dcgm" for watched in workloads):
        made["dcgm-counters.csv"] = _counters(workloads[0])
        notes.append("dcgm-exporter runs on every machine with -f dcgm-counters.csv (DCGM_EXPORTER_COLLECTORS)")
    if any(watched.trains for watched in workloads):
        made[PROGRAM] = files("flopwise.exports").joinpath("programs", PROGRAM).read_text(encoding="utf-8")
        notes.append(
            f"the training program reports its progress with {PROGRAM}; without it, alerts on tokens cannot fire"
        )
    notes += [f"{watched.title}: {note}" for watched in workloads for note in _software_notes(watched)]
    return Files(
        files=made, assumptions=tuple(notes),
        apply=("promtool check config prometheus.yml",
               f"prometheus --config.file=prometheus.yml --storage.tsdb.retention.time={RETENTION}"),
    )  # fmt: skip


def _job_name(job: str, path: str) -> str:
    return job if path == "/metrics" else f"{job}-{path.strip('/').split('/')[0]}"


def _configuration(jobs: dict[tuple[str, str], None]) -> dict[str, Any]:
    scrapes = [
        {
            "job_name": _job_name(job, path), "scrape_interval": INTERVALS[job], "metrics_path": path,
            "file_sd_configs": [{"files": [f"targets/{_job_name(job, path)}.yaml"]}],
            **({"honor_labels": True} if job == "gpu" else {}),
            "relabel_configs": [{"target_label": "job", "replacement": job}],
        }
        for job, path in jobs
    ]  # fmt: skip
    return {
        "global": {"scrape_interval": "15s", "evaluation_interval": "1m"},
        "rule_files": ["rules.yaml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": ["localhost:9093"]}]}]},
        "scrape_configs": scrapes,
    }


def _exporters(watched: WatchedWorkload) -> Iterator[tuple[str, ExporterRecord]]:
    """(job, exporter) of a workload's devices, and of its engine or run."""
    for exporter in watched.meters.exporters:
        yield "gpu" if exporter.kind else "run" if watched.trains else "engine", exporter


def _addresses(
    watched: WatchedWorkload, job: str, exporter: ExporterRecord, machines: Sequence[str] | None, pool: str
) -> Iterator[str]:
    """Every machine for its devices; for engines a port for each replica on it; for a run the first machine.

    `pool`: of engines with separate servers for prompts, the pool.
    """
    hosts = machines or [f"{PLACEHOLDERS['machines']}-{n}" for n in range(1, watched.num_machines + 1)]
    deployment = watched.deployment
    if job == "gpu" or deployment is None:
        yield from (f"{host}:{exporter.port}" for host in hosts)
    elif job == "run":
        yield f"{hosts[0]}:{exporter.port}"
    elif pool:
        yield from addresses(deployment, pool, exporter.port)
    else:
        each = max(1, deployment.gpus_per_node // deployment.gpus_per_replica)
        for number in range(min(deployment.replicas, each * len(hosts) // deployment.nodes_per_replica)):
            host = hosts[number // each * deployment.nodes_per_replica]
            yield f"{host}:{exporter.port + number % each}"


def _counters(watched: WatchedWorkload) -> str:
    """The list of counters that dcgm-exporter sends: those that rules read."""
    lines = [
        f"{record.metric}, {record.kind}, {record.meaning.replace('_', ' ')}"
        for record in watched.facts.metric_records
        if record.exporter == "dcgm"
    ]
    return "\n".join(["# DCGM field, Prometheus type, help", *lines]) + "\n"


def _software_notes(watched: WatchedWorkload) -> Iterator[str]:
    software = watched.meters.software
    if software is not None and software.notes:
        yield f"{software.name} sends metrics {software.notes}"
    deployment = watched.deployment
    if watched.trains and deployment is not None and watched.estimate is not None:
        tokens = watched.estimate.tokens_per_s * watched.estimate.step_s
        yield f"a step has {tokens:,.0f} tokens: callback({tokens:.0f})"
