"""What an accelerator is made for: data centres, workstations or consumers, and what that means for who rents it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from flopwise.facts import book, tables
from flopwise.facts.hardware_prices import GRADES

FILE = "grades.csv"
COLUMNS: dict[str, tables.Reader] = {
    "accelerators": tables.text,
    "grade": tables.choice(*GRADES),
    "remark": tables.text,
    **book.ORIGIN,
}
KEYS = ("accelerators", "grade", "source", "date")


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeRecord:
    """Accelerators whose names match the pattern `accelerators`; `remark`: what stands in the way of a data centre."""

    accelerators: str
    grade: str
    source: str
    date: str
    remark: str = ""
    confidence: str = "medium"
    notes: str = ""


def grade_record(accelerator: str, folder: Path | None = None) -> GradeRecord:
    """The record of the longest pattern that fits an accelerator's canonical name.

    Raises:
        SpecError: a row is wrong.
    """
    return _record(accelerator, folder, book.stamp(FILE, folder))


def grade_remarks(accelerators: Iterable[str], folder: Path | None = None) -> list[str]:
    """A sentence for each of these that is no data-centre part and has a remark, once each, in their order."""
    told = {}
    for name in accelerators:
        found = grade_record(name, folder)
        if found.remark:
            told[name] = f"{name} is a {found.grade} part: {found.remark} ({found.source})"
    return list(told.values())


@lru_cache(maxsize=256)
def _record(accelerator: str, folder: Path | None, state: book.Stamp) -> GradeRecord:
    del state
    best: tables.Row | None = None
    for row in book.rows(FILE, COLUMNS, KEYS, folder):
        pattern = row.values["accelerators"]
        if fnmatchcase(accelerator, pattern) and (best is None or len(pattern) >= len(best.values["accelerators"])):
            best = row
    assert best is not None, "the shipped table begins with *"
    return GradeRecord(**best.values)
