"""Matrix products: small and large, of even and of odd sizes, and the thin ones of a few tokens.

2 m n k FLOP each. A product of few rows is bound by reading its weights: it belongs to decoding. On a processor it is
measured over more weights than its caches hold, as those of the other layers have displaced each in a real model.
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
READ_ROWS, QUICK_READ_ROWS = (1, 8, 32), (4,)
READ_DTYPES = ("fp32", "bf16")
READ_WIDTH = 1024
READ_BYTES, CACHES = 1 << 26, 2
"""Bytes of the weights that few rows pass in turn: at least so many, and so many times the last cache."""
QUICK = (
    (ROWS, 256, 256),
    (ROWS, 1024, 1024),
    (ROWS, 1023, 1023),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
)
FULL_DTYPES = 2
"""How many dtypes, the first of the device's, are measured in all shapes; of the others squares of middle size."""
MULTIPLE = {"fp8": 16, "int8": 16}
"""What all sizes of a product have to be a multiple of, by dtype; and more rows than that."""


@contextmanager
def tasks(bench: Bench) -> Iterator[list[Task]]:
    """Every shape in every dtype that the device has, smaller ones first; the first dtype before what takes long.

    On a machine that others use, too, the time for all of it may not suffice: no figure is worth more than the rate of
    products in the first dtype.
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
    """Few rows by one weight after the other."""
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
