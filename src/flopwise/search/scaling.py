"""How single ways of spreading a job scale with the number of GPUs, and why each of them bends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flopwise.facts.software import stack
from flopwise.search.space import Limits, powers_of_two
from flopwise.search.training import fastest
from flopwise.training.layout import COLUMNS, Layout, Recipe
from flopwise.training.memory import confident_capacity_bytes, peak_bytes
from flopwise.training.muon import NEWTON_SCHULZ
from flopwise.training.step import Inner, step_parts, step_table
from flopwise.training.table import MemoryTable
from flopwise.units import format_gib

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.facts.architecture import Model

STRATEGIES = ("data", "zero-1", "fsdp", "tensor", "pipeline", "context", "expert", "hybrid")
"""One degree grows with the GPUs, or the best of all (hybrid); expert: data parallel with experts spread over it."""
MEANINGS = {
    "data": "replicas (DDP)", "zero-1": "replicas, states sharded (ZeRO 1)", "fsdp": "all sharded (FSDP, ZeRO 3)",
    "tensor": "tensor parallel", "pipeline": "pipeline stages", "context": "parts of each sequence",
    "expert": "replicas, experts spread", "hybrid": "the best of all layouts",
}  # fmt: skip
BENT_FRAC = 0.8
"""Efficiency below which a way of spreading counts as bent."""
MICRO_BATCHES = 16
_FULLY = 3
CAUSES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("tensor-parallel messages are exposed", ("tensor_parallel",)),
    ("context-parallel messages are exposed", ("context_parallel",)),
    ("expert all-to-alls are exposed", ("expert_parallel",)),
    ("messages of gradients and weights are exposed", ("data_parallel",)),
    ("messages between stages", ("pipeline_p2p",)),
    ("pipeline bubble", ("pipeline_bubble",)),
    ("launching kernels takes longer than running them", ("launch",)),
    ("recompute, to fit the memory", ("recompute",)),
    ("the optimizer's step does not shrink", ("optimizer", NEWTON_SCHULZ)),
    ("kernels too small to be fast", ("forward", "backward")),
)
"""Why a step is longer than its share of the reference, and the lines of the step that say so."""
UNEVEN = "the fullest stage (head, embedding, layers left over) sets the pace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One way of spreading on one number of GPUs; without layout or time where it cannot be, `reason` says why."""

    strategy: str
    num_gpus: int
    global_batch: int
    fits: bool
    layout: Layout | None = None
    step_s: float | None = None
    memory_bytes: float | None = None
    samples_per_s: float | None = None  # sequences
    efficiency_frac: float | None = None  # of the reference's throughput a GPU
    reason: str = ""  # what bends it


