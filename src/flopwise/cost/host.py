"""The link between a device and its host: what copies from pinned memory sustain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.errors import MissingFactError

if TYPE_CHECKING:
    from flopwise.cost.rates import Rates

PINNED_FRAC = 0.76
"""Of the link, what transfers from pinned memory reach: 12 of 15.75 GB/s (CUDA C++ Best Practices Guide, PCIe 3)."""


def pcie_bytes_per_s(rates: Rates) -> float:
    """What transfers between device and host sustain, one direction.

    Source: `PINNED_FRAC` of the datasheet's rate.
    Assumes: pinned memory; the device has its lanes for itself.
    Raises: MissingFactError: the device's link to its host is not known.
    """
    if not rates.pcie_bytes_per_s:
        raise MissingFactError(f"{rates.name}: its PCIe bandwidth is not known, which offloading needs; add it")
    return PINNED_FRAC * rates.pcie_bytes_per_s
