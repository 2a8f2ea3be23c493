"""The best layouts of a training job on every kind of node, in columns.

What a layout needs in memory does not depend on the machine, so the space and its memory are evaluated once; each kind
of node then times the meshes on which something fits, unless a lower bound says that they cannot win. On one kind of
node a slower run on as many GPUs is worse in everything that a plan weighs, so only the fastest for each number of GPUs
go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flopwise.cost.energy import facility_joules
from flopwise.facts.software import Stack as Software
from flopwise.facts.software import stack
from flopwise.ops.columns import ascending
from flopwise.ops.flops import causal_forward_flops
from flopwise.search.incumbents import Incumbents, Piece
from flopwise.search.some_blocks import PARTIALS, open_rows, unsettled, with_some_blocks
from flopwise.search.space import (
    CHUNK,
    MAX_MICRO_BATCH,
    MAX_PP,
    MAX_TP,
    MODES,
    Family,
    Limits,
    Pipelines,
    Space,
    inner_combinations,
    layouts,
)
from flopwise.training.checkpoint import checkpoint_bytes
from flopwise.training.estimate import recipe_passes, step_watts
from flopwise.training.goodput import DEFAULT_RELIABILITY, Reliability, goodput_frac
from flopwise.training.layout import Layout, Recipe
from flopwise.training.memory import allocated_and_states, confident_capacity_bytes, reported_bytes, tensor_bytes
from flopwise.training.stages import FULL
from flopwise.training.step import Inner, StepTable, balanced_parts, step_parts, step_table, with_partials
from flopwise.training.table import MemoryTable

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.facts.architecture import Model
    from flopwise.search.nodes import NodeKind

Floats = NDArray[np.floating[Any]]
Index = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Searched:
    """A space with the memory of each candidate; arrays of each family have its shape."""

    model: Model
    recipe: Recipe
    software: Software
    space: Space
    allocated_bytes: tuple[Floats, ...]  # by tensors, on any device
    checkpoint_bytes: float  # whatever the layout
    memory: MemoryTable
    host_bytes: tuple[Floats, ...] = ()  # offloaded, per GPU, where anything is
    moved_bytes: NDArray[np.float64] | None = None  # of a micro-batch, where activations are offloaded
    reliability: Reliability = DEFAULT_RELIABILITY


@dataclass(frozen=True, slots=True)
class Timed:
    """Candidates of a space that fit one kind of node, with their times; every array has one entry a candidate."""

    rows: Index
    step_s: Floats
    run_s: Floats
    num_gpus: NDArray[np.int64]
    memory_bytes: Floats
    watts: Floats  # at the meter, of all devices with their hosts; not finite where a device's limit is not known
    table: StepTable | None  # None where nothing fits
    considered: int  # candidates that this kind of node could be laid out as
    fitting: int
    smallest_bytes: float  # of the candidates that do not fit


def searched(
    model: Model,
    recipe: Recipe,
    *,
    most: int,
    least: int = 1,
    max_tp: int = MAX_TP,
    max_pp: int = MAX_PP,
    max_micro_batch: int = MAX_MICRO_BATCH,
    recomputes: tuple[int, ...] = MODES,
    micro_batch: int | None = None,
    schedule: str | None = None,
    shard: int | None = None,
) -> Searched:
    """The whole space of `recipe` on `least` to `most` GPUs, with the memory of every candidate.

    `schedule`: the one of pipelines, by name; None: 1F1B, interleaved, and what else the stack runs.
    """
    limits = Limits.of(model, int(recipe.seq_len), int(recipe.global_batch))
    inner = inner_combinations(limits, min(max_tp, most), micro_batch or max_micro_batch)
    if micro_batch is not None:
        kept = inner.micro_batch == micro_batch
        inner = Inner(inner.tp[kept], inner.cp[kept], inner.ep[kept], inner.micro_batch[kept])
    software = stack(recipe.stack)
    pipelines = Pipelines.of(software, schedule)
    space = layouts(
        limits, inner, most=most, least=least, max_pp=max_pp, recomputes=recomputes, pipelines=pipelines, shard=shard
    )
    table = _memory_table(model, recipe, inner)
    memory = evaluated(space, lambda layout: allocated_and_states(table, layout)[0])
    return Searched(model, recipe, software, space, memory, checkpoint_bytes(table), table)


def _memory_table(model: Model, recipe: Recipe, inner: Inner) -> MemoryTable:
    """The memory table of a model with all degrees of `inner` in it."""
    table = MemoryTable(model, recipe)
    if inner.tp.size:
        table.prepare(inner.tp, inner.ep, inner.cp, PARTIALS)
    return table


def evaluated(space: Space, bytes_of: Callable[[Layout], Any]) -> tuple[Floats, ...]:
    """A figure of every candidate, chunk by chunk; an array for each family, with its shape."""
    found = []
    for family in space.families:
        whole = np.empty(family.shape)
        for part in family.chunks(CHUNK):
            whole[..., part] = bytes_of(space.columns(family.take(part)))
        found.append(whole)
    return tuple(found)


Known = dict[tuple[str, float, float], StepTable]


def node_table(job: Searched, built: Cluster, known: Known) -> StepTable:
    """The step table of the space on one kind of node; `known` keeps those of the job by device.

    Raises:
        MissingFactError: the device lacks a rate that the recipe needs.
    """
    device = (built.rates.name, built.rates.num_sms, built.rates.hbm_bytes_per_s)  # a share of a device is another
    same = known.get(device)
    table = step_table(
        job.model,
        job.recipe,
        job.software,
        built.rates,
        built.fabric,
        job.space.inner,
        job.space.degrees,
        kernels=None if same is None else same.kernels,
        like=next(iter(known.values()), None),
    )
    known.setdefault(device, table)
    return table if job.moved_bytes is None else replace(table, moved_bytes=job.moved_bytes)


def steps_s(table: StepTable, space: Space, family: Family) -> Floats:
    """Seconds of the step of every candidate of `family`; has its shape."""
    lines = step_parts(table, family.inner_index, family.degree_index, space.columns(family))
    small_first = sorted(lines.values(), key=np.size)
    total = small_first[0]
    for line in small_first[1:]:
        total = total + line
    return np.broadcast_to(total, family.shape)


def _merged(found: list[tuple[Any, ...]], *, every: bool) -> list[Any]:
    """The pieces' columns as one; of what is fastest for a number of GPUs only the fastest, unless `every` is kept."""
    merged = [np.concatenate(arrays) for arrays in zip(*found, strict=True)] if found else [np.empty(0)] * 5
    if every or not found:
        return merged
    keep = ascending(np.concatenate([_least_per_count(merged[3], merged[k]) for k in (1, 2)]))
    return [a[keep] for a in merged]


