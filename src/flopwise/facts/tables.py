"""Reading a table of facts: a CSV file whose every cell is checked, with errors that name file, row and column.

A number is in base units; a person may also write its unit (`80GiB`, `3.35TB/s`, `400Gbps`, `989.4T`, `$2.49`). An
empty cell says nothing: a new row then lacks that fact, and a row laid over another keeps what that one says. `unknown`
says that the fact is not known. Blank rows and rows that begin with `#` are passed over.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flopwise import units
from flopwise.errors import SpecError, nearest_names

MAX_FILE_BYTES = 20_000_000
UNKNOWN = "unknown"
_SILENT = object()
_DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")

Reader = Callable[[str], Any]
"""Turns the text of a cell into its value; raises ValueError with what is allowed."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table: `values` of the cells that are filled (None: stated to be unknown), and where it stands."""

    values: dict[str, Any]
    file: str
    line: int

    def error(self, column: str, given: object, allowed: str) -> SpecError:
        """Return the error that says where the fault stands, what was given and what is allowed."""
        return SpecError(f"{self.file}, row {self.line}, column {column}: got {_shown(given)}; {allowed}")


def _shown(given: object) -> str:
    text = str(given)
    return repr(text if len(text) <= 60 else text[:57] + "...")


def text(cell: str) -> str:
    """Any text."""
    return cell


def number(
    unit: Callable[[object, str], float], allowed: str, *, low: float = 0.0, high: float = 1e24, zero: bool = False
) -> Reader:
    """A finite number in (low, high] (or [low, high] where `zero`), bare or as `unit` parses it."""

    def read(cell: str) -> float:
        try:
            value = float(cell)
        except ValueError:
            value = unit(cell, "value")
        if not (low < value <= high or (zero and value == low)):
            raise ValueError(f"allowed: {allowed}")
        return value

    return read


def whole(unit: Callable[[object, str], float], allowed: str, *, low: int = 1, high: int = 10**18) -> Reader:
    """A whole number in [low, high], bare or as `unit` parses it."""

    def read(cell: str) -> int:
        try:
            value = float(cell)
        except ValueError:
            value = unit(cell, "value")
        if not (math.isfinite(value) and low <= value <= high and value == int(value)):
            raise ValueError(f"allowed: {allowed}")
        return int(value)

    return read


def choice(*allowed: str) -> Reader:
    """One of the words in `allowed`, whatever its case."""

    def read(cell: str) -> str:
        word = cell.lower()
        if word not in allowed:
            raise ValueError(f"allowed: {', '.join(allowed)}")
        return word

    return read


def flag(cell: str) -> bool:
    """`true` or `false`.

    Raises:
        ValueError: neither.
    """
    word = cell.lower()
    if word in ("true", "yes", "1"):
        return True
    if word in ("false", "no", "0"):
        return False
    raise ValueError("allowed: true, false")


def date(cell: str) -> str:
    """A day, `2026-08-03`.

    Raises:
        ValueError: not a day of that form.
    """
    if not _DATE.fullmatch(cell):
        raise ValueError("allowed: a day as YYYY-MM-DD")
    return cell


flops_per_s = number(units.parse_count, "operations per second above 0, such as 989.4e12 or 989.4T")
size_bytes = number(units.parse_bytes, "bytes above 0, such as 85520809984 or 80GiB")
whole_bytes = whole(units.parse_bytes, "whole bytes above 0, such as 85520809984 or 80GiB")
bytes_per_s = number(units.parse_bytes_per_s, "bytes per second above 0, such as 3.35e12, 3.35TB/s or 400Gbps")
usd_per_hour = number(units.parse_usd, "US dollars per hour above 0 and below 1e6, such as 2.49", high=1e6)
positive = number(units.parse_count, "a number above 0", high=1e15)
count = whole(units.parse_count, "a whole number from 1 to 1,000,000", high=10**6)
confidence = choice("high", "medium", "low")


