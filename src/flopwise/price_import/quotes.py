"""A price as others write it, and what their layouts have in common: lines, names of providers, regions, forms."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from flopwise.errors import SpecError, nearest_names
from flopwise.facts import tables
from flopwise.values import dataclass

PROVIDERS = {"lambdalabs": "lambda", "vastai": "vast", "cudocompute": "cudo", "do": "digitalocean"}
"""Names of providers in other catalogs, by their name here."""
GIB = 2**30
_FORM = re.compile(r"pcie|nvl(?!\d)|sxm", re.IGNORECASE)
_ZONE = re.compile(r"^([a-z]+-[a-z]+\d+)-[a-z]$")
whole = tables.whole(lambda value, _: float(str(value)), "a whole number from 0 to 1,000,000", low=0, high=10**6)
num_gpus = tables.number(lambda value, _: float(str(value)), "a number of GPUs from 0 to 100,000", high=1e5, zero=True)
gibibytes = tables.number(lambda value, _: float(str(value)), "gigabytes above 0", high=1e7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """The price of an instance in a region; None: not said. `file` and `line` name its origin in messages."""

    provider: str
    instance: str
    region: str
    gpu: str | None
    gpus: float  # below 1: a part of one
    gpu_gib: float | None = None
    form: str = ""  # pcie, sxm or nvl, where that is said
    vcpus: int | None = None
    ram_gib: float | None = None
    on_demand: float | None = None
    spot: float | None = None
    file: str = "prices"
    line: int = 0


class Line:
    """A line of a file of prices, whose cells are read with its place in every message."""

    def __init__(self, path: Path, row: Mapping[str, str]) -> None:
        self._row, self.file = row, str(path)
        self.line = int(row["id"].removeprefix("line ")) if row["id"].startswith("line ") else 0
        self._place = tables.Row({}, str(path), self.line)

    def error(self, column: str, given: object, allowed: str) -> SpecError:
        """As `tables.Row.error`."""
        return self._place.error(column, given, allowed)

    def cell(self, column: str) -> str:
        """A cell as it stands, empty where there is no such column."""
        return self._row.get(column, "")

    def text(self, column: str) -> str:
        """A cell that must be filled."""
        if not self._row[column]:
            raise self.error(column, "", "it must be filled")
        return self._row[column]

    def value(self, column: str, reader: tables.Reader) -> Any:
        """A cell's value, None where it is empty or not there."""
        cell = self.cell(column)
        if not cell:
            return None
        try:
            return reader(cell)
        except (ValueError, OverflowError) as fault:
            reason = str(fault)
            allowed = reason[reason.rfind("allowed: ") :] if "allowed: " in reason else "that is not a number"
            raise self.error(column, cell, allowed) from None


def provider_of(path: Path, given: str | None, known: Collection[str]) -> str:
    """The provider of a file's prices: as given, else its own name, else its folder's (SkyPilot's aws/vms.csv).

    A provider that is `given`, by a column of the file or the user, may be a new one; a file's name must be known.

    Raises: SpecError: it is not a name of a provider, or a file is called like none that is known.
    """
    place = path.parent.name if path.stem.lower() in ("vms", "instances") else path.stem
    name = (given or place).strip().lower()
    name = PROVIDERS.get(name, name)
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,39}", name) or (not given and name not in {*known, *PROVIDERS.values()}):
        near = nearest_names(name, [*sorted(known), *PROVIDERS])
        hint = f" (nearest: {', '.join(near)})" if near else ""
        raise SpecError(
            f"{path}: {name[:40]!r} is not a {'valid' if given else 'known'} name of a provider{hint}; "
            "give --provider, such as aws, or any name for a new one"
        )
    return name


def region_of(provider: str, place: str) -> str:
    """The region of a place, which for Google may be a zone."""
    zone = _ZONE.fullmatch(place) if provider == "gcp" else None
    return zone[1] if zone else place


def form_of(text: str) -> str:
    """The form factor of a card, where a name states it."""
    match = _FORM.search(text)
    return match[0].lower() if match else ""