@dataclass(slots=True)
class _Tally:
    """What a search on one kind of node has met so far."""

    considered: int = 0
    fitting: int = 0
    smallest: float = float("inf")  # tensors of the smallest that does not fit


def timed(
    job: Searched,
    node: NodeKind,
    tokens: float,
    known: Known,
    *,
    margin: float = 1.0,
    every: bool = False,
    after: Timed | None = None,
    unless: Searched | None = None,
) -> Timed:
    """Step and run time on `node` of the fastest candidates for each number of GPUs, or of `every` one that fits.

    `known` keeps what nodes of the same device share. `margin`: what a candidate's memory is multiplied by before it is
    held against the device's. `after`: what was found on this node, which is to be beaten. `unless`: the same
    candidates, better where they fit. Meshes that cannot be the fastest by a lower bound of their steps are not timed.

    Raises:
        MissingFactError: the device lacks a rate that the recipe needs.
    """
    table = None
    if after is not None and after.table is not None:
        table = replace(after.table, moved_bytes=job.moved_bytes)
    kind = node.cluster.accelerator.kind
    capacity = tensor_bytes(node.cluster.accelerator.hbm_bytes / margin, job.software, kind)
    found, left = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    tally, best = _Tally(), Incumbents(job.space, after)
    for family, start, piece in _fitting(job, node, capacity, unless, tally):
        table = table or node_table(job, node.cluster, known)
        meshes, memory, fits = piece if every else best.beatable(table, job.space, family, piece)
        if not meshes.size:
            continue
        whole_s = steps_s(table, job.space, family.take(meshes))
        columns = _columns(job, family, start, meshes, np.where(fits, whole_s, np.inf), memory)
        found.append(_finite(columns) if every else _fastest(columns))
        best.met(found[-1][3], found[-1][1])
        left += unsettled(job.space, family, columns, fits, whole_s, every=every)
    if table is not None and (rest := open_rows(found, left, every=every)).size:
        table = with_partials(table, job.model, PARTIALS)
        found += with_some_blocks(job, table, capacity, rest)
    merged = _merged(found, every=every)
    return Timed(
        rows=(rows := merged[0].astype(np.intp)),
        step_s=merged[1],
        run_s=tokens / job.recipe.useful_tokens * merged[2],
        num_gpus=merged[3].astype(np.int64),
        memory_bytes=np.asarray(reported_bytes(merged[4], job.software, kind)),
        watts=meter_watts(job, node, table, rows),
        table=table,
        considered=tally.considered,
        fitting=tally.fitting,
        smallest_bytes=float(reported_bytes(tally.smallest, job.software, kind)) if tally.smallest < np.inf else 0.0,
    )


