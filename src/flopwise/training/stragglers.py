"""Stragglers: every step takes as long as the slowest of its ranks does."""

from __future__ import annotations

from functools import cache
from math import erf, sqrt

import numpy as np
from numpy.typing import NDArray

from flopwise.ops.types import Array, Floats

STRAGGLERS = "stragglers"
"""The line of a step in which all ranks wait for the slowest."""
JITTER_FRAC = 0.015
"""Standard deviation of step times between ranks, as a share of the mean, where nobody states one.

Source: Sinha et al. 2022 (arXiv:2208.11035): times of GPUs of one kind vary by 8 % in five clusters; by whiskers of a
box plot, which for normal values are 5.4 standard deviations apart.
"""
MEASURED_RANKS = 16
"""Ranks whose waits for one another are in the measured rates: those of the median run of
benchmarks/truth/training.csv, two nodes."""
_REACH, _POINTS = 9.0, 601  # the tails beyond nine standard deviations hold 1e-19; finer steps change less than 1e-9
_COUNTS = np.concatenate([np.arange(1.0, 17.0), np.geomspace(16.0, 2.0**24, 121)[1:]])
_LOG_COUNTS = np.log(_COUNTS)


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
    powers = below ** counts[:, None]
    values = _REACH - (x[1] - x[0]) * (powers.sum(axis=1) - (powers[:, 0] + powers[:, -1]) / 2.0)
    largest: Array = np.where(counts <= 1, 0.0, values)[back].reshape(np.shape(count))
    return largest if np.ndim(count) else float(largest)


@cache
def _waits() -> Array:
    """The wait of `_COUNTS` ranks beyond `MEASURED_RANKS`, in standard deviations."""
    return np.asarray(np.maximum(expected_largest(_COUNTS) - expected_largest(float(MEASURED_RANKS)), 0.0))


def waiting_frac(num_ranks: Floats, jitter_frac: Floats) -> Floats:
    """Time that all ranks wait for the slowest, over the step of `MEASURED_RANKS`; broadcasts.

    jitter x (E[largest of n] - E[largest of `MEASURED_RANKS`]), not below 0.

    Source: `expected_largest`, along the logarithm of n between values that are 12 % apart (error below 2e-4). Orders
    of magnitude of the jitter: `JITTER_FRAC`; Golden et al. 2025 (arXiv:2510.15596) find up to 14 % on matrix products.
    Assumes: ranks vary independently and normally with `jitter_frac` of the mean as their standard deviation; all wait
    for the slowest in each step.
    """
    if np.max(num_ranks) <= MEASURED_RANKS:  # which spares a small job the table
        return jitter_frac * np.zeros(np.shape(num_ranks))
    return jitter_frac * np.interp(np.log(num_ranks), _LOG_COUNTS, _waits())
