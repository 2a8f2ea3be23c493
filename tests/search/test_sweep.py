"""Sweeps: what a file stands for, and the same plans wherever they are made."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml

import flopwise
from flopwise import cli
from flopwise.errors import SpecError
from flopwise.search.sweep import ENGINES, Sweep, points, schema

ROOT = Path(__file__).parents[2]
BASE: dict[str, Any] = {
    "model": "gpt2",
    "task": "finetune",
    "data": {"tokens": "10M", "seq_len": 1024},
    "constraints": {"gpus": ["h100", "l4"], "max_gpus": 16},
}
VARIED = {
    **BASE,
    "sweep": {"model": ["gpt2", "Llama-3.2-1B"], "gpus": ["a100-80gb", "h100"], "budget": [1, "$1k"]},
}


def plain(sweep: Sweep) -> list[Any]:
    """A sweep without what a clock says."""
    found: list[Any] = msgspec.to_builtins(sweep.planned)
    for one in found:
        if one["plan"] is not None:
            del one["plan"]["elapsed_s"]
    return found


progress: list[tuple[int, int]] = []


@pytest.fixture(scope="module")
def inline() -> Sweep:
    """The varied workload's plans, made in this process; its progress goes to `progress`."""
    progress.clear()
    return flopwise.sweep(VARIED, advance=lambda done, whole: progress.append((done, whole)))


def test_every_combination_is_a_workload() -> None:
    found = points(VARIED)
    assert found is not None
    assert len(found) == 8
    assert [p.workload.model for p in found] == ["gpt2"] * 4 + ["Llama-3.2-1B"] * 4
    assert found[1].varied == {"model": "gpt2", "gpus": "a100-80gb", "budget": "$1k"}
    assert found[1].workload.budget_usd == 1000
    assert found[1].workload.limits.gpus == ("a100-80gb",)
    assert found[1].workload.max_gpus == 16
    assert found[1].name == "model gpt2, gpus a100-80gb, budget $1k"


def test_a_list_of_workloads_and_changes_over_each() -> None:
    listed = [BASE, {**BASE, "name": "second", "model": "gpt2-medium"}]
    for data in (listed, {"workloads": listed}):
        found = points(data, changes={"targets": {"budget": 7}})
        assert found is not None
        assert [p.name for p in found] == ["gpt2", "second"]
        assert [p.workload.budget_usd for p in found] == [7, 7]


def test_a_single_workload_is_no_sweep() -> None:
    assert points(BASE) is None
    with pytest.raises(SpecError, match="a single workload is not a sweep"):
        flopwise.sweep(BASE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sweep: {modle: [gpt2]}", r"modle: allowed: .*nearest: model"),
        ("sweep: {model: gpt2}", "sweep.model: expected a list of 1 to 1,000 values"),
        ("sweep: {budget: []}", "sweep.budget: expected a list of 1 to"),
        ("sweep: {model: []}", "sweep.model: expected a list of 1 to"),
        ("sweep: []", "`sweep` is a mapping"),
        ("workloads: {}", "`workloads` is a list"),
        ("workloads: []", "at least one"),
        ("[]", "at least one"),
        ("[1]", "workload 1 is a mapping"),
        ("{task: pretrain, workloads: [{model: gpt2, task: pretrain}]}", "'task' stands next to `workloads`"),
        ("{name: ours, workloads: [{name: a, model: gpt2}]}", "if this is a fleet, ask `flopwise assess`"),
        ("workloads: [{model: gpt2, task: pretrain}]", "workload 1: data: a pretrain workload needs"),
        ("task: pretrain\nmodel: gpt2\nsweep: {tokens: [1M, -3]}", "data.tokens"),
        ("task: pretrain\nsweep: {model: [gpt2], tokens: [1M], bugdet: [3]}", "nearest: budget"),
        (f"{{task: pretrain, sweep: {{seq_len: {list(range(1, 200))}, tokens: {list(range(1, 200))}}}}}", "39,601"),
    ],
)
def test_bad_sweeps_are_told_where_they_are_wrong(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError, match=message) as caught:
        points(file)
    assert str(caught.value).startswith(str(file))


