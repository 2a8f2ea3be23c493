"""A bundle holds what its parts hold, says what is applied in which order, and its overlays build."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pytest
import yaml
from export_samples import sample_export
from fleet_samples import sample_fleet
from kubernetes_api import kubernetes
from validators import shell

import flopwise
from flopwise.errors import InfeasibleError, SpecError
from flopwise.exports.emit import markdown_text, yaml_text
from flopwise.exports.exported import Exported
from flopwise.exports.fleet import FleetDeployment
from flopwise.exports.spec import ExportSettings
from flopwise.exports.targets import exported_assessment
from flopwise.exports.targets.bundle import ENVIRONMENTS
from flopwise.facts.catalog import load_facts
from flopwise.fleet.assess import assess
from flopwise.fleet.read import fleet_of

FLEET = {
    "name": "two places",
    "workloads": [
        {"name": "chat", "task": "serve", "model": "Llama-3.1-8B", "environment": "production",
         "traffic": {"requests_per_s": 20, "input_tokens": 500, "output_tokens": 100},
         "constraints": {"gpus": ["l40s"], "providers": ["aws"]}},
        {"name": "trial", "task": "serve", "model": "Llama-3.1-8B", "environment": "staging",
         "traffic": {"requests_per_s": 1, "input_tokens": 500, "output_tokens": 100},
         "constraints": {"gpus": ["l4"], "providers": ["gcp"]}},
        {"name": "tuning", "task": "finetune", "model": "Llama-3.1-8B", "environment": "training", "runs_per_month": 4,
         "data": {"tokens": "20M", "seq_len": 2048, "global_batch": 64}, "method": {"kind": "lora"},
         "constraints": {"gpus": ["l40s"], "providers": ["aws"]}},
    ],
}  # fmt: skip


@cache
def _fleet() -> Exported:
    answer = assess(fleet_of(FLEET), load_facts(), scenarios=0, today="2026-11-22")
    fleet = FleetDeployment.of(answer.assessment, answer.plans, load_facts(), ExportSettings())
    return exported_assessment("bundle", fleet)


def _built(files: Mapping[str, str], folder: str) -> list[dict[str, Any]]:
    """What `kubectl kustomize FOLDER` builds, as far as resources, namespace, labels and JSON patches go."""
    rules = yaml.safe_load(files[f"{folder}/kustomization.yaml"])
    objects = list[dict[str, Any]]()
    for resource in rules["resources"]:
        path = os.path.normpath(f"{folder}/{resource}")
        below = f"{path}/kustomization.yaml" in files
        objects += _built(files, path) if below else list(yaml.safe_load_all(files[path]))
    for patch in rules.get("patches", []):
        named = [
            o
            for o in objects
            if (o["kind"], o["metadata"]["name"]) == (patch["target"]["kind"], patch["target"]["name"])
        ]
        assert named, patch
        for one in named:
            for step in yaml.safe_load(patch["patch"]):
                *above, last = PurePosixPath(step["path"]).parts[1:]
                place = one
                for part in above:
                    place = place[part]
                assert step["op"] == "replace"
                assert last in place, "only what is there can be replaced"
                place[last] = step["value"]
    for one in objects:
        if "namespace" in rules and one["kind"] not in {"Namespace", "ClusterQueue", "ResourceFlavor"}:
            one["metadata"]["namespace"] = rules["namespace"]
        for label in rules.get("labels", []):
            one["metadata"].setdefault("labels", {}).update(label["pairs"])
    return objects


def _overlays(files: Mapping[str, str]) -> Iterator[str]:
    return (
        path.removesuffix("/kustomization.yaml")
        for path in files
        if path.startswith("overlays/") and path.endswith("/kustomization.yaml")
    )


@pytest.mark.parametrize("sample", ["serve", "serve-gcp", "serve-nodes", "pretrain", "lora", "batch"])
def test_overlays_build_and_leave_production_as_planned(sample: str) -> None:
    files = sample_export("bundle", sample).files
    found = {overlay: _built(files, f"overlays/{overlay}") for overlay in ENVIRONMENTS}
    names = {
        overlay: next(o for o in objects if o["kind"] == "Namespace")["metadata"]["name"]
        for overlay, objects in found.items()
    }
    assert len(set(names.values())) == 3
    for overlay, objects in found.items():
        kubernetes(yaml_text(*objects))
        assert {o["metadata"].get("namespace", names[overlay]) for o in objects} == {names[overlay]}
        assert all(o["metadata"]["labels"]["flopwise.dev/environment"] == overlay for o in objects)
        assert len({(o["kind"], o["metadata"]["name"]) for o in objects}) == len(objects), "no object stands twice"
    base = _built(files, "kubernetes")  # as it is planned
    planned = {
        o["metadata"]["name"]: o["spec"]["replicas"] for o in base if o["kind"] in {"Deployment", "LeaderWorkerSet"}
    }
    for overlay, objects in found.items():
        made = {
            o["metadata"]["name"]: o["spec"]["replicas"]
            for o in objects
            if o["metadata"]["name"] in planned and "replicas" in o.get("spec", {})
        }
        assert made == (planned if overlay == "production" else dict.fromkeys(planned, 1))


@pytest.mark.parametrize(
    ("target", "place"),
    [
        ("vllm", "run/vllm"), ("kubernetes", "kubernetes"), ("prometheus", "monitoring/prometheus"),
        ("grafana", "monitoring/grafana"), ("terraform-aws", "infrastructure/terraform-aws"), ("skypilot", "skypilot"),
        ("load-test", "load/load-test"), ("budgets", "budgets"),
    ],
)  # fmt: skip
def test_a_bundle_holds_the_files_of_its_parts(target: str, place: str) -> None:
    files, part = sample_export("bundle", "serve").files, sample_export(target, "serve").files
    assert {path: files.get(f"{place}/{path}") for path in part} == dict(part)


def test_what_no_target_can_express_is_listed_with_the_reason() -> None:
    missing = sample_export("bundle", "serve").files["README.md"].partition("## Left out")[2]
    with pytest.raises(InfeasibleError) as refused:
        sample_export("prompt-cache", "serve")
    assert f"kubernetes: prompt-cache: {markdown_text(refused.value.reasons[0])}" in missing


def test_make_knows_every_step_in_order(tmp_path: Path) -> None:
    made = sample_export("bundle", "serve")
    for path, text in made.files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    make = shutil.which("make")
    assert make
    for step in made.apply:
        shown = subprocess.run(
            [make, "-n", *step.split()[1:]], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert shown.stdout.strip(), step
    assert list(made.apply[1:4]) == ["make infrastructure", "make queues", "make kubernetes"]
    assert "kubectl apply -k overlays/production" in made.files["steps/kubernetes.sh"]
    for path, text in made.files.items():
        if path.startswith("steps/"):
            shell(text)


def test_a_fleet_has_a_folder_for_each_environment_and_one_place_to_watch() -> None:
    files = _fleet().files
    assert {PurePosixPath(p).parts[1] for p in files if p.startswith("environments/")} == {
        "production",
        "staging",
        "training",
    }
    for overlay in _overlays(files):
        assert _built(files, overlay)
    rules = [path for path in files if path.endswith("rules.yaml")]
    assert rules
    assert all(path.startswith("monitoring/") for path in rules)
    boards = [path for path in files if path.startswith("monitoring/grafana/") and path.endswith(".json")]
    assert [len(json.loads(files[path])["panels"]) > len(FLEET["workloads"]) for path in boards] == [True]
    assert any(p.startswith("environments/production/infrastructure/terraform-aws/") for p in files)
    assert any(p.startswith("environments/staging/infrastructure/terraform-gcp/") for p in files)
    assert not any(p.startswith("environments/staging/infrastructure/terraform-aws/") for p in files)


def test_machines_that_carry_part_of_a_service_have_as_many_replicas_as_the_bill() -> None:
    """Beside other machines a service has fewer of a kind than its plan, which carries it alone: here three for one."""
    fleet = sample_fleet()
    [(row, alone)] = next(w.parts for w in fleet.workloads if w.result.name == "chat")
    others = [one for one in fleet.assessment.allocation if one is not row]
    bill = msgspec.structs.replace(
        fleet.assessment, allocation=[*others, msgspec.structs.replace(row, count=3 * row.count)]
    )
    planned = {w.result.name: w.parts[0][1].plan for w in fleet.workloads}
    made = FleetDeployment.of(bill, planned, fleet.facts, fleet.settings)
    [(_, part)] = next(w.parts for w in made.workloads if w.result.name == "chat")
    assert (part.replicas, part.num_nodes) == (3 * alone.replicas, 3 * alone.num_nodes)
    assert (part.gpus_per_node, part.gpus_per_replica) == (alone.gpus_per_node, alone.gpus_per_replica)
    for one in ("cost_usd", "usd_per_hour", "energy_joules"):
        assert getattr(part.candidate, one) == pytest.approx(3 * getattr(alone.candidate, one))
    capacities = [d.candidate.figures["requests_per_s_capacity"] for d in (part, alone)]
    assert None not in capacities
    assert capacities[0] == pytest.approx(3 * (capacities[1] or 0.0))
    assert part.candidate.seconds == alone.candidate.seconds
    assert part.workload.requests_per_s == pytest.approx(3 * 2)  # each replica has the load that it is planned for
    files = exported_assessment("kubernetes", made).files
    [text] = [text for name, text in files.items() if name.startswith("chat/")]
    assert next(yaml.safe_load_all(text))["spec"]["replicas"] == 3 * alone.replicas


def test_a_fleet_is_the_same_byte_for_byte() -> None:
    one = _fleet()
    _fleet.cache_clear()
    assert _fleet() == one


def test_an_assessment_is_exported_from_the_folder_of_its_report() -> None:
    with pytest.raises(SpecError, match="folder of its report"):
        flopwise.export("bundle", sample_fleet().assessment)
