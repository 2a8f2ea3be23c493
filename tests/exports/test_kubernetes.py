"""Parts of pods: nodes by the labels of each provider, resources, volumes and text as it was given."""

from __future__ import annotations

from typing import Any

import pytest
from plans import BATCH, ENCODE, FINETUNE, SERVE, constrained, deployment_of

from flopwise.exports import kubernetes
from flopwise.exports.command import Command

COMMAND = Command(args=("vllm", "serve", "$(HOME) $x"), env={"A": "$(B)"}, secret_env={"HF_TOKEN": "weights_secret"})
H100 = constrained(FINETUNE, gpus=["H100"])


@pytest.mark.parametrize(
    ("document", "labels"),
    [
        (SERVE, {"node.kubernetes.io/instance-type": "g6e.xlarge"}),
        (BATCH, {"cloud.google.com/gke-accelerator": "nvidia-l4", "node.kubernetes.io/instance-type": None}),
        (constrained(H100, providers=["azure"]), {"node.kubernetes.io/instance-type": None}),
        (constrained(H100, providers=["crusoe"]), {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}),
    ],
)
def test_nodes_by_the_labels_of_the_provider(document: dict[str, Any], labels: dict[str, str | None]) -> None:
    deployment = deployment_of(document)
    wanted = {key: value or deployment.offer.instance for key, value in labels.items()}
    assert kubernetes.placement(deployment)["nodeSelector"] == wanted


def test_gpus_added_to_a_machine_are_no_part_of_its_type() -> None:
    deployment = deployment_of(
        constrained(BATCH, gpus=["T4"], purchase=["on_demand"], include_retired=True) | {"targets": {"deadline": "24h"}}
    )
    assert "+" in deployment.offer.instance
    assert kubernetes.node_labels(deployment)["node.kubernetes.io/instance-type"].startswith("n1-standard-")
    assert "+" not in kubernetes.node_labels(deployment)["node.kubernetes.io/instance-type"]


def test_spot_is_asked_for_by_either_label_and_else_kept_away_from() -> None:
    spot = {"key": "eks.amazonaws.com/capacityType", "operator": "In", "values": ["SPOT"]}
    karpenter = {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}

    def terms(purchase: str) -> Any:
        rule = kubernetes.placement(deployment_of(SERVE, {"purchase": purchase}))["affinity"]["nodeAffinity"]
        return rule["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]

    assert terms("spot") == [{"matchExpressions": [spot]}, {"matchExpressions": [karpenter]}]
    assert terms("on_demand") == [
        {"matchExpressions": [spot | {"operator": "NotIn"}, karpenter | {"operator": "NotIn"}]}
    ]


def test_taints_are_tolerated_as_the_nodes_have_them() -> None:
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    spot = {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
    assert kubernetes.placement(deployment_of(SERVE))["tolerations"] == [gpu]
    assert kubernetes.placement(deployment_of(BATCH))["tolerations"] == [gpu, spot]
    assert "tolerations" not in kubernetes.placement(deployment_of(ENCODE))


def test_a_node_keeps_what_gke_keeps() -> None:
    deployment = deployment_of(SERVE)  # g6e.xlarge: 4 CPUs, 32 GiB
    there = kubernetes.allocatable(deployment)
    assert there is not None
    cpus, memory = there
    gib = 1024**3
    assert cpus == pytest.approx(4 - (0.06 + 0.01 + 2 * 0.005) - 0.5)
    kept = 0.25 * 4 + 0.2 * 4 + 0.1 * 8 + 0.06 * 16
    assert memory == pytest.approx((32 - kept - 1) * gib - 100 * 1024**2)


def test_a_pod_has_its_devices_and_their_share_of_the_node() -> None:
    deployment = deployment_of(H100)
    each = deployment.gpus_per_node
    whole, part = kubernetes.resources(deployment, each), kubernetes.resources(deployment, 1)
    assert whole["limits"]["nvidia.com/gpu"] == whole["requests"]["nvidia.com/gpu"] == each
    assert part["limits"]["nvidia.com/gpu"] == 1
    assert int(part["requests"]["cpu"][:-1]) == pytest.approx(int(whole["requests"]["cpu"][:-1]) / each, abs=1)
    assert "cpu" not in whole["limits"]
    assert set(kubernetes.resources(deployment_of(ENCODE), 1)["limits"]) == {"memory"}


def test_text_is_no_reference_and_secrets_are() -> None:
    one = kubernetes.container(deployment_of(SERVE, weights_secret="hub"), COMMAND, 1)
    assert one["command"] == ["vllm", "serve", "$$(HOME) $$x"]
    assert one["env"][0] == {"name": "A", "value": "$$(B)"}
    reference = {"name": "hub", "key": "token", "optional": True}
    assert one["env"][1] == {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}}
    assert one["image"] == "change-me-image"
    assert kubernetes.container(deployment_of(SERVE, image="a/b:1"), COMMAND, 1)["image"] == "a/b:1"


def test_files_of_a_command_lie_in_its_working_folder() -> None:
    command = Command(args=("a",), files={"conf/x.toml": "x = 1\n", "run.py": "1\n"})
    deployment = deployment_of(SERVE)
    spec = kubernetes.pod(deployment, command, 1)
    (held,) = kubernetes.config_map(deployment, command)
    (volume,) = [v for v in spec["volumes"] if v["name"] == "files"]
    items = {item["path"]: held["data"][item["key"]] for item in volume["configMap"]["items"]}
    assert items == dict(command.files)
    assert volume["configMap"]["name"] == held["metadata"]["name"]
    (main,) = spec["containers"]
    assert {"name": "files", "mountPath": main["workingDir"]} in main["volumeMounts"]


def test_folders_are_claims_and_hub_ids_are_not() -> None:
    deployment = deployment_of(FINETUNE, data="/sets/mine", output="s3://bucket/out")
    made = kubernetes.claims(deployment, {"data": 3.2 * 1024**3})
    assert [c["metadata"]["name"] for c in made] == ["assistant-data"]
    assert made[0]["spec"]["resources"]["requests"]["storage"] == "4Gi"
    mounts = kubernetes.container(deployment, COMMAND, 1)["volumeMounts"]
    assert {"name": "data", "mountPath": "/sets/mine"} in mounts
    assert not any(m["name"] in ("output", "weights") for m in mounts)


def test_devices_without_a_plugin_are_refused() -> None:
    deployment = deployment_of(SERVE, {"gpu": "Apple M4 Max"})
    assert any("device plugin" in reason for reason in kubernetes.node_refusals(deployment))
    assert not list(kubernetes.node_refusals(deployment_of(SERVE)))
