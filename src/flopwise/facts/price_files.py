"""Prices that the user imported: files of offers in a folder of their own, laid over the shipped ones.

Each is a table like `instances.csv`, named NAME.csv; where two have an offer, the one imported last holds. The folder
is what FLOPWISE_PRICES names, else `flopwise/prices` in the user's data folder. Nothing here writes outside it.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.errors import SpecError, UnknownNameError

if TYPE_CHECKING:
    from flopwise.facts.offers import Offer

PRICES_VARIABLE = "FLOPWISE_PRICES"
ENDING = ".csv"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
Stamp = tuple[str, int, int]
"""Path, time of change in ns, size of an imported file."""


def prices_folder(environ: Mapping[str, str] | None = None) -> str:
    """Where imported prices live; the folder need not exist."""
    env = os.environ if environ is None else environ
    named = env.get(PRICES_VARIABLE)
    if named:
        return os.path.abspath(os.path.expanduser(named))  # noqa: PTH100, PTH111 - pathlib raises where there is no home
    base = env.get("XDG_DATA_HOME") or (env.get("LOCALAPPDATA") if os.name == "nt" else None)
    return os.path.join(base or os.path.expanduser("~/.local/share"), "flopwise", "prices")  # noqa: PTH111, PTH118


def stamps(folder: str | None = None) -> tuple[Stamp, ...]:
    """The imported files, oldest first; none without a folder: one look at the disk."""
    place = prices_folder() if folder is None else folder
    if not os.path.isdir(place):  # noqa: PTH112 - on the way of every command: no Path is built for it
        return ()
    try:
        files = [entry for entry in os.scandir(place) if entry.name.endswith(ENDING) and entry.is_file()]
        found = [(entry.path, (state := entry.stat()).st_mtime_ns, state.st_size) for entry in files]
    except OSError as fault:
        raise SpecError(f"folder of prices {place[:200]!r} cannot be read ({fault.strerror or fault})") from None
    return tuple(sorted(found, key=lambda stamp: (stamp[1], stamp[0])))


def price_file(name: str, folder: str | None = None) -> Path:
    """Where the prices called `name` stand, or would.

    Raises:
        SpecError: the name could lead out of the folder, or is no name for a file.
    """
    if not re.fullmatch(_NAME, name) or name.endswith("."):
        raise SpecError(
            f"name of prices {name[:60]!r}; allowed: up to 64 letters, digits, dots, dashes and underscores, the first "
            "a letter or digit"
        )
    return Path(prices_folder() if folder is None else folder) / f"{name}{ENDING}"


def names(folder: str | None = None) -> list[str]:
    """Names of the imported prices, oldest first."""
    return [Path(path).stem for path, _, _ in stamps(folder)]


def write_prices(name: str, rows: Iterable[Mapping[str, Any]], folder: str | None = None) -> Path:
    """Write `rows` (cells of offers by column) as the prices `name`: all or nothing, in place of older ones.

    Raises:
        SpecError: a wrong name, a row that is no offer, or the folder cannot be written.
    """
    import tempfile  # noqa: PLC0415 - this module is on the way of every command

    from flopwise.facts.offers import OFFERS  # noqa: PLC0415 - same

    path = price_file(name, folder)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(OFFERS.columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in rows)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as file:
            temporary = Path(file.name)
            file.write(text.getvalue())
            file.flush()
            os.fsync(file.fileno())
        OFFERS.overlaid({}, temporary)
        temporary.replace(path)
    except OSError as fault:
        reason = fault.strerror or fault
        raise SpecError(f"folder of prices {str(path.parent)[:200]!r} cannot be written ({reason})") from None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    return path


def remove_prices(name: str, folder: str | None = None) -> Path:
    """Delete the prices `name`.

    Raises:
        UnknownNameError: there are none of that name.
        SpecError: the file cannot be deleted.
    """
    path = price_file(name, folder)
    if name not in names(folder):
        held = names(folder)
        raise UnknownNameError(
            "imported prices", name, held, f"there are {', '.join(held)}" if held else "there are none"
        )
    try:
        path.unlink()
    except OSError as fault:
        raise SpecError(f"{path}: cannot be removed ({fault.strerror or fault})") from None
    return path


def kept(offer: Offer, known: Offer | None) -> Offer:
    """`offer` with a note of the prices that an import left as they were `known`, and their date."""
    if known is None or known.price_date == offer.price_date:
        return offer
    same = [p for p in _PRICES if getattr(offer, p) is not None and getattr(offer, p) is getattr(known, p)]
    if not same:
        return offer
    what = ", ".join(price.removesuffix("_usd_per_hour") for price in same)
    note = f"not in the import: {what}, of {known.price_date}"
    return replace(offer, notes="; ".join(part for part in (offer.notes, note) if part))


_PRICES = tuple(f"{way}_usd_per_hour" for way in ("on_demand", "spot", "reserved_1y", "reserved_3y"))
