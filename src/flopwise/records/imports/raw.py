"""A run in a file of another tool, before its metrics have our names: points, settings, notes."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from flopwise.errors import SpecError
from flopwise.files import read_limited
from flopwise.records.model import Event
from flopwise.values import dataclass

MOST_BYTES = 512 * 2**20
HEAD_BYTES = 2**16
"""Maximum length of a CSV header, in bytes."""
_MILLISECONDS = 1e11
"""Timestamps above this are in milliseconds: seconds since 1970 stay below it for three thousand years."""


class Point(NamedTuple):
    """One value of a metric; time and step are None if the file does not give them."""

    at_s: float | None
    step: int | None
    value: float


class LoadRequest(NamedTuple):
    """One request of a load generator's result, in seconds and tokens; NaN if the file does not give a value."""

    start_s: float
    ttft_s: float
    e2e_s: float
    output: float
    prompt: float = math.nan
    cached: float = math.nan  # tokens of the prompt that were in the cache
    itl_s: float = math.nan  # mean time between its tokens, if the file states it

    @property
    def gap_s(self) -> float:
        """Mean time between its tokens, in seconds; NaN for an answer of one token."""
        computed = (self.e2e_s - self.ttft_s) / (self.output - 1) if self.output > 1 else math.nan
        return computed if math.isnan(self.itl_s) else self.itl_s


@dataclass(slots=True, kw_only=True)
class RawRun:
    """One run of a file. `series` have the names and the order of the file."""

    name: str
    task: Literal["train", "serve"]
    series: dict[str, list[Point]] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=dict)  # options of `train` or `serve` in the file
    software: dict[str, str] = field(default_factory=dict)
    model: str | None = None
    gpus: int | None = None
    started_at_s: float | None = None
    ended_at_s: float | None = None
    finished: bool = True
    events: list[Event] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, value: object, at_s: float | None = None, step: int | None = None) -> None:
        """Add one value, unless it is not a number."""
        number = number_of(value)
        if number is not None:
            self.series.setdefault(name, []).append(Point(at_s, step, number))

    def add_request(self, one: LoadRequest, at_s: float | None, number: int) -> None:
        """Add the latencies of a request that the file gives."""
        for name, seconds in (("ttft_s", one.ttft_s), ("itl_s", one.gap_s), ("e2e_s", one.e2e_s)):
            if math.isfinite(seconds) and seconds > 0:
                self.add(name, seconds, at_s, number)


class Source:
    """A file, or a folder of event files, read once."""

    def __init__(self, path: Path) -> None:
        """`path` is read on first use."""
        self.path = path

    @cached_property
    def data(self) -> bytes:
        """The bytes of the file.

        Raises: SpecError: the file cannot be read, is too large or empty.
        """
        data = read_limited(self.path, MOST_BYTES, too_large="export fewer metrics or steps")
        if not data.strip():
            raise SpecError(f"{self.path} is empty")
        return data

    @cached_property
    def document(self) -> Any:
        """The file as JSON; None if it is not JSON."""
        if self.path.is_dir() or self.data.lstrip()[:1] not in (b"{", b"["):
            return None
        try:
            return json.loads(self.data)
        except (ValueError, RecursionError):
            return None

    @cached_property
    def documents(self) -> list[Mapping[str, Any]]:
        """The JSON objects of the file: itself, those of its list, or of each of its lines."""
        if self.document is not None:
            return objects_of(self.document) or objects_of([self.document])
        if self.path.is_dir() or self.data.lstrip()[:1] != b"{":
            return []
        try:
            return objects_of([json.loads(line) for line in self.data.splitlines() if line.strip()])
        except (ValueError, RecursionError):
            return []

    @cached_property
    def header(self) -> tuple[str, ...]:
        """The columns of a CSV; empty if the file is not text."""
        if self.path.is_dir() or self.document is not None or b"\0" in self.data[:HEAD_BYTES]:
            return ()
        line = self.data[:HEAD_BYTES].splitlines()[0].decode("utf-8-sig", errors="replace")
        try:
            return tuple(cell.strip() for cell in next(csv.reader([line]), []))
        except csv.Error:
            return ()

    def rows(self) -> Iterator[dict[str, str]]:
        """The rows of a CSV.

        Raises: SpecError: invalid CSV, or a row of another width; names the line.
        """
        lines = csv.reader(io.StringIO(self.data.decode("utf-8-sig", errors="replace"), newline=""), strict=True)
        try:
            header = [cell.strip() for cell in next(lines, [])]
            if len({*header}) < len(header):
                twice = next(cell for cell in header if header.count(cell) > 1)
                raise SpecError(f"{self.path}: the header has {twice!r} more than once")
            for cells in lines:
                if not any(cell.strip() for cell in cells):
                    continue
                if len(cells) != len(header):
                    raise SpecError(
                        f"{self.path} line {lines.line_num}: {len(cells)} cells under a header of {len(header)}"
                    )
                yield {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
        except csv.Error as fault:
            raise SpecError(f"{self.path} line {lines.line_num}: broken CSV ({fault})") from None

    @cached_property
    def digest(self) -> str:
        """A hash of the content, 32 hexadecimal digits."""
        hashed = hashlib.sha256()
        for file in sorted(p for p in self.path.rglob("*") if p.is_file()) if self.path.is_dir() else [self.path]:
            hashed.update(self.data if file == self.path else file.read_bytes())
        return hashed.hexdigest()[:32]

    @property
    def changed_at_s(self) -> float:
        """Modification time, in seconds since 1970."""
        return self.path.stat().st_mtime


def number_of(value: object) -> float | None:
    """A number, also from text, including NaN and infinities; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def scaled_number(value: object, scale: float = 1.0) -> float:
    """A number times `scale`; NaN for anything else."""
    number = number_of(value)
    return math.nan if number is None else number * scale


def step_of(value: object) -> int | None:
    """A step: a whole number that is not negative; None for anything else."""
    number = number_of(value)
    return int(number) if number is not None and math.isfinite(number) and 0 <= number < 2**53 else None


def time_of(value: object) -> float | None:
    """Seconds since 1970 from a number in seconds or milliseconds, or from a date and time in ISO 8601."""
    number = number_of(value)
    if number is not None:
        return None if not math.isfinite(number) else number / 1e3 if abs(number) > _MILLISECONDS else number
    try:
        stated = datetime.fromisoformat(str(value).strip())
    except ValueError:
        return None
    return (stated if stated.tzinfo else stated.replace(tzinfo=UTC)).timestamp()


def mapping_of(value: object) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty mapping."""
    return value if isinstance(value, dict) else {}


def objects_of(value: object) -> list[Mapping[str, Any]]:
    """The mappings of a list; empty if the value is not a list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
