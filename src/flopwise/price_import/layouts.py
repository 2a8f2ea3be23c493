"""Prices in the layouts of others, and the rows of our own table of offers that are made from them.

A layout is recognised by its columns; another one is a module and a line in LAYOUTS. There is a row for each provider,
instance type and region: an instance that is known elsewhere keeps its specification, and of a region's zones the
cheapest price holds.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts import offers, tables
from flopwise.facts.rows import csv_text
from flopwise.price_import import gpuhunt, skypilot
from flopwise.price_import.quotes import GIB, Quote

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer

SPECIFICATION = (
    "accelerator", "count", "accelerator_share", "vcpus", "ram_bytes", "local_disk_bytes", "network_bytes_per_s",
    "intra_link",
)  # fmt: skip
PRICES = {"on_demand": "on_demand_usd_per_hour", "spot": "spot_usd_per_hour"}
_PART = 0.8
"""Share of a GPU's memory below which an instance has a part of one."""
Key = tuple[str, str, str]


@dataclass(slots=True)
class PriceRows:
    """Cells of offers by column, made from a file in some layout, and what was left out of it and why."""

    layout: str
    rows: list[dict[str, Any]]
    skipped: Counter[str] = field(default_factory=Counter)


def rows_of_quotes(
    quotes: Iterable[Quote], facts: Facts, *, layout: str, source: str, day: str, skip_unknown: bool
) -> PriceRows:
    """Rows for the offers that the quotes are of; `day` is the date of their prices.

    Raises:
        SpecError: an accelerator is not known, unless such quotes are to be skipped.
    """
    known = {offer.key for offer in facts.offers}
    types: dict[tuple[str, str], Offer] = {}
    for offer in facts.offers:
        types.setdefault((offer.provider, offer.instance), offer)
    rows, skipped = dict[Key, dict[str, Any]](), Counter[str]()
    for quote in quotes:
        try:
            instance, specification = _specification(quote, facts, types)
        except UnknownNameError as fault:
            if not skip_unknown:
                hint = "`--skip-unknown` leaves such rows out, a facts folder adds the accelerator"
                place = tables.Row({}, quote.file, quote.line)
                raise place.error("accelerator", quote.gpu, f"{fault}; {hint}") from None
            skipped[f"unknown accelerator {str(quote.gpu)[:40]}"] += 1
            continue
        if specification is None:
            skipped["no accelerator, and no instance type that is known"] += 1
            continue
        key = (quote.provider, instance, quote.region)
        if key not in rows:
            fixed = {c: specification[c] for c in SPECIFICATION[:3]} if key in known else specification
            rows[key] = {
                "provider": key[0], "instance": key[1], "region": key[2], **fixed, "price_date": day, "source": source,
                "confidence": "medium",
            }  # fmt: skip
        for purchase, column in PRICES.items():
            if (usd := getattr(quote, purchase)) is not None:
                rows[key][column] = min(usd, rows[key].get(column, usd))
    return PriceRows(layout, [row for row in rows.values() if not row.keys().isdisjoint(PRICES.values())], skipped)


def _specification(
    quote: Quote, facts: Facts, types: Mapping[tuple[str, str], Offer]
) -> tuple[str, dict[str, Any] | None]:
    """(our name of the instance, its specification); None where there is nothing to compute on that is known."""
    offer = types.get((quote.provider, quote.instance))
    if offer is None and quote.gpu is None:
        return quote.instance, None
    instance, cells = quote.instance, dict[str, Any]()
    if offer is None:
        name = _accelerator(quote, facts)
        if quote.provider == "gcp" and instance.startswith("n1-"):  # GPUs are attached to these: not in their names
            instance = f"{quote.instance}+{quote.gpus:g}x{name}"
            offer = types.get((quote.provider, instance))
        whole = facts.accelerators[name].hbm_bytes
        part = 1.0 if quote.gpu_gib is None else quote.gpu_gib * GIB / whole
        part = quote.gpus if 0 < quote.gpus < 1 else part
        cells = {
            "accelerator": name, "count": max(1, round(quote.gpus)), "accelerator_share": part if part < _PART else 1.0,
            "vcpus": quote.vcpus, "ram_bytes": None if quote.ram_gib is None else quote.ram_gib * GIB,
        }  # fmt: skip
    if offer is not None:
        cells = {column: getattr(offer, column) for column in SPECIFICATION}
    return instance, cells


def _accelerator(quote: Quote, facts: Facts) -> str:
    """The accelerator's name here: with its memory and form where they tell variants apart."""
    assert quote.gpu is not None
    size = "" if quote.gpu_gib is None else f"{quote.gpu_gib:g}GB"
    for hints in ((quote.form, size), (quote.form,), (size,)):
        try:
            chip = facts.accelerator(" ".join(part for part in (quote.gpu, *hints) if part))
        except UnknownNameError:
            continue
        if quote.gpu_gib is None or abs(quote.gpu_gib * GIB / chip.hbm_bytes - 1) < 1 - _PART:
            return chip.name
    return facts.accelerator(quote.gpu).name


def own_rows(path: Path, facts: Facts, latest: str) -> PriceRows:
    """The rows of a table of offers, checked against what is known; `latest`: the last day that prices may be of.

    Rows without a price are left out.

    Raises:
        SpecError: with file, row and column.
    """
    known, seen, made = {offer.key: offer for offer in facts.offers}, set[Key](), PriceRows("flopwise", [])
    for row in tables.read_table(path, offers.OFFERS.columns, keys=offers.OFFERS.required_columns):
        key = (row.values["provider"], row.values["instance"], row.values["region"])
        if key in seen:
            raise row.error("instance", key[1], f"{key[0]} has it in {key[2]} twice in this file")
        seen.add(key)
        for column in ("price_date", "spot_date", "reserved_date"):
            day = row.values.get(column) or offers.UNDATED
            if latest and day != offers.UNDATED and day > latest:
                raise row.error(column, day, f"it lies ahead; allowed: days up to {latest}")
        if not any(row.values.get(f"{way}_usd_per_hour") for way in offers.PURCHASES):
            made.skipped["no price"] += 1
            continue
        offer = offers.OFFERS.row_of(row, known.get(key))
        cells = {name: "unknown" if value is None else value for name, value in row.values.items()}
        if offer.accelerator not in facts.accelerators:
            try:
                cells["accelerator"] = facts.accelerator(offer.accelerator).name
            except UnknownNameError as fault:
                raise row.error("accelerator", offer.accelerator, str(fault)) from None
        made.rows.append({"accelerator": offer.accelerator, "count": offer.count, **cells})
    if not made.rows:
        raise SpecError(f"{path} has no row with a price; on_demand_usd_per_hour or another price must be filled")
    return made


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
    header = [cell.strip() for cell in next(csv.reader([csv_text(path, header_only=True)]), [])]
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
        return own_rows(path, facts, latest)
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
