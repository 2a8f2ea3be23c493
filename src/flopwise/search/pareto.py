"""The candidates that no other beats in every respect."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Index = NDArray[np.intp]


def pareto_front(*objectives: Floats) -> Index:
    """Indices of the candidates that none beats in one objective without losing in another, least of the first first.

    Every objective has shape (n,), and smaller is better; of equals the first one stands. Candidates of which an
    objective is not finite are left out.
    """
    finite = np.flatnonzero(np.logical_and.reduce([np.isfinite(each) for each in objectives]))
    order: Index = finite[np.lexsort([each[finite] for each in reversed(objectives)])]
    if order.size == 0:
        return order
    if len(objectives) == 2:
        best = np.minimum.accumulate(objectives[1][order])
        kept = np.flatnonzero(np.concatenate([[True], best[1:] < best[:-1]]))
    else:
        kept = _unbeaten(np.stack([each[order] for each in objectives], axis=1))
    front: Index = order[kept]
    return front


def _unbeaten(points: Floats) -> Index:
    """Rows of `points`, in lexicographic order, that no other row is at most equal to in every column.

    What beats a row has smaller sum of ranks, so it is met before: each row that still stands in turn is on the front.
    """
    ranks = np.argsort(np.argsort(points, axis=0, kind="stable"), axis=0)
    left = np.argsort(ranks.sum(axis=1), kind="stable")
    kept: list[int] = []
    while left.size:
        first, left = left[0], left[1:]
        kept.append(int(first))
        left = left[~(points[left] >= points[first]).all(axis=1)]
    found: Index = np.sort(np.array(kept, dtype=np.intp))
    return found
