"""Matrix products: small and large, of even and of odd sizes, and the thin ones of a few tokens.

2 m n k FLOP each. A product of few rows is bound by reading its weights: it belongs to decoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from flopwise.probes.backend import ELEMENT_BYTES
from flopwise.probes.kinds.bench import Bench
from flopwise.probes.timing import Task

ROWS = 512
"""Tokens of a small micro-batch."""
WIDTHS = (256, 512, 1024, 2048)
SQUARES = (64, 256, 1024, 2048, 4096, 8192)
ODD = (1023, 2047, 4095)
"""One less than what tiles divide."""
THIN = ((1, 2048), (16, 2048), (1, 8192), (16, 8192))
"""Tokens, and the width of the layer that they pass."""
QUICK = (
    (ROWS, 256, 256),
    (ROWS, 1024, 1024),
    (ROWS, 1023, 1023),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (16, 2048, 2048),
)
FULL_DTYPES = 2
"""How many dtypes, the first of the device's, are measured in all shapes; of the others squares of middle size."""
MULTIPLE = {"fp8": 16, "int8": 16}
"""What all sizes of a product have to be a multiple of, by dtype; and more rows than that."""


@contextmanager
def tasks(bench: Bench) -> Iterator[list[Task]]:
    """Every shape in every dtype that the device has, smaller ones first."""
    shapes = {(ROWS, n, n) for n in WIDTHS} | {(n, n, n) for n in (*SQUARES, *ODD)} | {(m, n, n) for m, n in THIN}
    every = sorted(QUICK if bench.quick else shapes, key=lambda mnk: mnk[0] * mnk[1] * mnk[2])
    dtypes = bench.backend.dtypes[:2] if bench.quick else bench.backend.dtypes
    yield [
        _task(bench, *shape, dtype)
        for number, dtype in enumerate(dtypes)
        for shape in every
        if number < FULL_DTYPES or (shape[0] == shape[1] and shape[0] in {1024, 2048, 4096, 8192})
        if shape[0] > MULTIPLE.get(dtype, 0) and not any(size % MULTIPLE.get(dtype, 1) for size in shape)
    ]


def _task(bench: Bench, m: int, n: int, k: int, dtype: str) -> Task:
    return Task(
        name="matmul", unit="FLOP/s", work=2.0 * m * n * k, shape={"m": m, "n": n, "k": k}, dtype=dtype,
        needs_bytes=4.0 * (m * k + k * n) + ELEMENT_BYTES[dtype] * (m * k + k * n + m * n),  # drawn in fp32
        prepare=partial(bench.backend.matmul, m, n, k, dtype),
    )  # fmt: skip
