"""Checkpoints of a run: how large, how long to write, how often."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flopwise.ops.types import Floats
from flopwise.training.layout import Layout
from flopwise.training.peak import Evaluation, adapter_widths

if TYPE_CHECKING:
    from flopwise.training.table import MemoryTable


def checkpoint_bytes(table: MemoryTable) -> float:
    """Size of a checkpoint to resume from, in bytes: trained weights, master weights and optimizer states, once.

    Source: the widths of the memory model (`flopwise.training.peak`). Gradients and frozen weights are not written.
    Assumes: replicas write one copy together.
    """
    run, sums = Evaluation(table, Layout()), table.sums(Layout())[0]
    layers = float(sums.dense[-1, 0] + sums.expert[-1, 0])
    ends = float(sums.before[0] + sums.after[0])
    others = ends - float(sums.tower_matrices[0]) + float(sums.others[-1, 0])
    of_ends = run.width if table.lora is None else adapter_widths(table.recipe, table, table.elem_bytes)
    stored = sum(n * (w.weights + w.master + w.states) for n, w in ((layers, run.width), (ends, of_ends)))
    return stored + others * of_ends.others


def daly_interval_s(stall_s: Floats, mtbf_s: Floats) -> Floats:
    """Work between checkpoints that loses least, in s; broadcasts.

    sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d below d = 2 M, else M.

    Source: Daly 2006 (doi:10.1016/j.future.2004.11.016) equation 37.
    Assumes: failures are independent (exponential).
    """
    half = np.minimum(stall_s / (2.0 * mtbf_s), 1.0)
    best = np.sqrt(2.0 * stall_s * mtbf_s) * (1.0 + np.sqrt(half) / 3.0 + half / 9.0) - stall_s
    return np.where(stall_s < 2.0 * mtbf_s, best, mtbf_s)
