"""Text for people: tables, bars and headings that suit the terminal at hand, and a file or a pipe when there is none.

Nothing here knows what is shown. Colour appears on terminals only and honours NO_COLOR; where the encoding lacks the
characters (lines, blocks, µ) plain ones stand for them; control characters from data never reach the terminal.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from flopwise.provenance import Figure

_SGR = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_PLAIN = {
    "µ": "u", "─": "-", "│": "|", "├": "|", "└": "`", "┼": "+", "…": "~", "█": "#", "▉": "#", "·": ".", "≥": ">=",
    "≤": "<=", "→": "->", "±": "+-", "●": "*", "○": "o", "≈": "~", "²": "2", "\u00d7": "x", "\u2013": "-",
    "\u2212": "-", "\u2019": "'", "▏": "", "▎": "", "▍": "", "▌": "", "▋": "", "▊": "",
}  # fmt: skip
_ASCII = str.maketrans(_PLAIN)
_EIGHTHS = " ▏▎▍▌▋▊▉"
MISSING = "-"
NARROWEST = 8
"""Columns of the screen that every column of a table has room for: `-1e+4299` is as long."""
_NUMERAL = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Screen:
    """What the text will be read on; `width` None: a file or a pipe, where nothing is cut."""

    width: int | None = None
    unicode: bool = True
    color: bool = False

    def paint(self, text: str, style: str) -> str:
        """`text` in a style of `_SGR` (bold, dim, red ...) where there is colour."""
        return f"\x1b[{_SGR[style]}m{text}\x1b[0m" if self.color and text else text

    def spell(self, text: str) -> str:
        """`text` in characters that the encoding has."""
        return text if self.unicode else text.translate(_ASCII).encode("ascii", "replace").decode("ascii")

    @property
    def columns(self) -> int:
        """Columns to draw a chart in."""
        return min(self.width or 100, 120)


def screen(stream: TextIO | None = None) -> Screen:
    """What stands behind `stream` (stdout by default)."""
    stream = stream if stream is not None else sys.stdout
    encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "")
    terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
    color = terminal and not os.environ.get("NO_COLOR")
    width = None
    if stream.isatty():
        import shutil

        width = max(shutil.get_terminal_size((100, 24)).columns, 40)
    return Screen(width=width, unicode=encoding.startswith("utf"), color=color)


def plain_text(text: str) -> str:
    """`text` without control characters, on one line: data does not steer a terminal."""
    return "".join(" " if c in "\n\t\r" else "?" if unicodedata.category(c) in {"Cc", "Cf", "Cs"} else c for c in text)


def write(*blocks: str, to: Screen | None = None) -> None:
    """Write `blocks` to stdout, an empty line between them; empty blocks are left out."""
    paper = to or screen()
    sys.stdout.write(paper.spell("\n\n".join(block for block in blocks if block)) + "\n")


def cell(value: Any) -> str:
    """A table's cell: `-` for what is unknown, yes or no, whole numbers with separators, floats to four digits."""
    if value is None or value == "":
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    return plain_text(str(value))


def table(
    headers: Sequence[str], rows: Iterable[Sequence[Any]], to: Screen | None = None, *, spare: Sequence[str] = ()
) -> str:
    """Aligned columns under their `headers`; a header that starts with `>` is set to the right, as numbers are.

    No line is longer than the screen is wide, or than `NARROWEST` for each column and two spaces between them where the
    screen is narrower than that; a file or a pipe has no width. Where the table does not fit, columns of `spare` (of
    `headers`, the first first) are left out; then text is cut, with an ellipsis; then the titles of columns; at last
    numbers are written in scientific form.
    """
    paper = to or screen()
    cells = [[paper.spell(cell(value)) for value in row] for row in rows]
    kept = list(range(len(headers)))
    widths = [max(map(len, column)) for column in zip(map(_title, headers), *cells, strict=True)]
    for least in spare:
        if paper.width is not None and sum(widths[i] for i in kept) + 2 * (len(kept) - 1) > paper.width:
            kept.remove(headers.index(least))
    right = [headers[i].startswith(">") for i in kept]
    titles = [_title(headers[i]) for i in kept]
    cells = [[row[i] for i in kept] for row in cells]
    widths = [widths[i] for i in kept] if paper.width is None else _column_widths(titles, cells, right, paper.width)

    def line(texts: Sequence[str], *, numbers: bool = True) -> str:
        places = zip(texts, widths, right, strict=True)
        return "  ".join(
            _narrow(text, width, number=numbers).rjust(width) if number else _narrow(text, width).ljust(width)
            for text, width, number in places
        ).rstrip()

    rule = "  ".join("─" * width for width in widths)
    head = paper.paint(line(titles, numbers=False), "bold")
    return "\n".join([head, paper.paint(rule, "dim"), *map(line, cells)])


def _title(header: str) -> str:
    return header.removeprefix(">")


def _narrow(text: str, width: int, *, number: bool = False) -> str:
    """`text` in at most `width` characters: its longest numeral in scientific form, or cut, with an ellipsis."""
    if len(text) <= width:
        return text
    numerals = sorted(_NUMERAL.finditer(text), key=lambda found: len(found[0])) if number else []
    for found in numerals[-1:]:
        from decimal import Decimal

        value = Decimal(found[0].replace(",", ""))
        for digits in (3, 2, 1, 0):
            short = f"{text[: found.start()]}{value:.{digits}e}{text[found.end() :]}"
            if len(short) <= width:
                return short
    return text[: width - 1] + "…"


