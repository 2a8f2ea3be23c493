"""SkyPilot: its own reader takes the tasks, and knows the names of accelerators."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from typing import Any

import pytest
import yaml
from export_samples import WORKLOADS, expressible, sample_deployment, sample_export
from skypilot import skypilot
from tools import RefusedError

from flopwise.exports.targets.skypilot import ACCELERATORS, CLOUDS, OWN_NAMES
from flopwise.search.spec import SERVING, TRAINING

NAMES = (
    "A10", "A100", "A100-80GB", "A100-80GB-SXM", "A10G", "A16", "A30", "A40", "A4000", "A5000", "A6000", "A800",
    "B200", "B300", "GH200", "H100", "H100-MEGA", "H100-NVL", "H100-NVLINK", "H100-SXM", "H200", "H200-SXM", "K80",
    "L4", "L40", "L40S", "M4000", "M60", "MI300X", "P100", "P4", "P4000", "RTX2000-Ada", "RTX3060", "RTX3090",
    "RTX4000-Ada", "RTX4060", "RTX4070", "RTX4090", "RTX5070", "RTX5090", "RTX5880-Ada", "RTX6000", "RTX6000-Ada",
    "RTX6000Ada", "RTXA4000", "RTXA4500", "RTXA5000", "RTXA6000", "RTXPRO6000", "T4", "T4g", "V100", "V100-32GB",
    "tpu-v5p", "tpu-v6e",
)  # fmt: skip
"""Source: skypilot-org/skypilot-catalog, catalogs/v8/common/accelerators.csv @d4d53f0."""


@cache
def document(sample: str, **settings: str) -> dict[str, Any]:
    """The task of a sample plan."""
    whole: dict[str, Any] = yaml.safe_load(sample_export("skypilot", sample, **settings).files["task.yaml"])
    return whole


@pytest.mark.exports
def test_skypilot_reads_every_task_and_refuses_others() -> None:
    for sample in expressible("skypilot"):
        text = sample_export("skypilot", sample).files["task.yaml"]
        skypilot(text)
        with pytest.raises(RefusedError):
            skypilot(text.replace("num_nodes:", "number_of_nodes:"))


def test_a_task_has_the_machines_of_the_plan() -> None:
    for sample in expressible("skypilot"):
        deployment, task = sample_deployment(sample), document(sample)
        candidate, serves = deployment.candidate, deployment.task in {"serve", "encode"}
        assert ("service" in task) == serves
        assert task["num_nodes"] == (deployment.nodes_per_replica if serves else deployment.num_nodes)
        count = task["service"]["replica_policy"]["min_replicas"] if serves else 1
        assert task["num_nodes"] * count == candidate.num_instances
        first = (task["resources"].get("any_of") or [task["resources"]])[0]
        assert first["infra"] == f"{candidate.provider}/{candidate.region}"
        assert first["instance_type"] == candidate.instance
        assert first["accelerators"] == f"{ACCELERATORS[candidate.gpu]}:{deployment.gpus_per_node}"
        assert first["use_spot"] == (candidate.purchase == "spot")


def test_names_of_accelerators_are_in_the_catalog() -> None:
    assert {*ACCELERATORS.values(), *OWN_NAMES.values()} <= set(NAMES)
    assert {provider for provider, _ in OWN_NAMES} <= set(CLOUDS)


def test_a_spot_run_recovers_and_its_buckets_are_mounted() -> None:
    task = document("pretrain-spot", data="s3://corpus/tokens", output="gs://mine/run")
    resources = task["resources"]
    assert resources["job_recovery"] == {"strategy": "EAGER_NEXT_REGION"}
    places = resources.get("any_of", [resources])
    assert any(place["use_spot"] for place in places)
    assert task["file_mounts"] == {
        "/flopwise-data": {"source": "s3://corpus/tokens", "mode": "MOUNT"},
        "/flopwise-output": {"source": "gs://mine/run", "mode": "MOUNT_CACHED"},
    }
    assert "PET_MASTER_ADDR" in task["run"]


def test_replicas_of_one_machine_have_a_port_and_devices_each() -> None:
    deployment, task = sample_deployment("serve"), document("serve")
    packed = deployment.gpus_per_node // deployment.gpus_per_replica
    assert packed > 1
    exported = sample_export("skypilot", "serve")
    servers = re.findall(r"server 127\.0\.0\.1:(\d+);", exported.files["nginx.conf"])
    port = task["resources"]["ports"]
    assert servers == [str(port + 1 + slot) for slot in range(packed)]
    assert f'--port "$(({port} + 1 + slot))"' in task["run"]
    each = deployment.gpus_per_replica
    devices = f'CUDA_VISIBLE_DEVICES="$(seq -s, "$((slot * {each}))" "$((slot * {each} + {each - 1}))")"'
    assert devices in task["run"]
    assert task["secrets"] == {"HF_TOKEN": ""}
    done = subprocess.run(["bash", "-n"], input=task["run"], capture_output=True, text=True, check=False)  # noqa: S607
    assert done.returncode == 0, done.stderr


def test_other_candidates_of_the_layout_will_do() -> None:
    for sample in set(expressible("skypilot")) & {"lora", "serve-gcp", "batch"}:
        deployment = sample_deployment(sample)
        layout, count = deployment.candidate.layout, deployment.candidate.num_instances
        alike = [c for c in deployment.plan.plans if c.layout == layout and c.num_instances == count]
        resources = document(sample)["resources"]
        assert len(resources.get("any_of", [resources])) <= len(alike)


def test_every_kind_of_task_is_expressed() -> None:
    assert {WORKLOADS[sample]["task"] for sample in expressible("skypilot")} == {*TRAINING, *SERVING}