def read_table(path: Path, columns: Mapping[str, Reader], *, keys: tuple[str, ...]) -> list[Row]:
    """Return the checked rows of the CSV file at `path`.

    Args:
        path: the file; UTF-8, with a header row.
        columns: what each column may hold; a file need not have all of them.
        keys: columns that the file must have, filled in every row.

    Raises:
        SpecError: the file cannot be read or is not such a table; names the row and column.
    """
    lines, file = csv.reader(_lines(path), strict=True), str(path)
    try:
        header = [column.strip() for column in next(lines, [])]
        _check_header(path, header, columns, keys)
        raw = [(lines.line_num, cells) for cells in lines if any(cells) and not cells[0].startswith("#")]
    except csv.Error as fault:
        raise SpecError(f"{path}, row {lines.line_num}: not readable as CSV ({fault})") from fault
    for line, cells in raw:
        if len(cells) != len(header):
            expected = f"the header has {len(header)} (a comma inside a cell needs quotes)"
            raise SpecError(f"{path}, row {line}: has {len(cells)} cells; {expected}")
    rows = [Row({}, file, line) for line, _ in raw]
    for column, given in zip(header, zip(*(cells for _, cells in raw), strict=True), strict=False):
        required = column in keys
        seen: dict[str, Any] = {}
        for row, cell in zip(rows, given, strict=True):
            if cell or required:
                if cell not in seen:
                    seen[cell] = _value(row, column, cell.strip(), columns[column], required=required)
                if seen[cell] is not _SILENT:
                    row.values[column] = seen[cell]
    return rows


def _value(row: Row, column: str, cell: str, read: Reader, *, required: bool) -> Any:
    """The value of one `cell`: None where it is `unknown`, _SILENT where it is empty."""
    if required and cell.lower() in ("", UNKNOWN):
        raise row.error(column, cell, "it must be filled")
    if not cell:
        return _SILENT
    if cell.lower() == UNKNOWN:
        return None
    try:
        return read(cell)
    except (ValueError, OverflowError) as fault:
        reason = str(fault)
        allowed = reason[reason.rfind("allowed: ") :] if "allowed: " in reason else reason.split(": ", 1)[-1]
        raise row.error(column, cell, allowed) from fault


def _lines(path: Path) -> list[str]:
    try:
        raw = path.read_bytes()
    except OSError as fault:
        raise SpecError(f"{path}: cannot be read ({fault.strerror or fault})") from fault
    if len(raw) > MAX_FILE_BYTES:
        raise SpecError(f"{path}: {len(raw):,} bytes is too large for a table of facts; allowed: {MAX_FILE_BYTES:,}")
    if b"\0" in raw:
        raise SpecError(f"{path}: is a binary file, not a CSV table in UTF-8")
    try:
        return raw.decode("utf-8-sig").splitlines(keepends=True)
    except UnicodeDecodeError as fault:
        row = raw[: fault.start].count(b"\n") + 1
        raise SpecError(f"{path}, row {row}: is not UTF-8 text; save the table as UTF-8") from fault


def _check_header(path: Path, header: list[str], columns: Mapping[str, Reader], keys: tuple[str, ...]) -> None:
    if not any(header):
        raise SpecError(f"{path}: is empty; the first row names the columns, at least {', '.join(keys)}")
    for name in header:
        if name not in columns:
            near = nearest_names(name, columns)
            hint = f"nearest: {', '.join(near)}" if near else f"allowed: {', '.join(columns)}"
            raise SpecError(f"{path}, row 1: unknown column {_shown(name)}; {hint}")
        if header.count(name) > 1:
            raise SpecError(f"{path}, row 1: column {name} stands there twice")
    missing = [key for key in keys if key not in header]
    if missing:
        raise SpecError(f"{path}, row 1: missing column {', '.join(missing)}; every file needs {', '.join(keys)}")
