"""Many workloads in one file: a list of them, or one with lists of what varies. Each is planned on its own."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from flopwise.errors import FlopwiseError, InfeasibleError, SpecError, nearest_hint
from flopwise.facts.catalog import Facts
from flopwise.pictures import BarPicture, Picture
from flopwise.results import Result
from flopwise.search.answer import Plan
from flopwise.search.plan import plan
from flopwise.search.spec import WORKLOAD_FILE
from flopwise.search.workload import Resolved, merged_onto, resolve
from flopwise.search.workload_file import document, read_text, workload_from
from flopwise.units import format_items

MAX_WORKLOADS = 10_000
MOST_VALUES = 1000
ENGINES = ("inline", "processes", "ray")
REACHED_WITHIN_S = 10.0
AXES = {
    key.rpartition(".")[2]: key
    for key in (
        "model", "optimizer", "objective", "data.tokens", "data.seq_len", "data.global_batch", "traffic.requests_per_s",
        "traffic.concurrency", "targets.deadline", "targets.budget", "constraints.gpus", "constraints.providers",
        "constraints.precision", "constraints.purchase", "constraints.stack", "constraints.max_gpus",
    )
}  # fmt: skip
"""What may vary, and where it stands in a workload."""
BEST = ("provider", "instance", "num_instances", "gpu", "num_gpus", "seconds", "cost_usd", "likely")
"""Figures of a workload's first plan."""


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

    @property
    def best(self) -> dict[str, Any]:
        """The first plan beside what varies, plain figures only; None each where no plan meets every target."""
        first = self.plan.plans[0] if self.plan is not None and self.plan.plans else None
        return {"name": self.name, **self.varied} | {key: getattr(first, key, None) for key in BEST}


class Sweep(Result, msgspec.Struct, frozen=True, kw_only=True):
    """All workloads of a sweep in the order of the file."""

    planned: list[Planned]
    engine: str
    elapsed_s: float
    table = "best"

    @property
    def num_planned(self) -> int:
        """Workloads with a plan that meets every target."""
        return sum(1 for p in self.planned if p.plan is not None and p.plan.plans)

    @property
    def verdict(self) -> str:
        """The answer in a sentence: how many workloads have a plan."""
        number = len(self.planned)
        return f"{self.num_planned:,} of {format_items(number, 'workload')} have a plan that meets every target."

    def document(self) -> dict[str, Any]:
        """All plans, and the first of each as a row."""
        return {
            "planned": self.planned, "best": [p.best for p in self.planned], "engine": self.engine,
            "elapsed_s": self.elapsed_s,
        }  # fmt: skip

    def picture(self) -> Picture:
        """The cost of the first plan of each workload, as a picture. SpecError where no workload has one."""
        rows = [(p.name, p.plan.plans[0].cost_usd) for p in self.planned if p.plan is not None and p.plan.plans]
        if not rows:
            raise SpecError("there is no plan to plot")
        return BarPicture(title=self.verdict, unit="USD, a month of service or a run", rows=rows)

    @property
    def num_evaluated(self) -> int:
        """Candidates evaluated for all workloads."""
        return sum(p.plan.evaluated for p in self.planned if p.plan is not None)


