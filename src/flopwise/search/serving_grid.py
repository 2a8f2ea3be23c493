"""Replicas worth asking about on a kind of node: how many devices each has, cut how; and the batches to try on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flopwise.search.space import powers_of_two

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model
    from flopwise.search.nodes import NodeKind

Floats = NDArray[np.floating[Any]]
Column = NDArray[np.int64]
MAX_TP = 16
MAX_PP = 8
MAX_REPLICA_GPUS = 64


class Grid(NamedTuple):
    """Columns of replicas: `dp` attention replicas of `tp` ranks share experts spread over `ep` of them."""

    tp: Column
    pp: Column
    ep: Column
    dp: Column

    def take(self, rows: Column) -> Grid:
        """Some of the replicas."""
        return Grid(*(column[rows] for column in self))


def replica_grid(node: NodeKind, model: Model, max_gpus: int, *, spread: bool = True) -> Grid:
    """Replicas worth asking about, in columns.

    tp stays inside a node; pp crosses nodes where they are networked, and so do attention replicas that share experts
    (`spread`: whether to ask for those). Experts are cut by tp, or whole ones are spread over all ranks.
    """
    stack = model.stacks[0]
    heads, experts = stack.fewest_heads or 1, stack.largest_experts.experts if stack.largest_experts else 0
    inside = min(node.count, MAX_TP)
    most = min(MAX_REPLICA_GPUS, max_gpus) if node.networked else min(node.count, max_gpus)
    tp = powers_of_two(inside)
    tp = tp[(heads % tp == 0) & (tp <= max(inside, 1))]
    pp = powers_of_two(min(MAX_PP, model.stacks[0].num_layers) if node.networked else 1)
    dp = powers_of_two(most) if experts and spread else np.ones(1, dtype=np.int64)
    grid_tp, grid_pp, grid_dp = (g.ravel() for g in np.meshgrid(tp, pp, dp, indexing="ij"))
    gpus = grid_tp * grid_pp * grid_dp
    whole = (gpus <= node.count) | ((gpus % node.count == 0) & ((grid_tp == inside) | (grid_dp > 1)))
    keep = whole & (gpus <= most) & ((grid_pp == 1) | ((grid_tp == inside) & (grid_dp == 1)))
    grid_tp, grid_pp, grid_dp = (g[keep].astype(np.int64) for g in (grid_tp, grid_pp, grid_dp))
    ranks = grid_tp * grid_dp
    shared = experts > 0 and spread
    over = (ranks > 1) & (max(experts, 1) % ranks == 0) if shared else np.zeros(ranks.shape, dtype=bool)
    cut = grid_dp == 1  # attention replicas each have tokens of their own: their experts are spread
    return Grid(
        tp=np.concatenate([grid_tp[cut], grid_tp[over]]),
        pp=np.concatenate([grid_pp[cut], grid_pp[over]]),
        ep=np.concatenate([np.ones(int(cut.sum()), dtype=np.int64), ranks[over]]),
        dp=np.concatenate([grid_dp[cut], grid_dp[over]]),
    )


def batches(most: Floats) -> Floats:
    """Batch sizes to try on replicas that hold up to `most` sequences: shape (sizes, replicas)."""
    top = max(1.0, float(most.max(initial=1.0)))
    steps = np.unique(np.concatenate([powers_of_two(int(top)), 1.5 * powers_of_two(int(top / 1.5))[1:], [top]])).astype(
        float
    )
    sizes: Floats = np.minimum(steps[:, None], np.maximum(most, 1.0)[None, :])
    return sizes
