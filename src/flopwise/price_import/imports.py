"""Imported prices: written to a folder of their own, all or nothing, listed and removed; nothing else is touched."""

from __future__ import annotations

import csv
import datetime as dt
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from flopwise.errors import InfeasibleError, SpecError, UnknownNameError, nearest_names
from flopwise.facts import tables
from flopwise.facts.offers import OFFERS, PURCHASES, UNDATED
from flopwise.facts.price_files import ENDING, prices_folder, stamps
from flopwise.files import write_whole
from flopwise.price_import.gpuhunt import fetch_quotes
from flopwise.price_import.layouts import PriceRows, read_prices, rows_of_quotes

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts

FETCHED = "gpuhunt"
"""The name of prices that were fetched."""
ODD = 4.0
"""Times a known price, up or down, beyond which an import asks whether it is right."""
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceImport:
    """What an import did: offers `new` to the catalog and those whose prices it `changed`; rows left out, and why.

    `notes`: providers that are new, and prices far from those that are known.
    """

    name: str
    layout: str
    path: str
    price_dates: tuple[str, str]  # oldest and newest
    offers: int
    new: int
    changed: int
    skipped: dict[str, int]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedFile:
    """Imported prices; `fault`: why they cannot be read, None where they can."""

    name: str
    path: str
    imported: str
    offers: int | None
    providers: tuple[str, ...]
    price_dates: tuple[str, str] | None
    fault: str | None = None


def price_file(name: str) -> Path:
    """Where the prices called `name` stand, or would.

    Raises:
        SpecError: the name could lead out of the folder, or is no name for a file.
    """
    if not re.fullmatch(_NAME, name) or name.endswith("."):
        raise SpecError(
            f"name of prices {name[:60]!r}; allowed: up to 64 letters, digits, dots, dashes and underscores, the first "
            "a letter or digit"
        )
    return Path(prices_folder()) / f"{name}{ENDING}"


def import_file(
    path: Path, facts: Facts, *, name: str | None, provider: str | None, day: str | None, skip_unknown: bool,
    today: dt.date, latest: dt.date,
) -> PriceImport:  # fmt: skip
    """Lay the prices of a file over the shipped ones; `latest` is the last day that prices may be of.

    Raises:
        SpecError: with file, row and column, what was given and what is allowed.
    """
    name = _name_of(path) if name is None else name
    price_file(name)  # before the work: is it a name?
    on = _day_of(path, day, today, latest)
    rows = read_prices(path, facts, day=on, provider=provider, skip_unknown=skip_unknown, latest=latest.isoformat())
    return write_import(name, rows, facts)


def import_fetched(providers: Sequence[str], facts: Facts, today: dt.date) -> PriceImport:
    """Fetch today's prices through gpuhunt and lay them over the shipped ones, as the import `gpuhunt`.

    Raises:
        InfeasibleError: gpuhunt is not installed, the network is not there, or it brought no price.
    """
    quotes, complaints = fetch_quotes(providers)
    usable = (quote for quote in quotes if quote is not None)
    prices = rows_of_quotes(usable, facts, layout=FETCHED, source=FETCHED, day=today.isoformat(), skip_unknown=True)
    prices.skipped.update(complaints)
    if not prices.rows:
        reasons = [f"gpuhunt brought {len(quotes):,} items, no price of use", *complaints[:5]]
        raise InfeasibleError("prices were not refreshed", reasons)
    return write_import(FETCHED, prices, facts)


def _day_of(path: Path, given: str | None, today: dt.date, latest: dt.date) -> str:
    """The day for which prices hold: as given, else that of the file."""
    if given is None:
        try:
            changed = path.stat().st_mtime
        except (OSError, ValueError):
            return today.isoformat()  # reading it says what is wrong
        return min(dt.datetime.fromtimestamp(changed, tz=dt.UTC).date(), today).isoformat()
    try:
        on = dt.date.fromisoformat(tables.date(given))
    except ValueError:
        raise SpecError(f"--date: {given[:40]!r} is no day; allowed: a day as YYYY-MM-DD") from None
    if on > latest:
        raise SpecError(f"--date: {given} lies ahead; allowed: days up to {latest.isoformat()}")
    return given


def _name_of(path: Path) -> str:
    """A name for what comes from a file: its own, or that of its folder for catalogs that are all called alike."""
    text = f"{path.parent.name}-{path.stem}" if path.stem.lower() in ("vms", "instances") else path.stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:64] or "prices"


