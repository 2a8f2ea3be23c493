"""Files of prices as others write them: gpuhunt's CSV, SkyPilot's catalog CSV, and our own table of offers.

Whatever its layout, a file becomes rows of our own table: one for each provider, instance type and region, with the
specification of an instance that is known elsewhere, and the dearer zones of a region left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.errors import SpecError, UnknownNameError, nearest_names
from flopwise.facts import offers as offer_rows
from flopwise.facts import tables
from flopwise.facts.rows import read_rows

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer

GPUHUNT = ("instance_name", "location", "price", "gpu_count", "gpu_name", "spot")
SKYPILOT = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region", "SpotPrice")
OWN = ("provider", "instance", "region", "price_date", "source")
LAYOUTS = {"gpuhunt": GPUHUNT, "skypilot": SKYPILOT, "flopwise": OWN}
PROVIDERS = {"lambdalabs": "lambda", "vastai": "vast", "cudocompute": "cudo", "do": "digitalocean"}
"""What they call providers that have another name here."""
SPECIFICATION = (
    "accelerator", "count", "accelerator_share", "vcpus", "ram_bytes", "local_disk_bytes", "network_bytes_per_s",
    "intra_link",
)  # fmt: skip
GIB = 2**30
_PART = 0.8
"""Share of a GPU's memory below which an instance has a part of one."""
_ZONE = re.compile(r"^([a-z]+-[a-z]+\d+)-[a-z]$")
_whole = tables.whole(lambda value, _: float(str(value)), "a whole number from 0 to 1,000,000", low=0, high=10**6)
_gpus = tables.number(lambda value, _: float(str(value)), "a number of GPUs from 0 to 100,000", high=1e5, zero=True)
_size = tables.number(lambda value, _: float(str(value)), "gigabytes above 0", high=1e7)
Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """One line of a foreign file; None: it does not say. `file` and `line` name it in messages."""

    provider: str
    instance: str
    region: str
    gpu: str | None
    gpus: float  # below 1: a part of one
    gpu_gib: float | None = None
    vcpus: int | None = None
    ram_gib: float | None = None
    on_demand: float | None = None
    spot: float | None = None
    file: str = "prices"
    line: int = 0


@dataclass(slots=True)
class Table:
    """Rows of our own layout made from a file, and what was left out of it and why."""

    layout: str
    rows: list[dict[str, Any]]
    skipped: Counter[str] = field(default_factory=Counter)


def layout_of(path: Path) -> str:
    """Which of LAYOUTS a file has, by its first line.

    Raises:
        SpecError: none of them; says which columns are missing from the nearest.
    """
    header = [cell.strip().strip('"') for cell in _first_line(path).split(",")]
    for name, needed in LAYOUTS.items():
        if set(needed) <= set(header):
            return name
    nearest = max(LAYOUTS, key=lambda name: len(set(LAYOUTS[name]) & set(header)))
    missing = [column for column in LAYOUTS[nearest] if column not in header]
    raise SpecError(
        f"{path}, row 1: no layout of prices that is known; the nearest, {nearest}, also needs {', '.join(missing)}. "
        f"Allowed: gpuhunt ({', '.join(GPUHUNT)}), SkyPilot ({', '.join(SKYPILOT)}), our own ({', '.join(OWN)})"
    )


def _first_line(path: Path) -> str:
    from flopwise.facts.rows import csv_text  # noqa: PLC0415 - beside its only use

    return next(iter(csv_text(path).splitlines()), "")


def read_prices(
    path: Path, facts: Facts, *, day: str, provider: str | None = None, skip_unknown: bool = False
) -> Table:
    """The rows of our own layout that a file gives; `day` is the date of its prices where it has none of its own.

    `provider`: whose prices they are, where the file does not say; else taken from the names of file or folder.

    Raises:
        SpecError: with file, row and column, what was given and what is allowed.
    """
    layout = layout_of(path)
    if layout == "flopwise":
        return Table(layout, _own_rows(path, facts))
    skipped: Counter[str] = Counter()
    read = _gpuhunt if layout == "gpuhunt" else _skypilot
    found = quotes_table(read(path, provider, skipped), facts, f"{layout} file {path.name}", day, skip_unknown)
    found.skipped += skipped
    found.layout = layout
    if not found.rows:
        why = "; ".join(f"{count:,} rows: {reason}" for reason, count in found.skipped.items()) or "it has no rows"
        raise SpecError(f"{path}: no row of it is a price of an instance ({why})")
    return found


