"""Requests as columns: when they come and what they ask for; given by a caller, or read from a file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flopwise.errors import SpecError
from flopwise.facts.rows import check_header, csv_text
from flopwise.ops.types import Array
from flopwise.values import dataclass, replace

Column = NDArray[np.int64]
PS = 10**12
"""Picoseconds a second: the simulator's clock."""
LONGEST_S = 4e6
"""Latest time that a trace may speak of: the clock counts to twice that."""
MOST_TOKENS = 2**31
"""Tokens of one prompt or answer."""


class PrefixTree(NamedTuple):
    """Beginnings that prompts share: nodes, each after the one that it hangs from; tokens, or blocks of them."""

    parent: Column  # -1: the node begins the prompt
    end: Column  # from the start of the prompt to the end of the node


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTrace:
    """Requests by time of arrival; int64 columns of one length. Built by `trace`, which checks them."""

    arrival_ps: Column
    prompt: Column  # tokens, at least 1
    output: Column  # tokens, at least 1: the first is made by the prompt's last step
    priority: Column  # smaller goes first where the policy looks at it
    prefix: Column  # prompts with one number begin with the same tokens; -1: with none
    prefix_tokens: Column  # how many those are
    deadline_ps: Column  # when the answer must be complete; -1: no such time
    session: Column  # turns with one number follow one another: each begins with all of the last one; -1: none
    pause_ps: Column  # of a turn that follows the last answer of its session; -1: it comes at its own time
    tree: PrefixTree | None = None  # what prompts begin with where `prefix` is a node of it, and not a name

    def __len__(self) -> int:
        return len(self.arrival_ps)

    @property
    def duration_s(self) -> float:
        """From the start of the clock to the last arrival."""
        return float(self.arrival_ps[-1]) / PS

    @property
    def requests_per_s(self) -> float:
        """Arrivals over the time between first and last; infinite where all come at once."""
        span = float(self.arrival_ps[-1] - self.arrival_ps[0]) / PS
        return (len(self) - 1) / span if span else float("inf")

    @property
    def follows(self) -> bool:
        """True if some requests follow answers, at times that only a run knows."""
        return bool(np.any(self.pause_ps >= 0))

    def take(self, rows: Array) -> RequestTrace:
        """Some of the requests: a mask, or row numbers in the order wanted."""
        return replace(self, **{name: getattr(self, name)[rows] for name in COLUMNS})

    def arriving(self, arrival_ps: Column) -> RequestTrace:
        """The same requests at other times, which must ascend."""
        return replace(self, arrival_ps=arrival_ps)


COLUMNS = tuple(name for name in RequestTrace.__slots__ if name != "tree")
Numbers = Sequence[float] | Sequence[int] | Array


def trace(
    arrival_s: Numbers,
    prompt_tokens: Numbers,
    output_tokens: Numbers,
    *,
    priority: Numbers | None = None,
    prefix: Numbers | None = None,
    prefix_tokens: Numbers | None = None,
    deadline_s: Numbers | None = None,
    session: Numbers | None = None,
    pause_s: Numbers | None = None,
) -> RequestTrace:
    """Requests of these columns; times in seconds, `deadline_s` from the start of the clock (negative: none).

    `session`: turns with one number, in their order, begin with the prompts and answers before them; `pause_s`: a turn
    comes so long after the last answer of its session, negative or for the first one: at its `arrival_s`.

    Raises:
        SpecError: no requests, columns of different lengths, times that are negative, not finite or not in order,
            counts that are not whole or below 1. Names the column and the first row (from 0) that is wrong.
    """
    arrival = _times(arrival_s, "arrival_s")
    rows = len(arrival)
    if not rows:
        raise SpecError("a trace without requests; at least one arrival is needed")
    backwards = np.flatnonzero(np.diff(arrival) < 0)
    if len(backwards):
        at = int(backwards[0])
        raise SpecError(
            f"arrival_s row {at + 1}: {arrival[at + 1] / PS:g} s comes before {arrival[at] / PS:g} s of the row above; "
            "sort the requests by arrival"
        )
    none, shared = np.full(rows, -1, dtype=np.int64), np.zeros(rows, dtype=np.int64)
    built = RequestTrace(
        arrival_ps=arrival,
        prompt=_counts(prompt_tokens, "prompt_tokens", least=1),
        output=_counts(output_tokens, "output_tokens", least=1),
        priority=shared if priority is None else _counts(priority, "priority", least=-MOST_TOKENS),
        prefix=none if prefix is None else _counts(prefix, "prefix", least=-1),
        prefix_tokens=shared if prefix_tokens is None else _counts(prefix_tokens, "prefix_tokens", least=0),
        deadline_ps=none if deadline_s is None else _times(deadline_s, "deadline_s", signed=True),
        session=none if session is None else _counts(session, "session", least=-1),
        pause_ps=none if pause_s is None else _times(pause_s, "pause_s", signed=True),
    )
    for name in COLUMNS:
        if len(getattr(built, name)) != rows:
            raise SpecError(
                f"{name} has {len(getattr(built, name)):,} rows, arrival_s has {rows:,}; give one per request"
            )
    alone = np.flatnonzero((built.pause_ps >= 0) & (built.session < 0))
    if len(alone):
        raise SpecError(f"pause_s row {int(alone[0])}: a pause needs a session, and this row has none")
    return built


