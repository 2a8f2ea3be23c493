"""Everything that a plan or a whole assessment can be turned into, in one folder, in the order of apply."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import PurePosixPath
from typing import Any

from flopwise.errors import InfeasibleError
from flopwise.exports.deployment import Deployment, resource_name
from flopwise.exports.emit import markdown_text, script_text, yaml_documents, yaml_text
from flopwise.exports.exported import Files
from flopwise.exports.fleet import FleetDeployment
from flopwise.exports.spec import PLACEHOLDERS
from flopwise.exports.targets import exported_assessment, exported_plan
from flopwise.search.spec import TRAINING
from flopwise.values import dataclass

ENGINES = ("vllm", "sglang", "tensorrt-llm", "llamacpp", "tgi", "tei")
TRAINERS = ("torchtitan", "megatron", "accelerate", "torchrun")
TERRAFORM = ("terraform-aws", "terraform-gcp", "terraform-azure")
TRAINED: Mapping[str, Sequence[Sequence[str]]] = {
    "kubernetes": (("jobset", "pytorchjob", "job"),),
    "run": (TRAINERS, ("slurm",)),
}
SERVED: Mapping[str, Sequence[Sequence[str]]] = {
    "kubernetes": (("kubernetes", "leaderworkerset"), ("keda", "hpa"), ("prompt-cache",)),
    "load": (("load-test",),),
    "run": (ENGINES,),
}
BATCHED: Mapping[str, Sequence[Sequence[str]]] = {
    "kubernetes": (("indexed-job", "job"),),
    "run": (("ray-data",), ENGINES),
}
"""By what is done: steps, and of each list the first target that can express the plan."""
MONITORING = ("prometheus", "prometheus-scrape", "alertmanager", "grafana")
OF_A_PLAN: Mapping[str, Sequence[Sequence[str]]] = {
    "infrastructure": (TERRAFORM,),
    "queues": (("kueue",),),
    "budgets": (("budgets",),),
    "monitoring": tuple((target,) for target in MONITORING),
    "skypilot": (("skypilot",),),
}
OF_AN_ENVIRONMENT: Mapping[str, Sequence[Sequence[str]]] = {
    "infrastructure": tuple((target,) for target in TERRAFORM),
    "queues": (("kueue",),),
    "schedules": (("schedules",),),
    "budgets": (("budgets",),),
    "skypilot": (("skypilot",),),
}
APPLIED: Mapping[str, str] = {
    "infrastructure": "machines, by Terraform in your account",
    "queues": "queues and quotas, in the cluster",
    "kubernetes": "workloads, in the cluster",
    "schedules": "hours outside which machines scale to zero",
    "budgets": "limits on spending, in your account",
    "monitoring": "rules, dashboards and alerts",
    "load": "a load test with the planned traffic, to check the targets",
}
"""Steps in the order of apply."""
INSTEAD: Mapping[str, str] = {
    "run": "the same without Kubernetes, on existing machines",
    "skypilot": "the same without a cluster of your own",
}
CHECKS: Mapping[str, str] = {
    "terraform": "terraform fmt -check -recursive .",
    "promtool": "find . -path './monitoring/*' -name '*rules*.yaml' -exec promtool check rules {} +",
    "shellcheck": "find . -name '*.sh' -exec shellcheck {} +",
}
"""What `make check` runs, by the tool that has to be there."""
NOTES = (
    "the overlay of an environment without a plan runs the workloads of production, with one replica per service",
    "on AWS, Karpenter can replace node groups: export karpenter",
)


@dataclass(slots=True)
class _Gathering:
    """Files of many targets by their folders; the commands of each step, what was assumed, and what no target does."""

    files: dict[str, str] = field(default_factory=dict)
    commands: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def add_all(
        self, steps: Mapping[str, Sequence[Sequence[str]]], source: Deployment | FleetDeployment, within: str = "",
        name: str = "",
    ) -> None:  # fmt: skip
        """Add what stands in each step, `within` a folder; a workload of several under its `name`."""
        for step, choices in steps.items():
            for targets in choices:
                self._add(step, "/".join(filter(None, (within, step, name))), targets, source)

    def _add(self, step: str, folder: str, targets: Sequence[str], source: Deployment | FleetDeployment) -> None:
        """Put the files of the first target that can express `source` into a folder; else note why none can."""
        reasons = []
        for target in targets:
            try:
                if isinstance(source, Deployment):
                    made = exported_plan(target, source)
                else:
                    made = exported_assessment(target, source)
            except InfeasibleError as error:
                reasons += [f"{target}: {reason}" for reason in error.reasons]
                continue
            place = folder if PurePosixPath(folder).name == target else f"{folder}/{target}"
            self.files |= {f"{place}/{path}": text for path, text in made.files.items()}
            self.commands.setdefault(step, []).extend(_in_folder(place, command) for command in made.apply)
            self.notes += [f"{place}: {note}" for note in made.assumptions]
            return
        self.missing.append(f"{folder}: {'; '.join(reasons)}")

    def add_overlays(self, bases: Mapping[str, str], root: str) -> None:
        """Overlays over the manifests of environments by their folders, which are then what is applied."""
        made = overlays(self.files, bases, lambda name: root if name == "production" else f"{root}-{name}")
        self.files |= made
        applied = [name for name in bases if f"overlays/{name}/kustomization.yaml" in made]
        self.commands["kubernetes"] = [f"kubectl apply -k overlays/{name}" for name in applied]


def export(deployment: Deployment) -> Files:
    """README.md, Makefile, and a folder for each step."""
    parts = _Gathering()
    parts.add_all({**_ways(deployment), **OF_A_PLAN}, deployment)
    parts.add_overlays({"production": "kubernetes"}, deployment.settings.namespace or deployment.name)
    return _bundle(deployment.title, parts)


def export_fleet(fleet: FleetDeployment) -> Files:
    """README.md, Makefile, a folder for each environment, and overlays and monitoring of them all."""
    parts, bases = _Gathering(), dict[str, str]()
    for environment in dict.fromkeys(w.result.environment for w in fleet.workloads):
        name, part = resource_name(environment), fleet.within(environment)
        folder = f"environments/{name}"
        bases[name] = f"{folder}/kubernetes"
        for workload in part.workloads:
            for _, deployment in workload.parts:
                parts.add_all(_ways(deployment), deployment, folder, deployment.name)
        parts.add_all(OF_AN_ENVIRONMENT, part, folder)
        _leave_hours(parts, folder)
    parts.add_all({"monitoring": OF_A_PLAN["monitoring"]}, fleet)
    parts.add_overlays(bases, fleet.settings.namespace or fleet.name)
    return _bundle(fleet.assessment.name or "fleet", parts)


def _ways(deployment: Deployment) -> Mapping[str, Sequence[Sequence[str]]]:
    """The steps of a plan by their purpose."""
    if deployment.task in TRAINING:
        return TRAINED
    return BATCHED if deployment.task == "batch" else SERVED


def _leave_hours(parts: _Gathering, folder: str) -> None:
    """Drop scalers of services whose hours scale them already: Kubernetes takes one for each."""
    timed = {
        one["metadata"]["name"]
        for path, text in parts.files.items()
        if path.startswith(f"{folder}/schedules/") and path.endswith(".yaml")
        for one in yaml_documents(text)
        if one["kind"] == "ScaledObject"
    }
    for path in [path for path in parts.files if path.startswith(f"{folder}/kubernetes/")]:
        if PurePosixPath(path).parent.name not in {"keda", "hpa"}:
            continue
        scaled = {one["metadata"]["name"] for one in yaml_documents(parts.files[path]) if "metadata" in one}
        if scaled & timed:
            del parts.files[path]
            parts.missing.append(f"{path}: {folder}/schedules scales it by the hour, and only one scaler is allowed")


def _bundle(title: str, parts: _Gathering) -> Files:
    """The files with README, Makefile and a script for each step."""
    steps = [step for step in (*APPLIED, *INSTEAD) if parts.commands.get(step)]
    scripts = {f"steps/{step}.sh": script_text('cd "$(dirname "$0")/.."', *parts.commands[step]) for step in steps}
    notes = (*parts.notes, *NOTES)
    files = {**parts.files, **scripts, "Makefile": _makefile(steps), "README.md": _readme(title, parts, steps, notes)}
    return Files(files=files, apply=("make check", *(f"make {s}" for s in steps if s in APPLIED)), assumptions=notes)


def _makefile(steps: Sequence[str]) -> str:
    """A target for each step, and `check`, which asks the tools that are there; no value of the plan's."""
    lines = [f".PHONY: check {' '.join(steps)}", "", "check:"]
    for tool, command in CHECKS.items():
        lines.append(f"\tif command -v {tool} >/dev/null; then {command}; else echo '{tool} is not installed'; fi")
    for step in steps:
        lines += ["", f"{step}:", f"\tbash steps/{step}.sh"]
    return "\n".join(lines) + "\n"


