"""A CSV file of measurements or requests, read strictly: what is broken is named, never guessed."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from flopwise.errors import SpecError

MOST_BYTES = 256 * 2**20
HEAD_BYTES = 2**16
"""A header is no longer than that."""
Row = dict[str, str]


def each_row(path: Path, needed: Sequence[str]) -> Iterator[Row]:
    """The rows of a CSV file whose header has the `needed` columns; a row without `id` is named by its line.

    One after the other: of a long file no more than its bytes is in memory.

    Raises:
        SpecError: no such file, not text, not UTF-8, broken CSV, a missing or repeated column, no rows; says where,
            when its row is reached.
    """
    data = _read_bytes(path, None)
    _decode(path, data)
    lines = csv.reader(io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", newline=""), strict=True)
    count = 0
    try:
        header = [cell.strip() for cell in next(lines, [])]
        check_header(path, header, needed)
        for cells in lines:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                raise SpecError(
                    f"{path} line {lines.line_num}: {len(cells)} cells under a header of {len(header)} columns; "
                    "quote cells that hold commas"
                )
            row = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
            row["id"] = row.get("id") or f"line {lines.line_num}"
            count += 1
            yield row
    except csv.Error as fault:
        raise SpecError(f"{path} line {lines.line_num}: broken CSV ({fault})") from None
    if not count:
        raise SpecError(f"{path} has a header and no rows")


def csv_text(path: Path, *, header_only: bool = False) -> str:
    """The text of a CSV file, or its first line.

    Raises: SpecError: no such file, too large, empty, not text, not UTF-8.
    """
    data = _read_bytes(path, HEAD_BYTES if header_only else None)
    return _decode(path, data.splitlines()[0] if header_only else data)


def _read_bytes(path: Path, most: int | None) -> bytes:
    """The bytes of a file, or the first of them."""
    try:
        if not path.is_file():
            raise SpecError(f"{path} is {'a folder' if path.is_dir() else 'no file'}; give a CSV file")
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise SpecError(f"{path} has {size:,} bytes; at most {MOST_BYTES:,} are read")
        with path.open("rb") as file:
            data = file.read(MOST_BYTES) if most is None else file.read(most)
    except (OSError, ValueError) as fault:
        if isinstance(fault, SpecError):
            raise
        raise SpecError(f"{str(path)[:200]!r} cannot be read ({getattr(fault, 'strerror', None) or fault})") from None
    if not data.strip():
        raise SpecError(f"{path} is empty; the first line names the columns")
    return data


def _decode(path: Path, data: bytes) -> str:
    if b"\0" in data:
        raise SpecError(f"{path} is binary (a zero byte at {data.index(0):,}); give a CSV file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise SpecError(f"{path} is not UTF-8 (byte {fault.start:,}); save it as UTF-8") from None


def check_header(path: Path, header: Sequence[str], needed: Sequence[str]) -> None:
    """Refuse a header that lacks a column or has one twice. Raises SpecError: says which."""
    missing = [name for name in needed if name not in header]
    if missing:
        columns_text = ", ".join(header)[:300] or "none"
        raise SpecError(
            f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; it has {columns_text}"
        )
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise SpecError(f"{path} has the column {', '.join(twice)} more than once")