def _fitting(
    job: Searched, node: NodeKind, capacity: float, unless: Searched | None, tally: _Tally
) -> Iterator[tuple[Family, int, Piece]]:
    """(family, its first row, piece) of the meshes on which something fits; small families first, to be beaten."""
    starts = job.space.starts
    for number in sorted(range(len(starts)), key=lambda i: job.space.families[i].meshes):
        family = job.space.families[number]
        meshes = _allowed(job.space, family, node)
        tally.considered += meshes.size * family.choices
        for part in family.take(meshes).chunks(CHUNK):
            chosen = meshes[part]
            memory = job.allocated_bytes[number][..., chosen]
            fits = memory <= capacity
            if unless is not None:
                fits &= unless.allocated_bytes[number][..., chosen] > capacity
            if job.host_bytes:
                fits &= job.host_bytes[number][..., chosen] <= node.host_bytes
            tally.fitting += int(np.count_nonzero(fits))
            tally.smallest = min(tally.smallest, float(memory.min(where=~fits, initial=np.inf)))
            usable = np.flatnonzero(fits.reshape(-1, chosen.size).any(axis=0))
            if usable.size == chosen.size:
                yield family, starts[number], (chosen, memory, fits)
            elif usable.size:
                yield family, starts[number], (chosen[usable], memory[..., usable], fits[..., usable])


def _columns(
    job: Searched, family: Family, start: int, meshes: Index, step: Floats, memory: Floats
) -> tuple[NDArray[Any], ...]:
    """(row, step, time of the run for each of its steps, devices, bytes) of all choices of some meshes."""
    gpus = family.num_gpus[meshes]
    rows = np.arange(family.choices)[:, None] * family.meshes + meshes + start
    run = step / goodput_frac(gpus, job.checkpoint_bytes, job.reliability)
    each = (rows, step, run, np.broadcast_to(gpus, step.shape), memory)
    return tuple(a.reshape(family.choices, -1) for a in each)


def meter_watts(job: Searched, node: NodeKind, table: StepTable | None, rows: Index) -> Floats:
    """Power of candidates at the meter, hosts and cooling included, in W; infinite where the limit is not known."""
    device = node.cluster.accelerator
    if device.tdp_w is None or table is None or not rows.size:
        return np.full(rows.size, np.inf)
    inner, degree, layout = job.space.at_rows(rows)
    parts = balanced_parts(table, inner, degree, layout)
    memory_s = job.recipe.global_batch / (layout.dp * layout.micro_batch) * table.memory_s[degree, inner]
    drawn = step_watts(device.tdp_w, parts, memory_s)
    return np.asarray(facility_joules(device, layout.num_gpus, drawn, 1.0))


def _allowed(space: Space, family: Family, node: NodeKind) -> Index:
    """Meshes of whole nodes whose tensor ranks share the fast link; of one node where the network is not known."""
    domain = max(node.cluster.fabric.domain, 1)
    whole = family.num_gpus % node.count == 0 if node.networked else family.num_gpus == node.count
    tp = space.inner.tp[family.inner_index]
    found: Index = np.flatnonzero(whole & (tp <= (domain if node.networked else min(domain, node.count))))
    return found


def _finite(columns: tuple[NDArray[Any], ...]) -> tuple[NDArray[Any], ...]:
    keep = np.isfinite(columns[1])
    return tuple(a[keep] for a in columns)


