"""The targets: each a module here of the same name (`-` as `_`), a row of targets.csv, and a page in docs/export/.

A module has `export(deployment) -> Files`, or that of an engine the `command` of its server (and the `router` of two
pools), which become scripts. It may have `refusals(deployment) -> Iterator[str]`, reasons why it cannot
express a plan, and `export_fleet(fleet) -> Files`, if an assessment needs more than a folder for each workload.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.errors import InfeasibleError, UnknownNameError
from flopwise.exports.exported import Exported, Files
from flopwise.values import dataclass

if TYPE_CHECKING:
    from flopwise.exports.deployment import Deployment
    from flopwise.exports.fleet import FleetDeployment


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target: its name, summary and tasks, what it can express, and the checker of its files with its version."""

    name: str
    tasks: tuple[str, ...]
    summary: str
    expresses: str
    files: tuple[str, ...]
    validator: str
    version: str


def _groups() -> dict[str, dict[str, Target]]:
    """The rows of targets.csv by section and name; tasks and files are separated by blanks."""
    groups: dict[str, dict[str, Target]] = {}
    with Path(__file__).with_name("targets.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            section, tasks, files = (row.pop(column) for column in ("section", "tasks", "files"))
            target = Target(tasks=tuple(tasks.split()), files=tuple(files.split()), **row)
            groups.setdefault(section, {})[target.name] = target
    return groups


GROUPS = _groups()
"""The sections of `flopwise export --list`."""
TARGETS = {name: target for targets in GROUPS.values() for name, target in targets.items()}


def export_targets() -> list[Target]:
    """List every export target with what it can express.

    Examples:
        >>> import flopwise
        >>> {"kubernetes", "vllm", "skypilot"} <= {target.name for target in flopwise.export_targets()}
        True
    """
    return [*TARGETS.values()]


def exported_plan(target: str, deployment: Deployment) -> Exported:
    """The files of a plan for a target.

    Raises: UnknownNameError: no such target. InfeasibleError: the target cannot express the plan; gives the reasons.
    """
    made = target_module(target)
    if reasons := _refusals(target, deployment):
        raise InfeasibleError(f"{target} cannot express {deployment.title[:80]!r}", reasons)
    return Exported.of(target, _files(made, deployment), deployment.settings)


def exported_assessment(target: str, fleet: FleetDeployment) -> Exported:
    """The files of a whole assessment for a target: its own, or a folder for each workload that it can express.

    Raises: UnknownNameError: no such target. InfeasibleError: the target can express no workload; gives the reasons.
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
            one = _files(made, deployment)
            files |= {f"{deployment.name}/{path}": text for path, text in one.files.items()}
            apply += [f"(cd {deployment.name} && {command})" for command in one.apply]
            notes += [f"{title}: {note}" for note in one.assumptions]
    if not files:
        raise InfeasibleError(f"{target} can express no workload of {fleet.assessment.name[:80]!r}", reasons)
    notes += [f"left out: {reason}" for reason in reasons]
    return Exported.of(target, Files(files=files, apply=tuple(apply), assumptions=tuple(notes)), fleet.settings)


def _files(made: Any, deployment: Deployment) -> Files:
    """The files of a plan from the module of a target."""
    if hasattr(made, "export"):
        files: Files = made.export(deployment)
        return files
    from flopwise.exports.pools import pool_files  # noqa: PLC0415 - other targets start no server
    from flopwise.exports.server import server_files  # noqa: PLC0415 - as above

    if len(deployment.pools) > 1:
        return pool_files(deployment, made.command, made.router(deployment))
    return server_files(deployment, made.command(deployment))


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


def check_targets(targets: Iterable[str]) -> None:
    """Check the names of export targets before a plan takes its time. Raises UnknownNameError."""
    for target in targets:
        target_module(target)
