"""Imported prices: written to a folder of their own, all or nothing, listed and removed; nothing else is touched."""

from __future__ import annotations

import csv
import datetime as dt
import io
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from flopwise.errors import InfeasibleError, SpecError, UnknownNameError, nearest_names
from flopwise.facts import offers, tables
from flopwise.facts.catalog import Facts
from flopwise.facts.defaults import PURCHASES
from flopwise.facts.offers import OFFERS, UNDATED, Offer
from flopwise.facts.price_files import ENDING, prices_folder, stamps
from flopwise.facts.rows import csv_text
from flopwise.files import write_whole
from flopwise.price_import import gpuhunt, skypilot
from flopwise.price_import.quotes import GIB, PROVIDERS, Quote, form_of, region_of
from flopwise.values import dataclass

FETCHED = "gpuhunt"
"""The name of prices that were fetched."""
ODD = 4.0
"""Factor to a known price, up or down, beyond which an import notes the price."""
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceImport:
    """The result of an import: offers `new` to the catalog, those whose prices it `changed`, rows left out and why.

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
    """The path of the prices called `name`, whether they exist or not.

    Raises: SpecError: the name could lead out of the folder, or is not a name for a file.
    """
    if not re.fullmatch(_NAME, name) or name.endswith("."):
        raise SpecError(
            f"name of prices {name[:60]!r}; allowed: up to 64 letters, digits, dots, dashes and underscores, the first "
            "a letter or digit"
        )
    return Path(prices_folder()) / f"{name}{ENDING}"


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

    Raises: SpecError: an accelerator is not known, unless such quotes are to be skipped.
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

    Raises: SpecError: with file, row and column.
    """
    known, seen, made = {offer.key: offer for offer in facts.offers}, set[Key](), PriceRows("flopwise", [])
    for row in tables.read_table(path, offers.OFFERS.columns, keys=offers.OFFERS.required_columns):
        key = (row.values["provider"], row.values["instance"], row.values["region"])
        if key in seen:
            raise row.error("instance", key[1], f"{key[0]} has it in {key[2]} twice in this file")
        seen.add(key)
        for column in ("price_date", "spot_date", "reserved_date", "reserved_3y_date"):
            day = row.values.get(column) or offers.UNDATED
            if latest and day != offers.UNDATED and day > latest:
                raise row.error(column, day, f"it lies ahead; allowed: days up to {latest}")
        if not any(row.values.get(f"{way}_usd_per_hour") for way in PURCHASES):
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
    """A file layout of prices: its name, the columns that every such file has, and the reader of its prices.

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
    """The name of the file's layout in LAYOUTS, by its first line.

    Raises: SpecError: none of them; says which columns are missing from the nearest.
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

    Raises: SpecError: with file, row and column, what was given and what is allowed.
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


def import_prices(
    path: Path, facts: Facts, *, name: str | None, provider: str | None, day: str | None, skip_unknown: bool,
    today: dt.date, latest: dt.date,
) -> PriceImport:  # fmt: skip
    """Lay the prices of a file over the shipped ones; `latest` is the last day that prices may be of.

    Raises: SpecError: with file, row and column, what was given and what is allowed.
    """
    name = _name_of(path) if name is None else name
    price_file(name)  # before the work: is it a name?
    on = _day_of(path, day, today, latest)
    rows = read_prices(path, facts, day=on, provider=provider, skip_unknown=skip_unknown, latest=latest.isoformat())
    return write_import(name, rows, facts)