def test_schema_is_the_published_one_and_takes_the_example() -> None:
    published = json.loads((ROOT / "docs" / "sweep.schema.json").read_text(encoding="utf-8"))
    assert published == schema()
    check = jsonschema.Draft202012Validator(published)
    check.validate(yaml.safe_load((ROOT / "examples" / "sweep.yaml").read_text(encoding="utf-8")))
    check.validate(VARIED)
    check.validate([BASE])
    check.validate({"workloads": [BASE]})
    unknown: dict[str, Any] = {**VARIED, "sweep": {"nothing": [1]}}
    wrong: dict[str, Any]
    for wrong in (BASE, {"workloads": []}, unknown, {"sweep": {"model": ["gpt2"]}}):
        assert not check.is_valid(wrong), wrong


def test_plans_are_those_of_single_workloads(inline: Sweep) -> None:
    assert progress == [(i, 8) for i in range(1, 9)]
    expanded = points(VARIED)
    assert expanded is not None
    for one, point in zip(inline.planned, expanded, strict=True):
        alone = flopwise.plan(point.workload)
        assert one.plan is not None
        assert one.plan.plans == alone.plans
        assert one.plan.front == alone.front
    assert inline.num_evaluated == sum(p.plan.evaluated for p in inline.planned if p.plan is not None)


def test_what_cannot_be_is_told_and_the_others_are_planned() -> None:
    found = flopwise.sweep([{**BASE, "model": "no-such-model"}, BASE, {**BASE, "precision": "fp8", "optimizer": "x"}])
    assert [p.plan is None for p in found.planned] == [True, False, True]
    assert "no-such-model" in found.planned[0].reasons[0]
    assert "optimizer" in found.planned[2].reasons[0]


def test_processes_give_the_same_plans(inline: Sweep) -> None:
    there = flopwise.sweep(VARIED, engine="processes", workers=2)
    assert there.engine == "processes"
    assert plain(inline) == plain(there)


def test_unknown_engines_addresses_and_a_missing_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="a sweep runs on inline, processes, ray"):
        flopwise.sweep([BASE], engine="slurm")
    with pytest.raises(SpecError, match="address is of a Ray cluster"):
        flopwise.sweep([BASE], address="10.0.0.1:6379")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SpecError, match=r"pip install 'flopwise\[ray\]'"):
        flopwise.sweep([BASE], engine="ray")
    assert set(ENGINES) == {"inline", "processes", "ray"}


def test_what_runs_a_sweep_is_no_part_of_its_workloads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(json.dumps([BASE]), encoding="utf-8")
    assert cli.main(["plan", str(file), "--address", "10.0.0.1:6379", "--workers", "2", "--engine", "inline"]) == 2
    assert "address is of a Ray cluster" in capsys.readouterr().err


ON_RAY = """
import json, os, sys
import flopwise, msgspec
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
try:
    for _ in range(2):
        cluster.add_node(num_cpus=1, include_dashboard=False)
    cluster.wait_for_nodes()
    data = json.loads(sys.argv[1])
    found = flopwise.sweep(data, engine="ray", address=cluster.address)
    print("ANSWER" + msgspec.json.encode(found).decode())
finally:
    cluster.shutdown()
"""


EAGER = {**os.environ, "RAY_worker_niceness": "0"}
"""Ray's workers give way to every other process (nice 15), and would wait for the tests of the other core."""


@pytest.mark.oracle
def test_a_ray_cluster_of_three_workers_gives_the_same_plans(tmp_path: Path, inline: Sweep) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ON_RAY, json.dumps(VARIED)],
        check=False,
        capture_output=True,
        text=True,
        timeout=500,
        cwd=tmp_path,
        env=EAGER,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    there = msgspec.json.decode(done.stdout.partition("ANSWER")[2], type=Sweep)
    assert there.engine == "ray"
    assert plain(there) == plain(inline)


@pytest.mark.oracle
def test_no_cluster_at_the_address_is_said(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flopwise", "plan", str(ROOT / "examples" / "sweep.yaml"), "--engine", "ray",
         "--address", "127.0.0.1:1"],
        check=False, capture_output=True, text=True, timeout=500, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr[-3000:]
    assert "no Ray cluster answers at 127.0.0.1:1" in done.stderr
