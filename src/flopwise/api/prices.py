"""`prices`: how old they are, and prices of one's own laid over the shipped ones."""

from __future__ import annotations

import datetime as dt
import logging
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.errors import InfeasibleError, SpecError

if TYPE_CHECKING:
    from flopwise.api.own_prices import OwnPrice
    from flopwise.buy_or_build.alternatives import CostComparison
    from flopwise.facts.catalog import Facts
    from flopwise.facts.foreign_prices import Quote
    from flopwise.facts.price_age import Age
    from flopwise.facts.price_layouts import Table
    from flopwise.search.answer import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
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
class Held:
    """Imported prices; `fault`: why they cannot be read, None where they can."""

    name: str
    path: str
    imported: str
    offers: int | None
    providers: tuple[str, ...]
    price_dates: tuple[str, str] | None
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """How old prices are on the day `today`: of machines by provider, of other things (`book`), of imported files."""

    today: str
    most_days: float
    providers: tuple[Age, ...]
    imported: tuple[Held, ...]
    book: tuple[Age, ...] = ()


def today() -> dt.date:
    """The day by this machine's clock, UTC."""
    return dt.datetime.now(tz=dt.UTC).date()


def _latest() -> dt.date:
    """The latest day that is today anywhere: a price cannot be of a later one."""
    return (dt.datetime.now(tz=dt.UTC) + dt.timedelta(hours=14)).date()


def prices(*, most_days: float | None = None, facts: str | Path | None = None, day: dt.date | None = None) -> Ages:
    """The age of all prices, by provider; older than `most_days` (180) counts as stale.

    Raises:
        SpecError: a file of facts or prices is broken.
    """
    from flopwise.facts.catalog import load_facts
    from flopwise.facts.price_age import MOST_DAYS, age_of, ages

    on, limit = day or today(), MOST_DAYS if most_days is None else most_days
    known = load_facts(facts)
    found = ages(known.offers, on, limit)
    book = [age_of(what, dates, on, limit) for what, dates in _book(known.folder).items()]
    held = tuple(list_prices())
    return Ages(today=on.isoformat(), most_days=limit, providers=tuple(found), imported=held, book=tuple(book))


def _book(folder: Path | None) -> dict[str, list[str]]:
    """The dates of prices that are not of machines for rent, by what they are of."""
    from flopwise.facts.hardware_prices import hardware_prices
    from flopwise.facts.hosted_prices import hosted_prices
    from flopwise.facts.reliability import spot_records
    from flopwise.facts.terms import volume_prices

    return {
        "hosted models": [price.date for price in hosted_prices(folder)],
        "storage and traffic": [price.date for price in volume_prices(folder)],
        "machines to buy": [price.date for price in hardware_prices(folder)],
        "spot interruptions": [record.date for record in spot_records(folder)],
    }


def stale_notes(
    plan: Plan, top: int | None = None, *, most_days: float | None = None, day: dt.date | None = None
) -> list[str]:
    """A sentence for each price older than `most_days` (180) in the first `top` candidates of a plan, oldest first."""
    from flopwise.facts.price_age import MOST_DAYS, age_notes

    shown = (plan.plans or plan.misses)[:top]
    priced = [(f"{c.provider} {c.instance} in {c.region}", c.price_date) for c in shown]
    return age_notes(priced, day or today(), MOST_DAYS if most_days is None else most_days)


def stale_ways(found: CostComparison, *, most_days: float | None = None, day: dt.date | None = None) -> list[str]:
    """A sentence for each price older than `most_days` (180) in the ways of a comparison, oldest first."""
    from flopwise.facts.price_age import MOST_DAYS, age_notes

    return age_notes(found.priced(), day or today(), MOST_DAYS if most_days is None else most_days)