def _readme(title: str, parts: _Gathering, steps: Sequence[str], notes: Sequence[str]) -> str:
    """The README of the folder: files, order of application, values to fill in, assumptions."""
    lines = [
        f"# {markdown_text(title)}",
        "",
        "`make check` runs the tools that are installed. Then, in this order:",
        "",
    ]
    lines += ["| step | what |", "|---|---|", *(f"| `make {s}` | {APPLIED[s]} |" for s in steps if s in APPLIED), ""]
    if other := [f"| `make {s}` | {INSTEAD[s]} |" for s in steps if s in INSTEAD]:
        lines += ["Or instead:", "", "| step | what |", "|---|---|", *other, ""]
    holes = {text: _places(parts.files, text) for text in PLACEHOLDERS.values()}
    if rows := [f"| `{text}` | {places} |" for text, places in holes.items() if places]:
        lines += ["## To fill in", "", "With the options of `flopwise export`, or in the files:", ""]
        lines += ["| stands as | in |", "|---|---|", *rows, ""]
    for heading, texts in (("Assumed", notes), ("Left out", parts.missing)):
        if texts:
            lines += [f"## {heading}", "", *(f"- {markdown_text(text)}" for text in dict.fromkeys(texts)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _places(files: Mapping[str, str], text: str) -> str:
    """The folders whose files hold a placeholder."""
    folders = sorted({str(PurePosixPath(path).parent) for path, content in files.items() if text in content})
    more = f" and {len(folders) - 4} more" if len(folders) > 4 else ""
    return ", ".join(f"`{folder}`" for folder in folders[:4]) + more


def _in_folder(place: str, command: str) -> str:
    """A command that runs in a folder; a comment behind it stays behind it."""
    words, mark, about = command.partition("  # ")
    return f"(cd {place} && {words}){mark}{about}"


HEAD = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
ENVIRONMENTS = ("development", "staging", "production")
ONE: Mapping[str, Mapping[str, int]] = {
    "Deployment": {"replicas": 1},
    "LeaderWorkerSet": {"replicas": 1},
    "ScaledObject": {"minReplicaCount": 1, "maxReplicaCount": 1},
    "HorizontalPodAutoscaler": {"minReplicas": 1, "maxReplicas": 1},
}
"""What leaves one replica, by kind."""


def overlays(files: Mapping[str, str], bases: Mapping[str, str], namespace: Callable[[str], str]) -> dict[str, str]:
    """Overlays for the manifests below some folders, by the environment that each folder is planned for.

    Those that are planned run as planned, in their `namespace`. Of development, staging and production those that are
    not run what production has (or the first that is planned), with one replica of each service.
    """
    resources = {environment: _manifests(files, below) for environment, below in bases.items()}
    planned = {environment: below for environment, below in bases.items() if resources[environment]}
    if not planned:
        return {}
    made = {
        f"{below}/kustomization.yaml": yaml_text({**HEAD, "resources": resources[environment]})
        for environment, below in planned.items()
    }
    model = "production" if "production" in planned else next(iter(planned))
    for environment in dict.fromkeys((*planned, *ENVIRONMENTS)):
        base, own = planned.get(environment, planned[model]), environment in planned
        patches = [] if own else list(_patches(files, base, resources[model]))
        rules = {
            **HEAD, "namespace": namespace(environment), "resources": ["namespace.yaml", f"../../{base}"],
            "labels": [{"pairs": {"flopwise.dev/environment": environment}}],
        }  # fmt: skip
        place = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace(environment)}}
        made[f"overlays/{environment}/namespace.yaml"] = yaml_text(place)
        made[f"overlays/{environment}/kustomization.yaml"] = yaml_text(
            rules | ({"patches": patches} if patches else {})
        )
    return made


def _manifests(files: Mapping[str, str], below: str) -> list[str]:
    """The files below a folder that hold Kubernetes objects alone, by their paths in it."""
    paths = sorted(path for path in files if path.startswith(f"{below}/") and path.endswith(".yaml"))
    return [path.removeprefix(f"{below}/") for path in paths if all(map(_is_object, yaml_documents(files[path])))]


def _is_object(document: Any) -> bool:
    """True if a document of YAML is a Kubernetes object."""
    return isinstance(document, dict) and {"apiVersion", "kind", "metadata"} <= set(document)


def _patches(files: Mapping[str, str], below: str, manifests: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Patches that leave one replica of each service."""
    for path in manifests:
        for one in yaml_documents(files[f"{below}/{path}"]):
            change = {key: value for key, value in ONE.get(one["kind"], {}).items() if key in one["spec"]}
            if change:
                steps = [{"op": "replace", "path": f"/spec/{key}", "value": value} for key, value in change.items()]
                yield {"target": {"kind": one["kind"], "name": one["metadata"]["name"]}, "patch": yaml_text(steps)}
