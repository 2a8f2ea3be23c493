"""Numbers that are one value or a column of candidates: every formula of `ops` and `cost` takes both."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Ints: TypeAlias = float | Array
"""Whole numbers: a scalar, or an array that broadcasts against the others. Floats too: expectations, shares."""
Floats: TypeAlias = float | Array
"""Real numbers: a scalar or an array."""


def ceil_div(a: Ints, b: Ints) -> Ints:
    """`a / b` rounded up; shape of the broadcast.

    Source: definition. Assumes: b is positive.
    """
    return -(-a // b)


def least(a: Ints, b: Ints) -> Ints:
    """The smaller of the two, element by element; plain Python where both are scalars.

    Source: definition. Assumes: the two broadcast.
    """
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.minimum(a, b)
    return min(a, b)


def most(a: Ints, b: Ints) -> Ints:
    """The larger of the two, element by element; plain Python where both are scalars.

    Source: definition. Assumes: the two broadcast.
    """
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.maximum(a, b)
    return max(a, b)
