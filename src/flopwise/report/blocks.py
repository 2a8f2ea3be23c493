"""What a document is made of: titles, paragraphs, tables, bars and curves, whatever they are written as.

Texts hold plain characters; each writer escapes them for its own format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; `strong` ones stand out."""

    text: str
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list of sentences."""

    items: Sequence[str]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts under headers; a header that begins with `>` is of a column of numbers, set to the right."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its name, its length, what is written beside it, and the interval drawn over it."""

    name: str
    value: float
    text: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars from one common zero; with `mark` a line across them, such as a budget."""

    title: str
    bars: Sequence[Bar]
    mark: float | None = None
    mark_text: str = ""


@dataclass(frozen=True, slots=True)
class Spans:
    """Names with a start and an end along one axis of labelled ticks: a roadmap."""

    title: str
    rows: Sequence[tuple[str, float, float, str]]  # name, start, end, text
    ticks: Sequence[tuple[float, str]]


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure that stands for itself: what it is, the figure, and what it means."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Figures side by side."""

    tiles: Sequence[Tile]


Block = Text | Bullets | Table | Bars | Spans | Tiles


@dataclass(frozen=True, slots=True)
class Section:
    """A titled part of a document."""

    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class Document:
    """A whole document."""

    title: str
    subtitle: str
    sections: Sequence[Section]