def _fastest(columns: tuple[NDArray[Any], ...]) -> tuple[NDArray[Any], ...]:
    """Of each mesh, the choices with the shortest step and with the shortest run; columns of (choices, meshes)."""
    mesh = np.arange(columns[0].shape[1])
    picks = [columns[1].argmin(axis=0), columns[2].argmin(axis=0)]
    return tuple(np.concatenate([a[pick, mesh] for pick in picks]) for a in columns)


def _least_per_count(gpus: NDArray[Any], value: Floats) -> Index:
    """The index of the least `value` for each number of GPUs."""
    least = np.full(int(gpus.max()) + 1, np.inf)
    np.minimum.at(least, gpus, value)
    candidates = np.flatnonzero(value == least[gpus])
    candidates = candidates[np.argsort(gpus[candidates], kind="stable")]
    first = np.ones(candidates.size, dtype=bool)
    first[1:] = np.diff(gpus[candidates]) > 0
    found: Index = candidates[first]
    return found


def fastest(
    model: Model, recipe: Recipe, built: Cluster, gpus: int, *, recompute: int | None, micro_batch: int | None
) -> tuple[Layout, int, int] | None:
    """The layout of the least step time among those that fit with a probability of `FITS_WITH`, and how it was found.

    Where none is so sure to fit, the layout that needs the least memory: the likeliest to fit. Returns the layout, the
    number of layouts and how many of them are so sure to fit, or None if there is no layout.
    """
    job = searched(
        model,
        recipe,
        most=gpus,
        least=gpus,
        max_tp=min(built.fabric.domain, 8),
        max_pp=16,
        max_micro_batch=8,
        recomputes=MODES if recompute is None else (recompute,),
        micro_batch=micro_batch,
    )
    if not job.space.size:
        return None
    capacity = _confident_tensor_bytes(job, built)
    held = job.allocated_bytes
    fitting = sum(int((m <= capacity).sum()) for m in held)
    if fitting:
        table = node_table(job, built, {})
        values = [np.where(m <= capacity, s, np.inf) for m, s in zip(held, _steps(job, table), strict=True)]
    else:
        values = list(held)
    layout = job.space.layout(int(np.concatenate([v.ravel() for v in values]).argmin()))
    if fitting and recompute is None:
        layout = with_fewer_again(job, layout, built)
    return layout, job.space.size, fitting


def _confident_tensor_bytes(job: Searched, built: Cluster) -> float:
    """The most bytes of tensors that are sure enough to fit a device of the cluster."""
    most = confident_capacity_bytes(job.recipe, built.accelerator.hbm_bytes)
    return tensor_bytes(most, job.software, built.accelerator.kind)


def with_fewer_again(job: Searched, layout: Layout, built: Cluster) -> Layout:
    """`layout`, with full recompute of as few blocks as surely fit: never slower, as less is computed again."""
    if int(layout.recompute) != FULL:
        return layout
    table = MemoryTable(job.model, job.recipe)
    capacity = _confident_tensor_bytes(job, built)
    for blocks in range(1, -(-job.model.stacks[0].num_layers // (int(layout.pp) * int(layout.interleave)))):
        fewer = replace(layout, recompute_first=blocks)
        if allocated_and_states(table, fewer)[0] <= capacity:
            return fewer
    return layout


def _steps(job: Searched, table: StepTable) -> Iterator[Floats]:
    return (steps_s(table, job.space, family) for family in job.space.families)


def floor_flops(job: Searched) -> float:
    """Operations of a token that no layout avoids."""
    passes = recipe_passes(job.model, job.recipe, 1, int(job.recipe.seq_len))
    tokens, attended = (float(np.ravel(n)[0]) for n in job.recipe.computed(1))
    each = job.recipe.useful_tokens / float(job.recipe.global_batch)
    return passes * float(causal_forward_flops(job.model, tokens / attended, int(attended))) / each


def floor_gpu_s(job: Searched, node: NodeKind, flops: float) -> float:
    """Device-seconds that `flops` operations take at least: at the datasheet's peak rate.

    Raises:
        MissingFactError: the device lacks a rate that the recipe needs.
    """
    return flops / node.cluster.rates.peak_flops_per_s(job.recipe.precision)
