"""What storage delivers: kinds of file system, drive and object store as rows of data/storage.csv.

Units: byte/s, sequential or large random reads; what is not known is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flopwise.facts import tables
from flopwise.facts.tables import FactTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """One kind of storage, as one client node sees it (`scope` client), one drive or volume, or one connection."""

    name: str
    read_bytes_per_s: float
    source: str
    date: str
    write_bytes_per_s: float | None = None
    total_write_bytes_per_s: float | None = None  # of all clients together; None: not known, they add up
    aliases: tuple[str, ...] = ()
    scope: Literal["client", "device", "connection"] = "client"
    networked: bool = True  # the data cross the node's network
    confidence: str = "medium"
    notes: str = ""


STORAGE = FactTable(
    file="storage.csv", meaning="a kind of storage: file system, drive, object store", row=Storage, key=("name",),
    readers={
        "read_bytes_per_s": tables.bytes_per_s, "write_bytes_per_s": tables.bytes_per_s,
        "total_write_bytes_per_s": tables.bytes_per_s,
    },
)  # fmt: skip
