"""Tables of facts: how each is declared, read and overlaid, with errors that name file, row and column.

A table is declared once, as a `FactTable`: its columns are the fields of the dataclass that one of its rows becomes. A
number is in base units; a person may also write its unit (`80GiB`, `3.35TB/s`, `400Gbps`, `989.4T`, `$2.49`). An empty
cell says nothing: a new row then lacks that fact, and a row laid over another keeps what that one says. `unknown` says
that the fact is not known. Blank rows and rows that begin with `#` are passed over.

A JSON file of records is a table too: an object for each row, by its name, whose sections hold the columns and the
`source` they were read from. A record may be `like` another one, and then says only what differs.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from flopwise import units
from flopwise.errors import SpecError, fold, nearest_names
from flopwise.files import read_at_most
from flopwise.values import dataclass, replace

MAX_FILE_BYTES = 20_000_000
UNKNOWN = "unknown"
ANY = "any"
"""In a cell: whichever there is."""
_SILENT = object()
_DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")

Reader = Callable[[str], Any]
"""Turns the text of a cell into its value; raises ValueError with what is allowed."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table: `values` of its filled cells (None: stated to be unknown), and its file and line."""

    values: dict[str, Any]
    file: str
    line: int | str  # of a CSV file its number, of a JSON file the name of the record

    def error(self, column: str, given: object, allowed: str) -> SpecError:
        """The error that names the place of the fault, the value given and those allowed."""
        return SpecError(f"{self.file}, row {self.line}, column {column}: got {_quoted_text(given)}; {allowed}")


def _quoted_text(given: object) -> str:
    text = str(given)
    return repr(text if len(text) <= 60 else text[:57] + "...")


def text(cell: str) -> str:
    """Any text."""
    return cell


def number(
    unit: Callable[[object, str], float], allowed: str, *, low: float = 0.0, high: float = 1e24, zero: bool = False
) -> Reader:
    """A finite number in (low, high] (or [low, high] where `zero`), bare or as `unit` parses it."""

    def reader(cell: str) -> float:
        try:
            value = float(cell)
        except ValueError:
            value = unit(cell, "value")
        if not (low < value <= high or (zero and value == low)):
            raise ValueError(f"allowed: {allowed}")
        return value

    return reader


def whole(unit: Callable[[object, str], float], allowed: str, *, low: int = 1, high: int = 10**18) -> Reader:
    """A whole number in [low, high], bare or as `unit` parses it."""

    def reader(cell: str) -> int:
        try:
            value = float(cell)
        except ValueError:
            value = unit(cell, "value")
        if not (math.isfinite(value) and low <= value <= high and value == int(value)):
            raise ValueError(f"allowed: {allowed}")
        return int(value)

    return reader


def choice(*allowed: str) -> Reader:
    """One of the words in `allowed`, in any case."""

    def reader(cell: str) -> str:
        word = cell.lower()
        if word not in allowed:
            raise ValueError(f"allowed: {', '.join(allowed)}")
        return word

    return reader


def flag(cell: str) -> bool:
    """`true` or `false`. Raises ValueError: neither."""
    word = cell.lower()
    if word in ("true", "yes", "1"):
        return True
    if word in ("false", "no", "0"):
        return False
    raise ValueError("allowed: true, false")


def words(cell: str) -> tuple[str, ...]:
    """Words, or names of several words, between semicolons."""
    return tuple(part.strip() for part in cell.split(";") if part.strip())


def date(cell: str) -> str:
    """A day, `2026-08-03`. Raises ValueError: not a day of that form."""
    if not _DATE.fullmatch(cell):
        raise ValueError("allowed: a day as YYYY-MM-DD")
    return cell


usd_per_hour = number(units.parse_usd, "US dollars per hour above 0 and below 1e6, such as 2.49", high=1e6)
positive = number(units.parse_count, "a number above 0", high=1e15)
FlopsPerS = float
Bytes = float
BytesPerS = float
Watts = float
UsdPerHour = float
Usd = float
UsdFromZero = float
Positive = float
WholeBytes = int
Count = int
Day = str
Confidence = str
_TYPED: dict[str, Reader] = {
    "FlopsPerS": number(units.parse_flops, "operations per second above 0, such as 989.4e12 or 989.4TFLOP/s"),
    "Bytes": number(units.parse_bytes, "bytes above 0, such as 85520809984 or 80GiB"),
    "BytesPerS": number(units.parse_bytes_per_s, "bytes per second above 0, such as 3.35e12, 3.35TB/s or 400Gbps"),
    "Watts": number(units.parse_watts, "watts above 0, such as 700 or 0.7kW", high=1e6),
    "UsdPerHour": usd_per_hour,
    "Usd": number(units.parse_usd, "US dollars above 0 and below 1e9", high=1e9),
    "UsdFromZero": number(units.parse_usd, "US dollars from 0 to 1e9", high=1e9, zero=True),
    "Positive": positive,
    "WholeBytes": whole(units.parse_bytes, "whole bytes above 0, such as 85520809984 or 80GiB"),
    "Count": whole(units.parse_count, "a whole number from 1 to 1,000,000", high=10**6),
    "Day": date,
    "Confidence": choice("high", "medium", "low"),
    "str": text,
    "float": number(units.parse_count, "a number from 0", zero=True),
    "int": whole(units.parse_count, "a whole number from 0", low=0),
    "bool": flag,
    "tuple[str, ...]": words,
    "frozenset[str]": lambda cell: frozenset(words(cell)),
}
"""How a column is read whose field has that type, where its table says nothing else."""

