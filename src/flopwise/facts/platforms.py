"""Which devices a training stack or inference engine runs on.

Rows of data/software_support.csv; software without a row of its own takes that of the longest name its own begins with
(`megatron` for `megatron-te`). A device of a vendor that no row knows is never refused: nobody has said that it cannot.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from flopwise.data import DATA
from flopwise.errors import SpecError
from flopwise.facts.software import of_family

if TYPE_CHECKING:
    from flopwise.facts.accelerators import Accelerator

FILE = "software_support.csv"
ANY = "any"
OF_VENDORS = {
    "nvidia": "nvidia",
    "amd": "amd",
    "intel": "intel",
    "apple": "apple",
    "aws": "neuron",
    "google": "tpu",
    "sambanova": "rdu",
}
OLD_NEURON = "NeuronCore-v1"
"""Inferentia1: compiled models of 2019 run on it, none of the software here does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """What one piece of software, or a family of it, runs on."""

    name: str
    platforms: frozenset[str]
    least_compute_capability: float  # of NVIDIA devices; 0: any
    source: str
    date: str


@cache
def _rows() -> dict[str, Support]:
    found: dict[str, Support] = {}
    text = (DATA / FILE).read_text(encoding="utf-8")
    for line, cells in enumerate(csv.DictReader(text.splitlines()), start=2):
        try:
            found[cells["software"]] = Support(
                name=cells["software"],
                platforms=frozenset(cells["platforms"].split()),
                least_compute_capability=float(cells["least_compute_capability"]),
                source=cells["source"],
                date=cells["date"],
            )
        except (KeyError, ValueError) as wrong:
            raise SpecError(f"{FILE} line {line}: {wrong}") from None
    return found


def support(name: str) -> Support:
    """The row of a stack or engine, by its own name or its family's.

    Raises:
        SpecError: there is none.
    """
    return of_family(_rows(), name, FILE)


def platform(accelerator: Accelerator) -> str | None:
    """The platform that software is built for on a device; None where no row could know it."""
    if accelerator.kind == "cpu":
        return "cpu"
    if accelerator.architecture == OLD_NEURON:
        return "neuron-v1"
    if accelerator.architecture.startswith("Gaudi"):
        return "gaudi"
    return OF_VENDORS.get(accelerator.vendor.lower())


def runs_on(name: str, accelerator: Accelerator) -> bool:
    """Whether a stack or engine is known to run on a device.

    Source: data/software_support.csv.
    Assumes: a plugin counts; a device without a compute capability has what is asked.
    Raises: SpecError: no such software.
    """
    held, own = support(name), platform(accelerator)
    if ANY in held.platforms or own is None:
        return True
    if own not in held.platforms:
        return False
    has = accelerator.compute_capability
    return own != "nvidia" or has is None or float(has) >= held.least_compute_capability


def unsupported_note(name: str, accelerator: Accelerator) -> tuple[str, ...]:
    """What to say of an estimate for software on a device that it is not known to run on; nothing where it does."""
    if runs_on(name, accelerator):
        return ()
    return (f"{name} is not known to run on {accelerator.name}: its habits are assumed all the same",)
