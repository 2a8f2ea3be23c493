"""What storage delivers: kinds of file system, drive and object store as rows of data/storage.csv.

Units: byte/s, sequential or large random reads; what is not known is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from flopwise.data import DATA
from flopwise.errors import MissingFactError, UnknownNameError, fold
from flopwise.facts import tables

FILE = "storage.csv"
COLUMNS: dict[str, tables.Reader] = {
    "name": tables.text,
    "aliases": tables.text,
    "scope": tables.choice("client", "device", "connection"),
    "networked": tables.flag,
    "read_bytes_per_s": tables.bytes_per_s,
    "write_bytes_per_s": tables.bytes_per_s,
    "total_write_bytes_per_s": tables.bytes_per_s,
    "source": tables.text,
    "date": tables.date,
    "confidence": tables.confidence,
    "notes": tables.text,
}
KEYS = ("name", "read_bytes_per_s", "source", "date")


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """One kind of storage, as one client node sees it (`scope` client), one drive or volume, or one connection."""

    name: str
    read_bytes_per_s: float
    source: str
    date: str
    write_bytes_per_s: float | None = None
    total_write_bytes_per_s: float | None = None  # of all clients together; None: not known, they add up
    aliases: str = ""
    scope: Literal["client", "device", "connection"] = "client"
    networked: bool = True  # the data cross the node's network
    confidence: str = "medium"
    notes: str = ""

    def known_write(self) -> float:
        """Bytes/s of writes.

        Raises:
            MissingFactError: nobody has written them down.
        """
        if self.write_bytes_per_s is None:
            raise MissingFactError(f"{self.name}: its write bandwidth is not known; give --storage-bandwidth")
        return self.write_bytes_per_s


def storage_kinds(folder: Path | None = None) -> Mapping[str, Storage]:
    """All kinds by name, those in `folder` laid over the shipped ones.

    Raises:
        SpecError: a row is wrong; names file, row and column.
    """
    held = dict(_shipped())
    if folder is not None and (folder / FILE).is_file():
        held |= _read(folder / FILE)
    return held


def storage(name: str, folder: Path | None = None) -> Storage:
    """The kind of that name, in any common spelling.

    Raises:
        UnknownNameError: there is none; names the nearest.
    """
    held = storage_kinds(folder)
    for kind in reversed(tuple(held.values())):
        if fold(name) in {fold(spelling) for spelling in (kind.name, *kind.aliases.split(";"))} and fold(name):
            return kind
    raise UnknownNameError("kind of storage", name, held, f"allowed: {', '.join(held)}")


@cache
def _shipped() -> Mapping[str, Storage]:
    return _read(DATA / FILE)


def _read(path: Path) -> dict[str, Storage]:
    found: dict[str, Storage] = {}
    for row in tables.read_table(path, COLUMNS, keys=KEYS):
        name = row.values["name"]
        if name in found:
            raise row.error("name", name, "it stands in this file twice")
        found[name] = Storage(**row.values)
    return found
