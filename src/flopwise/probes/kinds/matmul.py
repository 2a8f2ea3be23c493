"""Matrix products: small and large, with aligned and unaligned sizes, and with few rows.

2 m n k FLOP each. A product with few rows, as in decoding, is bound by reading its weights. On a CPU it is measured
over more weights than the caches hold, because in a real model the weights of other layers have evicted them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from flopwise.probes.backend import ELEMENT_BYTES, Bench
from flopwise.probes.timing import Task

ROWS = 512
"""Tokens of a small micro-batch."""
WIDTHS = (256, 512, 1024, 2048)
SQUARES = (64, 256, 1024, 2048, 4096, 8192)
ODD = (1023, 2047, 4095)
"""One less than a multiple of the tile."""
THIN = ((1, 2048), (16, 2048), (1, 8192), (16, 8192))
"""Tokens, and the width of their layer."""
READ_ROWS, QUICK_READ_ROWS = (1, 8, 32), (4,)
READ_DTYPES = ("fp32", "bf16")
READ_WIDTH = 1024
READ_BYTES, CACHES = 1 << 26, 2
"""Size of the weights for products with few rows: a minimum in bytes, and a multiple of the last cache."""
QUICK = ((ROWS, 256, 256), (ROWS, 1024, 1024), (ROWS, 1023, 1023), (1024, 1024, 1024), (2048, 2048, 2048))
FULL_DTYPES = 2
"""Number of dtypes, first of the device's list, that are measured in all shapes; others only in medium squares."""
MULTIPLE = {"fp8": 16, "int8": 16}
"""Required divisor of all sizes of a product, by dtype; rows must exceed it."""


@contextmanager
def tasks(bench: Bench) -> Iterator[list[Task]]:
    """Every shape in every dtype of the device, smaller ones first, and the first dtype before slow products.

    On a shared machine the time may not suffice for all of them, and the rate of products in the first dtype is the
    most important figure.
    """
    on_cpu = bench.backend.device.kind == "cpu"
    thin = () if on_cpu else (THIN[1:2] if bench.quick else THIN)
    whole = [*((ROWS, n, n) for n in WIDTHS), *((n, n, n) for n in (*SQUARES, *ODD))]
    every: list[tuple[int, int, int]] = [*(QUICK if bench.quick else whole), *((m, n, n) for m, n in thin)]
    every.sort(key=lambda mnk: mnk[0] * mnk[1] * mnk[2])
    dtypes = bench.backend.dtypes[:2] if bench.quick else bench.backend.dtypes
    read = [
        _weights_read(bench, rows, dtype)
        for dtype in bench.backend.dtypes if on_cpu and dtype in READ_DTYPES
        for rows in (QUICK_READ_ROWS if bench.quick else READ_ROWS)
    ]  # fmt: skip
    products = [
        _task(bench, *shape, dtype)
        for number, dtype in enumerate(dtypes)
        for shape in every
        if number < FULL_DTYPES or (shape[0] == shape[1] and shape[0] in {1024, 2048, 4096, 8192})
        if shape[0] > MULTIPLE.get(dtype, 0) and not any(size % MULTIPLE.get(dtype, 1) for size in shape)
    ]
    yield sorted(
        [*read, *products], key=lambda one: (one.name != "matmul" or one.dtype != dtypes[0], one.name == "matmul")
    )


def _weights_read(bench: Bench, rows: int, dtype: str) -> Task:
    """Products of few rows with one weight after the other."""
    each = ELEMENT_BYTES[dtype] * READ_WIDTH**2
    count = -(-max(READ_BYTES, CACHES * max(bench.backend.device.cache_bytes.values(), default=0)) // each)
    return Task(
        name="weights_read", unit="B/s", work=float(count * each), dtype=dtype, needs_bytes=2.0 * count * each,
        shape={"m": rows, "n": READ_WIDTH, "k": READ_WIDTH, "weights": count},
        prepare=partial(bench.backend.matmul, rows, READ_WIDTH, READ_WIDTH, dtype, count),
    )  # fmt: skip


def _task(bench: Bench, m: int, n: int, k: int, dtype: str) -> Task:
    return Task(
        name="matmul", unit="FLOP/s", work=2.0 * m * n * k, shape={"m": m, "n": n, "k": k}, dtype=dtype,
        needs_bytes=4.0 * (m * k + k * n) + ELEMENT_BYTES[dtype] * (m * k + k * n + m * n),  # drawn in fp32
        prepare=partial(bench.backend.matmul, m, n, k, dtype),
    )  # fmt: skip
