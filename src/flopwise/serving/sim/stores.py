"""Stores below a replica's device that hold prefixes: what users write, as blocks and times of the simulator."""

from __future__ import annotations

from flopwise.cost.fabric import host_link_bytes_per_s
from flopwise.cost.rates import Rates
from flopwise.errors import SpecError
from flopwise.facts.catalog import Facts
from flopwise.serving.sim.engine import HOST_BYTES_PER_S, BlockStore
from flopwise.serving.sim.trace import PS
from flopwise.units import HOUR_S, parse_bytes, parse_bytes_per_s
from flopwise.values import dataclass

HOST = "host"
"""The memory of a replica's machine, over the PCIe links of its devices; all other names are kinds of storage."""
MONTH_HOURS = 730.0
MOST_STORES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class KvStore:
    """Memory or storage for the cached prefixes of one replica."""

    name: str
    capacity_bytes: float
    bytes_per_s: float
    usd_per_gb_month: float = 0.0  # none where it comes with the machine

    def usd(self, seconds: float) -> float:
        """The cost of its whole capacity over `seconds`, in USD. Source: arithmetic."""
        return self.capacity_bytes / 1e9 * self.usd_per_gb_month * seconds / HOUR_S / MONTH_HOURS

    def block_store(self, block_bytes: float, schedulers: int) -> BlockStore:
        """The share of one of a replica's schedulers, in blocks of so many bytes.

        Source: bytes over the rate of the slowest link; Mooncake (Qin et al. 2024, arXiv:2407.00079, section 5) and
        SGLang's HiCache bring blocks while a request waits, without holding up others.
        Assumes: writing what is evicted takes nothing from reads; a replica finds only what it has put there itself.
        """
        blocks = int(self.capacity_bytes / schedulers // block_bytes)
        return BlockStore(blocks=blocks, block_ps=round(block_bytes / self.bytes_per_s * schedulers * PS))

    @classmethod
    def parse_list(cls, text: str, rates: Rates, devices: int, facts: Facts) -> tuple[KvStore, ...]:
        """The stores of a replica of so many devices, as `host=200GB,nvme=4TB@6GB/s@0.08`, the nearest first.

        Raises: SpecError: not of this form; UnknownNameError: no such kind of storage.
        """
        parts = [part for part in text.split(",") if part.strip()]
        if not 0 < len(parts) <= MOST_STORES:
            raise SpecError(f"{len(parts)} stores; allowed: 1 to {MOST_STORES}")
        stores = tuple(_kv_store(part.strip(), rates, devices, facts) for part in parts)
        if len({one.name for one in stores}) < len(stores):
            raise SpecError(f"stores {text[:60]!r}: a name is given twice; allowed: each once, with its whole capacity")
        return stores


def _kv_store(text: str, rates: Rates, devices: int, facts: Facts) -> KvStore:
    name, equals, rest = text.partition("=")
    size, *more = rest.split("@")
    if not equals or len(more) > 2:
        raise SpecError(
            f"store {text[:60]!r} is not known; allowed: NAME=CAPACITY[@RATE[@USD]], as nvme=4TB@6GB/s@0.08"
        )
    if more and more[0]:
        rate = parse_bytes_per_s(more[0])
    elif name == HOST:
        rate = devices * (host_link_bytes_per_s(rates) if rates.host_link_bytes_per_s else HOST_BYTES_PER_S)
    else:
        rate = facts.storage(name).read_bytes_per_s
    try:
        usd = float(more[1]) if len(more) == 2 else 0.0
    except ValueError:
        usd = -1.0
    capacity = parse_bytes(size)
    if not (usd >= 0 and capacity > 0 and rate > 0):
        raise SpecError(
            f"store {text[:60]!r}: capacity and rate must be above 0, and the price 0 or more USD per GB and month"
        )
    return KvStore(name=name, capacity_bytes=capacity, bytes_per_s=rate, usd_per_gb_month=usd)
