"""Services on Kubernetes: what their objects say against the plan, by hand, and before the API server's rules."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import yaml
from export_samples import WORKLOADS, expressible, sample_deployment, sample_export
from tools import RefusedError
from validators import kubernetes

from flopwise.api.plan import plan
from flopwise.exports.autoscaling import scaling_rule
from flopwise.exports.deployment import Deployment
from flopwise.exports.kubernetes_service import replicas_away
from flopwise.exports.replica import start_ends_s
from flopwise.exports.spec import ExportSettings
from flopwise.exports.targets import exported_plan
from flopwise.facts.catalog import load_facts

SERVICES = ("kubernetes", "leaderworkerset", "kserve", "ray-serve", "hpa", "keda", "prompt-cache", "gateway")
NO_OBJECTS = ("prometheus-adapter.yaml", "connector.yaml", "serve.yaml")


def objects(target: str, sample: str, **settings: str) -> dict[str, dict[str, Any]]:
    """The objects of an export by their kinds, as the API server takes them."""
    made = sample_export(target, sample, **settings).files
    found = [kubernetes(text) for path, text in made.items() if path.endswith(".yaml") and path not in NO_OBJECTS]
    return {one["kind"]: one for documents in found for one in documents}


def main_of(spec: dict[str, Any]) -> dict[str, Any]:
    """The container of a pod's spec."""
    (one,) = spec["containers"]
    return dict(one)


@pytest.mark.parametrize(("target", "sample"), [(t, s) for t in SERVICES for s in WORKLOADS if "serve" in s])
def test_the_api_server_takes_every_service(target: str, sample: str) -> None:
    if sample in expressible(target):
        assert objects(target, sample, namespace="chat", queue="research", priority="high", pull_secret="registry")


def test_a_deployment_is_the_plan() -> None:
    deployment, found = sample_deployment("serve"), objects("kubernetes", "serve", namespace="chat")
    spec = found["Deployment"]["spec"]
    main = main_of(spec["template"]["spec"])
    layout = deployment.candidate.layout
    assert spec["replicas"] == layout["replicas"]
    assert main["resources"]["limits"]["nvidia.com/gpu"] == layout["tp"] * layout["pp"] * layout["dp"]
    words = main["command"]
    assert words[words.index("--tensor-parallel-size") + 1] == str(layout["tp"])
    assert words[words.index("--max-num-seqs") + 1] == str(layout["max_batch"])
    assert found["Service"]["spec"]["selector"].items() <= spec["template"]["metadata"]["labels"].items()
    assert found["Service"]["spec"]["ports"][0]["port"] == main["ports"][0]["containerPort"]
    assert {one["metadata"]["namespace"] for one in found.values()} == {"chat"}


@pytest.mark.parametrize("sample", ["serve", "serve-gcp", "encode"])
def test_a_start_may_take_as_long_as_weights_from_a_hard_drive(sample: str) -> None:
    deployment = sample_deployment(sample)
    low, high = start_ends_s(deployment)
    spec = objects("kubernetes", sample)["Deployment"]["spec"]
    startup = main_of(spec["template"]["spec"])["startupProbe"]
    allowed = startup["failureThreshold"] * startup["periodSeconds"]
    assert high <= allowed < high + startup["periodSeconds"]
    assert spec["progressDeadlineSeconds"] > allowed
    assert low < high


def test_the_upper_end_of_a_start_by_hand() -> None:
    deployment = sample_deployment("serve")  # 70.6e9 parameters in one byte, tp 2: both ranks read the files once
    assert deployment.serving is not None
    engine, layers = deployment.serving.engine, deployment.model.stacks[0].num_layers
    rest = engine.bootstrap_s + engine.warmup_s + (engine.compile_s_per_layer + engine.capture_s_per_layer) * layers
    assert start_ends_s(deployment)[1] == pytest.approx(70.6e9 / 0.275e9 + rest, rel=0.02)


def test_so_many_replicas_are_left_that_the_others_are_busy_for_nine_tenths() -> None:
    deployment = sample_deployment("serve-gcp")
    busy, replicas = deployment.candidate.figures["busy_frac"], deployment.replicas
    assert busy is not None
    away = objects("kubernetes", "serve-gcp")["PodDisruptionBudget"]["spec"]["maxUnavailable"]
    assert away == replicas_away(deployment) == max(1, replicas - math.ceil(replicas * busy / 0.9))
    assert away == 1 or busy * replicas / (replicas - away) <= 0.9


