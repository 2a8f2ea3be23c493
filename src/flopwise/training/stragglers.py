"""What waiting for the slowest of many ranks costs."""

from __future__ import annotations

from functools import cache
from math import erf, sqrt

import numpy as np
from numpy.typing import NDArray

from flopwise.ops.types import Array, Floats

_REACH, _POINTS = 9.0, 3601  # the tails beyond nine standard deviations hold 1e-19


@cache
def _normal() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x = np.linspace(-_REACH, _REACH, _POINTS)
    return x, np.array([0.5 * (1.0 + erf(v / sqrt(2.0))) for v in x])


def expected_largest(count: Floats) -> Floats:
    """Mean of the largest of `count` independent standard normal values; broadcasts.

    R less the integral of F(x)^n from -R to R, F the normal distribution, R far in its tail.

    Source: David and Nagaraja, Order Statistics (3rd ed. 2003), section 3.1; by the trapezium rule.
    Assumes: count >= 1.
    """
    x, below = _normal()
    counts, back = np.unique(np.asarray(count, dtype=float), return_inverse=True)
    held = below ** counts[:, None]
    values = _REACH - (x[1] - x[0]) * (held.sum(axis=1) - (held[:, 0] + held[:, -1]) / 2.0)
    found: Array = np.where(counts <= 1, 0.0, values)[back].reshape(np.shape(count))
    return found if np.ndim(count) else float(found)


def slowdown(num_ranks: Floats, jitter_frac: Floats) -> Floats:
    """Time of a synchronous step over that of the mean rank, 1 or more; broadcasts.

    1 + jitter x E[largest of n].

    Source: `expected_largest`. Orders of magnitude of the jitter: Sinha et al. 2022 (arXiv:2208.11035) find 8 % between
    GPUs of one kind, Golden et al. 2025 (arXiv:2510.15596) up to 14 % on matrix products.
    Assumes: ranks vary independently and normally with `jitter_frac` of the mean as their standard deviation; all wait
    for the slowest in each step.
    """
    return 1.0 + jitter_frac * expected_largest(num_ranks)
