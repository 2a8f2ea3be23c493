"""A matrix product in plain Python loops, compared with the library's vectorised code."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from flopwise.probes.backend import Bench
from flopwise.probes.timing import Run, Task

SIZES = (32, 1024)
MOST_PRODUCTS = 1 << 18
"""Multiplications per repetition in Python, a few hundredths of a second; larger matrices are measured in part."""


@contextmanager
def tasks(bench: Bench) -> Iterator[list[Task]]:
    """Both implementations for a small and a large matrix; FLOP are those that were computed, 2 per multiplication."""
    rows = list[Task]()
    for n in SIZES:
        entries = min(n * n, MOST_PRODUCTS // n)
        part = f"measured on {entries:,} of {n * n:,} entries of the result and scaled up" if entries < n * n else ""
        naive = partial(_naive, n, entries)
        whole = partial(bench.backend.matmul, n, n, n, "fp32")
        rows += [
            Task(name="loop_naive", unit="FLOP/s", work=2.0 * n * entries, shape={"n": n}, prepare=naive, note=part),
            Task(
                name="loop_vectorised", unit="FLOP/s", work=2.0 * n**3, shape={"n": n}, dtype="fp32", prepare=whole
            ),
        ]  # fmt: skip
    yield rows


def _naive(n: int, entries: int) -> Run:
    """The first entries of the product of two n by n matrices, row by row, in three loops."""
    a = [[math.sin(i * n + j) for j in range(n)] for i in range(n)]
    b = [[math.cos(i * n + j) for j in range(n)] for i in range(n)]

    def run() -> list[list[float]]:
        result = list[list[float]]()
        for i in range(-(-entries // n)):
            row = list[float]()
            for j in range(min(n, entries - i * n)):
                total = 0.0
                for k in range(n):
                    total += a[i][k] * b[k][j]
                row.append(total)
            result.append(row)
        return result

    return run
