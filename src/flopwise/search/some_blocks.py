"""Full recompute of every n-th block only: tried where that of all blocks fits, none does not, and it might win.

What is computed again takes time and no block the less memory, so that a layout with some blocks is slower than the
same without recompute, and needs more than the same with all of it. Two bounds thus spare nearly all of this axis.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flopwise.search.space import CHUNK, EVERY, MODES
from flopwise.training.goodput import goodput_frac
from flopwise.training.memory import allocated_and_states
from flopwise.training.stages import FULL, Partial
from flopwise.training.step import step_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flopwise.search.space import Family, Space
    from flopwise.search.training import Searched
    from flopwise.training.step import StepTable

Floats = NDArray[np.floating[Any]]
Columns = tuple[NDArray[Any], ...]

PARTIALS = tuple(Partial(every=n) for n in EVERY)
"""What a step table of a search has beside recompute of all blocks."""


def unsettled(
    space: Space, family: Family, columns: Columns, fits: NDArray[np.bool_], step_s: Floats, *, every: bool
) -> Iterator[Columns]:
    """(row of full recompute, seconds of a step without any, devices) where only some blocks might be better.

    `columns`: (choices, meshes) of some meshes of `family`, as the search has them; `fits` and `step_s`: of each
    choice, fitting or not. Without `every` those that some choice of the same mesh beats are left out. Nothing where
    recompute was asked for, or something lives in host memory.
    """
    if family.recomputes != MODES or space.offload:
        return
    each = (-1, len(MODES), columns[0].shape[1])
    held, none_s = fits.reshape(each), step_s.reshape(each)[:, 0]
    found = held[:, FULL] & ~held[:, 0]
    if not every:
        found &= none_s < columns[1].min(axis=0)
    yield columns[0].reshape(each)[:, FULL][found], none_s[found], columns[3].reshape(each)[:, 0][found]


def open_rows(found: list[Columns], left: list[Columns], *, every: bool) -> NDArray[np.int64]:
    """Rows of `left` that might still be the best; without `every` those whose step without recompute beats `found`."""
    if not left:
        return np.empty(0, dtype=np.int64)
    rows, none_s, gpus = (np.concatenate(c) for c in zip(*left, strict=True))
    if every:
        return rows
    least = np.full(1 + max(int(c[3].max()) for c in found), np.inf)
    for columns in found:
        np.minimum.at(least, columns[3].astype(np.int64), columns[1])
    best: NDArray[np.int64] = rows[none_s < least[gpus]]
    return best


def with_some_blocks(job: Searched, table: StepTable, capacity: float, rows: NDArray[np.int64]) -> Iterator[Columns]:
    """Those of `rows` with each of `EVERY` that fit, as columns like those of the search; `table` has `PARTIALS`."""
    times = 1 + np.arange(len(EVERY))[:, None]
    for start in range(0, rows.size, CHUNK // len(EVERY)):
        part = rows[start : start + CHUNK // len(EVERY)]
        inner, degree, whole = job.space.at_rows(part)
        layout = replace(whole, recompute_every=np.array(EVERY)[:, None])
        memory = np.asarray(allocated_and_states(job.memory, layout)[0])
        step = np.asarray(sum(step_parts(table, inner, degree, layout).values()))
        run = step / goodput_frac(layout.num_gpus, job.checkpoint_bytes, job.reliability)
        fits = memory <= capacity
        again = (part + times * job.space.size, step, run, np.asarray(layout.num_gpus), memory)
        yield tuple(np.broadcast_to(c, fits.shape)[fits] for c in again)
