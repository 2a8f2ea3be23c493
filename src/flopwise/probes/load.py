"""Other load on the machine, which makes figures less certain, read before and after each measurement."""

from __future__ import annotations

import os
import time
from pathlib import Path

from flopwise.values import dataclass

STAT = Path("/proc/stat")
BUSY_FRAC = 0.1
"""Share of all cores used by others from which a figure counts as disturbed."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Load of others during a measurement; None if it is not known, or if the time was too short."""

    others_frac: float | None  # of all cores
    switches: int | None  # involuntary context switches of this process


@dataclass(frozen=True, slots=True)
class Load:
    """CPU usage at one time: of the machine since boot, and of this process since its start."""

    at_s: float
    busy_s: float | None  # of all cores, including time stolen by other virtual machines; None: not known
    own_s: float
    switches: int | None  # involuntary ones, of this process
    waiting_per_core: float | None  # processes that were ready to run in the last minute, for each core

    @classmethod
    def now(cls) -> Load:
        """Read the present usage."""
        return cls(time.monotonic(), _busy_s(), time.process_time(), _involuntary_switches(), _waiting_per_core())

    def __sub__(self, earlier: Load) -> Disturbance:
        """Load of others since `earlier`."""
        passed = self.at_s - earlier.at_s
        switches = None if self.switches is None or earlier.switches is None else self.switches - earlier.switches
        if self.busy_s is None or earlier.busy_s is None or passed < 0.1:  # counted in hundredths
            return Disturbance(None, switches)
        others_s = self.busy_s - earlier.busy_s - (self.own_s - earlier.own_s)
        return Disturbance(min(max(others_s / (passed * (os.cpu_count() or 1)), 0.0), 1.0), switches)


def _busy_s() -> float | None:
    """Busy seconds of all cores: user, nice, system, interrupts, stolen; not idle, not waiting."""
    try:
        words = STAT.read_text(encoding="ascii").split("\n", 1)[0].split()
        user, nice, system, _, _, irq, softirq, steal = map(int, words[1:9])
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None


def _involuntary_switches() -> int | None:
    try:
        import resource  # noqa: PLC0415 - not on every system
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _waiting_per_core() -> float | None:
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except (OSError, AttributeError):
        return None
