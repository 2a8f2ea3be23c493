"""Prices of one's own laid over the shipped ones: from a file, or from gpuhunt; what was imported so far."""

from __future__ import annotations

import datetime as dt
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from flopwise.errors import InfeasibleError, SpecError
from flopwise.facts import tables
from flopwise.facts.catalog import Facts
from flopwise.facts.foreign_prices import PROVIDERS, Quote, form_of, region
from flopwise.facts.offers import OFFERS
from flopwise.facts.price_files import price_file, stamps, write_prices
from flopwise.facts.price_layouts import Table, odd_prices, quotes_table, read_prices


NOT_REFRESHED = "prices cannot be refreshed; the ones there are stay as they are"


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


def import_price_file(
    path: Path,
    facts: Facts,
    *,
    name: str | None,
    provider: str | None,
    day: str | None,
    skip_unknown: bool,
    today: dt.date,
    latest: dt.date,
) -> PriceImport:
    """Lay the prices of a file over the shipped ones; `latest` is the last day that prices may be of.

    Raises:
        SpecError: with file, row and column, what was given and what is allowed.
    """
    name = _name_from(path) if name is None else name
    price_file(name)  # before the work: is it a name?
    on = _price_day(path, day, today, latest)
    table = read_prices(path, facts, day=on, provider=provider, skip_unknown=skip_unknown, latest=latest.isoformat())
    return _write(name, table, facts)


def import_gpuhunt(providers: Sequence[str], facts: Facts, today: dt.date) -> PriceImport:
    """Fetch today's prices through gpuhunt and lay them over the shipped ones, as the import `gpuhunt`.

    Raises:
        InfeasibleError: gpuhunt is not installed, the network is not there, or it brought no price.
    """
    items, complaints = _gpuhunt_items(providers)
    quotes = [quote for item in items if (quote := _gpuhunt_quote(item)) is not None]
    table = quotes_table(quotes, facts, "gpuhunt", today.isoformat(), skip_unknown=True)
    table.layout = "gpuhunt"
    table.skipped.update(complaints)
    if not table.rows:
        reasons = [f"gpuhunt brought {len(items):,} items, no price of use", *complaints[:5]]
        raise InfeasibleError("prices were not refreshed", reasons)
    return _write("gpuhunt", table, facts)


def imported_files() -> list[ImportedFile]:
    """What was imported, oldest first; files that cannot be read say why.

    Raises:
        SpecError: the folder cannot be read.
    """
    files = []
    for where, changed_ns, _ in stamps():
        path, fault, rows = Path(where), None, []
        try:
            rows = tables.read_table(path, OFFERS.columns, keys=OFFERS.filled)
        except SpecError as wrong:
            fault = str(wrong)
        dates = sorted(row.values["price_date"] for row in rows)
        files.append(
            ImportedFile(
                name=path.stem,
                path=where,
                imported=dt.datetime.fromtimestamp(changed_ns / 1e9, tz=dt.UTC).date().isoformat(),
                offers=len(rows) if fault is None else None,
                providers=tuple(dict.fromkeys(row.values["provider"] for row in rows)),
                price_dates=(dates[0], dates[-1]) if dates else None,
                fault=fault,
            )
        )
    return files


def _write(name: str, table: Table, facts: Facts) -> PriceImport:
    notes = odd_prices(table.rows, facts)
    path = write_prices(name, table.rows)
    keys = {offer.key for offer in facts.offers}
    new = sum((row["provider"], row["instance"], row["region"]) not in keys for row in table.rows)
    dates = sorted(row["price_date"] for row in table.rows)
    return PriceImport(
        name=name,
        layout=table.layout,
        path=str(path),
        price_dates=(dates[0], dates[-1]),
        offers=len(table.rows),
        new=new,
        changed=len(table.rows) - new,
        skipped=dict(table.skipped),
        notes=tuple(notes),
    )


def _name_from(path: Path) -> str:
    """A name for what comes from a file: its own, or that of its folder for catalogs that are all called alike."""
    text = f"{path.parent.name}-{path.stem}" if path.stem.lower() in ("vms", "instances") else path.stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:64] or "prices"


def _price_day(path: Path, given: str | None, today: dt.date, latest: dt.date) -> str:
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


class _Messages(logging.Handler):
    """Keeps what another's code logs, a line a message, in place of its tracebacks on the screen."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self.lines.append(" ".join(record.getMessage().split())[:200])


def _gpuhunt_items(providers: Sequence[str]) -> tuple[list[Any], list[str]]:
    """(the items that gpuhunt finds, its complaints).

    Raises:
        InfeasibleError: it is not installed, or could not fetch them; the reason.
    """
    try:
        gpuhunt = import_module("gpuhunt")
    except ImportError:
        how = "gpuhunt is not installed: pip install 'flopwise[prices]', or import a file (flopwise prices import FILE)"
        raise InfeasibleError(NOT_REFRESHED, [how]) from None
    theirs = {ours: name for name, ours in PROVIDERS.items()}
    query = {"provider": [theirs.get(p.lower(), p.lower()) for p in providers]} if providers else {}
    log, messages = logging.getLogger("gpuhunt"), _Messages()
    propagate, log.propagate = log.propagate, False
    log.addHandler(messages)
    try:
        catalog = gpuhunt.Catalog(auto_reload=False)
        if not os.environ.get("GPUHUNT_CATALOG_DIR"):  # where files at hand stand in for its published ones
            catalog.load()
        return list(catalog.query(**query)), messages.lines
    except Exception as fault:  # noqa: BLE001 - another's code and the network: whatever it is, it is the reason
        what = " ".join(str(fault).split())[:200]
        reason = f"gpuhunt could not fetch them: {type(fault).__name__}: {what}"
        raise InfeasibleError(NOT_REFRESHED, [reason]) from None
    finally:
        log.removeHandler(messages)
        log.propagate = propagate


def _gpuhunt_quote(item: Any) -> Quote | None:
    """The quote of an item of gpuhunt; None where it has no price above zero or no place."""
    usd = item.price
    provider = PROVIDERS.get(str(item.provider), str(item.provider))
    if not (isinstance(usd, int | float) and 0 < usd < 1e6 and item.instance_name and item.location):
        return None
    return Quote(
        provider=provider,
        instance=item.instance_name,
        region=region(provider, item.location),
        gpu=item.gpu_name or None,
        gpus=item.gpu_count or 0,
        gpu_gib=item.gpu_memory or None,
        form=form_of(item.instance_name),
        vcpus=item.cpu or None,
        ram_gib=item.memory or None,
        file="gpuhunt",
        on_demand=None if item.spot else float(usd),
        spot=float(usd) if item.spot else None,
    )
