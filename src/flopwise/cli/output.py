"""One document on stdout: JSON, or a table as CSV."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from flopwise.results import json_text, plain, records

FOR_PROGRAMS: ContextVar[bool] = ContextVar("for_programs", default=False)
"""Whether a program reads the document: JSON on one line, which is written five times as fast."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the begin of a formula."""


def write_document(value: Any, *, table: bool = False, main: str | None = "") -> None:
    """Write `value` to stdout as the run's one document: JSON, or its main table (`records`) as CSV.

    A table is a line of column names, then a line for each row. A column of objects becomes one for each of their keys
    (`layout.tp`), a list of words one cell (`a; b`), None an empty cell. Text that a spreadsheet would compute is
    marked as text.
    """
    if not table:
        document = plain(value)
        text = json.dumps(document, allow_nan=False) if FOR_PROGRAMS.get() else json_text(document)
        sys.stdout.write(text + "\n")
        return
    rows = records(plain(value), main)
    flat = [dict(_cells(row)) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    if not columns:
        return
    import csv

    sheet = csv.DictWriter(sys.stdout, columns, restval="", lineterminator="\n")
    sheet.writeheader()
    sheet.writerows(flat)


def _cells(row: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The names and values of a row's cells."""
    for name, value in row.items():
        match value:
            case dict():
                yield from _cells(value, f"{above}{name}.")
            case list() if any(isinstance(one, dict | list) for one in value):
                yield above + name, json.dumps(value)
            case list():
                yield above + name, _text("; ".join(map(str, value)))
            case bool():
                yield above + name, "true" if value else "false"
            case str():
                yield above + name, _text(value)
            case _:
                yield above + name, value


def _text(text: str) -> str:
    """`text` as a spreadsheet leaves it."""
    return f"'{text}" if text.startswith(FORMULA) and text != "-" else text