def quotes_table(quotes: Iterable[Quote], facts: Facts, source: str, day: str, skip_unknown: bool) -> Table:
    """Rows of our own layout, one for each offer that the quotes are of.

    Raises:
        SpecError: an accelerator is not known, unless such quotes are to be skipped.
    """
    known = {offer.key: offer for offer in facts.offers}
    types: dict[tuple[str, str], Offer] = {}
    for offer in facts.offers:
        types.setdefault((offer.provider, offer.instance), offer)
    table, rows = Table("", []), dict[Key, dict[str, Any]]()
    for quote in quotes:
        try:
            instance, specification = _specified(quote, facts, types)
        except UnknownNameError as fault:
            if not skip_unknown:
                raise _fault(quote, "accelerator", quote.gpu, str(fault)) from None
            table.skipped[f"unknown accelerator {str(quote.gpu)[:40]}"] += 1
            continue
        if specification is None:
            table.skipped["no accelerator, and no instance type that is known"] += 1
            continue
        key = (quote.provider, instance, quote.region)
        if key not in rows:
            fixed = {c: specification[c] for c in SPECIFICATION[:3]} if key in known else specification
            rows[key] = {
                "provider": key[0], "instance": key[1], "region": key[2], **fixed, "price_date": day, "source": source,
                "confidence": "medium",
            }  # fmt: skip
        for column, usd in (("on_demand_usd_per_hour", quote.on_demand), ("spot_usd_per_hour", quote.spot)):
            if usd is not None:
                rows[key][column] = min(usd, rows[key].get(column, usd))
    table.rows = [row for row in rows.values() if any(column.endswith("usd_per_hour") for column in row)]
    return table


def _specified(quote: Quote, facts: Facts, types: Mapping[tuple[str, str], Offer]) -> tuple[str, dict[str, Any] | None]:
    """(our name of the instance, its specification); None where there is nothing to compute on that is known."""
    offer = types.get((quote.provider, quote.instance))
    if offer is None and quote.gpu is None:
        return quote.instance, None
    instance, cells = quote.instance, dict[str, Any]()
    if offer is None:
        name = _resolved(quote, facts)
        if quote.provider == "gcp" and quote.instance.startswith(
            "n1-"
        ):  # GPUs are attached to these: not in their names
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


def _resolved(quote: Quote, facts: Facts) -> str:
    """The accelerator's name here: with its memory where that tells variants apart."""
    assert quote.gpu is not None
    if quote.gpu_gib is not None:
        try:
            return facts.accelerator(f"{quote.gpu} {quote.gpu_gib:g}GB").name
        except UnknownNameError:
            pass
    return facts.accelerator(quote.gpu).name


def _own_rows(path: Path, facts: Facts) -> list[dict[str, Any]]:
    """The rows of a table of offers, checked against what is known."""
    known, seen, rows = {offer.key: offer for offer in facts.offers}, set[Key](), []
    for row in tables.read_table(path, offer_rows.COLUMNS, keys=offer_rows.KEYS):
        key = (row.values["provider"], row.values["instance"], row.values["region"])
        if key in seen:
            raise row.error("instance", key[1], f"{key[0]} has it in {key[2]} twice in this file")
        seen.add(key)
        if not any(row.values.get(f"{way}_usd_per_hour") for way in offer_rows.PURCHASES):
            raise row.error("on_demand_usd_per_hour", "", "a row of prices needs at least one price")
        offer = offer_rows.offer_from_row(row, known.get(key))
        cells = {name: "unknown" if value is None else value for name, value in row.values.items()}
        if offer.accelerator not in facts.accelerators:
            try:
                cells["accelerator"] = facts.accelerator(offer.accelerator).name
            except UnknownNameError as fault:
                raise row.error("accelerator", offer.accelerator, str(fault)) from None
        rows.append({"accelerator": offer.accelerator, "count": offer.count, **cells})
    if not rows:
        raise SpecError(f"{path} has a header and no rows")
    return rows