def test_a_leader_answers_for_its_group() -> None:
    deployment, found = sample_deployment("serve-nodes"), objects("leaderworkerset", "serve-nodes")
    spec = found["LeaderWorkerSet"]["spec"]
    group = spec["leaderWorkerTemplate"]
    layout = deployment.candidate.layout
    devices = layout["tp"] * layout["pp"] * layout["dp"]
    assert spec["replicas"] == layout["replicas"]
    assert group["size"] * main_of(group["leaderTemplate"]["spec"])["resources"]["limits"]["nvidia.com/gpu"] == devices
    leader = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
    assert leader.items() <= found["Service"]["spec"]["selector"].items()
    for template in (group["leaderTemplate"], group["workerTemplate"]):
        env = {one["name"]: one for one in main_of(template["spec"])["env"]}
        assert env["MASTER_ADDR"]["value"] == "$(LWS_LEADER_ADDRESS)"
        assert "worker-index" in env["NODE_RANK"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert "startupProbe" not in main_of(group["workerTemplate"]["spec"])


def test_words_of_bash_reach_bash() -> None:
    words = main_of(objects("leaderworkerset", "serve-nodes")["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"][
        "leaderTemplate"
    ]["spec"])["command"]  # fmt: skip
    assert any("$${NODE_RANK" in word for word in words)
    assert not any(re.search(r"(?<!\$)\$(\$\$)*(?!\$)", word) for word in words)


def test_kserve_keeps_the_plans_replicas() -> None:
    one = objects("kserve", "serve")["InferenceService"]
    replicas = sample_deployment("serve").replicas
    predictor = one["spec"]["predictor"]
    assert predictor["minReplicas"] == predictor["maxReplicas"] == replicas
    assert one["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] == "RawDeployment"
    assert main_of(predictor)["name"] == "kserve-container"


def test_ray_serve_tells_the_engine_what_the_plan_says() -> None:
    made = sample_export("ray-serve", "serve").files
    deployment = sample_deployment("serve")
    layout = deployment.candidate.layout
    (application,) = yaml.safe_load(made["serve.yaml"])["applications"]
    (one,) = application["args"]["llm_configs"]
    assert one["engine_kwargs"]["tensor_parallel_size"] == layout["tp"]
    assert one["engine_kwargs"]["max_num_seqs"] == layout["max_batch"]
    assert one["engine_kwargs"]["enable_prefix_caching"] is False
    assert not {"host", "port"} & one["engine_kwargs"].keys()
    assert one["deployment_config"]["autoscaling_config"]["min_replicas"] == layout["replicas"]
    service = objects("ray-serve", "serve")["RayService"]["spec"]
    assert yaml.safe_load(service["serveConfigV2"]) == yaml.safe_load(made["serve.yaml"])
    (workers,) = service["rayClusterConfig"]["workerGroupSpecs"]
    assert workers["replicas"] == deployment.num_nodes


def test_replicas_follow_the_queue_by_the_plan() -> None:
    deployment, rule = sample_deployment("serve-gcp"), scaling_rule(sample_deployment("serve-gcp"))
    chosen = deployment.candidate
    capacity = chosen.figures["requests_per_s_capacity"]
    assert capacity is not None
    assert chosen.cost_usd_high is not None
    each = capacity / deployment.replicas
    assert rule.waiting == max(1, math.floor(1.0 * each))  # the target of the first token is one second
    assert rule.running == min(chosen.layout["max_batch"], math.ceil(each * 0.85 * chosen.seconds))
    roomy = msgspec.structs.replace(chosen, layout=chosen.layout | {"max_batch": 100_000})
    assert scaling_rule(replace(deployment, candidate=roomy)).running == math.ceil(each * 0.85 * chosen.seconds)
    assert rule.least == deployment.replicas  # the traffic is even
    assert rule.most == round(deployment.replicas * chosen.cost_usd_high / chosen.cost_usd)
    assert rule.period_s == math.ceil(start_ends_s(deployment)[1])
    assert rule.calm_s == math.ceil(2 * (start_ends_s(deployment)[1] + 60 + 270))  # a machine, an image


def test_a_quiet_hour_needs_replicas_in_proportion() -> None:
    document = WORKLOADS["serve-gcp"] | {"traffic": WORKLOADS["serve-gcp"]["traffic"] | {"peak": 4}}
    found = plan(document)
    deployment = Deployment.of_rank(found, 1, load_facts(), ExportSettings())
    assert scaling_rule(deployment).least == math.ceil(deployment.replicas / 4)


@pytest.mark.parametrize("target", ["hpa", "keda"])
def test_scalers_ask_for_the_engines_own_metrics(target: str) -> None:
    rule = scaling_rule(sample_deployment("serve-gcp"))
    made = sample_export(target, "serve-gcp", prometheus="http://prom:9090")
    text = "".join(made.files.values())
    assert "vllm:num_requests_waiting" in text
    (scaler,) = objects(target, "serve-gcp").values()
    spec = scaler["spec"]
    assert spec["scaleTargetRef"]["name"] == objects("kubernetes", "serve-gcp")["Deployment"]["metadata"]["name"]
    if target == "hpa":
        values = [one["pods"]["target"]["averageValue"] for one in spec["metrics"]]
        names = {one["pods"]["metric"]["name"] for one in spec["metrics"]}
        rules = yaml.safe_load(made.files["prometheus-adapter.yaml"])["rules"]["custom"]
        assert names == {one["name"]["as"] for one in rules}
        assert (spec["minReplicas"], spec["maxReplicas"]) == (rule.least, rule.most)
    else:
        values = [one["metadata"]["threshold"] for one in spec["triggers"]]
        assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (rule.least, rule.most)
        assert made.to_fill == ()
    assert values == [str(rule.waiting), str(rule.running)]


def test_redis_is_as_large_as_the_caches_together() -> None:
    deployment, found = sample_deployment("serve-prefix"), objects("prompt-cache", "serve-prefix")
    redis = main_of(found["Deployment"]["spec"]["template"]["spec"])
    data = int(redis["args"][redis["args"].index("--maxmemory") + 1].removesuffix("mb"))
    capacity = deployment.candidate.capacity_bytes * deployment.gpus_per_replica * deployment.replicas / 2**20
    assert 0.3 * capacity < data < 0.9 * capacity  # what 8B weights leave of 48 GB
    assert int(redis["resources"]["limits"]["memory"].removesuffix("Mi")) == math.ceil(1.25 * data)
    patch = yaml.safe_load(sample_export("prompt-cache", "serve-prefix").files["connector.yaml"])
    one = main_of(patch["spec"]["template"]["spec"])
    service = found["Service"]["metadata"]["name"]
    assert {"name": "LMCACHE_REMOTE_URL", "value": f"redis://{service}:6379"} in one["env"]
    allowed = found["NetworkPolicy"]["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    served = objects("kubernetes", "serve-prefix")["Deployment"]["spec"]
    assert allowed.items() <= served["template"]["metadata"]["labels"].items()
    assert not allowed.items() <= found["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    assert one["name"] == main_of(served["template"]["spec"])["name"]


def test_routes_wait_twice_as_long_as_the_plan() -> None:
    deployment, found = sample_deployment("serve"), objects("gateway", "serve", hostname="a.b.org", gateway="edge")
    (rule,) = found["HTTPRoute"]["spec"]["rules"]
    assert deployment.candidate.seconds_high is not None
    assert rule["timeouts"]["request"] == f"{math.ceil(2 * deployment.candidate.seconds_high) + 1}s"
    assert rule["backendRefs"][0]["kind"] == "InferencePool"
    assert found["InferencePool"]["spec"]["endpointPickerRef"]["name"] == found["Service"]["metadata"]["name"]
    served = objects("kubernetes", "serve")["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["InferencePool"]["spec"]["selector"]["matchLabels"].items() <= served.items()
    assert "prefix-cache-scorer" not in found["ConfigMap"]["data"]["plugins.yaml"]
    assert "prefix-cache-scorer" in objects("gateway", "serve-prefix")["ConfigMap"]["data"]["plugins.yaml"]
    (rule,) = objects("gateway", "serve-sglang")["HTTPRoute"]["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "sglang-chat", "port": 30000}]


@pytest.mark.parametrize(
    ("target", "old", "new"),
    [
        ("kubernetes", "replicas: ", "replica: "),
        ("kubernetes", "kind: PodDisruptionBudget", "kind: PodDisruption"),
        ("leaderworkerset", "size: ", "sizes: "),
        ("kserve", "minReplicas: ", "minimum: "),
        ("ray-serve", "workerGroupSpecs:", "workerGroups:"),
        ("hpa", "type: AverageValue", "type: [AverageValue]"),
        ("keda", "triggers:", "trigger:"),
        ("prompt-cache", "kind: NetworkPolicy", "kind: NetworkPolicies"),
        ("gateway", "backendRefs:", "backendReferences:"),
    ],
)
def test_a_fault_is_refused(target: str, old: str, new: str) -> None:
    sample = expressible(target)[0]
    for path, text in sample_export(target, sample).files.items():
        if path.endswith(".yaml") and path not in NO_OBJECTS:
            assert old in text
            with pytest.raises(RefusedError):
                kubernetes(text.replace(old, new))


def test_a_start_of_another_size_moves_the_probe() -> None:
    deployment = sample_deployment("serve")
    chosen = msgspec.structs.replace(deployment.candidate, layout=deployment.candidate.layout | {"weights": "bf16"})
    found = msgspec.structs.replace(deployment.plan, plans=[chosen])
    other = Deployment.of_rank(found, 1, load_facts(), ExportSettings())
    (text,) = exported_plan("kubernetes", other).files.values()
    larger = next(one for one in kubernetes(text) if one["kind"] == "Deployment")
    smaller = objects("kubernetes", "serve")["Deployment"]
    more, less = (main_of(one["spec"]["template"]["spec"])["startupProbe"] for one in (larger, smaller))
    assert more["failureThreshold"] - less["failureThreshold"] == pytest.approx(70.6e9 / 0.275e9 / 10, abs=2)
