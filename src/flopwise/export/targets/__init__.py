"""The targets: each a module here of the same name (`-` as `_`), a line of TARGETS, and a page in docs/export/.

A module has `export(deployment) -> Files` and may have `refusals(deployment) -> Iterator[str]`, why a plan cannot be
expressed; and `export_fleet(fleet) -> Files`, where a whole assessment is more than a folder for each workload.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flopwise.errors import InfeasibleError, UnknownNameError
from flopwise.export.exported import Exported, Files

if TYPE_CHECKING:
    from flopwise.export.deployment import Deployment
    from flopwise.export.fleet import FleetDeployment

TRAINING = ("pretrain", "finetune")
SERVING = ("serve", "encode")
ONLINE = ("serve",)
BATCH = ("batch",)
EVERY = (*TRAINING, *SERVING, *BATCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a target is for, in one line, and what it can express; what its files are checked with, of which version."""

    summary: str
    tasks: tuple[str, ...]
    expresses: str
    files: tuple[str, ...]
    validator: str
    version: str


GROUPS: dict[str, dict[str, Target]] = {
    "Training": {},
    "Training on Kubernetes": {
        "job": Target(
            summary="plain Job on one machine",
            tasks=TRAINING,
            expresses="a run on one machine, with restarts",
            files=("job.yaml",),
            validator="schemas of the API, strict",
            version="Kubernetes 1.28 to 1.37",
        ),
        "indexed-job": Target(
            summary="indexed Job over shares of a batch",
            tasks=BATCH,
            expresses="shares, replicas at once",
            files=("indexed-job.yaml", "split-requests.sh"),
            validator="schemas of the API, strict",
            version="Kubernetes 1.28 to 1.37",
        ),
        "pytorchjob": Target(
            summary="Kubeflow's PyTorchJob",
            tasks=TRAINING,
            expresses="a run on several machines, with restarts",
            files=("pytorchjob.yaml",),
            validator="own schema of the CRD",
            version="Training Operator 1.9",
        ),
        "trainjob": Target(
            summary="Kubeflow Trainer's TrainJob and runtime",
            tasks=TRAINING,
            expresses="a run on several machines, with restarts",
            files=("trainjob.yaml",),
            validator="own schema of the CRD",
            version="Kubeflow Trainer 2.3",
        ),
        "jobset": Target(
            summary="JobSet in a queue of Kueue",
            tasks=TRAINING,
            expresses="a run on several machines, with restarts, queue and priority",
            files=("jobset.yaml",),
            validator="own schema of the CRD",
            version="JobSet 0.8",
        ),
        "kueue": Target(
            summary="Kueue's flavors, quotas and queues",
            tasks=EVERY,
            expresses="machines of a plan, or of each environment of an assessment",
            files=("kueue.yaml",),
            validator="own schema of the CRDs",
            version="Kueue 0.15",
        ),
        "rayjob": Target(
            summary="KubeRay's RayJob",
            tasks=(*TRAINING, *BATCH),
            expresses="a run on several machines, or a batch by replicas",
            files=("rayjob.yaml",),
            validator="own schema of the CRD",
            version="KubeRay 1.3",
        ),
        "raycluster": Target(
            summary="KubeRay's RayCluster",
            tasks=(*TRAINING, *BATCH),
            expresses="machines that stay, and what is sent to them",
            files=("raycluster.yaml",),
            validator="own schema of the CRD",
            version="KubeRay 1.3",
        ),
    },
    "Serving": {
        "vllm": Target(
            summary="vLLM's server",
            tasks=(*SERVING, *BATCH),
            expresses="tp, pp, ep, dp; formats of weights and cache; batch and prefill limits; prefix cache; drafts",
            files=("serve.sh",),
            validator="vLLM's own argument parser; shellcheck",
            version="vLLM 0.32.0",
        ),
    },
    "Serving on Kubernetes": {
        "kubernetes": Target(
            summary="Deployment, Service and disruption budget",
            tasks=SERVING,
            expresses="replicas of one machine or less; probes, nodes, resources, spread",
            files=("kubernetes.yaml",),
            validator="schemas of the API, strict",
            version="Kubernetes 1.28 to 1.37",
        ),
        "leaderworkerset": Target(
            summary="replicas over several machines",
            tasks=SERVING,
            expresses="replicas of several machines; leader, workers, probes",
            files=("leaderworkerset.yaml",),
            validator="own schema of the CRD; schemas of the API, strict",
            version="LeaderWorkerSet 0.8",
        ),
        "kserve": Target(
            summary="KServe's InferenceService",
            tasks=SERVING,
            expresses="replicas of one machine or less, without Knative",
            files=("kserve.yaml",),
            validator="own schema of the CRD",
            version="KServe 0.21",
        ),
        "ray-serve": Target(
            summary="Ray Serve's LLM application and RayService",
            tasks=ONLINE,
            expresses="vLLM's options, replicas, batch",
            files=("serve.yaml", "rayservice.yaml"),
            validator="own schema of the CRD",
            version="KubeRay 1.3, Ray 2.52",
        ),
        "hpa": Target(
            summary="HorizontalPodAutoscaler on the engine's queue",
            tasks=SERVING,
            expresses="bounds, thresholds and windows of the plan",
            files=("hpa.yaml", "prometheus-adapter.yaml"),
            validator="schemas of the API, strict",
            version="Kubernetes 1.28 to 1.37",
        ),
        "keda": Target(
            summary="KEDA's ScaledObject on the engine's queue",
            tasks=SERVING,
            expresses="bounds, thresholds and windows of the plan",
            files=("keda.yaml",),
            validator="own schema of the CRD",
            version="KEDA 2.14",
        ),
        "prompt-cache": Target(
            summary="Redis for prompts that begin alike",
            tasks=ONLINE,
            expresses="size of the cache; vLLM's connector",
            files=("prompt-cache.yaml", "connector.yaml"),
            validator="schemas of the API, strict",
            version="Kubernetes 1.28 to 1.37; LMCache",
        ),
        "gateway": Target(
            summary="Gateway API's route and inference pool",
            tasks=SERVING,
            expresses="timeouts of the targets; replicas by queue, cache and prefix",
            files=("gateway.yaml",),
            validator="own schemas of the CRDs; schemas of the API, strict",
            version="Gateway API 1.x, inference extension 1.0",
        ),
    },
    "Batch": {},
    "Clouds": {},
    "Monitoring": {},
    "Everything": {},
}
"""The sections of `flopwise export --list`."""
TARGETS = {name: target for targets in GROUPS.values() for name, target in targets.items()}


