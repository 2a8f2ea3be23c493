"""What storage delivers: kinds of file system, drive and object store as rows of data/storage.csv.

Units: byte/s, sequential or large random reads; what is not known is None.
"""

from __future__ import annotations

from typing import Literal

from flopwise.facts.tables import BytesPerS, FactTable, SourcedRow
from flopwise.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage(SourcedRow):
    """One kind of storage, as one client node sees it (`scope` client), one drive or volume, or one connection."""

    name: str
    read_bytes_per_s: BytesPerS
    write_bytes_per_s: BytesPerS | None = None
    total_read_bytes_per_s: BytesPerS | None = None  # of all clients together; None: not known, they add up
    total_write_bytes_per_s: BytesPerS | None = None
    aliases: tuple[str, ...] = ()
    scope: Literal["client", "device", "connection"] = "client"
    networked: bool = True  # the data cross the node's network


STORAGE = FactTable(
    file="storage.csv", meaning="a kind of storage: file system, drive, object store", row=Storage, key=("name",),
)  # fmt: skip