R = TypeVar("R")
Key = tuple[Any, ...]
SECTION_SOURCE = ("source", "date")
OF_SOURCE = ("confidence", "notes")
"""What a row that is laid over another does not keep: they go with the source."""
MAIN_SECTION = "facts"


def reader_of(annotation: str) -> Reader:
    """The reader of a column whose field has this annotation."""
    if annotation.startswith("Literal["):
        return choice(*re.findall(r"'([^']+)'", annotation))
    return _TYPED[annotation.removesuffix(" | None")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedRow:
    """A row of facts, with its source, the day of that, and how sure it is."""

    source: str
    date: Day
    confidence: Confidence = "medium"
    notes: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class FactTable(Generic[R]):
    """One table of facts: its file, its record type, and the key of its rows.

    `key` and `dated` are the columns that every row fills. Where several rows make one thing (tiers of a price),
    `group` names it: a folder's rows for it replace all of the shipped ones.
    """

    file: str
    meaning: str  # what a row is
    row: type[R]
    key: tuple[str, ...]
    dated: tuple[str, ...] = SECTION_SOURCE
    group: tuple[str, ...] = ()
    readers: Mapping[str, Reader] = field(default_factory=dict)  # of columns whose type does not say all
    adapt: Callable[[Row, dict[str, Any], R | None], None] | None = None  # changes the fields that a row gives
    check: Callable[[Row, R, Sequence[R]], None] | None = None  # what a row must not say, after those before it

    @cached_property
    def columns(self) -> dict[str, Reader]:
        """The reader of each column: of a field, or of `readers`, from which `adapt` makes fields."""
        kinds = {f.name: str(f.type) for f in fields(self.row)}  # type: ignore[arg-type]  # rows are dataclasses
        return {name: self.readers.get(name) or reader_of(kinds[name]) for name in self._defaults} | dict(self.readers)

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        """Default value of each field that is a column, MISSING where every row needs one."""
        own = (f for f in fields(self.row) if not f.metadata.keys() & {"inner", "gathered"})  # type: ignore[arg-type]  # same
        return {f.name: f.default if f.default_factory is MISSING else f.default_factory() for f in own}

    @cached_property
    def _without_default(self) -> list[str]:
        """Columns without a default."""
        return [name for name, default in self._defaults.items() if default is MISSING]

    @cached_property
    def required_columns(self) -> tuple[str, ...]:
        """Columns that every row of every file fills."""
        optional = [name for name in self.key if self._defaults[name] is not MISSING]
        return tuple(n for n in (*self.key, *self.dated) if n not in optional)

    def row_of(self, row: Row, known: R | None) -> R:
        """The record of `row`, with the cells it omits from `known`.

        Raises: SpecError: it lacks what every row needs, or says what cannot be.
        """
        values = {name: self._defaults.get(name) if value is None else value for name, value in row.values.items()}
        if self.adapt is not None:
            self.adapt(row, values, known)
        absent = MISSING if known is None else None
        lacking = [name for name in self._without_default if values.get(name, absent) is MISSING]
        if lacking:
            raise row.error(lacking[0], "", f"a row of {self.file} needs {', '.join(lacking)}")
        return self.row(**values) if known is None else replace(known, **values)  # type: ignore[type-var]  # same

    def overlay(self, below: Mapping[Key, R], path: Path, finish: Callable[[Row, R], R] | None = None) -> dict[Key, R]:
        """The rows of `below` with those of the file at `path` laid over them, by key.

        `finish` has the last word on each row of the file: it holds it against other tables.

        Raises: SpecError: the file or a row is wrong; names file, row and column.
        """
        read = _read_records if path.suffix == ".json" else read_table
        rows = read(path, self.columns, keys=self.required_columns)
        anew = {tuple(row.values.get(n) for n in self.group) for row in rows} if self.group else ()
        result = {k: r for k, r in below.items() if not anew or tuple(getattr(r, n) for n in self.group) not in anew}
        own: dict[Key, R] = {}
        for row in rows:
            key = tuple(row.values.get(name) for name in self.key)
            if key in own:
                named = ", ".join(str(part) for part in key if part is not None)
                raise row.error(self.key[-1], key[-1], f"{named} appears twice in this file")
            known = self._like(row, result) or result.get(key)
            if known is not None:  # what is said of a source is said of one row
                for name in OF_SOURCE if "source" in row.values else ():
                    if name in self.columns:
                        row.values.setdefault(name, None)
            made = self.row_of(row, known)
            if self.check is not None:
                self.check(row, made, list(own.values()))
            result[key] = own[key] = made if finish is None else finish(row, made)
        return result

    def shipped_records(self, path: Path, **only: str) -> Mapping[Key, R]:
        """The records of the file at `path`, which is part of the package, by key; those of a CSV made when asked for.

        `only`: cells of the rows that are asked for.

        Raises: SpecError: as `overlay`, of records that are made.
        """
        if path.suffix == ".json" or self.check is not None:
            return self.overlay({}, path)
        header, lines = _csv_lines(path, self.columns, self.required_columns)
        for name, cell in only.items():
            place = header.index(name)
            lines = [line for line in lines if line[1][place] == cell]
        places = [place for place, name in enumerate(header) if name in self.key]
        row, key_row = (
            _row_reader(str(path), names, self.columns, self.required_columns)
            for names in (header, [header[place] for place in places])
        )
        by_key: dict[Key, Line] = {}
        for number, cells in lines:
            key = key_row(number, [cells[place] for place in places]).values
            by_key[tuple(key.get(name) for name in self.key)] = number, cells
        if len(by_key) < len(lines):
            return self.overlay({}, path)  # which names the row that is there twice
        return Lazy(by_key, lambda key: self.row_of(row(*by_key[key]), None))

    def _like(self, row: Row, rows: Mapping[Key, R]) -> R | None:
        """The values of the record that a new one is like."""
        like = row.values.pop(LIKE, None)
        if like is None:
            return None
        if (like,) not in rows:
            raise row.error(LIKE, like, f"allowed: a record above it: {', '.join(k[0] for k in rows)}")
        return replace(rows[like,], aliases=())  # type: ignore[type-var]  # rows are dataclasses


K = TypeVar("K")
V = TypeVar("V")


class Lazy(Mapping[K, V]):
    """A mapping whose values are made when they are first asked for: most questions are about few rows of a table."""

    def __init__(self, keys: Iterable[K], make: Callable[[K], V]) -> None:
        self._make = make
        self._made: dict[K, V | None] = dict.fromkeys(keys)

    def __getitem__(self, key: K) -> V:
        """The value of a key."""
        value = self._made[key]
        if value is None:
            value = self._made[key] = self._make(key)
        return value

    def __contains__(self, key: object) -> bool:
        """True if there is such a key."""
        return key in self._made

    def __iter__(self) -> Iterator[K]:
        """The keys, in their order."""
        return iter(self._made)

    def __len__(self) -> int:
        """The number of keys."""
        return len(self._made)


LIKE = "like"


class Named(Protocol):
    """A row that has a name and other spellings of it."""

    @property
    def name(self) -> str:
        """The name."""
        ...

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other spellings."""
        ...


N = TypeVar("N", bound=Named)


def spellings(rows: Iterable[N]) -> dict[str, N]:
    """The rows by every folded spelling of their names; of two rows with one spelling the later."""
    return {key: row for row in rows for spelling in (row.name, *row.aliases) if (key := fold(spelling))}


def read_table(path: Path, columns: Mapping[str, Reader], *, keys: tuple[str, ...]) -> list[Row]:
    """Return the checked rows of the CSV file at `path`.

    Args:
        path: the file; UTF-8, with a header row.
        columns: what each column may hold; a file need not have all of them.
        keys: columns that the file must have, filled in every row.

    Raises: SpecError: the file cannot be read or is not such a table; names the row and column.
    """
    header, lines = _csv_lines(path, columns, keys)
    row = _row_reader(str(path), header, columns, keys)
    return [row(*line) for line in lines]


Line = tuple[int, list[str]]


def _csv_lines(path: Path, columns: Mapping[str, Reader], keys: tuple[str, ...]) -> tuple[list[str], list[Line]]:
    """The header of a CSV file, and the number and the cells of each of its rows, as text."""
    lines = csv.reader(_text(path).splitlines(keepends=True), strict=True)
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
    return header, raw


def _row_reader(
    file: str, header: Sequence[str], columns: Mapping[str, Reader], keys: Collection[str]
) -> Callable[[int, Sequence[str]], Row]:
    """The function that checks a row, given its number and its cells in the order of `header`."""
    each: list[tuple[str, bool, dict[str, Any]]] = [(column, column in keys, {}) for column in header]  # values by cell

    def row_of_cells(line: int, cells: Sequence[str]) -> Row:
        row = Row({}, file, line)
        values = row.values
        for (column, required, seen), cell in zip(each, cells, strict=True):
            if cell or required:
                if cell not in seen:
                    seen[cell] = _value(row, column, cell.strip(), columns[column], required=required)
                if seen[cell] is not _SILENT:
                    values[column] = seen[cell]
        return row

    return row_of_cells


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


def _text(path: Path) -> str:
    """The text of a file. Raises SpecError: it cannot be read, is too large, or is none."""
    try:
        raw = read_at_most(path, MAX_FILE_BYTES)
    except OSError as fault:
        raise SpecError(f"{path}: cannot be read ({fault.strerror or fault})") from fault
    if len(raw) > MAX_FILE_BYTES:
        raise SpecError(f"{path}: over {MAX_FILE_BYTES:,} bytes is too large")
    if b"\0" in raw:
        raise SpecError(f"{path}: is a binary file, not a text in UTF-8")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        row = raw[: fault.start].count(b"\n") + 1
        raise SpecError(f"{path}, row {row}: is not UTF-8 text; save the file as UTF-8") from fault


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in the file at `path`.

    Raises: SpecError: it cannot be read, or is none; names the file and the line.
    """
    try:
        document = json.loads(_text(path))
    except json.JSONDecodeError as fault:
        raise SpecError(f"{path}: not valid JSON (line {fault.lineno}: {fault.msg}); is the file complete?") from fault
    except (ValueError, RecursionError) as fault:
        raise SpecError(f"{path}: not valid JSON ({fault or 'nested too deep'})") from fault
    if not isinstance(document, dict):
        raise SpecError(f"{path}: holds a JSON {type(document).__name__}; an object is needed")
    return document


def _read_records(path: Path, columns: Mapping[str, Reader], *, keys: tuple[str, ...]) -> list[Row]:
    """The checked records of the JSON file at `path`: as rows, whose columns are the keys of their sections.

    Raises: SpecError: the file cannot be read, or a record is none; names the record and the key.
    """
    del keys  # a record has its name, and may be like another
    rows = []
    for name, record in read_json_object(path).items():
        row = Row({"name": name}, str(path), name)
        for column, value in _cells(row, record).items():
            if column not in columns:
                near = nearest_names(column, columns)
                raise row.error(column, value, f"no such key; nearest: {', '.join(near)}" if near else "no such key")
            if isinstance(value, dict) or value is None:
                raise row.error(column, value, "a text, a number, true, false or a list of texts is needed")
            cell = ";".join(map(str, value)) if isinstance(value, list) else str(value)
            row.values[column] = _value(row, column, cell.strip(), columns[column], required=False)
            if row.values[column] is _SILENT:
                row.values[column] = columns[column]("")
        if LIKE in record:
            row.values[LIKE] = str(record[LIKE])
        rows.append(row)
    return rows


def _cells(row: Row, record: Any) -> dict[str, Any]:
    """The cells of a record by column: `source` of a section other than the first is `SECTION_source`."""
    if not isinstance(record, dict):
        raise row.error("", record, "an object of sections is needed")
    cells = dict[str, Any]()
    for section, values in record.items():
        if section == LIKE:
            continue
        if not isinstance(values, dict):
            cells[section] = values
            continue
        if "source" not in values:
            raise row.error(section, ", ".join(values), "a section needs the source of its figures: source is missing")
        for name, value in values.items():
            cells[f"{section}_{name}" if name in SECTION_SOURCE and section != MAIN_SECTION else name] = value
    return cells


def _check_header(path: Path, header: list[str], columns: Mapping[str, Reader], keys: tuple[str, ...]) -> None:
    if not any(header):
        raise SpecError(f"{path}: is empty; the first row names the columns, at least {', '.join(keys)}")
    for name in header:
        if name not in columns:
            near = nearest_names(name, columns)
            hint = f"nearest: {', '.join(near)}" if near else f"allowed: {', '.join(columns)}"
            raise SpecError(f"{path}, row 1: unknown column {_quoted_text(name)}; {hint}")
        if header.count(name) > 1:
            raise SpecError(f"{path}, row 1: column {name} appears twice")
    missing = [key for key in keys if key not in header]
    if missing:
        raise SpecError(f"{path}, row 1: missing column {', '.join(missing)}; every file needs {', '.join(keys)}")