def _times(values: Numbers, name: str, *, signed: bool = False) -> Column:
    """Seconds as picoseconds."""
    seconds = _numbers(values, name)
    wrong = ~np.isfinite(seconds) | (np.abs(seconds) > LONGEST_S)
    wrong = wrong if signed else wrong | (seconds < 0)
    if np.any(wrong):
        at = int(np.argmax(wrong))
        raise SpecError(f"{name} row {at}: {seconds[at]:g} is not a time; allowed: 0 to {LONGEST_S:,.0f} s")
    return np.where(seconds < 0, -1, np.rint(seconds * PS)).astype(np.int64)


def _counts(values: Numbers, name: str, *, least: int) -> Column:
    """Whole numbers."""
    given = _numbers(values, name)
    with np.errstate(invalid="ignore"):
        wrong = ~(np.isfinite(given) & (given >= least) & (given < MOST_TOKENS) & (given == np.floor(given)))
    if np.any(wrong):
        at = int(np.argmax(wrong))
        raise SpecError(
            f"{name} row {at}: {given[at]:g} is out of range; "
            f"allowed: whole numbers from {least:,} to {MOST_TOKENS - 1:,}"
        )
    return given.astype(np.int64)


def _numbers(values: Numbers, name: str) -> Array:
    try:
        column = np.asarray(values)
        if column.dtype.kind not in "iuf":
            column = column.astype(np.float64)
    except (TypeError, ValueError):
        raise SpecError(f"{name}: not a column of numbers") from None
    if column.ndim != 1:
        raise SpecError(f"{name}: {column.ndim} dimensions; a column has one")
    return column


LIMITS = {
    "arrival_s": (0.0, LONGEST_S), "prompt_tokens": (1.0, MOST_TOKENS - 1.0), "output_tokens": (1.0, MOST_TOKENS - 1.0),
    "priority": (-1e9, 1e9), "prefix_tokens": (0.0, MOST_TOKENS - 1.0), "deadline_s": (0.0, LONGEST_S),
    "session": (-1.0, MOST_TOKENS - 1.0), "pause_s": (-1.0, LONGEST_S),
}  # fmt: skip
"""Columns of numbers in a file, and what may stand there; all but the first three may be missing."""
WHOLE = frozenset({"prompt_tokens", "output_tokens", "priority", "prefix_tokens", "session"})


def read_trace_columns(path: Path) -> dict[str, NDArray[Any]]:
    """Columns of a trace file by name, each of one length: seconds as floats, tokens and priorities as whole numbers.

    `prefix` (any text, the same for requests that begin alike) is turned into numbers from 0, -1 where empty. Of a
    trace in Mooncake's format (`.jsonl`) arrivals and lengths; what prompts share is in `read_chained_trace`.

    Raises:
        SpecError: no such file, no requests, a missing column, a cell that cannot be (says line and column), arrivals
            out of order.
    """
    if path.suffix == CHAINED_SUFFIX:
        requests = read_chained_trace(path)
        arrival_s = requests.arrival_ps / PS
        return {"arrival_s": arrival_s, "prompt_tokens": requests.prompt, "output_tokens": requests.output}
    text = csv_text(path)
    first, _, body = text.partition("\n")
    header = [cell.strip() for cell in next(csv.reader([first]), [])]
    check_header(path, header, tuple(LIMITS)[:3])
    if ("prefix" in header) != ("prefix_tokens" in header):
        raise SpecError(
            f"{path}: the columns prefix (which) and prefix_tokens (how long) go together; it has one of them"
        )
    names = [name for name in header if name in LIMITS]
    table = _quick_table(body, len(header), [header.index(name) for name in names])
    if table is None:
        table = _careful_table(path, text, header, names)
    if not len(table):
        raise SpecError(f"{path} has a header and no requests")
    columns: dict[str, NDArray[Any]] = {}
    for place, name in enumerate(names):
        column, (low, high) = table[:, place], LIMITS[name]
        good = (column >= low) & (column <= high)  # false for what is not a number
        if name in WHOLE:
            good &= column == np.rint(column)
        if not good.all():
            line, cells = _rows(text)[int(np.argmin(good))]
            raise _wrong_cell(path, line, name, cells[header.index(name)].strip())
        columns[name] = column.astype(np.int64) if name in WHOLE else column
    arrival = columns["arrival_s"]
    back = np.flatnonzero(np.diff(arrival) < 0)
    if back.size:
        at = int(back[0]) + 1
        raise SpecError(
            f"{path} line {_rows(text)[at][0]}, column arrival_s: {arrival[at]:g} comes after {arrival[at - 1]:g}; "
            "requests must be in order of arrival (sort the file by arrival_s)"
        )
    if "prefix" in header:
        numbers: dict[str, int] = {"": -1}
        cells = [row[header.index("prefix")].strip() for _, row in _rows(text)]
        columns["prefix"] = np.array([numbers.setdefault(cell, len(numbers) - 1) for cell in cells], dtype=np.int64)
    return columns