def refresh_prices(providers: Sequence[str], facts: Facts, today: dt.date) -> PriceImport:
    """Fetch today's prices through gpuhunt and lay them over the shipped ones, as the import `gpuhunt`.

    Raises: InfeasibleError: gpuhunt is not installed, the network is not there, or it brought no price.
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
        raise SpecError(f"--date: {given[:40]!r} is not a day; allowed: a day as YYYY-MM-DD") from None
    if on > latest:
        raise SpecError(f"--date: {given} lies ahead; allowed: days up to {latest.isoformat()}")
    return given


def _name_of(path: Path) -> str:
    """A name for what comes from a file: its own, or that of its folder for catalogs that are all called alike."""
    text = f"{path.parent.name}-{path.stem}" if path.stem.lower() in ("vms", "instances") else path.stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:64] or "prices"


def write_import(name: str, prices: PriceRows, facts: Facts) -> PriceImport:
    """Write rows as the imported prices `name`, and say what is new against `facts`.

    Raises: SpecError: as `write_prices`.
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

    Raises: SpecError: a wrong name, a row that is no offer, or the folder cannot be written.
    """
    path = price_file(name)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(OFFERS.columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in rows)
    write_whole(path, text.getvalue().encode(), lambda part: OFFERS.overlay({}, part))
    return path


def remove_prices(name: str) -> str:
    """Delete imported prices; returns the path of the file that is gone.

    Args:
        name: of the import.

    Raises:
        UnknownNameError: there are none of that name.
        SpecError: the file cannot be deleted.

    Examples:
        >>> import flopwise
        >>> try:
        ...     flopwise.remove_prices("nobody")
        ... except flopwise.UnknownNameError as error:
        ...     print(type(error).__name__)
        UnknownNameError
    """
    path, names = price_file(name), [Path(stamp[0]).stem for stamp in stamps()]
    if name not in names:
        raise UnknownNameError("imported prices", name, names, "" if names else "there are none")
    try:
        path.unlink()
    except OSError as fault:
        raise SpecError(f"{path}: cannot be removed ({fault.strerror or fault})") from None
    return str(path)


def list_prices() -> list[ImportedFile]:
    """List the imported price files, oldest first; files that cannot be read say why.

    Raises:
        SpecError: the folder cannot be read.

    Examples:
        >>> import flopwise
        >>> [prices.name for prices in flopwise.list_prices()]
        [...]
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


class _LogLines(logging.Handler):
    """Keeps what another's code logs, a line a message, in place of its tracebacks on the screen."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self.lines.append(" ".join(record.getMessage().split())[:200])


def fetch_quotes(providers: Sequence[str]) -> tuple[list[Quote | None], list[str]]:
    """(what gpuhunt finds of `providers`, or all: None where an item has no price of use; what it complains of).

    Raises: InfeasibleError: gpuhunt is not installed, or could not fetch them.
    """
    cannot = "prices cannot be refreshed; the ones there are stay as they are"
    try:
        hunt = import_module("gpuhunt")
    except ImportError:
        how = "gpuhunt is not installed: pip install 'flopwise[prices]', or import a file (flopwise prices import FILE)"
        raise InfeasibleError(cannot, [how]) from None
    theirs = {ours: name for name, ours in PROVIDERS.items()}
    wanted = {"provider": [theirs.get(p.lower(), p.lower()) for p in providers]} if providers else {}
    log, logged = logging.getLogger("gpuhunt"), _LogLines()
    shown, log.propagate = log.propagate, False
    log.addHandler(logged)
    try:
        catalog = hunt.Catalog(auto_reload=False)
        if not os.environ.get("GPUHUNT_CATALOG_DIR"):  # where files at hand stand in for its published ones
            catalog.load()
        return [_quote(item) for item in catalog.query(**wanted)], logged.lines
    except Exception as fault:  # noqa: BLE001 - another's code and the network: whatever it is, it is the reason
        what = " ".join(str(fault).split())[:200]
        raise InfeasibleError(cannot, [f"gpuhunt could not fetch them: {type(fault).__name__}: {what}"]) from None
    finally:
        log.removeHandler(logged)
        log.propagate = shown


def _quote(item: Any) -> Quote | None:
    """An item of gpuhunt; None where it has no price above zero or no place."""
    usd = item.price
    whose = PROVIDERS.get(str(item.provider), str(item.provider))
    if not (isinstance(usd, int | float) and 0 < usd < 1e6 and item.instance_name and item.location):
        return None
    return Quote(
        provider=whose, instance=item.instance_name, region=region_of(whose, item.location), gpu=item.gpu_name or None,
        gpus=item.gpu_count or 0, gpu_gib=item.gpu_memory or None, form=form_of(item.instance_name),
        vcpus=item.cpu or None, ram_gib=item.memory or None, file="gpuhunt",
        on_demand=None if item.spot else float(usd), spot=float(usd) if item.spot else None,
    )  # fmt: skip
