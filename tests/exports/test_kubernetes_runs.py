"""Runs, batches and queues on Kubernetes: their objects against the plan, and before the API server's rules."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from export_samples import WORKLOADS, expressible, sample_deployment, sample_export
from fleet_samples import FLEET, sample_fleet
from plans import BATCH, FINETUNE, PRETRAIN, deployment_of
from tools import RefusedError
from validators import kubernetes

from flopwise.exports.kubernetes import resources
from flopwise.exports.kubernetes_training import restarts, run_notes
from flopwise.exports.ray_cluster import launch_command
from flopwise.exports.targets import exported_assessment, exported_plan
from flopwise.exports.targets.indexed_job import shares
from flopwise.training.run import job_goodput

RUNS = ("job", "indexed-job", "pytorchjob", "trainjob", "jobset", "kueue", "rayjob", "raycluster")


def objects(target: str, sample: str, **settings: str) -> dict[str, dict[str, Any]]:
    """The objects of an export by kind and the end of their names, as the API server takes them."""
    made = sample_export(target, sample, **settings).files
    (text,) = (text for path, text in made.items() if path.endswith(".yaml"))
    return {one["kind"]: one for one in kubernetes(text)}


@pytest.mark.parametrize(("target", "sample"), [(t, s) for t in RUNS for s in WORKLOADS])
def test_the_api_server_takes_every_run(target: str, sample: str) -> None:
    if sample in expressible(target):
        assert objects(target, sample, namespace="runs", queue="research", priority="high", image="me/train:1")


def test_a_run_starts_again_as_often_as_its_machines_fail() -> None:
    calm, spot = deployment_of(FINETUNE), deployment_of(FINETUNE, {"purchase": "spot", "seconds_high": 1e8})
    assert restarts(calm) == 3  # hours on one device
    taken = spot.facts.spot("aws", "L40S").interruptions_per_s
    expected = 1e8 * (spot.candidate.num_gpus * 419 / (16384 * 54 * 86400) + spot.candidate.num_instances * taken)
    assert expected > 3
    assert restarts(spot) == math.ceil(expected + 3 * math.sqrt(expected))


def test_folders_are_as_large_as_what_lies_in_them() -> None:
    deployment = sample_deployment("pretrain")
    (text,) = sample_export("jobset", "pretrain").files.values()
    found = {one["metadata"]["name"]: one for one in kubernetes(text) if one["kind"] == "PersistentVolumeClaim"}
    sizes = {name: one["spec"]["resources"]["requests"]["storage"] for name, one in found.items()}
    assert deployment.training is not None
    stored = job_goodput(deployment.training)[0]
    assert sizes == {
        "base-8b-data": f"{math.ceil(100e9 * 4 / 2**30)}Gi",  # 128,256 words need four bytes
        "base-8b-output": f"{math.ceil(2 * stored / 2**30)}Gi",
    }
    assert {one["spec"]["accessModes"][0] for one in found.values()} == {"ReadWriteMany"}


def test_machines_of_a_set_meet_at_the_first() -> None:
    deployment, one = sample_deployment("pretrain"), objects("jobset", "pretrain", queue="research")["JobSet"]
    spec = one["spec"]
    (group,) = spec["replicatedJobs"]
    job = group["template"]["spec"]
    (main,) = job["template"]["spec"]["containers"]
    env = {part["name"]: part for part in main["env"]}
    assert job["parallelism"] == job["completions"] == deployment.num_nodes
    assert env["PET_MASTER_ADDR"]["value"] == "base-8b-node-0-0.base-8b"
    assert "completion-index" in env["PET_NODE_RANK"]["valueFrom"]["fieldRef"]["fieldPath"]
    words = main["command"]
    assert words[words.index("--nnodes") + 1] == str(deployment.num_nodes)
    assert words[words.index("--nproc-per-node") + 1] == str(deployment.gpus_per_node)
    assert main["resources"]["limits"]["nvidia.com/gpu"] == deployment.gpus_per_node
    assert one["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert spec["suspend"] is True


def test_roles_of_a_pytorchjob_are_the_machines() -> None:
    deployment, one = sample_deployment("pretrain"), objects("pytorchjob", "pretrain")["PyTorchJob"]
    roles = one["spec"]["pytorchReplicaSpecs"]
    assert sum(role["replicas"] for role in roles.values()) == deployment.num_nodes
    assert one["spec"]["nprocPerNode"] == str(deployment.gpus_per_node)
    alone = objects("pytorchjob", "lora")["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]
    assert set(alone) == {"Master"}


def test_a_trainjob_runs_on_the_runtime_beside_it() -> None:
    deployment, found = sample_deployment("pretrain"), objects("trainjob", "pretrain", image="me/train:1")
    job, runtime = found["TrainJob"]["spec"], found["TrainingRuntime"]
    assert job["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert job["trainer"]["numNodes"] == deployment.num_nodes
    assert job["trainer"]["numProcPerNode"] == deployment.gpus_per_node
    assert job["trainer"]["image"] == "me/train:1"
    (group,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert group["template"]["spec"]["template"]["spec"]["nodeSelector"] == {
        "node.kubernetes.io/instance-type": deployment.offer.instance
    }


def test_shares_of_a_batch_are_as_long_as_dalys_interval() -> None:
    calm = deployment_of(BATCH, {"purchase": "on_demand", "layout": {"replicas": 2}})
    assert shares(calm) == 2
    long = deployment_of(BATCH, {"seconds": 40 * 3600.0, "layout": {"replicas": 2}})
    assert shares(long) % 2 == 0
    assert 2 < shares(long) < 2 * 40 * 12
    (_, text), (_, script) = sorted(exported_plan("indexed-job", long).files.items())
    job = next(one for one in kubernetes(text) if one["kind"] == "Job")["spec"]
    assert (job["completions"], job["parallelism"]) == (shares(long), 2)
    assert f"count={shares(long)} " in script


def test_a_share_is_read_by_the_pod_of_its_number(tmp_path: Path) -> None:
    made = exported_plan("indexed-job", deployment_of(BATCH, {"seconds": 40 * 3600.0}, data=str(tmp_path)))
    job = next(one for one in kubernetes(made.files["indexed-job.yaml"]) if one["kind"] == "Job")["spec"]
    lines = [json.dumps({"custom_id": str(n)}) for n in range(3 * job["completions"])]
    (tmp_path / "requests.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "split.sh").write_text(made.files["split-requests.sh"])
    subprocess.run(["bash", "split.sh", "requests.jsonl", str(tmp_path)], cwd=tmp_path, check=True)  # noqa: S607
    shared = sorted(tmp_path.glob("requests-*.jsonl"))
    assert len(shared) == job["completions"]
    assert sorted(line for path in shared for line in path.read_text().splitlines()) == sorted(lines)
    (main,) = job["template"]["spec"]["containers"]
    env = {part["name"]: part for part in main["env"]}
    assert env["DATA"]["value"] == str(tmp_path)
    assert "completion-index" in env["REPLICA"]["valueFrom"]["fieldRef"]["fieldPath"]


def test_quotas_are_what_the_machines_have() -> None:
    deployment, found = sample_deployment("pretrain"), objects("kueue", "pretrain", queue="research")
    (group,) = found["ClusterQueue"]["spec"]["resourceGroups"]
    quotas = {one["name"]: one["nominalQuota"] for one in group["flavors"][0]["resources"]}
    assert quotas["nvidia.com/gpu"] == deployment.candidate.num_gpus
    (main,) = objects("jobset", "pretrain")["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"][
        "spec"
    ]["containers"]  # fmt: skip
    asked = main["resources"]["requests"]
    assert int(quotas["cpu"][:-1]) == deployment.num_nodes * int(asked["cpu"][:-1])
    assert int(quotas["memory"][:-2]) == deployment.num_nodes * int(asked["memory"][:-2])
    assert found["LocalQueue"]["metadata"]["name"] == "research"
    assert found["LocalQueue"]["spec"]["clusterQueue"] == found["ClusterQueue"]["metadata"]["name"]


def test_environments_of_a_fleet_are_queues_that_lend() -> None:
    fleet = sample_fleet()
    found = kubernetes(exported_assessment("kueue", fleet).files["kueue.yaml"])
    queues = [one for one in found if one["kind"] == "ClusterQueue"]
    environments = {workload["environment"] for workload in FLEET["workloads"]}
    assert {one["metadata"]["annotations"]["flopwise.dev/title"] for one in queues} <= environments
    assert len(queues) > 1
    assert {one["spec"]["cohortName"] for one in queues} == {fleet.name}
    flavors = {one["metadata"]["name"] for one in found if one["kind"] == "ResourceFlavor"}
    total = 0
    for queue in queues:
        for group in queue["spec"]["resourceGroups"]:
            assert {flavor["name"] for flavor in group["flavors"]} <= flavors
            total += sum(
                one["nominalQuota"]
                for f in group["flavors"]
                for one in f["resources"]
                if one["name"] == "nvidia.com/gpu"
            )
    rows = [(row, part) for workload in fleet.workloads for row, part in workload.parts]
    assert total == sum(row.count * part.gpus_per_node for row, part in rows)


def test_ray_starts_the_command_of_the_plan_on_each_machine() -> None:
    deployment, found = sample_deployment("pretrain"), objects("rayjob", "pretrain")
    spec = found["RayJob"]["spec"]
    (workers,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert workers["replicas"] == deployment.num_nodes
    held = found["ConfigMap"]["data"]
    (main,) = workers["template"]["spec"]["containers"]
    (volume,) = (one for one in workers["template"]["spec"]["volumes"] if one["name"] == "files")
    paths = {item["path"]: held[item["key"]] for item in volume["configMap"]["items"]}
    folder = next(mount["mountPath"] for mount in main["volumeMounts"] if mount["name"] == "files")
    assert spec["entrypoint"] == f"python {folder}/ray_launch.py"
    asked = json.loads(paths["ray_launch.json"])
    assert asked["parts"] == deployment.num_nodes
    assert asked["resources"]["GPU"] == deployment.gpus_per_node
    assert asked["args"][0] == "torchrun"
    assert main["resources"]["limits"]["nvidia.com/gpu"] == deployment.gpus_per_node


@pytest.mark.parametrize("fails", [False, True])
def test_the_launcher_tells_each_part_its_number_and_ends_with_the_first_failure(
    tmp_path: Path, *, fails: bool
) -> None:
    """With a stand-in for Ray that runs an actor's methods at once, in this process."""
    (tmp_path / "ray" / "util").mkdir(parents=True)
    (tmp_path / "ray" / "__init__.py").write_text(STAND_IN)
    (tmp_path / "ray" / "util" / "__init__.py").write_text("def get_node_ip_address():\n    return '10.0.0.7'\n")
    (tmp_path / "ray" / "util" / "placement_group.py").write_text(
        "class Group:\n    def ready(self):\n        return True\n\n\ndef placement_group(bundles, strategy):\n"
        "    assert bundles and strategy == 'STRICT_SPREAD'\n    return Group()\n"
    )
    (tmp_path / "ray" / "util" / "scheduling_strategies.py").write_text(
        "def PlacementGroupSchedulingStrategy(group, placement_group_bundle_index):\n    return group\n"
    )
    files = dict(launch_command(sample_deployment("pretrain")).files)
    code = f"import os; open(os.environ['PET_NODE_RANK'], 'w').write(os.environ['PET_MASTER_ADDR']); exit({3 * fails})"
    plan = json.loads(files["ray_launch.json"]) | {"args": [sys.executable, "-c", code]}
    (tmp_path / "ray_launch.py").write_text(files["ray_launch.py"])
    (tmp_path / "ray_launch.json").write_text(json.dumps(plan))
    done = subprocess.run(
        [sys.executable, "ray_launch.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=False
    )
    assert done.returncode == 3 * fails
    assert {path.name: path.read_text() for path in tmp_path.glob("[0-9]*")} == dict.fromkeys("01", "10.0.0.7")


STAND_IN = '''"""Just enough of Ray."""
from ray import util


def init():
    pass


def get(value):
    return value


def wait(running, num_returns):
    return running[:1], running[1:]


class Method:
    def __init__(self, call):
        self.remote = call


class Actor:
    def __init__(self, one):
        self.one = one

    def __getattr__(self, name):
        return Method(getattr(self.one, name))


def remote(kind):
    class Maker:
        @staticmethod
        def options(**_):
            return Method(lambda: Actor(kind()))

    return Maker
'''


@pytest.mark.parametrize(
    ("target", "old", "new"),
    [
        ("job", "restartPolicy: Never", "restartPolicy: Always"),
        ("indexed-job", "completionMode: Indexed", "completionMode: Numbered"),
        ("pytorchjob", "pytorchReplicaSpecs:", "replicaSpecs:"),
        ("trainjob", "numNodes:", "nodes:"),
        ("jobset", "replicatedJobs:", "jobs:"),
        ("kueue", "nominalQuota:", "quota:"),
        ("rayjob", "entrypoint:", "command:"),
        ("raycluster", "groupName:", "name:"),
    ],
)
def test_a_fault_is_refused(target: str, old: str, new: str) -> None:
    made = sample_export(target, expressible(target)[0]).files
    (text,) = (text for path, text in made.items() if path.endswith(".yaml"))
    assert old in text
    with pytest.raises(RefusedError):
        kubernetes(text.replace(old, new))


def test_runs_of_several_machines_take_the_efa_cards_of_each() -> None:
    """p5.48xlarge has 32 network cards, each with one EFA; a run on one machine needs none."""
    several = deployment_of(PRETRAIN | {"targets": {"deadline": "5d"}})
    assert (several.offer.instance, several.num_nodes > 1) == ("p5.48xlarge", True)
    (pod,) = [resources(several, 8)]
    assert pod["limits"]["vpc.amazonaws.com/efa"] == pod["requests"]["vpc.amazonaws.com/efa"] == 32
    assert any("32 vpc.amazonaws.com/efa" in note for note in run_notes(several))
    assert not [key for key in resources(deployment_of(FINETUNE), 1)["limits"] if "efa" in key]
