"""`flopwise prices`: how old prices are, and one's own over the shipped ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flopwise import units
from flopwise.cli import options
from flopwise.cli.app import usage_error
from flopwise.cli.render import Screen, heading, pairs, table

if TYPE_CHECKING:
    from flopwise.api.prices import PriceAges
    from flopwise.price_import.imports import ImportedFile, PriceImport

ACTIONS = ("age", "import", "list", "remove", "refresh", "own")
SAID = 5
TAKES = {"import": "FILE", "remove": "NAME"}
MAX_AGE = options.Quantity("days", units.parse_count, high=36_500)


@options.command(
    "prices",
    "flopwise prices age",
    "flopwise prices list --json",
    "flopwise prices own H100 --utilisation 60% --colocation",
)
@click.argument("action", type=click.Choice(ACTIONS), default="age")
@click.argument("target", type=options.Name("target"), required=False)
@click.option("--name", type=options.Name("name"), help="import: what to call these prices [the file's name].")
@click.option(
    "--provider", type=options.Name("provider"), multiple=True,
    help="import: whose prices, where no column says it, new or known [file or folder, if known]; refresh: only these, "
    "may be repeated.",
)  # fmt: skip
@click.option("--date", "day", type=options.Name("date"), help="import: the day of prices without one [the file's].")
@click.option("--skip-unknown", is_flag=True, help="import: leave out rows of accelerators that are not known.")
@click.option("--max-age", type=MAX_AGE, help="age: days from which a price is old [180].")
@click.option("--utilisation", type=options.FRACTION, help="own: share of the hours that is worked [60%].")
@click.option("--colocation", is_flag=True, help="own: in rented rooms [in a building of one's own].")
@click.option("--power-price", type=options.USD_OR_ZERO, help="own: USD a kWh [0.128].")
@click.option(
    "--pue", type=float, help="own: power of the building over that of its machines [1.54; 1.4 in colocation]."
)
@click.option("--years", type=float, help="own: until the machines are written off [4].")
@options.facts_option
def command(
    *,
    action: str,
    target: str | None,
    name: str | None,
    provider: tuple[str, ...],
    day: str | None,
    skip_unknown: bool,
    max_age: float | None,
    utilisation: float | None,
    colocation: bool,
    power_price: float | None,
    pue: float | None,
    years: float | None,
    facts: Path | None,
) -> None:
    """Age, import and refresh of prices.

    ACTION is age (the default), import FILE, list, remove NAME, refresh or own [GPU]. A FILE is a CSV as gpuhunt,
    SkyPilot's catalog or our own table has it; a broken one changes nothing. Imported prices stay in a folder of yours
    (FLOPWISE_PRICES, else flopwise/prices in your data folder) and hold before the shipped ones until they are removed.
    refresh asks gpuhunt, where it is installed. own adds up what an hour of accelerators of one's own costs, by grade,
    and from which utilisation on that beats each cloud.
    """
    from flopwise.api import prices as api

    site = {"--utilisation": utilisation, "--colocation": colocation or None, "--power-price": power_price}
    site |= {"--pue": pue, "--years": years}
    given = {"--name": name, "--date": day, "--skip-unknown": skip_unknown or None, "--max-age": max_age, **site}
    _check(action, target, provider, given, tuple(site))
    if action == "import":
        if len(provider) > 1:
            usage_error("import takes one --provider")
        assert target is not None
        whose = provider[0] if provider else None
        done = api.import_prices(target, name=name, provider=whose, day=day, skip_unknown=skip_unknown, facts=facts)
        options.answer(lambda: done, lambda paper: _imported(done, paper))
        _say(done.notes)
    elif action == "refresh":
        fresh = api.refresh_prices(providers=provider, facts=facts)
        options.answer(lambda: fresh, lambda paper: _imported(fresh, paper))
        _say(fresh.notes)
    elif action == "remove":
        assert target is not None
        path = api.remove_prices(target)
        options.answer(lambda: {"removed": target, "path": path}, lambda _: [f"Removed {target} ({path})."])
    elif action == "own":
        _own(
            target,
            utilisation,
            {"colocation": colocation, "usd_per_kwh": power_price, "pue": pue, "years": years},
            facts,
        )
    elif action == "list":
        held = api.list_prices()
        options.answer(lambda: held, lambda paper: _held(held, paper))
    else:
        ages = api.prices(most_days=max_age, facts=facts)
        options.answer(lambda: ages, lambda paper: _ages(ages, paper))


def _check(
    action: str, target: str | None, provider: tuple[str, ...], given: Mapping[str, object], site: tuple[str, ...]
) -> None:
    """Refuse what says nothing to the action."""
    if (target is None) == (action in TAKES) and action != "own":
        usage_error(f"{action} needs {TAKES[action]}" if action in TAKES else f"{action} takes no further argument")
    takes = {"import": ("--name", "--date", "--skip-unknown"), "age": ("--max-age",), "own": site}
    beside = [option for option, value in given.items() if value is not None and option not in takes.get(action, ())]
    if beside or (provider and action not in ("import", "refresh")):
        usage_error(f"{', '.join(beside) or '--provider'} says nothing to {action}")


def _say(notes: Sequence[str]) -> None:
    """The first few on stderr, and how many more there are."""
    for note in notes[:SAID]:
        click.echo(f"note: {note}", err=True)
    if len(notes) > SAID:
        click.echo(f"note: {len(notes) - SAID:,} more like these", err=True)


def _own(gpu: str | None, utilisation: float | None, site: dict[str, Any], facts: Path | None) -> None:
    from flopwise.api.prices import own_prices, stale_notes
    from flopwise.cli.views import own_prices as view

    found = own_prices(gpu, utilisation=0.6 if utilisation is None else utilisation, facts=facts, **site)
    options.answer(lambda: found, lambda paper: view.blocks(found, paper))
    options.say_age(stale_notes((f"{row.accelerator} to buy", row.price_date) for row in found))


def _ages(ages: PriceAges, paper: Screen) -> Iterator[str]:
    yield table(
        ("provider", ">offers", "oldest", "newest", ">median age", ">oldest age", f">over {ages.most_days:g} days"),
        [
            (a.provider, a.offers, a.oldest, a.newest, _days(a.median_days), _days(a.oldest_days), a.stale)
            for a in ages.providers
        ],
        paper,
    )
    if ages.book:
        yield table(
            (
                "other prices",
                ">rows",
                "oldest",
                "newest",
                ">median age",
                ">oldest age",
                f">over {ages.most_days:g} days",
            ),
            [
                (a.provider, a.offers, a.oldest, a.newest, _days(a.median_days), _days(a.oldest_days), a.stale)
                for a in ages.book
            ],
            paper,
        )
    if any(a.stale for a in ages.book):
        yield "Newer ones of the other prices are read from the files of a facts folder (--facts)."
    stale = sum(a.stale for a in ages.providers)
    if stale:
        yield f"{stale:,} prices are older than {ages.most_days:g} days; `import` or `refresh` brings newer ones."
    if ages.imported:
        yield heading("Imported", paper)
        yield from _held(ages.imported, paper)


def _held(held: Sequence[ImportedFile], paper: Screen) -> Iterator[str]:
    if not held:
        yield "Nothing is imported: the shipped prices hold."
        return
    yield table(
        ("name", ">offers", "providers", "prices of", "imported", "file"),
        [(h.name, h.offers, ", ".join(h.providers[:4]), _span(h.price_dates), h.imported, h.path) for h in held],
        paper,
    )
    for each in held:
        if each.fault:
            yield f"{each.name} cannot be read: {each.fault}"


def _imported(done: PriceImport, paper: Screen) -> Iterator[str]:
    yield heading(f"{done.offers:,} offer{'s' * (done.offers != 1)} imported as {done.name}", paper)
    yield pairs(
        [
            ("layout", done.layout),
            ("prices of", _span(done.price_dates)),
            ("new offers", done.new),
            ("known offers, new prices", done.changed),
            ("file", done.path),
        ],
        paper,
    )
    if done.skipped:
        yield heading("Left out", paper)
        yield table([">rows", "why"], [(n, why) for why, n in sorted(done.skipped.items(), key=lambda i: -i[1])], paper)


def _span(dates: tuple[str, str] | None) -> str | None:
    if dates is None:
        return None
    return dates[0] if dates[0] == dates[1] else f"{dates[0]} to {dates[1]}"


def _days(days: int) -> str:
    return f"{days:,} d"
