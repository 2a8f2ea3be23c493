"""Columns of candidates: which rows of them differ."""

from __future__ import annotations

import numpy as np

from flopwise.ops.types import Array, Ints

_KEY_LIMIT = 1 << 24  # above it, keys are sorted instead of marked in a table


def ascending(values: Array) -> Array:
    """The distinct values of a column, smallest first.

    Source: neighbours in sorted order. np.unique is the same and loads numpy.ma first, 7 ms of a command's start.
    Assumes: no NaN.
    """
    ranked = np.sort(values, axis=None)
    new = np.ones(ranked.shape, dtype=bool)
    new[1:] = ranked[1:] != ranked[:-1]
    return ranked[new]


def distinct(*columns: Ints) -> tuple[list[Array], Array]:
    """The distinct rows of whole-number columns, and each candidate's index among them (shape of the broadcast).

    Source: a table of marks instead of a sort, while the keys are small.
    Assumes: values are whole and not negative.
    """
    arrays = [np.asarray(c, dtype=np.int64) for c in columns]
    bases = [int(a.max()) + 1 for a in arrays]
    key: Array = np.zeros((), dtype=np.int64)
    for array, base in zip(arrays, bases, strict=True):
        key = key * base + array
    if key.ndim == 0:
        return [a.reshape(1) for a in arrays], np.zeros((), dtype=np.int64)
    top = int(np.prod(bases))
    if top < _KEY_LIMIT:
        present = np.zeros(top, dtype=bool)
        present[key.ravel()] = True
        values = np.flatnonzero(present)
        place = np.zeros(top, dtype=np.int64)
        place[values] = np.arange(len(values))
        inverse = place[key]
    else:
        values, flat = np.unique(key, return_inverse=True)
        inverse = flat.reshape(key.shape)
    rows: list[Array] = []
    for base in reversed(bases):
        rows.append(values % base)
        values = values // base
    return rows[::-1], inverse


def runs(*columns: Array) -> tuple[Array, Array]:
    """The first rows of runs of equal neighbouring rows, and the run of each row; columns of shape (n,).

    Source: comparing neighbours. Assumes: nothing; rows that are alike but apart make two runs.
    """
    new = np.ones(columns[0].shape, dtype=bool)
    if new.size > 1:
        new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return np.flatnonzero(new), np.cumsum(new) - 1
