"""What a pipeline adds to the stages of a step: waiting, hops, and what passes side by side hide."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flopwise.cost.collectives import p2p_s
from flopwise.training.recompute import STAGE_PARTS
from flopwise.training.schedules import Others, Pipe, any_of, having, paired_frac
from flopwise.training.stages import FULL
from flopwise.training.widths import ACT_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flopwise.ops.types import Array, Floats, Ints
    from flopwise.training.step import StepTable

_MESSAGES = slice(STAGE_PARTS.index("tensor_parallel"), len(STAGE_PARTS))


def others_s(
    table: StepTable, mode: Array, degree: NDArray[np.intp], inner: NDArray[np.intp], schedule: Ints
) -> Others:
    """Seconds of one micro-batch on all stages but the busiest; shares of passes only where a schedule asks for them.

    Source: sums over stages. Assumes: a forward pass has its part of the messages: half, a third where it runs again.
    """
    stage = table.stage_parts[:, mode, degree, inner]
    others = Others(np.maximum(table.model_s[mode, inner] - stage.sum(axis=0), 0.0), 0.0)
    if not any_of(schedule, lambda one: one.splits_backward):
        return others
    weight_s = table.weight_s[inner] - table.stage_weight_s[mode, degree, inner]
    passes = 2.0 + (np.asarray(mode) == FULL)
    whole = table.model_parts[mode, 0, inner] - stage[0]
    messages = sum(table.model_parts[mode, i, inner] - stage[i] for i in range(*_MESSAGES.indices(len(stage))))
    return Others(others.total_s, weight_s, np.maximum(whole + messages / passes, 0.0))


def hidden_beside_s(schedule: Ints, pipe: Pipe, beside_s: Floats) -> Floats:
    """Seconds a step of messages that hide beside other passes, `beside_s` of each micro-batch that has one beside it.

    Source: `paired_frac`; `stage_lines`. Assumes: as there.
    """
    return paired_frac(schedule, pipe) * pipe.micro_batches * beside_s * (np.asarray(pipe.stages) > 1)


def p2p_step_s(table: StepTable, inner: NDArray[np.intp], pipe: Pipe, dp: Ints, schedule: Ints) -> Floats:
    """Activations forward and gradients back between neighbouring stages, per step.

    Source: Narayanan et al. 2021 (arXiv:2104.04473) section 4.1 (scatter/gather: each tensor rank sends its share);
    DeepSpeed's pipeline engine, `is_grad_partitioned` False: gradients go back whole.
    Assumes: nothing hides it but passes side by side; chunks of a rank, those of a schedule too, multiply it.
    """
    keys, chunks = table.inner, pipe.chunks
    tp, cp = keys.tp[inner], keys.cp[inner]
    if any_of(schedule, lambda one: one.chunks > 1):
        chunks = chunks * having(schedule, lambda one: one.chunks)
    nbytes = keys.micro_batch[inner] * table.seq_tokens[inner] / cp * table.width * ACT_BYTES
    hop = p2p_s(table.fabric, nbytes / tp, stride=tp * cp * dp)
    back = p2p_s(table.fabric, nbytes, stride=tp * cp * dp) if table.software.whole_grad_hops else hop
    hops = pipe.micro_batches * chunks
    if any_of(schedule, lambda one: one.pairs):
        hops = hops * (1.0 - paired_frac(schedule, pipe))
    return np.where(pipe.stages > 1, (hop + back) * (hops + pipe.stages - 1), 0.0)
