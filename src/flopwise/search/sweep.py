"""Many workloads in one file: a list of them, or one with lists of what varies. Each is planned on its own."""

from __future__ import annotations

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
AXES = {
    key.rpartition(".")[2]: key
    for key in (
        "model", "optimizer", "objective", "data.tokens", "data.seq_len", "data.global_batch", "traffic.requests_per_s",
        "traffic.concurrency", "targets.deadline", "targets.budget", "constraints.gpus", "constraints.providers",
        "constraints.precision", "constraints.purchase", "constraints.stack", "constraints.max_gpus",
    )
}  # fmt: skip
"""What may vary, and where it stands in a workload."""
MOST_VALUES = 1000


class Point(msgspec.Struct, frozen=True):
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
    varied = {**workload, "properties": {**workload["properties"], "sweep": {"type": "object", "properties": axes}}}
    varied["required"] = [*(n for n in workload["required"] if n != "model"), "sweep"]
    listed = {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/Workload"}}
    whole = {"type": "object", "properties": {"workloads": listed}, "required": ["workloads"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "flopwise sweep",
        "anyOf": [varied, whole | {"additionalProperties": False}, listed],
        "$defs": {"Workload": workload},
    }


def load_sweep(path: Path | str, changes: dict[str, Any] | None = None) -> list[Point] | None:
    """The workloads of a sweep file, with `changes` laid over each; None where the file holds a single workload.

    Raises:
        SpecError: with file and line, what was given and what is allowed.
    """
    return parse_sweep(read_text(path), str(path), changes)


def parse_sweep(text: str, where: str = "sweep", changes: dict[str, Any] | None = None) -> list[Point] | None:
    """As `load_sweep`, of a text; `where` names it in messages."""
    node, data = document(text, where)
    return points(data, where, changes, node)


def is_sweep(data: Any) -> bool:
    """Whether plain data stand for many workloads."""
    return isinstance(data, list) or (isinstance(data, dict) and ("sweep" in data or "workloads" in data))


def points(
    data: Any, where: str = "sweep", changes: dict[str, Any] | None = None, node: Any = None
) -> list[Point] | None:
    """The workloads of plain data with the keys of a sweep file; None where they are a single workload.

    Raises:
        SpecError: as `load_sweep`, with a line where `node` is the composed document.
    """
    if not is_sweep(data):
        return None
    if isinstance(data, dict) and "sweep" in data:
        return _product(data, where, changes or {}, node)
    listed = data
    if isinstance(data, dict):
        if len(data) > 1:
            other = next(k for k in data if k != "workloads")
            raise SpecError(f"{where}: {str(other)[:60]!r} stands beside `workloads`; put it into each of them")
        listed = data["workloads"]
    if not isinstance(listed, list) or not listed:
        raise SpecError(f"{where}: `workloads` is a list of workloads, at least one")
    _bounded(len(listed), where)
    found = []
    for number, one in enumerate(listed, start=1):
        if not isinstance(one, dict):
            raise SpecError(
                f"{where}: workload {number} is a mapping with `model` and `task`, not {type(one).__name__}"
            )
        workload = resolved(merged_onto(one, changes or {}), None, f"{where}: workload {number}")
        found.append(Point(workload.name or workload.model, {}, workload))
    return found


def _bounded(count: int, where: str) -> None:
    if count > MAX_WORKLOADS:
        raise SpecError(f"{where}: {count:,} workloads; at most {MAX_WORKLOADS:,} make a sweep")


def _product(data: dict[str, Any], where: str, changes: dict[str, Any], node: Any) -> list[Point]:
    """Every combination of the varied values."""
    varied = data["sweep"]
    if not isinstance(varied, dict) or not varied:
        raise SpecError(f"{where}: `sweep` is a mapping of what varies to lists; it takes {', '.join(AXES)}")
    unknown = next((k for k in varied if k not in AXES), None)
    if unknown is not None:
        near = nearest_names(str(unknown), AXES)
        hint = f"; nearest: {near[0]}" if near else ""
        raise SpecError(f"{where}: sweep.{str(unknown)[:60]}: allowed: {', '.join(AXES)}{hint}")
    count = 1
    for name, values in varied.items():
        if not isinstance(values, list) or not 1 <= len(values) <= MOST_VALUES:
            raise SpecError(f"{where}: sweep.{name}: expected a list of 1 to {MOST_VALUES:,} values")
        count *= len(values)
    _bounded(count, where)
    base = {k: v for k, v in data.items() if k != "sweep"}
    found = []
    for values in product(*varied.values()):
        chosen = dict(zip(varied, values, strict=True))
        one = merged_onto(base, _placed(chosen))
        workload = resolved(merged_onto(one, changes), node, where)
        told = ", ".join(f"{k} {v}" for k, v in chosen.items())
        found.append(Point(f"{workload.name}: {told}" if workload.name else told, chosen, workload))
    return found


def _placed(chosen: dict[str, Any]) -> dict[str, Any]:
    """Varied values in the shape of a workload; one value of a list is a list of one there."""
    changes: dict[str, Any] = {}
    for axis, value in chosen.items():
        section, dot, name = AXES[axis].rpartition(".")
        held = changes.setdefault(section, {}) if dot else changes
        held[name] = [value] if WORKLOAD_FILE.options[AXES[axis]].repeated else value
    return changes