def _gpuhunt(path: Path, provider: str | None, skipped: Counter[str]) -> Iterator[Quote]:
    """Quotes of gpuhunt's layout: a line is one price, on demand or spot."""
    for row in read_rows(path, GPUHUNT):
        at = _Line(path, row)
        spot = row["spot"].lower()
        if spot not in ("true", "false"):
            raise at.error("spot", row["spot"], "allowed: True, False")
        usd = at.read("price", tables.usd_per_hour)
        if usd is None:
            skipped["no price"] += 1
            continue
        whose = _provider(path, row.get("provider") or provider)
        yield Quote(
            provider=whose, instance=at.text("instance_name"), region=region(whose, at.text("location")),
            gpu=row["gpu_name"] or None, gpus=at.read("gpu_count", _gpus) or 0, gpu_gib=at.read("gpu_memory", _size),
            vcpus=at.read("cpu", _whole), ram_gib=at.read("memory", _size), file=str(path), line=at.line,
            **{"spot" if spot == "true" else "on_demand": usd},
        )  # fmt: skip


def _skypilot(path: Path, provider: str | None, skipped: Counter[str]) -> Iterator[Quote]:
    """Quotes of SkyPilot's layout: a line has both prices of a zone or region."""
    for row in read_rows(path, SKYPILOT):
        at = _Line(path, row)
        usd, spot = at.read("Price", tables.usd_per_hour), at.read("SpotPrice", tables.usd_per_hour)
        if not row["InstanceType"] or (usd is None and spot is None):
            skipped["no instance type" if not row["InstanceType"] else "no price"] += 1
            continue
        whose = _provider(path, provider)
        yield Quote(
            provider=whose, instance=row["InstanceType"], region=region(whose, at.text("Region")),
            gpu=row["AcceleratorName"] or None, gpus=at.read("AcceleratorCount", _gpus) or 0,
            vcpus=at.vcpus("vCPUs"), ram_gib=at.read("MemoryGiB", _size), on_demand=usd, spot=spot,
            file=str(path), line=at.line,
        )  # fmt: skip


class _Line:
    """A line of a foreign file, whose cells are read with its place in every message."""

    def __init__(self, path: Path, row: Mapping[str, str]) -> None:
        self._row = row
        self.line = int(row["id"].removeprefix("line ")) if row["id"].startswith("line ") else 0
        self._place = tables.Row({}, str(path), self.line)

    def error(self, column: str, given: object, allowed: str) -> SpecError:
        """As `tables.Row.error`."""
        return self._place.error(column, given, allowed)

    def text(self, column: str) -> str:
        """A cell that must be filled."""
        if not self._row[column]:
            raise self.error(column, "", "it must be filled")
        return self._row[column]

    def read(self, column: str, reader: tables.Reader) -> Any:
        """A cell's value, None where it is empty or not there."""
        cell = self._row.get(column, "")
        if not cell:
            return None
        try:
            return reader(cell)
        except (ValueError, OverflowError) as fault:
            reason = str(fault)
            allowed = reason[reason.rfind("allowed: ") :] if "allowed: " in reason else "that is no number"
            raise self.error(column, cell, allowed) from None

    def vcpus(self, column: str) -> int | None:
        """Whole vCPUs; clouds that sell parts of one (0.5) say so with a fraction, which is then left out."""
        found = self.read(column, tables.positive)
        return int(found) if found is not None and found == int(found) else None


def _fault(quote: Quote, column: str, given: object, allowed: str) -> SpecError:
    return tables.Row({}, quote.file, quote.line).error(
        column, given, f"{allowed}; `--skip-unknown` leaves such rows out, a facts folder adds the accelerator"
    )


def _provider(path: Path, given: str | None) -> str:
    """Whose prices a file has: as given, else its own name, else its folder's (SkyPilot's aws/vms.csv)."""
    name = (given or (path.parent.name if path.stem.lower() in ("vms", "instances") else path.stem)).strip().lower()
    name = PROVIDERS.get(name, name)
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,39}", name):
        near = nearest_names(name, PROVIDERS)
        hint = f" (nearest: {', '.join(near)})" if near else ""
        raise SpecError(
            f"{path}: whose prices are these? {name[:40]!r} is no provider{hint}; give --provider, such as aws"
        )
    return name


def region(provider: str, place: str) -> str:
    """The region of a place, which for Google may be a zone."""
    zone = _ZONE.fullmatch(place) if provider == "gcp" else None
    return zone[1] if zone else place