def write_import(name: str, prices: PriceRows, facts: Facts) -> PriceImport:
    """Write rows as the imported prices `name`, and say what is new against `facts`.

    Raises:
        SpecError: as `write_prices`.
    """
    notes, keys = tuple(odd_prices(prices.rows, facts)), {offer.key for offer in facts.offers}
    path = write_prices(name, prices.rows)
    new = sum((row["provider"], row["instance"], row["region"]) not in keys for row in prices.rows)
    return PriceImport(
        name=name, layout=prices.layout, path=str(path), price_dates=_span(row["price_date"] for row in prices.rows),
        offers=len(prices.rows), new=new, changed=len(prices.rows) - new, skipped=dict(prices.skipped),
        notes=notes,
    )  # fmt: skip


def _span(dates: Iterable[str]) -> tuple[str, str]:
    """The oldest and the newest of the days among them; UNDATED where there is none."""
    days = [date for date in dates if date != UNDATED]
    return min(days, default=UNDATED), max(days, default=UNDATED)


def write_prices(name: str, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write `rows` (cells of offers by column) as the prices `name`: all or nothing, in place of older ones.

    Raises:
        SpecError: a wrong name, a row that is no offer, or the folder cannot be written.
    """
    path = price_file(name)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(OFFERS.columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in rows)
    write_whole(path, text.getvalue().encode(), lambda part: OFFERS.overlay({}, part))
    return path


def remove_prices(name: str) -> Path:
    """Delete the prices `name`.

    Raises:
        UnknownNameError: there are none of that name.
        SpecError: the file cannot be deleted.
    """
    path, names = price_file(name), [Path(stamp[0]).stem for stamp in stamps()]
    if name not in names:
        known = f"there are {', '.join(names)}" if names else "there are none"
        raise UnknownNameError("imported prices", name, names, known)
    try:
        path.unlink()
    except OSError as fault:
        raise SpecError(f"{path}: cannot be removed ({fault.strerror or fault})") from None
    return path


def imported_files() -> list[ImportedFile]:
    """What was imported, oldest first; files that cannot be read say why.

    Raises:
        SpecError: the folder cannot be read.
    """
    files = []
    for where, changed_ns, _ in stamps():
        fault, rows = None, list[tables.Row]()
        try:
            rows = tables.read_table(Path(where), OFFERS.columns, keys=OFFERS.required_columns)
        except SpecError as wrong:
            fault = str(wrong)
        providers = tuple(dict.fromkeys(row.values["provider"] for row in rows))
        imported = dt.datetime.fromtimestamp(changed_ns / 1e9, tz=dt.UTC).date().isoformat()
        files.append(ImportedFile(
            name=Path(where).stem, path=where, imported=imported, offers=len(rows) if fault is None else None,
            providers=providers, fault=fault,
            price_dates=_span(row.values["price_date"] for row in rows) if rows else None,
        ))  # fmt: skip
    return files


def odd_prices(rows: Iterable[Mapping[str, Any]], facts: Facts) -> list[str]:
    """A sentence for each new provider, then for each price beyond ODD times the known one or below 1/ODD of it.

    The known price is that of the same machine in the same region, else the median of its other regions; the farthest
    off comes first.
    """
    known, elsewhere = dict[tuple[str, ...], float](), dict[tuple[str, ...], list[float]]()
    for offer in facts.offers:
        for way in PURCHASES:
            if (usd := offer.price_usd_per_hour(way)) is not None:
                known[*offer.key, way] = usd
                elsewhere.setdefault((offer.provider, offer.instance, way), []).append(usd)
    providers, fresh, odd = {offer.provider for offer in facts.offers}, dict[str, None](), list[tuple[float, str]]()
    for row in rows:
        provider, instance, region = row["provider"], row["instance"], row["region"]
        if provider not in providers:
            fresh[provider] = None
        for way in PURCHASES:
            usd, before = row.get(f"{way}_usd_per_hour"), known.get((provider, instance, region, way))
            if before is None:
                before = median(elsewhere.get((provider, instance, way), [0.0]))
            if isinstance(usd, int | float) and before and not before / ODD <= usd <= before * ODD:
                text = f"{provider} {instance} in {region}, {way.replace('_', ' ')}: ${usd:g} an hour"
                odd.append((max(usd / before, before / usd), f"{text}, known is ${before:g}: is it right?"))
    news = []
    for name in fresh:
        near = nearest_names(name, sorted(providers), 3)
        news.append(f"{name} is a new provider" + (f"; known and near: {', '.join(near)}" if near else ""))
    return news + [text for _, text in sorted(odd, key=lambda entry: -entry[0])]
