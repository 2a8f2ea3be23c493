"""How much carbon dioxide a kilowatt-hour is, by provider and region; kg of CO2 equivalent for each kWh, dated."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from flopwise import units
from flopwise.facts import book, tables

FILE = "carbon.csv"
COLUMNS: dict[str, tables.Reader] = {
    "provider": tables.text,
    "region": tables.text,
    "kg_per_kwh": tables.number(units.parse_count, "kg of CO2 for a kWh, from 0 to 3", high=3.0, zero=True),
    "pue": tables.number(units.parse_count, "a power usage effectiveness from 1 to 3", low=1.0, high=3.0, zero=True),
    **book.ORIGIN,
}
KEYS = ("provider", "region", "kg_per_kwh", "source", "date")
ANY = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRecord:
    """Average of a year of the grid that feeds a region; `pue` of the provider's buildings there, None: not known."""

    provider: str
    region: str
    kg_per_kwh: float
    source: str
    date: str
    pue: float | None = None
    confidence: str = "medium"
    notes: str = ""


def grid_record(provider: str, region: str, folder: Path | None = None) -> GridRecord:
    """The record of a provider's region, else of a pattern that fits, else the average of the world.

    The most particular wins: the provider's own before `any`, a longer pattern before a shorter one.

    Raises:
        SpecError: a row is wrong.
    """
    return _record(provider, region, folder, book.stamp(FILE, folder))


@lru_cache(maxsize=1024)
def _record(provider: str, region: str, folder: Path | None, state: book.Stamp) -> GridRecord:
    del state
    best: tuple[bool, int] = (False, -1)
    found: tables.Row | None = None
    for row in book.rows(FILE, COLUMNS, KEYS, folder):
        whose, pattern = row.values["provider"], row.values["region"]
        if whose in (provider, ANY) and fnmatchcase(region.lower(), pattern.lower()):
            rank = (whose == provider, len(pattern))
            if rank >= best:
                best, found = rank, row
    assert found is not None, "the shipped table ends in any,*"
    return GridRecord(**found.values)
