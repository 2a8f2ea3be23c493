"""Which layers each pipeline stage holds, for many pipeline degrees at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


def stage_layer_counts(order: tuple[int, ...], num_kinds: int, pp: int) -> NDArray[np.float64]:
    """Layers of each kind on each stage; shape (pp, kinds).

    As even as whole layers allow; what is left over goes to the stages in the middle, then to the first, never to the
    last, which has the head.

    Source: Narayanan et al. 2021 (arXiv:2104.04473) section 2.2; Megatron-LM splits evenly.
    Assumes: embeddings and head do not count as layers.
    """
    sizes = np.full(pp, len(order) // pp)
    left = len(order) % pp
    sizes[[*range(1, pp - 1), 0][:left]] += 1
    edges = np.concatenate([[0], np.cumsum(sizes)])
    onehot = np.zeros((len(order) + 1, num_kinds))
    onehot[np.arange(1, len(order) + 1), np.asarray(order, dtype=np.intp)] = 1.0
    running = np.cumsum(onehot, axis=0)
    counts: NDArray[np.float64] = running[edges[1:]] - running[edges[:-1]]
    return counts


@dataclass(frozen=True, slots=True)
class StageSums:
    """Sums over stages of a per-kind quantity, for each of `degrees`; arrays of shape (degrees, ...)."""

    degrees: NDArray[np.int64]
    counts: tuple[NDArray[np.float64], ...]  # one (pp, kinds) per degree, distinct rows only
    has_first: tuple[NDArray[np.bool_], ...]  # does the row stand for the first stage
    has_last: tuple[NDArray[np.bool_], ...]


def stage_sums(order: tuple[int, ...], num_kinds: int, degrees: NDArray[np.int64]) -> StageSums:
    """The distinct stages of every pipeline degree: the first, the last, and those between without repetition."""
    return _stage_sums(order, num_kinds, tuple(degrees.tolist()))


@lru_cache(maxsize=256)
def _stage_sums(order: tuple[int, ...], num_kinds: int, degrees: tuple[int, ...]) -> StageSums:
    counts, firsts, lasts = [], [], []
    for pp in degrees:
        every = stage_layer_counts(order, num_kinds, pp)
        marks = np.zeros((pp, 2), dtype=bool)
        marks[0, 0], marks[-1, 1] = True, True
        rows, _ = np.unique(np.hstack([every, marks]), axis=0, return_index=True)  # without an index it loads numpy.ma
        counts.append(rows[:, :-2])
        firsts.append(rows[:, -2] > 0)
        lasts.append(rows[:, -1] > 0)
    return StageSums(np.array(degrees), tuple(counts), tuple(firsts), tuple(lasts))


def heaviest_stage(
    sums: StageSums, layers: NDArray[np.float64], before: NDArray[np.float64], after: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The largest stage total for each pipeline degree and column; shape (degrees, n).

    `layers` has shape (kinds, n), `before` and `after` (n,): what the first stage has in front and the last behind.
    """
    out = np.empty((len(sums.degrees), layers.shape[1]))
    for row, (counts, first, last) in enumerate(zip(sums.counts, sums.has_first, sums.has_last, strict=True)):
        totals = counts @ layers + np.outer(first, before) + np.outer(last, after)
        out[row] = totals.max(axis=0)
    return out


def stage_weights(sums: StageSums) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """How often each block occurs on each distinct stage, (stages, blocks), and where each pipeline degree begins."""
    every = [
        np.column_stack([first, counts, last])
        for counts, first, last in zip(sums.counts, sums.has_first, sums.has_last, strict=True)
    ]
    return np.concatenate(every), np.cumsum([0, *(len(e) for e in every[:-1])])


def heaviest_parts(
    weights: NDArray[np.float64], starts: NDArray[np.intp], lines: NDArray[np.float64], summed: int
) -> NDArray[np.float64]:
    """Parts of the stage that takes longest: (blocks, modes, parts, n) to (parts, modes, d, n).

    The first `summed` parts add up to a stage's time; others come along.
    """
    stages = np.tensordot(weights, lines, 1)
    totals = stages[:, :, :summed].sum(axis=2)
    found = np.empty((stages.shape[2], stages.shape[1], len(starts), stages.shape[3]))
    for row, (start, stop) in enumerate(pairwise([*starts.tolist(), len(weights)])):
        longest = totals[start:stop].argmax(axis=0)
        found[:, :, row] = np.take_along_axis(stages[start:stop], longest[None, :, None], 0)[0].swapaxes(0, 1)
    return found


def heaviest(starts: NDArray[np.intp], weights: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest stage's sum over blocks for each pipeline degree; (blocks, n) to (d, n)."""
    return np.maximum.reduceat(weights @ rows, starts, axis=0)
