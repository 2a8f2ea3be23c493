"""Everything that a plan or a whole assessment can be turned into, in one folder, in the order of apply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from flopwise.errors import InfeasibleError
from flopwise.export.deployment import Deployment, resource_name
from flopwise.export.emit import markdown_text
from flopwise.export.exported import Files
from flopwise.export.fleet import FleetDeployment
from flopwise.export.kustomize import NOTE, kustomized
from flopwise.export.spec import PLACEHOLDERS
from flopwise.export.targets import BATCH, TRAINING, exported_assessment, exported_plan

ENGINES = ("vllm", "sglang", "tensorrt-llm", "llamacpp", "tgi")
TRAINERS = ("torchtitan", "megatron", "accelerate", "torchrun")
TERRAFORM = ("terraform-aws", "terraform-gcp", "terraform-azure")
MONITORING = ("prometheus", "prometheus-scrape", "alertmanager", "grafana")
ALTERNATIVES: Mapping[str, Mapping[str, Sequence[Sequence[str]]]] = {
    "training": {
        "run": [TRAINERS, ["peft"], ["slurm"]],
        "kubernetes": [["jobset", "pytorchjob", "job"]],
    },
    "serving": {
        "run": [ENGINES],
        "kubernetes": [["kubernetes", "leaderworkerset"], ["keda", "hpa"], ["prompt-cache"]],
        "load": [["load-test"]],
    },
    "batch": {
        "run": [["ray-data"], ENGINES],
        "kubernetes": [["indexed-job", "job"]],
    },
}
"""By what is done: folders, and of each list the first target that can express the plan."""
FOR_ALL: Mapping[str, Sequence[Sequence[str]]] = {
    "infrastructure": [TERRAFORM, ["karpenter"]],
    "queues": [["kueue"]],
    "skypilot": [["skypilot"]],
    "budgets": [["budgets"]],
    "schedules": [["schedules"]],
    "monitoring": [[name] for name in MONITORING],
}
STEPS: tuple[tuple[str, str], ...] = (
    ("infrastructure", "machines: Terraform, in your account"),
    ("queues", "queues and quotas, in the cluster"),
    ("kubernetes", "workloads, in the cluster"),
    ("schedules", "when machines go to zero"),
    ("budgets", "limits on spend, in your account"),
    ("monitoring", "rules, dashboards and alerts"),
    ("load", "a load like the planned one, to see whether targets hold"),
    ("run", "the same without Kubernetes: on machines that are there"),
    ("skypilot", "the same without a cluster of your own"),
)
"""The folders in the order of apply, with what each holds."""
CHECKS: tuple[tuple[str, str], ...] = (
    ("terraform fmt -check -recursive .", "terraform"),
    ("find . -name '*rules*.yaml' -path '*monitoring*' -exec promtool check rules {} +", "promtool"),
    ("find . -name '*.sh' -exec shellcheck {} +", "shellcheck"),
)
"""What `make check` runs of the tools that are there."""


@dataclass(slots=True)
class _Gathering:
    """Files of many targets by their folders; the commands of each step, what was assumed, and what no target does."""

    files: dict[str, str] = field(default_factory=dict)
    commands: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def add(self, step: str, folder: str, targets: Sequence[str], source: Deployment | FleetDeployment) -> None:
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
            place = f"{folder}/{target}"
            self.files |= {f"{place}/{path}": text for path, text in made.files.items()}
            self.commands.setdefault(step, []).extend(f"(cd {place} && {command})" for command in made.apply)
            self.notes += [f"{place}: {note}" for note in made.assumptions]
            return
        self.missing.append(f"{folder}: {'; '.join(reasons)}")

    def add_overlays(self, folder: str, namespace: str) -> None:
        """Overlays over the manifests in a folder, which are then what is applied."""
        if made := kustomized(self.files, folder, namespace):
            self.files |= made
            self.commands["kubernetes"] = [
                *(line for line in self.commands.get("kubernetes", []) if not line.startswith(f"(cd {folder}/")),
                f"kubectl apply -k {folder}/overlays/production",
            ]


def export(deployment: Deployment) -> Files:
    """README.md, Makefile, and a folder for each step."""
    parts = _Gathering()
    for step, choices in {**_ways(deployment), **FOR_ALL}.items():
        for targets in choices:
            parts.add(step, step, targets, deployment)
    parts.add_overlays("kubernetes", deployment.settings.namespace or deployment.name)
    return _bundle(deployment.title, parts)


def export_fleet(fleet: FleetDeployment) -> Files:
    """README.md, Makefile, a folder for each environment, and monitoring of them all."""
    parts = _Gathering()
    for name in dict.fromkeys(w.result.environment for w in fleet.workloads):
        folder, part = f"environments/{resource_name(name)}", fleet.within(name)
        for workload in part.workloads:
            for number, (_, deployment) in enumerate(workload.parts, start=1):
                below = deployment.name if len(workload.parts) == 1 else f"{deployment.name}-{number}"
                for step, choices in _ways(deployment).items():
                    for targets in choices:
                        parts.add(step, f"{folder}/{step}/{below}", targets, deployment)
        for step in ("infrastructure", "queues", "skypilot", "budgets", "schedules"):
            for target in (target for targets in FOR_ALL[step] for target in targets):
                parts.add(step, f"{folder}/{step}", [target], part)
        parts.add_overlays(f"{folder}/kubernetes", fleet.settings.namespace or resource_name(name))
    for targets in FOR_ALL["monitoring"]:
        parts.add("monitoring", "monitoring", targets, fleet)
    return _bundle(fleet.assessment.name or "fleet", parts)


def _ways(deployment: Deployment) -> Mapping[str, Sequence[Sequence[str]]]:
    """Folders with what stands in each, by what the plan does."""
    if deployment.task in TRAINING:
        return ALTERNATIVES["training"]
    return ALTERNATIVES["batch" if deployment.task in BATCH else "serving"]


def _bundle(title: str, parts: _Gathering) -> Files:
    """The files with README and Makefile."""
    notes = [*parts.notes, *([NOTE] if any("/overlays/" in path for path in parts.files) else [])]
    made = {
        **parts.files,
        "Makefile": _makefile(parts),
        "README.md": _readme(title, parts, notes),
    }
    return Files(
        files=made, apply=("make check", *(f"make {step}" for step, _ in _steps(parts))), assumptions=tuple(notes)
    )


def _steps(parts: _Gathering) -> list[tuple[str, str]]:
    """The steps that there are commands for, in their order."""
    return [(step, what) for step, what in STEPS if parts.commands.get(step)]


def _makefile(parts: _Gathering) -> str:
    """A target for each step, and `check`, which asks the tools that are there."""
    steps = [step for step, _ in _steps(parts)]
    lines = [f".PHONY: check {' '.join(steps)}", "SHELL := /bin/bash", "", "check:"]
    for command, tool in CHECKS:
        lines.append(f"\tif command -v {tool} >/dev/null; then {command}; else echo '{tool} is not there'; fi")
    for step in steps:
        lines += ["", f"{step}:", *(f"\t{command.replace('$', '$$')}" for command in parts.commands[step])]
    return "\n".join(lines) + "\n"


def _readme(title: str, parts: _Gathering, notes: Sequence[str]) -> str:
    """What is in the folder, in which order it is applied, what a person fills in, and what was assumed."""
    holes = sorted(_holes(parts.files))
    lines = [f"# {markdown_text(title)}", "", "In this order; `make check` first asks the tools that are there.", ""]
    lines += ["| step | what |", "|---|---|", *(f"| `make {step}` | {what} |" for step, what in _steps(parts)), ""]
    if holes:
        lines += ["## To fill in", "", "By the options of `flopwise export`, or in the files:", ""]
        lines += [
            "| stands as | in |",
            "|---|---|",
            *(f"| `{text}` | {_places(parts.files, text)} |" for text in holes),
            "",
        ]
    for heading, rows in (("Assumed", notes), ("Left out", parts.missing)):
        if rows:
            lines += [f"## {heading}", "", *(f"- {markdown_text(row)}" for row in dict.fromkeys(rows)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _holes(files: Mapping[str, str]) -> Iterator[str]:
    """The placeholders that files hold."""
    return (text for text in PLACEHOLDERS.values() if any(text in content for content in files.values()))


def _places(files: Mapping[str, str], text: str) -> str:
    """The folders whose files hold a placeholder."""
    found = sorted({str(PurePosixPath(path).parent) for path, content in files.items() if text in content})
    more = f" and {len(found) - 4} more" if len(found) > 4 else ""
    return ", ".join(f"`{place}`" for place in found[:4]) + more