def schema() -> dict[str, Any]:
    """The JSON Schema of a sweep file."""
    workload, counts = WORKLOAD_FILE.schema(), {"minItems": 1, "maxItems": MOST_VALUES}
    axes = {
        name: {"type": "array", "items": dict(WORKLOAD_FILE.options[key].kind.schema), **counts}
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


def points(source: Any, changes: dict[str, Any] | None = None) -> list[SweptWorkload] | None:
    """The workloads of a sweep with `changes` laid over each; None where it is a single workload.

    `source`: a file, or plain data with the same keys.

    Raises: SpecError: with file and line, what was given and what is allowed.
    """
    if not isinstance(source, str | Path):
        return _points(source, "sweep", changes or {}, None)
    node, data = document(read_text(source), str(source))
    return _points(data, str(source), changes or {}, node)


def _points(data: Any, where: str, changes: dict[str, Any], node: Any) -> list[SweptWorkload] | None:
    """The workloads of plain data; with lines in messages where `node` is the composed document."""
    if isinstance(data, dict) and "sweep" in data:
        return _combinations(data, where, changes, node)
    workloads = data
    if isinstance(data, dict) and "workloads" in data:
        other = next((key for key in data if key != "workloads"), None)
        if other is not None:
            is_fleet = bool({"name", "environments", "policies"} & {*data})
            fleet = "; if this is a fleet, ask `flopwise assess`" if is_fleet else ""
            raise SpecError(f"{where}: {str(other)[:60]!r} stands next to `workloads`; put it into each of them{fleet}")
        workloads = data["workloads"]
    elif not isinstance(data, list):
        return None
    if not isinstance(workloads, list) or not workloads:
        raise SpecError(f"{where}: `workloads` is a list of workloads, at least one")
    _check_count(len(workloads), where)
    rows = []
    for number, one in enumerate(workloads, start=1):
        if not isinstance(one, dict):
            given = type(one).__name__
            raise SpecError(f"{where}: workload {number} is a mapping with `model` and `task`, not {given}")
        workload = workload_from(merged_onto(one, changes), f"{where}: workload {number}")
        rows.append(SweptWorkload(workload.name or workload.model, {}, workload))
    return rows


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
        near = nearest_hint(unknown, AXES)
        raise SpecError(f"{where}: sweep.{str(unknown)[:60]}: allowed: {', '.join(AXES)}{near}")
    for key, values in axes.items():
        if not isinstance(values, list) or not 1 <= len(values) <= MOST_VALUES:
            raise SpecError(f"{where}: sweep.{key}: expected a list of 1 to {MOST_VALUES:,} values")
    _check_count(math.prod(map(len, axes.values())), where)
    base = {key: value for key, value in data.items() if key != "sweep"}
    combinations = []
    for values in product(*axes.values()):
        varied, one = dict(zip(axes, values, strict=True)), base
        for key, value in varied.items():
            section, dot, name = AXES[key].rpartition(".")
            change = {name: [value] if WORKLOAD_FILE.options[AXES[key]].repeated else value}
            one = merged_onto(one, {section: change} if dot else change)
        workload = workload_from(merged_onto(one, changes), where, node)
        text = ", ".join(f"{key} {value}" for key, value in varied.items())
        combinations.append(SweptWorkload(f"{workload.name}: {text}" if workload.name else text, varied, workload))
    return combinations


def plan_workload(sent: tuple[str, dict[str, Any], bytes], facts: Facts, assume_family: str | None) -> Planned:
    """Plan one workload of a sweep: its name, what varies, and its JSON; errors become reasons."""
    name, varied, source = sent
    try:
        answer = plan(resolve(msgspec.json.decode(source)), facts, assume_family=assume_family)
    except FlopwiseError as error:
        reasons = error.reasons if isinstance(error, InfeasibleError) else ()
        return Planned(name=name, varied=varied, plan=None, reasons=[str(error), *reasons])
    return Planned(name=name, varied=varied, plan=answer)


def plan_sweep(
    workloads: Sequence[SweptWorkload], facts: Facts, *, engine: str = "inline", assume_family: str | None = None,
    workers: int | None = None, address: str | None = None, advance: Callable[[int, int], None] | None = None,
) -> Sweep:  # fmt: skip
    """Plan every workload, wherever the `engine` has it done; the plans are the same.

    `facts` are sent to the workers. `workers`: processes at once; all cores without it. `address`: of
    the Ray cluster; without it RAY_ADDRESS, or the one that runs on this machine.

    Raises: SpecError: no such engine, Ray is not installed, or no cluster answers.
    """
    started, plans = time.perf_counter(), dict[int, Planned]()
    task = partial(plan_workload, facts=facts, assume_family=assume_family)
    if address is not None and engine != "ray":
        raise SpecError(f"an address is of a Ray cluster; the engine is {engine}: give --engine ray, or no address")
    sent = [(w.name, w.varied, msgspec.json.encode(w.workload.document)) for w in workloads]
    running: Iterator[tuple[int, Planned]]
    if engine == "inline":
        running = enumerate(map(task, sent))
    elif engine == "processes":
        running = _in_processes(sent, task, min(workers or os.cpu_count() or 1, len(sent)))
    elif engine == "ray":
        running = _on_ray(sent, task, address)
    else:
        raise SpecError(f"engine {engine!r} is unknown; a sweep runs on {', '.join(ENGINES)}")
    for number, one in running:
        plans[number] = one
        if advance is not None:
            advance(len(plans), len(sent))
    ordered = [plans[number] for number in range(len(sent))]
    return Sweep(planned=ordered, engine=engine, elapsed_s=time.perf_counter() - started)


def _in_processes(sent: Sequence[Any], task: Callable[[Any], Planned], workers: int) -> Iterator[tuple[int, Planned]]:
    from concurrent.futures import ProcessPoolExecutor, as_completed  # noqa: PLC0415 - 17 ms of every plan
    from multiprocessing import get_context  # noqa: PLC0415 - same

    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(task, one): number for number, one in enumerate(sent)}
        try:
            for done in as_completed(running):
                yield running[done], done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _on_ray(sent: Sequence[Any], task: partial[Planned], address: str | None) -> Iterator[tuple[int, Planned]]:
    """Assumes: the workers have this version of flopwise installed."""
    try:
        import ray  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        raise SpecError(
            "the engine ray needs Ray: install flopwise with its extra, `pip install 'flopwise[ray]'`"
        ) from None
    own = not ray.is_initialized()
    if own:
        where = address or os.environ.get("RAY_ADDRESS") or "auto"
        try:
            _check_reachable(where)
            ray.init(address=where, log_to_driver=False, logging_level="error", configure_logging=True)
        except (OSError, ValueError, RuntimeError) as error:
            reason = str(error).split(". ")[0][:160]
            raise SpecError(
                f"no Ray cluster answers at {where} ({reason}); start one with `ray start --head`, or give --address"
            ) from None
    try:
        remote = ray.remote(num_cpus=1)(task.func)
        running = {remote.remote(one, **task.keywords): number for number, one in enumerate(sent)}
        waiting = list(running)
        while waiting:
            (done, *_), waiting = ray.wait(waiting, num_returns=1)
            yield running[done], ray.get(done)
    finally:
        if own:
            ray.shutdown()


def _check_reachable(where: str) -> None:
    """Raise OSError where no one listens: Ray itself tries for minutes."""
    import socket  # noqa: PLC0415 - only Ray asks

    host, colon, port = where.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACHED_WITHIN_S).close()
