"""A file of requests: when each arrived, how long its prompt and its answer were."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flopwise.errors import SpecError
from flopwise.facts.rows import check_header, csv_text
from flopwise.serving.sim.trace import LONGEST_S, MOST_TOKENS

NEEDED = ("arrival_s", "prompt_tokens", "output_tokens")
NUMBERS = (*NEEDED, "priority", "prefix_tokens", "deadline_s")
"""Columns of numbers; all but the first three may be missing."""
WHOLE = frozenset({"prompt_tokens", "output_tokens", "priority", "prefix_tokens"})
LEAST = {"arrival_s": 0.0, "prompt_tokens": 1.0, "output_tokens": 1.0, "priority": -1e9, "prefix_tokens": 0.0}
MOST = dict.fromkeys(WHOLE, MOST_TOKENS - 1.0) | {"priority": 1e9}

Columns = dict[str, NDArray[Any]]


def read_trace_columns(path: Path) -> Columns:
    """Columns of a trace file by name, each of one length: seconds as floats, tokens and priorities as whole numbers.

    `prefix` (any text, the same for requests that begin alike) is turned into numbers from 0, -1 where empty.

    Raises:
        SpecError: no such file, no requests, a missing column, a cell that cannot be (says line and column), arrivals
            out of order.
    """
    text = csv_text(path)
    first, _, body = text.partition("\n")
    header = [cell.strip() for cell in next(csv.reader([first]), [])]
    check_header(path, header, NEEDED)
    if ("prefix" in header) != ("prefix_tokens" in header):
        raise SpecError(
            f"{path}: the columns prefix (which) and prefix_tokens (how long) go together; it has one of them"
        )
    known = [name for name in header if name in NUMBERS]
    found = _quick(body, header, known) if body.strip() else None
    if found is None:
        found = _careful(path, text, header, known)
    if not found["arrival_s"].size:
        raise SpecError(f"{path} has a header and no requests")
    for name in known:
        _check(path, text, header, name, found[name])
    columns: Columns = {name: found[name].astype(np.int64) if name in WHOLE else found[name] for name in known}
    _check_order(path, text, columns["arrival_s"])
    if "prefix" in header:
        columns["prefix"] = _prefixes(text, header)
    return columns


def _quick(body: str, header: Sequence[str], known: Sequence[str]) -> dict[str, NDArray[np.float64]] | None:
    """All numbers at once; None where a cell is none, so that the careful reader says which."""
    try:
        read = np.loadtxt(
            io.StringIO(body),
            delimiter=",",
            usecols=[header.index(name) for name in known],
            ndmin=2,
            comments=None,
            quotechar='"',
        )
    except (ValueError, IndexError):
        return None
    return {name: read[:, column] for column, name in enumerate(known)} if read.size else None


def _rows(text: str) -> list[tuple[int, list[str]]]:
    """(line, cells) of all that hold something, the header not among them."""
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    next(lines, None)
    return [(lines.line_num, cells) for cells in lines if any(cell.strip() for cell in cells)]


def _careful(path: Path, text: str, header: Sequence[str], known: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """The same cell by cell."""
    try:
        rows = _rows(text)
    except csv.Error as fault:
        raise SpecError(f"{path}: broken CSV ({fault})") from None
    table = np.empty((len(rows), len(known)))
    for index, (line, cells) in enumerate(rows):
        if len(cells) != len(header):
            raise SpecError(f"{path} line {line}: {len(cells)} cells under a header of {len(header)} columns")
        for column, name in enumerate(known):
            cell = cells[header.index(name)].strip()
            try:
                table[index, column] = float(cell)
            except ValueError:
                raise _wrong(path, line, name, cell) from None
    return {name: table[:, column] for column, name in enumerate(known)}


def _check(path: Path, text: str, header: Sequence[str], name: str, column: NDArray[np.float64]) -> None:
    low, high = LEAST.get(name, 0.0), MOST.get(name, LONGEST_S)
    good = (column >= low) & (column <= high)  # false for what is not a number
    if name in WHOLE:
        good &= column == np.rint(column)
    if not good.all():
        line, cells = _rows(text)[int(np.argmin(good))]
        raise _wrong(path, line, name, cells[header.index(name)].strip())


def _wrong(path: Path, line: int, name: str, cell: str) -> SpecError:
    low, high = LEAST.get(name, 0.0), MOST.get(name, LONGEST_S)
    kind = "a whole number" if name in WHOLE else "seconds"
    return SpecError(
        f"{path} line {line}, column {name}: got {cell[:60]!r}; allowed: {kind} of {low:,.0f} to {high:,.0f}"
    )


def _check_order(path: Path, text: str, arrival_s: NDArray[np.float64]) -> None:
    back = np.flatnonzero(np.diff(arrival_s) < 0)
    if back.size:
        index = int(back[0]) + 1
        line = _rows(text)[index][0]
        raise SpecError(
            f"{path} line {line}, column arrival_s: {arrival_s[index]:g} comes after {arrival_s[index - 1]:g}; "
            "requests stand in the order of their arrival (sort the file by arrival_s)"
        )


def _prefixes(text: str, header: Sequence[str]) -> NDArray[np.int64]:
    at = header.index("prefix")
    numbers: dict[str, int] = {"": -1}
    cells = (cells[at].strip() for _, cells in _rows(text))
    return np.array([numbers.setdefault(cell, len(numbers) - 1) for cell in cells], dtype=np.int64)
