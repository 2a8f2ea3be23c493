"""The candidates that no other beats in every respect."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def pareto_front(cost: NDArray[np.floating[Any]], seconds: NDArray[np.floating[Any]]) -> NDArray[np.intp]:
    """Indices of the candidates that are cheaper than all faster ones, cheapest first; of equals the first one.

    `cost` and `seconds` have shape (n,); smaller is better in both; candidates that are not finite are left out.
    """
    finite = np.flatnonzero(np.isfinite(cost) & np.isfinite(seconds))
    order = finite[np.lexsort((seconds[finite], cost[finite]))]
    if order.size == 0:
        return order
    best = np.minimum.accumulate(seconds[order])
    keep = np.concatenate([[True], best[1:] < best[:-1]])
    front: NDArray[np.intp] = order[keep]
    return front