def stale_own(found: Sequence[OwnPrice], *, most_days: float | None = None, day: dt.date | None = None) -> list[str]:
    """A sentence for each price of buying an accelerator that is older than `most_days` (180), oldest first."""
    from flopwise.facts.price_age import MOST_DAYS, age_notes

    priced = [(f"{row.accelerator} to buy", row.price_date) for row in found]
    return age_notes(priced, day or today(), MOST_DAYS if most_days is None else most_days)


def import_prices(
    file: str | Path,
    *,
    name: str | None = None,
    provider: str | None = None,
    day: str | None = None,
    skip_unknown: bool = False,
    facts: str | Path | None = None,
) -> Imported:
    """Lay the prices of a file (gpuhunt's CSV, SkyPilot's catalog CSV, our own table) over the shipped ones.

    Nothing changes where anything in it is wrong. `day`: the date of prices that have none, the file's own by default.
    `provider`: whose they are where no column says it, else the name of file or folder, which must be a known provider;
    one that a column or the argument names may be new. The answer's `notes` name new providers and prices far from
    those that are known.

    Raises:
        SpecError: with file, row and column, what was given and what is allowed.
    """
    from flopwise.facts.catalog import load_facts
    from flopwise.facts.price_files import price_file
    from flopwise.facts.price_layouts import read_prices

    path, known = Path(file), load_facts(facts)
    called = _name(path) if name is None else name
    price_file(called)  # before the work: is it a name?
    table = read_prices(
        path,
        known,
        day=_day(path, day),
        provider=provider,
        skip_unknown=skip_unknown,
        latest=_latest().isoformat(),
    )
    return _written(called, table, known)


def list_prices() -> list[Held]:
    """What was imported, oldest first; files that cannot be read say why.

    Raises:
        SpecError: the folder cannot be read.
    """
    from flopwise.facts import offers, tables
    from flopwise.facts.price_files import stamps

    found = []
    for where, changed_ns, _ in stamps():
        path, fault, rows = Path(where), None, []
        try:
            rows = tables.read_table(path, offers.COLUMNS, keys=offers.KEYS)
        except SpecError as wrong:
            fault = str(wrong)
        dates = sorted(row.values["price_date"] for row in rows)
        found.append(
            Held(
                name=path.stem,
                path=where,
                imported=dt.datetime.fromtimestamp(changed_ns / 1e9, tz=dt.UTC).date().isoformat(),
                offers=len(rows) if fault is None else None,
                providers=tuple(dict.fromkeys(row.values["provider"] for row in rows)),
                price_dates=(dates[0], dates[-1]) if dates else None,
                fault=fault,
            )
        )
    return found


def remove_prices(name: str) -> str:
    """Delete imported prices; the path of the file that went.

    Raises:
        UnknownNameError: there are none of that name.
    """
    from flopwise.facts.price_files import remove_prices as removed

    return str(removed(name))


def refresh_prices(*, providers: Sequence[str] = (), facts: str | Path | None = None) -> Imported:
    """Fetch today's prices through gpuhunt and lay them over the shipped ones, as the import `gpuhunt`.

    Raises:
        InfeasibleError: gpuhunt is not installed, the network is not there, or it brought no price.
    """
    from flopwise.facts.catalog import load_facts
    from flopwise.facts.price_layouts import quotes_table

    known = load_facts(facts)
    items, told = _hunted(providers)
    quotes = [quote for item in items if (quote := _quote(item)) is not None]
    table = quotes_table(quotes, known, "gpuhunt", today().isoformat(), skip_unknown=True)
    table.layout = "gpuhunt"
    table.skipped.update(told)
    if not table.rows:
        raise InfeasibleError(
            "prices were not refreshed", [f"gpuhunt brought {len(items):,} items, no price of use", *told[:5]]
        )
    return _written("gpuhunt", table, known)


