"""Files of prices as others write them: gpuhunt's CSV, SkyPilot's catalog CSV, and our own table of offers.

Whatever its layout, a file becomes rows of our own table: one for each provider, instance type and region, with the
specification of an instance that is known elsewhere, and the dearer zones of a region left out.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from flopwise.errors import SpecError, UnknownNameError, nearest_names
from flopwise.facts import offers as offer_rows
from flopwise.facts import tables
from flopwise.facts.foreign_prices import GIB, GPUHUNT, SKYPILOT, Quote, gpuhunt_quotes, skypilot_quotes
from flopwise.facts.offers import OFFERS
from flopwise.facts.rows import first_line

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer

OWN = ("provider", "instance", "region", "price_date", "source")
LAYOUTS = {"gpuhunt": GPUHUNT, "skypilot": SKYPILOT, "flopwise": OWN}
SPECIFICATION = (
    "accelerator", "count", "accelerator_share", "vcpus", "ram_bytes", "local_disk_bytes", "network_bytes_per_s",
    "intra_link",
)  # fmt: skip
ODD = 4.0
"""Times a known price, up or down, beyond which an import asks whether it is right."""
_PART = 0.8
"""Share of a GPU's memory below which an instance has a part of one."""
Key = tuple[str, str, str]


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
    header = [cell.strip() for cell in next(csv.reader([first_line(path)]), [])]
    for name, needed in LAYOUTS.items():
        if set(needed) <= set(header):
            return name
    nearest = max(LAYOUTS, key=lambda name: len(set(LAYOUTS[name]) & set(header)))
    missing = [column for column in LAYOUTS[nearest] if column not in header]
    raise SpecError(
        f"{path}, row 1: no layout of prices that is known; the nearest, {nearest}, also needs {', '.join(missing)}. "
        f"Allowed: gpuhunt ({', '.join(GPUHUNT)}), SkyPilot ({', '.join(SKYPILOT)}), our own ({', '.join(OWN)})"
    )


def read_prices(
    path: Path, facts: Facts, *, day: str, provider: str | None = None, skip_unknown: bool = False, latest: str = ""
) -> Table:
    """The rows of our own layout that a file gives; `day` is the date of its prices where it has none of its own.

    `provider`: whose prices they are, where the file does not say; else taken from the names of file or folder.
    `latest`: the last day that prices may be of, where given.

    Raises:
        SpecError: with file, row and column, what was given and what is allowed.
    """
    layout = layout_of(path)
    if layout == "flopwise":
        return Table(layout, _own_rows(path, facts, latest))
    skipped: Counter[str] = Counter()
    if layout == "gpuhunt":
        quotes = gpuhunt_quotes(path, provider, facts, skipped)
    else:
        quotes = skypilot_quotes(path, provider, facts, skipped)
    found = quotes_table(quotes, facts, f"{layout} file {path.name}", day, skip_unknown)
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
    """The accelerator's name here: with its memory and form where they tell variants apart."""
    assert quote.gpu is not None
    size = "" if quote.gpu_gib is None else f"{quote.gpu_gib:g}GB"
    for hints in ((quote.form, size), (quote.form,), (size,)):
        try:
            found = facts.accelerator(" ".join(part for part in (quote.gpu, *hints) if part))
        except UnknownNameError:
            continue
        if quote.gpu_gib is None or abs(quote.gpu_gib * GIB / found.hbm_bytes - 1) < 1 - _PART:
            return found.name
    return facts.accelerator(quote.gpu).name


def _own_rows(path: Path, facts: Facts, latest: str) -> list[dict[str, Any]]:
    """The rows of a table of offers, checked against what is known."""
    known, seen, rows = {offer.key: offer for offer in facts.offers}, set[Key](), []
    for row in tables.read_table(path, OFFERS.columns, keys=OFFERS.filled):
        key = (row.values["provider"], row.values["instance"], row.values["region"])
        if key in seen:
            raise row.error("instance", key[1], f"{key[0]} has it in {key[2]} twice in this file")
        seen.add(key)
        if latest and row.values["price_date"] > latest:
            raise row.error("price_date", row.values["price_date"], f"it lies ahead; allowed: days up to {latest}")
        if not any(row.values.get(f"{way}_usd_per_hour") for way in offer_rows.PURCHASES):
            raise row.error("on_demand_usd_per_hour", "", "a row of prices needs at least one price")
        offer = OFFERS.built(row, known.get(key))
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


def _fault(quote: Quote, column: str, given: object, allowed: str) -> SpecError:
    return tables.Row({}, quote.file, quote.line).error(
        column, given, f"{allowed}; `--skip-unknown` leaves such rows out, a facts folder adds the accelerator"
    )


def odd_prices(rows: Iterable[Mapping[str, Any]], facts: Facts) -> list[str]:
    """A sentence for each new provider, then for each price beyond ODD times the known one or below 1/ODD of it.

    The known price is that of the same machine in the same region, else the median of its other regions; the farthest
    off comes first.
    """
    known, elsewhere = _known_prices(facts)
    providers, fresh, odd = {offer.provider for offer in facts.offers}, dict[str, None](), list[tuple[float, str]]()
    for row in rows:
        provider, instance, region = row["provider"], row["instance"], row["region"]
        if provider not in providers:
            fresh[provider] = None
        for way in offer_rows.PURCHASES:
            usd = row.get(f"{way}_usd_per_hour")
            before = known.get((provider, instance, region, way))
            if before is None:
                before = median(elsewhere.get((provider, instance, way), [0.0]))
            if isinstance(usd, int | float) and before and not before / ODD <= usd <= before * ODD:
                told = f"{provider} {instance} in {region}, {way.replace('_', ' ')}: ${usd:g} an hour"
                odd.append((max(usd / before, before / usd), f"{told}, known is ${before:g}: is it right?"))
    news = []
    for name in fresh:
        near = nearest_names(name, sorted(providers), 3)
        news.append(f"{name} is a new provider" + (f"; known and near: {', '.join(near)}" if near else ""))
    return news + [told for _, told in sorted(odd, key=lambda entry: -entry[0])]


def _known_prices(
    facts: Facts,
) -> tuple[dict[tuple[str, str, str, str], float], dict[tuple[str, str, str], list[float]]]:
    """Prices by provider, instance, region and way to buy; and those of all regions."""
    known, elsewhere = dict[tuple[str, str, str, str], float](), dict[tuple[str, str, str], list[float]]()
    for offer in facts.offers:
        for way in offer_rows.PURCHASES:
            usd = getattr(offer, f"{way}_usd_per_hour")
            if usd is not None:
                known[*offer.key, way] = usd
                elsewhere.setdefault((offer.provider, offer.instance, way), []).append(usd)
    return known, elsewhere
