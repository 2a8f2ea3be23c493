"""The inputs of a kind of measurement."""

from __future__ import annotations

import math
from pathlib import Path

from flopwise.probes.backend import Backend
from flopwise.values import dataclass


@dataclass(frozen=True, slots=True)
class Bench:
    """The device through its library, whether the probe is quick, the folder to measure, and the remaining seconds."""

    backend: Backend
    quick: bool
    folder: Path
    left_s: float = math.inf


class NothingToMeasureError(Exception):
    """The device or the library does not support this kind; the message gives the reason."""
