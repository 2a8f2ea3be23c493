from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_api import SCHEMAS, kubernetes, versions
from tools import RefusedError

OBJECTS = yaml.safe_load((Path(__file__).parent / "manifests.yaml").read_text())["objects"]
GOOD = {f"{one['apiVersion']} {one['kind']}": one for one in OBJECTS}
BY_KIND: dict[str, dict[str, Any]] = {one["kind"]: one for one in reversed(OBJECTS)}
CORE = {
    "v1 Service", "apps/v1 Deployment", "batch/v1 Job", "batch/v1 CronJob", "policy/v1 PodDisruptionBudget",
    "autoscaling/v2 HorizontalPodAutoscaler",
}  # fmt: skip
SERVER = "spec.template.spec.containers.0"
BAD: list[tuple[str, str, Any, str]] = [
    ("Deployment", "apiVersion", "apps/v1beta1", "no schema"),
    ("Deployment", "kind", "Deploiment", "no schema"),
    ("Deployment", "spec.replica", 2, "replica"),
    ("Deployment", "spec.replicas", "2", "'2'"),
    ("Deployment", "metadata.name", "Chat", "is not a name"),
    ("Deployment", "metadata.name", "chat\n", "is not a name"),
    ("Deployment", "metadata.name", "a" * 254, "is not a name"),
    ("Deployment", "metadata.labels", {"a b": "c"}, "no labels"),
    ("Deployment", "metadata.labels", {"a": "$(rm -rf)"}, "no labels"),
    ("Deployment", "metadata.labels", {"a": 1}, "1"),
    ("Deployment", "spec.selector", {"matchLabels": {"app": "other"}}, "does not match"),
    ("Deployment", "spec.template.spec.restartPolicy", "Never", "restart always"),
    ("Deployment", "spec.template.spec.tolerations.0.operator", "Exist", "none of"),
    ("Deployment", "spec.template.spec.tolerations.0.value", "x", "value beside"),
    ("Deployment", "spec.template.spec.tolerations.0.effect", "NoSchedul", "none of"),
    ("Deployment", "spec.template.spec.nodeSelector", {"gpu": "NVIDIA H100"}, "no labels"),
    ("Deployment", f"{SERVER}.image", "my image", "no image"),
    ("Deployment", f"{SERVER}.imagePullPolicy", "always", "none of"),
    ("Deployment", f"{SERVER}.resources.limits", {"nvidia.com/gpu": 4}, "its request is the same"),
    ("Deployment", f"{SERVER}.resources.limits", {"nvidia.com/gpu": "8.5"}, "whole number"),
    ("Deployment", f"{SERVER}.resources.limits.memory", "64GB", "no quantity"),
    ("Deployment", f"{SERVER}.resources.limits.memory", "1Gi", "more is asked for"),
    ("Deployment", f"{SERVER}.resources.limits.gpu", 8, "no resource"),
    ("Deployment", f"{SERVER}.env.0.value", "secret", "two values"),
    ("Deployment", f"{SERVER}.env.0.name", "HF TOKEN", "no environment variable"),
    ("Deployment", f"{SERVER}.volumeMounts.0.name", "cache", "no volume"),
    ("Deployment", f"{SERVER}.ports.0.containerPort", 80000, "no port"),
    ("Deployment", f"{SERVER}.ports.0.name", "a-long-name-of-a-port", "no name of a port"),
    ("Deployment", f"{SERVER}.startupProbe.successThreshold", 2, "must be 1"),
    ("Deployment", f"{SERVER}.startupProbe.failureThreshold", 0, "below 1"),
    ("Deployment", f"{SERVER}.startupProbe.exec", {"command": ["true"]}, "exactly one"),
    ("Service", "spec.ports.0.port", 0, "no port"),
    ("Service", "spec.type", "Loadbalancer", "no type"),
    ("Job", "spec.completions", None, "states its completions"),
    ("Job", "spec.template.spec.restartPolicy", "Always", "never or on failure"),
    ("Job", "spec.completionMode", "indexed", "none of"),
    ("CronJob", "spec.schedule", "daily at 7", "no schedule"),
    ("PodDisruptionBudget", "spec.minAvailable", 1, "exactly one"),
    ("HorizontalPodAutoscaler", "spec.minReplicas", 9, "above maxReplicas"),
    ("HorizontalPodAutoscaler", "spec.metrics.0.type", "External", "no metric"),
    ("PyTorchJob", "spec.nprocPerNode", 8, "8"),
    ("PyTorchJob", "spec.pytorchReplicaSpecs.Workers", {}, "Workers"),
    ("PyTorchJob", "spec.pytorchReplicaSpecs.Master.restartPolicy", "Sometimes", "Sometimes"),
    ("PyTorchJob", "spec.pytorchReplicaSpecs.Master.template.spec.container", [], "container"),
    ("TrainJob", "spec.runtimeRef", None, "None"),
    ("TrainJob", "spec.trainer.numProcPerNode", "auto", "auto"),
    ("TrainJob", "spec.podTemplateOverrides", [], "podTemplateOverrides"),
    ("JobSet", "spec.replicatedJobs.0.name", "Node_1", "Node_1"),
    ("JobSet", "spec.replicatedJobs.0.template.spec.template.spec.restartPolicy", "Always", "never or on failure"),
    ("JobSet", "spec.failurePolicy.rules", [{"name": "a", "action": "Restart"}], "Restart"),
    ("ResourceFlavor", "spec.nodeLabels", {f"l{i}": "x" for i in range(9)}, "too many"),
    ("ClusterQueue", "spec.cohort", None, "None"),
    ("ClusterQueue", "spec.cohortName", "all", "cohortName"),
    ("ClusterQueue", "spec.queueingStrategy", "FIFO", "FIFO"),
    ("ClusterQueue", "spec.resourceGroups.0.flavors.0.resources.0.nominalQuota", "16 GPUs", "16 GPUs"),
    ("ClusterQueue", "spec.resourceGroups.0.flavors.0.resources.0.nominalQuota", -1, "-1"),
    ("LocalQueue", "spec", {}, "clusterQueue"),
    ("Cohort", "spec.parentName", "all", "parentName"),
    ("WorkloadPriorityClass", "value", "high", "high"),
    ("LeaderWorkerSet", "spec.leaderWorkerTemplate.size", 0, "0"),
    ("LeaderWorkerSet", "spec.leaderWorkerTemplate.restartPolicy", "Always", "Always"),
    (
        "LeaderWorkerSet",
        "spec.leaderWorkerTemplate.workerTemplate.spec.containers.0.resources.limits",
        {"nvidia.com/gpu": "x"},
        "gpu",
    ),
    ("ScaledObject", "spec.triggers.0.metadata.threshold", 12, "12"),
    ("ScaledObject", "spec.triggers.0.metadata", {"query": "up"}, "required"),
    ("ScaledObject", "spec.triggers", [], "[]"),
    ("ScaledObject", "spec.minReplicaCount", 5, "above maxReplicaCount"),
    ("InferenceService", "spec.predictor.model.modelFormat", {}, "name"),
    ("InferenceService", "spec.predictor.model.resources.limit", {}, "limit"),
    ("InferenceService", "spec.predictor.replicas", 2, "replicas"),
    ("RayCluster", "spec.workerGroupSpecs.0.replicas", 9, "outside"),
    ("RayCluster", "spec.headGroupSpec.rayStartParams.num-gpus", 0, "0"),
    ("RayJob", "spec.rayClusterSpec", None, "None"),
    ("RayJob", "spec.shutdownAfterJobFinishes", False, "needs"),
    ("RayService", "spec.serveConfigV2", {"applications": []}, "applications"),
    ("NodePool", "spec.disruption.consolidateAfter", "10 minutes", "10 minutes"),
    ("NodePool", "spec.disruption.budgets.0", {"nodes": "0", "schedule": "0 7 * * *"}, "duration"),
    ("NodePool", "spec.template.spec.requirements.0.operator", "Gt", "p5.48xlarge"),
    ("NodePool", "spec.template.spec.requirements.0.values", [], "[]"),
    ("EC2NodeClass", "spec.instanceProfile", "node", "valid under each"),
    ("EC2NodeClass", "spec.amiFamily", "Ubuntu", "Ubuntu"),
    ("EC2NodeClass", "spec.amiSelectorTerms", [], "[]"),
    ("PrometheusRule", "spec.groups.0.rules.1.for", "10m", "does not allow"),
    ("PrometheusRule", "spec.groups.0.rules.0.for", "10 min", "10 min"),
    ("PrometheusRule", "spec.groups.0.rules.0.record", "a:b", "does not allow"),
    ("ServiceMonitor", "spec.endpoints.0.interval", 15, "15"),
    ("HTTPRoute", "spec.rules.0.timeouts.request", "5 min", "5 min"),
    ("HTTPRoute", "spec.rules.0.backendRefs.0.port", 0, "0"),
    ("HTTPRoute", "spec.hostnames.0", "chat example", "chat example"),
    ("InferencePool", "spec.endpointPickerRef", {"name": "picker"}, "port"),
    ("InferencePool", "spec.targetPorts", [8000], "8000"),
    ("Kustomization", "resources", "deployment.yaml", "deployment.yaml"),
    ("Kustomization", "patches", [{"target": {}}], "valid under"),
    ("InferencePool", "spec.extensionRef", {"name": "picker"}, "extensionRef"),
]


