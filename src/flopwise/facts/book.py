"""Tables of the price book: the shipped rows of a file, with those of a user's folder laid over them.

Each of its files is a CSV table whose rows say where they were read (`source`), when (`date`) and how sure they are
(`confidence`); `flopwise.facts.tables` checks every cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from flopwise import units
from flopwise.data import DATA
from flopwise.facts import tables

ORIGIN: dict[str, tables.Reader] = {
    "source": tables.text,
    "date": tables.date,
    "confidence": tables.confidence,
    "notes": tables.text,
}
"""Columns that every table of the book has."""

usd = tables.number(units.parse_usd, "US dollars above 0 and below 1e9", high=1e9)
usd_or_nothing = tables.number(units.parse_usd, "US dollars from 0 to 1e9", high=1e9, zero=True)


Stamp = tuple[tuple[Path, int], ...]
"""The files of a table and when they changed, in ns; 0 of what is shipped."""


def stamp(file: str, folder: Path | None = None) -> Stamp:
    """Which files a table is read from: what is looked up in it holds while this stays the same."""
    if folder is None:
        return ((DATA / file, 0),)
    try:
        return ((DATA / file, 0), (folder / file, (folder / file).stat().st_mtime_ns))
    except OSError:
        return ((DATA / file, 0),)


def rows(
    file: str, columns: Mapping[str, tables.Reader], keys: tuple[str, ...], folder: Path | None = None
) -> Iterator[tables.Row]:
    """Rows of the shipped `file`, then those of the one in `folder`: the later one of a key holds.

    Raises:
        SpecError: a row is wrong; names file, row and column.
    """
    for path, changed in stamp(file, folder):
        yield from _read(path, changed, tuple(columns.items()), keys)


@lru_cache(maxsize=32)
def _read(
    path: Path, changed: int, columns: tuple[tuple[str, tables.Reader], ...], keys: tuple[str, ...]
) -> tuple[tables.Row, ...]:
    """The rows of a file as it was when it was `changed`."""
    del changed
    return tuple(tables.read_table(path, dict(columns), keys=keys))
