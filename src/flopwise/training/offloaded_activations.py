"""Activations that live in host memory: what each micro-batch sends there and gets back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from flopwise.training.stage_memory import StageMemory, pipeline_stages

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flopwise.training.layer_sums import MemoryTable
    from flopwise.training.layout import Inner, Layout
    from flopwise.training.stages import Partial


def moved_bytes(
    table: MemoryTable, inner: Inner, degrees: NDArray[np.int64], like: Layout, partials: tuple[Partial, ...] = ()
) -> NDArray[np.float64]:
    """Bytes of a micro-batch that the stage which moves most sends to host memory, (modes, d, n).

    Modes are none, selective and full recompute, then `partials`; of `like` only what is no degree is read.

    Source: `StageMemory.moved_bytes`: the same activations as in the memory model.
    Assumes: as there.
    """
    every = np.array([1, 1, 1, *(some.every for some in partials)])
    modes = np.array([0, 1, 2, *(2 for _ in partials)])
    columns = replace(
        like,
        dp=1,
        tp=inner.tp,
        cp=inner.cp,
        ep=inner.ep,
        micro_batch=inner.micro_batch,
        pp=int(degrees[0]) if degrees.size == 1 else degrees[:, None],
        recompute=modes[:, None, None],
        recompute_every=every[:, None, None],
        zero=0,
        shard=0,
    )
    run = StageMemory(table, columns)
    most = np.zeros((modes.size, degrees.size, inner.tp.size))
    for stage in pipeline_stages(table, columns):
        most = np.maximum(most, run.moved_bytes(stage))
    return most