def exported_plan(target: str, deployment: Deployment) -> Exported:
    """The files of a plan for a target.

    Raises:
        UnknownNameError: no such target.
        InfeasibleError: the target cannot express the plan; says why.
    """
    made = target_module(target)
    if reasons := _refusals(target, deployment):
        raise InfeasibleError(f"{target} cannot express {deployment.title[:80]!r}", reasons)
    return Exported.of(target, made.export(deployment), deployment.settings)


def exported_assessment(target: str, fleet: FleetDeployment) -> Exported:
    """The files of a whole assessment for a target: its own, or a folder for each workload that it can express.

    Raises:
        UnknownNameError: no such target.
        InfeasibleError: the target can express no workload; says why.
    """
    made = target_module(target)
    if hasattr(made, "export_fleet"):
        return Exported.of(target, made.export_fleet(fleet), fleet.settings)
    files, apply, notes, reasons = dict[str, str](), list[str](), list[str](), list[str]()
    for workload in fleet.workloads:
        for number, (_, deployment) in enumerate(workload.parts, start=1):
            title = workload.result.name[:80]
            if refused := _refusals(target, deployment):
                reasons += [f"{title}: {reason}" for reason in refused]
                continue
            folder = deployment.name if len(workload.parts) == 1 else f"{deployment.name}-{number}"
            one: Files = made.export(deployment)
            files |= {f"{folder}/{path}": text for path, text in one.files.items()}
            apply += [f"(cd {folder} && {command})" for command in one.apply]
            notes += [f"{title}: {note}" for note in one.assumptions]
    if not files:
        raise InfeasibleError(f"{target} can express no workload of {fleet.assessment.name[:80]!r}", reasons)
    notes += [f"left out: {reason}" for reason in reasons]
    return Exported.of(target, Files(files=files, apply=tuple(apply), assumptions=tuple(notes)), fleet.settings)


def _refusals(target: str, deployment: Deployment) -> list[str]:
    """Why a target cannot express a plan; empty where it can."""
    tasks, made = TARGETS[target].tasks, target_module(target)
    if deployment.task not in tasks:
        return [f"it is for {', '.join(tasks)}; the plan's task is {deployment.task}"]
    return list(made.refusals(deployment)) if hasattr(made, "refusals") else []


def target_module(target: str) -> Any:
    """The module of a target. Raises UnknownNameError."""
    if target not in TARGETS:
        raise UnknownNameError("export target", target, TARGETS, "`flopwise export --list` shows all")
    return import_module(f"flopwise.export.targets.{target.replace('-', '_')}")
