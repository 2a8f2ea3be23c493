"""The options of `probe`."""

from __future__ import annotations

from pathlib import Path

from flopwise import options
from flopwise.options import Spec, option
from flopwise.probes.kinds import KINDS
from flopwise.values import dataclass


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSpec(Spec):
    """Devices, kinds of measurement and thoroughness of a probe."""

    device: tuple[str, ...] = option(
        "--device", options.name("id", 40),
        "Measure this device: cpu, cuda:0, mps (default: the first GPU and the CPU).",
        repeated=True)
    only: tuple[str, ...] = option(
        "--only", options.choice(*KINDS), f"Measure only this kind: {', '.join(KINDS)}.", repeated=True)
    quick: bool = option(
        "--quick", options.FLAG, "Fewer sizes and repetitions: under 20 seconds instead of two minutes.", default=False)
    threads: int | None = option("--threads", options.whole(high=4096), "CPU threads to use.")
    disk: Path | None = option(
        "--disk", options.FILE, "Folder whose disk is measured, in a temporary file (default: the current one).",
        metavar="DIR")
# fmt: on
