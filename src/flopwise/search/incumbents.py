"""The fastest step found so far for each number of devices, and which meshes could still beat it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flopwise.search.space import MODES
from flopwise.training.offload import passes_transfer_s
from flopwise.training.stages import FULL

if TYPE_CHECKING:
    from flopwise.search.space import Family, Space
    from flopwise.search.training import Timed
    from flopwise.training.step import StepTable

Floats = NDArray[np.floating[Any]]
Index = NDArray[np.intp]
Piece = tuple[Index, Floats, NDArray[np.bool_]]
"""Some meshes of a family, and of every choice on them the bytes of tensors and whether they fit."""


class Incumbents:
    """Seconds of the fastest step for each number of devices; infinite where there is none yet."""

    def __init__(self, space: Space, after: Timed | None) -> None:
        """Start from what was found `after` an earlier search of the same meshes on the same devices, if there was one.

        For a number of devices, the run is the longer the longer its step is; cost and time follow it.
        """
        counts = [family.num_gpus for family in space.families] + ([] if after is None else [after.num_gpus])
        self.least = np.full(1 + max((int(each.max(initial=0)) for each in counts), default=0), np.inf)
        if after is not None:
            self.met(after.num_gpus, after.step_s)

    def met(self, gpus: NDArray[np.int64], step_s: Floats) -> None:
        """Keep the fastest of these steps, too."""
        np.minimum.at(self.least, gpus, step_s)

    def beatable(self, table: StepTable, space: Space, family: Family, piece: Piece) -> Piece:
        """Those meshes of a piece of `family` that have a choice that fits and might be the fastest.

        A step takes at least `floor_s`. Where full recompute fits, some of it may: that takes no less than none.
        """
        meshes, memory, fits = piece
        held = family.take(meshes)
        possible = np.asarray(fits.any(axis=(0, 1)))
        if family.recomputes == MODES:
            possible[0] |= possible[FULL]
        least = np.where(possible, floor_s(table, space, held), np.inf).min(axis=0)
        worth = np.flatnonzero(least < self.least[held.num_gpus])
        if worth.size == meshes.size:
            return piece
        return meshes[worth], memory[..., worth], fits[..., worth]


def floor_s(table: StepTable, space: Space, family: Family) -> Floats:
    """Least seconds of a step for each recompute mode and mesh of `family`, (modes, meshes), whatever else is chosen.

    What the busiest stage takes for all micro-batches, with what activations on the host add, and the bubble of the
    most interleaved 1F1B; messages across replicas, launches and the optimizer come on top.
    """
    modes, inner, degree = np.array(family.recomputes)[:, None], family.inner_index, family.degree_index
    stage = table.stage_parts.sum(axis=0)
    each_s, others = stage, np.maximum(table.model_s[:, None] - stage, 0.0)
    if table.moved_bytes is not None:
        known, parts = len(table.moved_bytes), table.stage_parts
        open_s = passes_transfer_s(
            0.0, table.moved_bytes, table.rates, parts[0, :known], parts[1, :known] + parts[2, :known], 1.0
        )
        each_s = stage[:known] + open_s
    num_micro = table.recipe.global_batch / (family.dp * space.inner.micro_batch[inner])
    total: Floats = each_s[modes, degree, inner] * num_micro
    if any(turn.schedule for turn in family.turns):
        return total
    deepest = max(turn.interleave for turn in family.turns)
    bubble: Floats = others[modes, degree, inner] * ((space.degrees[degree] > 1) / deepest)
    return total + bubble
