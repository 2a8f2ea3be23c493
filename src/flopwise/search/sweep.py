"""Many workloads in one file: a list of them, or one with lists of what varies. Each is planned on its own."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from flopwise.errors import SpecError, nearest_names
from flopwise.search.answer import Plan
from flopwise.search.spec import WORKLOAD_FILE
from flopwise.search.workload import Resolved, merged_onto
from flopwise.search.workload_file import document, read_text, resolved

MAX_WORKLOADS = 10_000
MOST_VALUES = 1000
AXES = {
    key.rpartition(".")[2]: key
    for key in (
        "model", "optimizer", "objective", "data.tokens", "data.seq_len", "data.global_batch", "traffic.requests_per_s",
        "traffic.concurrency", "targets.deadline", "targets.budget", "constraints.gpus", "constraints.providers",
        "constraints.precision", "constraints.purchase", "constraints.stack", "constraints.max_gpus",
    )
}  # fmt: skip
"""What may vary, and where it stands in a workload."""


class SweptWorkload(msgspec.Struct, frozen=True):
    """One workload of a sweep: what it is called, what varies in it, and the workload."""

    name: str
    varied: dict[str, Any]
    workload: Resolved


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """One workload of a sweep, planned; `plan` is None where nothing could be asked, and `reasons` say why."""

    name: str
    varied: dict[str, Any]
    plan: Plan | None
    reasons: list[str] = []


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """All workloads of a sweep in the order of the file."""

    planned: list[Planned]
    engine: str
    elapsed_s: float

    @property
    def evaluated(self) -> int:
        """Candidates evaluated for all workloads."""
        return sum(p.plan.evaluated for p in self.planned if p.plan is not None)


def schema() -> dict[str, Any]:
    """The JSON Schema of a sweep file."""
    workload = WORKLOAD_FILE.schema()
    axes = {
        name: {
            "type": "array",
            "items": dict(WORKLOAD_FILE.options[key].kind.schema),
            "minItems": 1,
            "maxItems": MOST_VALUES,
        }
        for name, key in AXES.items()
    }
    sweep = {"type": "object", "properties": axes, "additionalProperties": False}
    varied = {**workload, "properties": {**workload["properties"], "sweep": sweep}}
    varied["required"] = [*(n for n in workload["required"] if n != "model"), "sweep"]
    listed = {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/Workload"}}
    whole = {"type": "object", "properties": {"workloads": listed}, "required": ["workloads"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "flopwise sweep",
        "anyOf": [varied, whole | {"additionalProperties": False}, listed],
        "$defs": {"Workload": workload},
    }


def load_sweep(path: Path | str, changes: dict[str, Any] | None = None) -> list[SweptWorkload] | None:
    """The workloads of a sweep file, with `changes` laid over each; None where the file holds a single workload.

    Raises:
        SpecError: with file and line, what was given and what is allowed.
    """
    return parse_sweep(read_text(path), str(path), changes)


def parse_sweep(text: str, where: str = "sweep", changes: dict[str, Any] | None = None) -> list[SweptWorkload] | None:
    """As `load_sweep`, of a text; `where` names it in messages."""
    node, data = document(text, where)
    return points(data, where, changes, node)


def points(
    data: Any, where: str = "sweep", changes: dict[str, Any] | None = None, node: Any = None
) -> list[SweptWorkload] | None:
    """The workloads of plain data with the keys of a sweep file; None where they are a single workload.

    Raises:
        SpecError: as `load_sweep`, with a line where `node` is the composed document.
    """
    if isinstance(data, dict) and "sweep" in data:
        return _combinations(data, where, changes or {}, node)
    workloads = data
    if isinstance(data, dict) and "workloads" in data:
        other = next((key for key in data if key != "workloads"), None)
        if other is not None:
            raise SpecError(f"{where}: {str(other)[:60]!r} stands beside `workloads`; put it into each of them")
        workloads = data["workloads"]
    elif not isinstance(data, list):
        return None
    if not isinstance(workloads, list) or not workloads:
        raise SpecError(f"{where}: `workloads` is a list of workloads, at least one")
    _check_count(len(workloads), where)
    found = []
    for number, one in enumerate(workloads, start=1):
        if not isinstance(one, dict):
            raise SpecError(
                f"{where}: workload {number} is a mapping with `model` and `task`, not {type(one).__name__}"
            )
        workload = resolved(merged_onto(one, changes or {}), None, f"{where}: workload {number}")
        found.append(SweptWorkload(workload.name or workload.model, {}, workload))
    return found


def _check_count(count: int, where: str) -> None:
    if count > MAX_WORKLOADS:
        raise SpecError(f"{where}: {count:,} workloads; at most {MAX_WORKLOADS:,} make a sweep")


def _combinations(data: dict[str, Any], where: str, changes: dict[str, Any], node: Any) -> list[SweptWorkload]:
    """A workload for every combination of the varied values."""
    axes = data["sweep"]
    if not isinstance(axes, dict) or not axes:
        raise SpecError(f"{where}: `sweep` is a mapping of what varies to lists; it takes {', '.join(AXES)}")
    unknown = next((key for key in axes if key not in AXES), None)
    if unknown is not None:
        near = nearest_names(str(unknown), AXES)
        hint = f"; nearest: {near[0]}" if near else ""
        raise SpecError(f"{where}: sweep.{str(unknown)[:60]}: allowed: {', '.join(AXES)}{hint}")
    for key, values in axes.items():
        if not isinstance(values, list) or not 1 <= len(values) <= MOST_VALUES:
            raise SpecError(f"{where}: sweep.{key}: expected a list of 1 to {MOST_VALUES:,} values")
    _check_count(math.prod(map(len, axes.values())), where)
    base = {key: value for key, value in data.items() if key != "sweep"}
    found = []
    for values in product(*axes.values()):
        varied, one = dict(zip(axes, values, strict=True)), base
        for key, value in varied.items():
            section, dot, name = AXES[key].rpartition(".")
            change = {name: [value] if WORKLOAD_FILE.options[AXES[key]].repeated else value}
            one = merged_onto(one, {section: change} if dot else change)
        workload = resolved(merged_onto(one, changes), node, where)
        text = ", ".join(f"{key} {value}" for key, value in varied.items())
        found.append(SweptWorkload(f"{workload.name}: {text}" if workload.name else text, varied, workload))
    return found
