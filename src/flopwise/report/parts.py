"""Parts of a report that are made from plain rows: tables of facts, and the roadmap along its months."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from flopwise.report.blocks import Block, Spans, Table
from flopwise.report.money import usd
from flopwise.units import format_bytes

if TYPE_CHECKING:
    from flopwise.fleet.assessment import Assessment

AHEAD = 12
"""Months that a roadmap shows at least."""


def shown(rows: Sequence[dict[str, Any]]) -> Iterator[Table]:
    """A table of plain rows, where there are any: headers are their keys, numbers are set to the right."""
    if not rows:
        return
    keys = list(dict.fromkeys(key for row in rows for key in row))
    numeric = {key for key in keys if any(isinstance(row.get(key), int | float) for row in rows)}
    headers = [(">" if key in numeric else "") + title(key) for key in keys]
    yield Table(headers, [[cell(key, row.get(key)) for key in keys] for row in rows])


def title(key: str) -> str:
    """A key as a header: units become words."""
    for old, new in (
        ("_bytes_per_s", ""),
        ("_bytes", ""),
        ("_usd_per_hour", " $/h"),
        ("usd_per_", "$ per "),
        ("_", " "),
    ):
        key = key.replace(old, new)
    return key


def cell(key: str, value: Any) -> str:
    """A value as it is read."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if key.endswith("_bytes_per_s"):
            return f"{value / 1e9:,.0f} GB/s"
        if key.endswith("_bytes"):
            return format_bytes(value)
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def months(found: Assessment) -> Iterator[Block]:
    """The roadmap: phases along their months, then what each holds."""
    if not found.roadmap:
        return
    begin = found.date[:7]
    starts = [max(0, _between(begin, phase.start or begin)) for phase in found.roadmap]
    last = max([AHEAD, *(start + 3 for start in starts)])
    every = max(1, last // 6)
    ticks = [(float(n), _month(begin, n)) for n in range(0, last + 1, every)]
    rows = [
        (phase.name, float(start), float(last), f"{usd(phase.usd_per_month)} a month")
        for phase, start in zip(found.roadmap, starts, strict=True)
    ]
    yield Spans("Phases", rows, ticks)
    yield Table(
        ["phase", "from", "workloads", ">a month", ""],
        [(p.name, p.start or begin, ", ".join(p.workloads), usd(p.usd_per_month), p.text) for p in found.roadmap],
    )


def _between(first: str, second: str) -> int:
    """Months from `first` to `second`, both as 2027-01."""
    (a, b), (c, d) = ((int(part) for part in text.split("-")[:2]) for text in (first, second))
    return (c - a) * 12 + d - b


def _month(first: str, later: int) -> str:
    year, month = (int(part) for part in first.split("-")[:2])
    return f"{year + (month - 1 + later) // 12}-{(month - 1 + later) % 12 + 1:02d}"
