"""The layouts of files of prices: each is recognised by its columns. Another one is a module and a line in LAYOUTS."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flopwise.errors import SpecError
from flopwise.facts.rows import first_line
from flopwise.price_import import gpuhunt, skypilot
from flopwise.price_import.rows import PriceRows, own_rows, rows_of_quotes

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.price_import.quotes import Quote


@dataclass(frozen=True, slots=True)
class PriceLayout:
    """How somebody writes prices: what it is called, the columns that every such file has, and its prices.

    `quotes(path, provider, facts, skipped)` yields them and counts the lines that it leaves out; None: our own table.
    """

    title: str
    columns: tuple[str, ...]
    quotes: Callable[[Path, str | None, Facts, Counter[str]], Iterator[Quote]] | None = None


LAYOUTS = {
    "gpuhunt": PriceLayout("gpuhunt", gpuhunt.COLUMNS, gpuhunt.quotes),
    "skypilot": PriceLayout("SkyPilot", skypilot.COLUMNS, skypilot.quotes),
    "flopwise": PriceLayout("our own", ("provider", "instance", "region", "price_date", "source")),
}


def layout_of(path: Path) -> str:
    """Which of LAYOUTS a file has, by its first line.

    Raises:
        SpecError: none of them; says which columns are missing from the nearest.
    """
    header = [cell.strip() for cell in next(csv.reader([first_line(path)]), [])]
    for name, layout in LAYOUTS.items():
        if set(layout.columns) <= set(header):
            return name
    nearest = max(LAYOUTS, key=lambda name: len(set(LAYOUTS[name].columns) & set(header)))
    missing = [column for column in LAYOUTS[nearest].columns if column not in header]
    allowed = ", ".join(f"{layout.title} ({', '.join(layout.columns)})" for layout in LAYOUTS.values())
    raise SpecError(
        f"{path}, row 1: no layout of prices that is known; the nearest, {nearest}, also needs {', '.join(missing)}. "
        f"Allowed: {allowed}"
    )


def read_prices(
    path: Path, facts: Facts, *, day: str, provider: str | None = None, skip_unknown: bool = False, latest: str = ""
) -> PriceRows:
    """The rows of our own layout that a file gives; `day` is the date of its prices where it has none of its own.

    `provider`: whose prices they are, where the file does not say; else taken from the names of file or folder.
    `latest`: the last day that prices may be of, where given.

    Raises:
        SpecError: with file, row and column, what was given and what is allowed.
    """
    name = layout_of(path)
    read = LAYOUTS[name].quotes
    if read is None:
        return PriceRows(name, own_rows(path, facts, latest))
    skipped = Counter[str]()
    made = rows_of_quotes(
        read(path, provider, facts, skipped), facts, layout=name, source=f"{name} file {path.name}", day=day,
        skip_unknown=skip_unknown,
    )  # fmt: skip
    made.skipped += skipped
    if not made.rows:
        why = "; ".join(f"{count:,} rows: {reason}" for reason, count in made.skipped.items()) or "it has no rows"
        raise SpecError(f"{path}: no row of it is a price of an instance ({why})")
    return made