class _Told(logging.Handler):
    """Keeps what another's code logs, a line a message, in place of its tracebacks on the screen."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self.lines.append(" ".join(record.getMessage().split())[:200])


def _hunted(providers: Sequence[str]) -> tuple[list[Any], list[str]]:
    """(what gpuhunt finds, what it complains of); every way in which it cannot is one reason."""
    from flopwise.facts.foreign_prices import PROVIDERS

    cannot = "prices cannot be refreshed; the ones there are stay as they are"
    try:
        hunt = import_module("gpuhunt")
    except ImportError:
        how = "gpuhunt is not installed: pip install 'flopwise[prices]', or import a file (flopwise prices import FILE)"
        raise InfeasibleError(cannot, [how]) from None
    theirs = {ours: name for name, ours in PROVIDERS.items()}
    wanted = {"provider": [theirs.get(p.lower(), p.lower()) for p in providers]} if providers else {}
    log, told = logging.getLogger("gpuhunt"), _Told()
    shown, log.propagate = log.propagate, False
    log.addHandler(told)
    try:
        catalog = hunt.Catalog(auto_reload=False)
        if not os.environ.get("GPUHUNT_CATALOG_DIR"):  # where files at hand stand in for its published ones
            catalog.load()
        return list(catalog.query(**wanted)), told.lines
    except Exception as fault:  # noqa: BLE001 - another's code and the network: whatever it is, it is the reason
        what = " ".join(str(fault).split())[:200]
        raise InfeasibleError(cannot, [f"gpuhunt could not fetch them: {type(fault).__name__}: {what}"]) from None
    finally:
        log.removeHandler(told)
        log.propagate = shown


def _quote(item: Any) -> Quote | None:
    """An item of gpuhunt; None where it has no price above zero or no place."""
    from flopwise.facts.foreign_prices import PROVIDERS, form_of, region
    from flopwise.facts.foreign_prices import Quote as Made

    usd = item.price
    whose = PROVIDERS.get(str(item.provider), str(item.provider))
    if not (isinstance(usd, int | float) and 0 < usd < 1e6 and item.instance_name and item.location):
        return None
    return Made(
        provider=whose,
        instance=item.instance_name,
        region=region(whose, item.location),
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


def _written(name: str, table: Table, known: Facts) -> Imported:
    from flopwise.facts.price_files import write_prices
    from flopwise.facts.price_layouts import odd_prices

    notes = odd_prices(table.rows, known)
    path = write_prices(name, table.rows)
    keys = {offer.key for offer in known.offers}
    new = sum((row["provider"], row["instance"], row["region"]) not in keys for row in table.rows)
    return Imported(
        name=name,
        layout=table.layout,
        path=str(path),
        price_dates=_span(row["price_date"] for row in table.rows),
        offers=len(table.rows),
        new=new,
        changed=len(table.rows) - new,
        skipped=dict(table.skipped),
        notes=tuple(notes),
    )


def _span(dates: Iterable[str]) -> tuple[str, str]:
    held = sorted(dates)
    return held[0], held[-1]


def _name(path: Path) -> str:
    """A name for what comes from a file: its own, or that of its folder for catalogs that are all called alike."""
    text = f"{path.parent.name}-{path.stem}" if path.stem.lower() in ("vms", "instances") else path.stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:64] or "prices"


def _day(path: Path, given: str | None) -> str:
    """The day for which prices hold: as given, else that of the file."""
    from flopwise.facts import tables

    if given is None:
        try:
            changed = path.stat().st_mtime
        except (OSError, ValueError):
            return today().isoformat()  # reading it says what is wrong
        return min(dt.datetime.fromtimestamp(changed, tz=dt.UTC).date(), today()).isoformat()
    try:
        on = dt.date.fromisoformat(tables.date(given))
    except ValueError:
        raise SpecError(f"--date: {given[:40]!r} is no day; allowed: a day as YYYY-MM-DD") from None
    if on > _latest():
        raise SpecError(f"--date: {given} lies ahead; allowed: days up to {_latest().isoformat()}")
    return given
