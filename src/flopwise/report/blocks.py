"""What a document is made of: titles, paragraphs, tables, bars and spans, whatever they are written as.

Texts hold plain characters; each writer escapes them for its own format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from flopwise.units import CURRENCY
from flopwise.values import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; `strong` ones stand out."""

    text: str
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Heading:
    """A title within a section."""

    text: str


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list of sentences."""

    items: Sequence[str]


@dataclass(frozen=True, slots=True)
class Points:
    """Sentences, each under a few words that say what it is about."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Link:
    """A cell that leads to a file beside the document."""

    text: str
    file: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts under headers; a header that begins with `>` is of a column of numbers, set to the right.

    A page shows the `first` rows and folds those that follow.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str | Link]]
    note: str = ""
    first: int = 16

    @property
    def visible_rows(self) -> Sequence[Sequence[str | Link]]:
        """The rows that a page shows; a single one that would be folded is shown too."""
        return self.rows if len(self.rows) <= self.first + 1 else self.rows[: self.first]

    @property
    def rest(self) -> Sequence[Sequence[str | Link]]:
        """The rows that a page folds."""
        return self.rows[len(self.visible_rows) :]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its name, its length, what is written beside it, and the interval over it, drawn and in words."""

    name: str
    value: float
    text: str
    low: float | None = None
    high: float | None = None
    interval: str = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars from one common zero; with `mark` a line across them, such as a budget."""

    title: str
    bars: Sequence[Bar]
    mark: float | None = None
    mark_text: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """One row of a roadmap: its name, where it begins along the axis, how that place is called, and a text."""

    name: str
    start: float
    begins: str
    text: str


@dataclass(frozen=True, slots=True)
class Spans:
    """Rows that begin along one axis of labelled ticks and go on to its `end`: a roadmap."""

    title: str
    rows: Sequence[Span]
    ticks: Sequence[tuple[float, str]]
    end: float


@dataclass(frozen=True, slots=True)
class Stream:
    """One way through a graph: the node of each column that it passes, its width, and what is written of it."""

    nodes: tuple[str, ...]
    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Streams:
    """Columns of nodes, joined by ways as wide as their values; `headers` name the columns."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Stream]


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart: its name and its points, in the order in which they are joined."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Curves:
    """Curves over one axis; `band` is an interval across it, `y_ticks` and `x_ticks` are places with their words."""

    title: str
    curves: Sequence[Curve]
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    band: tuple[float, float] | None = None


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


Block = Text | Heading | Bullets | Points | Table | Bars | Spans | Streams | Curves | Tiles


@dataclass(frozen=True, slots=True)
class Section:
    """A titled part of a document; a page folds what is looked up rather than read."""

    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Document:
    """A whole document."""

    title: str
    subtitle: str
    sections: Sequence[Section]
    footer: str = "Every figure is computed from the facts and assumptions at the end of this document."

    @property
    def lead(self) -> str:
        """The subtitle, and at which rate amounts are shown that are not in US dollars."""
        shown = CURRENCY.get()
        return f"{self.subtitle}; amounts in {shown.code}, {shown.source}" if shown.source else self.subtitle
