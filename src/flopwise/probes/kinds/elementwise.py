"""Elementwise operations as a layer has them, each reading and writing its tensors once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from flopwise.probes.kinds.bench import Bench
from flopwise.probes.timing import Task

ELEMENTS = (1 << 20, 1 << 23)
"""Activations of a small layer, and more than most caches hold."""
CARD_ELEMENTS = (1 << 24, 1 << 27)
FORWARD = 2 + 2 + 3 + 3
"""Tensors that pass memory: norm and activation read one and write one, product and sum read two."""
BACKWARD = 3 + 3 + 5 + 2
"""Norm and activation read two and write one, the product reads three and writes two, the sum hands on."""
WRITTEN = 4 + 1 + 1 + 2
"""Tensors that these write, each of its own: one an operation forward; backward, the sum hands on what it gets."""


@contextmanager
def tasks(bench: Bench) -> Iterator[list[Task]]:
    """Forward alone, and with the backward pass where the library has one."""
    sizes = ELEMENTS if bench.backend.device.kind == "cpu" else CARD_ELEMENTS
    yield [
        Task(
            name="elementwise_training" if backward else "elementwise", unit="B/s", dtype="fp32",
            work=4.0 * elements * passes, shape={"elements": elements, "passes": passes},
            needs_bytes=4.0 * elements * 10, prepare=partial(bench.backend.elementwise, elements, backward=backward),
        )
        for elements in (sizes[:1] if bench.quick else sizes)
        for backward, passes in ((False, FORWARD), *[(True, FORWARD + BACKWARD)] * bench.backend.trains)
    ]  # fmt: skip
