"""`prices`: how old they are, and prices of one's own laid over the shipped ones."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flopwise.errors import InfeasibleError, SpecError

if TYPE_CHECKING:
    from flopwise.api.own_prices import OwnPrice
    from flopwise.buy_or_build.alternatives import CostComparison
    from flopwise.facts.catalog import Facts
    from flopwise.prices.age import PriceAge
    from flopwise.prices.imports import ImportedFile, PriceImport
    from flopwise.search.answer import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceAges:
    """How old prices are on the day `today`: of machines by provider, of other things (`book`), of imported files."""

    today: str
    most_days: float
    providers: tuple[PriceAge, ...]
    imported: tuple[ImportedFile, ...]
    book: tuple[PriceAge, ...] = ()


def today() -> dt.date:
    """The day by this machine's clock, UTC."""
    return dt.datetime.now(tz=dt.UTC).date()


def _latest() -> dt.date:
    """The latest day that is today anywhere: a price cannot be of a later one."""
    return (dt.datetime.now(tz=dt.UTC) + dt.timedelta(hours=14)).date()


def prices(*, most_days: float | None = None, facts: str | Path | None = None, day: dt.date | None = None) -> PriceAges:
    """The age of all prices, by provider; older than `most_days` (180) counts as stale.

    Raises:
        SpecError: a file of facts or prices is broken.
    """
    from flopwise.facts.catalog import load_facts
    from flopwise.prices.age import MOST_DAYS, age_of, ages

    on, limit = day or today(), MOST_DAYS if most_days is None else most_days
    known = load_facts(facts)
    return PriceAges(
        today=on.isoformat(),
        most_days=limit,
        providers=tuple(ages(known.offers, on, limit)),
        imported=tuple(list_prices()),
        book=tuple(age_of(what, dates, on, limit) for what, dates in _book(known).items()),
    )


def _book(facts: Facts) -> dict[str, list[str]]:
    """The dates of prices that are not of machines for rent, by what they are of."""
    return {
        "hosted models": [price.date for price in facts.hosted_prices],
        "storage and traffic": [price.date for price in facts.volume_prices.values()],
        "machines to buy": [price.date for price in facts.hardware_prices],
        "spot interruptions": [record.date for record in facts.spot_records],
    }


def stale_notes(
    plan: Plan, top: int | None = None, *, most_days: float | None = None, day: dt.date | None = None
) -> list[str]:
    """A sentence for each price older than `most_days` (180) in the first `top` candidates of a plan, oldest first."""
    from flopwise.prices.age import MOST_DAYS, age_notes

    shown = (plan.plans or plan.misses)[:top]
    priced = [(f"{c.provider} {c.instance} in {c.region}", c.price_date) for c in shown]
    return age_notes(priced, day or today(), MOST_DAYS if most_days is None else most_days)


def stale_ways(found: CostComparison, *, most_days: float | None = None, day: dt.date | None = None) -> list[str]:
    """A sentence for each price older than `most_days` (180) in the ways of a comparison, oldest first."""
    from flopwise.prices.age import MOST_DAYS, age_notes

    return age_notes(found.priced(), day or today(), MOST_DAYS if most_days is None else most_days)


def stale_own(found: Sequence[OwnPrice], *, most_days: float | None = None, day: dt.date | None = None) -> list[str]:
    """A sentence for each price of buying an accelerator that is older than `most_days` (180), oldest first."""
    from flopwise.prices.age import MOST_DAYS, age_notes

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
) -> PriceImport:
    """Lay the prices of a file (gpuhunt's CSV, SkyPilot's catalog CSV, our own table) over the shipped ones.

    Nothing changes where anything in it is wrong. `day`: the date of prices that have none, the file's own by default.
    `provider`: whose they are where no column says it, else the name of file or folder, which must be a known provider;
    one that a column or the argument names may be new. The answer's `notes` name new providers and prices far from
    those that are known.

    Raises:
        SpecError: with file, row and column, what was given and what is allowed.
    """
    from flopwise.facts.catalog import load_facts
    from flopwise.prices.imports import name_of, price_file, write_import
    from flopwise.prices.layouts import read_prices

    path, known = Path(file), load_facts(facts)
    called = name_of(path) if name is None else name
    price_file(called)  # before the work: is it a name?
    rows = read_prices(
        path, known, day=_day(path, day), provider=provider, skip_unknown=skip_unknown, latest=_latest().isoformat()
    )
    return write_import(called, rows, known)


def list_prices() -> list[ImportedFile]:
    """What was imported, oldest first; files that cannot be read say why.

    Raises:
        SpecError: the folder cannot be read.
    """
    from flopwise.prices.imports import imported_files

    return imported_files()


def remove_prices(name: str) -> str:
    """Delete imported prices; the path of the file that went.

    Raises:
        UnknownNameError: there are none of that name.
    """
    from flopwise.prices import imports

    return str(imports.remove_prices(name))


def refresh_prices(*, providers: Sequence[str] = (), facts: str | Path | None = None) -> PriceImport:
    """Fetch today's prices through gpuhunt and lay them over the shipped ones, as the import `gpuhunt`.

    Raises:
        InfeasibleError: gpuhunt is not installed, the network is not there, or it brought no price.
    """
    from flopwise.facts.catalog import load_facts
    from flopwise.prices.gpuhunt import fetched_quotes
    from flopwise.prices.imports import write_import
    from flopwise.prices.rows import rows_of_quotes

    name, known = "gpuhunt", load_facts(facts)
    quotes, complaints = fetched_quotes(providers)
    usable = (quote for quote in quotes if quote is not None)
    made = rows_of_quotes(usable, known, layout=name, source=name, day=today().isoformat(), skip_unknown=True)
    made.skipped.update(complaints)
    if not made.rows:
        reasons = [f"gpuhunt brought {len(quotes):,} items, no price of use", *complaints[:5]]
        raise InfeasibleError("prices were not refreshed", reasons)
    return write_import(name, made, known)


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