def _edited(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    edited = copy.deepcopy(document)
    *parents, last = path.split(".")
    part: Any = edited
    for name in parents:
        part = part[int(name)] if isinstance(part, list) else part.setdefault(name, {})
    if isinstance(part, list):
        part[int(last)] = value
    else:
        part[last] = value
    return edited


@pytest.mark.parametrize("name", GOOD)
def test_what_a_server_takes(name: str) -> None:
    assert kubernetes(yaml.safe_dump(GOOD[name])) == [GOOD[name]]


@pytest.mark.parametrize(("kind", "path", "value", "message"), BAD)
def test_what_a_server_refuses(kind: str, path: str, value: Any, message: str) -> None:
    with pytest.raises(RefusedError) as refused:
        kubernetes(yaml.safe_dump(_edited(BY_KIND[kind], path, value)))
    assert message in str(refused.value)


@pytest.mark.parametrize("name", GOOD)
def test_unknown_fields_are_refused(name: str) -> None:
    with pytest.raises(RefusedError, match="unknownField"):
        kubernetes(yaml.safe_dump(GOOD[name] | {"unknownField": 1}))
    if "spec" in GOOD[name]:
        with pytest.raises(RefusedError, match="unknownField"):
            kubernetes(yaml.safe_dump(_edited(GOOD[name], "spec.unknownField", 1)))


def test_several_documents() -> None:
    text = "---\n".join(yaml.safe_dump(BY_KIND[kind]) for kind in ("Deployment", "Service"))
    assert [document["kind"] for document in kubernetes(text)] == ["Deployment", "Service"]
    with pytest.raises(RefusedError, match="stands twice"):
        kubernetes(f"{text}---\n{yaml.safe_dump(BY_KIND['Service'])}")


@pytest.mark.parametrize("text", ["", "a: b: c", "- kind: Job", "kind: Job\nkind: Job", "just text", "kind: [Job]"])
def test_what_is_no_manifest(text: str) -> None:
    with pytest.raises(RefusedError):
        kubernetes(text)


def test_fields_of_newer_versions_are_refused_for_older_ones() -> None:
    newer = _edited(BY_KIND["Job"], "spec.managedBy", "kueue.x-k8s.io/multikueue")  # of Kubernetes 1.30
    with pytest.raises(RefusedError, match=r"Kubernetes 1\.28"):
        kubernetes(yaml.safe_dump(newer))


def test_versions() -> None:
    assert versions()[0] == (1, 28)
    assert versions()[-1] >= (1, 37)
    assert len(versions()) == versions()[-1][1] - versions()[0][1] + 1


def test_each_schema_states_where_it_is_from_and_is_tried() -> None:
    kinds = set()
    for path in sorted(SCHEMAS.glob("*_*.json")):
        schema = json.loads(path.read_text())
        assert path.name == f"{schema['x-group']}_{schema['x-version']}.json"
        assert all(schema[key] for key in ("x-release", "x-source", "x-date"))
        kinds |= {f"{schema['x-group']}/{schema['x-version']} {kind}" for kind in schema["x-kinds"]}
    assert kinds <= GOOD.keys()
    assert kinds | CORE == GOOD.keys()