CHAINED_SUFFIX = ".jsonl"
"""Files of Mooncake's traces end so."""
CHAINED = ("timestamp", "input_length", "output_length", "hash_ids")
"""Keys of a line of Mooncake's traces: milliseconds, tokens, tokens, and a number for each block of the prompt."""
CHAIN_TOKENS = 512
"""Tokens of a block that has a number there."""


def read_chained_trace(path: Path) -> RequestTrace:
    """The requests of a trace in Mooncake's format; prompts whose chains of blocks begin alike share the beginning.

    Source: kvcache-ai/Mooncake, traces (FAST'25 release): one JSON object a line, blocks of 512 tokens, equal numbers
    where all tokens up to the end of the block are equal.
    Raises: SpecError: no such file, or a line that is none; says which.
    """
    rows: list[tuple[float, int, int]] = []
    nodes: list[int] = []
    parent: list[int] = []
    end: list[int] = []
    known: dict[tuple[int, int], int] = {}
    for number, line in enumerate(csv_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        came_ms, prompt, output, hashes = _chained_line(f"{path} line {number}", line)
        rows.append((came_ms / 1e3, prompt, output))
        node = -1
        for place, name in enumerate(hashes, start=1):
            until = min(place * CHAIN_TOKENS, rows[-1][1])
            child = known.setdefault((node, name), len(parent))
            if child == len(parent):
                parent.append(node)
                end.append(until)
            end[child] = min(end[child], until)
            node = child
        nodes.append(node)
    if not rows:
        raise SpecError(f"{path} has no requests")
    order = sorted(range(len(rows)), key=lambda row: rows[row][0])  # those of one second are not always in order
    came_s, prompts, outputs = zip(*(rows[row] for row in order), strict=True)
    tree = PrefixTree(np.array(parent, dtype=np.int64), np.array(end, dtype=np.int64))
    requests = trace(came_s, prompts, np.maximum(outputs, 1))
    return replace(requests, tree=tree, prefix=np.array(nodes, dtype=np.int64)[order])


def _chained_line(where: str, line: str) -> tuple[float, int, int, list[int]]:
    """The cells of a line in Mooncake's format. Raises: SpecError: it is none, or one of them cannot be; says which."""
    try:
        cells = json.loads(line)
        came_ms, prompt, output, hashes = (cells[key] for key in CHAINED)
    except (ValueError, TypeError, KeyError) as fault:
        raise SpecError(f"{where}: an object with {', '.join(CHAINED)} is expected ({fault})") from None
    most = {"timestamp": LONGEST_S * 1e3, "input_length": MOST_TOKENS - 1.0, "output_length": MOST_TOKENS - 1.0}
    least = {"timestamp": 0.0, "input_length": 1.0, "output_length": 0.0}
    for key, value in zip(most, (came_ms, prompt, output), strict=True):
        there = type(value) in {int, float} and least[key] <= value <= most[key]  # false for what is not a number
        if not there or (key != "timestamp" and value != int(value)):
            kind = "milliseconds" if key == "timestamp" else "a whole number"
            raise SpecError(
                f"{where}, {key}: got {str(value)[:60]}; allowed: {kind} of {least[key]:,.0f} to {most[key]:,.0f}"
            )
    if not isinstance(hashes, list) or not all(type(one) is int for one in hashes):
        raise SpecError(f"{where}, hash_ids: got {str(hashes)[:60]}; allowed: a list of whole numbers, one a block")
    return float(came_ms), int(prompt), int(output), hashes


def _quick_table(body: str, columns: int, places: Sequence[int]) -> NDArray[np.float64] | None:
    """All numbers at once; None where a cell is none, so that the careful reader says which."""
    if not body.strip():
        return None
    table = _digits_table(body, columns)
    if table is not None:
        return table[:, places]
    try:
        table = np.loadtxt(io.StringIO(body), delimiter=",", usecols=places, ndmin=2, comments=None, quotechar='"')
    except (ValueError, IndexError):
        return None
    return table if table.size else None


MOST_DIGITS = 8
"""Digits that lie in one word of eight bytes."""
POINT, COMMA, LINE_END, ZERO, NINE = b".,\n09"


def _digits_table(body: str, columns: int) -> NDArray[np.float64] | None:
    """Numbers of a table that has nothing but digits, points and commas; None where it has, or has longer numbers.

    Eight digits at a time, as one word: a tenth of the time of a reader of any number. The numbers are the same: a
    whole number below 2^53 over a power of ten, both of which are exact, is rounded once.

    Source: Lemire, Quickly parsing eight digits (2018).
    """
    text = np.frombuffer((" " * MOST_DIGITS + body.rstrip("\n") + "\n").encode("utf-8", "replace"), dtype=np.uint8)
    ends = np.flatnonzero((text == COMMA) | (text == LINE_END) | (text == POINT))
    signs, lengths = text[ends], np.diff(ends, prepend=MOST_DIGITS - 1) - 1
    digits = np.count_nonzero((text >= ZERO) & (text <= NINE))
    if digits + len(ends) + MOST_DIGITS != len(text) or lengths.min() < 1 or lengths.max() > MOST_DIGITS:
        return None
    numbers = _words_of_digits(text, ends, lengths)
    whole = np.flatnonzero(np.r_[True, signs[:-1] != POINT])  # the first part of each number
    cells = signs[np.r_[whole[1:] - 1, len(ends) - 1]]
    if len(cells) % columns or np.any((cells == LINE_END).reshape(-1, columns) != (np.arange(columns) == columns - 1)):
        return None
    value, parts = numbers[whole].astype(np.float64), np.diff(np.r_[whole, len(ends)])
    if parts.max() > 2:
        return None
    broken = np.flatnonzero(parts == 2)
    scale = 10.0 ** lengths[whole[broken] + 1]
    mantissa = value[broken] * scale + numbers[whole[broken] + 1]
    if broken.size and mantissa.max() >= 2.0**53:
        return None
    value[broken] = mantissa / scale
    return value.reshape(-1, columns)


def _words_of_digits(text: NDArray[np.uint8], ends: Column, lengths: Column) -> NDArray[np.uint64]:
    """The numbers of up to eight digits that end before each of `ends`."""
    words = np.ndarray((len(text) - MOST_DIGITS + 1,), dtype="<u8", buffer=text.data, strides=(1,))
    word = words[ends - MOST_DIGITS]
    word >>= (8 * (MOST_DIGITS - lengths)).astype(np.uint64)  # what is before the number goes
    word <<= (8 * (MOST_DIGITS - lengths)).astype(np.uint64)
    word &= np.uint64(0x0F0F0F0F0F0F0F0F)
    for factor, shift, mask in (
        (10, 8, 0x00FF00FF00FF00FF), (100, 16, 0x0000FFFF0000FFFF), (10_000, 32, 0x00000000FFFFFFFF),
    ):  # fmt: skip
        word = (word * np.uint64(factor) + (word >> np.uint64(shift))) & np.uint64(mask)
    return word


def _careful_table(path: Path, text: str, header: Sequence[str], names: Sequence[str]) -> NDArray[np.float64]:
    """The same cell by cell."""
    try:
        rows = _rows(text)
    except csv.Error as fault:
        raise SpecError(f"{path}: broken CSV ({fault})") from None
    table = np.empty((len(rows), len(names)))
    for index, (line, cells) in enumerate(rows):
        if len(cells) != len(header):
            raise SpecError(f"{path} line {line}: {len(cells)} cells under a header of {len(header)} columns")
        for place, name in enumerate(names):
            cell = cells[header.index(name)].strip()
            try:
                table[index, place] = float(cell)
            except ValueError:
                raise _wrong_cell(path, line, name, cell) from None
    return table


def _rows(text: str) -> list[tuple[int, list[str]]]:
    """(line, cells) of all that hold something, the header not among them."""
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    next(lines, None)
    return [(lines.line_num, cells) for cells in lines if any(cell.strip() for cell in cells)]


def _wrong_cell(path: Path, line: int, name: str, cell: str) -> SpecError:
    (low, high), kind = LIMITS[name], "a whole number" if name in WHOLE else "seconds"
    return SpecError(
        f"{path} line {line}, column {name}: got {cell[:60]!r}; allowed: {kind} of {low:,.0f} to {high:,.0f}"
    )
