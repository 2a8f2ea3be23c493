"""`flopwise prices`: how old prices are, and your own over the shipped ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli import options
from flopwise.cli.options import add, flags, usage_error
from flopwise.cli.progress import note
from flopwise.cli.render import Screen, heading, pairs, table
from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import SourceSpec
from flopwise.fleet.spec import SiteFigures
from flopwise.options import FLAG, FRACTION, choice, name, quantity

if TYPE_CHECKING:
    from flopwise.fleet.onprem import AgainstCloud, OwnPrice
    from flopwise.price_import.age import PriceAges
    from flopwise.price_import.imports import ImportedFile, PriceImport

ACTIONS = ("age", "import", "list", "remove", "refresh", "own")
SAID = 5
CLOUDS = 20
"""Offers that are shown of one accelerator."""
TAKES = {"import": "FILE", "remove": "NAME"}
MAX_AGE = quantity("days", units.parse_count, high=36_500)
SITE = "colocation usd_per_kwh pue years"
GOES_WITH = {
    "import": ("name", "day", "skip_unknown", "provider"), "age": ("most_days",), "refresh": ("provider",),
    "own": ("utilisation", *SITE.split()),
}  # fmt: skip
"""The options of each action."""


@options.command(
    "prices",
    "flopwise prices age",
    "flopwise prices list --json",
    "flopwise prices own H100 --utilisation 60% --colocation",
)
@options.argument("action", choice(*ACTIONS), required=False, default="age", metavar="[ACTION]")
@options.argument("target", required=False)
@add("--name", name("name"), "Name of these prices (default: the file's name).", section="import")
@add("--date", name("date"), "The day of prices without one (default: the file's).", field="day", section="import")
@add("--skip-unknown", FLAG, "Leave out rows of accelerators that are not known.", default=False, section="import")
@flags(MachineSpec, "provider", repeated=True, section="import, refresh")
@add(
    "--max-age",
    MAX_AGE,
    "Age in days from which a price counts as old (default: 180).",
    field="most_days",
    section="age",
)
@add("--utilisation", FRACTION, "Share of the hours in use (default: 60 %).", section="own")
@flags(SiteFigures, SITE, section="own")
@flags(SourceSpec, "facts")
def command(*, action: str, target: str | None, facts: Path | None, provider: tuple[str, ...], **given: Any) -> None:
    """Age, import and refresh of prices.

    ACTION is age (the default), import FILE, list, remove NAME, refresh or own [GPU]. import reads a CSV of
    gpuhunt, of SkyPilot's catalog, or with the columns of our own table; a broken file changes nothing. --provider
    says whose prices they are where no column does (default: the name of file or folder). Imported prices are kept
    in a folder of yours (FLOPWISE_PRICES, else flopwise/prices in your data folder) and override the shipped ones
    until they are removed. refresh asks gpuhunt, if it is installed, for all providers or those of --provider. own
    adds up what an hour of your own accelerators costs, by grade, and from which utilisation on that beats each
    cloud.
    """
    from flopwise.api import prices as api

    if (target is None) == (action in TAKES) and action != "own":
        raise usage_error(f"{action} needs {TAKES[action]}" if action in TAKES else f"{action} takes no argument")
    others = {name for names in GOES_WITH.values() for name in names} - {*GOES_WITH.get(action, ())}
    options.refuse(others, f"does not apply to {action}")
    mine = options.values({name: value for name, value in given.items() if name not in others})
    if action == "import":
        if len(provider) > 1:
            raise usage_error("import takes one --provider")
        assert target is not None
        done = api.import_prices(target, provider=provider[0] if provider else None, facts=facts, **mine)
        options.answer(done, _import_report)
        _say(done.notes)
    elif action == "refresh":
        fresh = api.refresh_prices(providers=provider, facts=facts)
        options.answer(fresh, _import_report)
        _say(fresh.notes)
    elif action == "remove":
        assert target is not None
        path = api.remove_prices(target)
        options.answer({"removed": target, "path": path}, lambda *_: [f"Removed {target} ({path})."])
    elif action == "own":
        found = api.own_prices(target, facts=facts, **mine)
        options.answer(found, own_blocks)
        options.say_age(api.stale_notes((f"{row.accelerator} to buy", row.price_date) for row in found))
    elif action == "list":
        imports = api.list_prices()
        options.answer(imports, _import_table)
    else:
        ages = api.prices(facts=facts, **mine)
        options.answer(ages, _ages)


def _say(notes: Sequence[str]) -> None:
    """The first few on stderr, and how many more there are."""
    for text in notes[:SAID]:
        note(text)
    if len(notes) > SAID:
        note(f"{len(notes) - SAID:,} more like these")


def _ages(ages: PriceAges, paper: Screen) -> Iterator[str]:
    for title, count, rows in (("provider", ">offers", ages.providers), ("other prices", ">rows", ages.book)):
        headers = (
            title,
            count,
            "oldest",
            "newest",
            ">median age",
            ">oldest age",
            f">over {ages.most_days:g} days",
            ">undated",
        )
        cells = [
            (
                a.provider,
                a.offers,
                a.oldest or "-",
                a.newest or "-",
                f"{a.median_days:,} d",
                f"{a.oldest_days:,} d",
                a.stale,
                a.undated,
            )
            for a in rows
        ]
        if rows or title == "provider":
            yield table(headers, cells, paper)
    if any(a.stale for a in ages.book):
        yield "Newer ones of the other prices are read from the files of a facts folder (--facts)."
    if ages.imported:
        yield heading("Imported", paper)
        yield from _import_table(ages.imported, paper)


def _import_table(imports: Sequence[ImportedFile], paper: Screen) -> Iterator[str]:
    if not imports:
        yield "Nothing is imported: the shipped prices hold."
        return
    yield table(
        ("name", ">offers", "providers", "prices of", "imported", "file"),
        [(h.name, h.offers, ", ".join(h.providers[:4]), _span(h.price_dates), h.imported, h.path) for h in imports],
        paper,
    )
    for each in imports:
        if each.fault:
            yield f"{each.name} cannot be read: {each.fault}"


def _import_report(done: PriceImport, paper: Screen) -> Iterator[str]:
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


def own_blocks(found: list[OwnPrice], paper: Screen) -> Iterator[str]:
    """All of them in one table; of one alone its month and the clouds as well."""
    busy, code = units.format_percent(found[0].utilisation), units.CURRENCY.get().code
    yield heading(f"Your own accelerators, in use for {busy} of the hours that maintenance leaves", paper)
    yield table(
        (
            "accelerator", "grade", ">memory", ">bought for", f">{code}/hour", f">{code}/PFLOP-hour",
            f">{code}/(TB/s)-hour", "cheapest cloud", f">{code}/hour", ">pays from", "priced",
        ),
        [_own(row) for row in found],
        paper,
    )  # fmt: skip
    if len(found) == 1:
        [one] = found
        yield "A month of one:\n" + pairs([(name, units.format_usd(usd)) for name, usd in one.month.items()], paper)
        if one.against:
            yield "Against each offer that is paid by the hour:\n" + table(
                ("provider", "instance", "region", "bought", f">{code}/hour", ">pays from", ">months", "priced"),
                [_cloud(row) for row in one.against[:CLOUDS]],
                paper,
            )
    remarks = {row.remark: None for row in found if row.remark}
    if remarks:
        names = {why: ", ".join(row.accelerator for row in found if row.remark == why) for why in remarks}
        yield "Notes on them:\n" + "\n".join(f"  - {names[why]}: {why}" for why in remarks)


def _own(row: OwnPrice) -> tuple[Any, ...]:
    hour = _hourly(row.usd_per_gpu_hour)
    if row.usd_per_gpu_hour_low != row.usd_per_gpu_hour_high:
        hour += f" ({_hourly(row.usd_per_gpu_hour_low)} to {_hourly(row.usd_per_gpu_hour_high)})"
    cloud = row.against[0] if row.against else None
    flops = None if row.per_pflop_hour is None else f"{units.in_currency(row.per_pflop_hour):.3g}"
    speed = None if row.per_tb_per_s_hour is None else f"{units.in_currency(row.per_tb_per_s_hour):.3g}"
    return (
        row.accelerator, row.grade, units.format_bytes(row.hbm_bytes), units.format_usd(row.price_usd), hour, flops,
        speed, *(_cheapest(cloud) if cloud is not None else (None, None, None)), row.price_date,
    )  # fmt: skip


def _hourly(usd: float) -> str:
    return f"{units.in_currency(usd):.3f}"


def _cheapest(cloud: AgainstCloud) -> tuple[str, str, str]:
    return f"{cloud.provider} {cloud.instance}, {cloud.purchase}", _hourly(cloud.usd_per_gpu_hour), _from(cloud)


def _cloud(row: AgainstCloud) -> tuple[Any, ...]:
    months = None if row.months is None else f"{row.months:.0f}"
    return (
        row.provider, row.instance, row.region, row.purchase, _hourly(row.usd_per_gpu_hour), _from(row), months,
        row.price_date,
    )  # fmt: skip


def _from(row: AgainstCloud) -> str:
    """The utilisation from which own ones cost less."""
    return "never" if row.break_even_utilisation is None else units.format_percent(row.break_even_utilisation)
