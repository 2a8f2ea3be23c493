"""The targets: each a module here of the same name (`-` as `_`), a line of TARGETS, and a page in docs/export/.

A module has `export(deployment) -> Files` and may have `refusals(deployment) -> Iterator[str]`, reasons why it cannot
express a plan, and `export_fleet(fleet) -> Files`, if an assessment needs more than a folder for each workload.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flopwise.errors import InfeasibleError, UnknownNameError
from flopwise.exports.exported import Exported, Files
from flopwise.values import dataclass

if TYPE_CHECKING:
    from flopwise.exports.deployment import Deployment
    from flopwise.exports.fleet import FleetDeployment

TRAINING = ("pretrain", "finetune")
SERVING = ("serve", "encode")
ONLINE = ("serve",)
VECTORS = "encode"
BATCH = ("batch",)
EVERY = (*TRAINING, *SERVING, *BATCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target: its summary and tasks, what it can express, and the checker of its files with its version."""

    summary: str
    tasks: tuple[str, ...]
    expresses: str
    files: tuple[str, ...]
    validator: str
    version: str


GROUPS: dict[str, dict[str, Target]] = {
    "Training": {
        "torchrun": Target(
            summary="PyTorch's launcher with the program of the plan's stack",
            tasks=TRAINING,
            expresses="the program of the stack: a train.py of Hugging Face's Trainer, Megatron-LM or torchtitan",
            files=("run.sh", "train.py", "training_arguments.json", "job.json"),
            validator="transformers' TrainingArguments; shellcheck; runs on CPUs",
            version="torch 2.13, transformers 5.23",
        ),
        "slurm": Target(
            summary="a batch script of SLURM that starts torchrun on each node",
            tasks=TRAINING,
            expresses="the same as torchrun; a time limit from the plan's interval, a checkpoint before it, requeueing",
            files=("run.sbatch", "train.py", "training_arguments.json", "job.json"),
            validator="bash -n; shellcheck; a run with mocks of srun, scontrol and scancel",
            version="Slurm 22.05 and later",
        ),
        "accelerate": Target(
            summary="Hugging Face's Trainer under Accelerate",
            tasks=TRAINING,
            expresses="data parallelism, FSDP2 and HSDP, ZeRO by DeepSpeed, offloading, recompute, adapters",
            files=("accelerate.yaml", "run.sh", "train.py", "training_arguments.json", "job.json"),
            validator="Accelerate's configuration loader; transformers' TrainingArguments; shellcheck; runs on CPUs",
            version="accelerate 1.15, transformers 5.23",
        ),
        "deepspeed": Target(
            summary="DeepSpeed's ZeRO with Hugging Face's Trainer",
            tasks=TRAINING,
            expresses="ZeRO 0 to 3, offloading, loss scaling, accumulation, recompute, adapters",
            files=("deepspeed.json", "run.sh", "train.py", "training_arguments.json", "job.json"),
            validator="DeepSpeed's configuration class; transformers' TrainingArguments; shellcheck",
            version="deepspeed 0.19.8",
        ),
        "megatron": Target(
            summary="Megatron-LM's pretrain_gpt.py",
            tasks=TRAINING,
            expresses="tp, pp, virtual stages, cp, ep, sequence parallelism, ZeRO 1, recompute, fp8, mxfp8, nvfp4",
            files=("run.sh",),
            validator="Megatron-Core's configuration classes; Megatron-LM's list of arguments; shellcheck",
            version="Megatron-Core 0.16.1",
        ),
        "torchtitan": Target(
            summary="torchtitan's trainer",
            tasks=TRAINING,
            expresses="FSDP2, HSDP, tp, pp and its schedules, cp, ep, recompute, compilation; the models it configures",
            files=("run.sh",),
            validator="torchtitan's own configuration manager; shellcheck",
            version="torchtitan 0.3.0",
        ),
        "peft": Target(
            summary="adapters: LoRA, DoRA, QLoRA",
            tasks=("finetune",),
            expresses="rank, projections, formats of frozen weights (nf4, nf4-dq, llm-int8), whole tensors in addition",
            files=("adapter_config.json", "quantization.json", "run.sh", "train.py", "training_arguments.json"),
            validator="PEFT's LoraConfig on the model; transformers' BitsAndBytesConfig; runs on CPUs",
            version="peft 0.21.2",
        ),
    },
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
            expresses="a permanent cluster, and jobs submitted to it",
            files=("raycluster.yaml",),
            validator="own schema of the CRD",
            version="KubeRay 1.3",
        ),
    },
    "Serving": {
        "vllm": Target(
            summary="vLLM's server and its batch runner",
            tasks=(*SERVING, *BATCH),
            expresses="tp, pp, ep, dp; formats of weights and cache; batch and prefill limits; prefix cache; drafts; "
            "weights on the host; several machines; separate servers for prompts, with their router",
            files=("serve.sh", "serve-prefill.sh", "serve-decode.sh", "route.sh", "run-batch.sh"),
            validator="vLLM's own argument parser; a real server on CPU; the real router; shellcheck",
            version="vLLM 0.32.0, vllm-router 0.1.17",
        ),
        "sglang": Target(
            summary="SGLang's server",
            tasks=(*SERVING, *BATCH),
            expresses="the same as vllm, and expert parallelism over a part of the devices",
            files=("serve.sh", "serve-prefill.sh", "serve-decode.sh", "route.sh", "run-batch.sh"),
            validator="its options, read from the release; the real router; shellcheck",
            version="SGLang 0.5.23, sglang-router 0.3.2",
        ),
        "tensorrt-llm": Target(
            summary="TensorRT-LLM's trtllm-serve",
            tasks=(*ONLINE, *BATCH),
            expresses="tp, pp, ep, dp on one machine; formats of weights and cache; limits; prefix cache; drafts",
            files=("serve.sh", "trtllm.yaml", "run-batch.sh"),
            validator="its options, read from the release; shellcheck",
            version="TensorRT-LLM 1.2.1",
        ),
        "llamacpp": Target(
            summary="llama.cpp's llama-server",
            tasks=(*SERVING, *BATCH),
            expresses="GGUF files; layers on device and host; slots; formats of the cache; drafts",
            files=("serve.sh", "run-batch.sh"),
            validator="its options, read from the release; shellcheck",
            version="llama.cpp of 2026-10-01",
        ),
        "tgi": Target(
            summary="Text Generation Inference's launcher",
            tasks=(*ONLINE, *BATCH),
            expresses="tp on one machine; formats of weights and cache; limits; prefix cache; n-gram drafts",
            files=("serve.sh", "run-batch.sh"),
            validator="its options, read from the release; shellcheck",
            version="TGI 3.3.5",
        ),
        "tei": Target(
            summary="text-embeddings-inference's router",
            tasks=(VECTORS,),
            expresses="encoders on one device; weight format; batches by tokens and by inputs",
            files=("serve.sh",),
            validator="its options, from its documentation and source; shellcheck",
            version="text-embeddings-inference 1.9",
        ),
        "load-test": Target(
            summary="The plan's traffic as a load test: guidellm and Locust",
            tasks=SERVING,
            expresses="rate and arrivals, or requests in flight; lengths; a shared prefix; targets as thresholds",
            files=("guidellm.json", "load-guidellm.sh", "locustfile.py", "load.json", "load-locust.sh"),
            validator="guidellm's own scenario model; a run of each; shellcheck",
            version="guidellm 0.8.1, Locust 2.47.0",
        ),
    },
    "Serving on Kubernetes": {
        "kubernetes": Target(
            summary="Deployment, Service and disruption budget",
            tasks=SERVING,
            expresses="replicas on one machine or a part of it; probes, nodes, resources, spread; both pools of a plan "
            "with separate servers for prompts, and their router",
            files=("kubernetes.yaml",),
            validator="schemas of the API, strict",
            version="Kubernetes 1.28 to 1.37",
        ),
        "leaderworkerset": Target(
            summary="replicas over several machines",
            tasks=SERVING,
            expresses="replicas on several machines; leader, workers, probes; both pools and their router",
            files=("leaderworkerset.yaml",),
            validator="own schema of the CRD; schemas of the API, strict",
            version="LeaderWorkerSet 0.8",
        ),
        "kserve": Target(
            summary="KServe's InferenceService",
            tasks=SERVING,
            expresses="replicas on one machine or a part of it, without Knative",
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
            summary="Redis for prompts with a common prefix",
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
    "Batch": {
        "skypilot": Target(
            summary="SkyPilot's managed job or service",
            tasks=EVERY,
            expresses="machines, regions and other candidates of the layout, spot with recovery, replicas, buckets",
            files=("task.yaml",),
            validator="SkyPilot's own Task.from_yaml",
            version="SkyPilot 0.14.1",
        ),
        "ray-data": Target(
            summary="Ray Data's batch inference with vLLM",
            tasks=BATCH,
            expresses="replicas, tp, pp, formats of weights and cache, limits; OpenAI's batch files",
            files=("batch.json", "ray_batch.py"),
            validator="Ray's own vLLMEngineProcessorConfig",
            version="Ray 2.60",
        ),
    },
    "Clouds": {
        "terraform-aws": Target(
            summary="node group of an EKS cluster",
            tasks=EVERY,
            expresses="instance type, spot, Capacity Blocks, nodes, EFA, placement, disks, taints; a fleet's pools",
            files=("main.tf", "variables.tf", "terraform.tfvars.example"),
            validator="terraform fmt; python-hcl2; arguments of the provider's documentation",
            version="Terraform 1.11; hashicorp/aws 6",
        ),
        "terraform-gcp": Target(
            summary="node pool of a GKE cluster",
            tasks=EVERY,
            expresses="machine type, accelerators and drivers, TPU slices, spot, placement; a fleet's pools",
            files=("main.tf", "variables.tf", "terraform.tfvars.example"),
            validator="terraform fmt; python-hcl2; arguments of the provider's documentation",
            version="Terraform 1.11; hashicorp/google 7",
        ),
        "terraform-azure": Target(
            summary="node pool of an AKS cluster",
            tasks=EVERY,
            expresses="size, priority, reservations, nodes, proximity placement, disks, taints; a fleet's pools",
            files=("main.tf", "variables.tf", "terraform.tfvars.example"),
            validator="terraform fmt; python-hcl2; arguments of the provider's documentation",
            version="Terraform 1.11; hashicorp/azurerm 4",
        ),
        "karpenter": Target(
            summary="Karpenter's NodePool and EC2NodeClass on AWS",
            tasks=EVERY,
            expresses="instance type, spot, reservations, limits, disruption budgets, disks, taints; a fleet's pools",
            files=("karpenter.yaml",),
            validator="JSON Schemas of Karpenter's CRDs",
            version="Karpenter 1 (karpenter.sh/v1)",
        ),
        "budgets": Target(
            summary="budgets of AWS, Google Cloud and Azure",
            tasks=EVERY,
            expresses=(
                "the cost of a plan per month or run by its tag; the bill of a fleet by provider; messages at 80 % "
                "and 100 %"
            ),
            files=("main.tf", "variables.tf", "terraform.tfvars.example"),
            validator="terraform fmt; python-hcl2; arguments of the provider's documentation",
            version="Terraform 1.11; aws 6, google 7, azurerm 4",
        ),
        "schedules": Target(
            summary="scaling to zero outside working hours: KEDA's cron, and schedules of AWS node groups",
            tasks=SERVING,
            expresses="hours and days of a fleet's services and machines, also past midnight; usual hours for one plan",
            files=("keda.yaml", "main.tf", "variables.tf", "terraform.tfvars.example"),
            validator="JSON Schema of KEDA's CRD; terraform fmt; python-hcl2; arguments of the documentation",
            version="KEDA 2 (keda.sh/v1alpha1); Terraform 1.11; hashicorp/aws 6",
        ),
    },
    "Monitoring": {
        "prometheus": Target(
            summary="Prometheus alert and recording rules, with tests of them",
            tasks=EVERY,
            expresses="the plan's thresholds: load, memory, latency, throughput, MFU, cost; faults of devices",
            files=("rules.yaml", "tests.yaml"),
            validator="promtool check rules and test rules; a Prometheus server that fires them",
            version="Prometheus 2.42",
        ),
        "prometheus-scrape": Target(
            summary="Prometheus' configuration: what it scrapes from devices, engines and runs",
            tasks=EVERY,
            expresses="jobs and targets by address, counters for dcgm-exporter, a run's progress as metrics",
            files=("prometheus.yml", "targets/*.yaml", "dcgm-counters.csv", "progress.py"),
            validator="promtool check config; a Prometheus server that reads an exporter",
            version="Prometheus 2.42",
        ),
        "prometheus-operator": Target(
            summary="The same rules and scrape jobs as objects of the Prometheus operator",
            tasks=EVERY,
            expresses="PrometheusRule, PodMonitor of engines and runs, ServiceMonitor of device exporters",
            files=("monitoring.yaml",),
            validator="JSON Schemas of the custom resources; promtool check rules",
            version="monitoring.coreos.com/v1",
        ),
        "alertmanager": Target(
            summary="Alertmanager's routes",
            tasks=EVERY,
            expresses="routes by severity, a webhook by reference, inhibition; machines to stop",
            files=("alertmanager.yml",),
            validator="amtool check-config",
            version="Alertmanager 0.26",
        ),
        "grafana": Target(
            summary="A Grafana dashboard and its provisioning",
            tasks=EVERY,
            expresses="measurements with the planned values and alert thresholds; for a report, one row per workload",
            files=("dashboard.json", "provisioning/"),
            validator="the Foundation SDK's model; every query parsed by promtool",
            version="Grafana 10.1",
        ),
    },
    "Everything": {
        "bundle": Target(
            summary="One folder with all targets, in the order in which they are applied",
            tasks=EVERY,
            expresses=(
                "all targets that can express the plan, with overlays for Kubernetes; whole reports by environment"
            ),
            files=("README.md", "Makefile", "*/"),
            validator="the checks of its parts; overlays built by a Python builder; make -n",
            version="Kustomize v1beta1",
        ),
    },
}
"""The sections of `flopwise export --list`."""
TARGETS = {name: target for targets in GROUPS.values() for name, target in targets.items()}


def exported_plan(target: str, deployment: Deployment) -> Exported:
    """The files of a plan for a target.

    Raises:
        UnknownNameError: no such target.
        InfeasibleError: the target cannot express the plan; gives the reasons.
    """
    made = target_module(target)
    if reasons := _refusals(target, deployment):
        raise InfeasibleError(f"{target} cannot express {deployment.title[:80]!r}", reasons)
    return Exported.of(target, made.export(deployment), deployment.settings)


def exported_assessment(target: str, fleet: FleetDeployment) -> Exported:
    """The files of a whole assessment for a target: its own, or a folder for each workload that it can express.

    Raises:
        UnknownNameError: no such target.
        InfeasibleError: the target can express no workload; gives the reasons.
    """
    made = target_module(target)
    if hasattr(made, "export_fleet"):
        return Exported.of(target, made.export_fleet(fleet), fleet.settings)
    files, apply, notes, reasons = dict[str, str](), list[str](), list[str](), list[str]()
    for workload in fleet.workloads:
        for _, deployment in workload.parts:
            title = workload.result.name[:80]
            if refused := _refusals(target, deployment):
                reasons += [f"{title}: {reason}" for reason in refused]
                continue
            one: Files = made.export(deployment)
            files |= {f"{deployment.name}/{path}": text for path, text in one.files.items()}
            apply += [f"(cd {deployment.name} && {command})" for command in one.apply]
            notes += [f"{title}: {note}" for note in one.assumptions]
    if not files:
        raise InfeasibleError(f"{target} can express no workload of {fleet.assessment.name[:80]!r}", reasons)
    notes += [f"left out: {reason}" for reason in reasons]
    return Exported.of(target, Files(files=files, apply=tuple(apply), assumptions=tuple(notes)), fleet.settings)


def _refusals(target: str, deployment: Deployment) -> list[str]:
    """Reasons why a target cannot express a plan; empty if it can."""
    tasks, made = TARGETS[target].tasks, target_module(target)
    if deployment.task not in tasks:
        return [f"it is for {', '.join(tasks)}; the plan's task is {deployment.task}"]
    return list(made.refusals(deployment)) if hasattr(made, "refusals") else []


def target_module(target: str) -> Any:
    """The module of a target. Raises UnknownNameError."""
    if target not in TARGETS:
        raise UnknownNameError("export target", target, TARGETS, "`flopwise export --list` shows all")
    return import_module(f"flopwise.exports.targets.{target.replace('-', '_')}")
