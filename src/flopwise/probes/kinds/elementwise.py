"""Elementwise operations of a layer, each reading and writing its tensors once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from flopwise.probes.backend import Bench
from flopwise.probes.timing import Task

ELEMENTS = (1 << 20, 1 << 23)
"""Elements: activations of a small layer, and more than most caches hold."""
CARD_ELEMENTS = (1 << 24, 1 << 27)
FORWARD = 2 + 2 + 3 + 3
"""Tensors read or written by the forward pass: norm and activation read one, product and sum two; each writes one."""
BACKWARD = 3 + 3 + 5 + 2
"""Tensors of the backward pass: norm and activation read two and write one, the product reads three and writes two."""
WRITTEN = 4 + 1 + 1 + 2
"""Tensors that are written: one per operation forward; backward, the sum passes its gradient on."""


@contextmanager
def tasks(bench: Bench) -> Iterator[list[Task]]:
    """The forward pass, and both passes if the library has a backward pass."""
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
