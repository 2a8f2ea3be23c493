"""Muon: the momentum of every hidden matrix is orthogonalised by Newton-Schulz iterations; the rest runs AdamW."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from flopwise.cost.collectives import all_gather_s, all_to_all_s
from flopwise.facts.architecture import Experts, Item, Linear
from flopwise.ops.tensors import item_parameters, sharded_parameters
from flopwise.training.stages import heaviest
from flopwise.training.widths import ACT_BYTES
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from flopwise.cost.fabric import Fabric
    from flopwise.ops.types import Array, Floats, Ints
    from flopwise.training.layout import Inner

Pair = tuple[float, float]
NEWTON_SCHULZ = "newton_schulz"
"""The line of a step's breakdown; there only where the optimizer orthogonalises."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """Trained matrices of the heaviest stage on one rank, by the rule that updates them, before replicas share them.

    The rows of `counts`: elements of hidden matrices (cut by tp), of experts' matrices (by tp and ep), of everything
    else; operations that orthogonalise the hidden matrices, and the experts of a rank, each matrix whole.
    """

    counts: Array  # (5, pipeline degrees, inner combinations)
    largest: Pair  # elements of the largest hidden matrix, and of the largest of an expert
    largest_flops: Pair  # of orthogonalising them

    @property
    def others(self) -> Array:
        """Trained parameters of embedding, head, norms and biases."""
        others: Array = self.counts[2]
        return others

    @property
    def flops(self) -> Array:
        """Operations that orthogonalise all matrices of a rank."""
        flops: Array = self.counts[3] + self.counts[4]
        return flops

    @classmethod
    def of(
        cls,
        hidden: Sequence[Sequence[Linear | Experts]],
        trained: Sequence[Sequence[Item]],
        inner: Inner,
        expert_tp: Ints,
        steps: int,
        weights: NDArray[np.float64],
        starts: NDArray[np.intp],
    ) -> Self:
        """The matrices of every pipeline degree: `hidden` ones of each block, and all that is `trained` of it.

        `expert_tp`: ranks that share an expert; `weights`: how often each block stands on each stage; `starts`: where
        each pipeline degree begins.
        """
        pairs = zip(hidden, trained, strict=True)
        cut = inner.tp, inner.ep, expert_tp
        rows = np.stack([_counts(matrices, items, *cut, steps) for matrices, items in pairs])
        counts = np.stack([heaviest(starts, weights, rows[:, i]) for i in range(rows.shape[1])])
        return cls(counts, *_largest([matrix for matrices in hidden for matrix in matrices], steps))

    def at(self, degree: NDArray[np.intp], inner: NDArray[np.intp]) -> Matrices:
        """The matrices of each candidate; `degree` and `inner` index the axes."""
        return replace(self, counts=self.counts[:, degree, inner])

    def seconds(self, fabric: Fabric, flops_per_s: float, tp: Ints, experts: Ints, group: Ints, zero: Ints) -> Floats:
        """Seconds of a step in which a rank gathers and orthogonalises the matrices that it updates; broadcasts.

        `group`: ranks over which ZeRO shards what experts do not hold; `experts`: ranks that hold all experts once.
        Without ZeRO every replica orthogonalises all matrices. From ZeRO 1 on a rank's share begins and ends inside a
        matrix: it gathers that one whole, in 16 bits, and orthogonalises it besides its own. FSDP (ZeRO 3) cuts every
        matrix evenly: slices go to the one rank that orthogonalises it, and come back. Ranks of a tensor-parallel group
        gather their slices and all do the same.

        Source: Liu et al. 2025 (arXiv:2502.16982) section 2.3 and algorithm 1, distributed Muon: DP gather, TP gather;
        Ahn et al. 2025 (arXiv:2504.05295) section 3 for the exchange of slices.
        Assumes: products run at `flops_per_s`; nothing hides the gathers.
        """
        even = np.asarray(zero) > 2
        flops: Floats = 0.0
        seconds: Floats = 0.0
        dense, expert, _, dense_flops, expert_flops = self.counts
        groups = (dense, dense_flops, tp), (expert, expert_flops, experts)
        for (elements, work, stride), one, one_flops in zip(groups, self.largest, self.largest_flops, strict=True):
            if not elements.any():
                continue
            ranks = np.where(np.asarray(zero) > 0, np.maximum(group * tp // stride, 1), 1)
            owned, edge = elements / ranks, (ranks > 1) * np.where(even, 0.0, 1.0)  # of one matrix more
            flops = flops + np.minimum(work / ranks + edge * one_flops, work)
            gathered = ACT_BYTES * edge * one
            slices_s = 2.0 * all_to_all_s(fabric, ACT_BYTES * owned, ranks, stride=stride)
            seconds = seconds + np.where(even, slices_s, all_gather_s(fabric, gathered / tp, ranks, stride=stride))
            seconds = seconds + all_gather_s(fabric, ACT_BYTES * owned * tp + gathered, tp)
        return seconds + flops / flops_per_s


def newton_schulz_flops(rows: int, columns: int, steps: int) -> float:
    """Operations that orthogonalise one matrix: steps * (4 m^2 n + 2 m^3), m its shorter side and n the longer.

    A = X X^T takes 2 m^2 n, B = b A + c A A takes 2 m^3, and a X + B X takes 2 m^2 n.

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks", runtime analysis.
    Assumes: products of symmetric matrices are computed whole; elementwise operations are not counted.
    """
    short, long = sorted((rows, columns))
    return steps * (4.0 * short**2 * long + 2.0 * short**3)


def hidden_matrices(items: Iterable[Item]) -> list[Linear | Experts]:
    """The weights among the `items` of layers that Muon updates: products and experts, without their biases.

    Source: Liu et al. 2025 (arXiv:2502.16982) section 2.2: AdamW for embedding, head and norms.
    Assumes: a fused projection is one matrix.
    """
    return [replace(item, bias=False) for item in items if isinstance(item, Linear | Experts) and item_parameters(item)]


def _largest(matrices: Sequence[Linear | Experts], steps: int) -> tuple[Pair, Pair]:
    """Elements of the largest matrix, and operations that orthogonalise it: of products and of experts."""
    dense, expert = ([(i.inputs, i.outputs) for i in matrices if isinstance(i, kind)] for kind in (Linear, Experts))

    def most(value: Callable[[int, int], float]) -> Pair:
        return max((value(*m) for m in dense), default=0.0), max((value(*m) for m in expert), default=0.0)

    return most(lambda rows, columns: float(rows * columns)), most(partial(newton_schulz_flops, steps=steps))


def _counts(
    hidden: Sequence[Linear | Experts], trained: Sequence[Item], tp: Ints, ep: Ints, expert_tp: Ints, steps: int
) -> NDArray[np.float64]:
    """`Matrices.counts` of one block, (5, n)."""
    dense = [i for i in hidden if isinstance(i, Linear)]
    expert = [i for i in hidden if isinstance(i, Experts)]
    own, routed = sharded_parameters(dense, tp, 1), sharded_parameters(expert, tp, ep, expert_tp=expert_tp)
    others = sharded_parameters(trained, tp, ep, expert_tp=expert_tp) - own - routed
    dense_flops = sum(newton_schulz_flops(i.inputs, i.outputs, steps) for i in dense)
    expert_flops = sum(i.experts * newton_schulz_flops(i.inputs, i.outputs, steps) for i in expert) / ep
    return np.stack([np.broadcast_to(x, np.shape(tp)) for x in (own, routed, others, dense_flops, expert_flops)])
