"""The best layouts of a training job on every kind of node: all of them evaluated, in columns.

What a layout needs in memory does not depend on the machine, so the space and its memory are evaluated once; each kind
of node then takes the rows that fit, and times them. Of the recompute modes only the cheapest that fits can be best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flopwise.facts.software import Stack as Software
from flopwise.facts.software import stack
from flopwise.ops.flops import causal_forward_flops
from flopwise.search.space import MODES, Limits, Space, inner_combinations, layouts
from flopwise.training.blocks import Kernels
from flopwise.training.goodput import goodput_frac
from flopwise.training.layout import Layout, Recipe
from flopwise.training.memory import peak_and_states
from flopwise.training.step import StepTable, step_parts, step_table
from flopwise.training.table import MemoryTable

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model
    from flopwise.search.nodes import NodeKind

Floats = NDArray[np.floating[Any]]
MAX_TP = 16
MAX_MICRO_BATCH = 32
CHUNK = 16_384
"""Rows evaluated at once: intermediate columns stay in the cache."""


@dataclass(frozen=True, slots=True)
class Searched:
    """A space with the memory of each row; rows come in groups of `MODES`, a recompute mode each, fastest first."""

    model: Model
    recipe: Recipe
    software: Software
    space: Space
    memory_bytes: Floats
    states_bytes: Floats  # what the fullest rank holds through the step: what a checkpoint writes


@dataclass(frozen=True, slots=True)
class Timed:
    """Rows of a space that fit one kind of node, with their step times; every array has one entry a row."""

    rows: NDArray[np.intp]
    step_s: Floats
    run_s: Floats
    num_gpus: NDArray[np.int64]
    table: StepTable
    considered: int
    too_big: int
    smallest_bytes: float  # of the rows that do not fit


def gpu_counts(most: int, least: int = 1) -> NDArray[np.int64]:
    """Numbers of GPUs worth asking about: powers of two, 3 and 5 times them, up to `most`."""
    powers = 2 ** np.arange(0, 18)
    counts = np.unique(np.concatenate([powers, 3 * powers, 5 * powers]))
    kept: NDArray[np.int64] = counts[(counts <= most) & (counts >= least)]
    return kept if kept.size else np.array([least])


def searched(model: Model, recipe: Recipe, counts: NDArray[np.int64], *, max_domain: int = MAX_TP) -> Searched:
    """The whole space of `recipe` on these numbers of GPUs, with the memory of every row."""
    limits = Limits.of(model, int(recipe.seq_len), int(recipe.global_batch))
    inner = inner_combinations(limits, min(max_domain, MAX_TP), MAX_MICRO_BATCH)
    space = layouts(limits, inner, counts)
    table = MemoryTable(model, recipe)
    total, states = np.empty(space.size), np.empty(space.size)
    for start in range(0, space.size, CHUNK):
        part = slice(start, start + CHUNK)
        total[part], states[part] = peak_and_states(table, columns(space.take(part)))
    return Searched(model, recipe, stack(recipe.stack), space, total, states)


def columns(space: Space) -> Layout:
    """The space as one `Layout` of columns."""
    i, inner = space.inner_index, space.inner
    return Layout(
        dp=space.dp,
        tp=inner.tp[i],
        pp=space.degrees[space.degree_index],
        cp=inner.cp[i],
        ep=inner.ep[i],
        zero=space.zero,
        micro_batch=inner.micro_batch[i],
        interleave=space.interleave,
        recompute=space.recompute,
    )


def timed(
    job: Searched, node: NodeKind, tokens: float, kernels: dict[int, list[Kernels]], *, margin: float = 1.0
) -> Timed:
    """Step and run time of every row that fits `node`. `kernels` keeps kernel times between nodes of the same device.

    `margin`: what a row's memory is multiplied by before it is held against the device's.

    Raises:
        MissingFactError: the device lacks a rate that the recipe needs.
    """
    space, built = job.space, node.cluster
    groups = space.num_gpus[::MODES]
    inner = space.inner
    domain = min(max(built.fabric.domain, 1), node.count) if not node.networked else max(built.fabric.domain, 1)
    allowed = (groups % node.count == 0) & (inner.tp[space.inner_index[::MODES]] <= domain)
    if not node.networked:
        allowed &= groups == node.count
    candidates = np.flatnonzero(allowed)
    fits = job.memory_bytes.reshape(-1, MODES)[candidates] <= built.accelerator.hbm_bytes / margin
    first = fits.argmax(axis=1)
    any_fits = fits.any(axis=1)
    rows = candidates[any_fits] * MODES + first[any_fits]
    unfit = job.memory_bytes.reshape(-1, MODES)[candidates[~any_fits]]
    smallest = float(unfit.min()) if unfit.size else 0.0
    table = step_table(
        job.model,
        job.recipe,
        job.software,
        built.rates,
        built.fabric,
        inner,
        space.degrees,
        kernels=kernels.get(id(built.accelerator)),
    )
    kernels.setdefault(id(built.accelerator), table.kernels)
    step_s = np.empty(rows.size)
    for start in range(0, rows.size, CHUNK):
        part = space.take(rows[start : start + CHUNK])
        lines = step_parts(table, part.inner_index, part.degree_index, columns(part))
        step_s[start : start + CHUNK] = sum(lines.values())
    num_gpus = space.num_gpus[rows]
    steps = tokens / (float(job.recipe.global_batch) * float(job.recipe.seq_len))
    good = np.where(num_gpus > 1, goodput_frac(num_gpus, job.states_bytes[rows]), 1.0)
    return Timed(
        rows=rows,
        step_s=step_s,
        run_s=steps * step_s / good,
        num_gpus=num_gpus,
        table=table,
        considered=int(candidates.size) * MODES,
        too_big=int((~any_fits).sum()) * MODES,
        smallest_bytes=smallest,
    )


def row_parts(job: Searched, result: Timed, index: int) -> dict[str, float]:
    """The lines of the step of entry `index` of a timed result."""
    part = job.space.take(result.rows[index : index + 1])
    lines = step_parts(result.table, part.inner_index, part.degree_index, columns(part))
    return {name: float(np.asarray(value).ravel()[0]) for name, value in lines.items()}


def floor_gpu_s(job: Searched, node: NodeKind, tokens: float) -> float:
    """Device-seconds that the run takes at least: its operations at the datasheet's peak rate.

    Raises:
        MissingFactError: the device lacks a rate that the recipe needs.
    """
    passes = 3.0 if job.recipe.lora is None else 2.0
    per_token = float(causal_forward_flops(job.model, 1, int(job.recipe.seq_len))) / float(job.recipe.seq_len)
    return passes * per_token * tokens / node.cluster.rates.peak_flops_per_s(job.recipe.precision)
