"""The kinds of measurement: each a file here with `tasks`, and a line in KINDS."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Literal

from flopwise.probes.backend import Bench
from flopwise.probes.kinds import attention, collectives, disk, elementwise, launch, loops, matmul, memory, transfers
from flopwise.probes.timing import Task
from flopwise.values import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of measurement, per device or once per machine, with its time in a full and in a quick probe.

    `start_s`: time to start the processes that it needs, on a quiet machine.
    """

    title: str
    tasks: Callable[[Bench], AbstractContextManager[list[Task]]]
    seconds: float
    quick_s: float
    scope: Literal["device", "machine"] = "device"
    start_s: float = 0.0


KINDS: dict[str, Kind] = {
    "launch": Kind("launch latency", launch.tasks, 2.0, 0.4),
    "matmul": Kind("matrix products", matmul.tasks, 24.0, 4.0),
    "memory": Kind("memory bandwidth", memory.tasks, 10.0, 2.0),
    "attention": Kind("attention", attention.tasks, 10.0, 1.5),
    "elementwise": Kind("elementwise operations", elementwise.tasks, 4.0, 0.6),
    "transfers": Kind("transfers between host and devices", transfers.tasks, 5.0, 1.0),
    "collectives": Kind("messages between devices", collectives.tasks, 8.0, 1.2, "machine", 2.5),
    "disk": Kind("disk", disk.tasks, 12.0, 1.6, "machine"),
    "loops": Kind("naive loops against the library", loops.tasks, 3.0, 0.8, "machine"),
}
"""Kinds by their names in `--only`, in the order of the answer; seconds are for all operations together.

Launches come first: they take the least time, so that they are measured on a machine so busy that time runs out."""
