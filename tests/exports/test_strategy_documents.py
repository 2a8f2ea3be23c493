"""What strategy documents print by hand comes out of exports, from the plan's own figures."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from export_samples import sample_deployment, sample_export


def _manifest(target: str, sample: str, kind: str, **settings: str) -> dict[str, Any]:
    [text] = sample_export(target, sample, **settings).files.values()
    return next(one for one in yaml.safe_load_all(text) if one["kind"] == kind)


def _alerts(sample: str) -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(sample_export("prometheus", sample).files["rules.yaml"])["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def test_pods_ask_for_the_accelerator_by_label_limit_and_toleration() -> None:
    spec = _manifest("kubernetes", "serve-gcp", "Deployment")["spec"]["template"]["spec"]
    assert spec["nodeSelector"]["cloud.google.com/gke-accelerator"] == "nvidia-l4"
    [container] = spec["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == sample_deployment("serve-gcp").gpus_per_replica
    assert "nvidia.com/gpu" in [toleration["key"] for toleration in spec["tolerations"]]


def test_a_run_has_its_precision_accumulation_and_recompute_as_arguments() -> None:
    layout = sample_deployment("finetune-v100").candidate.layout
    arguments = json.loads(sample_export("deepspeed", "finetune-v100").files["training_arguments.json"])
    assert (arguments["fp16"], arguments["bf16"]) == (True, False)
    steps = layout["global_batch"] / (layout["dp"] * layout["micro_batch"])
    assert arguments["gradient_accumulation_steps"] == steps
    assert arguments["per_device_train_batch_size"] == layout["micro_batch"]


def test_a_server_batches_as_the_plan_has_it() -> None:
    deployment = sample_deployment("serve")
    words = sample_export("vllm", "serve").files["serve.sh"].split()
    assert int(words[words.index("--max-num-seqs") + 1]) == deployment.candidate.layout["max_batch"]
    assert deployment.serving is not None
    assert int(words[words.index("--max-num-batched-tokens") + 1]) == deployment.serving.software.prefill_tokens


@pytest.mark.parametrize(
    ("alert", "limit", "lasts"),
    [("UtilisationHigh", "> 0.9", "600s"), ("MemoryHigh", "> 0.85", "300s"), ("TimeToFirstTokenHigh", "> 1", None)],
)
def test_alerts_have_their_limits_and_say_what_to_do(alert: str, limit: str, lasts: str | None) -> None:
    rule = _alerts("serve")[alert]
    assert rule["expr"].endswith(limit)
    assert lasts is None or rule["for"] == lasts
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert len(rule["annotations"]["runbook"].split()) > 3


def test_the_cost_of_a_day_is_watched_above_what_is_planned() -> None:
    rule = _alerts("serve")["CostPerDayHigh"]
    planned = 24 * sample_deployment("serve").candidate.usd_per_hour
    limit = float(rule["expr"].rpartition(">")[2])
    assert planned < limit <= 2.1 * planned
