"""Copies between host memory (pageable and pinned) and a device, and between devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

from flopwise.probes.backend import Bench, NothingToMeasureError
from flopwise.probes.timing import Task
from flopwise.probes.torch_backend import TorchBackend

SIZES = (1 << 12, 1 << 20, 1 << 24, 1 << 28)
QUICK_SIZES = (1 << 20, 1 << 26)
MOST_PEERS = 3


@contextmanager
def tasks(bench: Bench) -> Iterator[list[Task]]:
    """Both directions; raises NothingToMeasureError for a CPU."""
    if bench.backend.device.kind == "cpu":
        raise NothingToMeasureError("there are no transfers between a CPU and its own memory")
    backend = cast("TorchBackend", bench.backend)
    here = backend.device.id
    sizes = QUICK_SIZES if bench.quick else SIZES
    pinnings = (False, True) if backend.device.kind != "mps" else (False,)
    rows = [
        Task(
            name="device_to_host" if to_host else "host_to_device", unit="B/s", work=float(nbytes),
            shape={"bytes": nbytes, "pinned": int(pinned)}, needs_bytes=float(nbytes),
            prepare=partial(backend.transfer, nbytes, *((here, "cpu") if to_host else ("cpu", here)), pinned=pinned),
        )
        for to_host in (False, True)
        for pinned in pinnings
        for nbytes in sizes
    ]  # fmt: skip
    rows += [
        Task(
            name="device_to_device", unit="B/s", work=float(nbytes), shape={"bytes": nbytes, "peer": peer},
            needs_bytes=float(nbytes), prepare=partial(backend.transfer, nbytes, here, f"cuda:{peer}", pinned=True),
        )
        for peer in backend.peers()[:MOST_PEERS]
        for nbytes in sizes
    ]  # fmt: skip
    yield rows