def _column_widths(
    titles: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool], limit: int
) -> list[int]:
    """Widths of the columns such that a line has at most `limit` characters, if all of `NARROWEST` have as many."""
    contents = [max((len(row[i]) for row in cells), default=0) for i in range(len(titles))]
    widths = [max(len(title), content) for title, content in zip(titles, contents, strict=True)]
    text = [w if r else max(len(t), NARROWEST) for w, r, t in zip(widths, right, titles, strict=True)]
    whole_numbers = [max(c, NARROWEST) if r else NARROWEST for c, r in zip(contents, right, strict=True)]
    for least in (text, whole_numbers, [NARROWEST] * len(widths)):
        while sum(widths) + 2 * (len(widths) - 1) > limit:
            room, widest = max(((w - m, i) for i, (w, m) in enumerate(zip(widths, least, strict=True))), default=(0, 0))
            if room <= 0:
                break
            widths[widest] -= 1
    return widths


def pairs(rows: Iterable[tuple[str, Any]], to: Screen | None = None) -> str:
    """Names and values, one a line, the values aligned."""
    paper = to or screen()
    held = [(name, cell(value)) for name, value in rows]
    width = max((len(name) for name, _ in held), default=0)
    return "\n".join(f"{paper.paint(name.ljust(width), 'dim')}  {value}" for name, value in held)


def heading(text: str, to: Screen | None = None) -> str:
    """A line above a block."""
    return (to or screen()).paint(plain_text(text), "bold")


def tree(figure: Figure, to: Screen | None = None, *, depth: int | None = None) -> str:
    """Where a figure comes from, wrapped to the terminal."""
    paper = to or screen()
    drawn = render_tree(figure, width=paper.width, depth=depth, ascii_only=not paper.unicode)
    return "\n".join(map(plain_text, drawn.split("\n")))


def _origin(figure: Figure) -> str:
    """What stands behind the value, in brackets on its line."""
    source, date, note = figure.source, figure.date, figure.note
    confidence = f"{figure.confidence} confidence" if figure.confidence else ""
    parts = {
        "fact": (source, date, confidence, note),
        "calibration": (f"fitted on {figure.fitted_on}", source, date, note),
        "assumption": (f"assumed: {note}",),
        "given": ("given", source, note),
    }.get(figure.kind, (source, note))
    text = "; ".join(part for part in parts if part)
    return f"  [{text}]" if text else ""


def render_tree(figure: Figure, *, width: int | None = None, depth: int | None = None, ascii_only: bool = False) -> str:
    """Draw the tree under `figure`, one figure a line, wrapped at `width` columns; what was drawn before is only named.

    `depth` limits how far down it goes; `ascii_only` draws with the characters every terminal has.
    """
    from flopwise.provenance import format_value

    tee, last, bar = ("|-- ", "`-- ", "|   ") if ascii_only else ("├── ", "└── ", "│   ")
    lines: list[str] = []
    drawn: set[int] = set()

    def draw(here: Figure, lead: str, under: str, level: int) -> None:
        again = id(here) in drawn and bool(here.inputs)
        drawn.add(id(here))
        formula = f" = {here.formula}" if here.formula else ""
        text = f"{here.name}{formula}: {format_value(here)}{'  (see above)' if again else _origin(here)}"
        inputs = () if again or (depth is not None and level >= depth) else here.inputs
        hang = under + (bar if inputs else "    ")
        if width is None:
            lines.append(lead + text)
        else:
            lines.extend(
                textwrap.wrap(text, max(width, len(hang) + 20), initial_indent=lead, subsequent_indent=hang)
                or [lead.rstrip()]
            )
        for index, below in enumerate(inputs, start=1):
            end = index == len(inputs)
            draw(below, under + (last if end else tee), under + ("    " if end else bar), level + 1)

    draw(figure, "", "", 0)
    return "\n".join(lines)


def bars(rows: Sequence[tuple[str, float, str]], to: Screen | None = None, *, columns: int = 30) -> str:
    """One bar for each (name, size, label), the largest `columns` long; sizes that are not positive have no bar."""
    paper = to or screen()
    names = [plain_text(name) for name, _, _ in rows]
    width = max(map(len, names), default=0)
    label_width = max((len(label) for _, _, label in rows), default=0)
    largest = max((size for _, size, _ in rows), default=0.0)
    lines = []
    for name, (_, size, label) in zip(names, rows, strict=True):
        bar = _bar(size / largest * columns if largest > 0 and size > 0 else 0.0, paper.unicode)
        lines.append(f"{name.ljust(width)}  {label.rjust(label_width)}  {paper.paint(bar, 'cyan')}".rstrip())
    return "\n".join(lines)


def _bar(length: float, eighths: bool) -> str:
    """A bar of `length` columns; something is seen of every size above zero."""
    if not eighths:
        return "#" * max(round(length), 1 if length > 0 else 0)
    whole, rest = divmod(round(length * 8), 8)
    bar = "█" * whole + (_EIGHTHS[rest] if rest else "")
    return bar or ("▏" if length > 0 else "")
