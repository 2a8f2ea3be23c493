"""`flopwise prices`: how old prices are, and your own over the shipped ones."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli import options
from flopwise.cli.options import add, flags, usage_error
from flopwise.cli.progress import note
from flopwise.cli.render import Screen, heading, pairs, table, verdict
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
AGES = {"The age of every price": "flopwise prices age"}
"""The next command after prices have changed."""
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

    ACTION is age (the default), import FILE, list, remove NAME, refresh or own [GPU]. import reads a CSV file of
    gpuhunt, of SkyPilot's catalog, or with our own columns; an invalid file changes nothing. --provider names the
    provider if no column does (default: the name of the file or folder). Imported prices are kept in a folder of yours
    (FLOPWISE_PRICES, else flopwise/prices in your data folder) and override the shipped ones until they are removed.
    refresh fetches the prices of all providers, or those of --provider, through gpuhunt. own computes the hourly cost
    of your own accelerators, and the utilisation above which they cost less than each cloud.
    """
    from flopwise.api import prices as api
    from flopwise.price_import.age import age_notes
    from flopwise.price_import.imports import list_prices, remove_prices

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
        options.answer(done, _import_report, further=AGES)
        _say(done.notes)
    elif action == "refresh":
        fresh = api.refresh_prices(providers=provider, facts=facts)
        options.answer(fresh, _import_report, further=AGES)
        _say(fresh.notes)
    elif action == "remove":
        assert target is not None
        path = remove_prices(target)
        options.answer({"removed": target, "path": path}, lambda *_: [f"Removed {target} ({path})."], further=AGES)
    elif action == "own":
        own = api.own_prices(target, facts=facts, **mine)
        options.answer(own, own_blocks, further=_own_further(own))
        options.say_age(age_notes(((f"{row.accelerator} to buy", row.price_date) for row in own), api.today()))
    elif action == "list":
        imports = list_prices()
        options.answer(imports, _import_table)
    else:
        ages = api.prices(facts=facts, **mine)
        options.answer(ages, _ages, further={"Newer prices of machines": "flopwise prices refresh"})


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
        yield "Files in a facts folder (--facts) update the other prices."
    if ages.imported:
        yield heading("Imported", paper)
        yield from _import_table(ages.imported, paper)


def _import_table(imports: Sequence[ImportedFile], paper: Screen) -> Iterator[str]:
    if not imports:
        yield "No imported prices; estimates use the shipped ones. `flopwise prices import FILE` adds your own."
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
    yield heading(f"{units.format_items(done.offers, 'offer')} imported as {done.name}", paper)
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


def _own_verdict(own: list[OwnPrice]) -> str:
    """The number of own accelerators that cost less an hour than the cheapest cloud, or the cost of a single one."""
    at = f"At {units.format_percent(own[0].utilisation)} utilisation, outside of maintenance"
    if len(own) == 1:
        [one] = own
        cloud = one.against[0] if one.against else None
        text = f"{at}, an own {one.accelerator} costs {units.format_usd(one.usd_per_gpu_hour)} per hour of work"
        if cloud is None:
            return f"{text}."
        rival = f"{cloud.provider} {cloud.instance}, {cloud.purchase.replace('_', ' ')}"
        return f"{text}; the cheapest cloud ({rival}) costs {units.format_usd(cloud.usd_per_gpu_hour)}."
    rivals = [row for row in own if row.against]
    cheaper = sum(row.usd_per_gpu_hour < row.against[0].usd_per_gpu_hour for row in rivals)
    kinds = f"{cheaper} of {len(rivals)} kinds of own accelerators"
    return f"{at}, {kinds} cost{'s' * (cheaper == 1)} less per hour of work than the cheapest cloud."


def _own_further(own: list[OwnPrice]) -> dict[str, str]:
    """The command for one accelerator of several, or for the offers of a single one."""
    if len(own) < 2:
        return (
            {"Its offers by the hour": shlex.join(["flopwise", "instances", "--gpu", own[0].accelerator])}
            if own
            else {}
        )
    return {"One of them against every cloud": shlex.join(["flopwise", "prices", "own", own[-1].accelerator])}


def own_blocks(own: list[OwnPrice], paper: Screen) -> Iterator[str]:
    """A table of all accelerators; for a single one its monthly cost and the clouds as well."""
    code = units.CURRENCY.get().code
    yield verdict(_own_verdict(own), paper)
    yield table(
        (
            "accelerator", "grade", ">memory", ">bought for", f">{code}/hour", f">{code}/PFLOP-hour",
            f">{code}/(TB/s)-hour", "cheapest cloud", f">{code}/hour", ">pays from", "priced",
        ),
        [_own(row) for row in own],
        paper, spare=("grade", f">{code}/(TB/s)-hour", ">memory", "priced", f">{code}/PFLOP-hour", ">bought for"),
    )  # fmt: skip
    if len(own) == 1:
        [one] = own
        yield "Monthly cost of one:\n" + pairs(
            [(name.replace("_", " "), units.format_usd(usd)) for name, usd in one.month.items()], paper
        )
        if one.against:
            yield "Compared with each offer that is paid by the hour:\n" + table(
                ("provider", "instance", "region", "bought", f">{code}/hour", ">pays from", ">months", "priced"),
                [_cloud(row) for row in one.against[:CLOUDS]],
                paper,
            )
    remarks = {row.remark: None for row in own if row.remark}
    if remarks:
        names = {why: ", ".join(row.accelerator for row in own if row.remark == why) for why in remarks}
        yield "Notes:\n" + "\n".join(f"  - {names[why]}: {why}" for why in remarks)


def _own(row: OwnPrice) -> tuple[Any, ...]:
    hour = _hourly(row.usd_per_gpu_hour)
    if row.usd_per_gpu_hour_low != row.usd_per_gpu_hour_high:
        hour += f" ({_hourly(row.usd_per_gpu_hour_low)} to {_hourly(row.usd_per_gpu_hour_high)})"
    cloud = row.against[0] if row.against else None
    flops = None if row.per_pflop_hour is None else units.format_number(units.in_currency(row.per_pflop_hour))
    speed = None if row.per_tb_per_s_hour is None else units.format_number(units.in_currency(row.per_tb_per_s_hour))
    return (
        row.accelerator, row.grade, units.format_bytes(row.hbm_bytes), units.format_usd(row.price_usd), hour, flops,
        speed, *(_cheapest(cloud) if cloud is not None else (None, None, None)), row.price_date,
    )  # fmt: skip


def _hourly(usd: float) -> str:
    return f"{units.in_currency(usd):.3f}"


def _cheapest(cloud: AgainstCloud) -> tuple[str, str, str]:
    return (
        f"{cloud.provider} {cloud.instance}, {cloud.purchase.replace('_', ' ')}",
        _hourly(cloud.usd_per_gpu_hour),
        _from(cloud),
    )


def _cloud(row: AgainstCloud) -> tuple[Any, ...]:
    months = None if row.months is None else f"{row.months:.0f}"
    return (
        row.provider, row.instance, row.region, row.purchase.replace("_", " "), _hourly(row.usd_per_gpu_hour),
        _from(row), months, row.price_date,
    )  # fmt: skip


def _from(row: AgainstCloud) -> str:
    """The utilisation from which own ones cost less."""
    return "never" if row.break_even_utilisation is None else units.format_percent(row.break_even_utilisation)
