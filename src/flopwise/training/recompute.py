"""What a block takes of a stage's time under each way to compute activations again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flopwise.training.blocks import BlockTimes, again_flops, again_s
from flopwise.training.stages import Partial, heaviest_parts, stage_layer_counts, stage_sums, stage_weights

if TYPE_CHECKING:
    from flopwise.facts.architecture import Stack
    from flopwise.facts.software import TrainingStack
    from flopwise.ops.types import Floats

STAGE_PARTS = ("forward", "backward", "recompute", "tensor_parallel", "context_parallel", "expert_parallel")
"""Lines of a step that each block of a stage adds to."""
RECOMPUTE_MODES = 3
"""None, selective, full."""
BESIDE = 3
"""Rows of `stage_lines` after those of `STAGE_PARTS`."""


def stage_lines(
    block: BlockTimes, mode: int, software: TrainingStack, selective: str, contention: float
) -> NDArray[np.float64]:
    """The parts of `STAGE_PARTS` of one block under one recompute mode, then `BESIDE` them. Shape (parts + 3, n).

    Those are seconds of the backward pass in gradients of weights, seconds of experts' messages that hide as well where
    another micro-batch's passes run beside them, and operations that run again (FLOP).

    Source: Korthikanti et al. 2022 (arXiv:2205.05198) section 5; messages of a forward pass come again with it;
    DeepSeek-V3 report (arXiv:2412.19437) section 3.2.1 for passes side by side.
    Assumes: selective recompute repeats no message; side by side, all that takes no longer than the layer's passes
    hides, and slows them by `contention` of its own length.
    """
    kernels = block.kernels
    rerun = (0.0 * kernels.forward_s, again_s(kernels, selective), kernels.forward_s)[mode]
    flops = (0.0 * kernels.forward_flops, again_flops(kernels, selective), kernels.forward_flops)[mode]
    passes = 3.0 if mode == 2 else 2.0  # forward, backward, and forward again
    if not block.backward:
        rerun, flops, passes = 0.0 * kernels.forward_s, 0.0 * kernels.forward_flops, 1.0
    routed = passes * _exposed(block.ep_s, software.ep_overlap, kernels.forward_s)
    hidden = np.minimum(passes * block.ep_s, kernels.forward_s + kernels.backward_s + rerun)
    beside = passes * block.ep_s - (1.0 - contention) * hidden
    return np.stack(
        [
            kernels.forward_s,
            kernels.backward_s,
            rerun,
            passes * _exposed(block.tp_s, software.tp_overlap, kernels.forward_s),
            passes * block.cp_s,
            routed,
            kernels.weight_s,
            np.maximum(routed - beside, 0.0),
            flops,
        ]
    )


def mode_parts(
    stack: Stack,
    degrees: NDArray[np.int64],
    sizes: tuple[int, ...],
    partials: tuple[Partial, ...],
    lines: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lines of the heaviest stage, (parts + 2, modes, d, n), and of all stages together, (modes, parts + 3, n).

    `lines`: those of every block, (blocks, 3, parts + 3, n). Modes are none, selective and full, then `partials`: full
    recompute of some layers, while others, and what stands before and after the layers, keep everything.

    Source: sums over blocks. Assumes: `first` of a `Partial` comes with a single pipeline degree.
    """
    kinds = len(stack.kinds)
    stages, whole = [], []
    for some in (None, *partials):
        held = lines
        if some is not None:
            held = np.concatenate([lines[:-1, :1], lines[1:-1, 2:], lines[-1:, :1]])
        weights, starts = stage_weights(stage_sums(stack.order, kinds, degrees, sizes, some))
        stages.append(heaviest_parts(weights, starts, held[:, :, :-1], lines.shape[2] - BESIDE))
        counts = stage_layer_counts(stack.order, kinds, int(degrees[0]), sizes, some).sum(axis=0)
        whole.append(np.tensordot(np.concatenate([[1.0], counts, [1.0]]), held, 1))
    return np.concatenate(stages, axis=1), np.concatenate(whole)


def _exposed(message_s: Floats, overlap: float, compute_s: Floats) -> Floats:
    """What is left of messages of which a share may hide behind compute, but no more than there is compute."""
    return message_s - np.minimum(overlap * message_s, compute_s)
