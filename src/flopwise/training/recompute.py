"""What a block takes of a stage's time under each way to compute activations again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flopwise.training.blocks import BlockTimes, Kernels, again_flops, again_s

if TYPE_CHECKING:
    from flopwise.facts.software import Stack as Software
    from flopwise.ops.types import Floats

STAGE_PARTS = ("forward", "backward", "recompute", "tensor_parallel", "context_parallel", "expert_parallel")
"""Lines of a step that each block of a stage adds to."""
RECOMPUTE_MODES = 3
"""None, selective, full."""


def stage_lines(block: BlockTimes, mode: int, software: Software, selective: str) -> NDArray[np.float64]:
    """The parts of `STAGE_PARTS` of one block under one recompute mode, and its weight gradients; (parts + 1, n).

    Source: Korthikanti et al. 2022 (arXiv:2205.05198) section 5; messages of a forward pass come again with it.
    Assumes: selective recompute repeats no message.
    """
    kernels = block.kernels
    rerun = (0.0 * kernels.forward_s, again_s(kernels, selective), kernels.forward_s)[mode]
    passes = 3.0 if mode == 2 else 2.0  # forward, backward, and forward again
    return np.stack(
        [
            kernels.forward_s,
            kernels.backward_s,
            rerun,
            passes * _exposed(block.tp_s, software.tp_overlap, kernels.forward_s),
            passes * block.cp_s,
            passes * _exposed(block.ep_s, software.ep_overlap, kernels.forward_s),
            kernels.weight_s,
        ]
    )


def flops_again(kernels: Kernels, selective: str) -> NDArray[np.float64]:
    """Operations of one block that each recompute mode runs again; (3, n).

    Source and assumptions: as `flopwise.training.blocks.again_s`.
    """
    return np.stack([0.0 * kernels.forward_flops, again_flops(kernels, selective), kernels.forward_flops])


def _exposed(message_s: Floats, overlap: float, compute_s: Floats) -> Floats:
    """What is left of messages of which a share may hide behind compute, but no more than there is compute."""
    return message_s - np.minimum(overlap * message_s, compute_s)
