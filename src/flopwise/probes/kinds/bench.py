"""What a kind of measurement is given to work with."""

from __future__ import annotations

import math
from pathlib import Path

from flopwise.probes.backend import Backend
from flopwise.values import dataclass


@dataclass(frozen=True, slots=True)
class Bench:
    """The device through its library, how thorough to be, the folder whose disk is measured, and the seconds left."""

    backend: Backend
    quick: bool
    folder: Path
    left_s: float = math.inf


class NothingToMeasureError(Exception):
    """The device or the library has nothing of that kind; the message says why."""