@dataclass(frozen=True, slots=True, kw_only=True)
class Bend:
    """Where a way of spreading leaves the straight line, and why; None: it does not, up to the GPUs asked."""

    strategy: str
    num_gpus: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Every way of spreading on 1, 2, 4 ... GPUs, against `reference`: the best on the fewest GPUs that it fits."""

    weak: bool
    points: tuple[Point, ...]
    bends: tuple[Bend, ...]
    reference: Point | None


@dataclass(frozen=True, slots=True)
class _Timed:
    """Candidates of one number of GPUs; `lines` of each step."""

    layout: Layout
    names: tuple[str, ...]
    memory: NDArray[np.float64]
    step: NDArray[np.float64]
    lines: dict[str, NDArray[np.float64]]


def comparison(
    model: Model, recipe: Recipe, cluster: Cluster, gpus: int, *, weak: bool = False, micro_batch: int | None = None
) -> Comparison:
    """Compare all ways of spreading on powers of two up to `gpus`, and on `gpus`.

    Strong scaling keeps the recipe's global batch; weak scaling keeps that batch for each GPU of `gpus`.

    Raises:
        MissingFactError: the device lacks a rate that the recipe needs.
    """
    counts = sorted({*powers_of_two(gpus).tolist(), gpus})
    points: list[Point] = []
    reference: Point | None = None
    ideal: dict[str, float] = {}
    for count in counts:
        batch = int(recipe.global_batch)
        if weak:
            batch = max(1, batch * count // gpus)
        here = replace(recipe, global_batch=batch)
        plans, ruled = _candidates(model, here, cluster, count, micro_batch)
        if plans is None:
            points += [Point(strategy=s, num_gpus=count, global_batch=batch, fits=False, reason=r) for s, r in ruled]
            continue
        timed = _timed(model, here, cluster, *plans)
        capacity = cluster.accelerator.hbm_bytes
        sure = confident_capacity_bytes(here, capacity)
        picked = {name: _best(timed, name, sure) for name in dict.fromkeys((*timed.names, "hybrid"))}
        if reference is None and timed.memory[picked["hybrid"]] <= capacity:
            reference = _point("hybrid", count, here, timed, picked["hybrid"], capacity, None, {})
            ideal = {n: float(v[picked["hybrid"]]) * count / batch for n, v in timed.lines.items()}
            reference = replace(reference, efficiency_frac=1.0)
        held = {n: _point(n, count, here, timed, i, capacity, reference, ideal) for n, i in picked.items()}
        held |= {s: Point(strategy=s, num_gpus=count, global_batch=batch, fits=False, reason=r) for s, r in ruled}
        points += [held[s] for s in STRATEGIES if s in held]
    shown = [s for s in STRATEGIES if any(p.strategy == s for p in points)]
    return Comparison(
        weak=weak, points=tuple(points), bends=tuple(_bend(s, points) for s in shown), reference=reference
    )


def ruled_out(strategy: str, count: int, limits: Limits, batch: int) -> str:
    """Why `strategy` cannot use `count` GPUs; empty where it can."""
    replicas = {
        f"the batch is exhausted: {batch:,} sequences for {count:,} replicas": count > batch,
        f"{batch:,} sequences do not divide by {count:,} replicas": batch % count != 0,
    }
    others = {
        "tensor": {f"{limits.heads} attention heads do not divide by {count:,}": limits.heads % count != 0},
        "pipeline": {f"{count:,} stages are more than the {limits.layers} layers": count > limits.layers},
        "context": {f"{limits.seq_len:,} tokens do not divide by 2 x {count:,}": limits.seq_len % (2 * count) != 0},
    }
    return next((reason for reason, holds in others.get(strategy, replicas).items() if holds), "")


def _degrees(strategy: str, count: int, limits: Limits) -> dict[str, int]:
    """The degrees of `strategy` on `count` GPUs."""
    zero = {"zero-1": 1, "fsdp": 3, "expert": 1}.get(strategy, 0) if count > 1 else 0
    if strategy in ("tensor", "pipeline", "context"):
        return {{"tensor": "tp", "pipeline": "pp", "context": "cp"}[strategy]: count}
    experts = int(np.gcd(count, limits.experts)) if strategy == "expert" else 1
    return {"dp": count, "zero": zero, "ep": experts}


def _candidates(
    model: Model, recipe: Recipe, cluster: Cluster, count: int, micro_batch: int | None
) -> tuple[tuple[Layout, tuple[str, ...]] | None, list[tuple[str, str]]]:
    """Candidates of all strategies as one layout of columns, whose each is; and (strategy, reason) of those without."""
    batch = int(recipe.global_batch)
    limits = Limits.of(model, int(recipe.seq_len), batch)
    rows: list[dict[str, int]] = []
    names: list[str] = []
    ruled: list[tuple[str, str]] = []
    software = stack(recipe.stack)
    single = [s for s in STRATEGIES[:-1] if s != "expert" or limits.experts > 1]
    for strategy in single:
        reason = ruled_out(strategy, count, limits, batch)
        if strategy == "fsdp" and software.zero < _FULLY:
            reason = f"{software.name} shards by ZeRO {software.zero} at most"
        if reason:
            ruled.append((strategy, reason))
            continue
        base = _degrees(strategy, count, limits)
        each = batch // base.get("dp", 1)
        micros = [micro_batch] if micro_batch else powers_of_two(min(MICRO_BATCHES, each)).tolist()
        for micro in (m for m in micros if each % m == 0):
            for chunks in _chunks(base.get("pp", 1), each // micro, limits.layers):
                found = {**base, "micro_batch": micro, "interleave": chunks}
                rows += [{**found, "recompute": mode} for mode in range(3)]
                names += [strategy] * 3
    best = fastest(model, recipe, cluster, count, recompute=None, micro_batch=micro_batch)
    if best is None:
        ruled.append(("hybrid", f"no layout of {count:,} GPUs divides {batch:,} sequences"))
    else:
        rows.append({name: int(getattr(best[0], name)) for name in COLUMNS})
        names.append("hybrid")
    if not rows:
        return None, ruled
    default = {name: int(getattr(Layout(), name)) for name in COLUMNS}
    columns: dict[str, Any] = {name: np.array([{**default, **row}[name] for row in rows]) for name in COLUMNS}
    return (replace(Layout(), **columns), tuple(names)), ruled


def _chunks(stages: int, micro_batches: int, layers: int) -> list[int]:
    """Virtual stages of each rank that come out even."""
    if stages == 1 or micro_batches % stages:
        return [1]
    return [1, *(v for v in (2, 4) if layers % (stages * v) == 0)]


def _timed(model: Model, recipe: Recipe, cluster: Cluster, layout: Layout, names: tuple[str, ...]) -> _Timed:
    """Memory and step of every candidate."""
    keys = np.stack([np.asarray(getattr(layout, n)) for n in ("tp", "cp", "ep", "micro_batch")])
    distinct, inner = np.unique(keys, axis=1, return_inverse=True)
    degrees, degree = np.unique(np.asarray(layout.pp), return_inverse=True)
    table = step_table(model, recipe, stack(recipe.stack), cluster.rates, cluster.fabric, Inner(*distinct), degrees)
    parts = step_parts(table, inner.ravel(), degree.ravel(), layout)
    lines = {name: np.broadcast_to(np.asarray(value, dtype=float), (len(names),)) for name, value in parts.items()}
    memory = np.broadcast_to(
        np.asarray(peak_bytes(MemoryTable(model, recipe), layout, cluster.accelerator.kind)), (len(names),)
    )
    step: NDArray[np.float64] = np.sum(list(lines.values()), axis=0)
    return _Timed(layout, names, memory, step, lines)


def _best(timed: _Timed, strategy: str, capacity: float) -> int:
    """The fastest candidate of `strategy` (hybrid: of all) below `capacity`, else that of the least memory."""
    mine = np.array([strategy in ("hybrid", name) for name in timed.names])
    fits = mine & (timed.memory <= capacity)
    if fits.any():
        return int(np.where(fits, timed.step, np.inf).argmin())
    return int(np.where(mine, timed.memory, np.inf).argmin())


def _point(
    strategy: str,
    count: int,
    recipe: Recipe,
    timed: _Timed,
    index: int,
    capacity: float,
    reference: Point | None,
    ideal: dict[str, float],
) -> Point:
    """What came out for one strategy; `ideal`: GPU-seconds a sequence of each line of the reference."""
    step, memory, batch = float(timed.step[index]), float(timed.memory[index]), int(recipe.global_batch)
    fits = memory <= capacity
    rate = batch / step
    point = Point(
        strategy=strategy, num_gpus=count, global_batch=batch, fits=fits, layout=timed.layout.at(index), step_s=step,
        memory_bytes=memory, samples_per_s=rate,
    )  # fmt: skip
    if not fits:
        needs = f"does not fit: {format_gib(memory)} of {format_gib(capacity)}"
        return replace(point, reason=needs)
    if reference is None or reference.samples_per_s is None:
        return point
    efficiency = rate / count / (reference.samples_per_s / reference.num_gpus)
    excess = {
        cause: sum(float(timed.lines[n][index]) - ideal[n] * batch / count for n in lines if n in ideal)
        for cause, lines in CAUSES
    }
    worst = max(excess, key=lambda cause: excess[cause])
    said = UNEVEN if worst == CAUSES[-1][0] and int(np.asarray(timed.layout.pp).ravel()[index]) > 1 else worst
    reason = f"{said} ({100 * excess[worst] / step:.0f} % of the step)"
    return replace(point, efficiency_frac=efficiency, reason=reason if efficiency < 1 and excess[worst] > 0 else "")


def _bend(strategy: str, points: list[Point]) -> Bend:
    """The first number of GPUs from which on `strategy` is bent or impossible."""
    mine = [p for p in points if p.strategy == strategy]
    good = [p.efficiency_frac is not None and p.efficiency_frac >= BENT_FRAC for p in mine]
    if not any(good):
        fitting = [p for p in mine if p.fits]
        sized = [p for p in mine if p.memory_bytes is not None]
        nearest = fitting[0] if fitting else min(sized or mine, key=lambda p: p.memory_bytes or 0.0)
        at = f" on {nearest.num_gpus:,} GPUs" if nearest.num_gpus != mine[0].num_gpus else ""
        return Bend(strategy=strategy, num_gpus=mine[0].num_gpus, reason=nearest.reason + at)
    last = max(i for i, fine in enumerate(good) if fine)
    if last + 1 == len(mine):
        return Bend(strategy=strategy, num_gpus=None, reason="")
    return Bend(strategy=strategy, num_gpus=mine[last + 1].num_gpus, reason=mine[last + 1].reason)


def document(found: Comparison) -> dict[str, Any]:
    """The comparison in plain values."""
    return {
        "scaling": "weak" if found.weak else "strong",
        "reference": None if found.reference is None else _plain(found.reference),
        "points": [_plain(point) for point in found.points],
        "bends": [{"strategy": b.strategy, "num_gpus": b.num_gpus, "reason": b.reason or None} for b in found.bends],
    }


def _plain(point: Point) -> dict[str, Any]:
    layout = None if point.layout is None else {name: int(getattr(point.layout, name)) for name in COLUMNS}
    return {
        "strategy": point.strategy,
        "num_gpus": point.num_gpus,
        "global_batch": point.global_batch,
        "fits": point.fits,
        "layout": layout,
        "step_s": point.step_s,
        "memory_bytes": point.memory_bytes,
        "samples_per_s": point.samples_per_s,
        "efficiency_frac": point.efficiency_frac,
        "reason": point.reason or None,
    }
