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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from flopwise.values import dataclass

if TYPE_CHECKING:
    from flopwise.provenance import Figure

T = TypeVar("T")
_SGR = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_PLAIN = {
    "µ": "u", "─": "-", "│": "|", "├": "|", "└": "`", "┼": "+", "…": "~", "█": "#", "▉": "#", "·": ".", "≥": ">=",
    "≤": "<=", "→": "->", "±": "+-", "●": "*", "○": "o", "≈": "~", "²": "2", "\u00d7": "x", "\u2013": "-",
    "\u2212": "-", "\u2019": "'", "▏": "", "▎": "", "▍": "", "▌": "", "▋": "", "▊": "",
}  # fmt: skip
_ASCII = str.maketrans(_PLAIN)
_EIGHTHS = " ▏▎▍▌▋▊▉"
MISSING = "-"
NARROWEST = 12
"""Columns of the screen to which text in a table is wrapped at the least."""
TALLEST = 6
"""Lines of a cell at the most: where wrapping makes more of one, each row is a record."""
SHORT_SOURCE = 60
"""Characters of a source that a tree of provenance repeats as it is."""
JUDGED = ("fits", "enough", "holds")
"""Columns whose yes is good and whose no is bad."""
BAD = ("Does not fit", "Too slow", "No ", "Nothing ", "Misses")
"""Beginnings of negative verdicts, which are red."""
_CODES = re.compile(r"\x1b\[\d+m")
_PAINTED = re.compile(r"(\x1b\[\d+m)(.*)(\x1b\[0m)")


def known_text(value: T | None, shown: Callable[[T], str]) -> str | None:
    """A value as text, and None, which tables and pairs have no text for, where it is not known."""
    return None if value is None else shown(value)


@dataclass(frozen=True, slots=True)
class Screen:
    """Width, encoding and colours of the output; `width` None: a file or a pipe, where lines are not wrapped."""

    width: int | None = None
    unicode: bool = True
    color: bool = False
    markdown: bool = False

    def paint(self, text: str, style: str) -> str:
        """`text` in a style of `_SGR` (bold, dim, red ...) where there is colour."""
        return f"\x1b[{_SGR[style]}m{text}\x1b[0m" if self.color and text else text

    def spell(self, text: str) -> str:
        """`text` in characters that the encoding has."""
        return text if self.unicode else text.translate(_ASCII).encode("ascii", "replace").decode("ascii")

    def wrap(self, text: str) -> str:
        """A line of prose in lines that are no wider than this, each under the line's own indent."""
        return _wrapped_prose(text, self.width)

    def verbatim(self, text: str) -> str:
        """Drawings and command lines unchanged; in Markdown as a code block."""
        return f"```\n{text}\n```" if self.markdown and text else text

    @property
    def columns(self) -> int:
        """Columns to draw a chart in."""
        return min(self.width or 100, 120)


def screen(stream: TextIO | None = None) -> Screen:
    """The width, colour and encoding of `stream` (stdout by default)."""
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
    """Write `blocks` to stdout, an empty line between them, prose wrapped to the terminal; without empty blocks."""
    paper = to or screen()
    lines = "\n\n".join(block for block in blocks if block).split("\n")
    sys.stdout.write(paper.spell("\n".join(map(paper.wrap, lines))) + "\n")


def _wrapped_lines(text: str, width: int, *, lead: str = "", hang: str = "") -> list[str]:
    """`text` in lines of `width` behind `lead` and `hang`; hyphens break only where a word is longer than a line."""
    room = width - max(len(lead), len(hang))
    whole = all(len(word) <= room for word in text.split())
    return textwrap.wrap(text, width, initial_indent=lead, subsequent_indent=hang, break_on_hyphens=not whole)


def _wrapped_prose(line: str, width: int | None) -> str:
    """A line that is too long for the terminal, wrapped under its own indent; command lines stay whole."""
    painted = _PAINTED.fullmatch(line)
    text = painted[2] if painted else _CODES.sub("", line)
    if width is None or len(text) <= width or text.lstrip().startswith("flopwise "):
        return line
    indent = len(text) - len(text.lstrip()) + 2 * text.lstrip().startswith("- ")
    lines = _wrapped_lines(text, width, hang=" " * indent)
    return "\n".join(f"{painted[1]}{one}{painted[3]}" for one in lines) if painted else "\n".join(lines)


def cell(value: Any) -> str:
    """A table's cell: `-` for what is unknown, yes or no, numbers with separators and four digits."""
    if value is None or value == "":
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return decimal(value)
    return plain_text(str(value))


def decimal(value: float) -> str:
    """A number of four digits, or of all before the point: `0.1234`, `57,112`; powers of ten from a million million."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:,.4g}"


def table(
    headers: Sequence[str], rows: Iterable[Sequence[Any]], to: Screen | None = None, *, spare: Sequence[str] = ()
) -> str:
    """Aligned columns under their `headers`; a header that starts with `>` is set to the right, as numbers are.

    No line is longer than the screen is wide, and nothing is cut: where the table does not fit, columns of `spare` (of
    `headers`, the first first) are left out; then text and titles are wrapped; then each row is a record, a line for
    each of its cells. A file or a pipe has no width.
    """
    paper = to or screen()
    cells = [[paper.spell(cell(value)) for value in row] for row in rows]
    if paper.markdown:
        return _markdown_table(headers, cells)
    kept = list(range(len(headers)))
    widths = [max(map(len, column)) for column in zip(map(_title, headers), *cells, strict=True)]
    for least in spare:
        if paper.width is not None and sum(widths[i] for i in kept) + 2 * (len(kept) - 1) > paper.width:
            kept.remove(headers.index(least))
    right = [headers[i].startswith(">") for i in kept]
    titles = [_title(headers[i]) for i in kept]
    cells = [[row[i] for i in kept] for row in cells]
    fitted = [widths[i] for i in kept] if paper.width is None else _column_widths(titles, cells, right, paper.width)
    if fitted is None or any(
        len(_cell_lines(t, w)) > TALLEST for row in cells for t, w in zip(row, fitted, strict=True)
    ):
        return "\n\n".join(_record(titles, row, paper) for row in cells)
    head = [paper.paint(line, "bold") for line in _table_row(titles, fitted, right)]
    rule = paper.paint("  ".join("─" * width for width in fitted), "dim")
    judged = [title in JUDGED for title in titles]
    return "\n".join([*head, rule, *(line for row in cells for line in _table_row(row, fitted, right, paper, judged))])


def _markdown_table(headers: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    """A table of Markdown, a line for each row."""
    rules = ["---:" if header.startswith(">") else "---" for header in headers]
    rows = [[text.replace("|", "\\|") for text in row] for row in [[*map(_title, headers)], *cells]]
    return "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], rules, *rows[1:]])


def _title(header: str) -> str:
    return header.removeprefix(">")


def _table_row(
    texts: Sequence[str], widths: Sequence[int], right: Sequence[bool], paper: Screen | None = None,
    judged: Sequence[bool] = (),
) -> Iterator[str]:  # fmt: skip
    """The lines of one row, its cells wrapped to the widths of their columns; `judged` cells in colour."""
    for parts in zip_longest(*map(_cell_lines, texts, widths), fillvalue=""):
        cells = [t.rjust(w) if number else t.ljust(w) for t, w, number in zip(parts, widths, right, strict=True)]
        if paper is not None and paper.color:
            cells = [_judgement(c, paper) if j else c for c, j in zip(cells, judged, strict=True)]
        yield "  ".join(cells).rstrip()


def _judgement(text: str, paper: Screen) -> str:
    """A cell in green if it is yes, in red if it is no."""
    color = {"yes": "green", "no": "red"}.get(text.strip())
    return text if color is None else text.replace(text.strip(), paper.paint(text.strip(), color), 1)


def _cell_lines(text: str, width: int) -> list[str]:
    return _wrapped_lines(text, width) or [""] if len(text) > width else [text]


def _column_widths(
    titles: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool], limit: int
) -> list[int] | None:
    """Widths of the columns such that a line has at most `limit` characters; None where wrapping does not do it.

    Numbers are as wide as they are, text at least `NARROWEST` (or all of it) and its longest word.
    """
    columns = [[row[i] for row in cells] for i in range(len(titles))]
    widths = [max(map(len, (title, *column))) for title, column in zip(titles, columns, strict=True)]

    def least(title: str, column: list[str], number: bool) -> int:
        words = [*title.split(), *(column if number else (word for text in column for word in text.split()))]
        return max([*map(len, words), 1 if number else min(NARROWEST, max(map(len, column), default=1))])

    floors = [least(*column) for column in zip(titles, columns, right, strict=True)]
    excess = sum(widths) + 2 * (len(widths) - 1) - limit
    while excess > 0:
        room, widest = max(
            ((w, i) for i, (w, f) in enumerate(zip(widths, floors, strict=True)) if w > f), default=(0, 0)
        )
        if not room:
            return None
        widths[widest] -= 1
        excess -= 1
    return widths


def _record(titles: Sequence[str], row: Sequence[str], paper: Screen) -> str:
    """One row of a table, a line for each cell."""
    return pairs([(title, value) for title, value in zip(titles, row, strict=True) if value != MISSING], paper)


def pairs(rows: Iterable[tuple[str, Any]], to: Screen | None = None) -> str:
    """Names and values, one a line, the values aligned and wrapped to the screen; long names are wrapped, too."""
    paper = to or screen()
    shown = [(paper.spell(plain_text(name)), paper.spell(cell(value))) for name, value in rows]
    if paper.markdown:
        return _markdown_table(["", ""], shown)
    longest = max((len(name) for name, _ in shown), default=0)
    name_width = longest if paper.width is None else min(longest, (paper.width - 2) // 2)
    room = None if paper.width is None else paper.width - name_width - 2
    lines = []
    for name, value in shown:
        names = [name] if len(name) <= name_width else textwrap.wrap(name, name_width)
        fits = room is None or len(value) <= room
        values = [value] if fits else _wrapped_lines(value, room or 1)
        for left, text in zip_longest(names, values, fillvalue=""):
            lines.append(f"{paper.paint(left.ljust(name_width), 'dim')}  {text}".rstrip())
    return "\n".join(lines)


def heading(text: str, to: Screen | None = None) -> str:
    """A line above a block."""
    paper = to or screen()
    return f"### {plain_text(text)}" if paper.markdown else paper.paint(plain_text(text), "bold")


def verdict(text: str, to: Screen | None = None) -> str:
    """The answer in a sentence, in red where it is bad."""
    paper = to or screen()
    bad = text.startswith(BAD) and not paper.markdown
    return paper.paint(plain_text(text), "red") if bad else heading(text, paper)


def tree(figure: Figure, to: Screen | None = None, *, depth: int | None = None) -> str:
    """The tree of provenance of a figure, wrapped to the terminal."""
    paper = to or screen()
    drawn = render_tree(figure, width=paper.width, depth=depth, ascii_only=not paper.unicode)
    return paper.verbatim("\n".join(map(plain_text, drawn.split("\n"))))


class _Sources:
    """Long sources of the figures of a tree: one that several figures have is written out once, with a number."""

    def __init__(self, top: Figure) -> None:
        """Count the figures of each source under `top`."""
        from flopwise.provenance import walk

        counts = Counter(figure.source for figure in walk(top))
        self._repeated = {text for text, count in counts.items() if count > 1 and len(text) > SHORT_SOURCE}
        self._numbers: dict[str, int] = {}

    def text(self, source: str) -> str:
        """The source as it is, or its number after the first time."""
        if source not in self._repeated:
            return source
        if source in self._numbers:
            return f"source {self._numbers[source]}"
        self._numbers[source] = len(self._numbers) + 1
        return f"source {self._numbers[source]}: {source}"


def _origin(figure: Figure, sources: _Sources) -> str:
    """The origin of the value, in brackets on its line."""
    source, date, note = sources.text(figure.source), figure.date, figure.note
    confidence = f"{figure.confidence} confidence" if figure.confidence else ""
    parts = {
        "fact": (source, date, confidence, note),
        "calibration": (f"fitted on {figure.fitted_on}", source, date, note),
        "assumption": (f"assumed: {note}",),
        "given": ("given", source, note),
        "default": ("default: not given", source, note),
        "chosen": ("chosen by the search", source, note),
    }.get(figure.kind, (source, note))
    text = "; ".join(part for part in parts if part)
    return f"  [{text}]" if text else ""


def render_tree(figure: Figure, *, width: int | None = None, depth: int | None = None, ascii_only: bool = False) -> str:
    """Draw the tree under `figure`, one figure a line, wrapped at `width` columns.

    A figure that was drawn before is only named, and a long source that was written out before is a number. `depth`
    limits how far down it goes; `ascii_only` draws with the characters every terminal has.
    """
    from flopwise.provenance import format_value

    tee, last, bar = ("|-- ", "`-- ", "|   ") if ascii_only else ("├── ", "└── ", "│   ")
    lines: list[str] = []
    drawn: set[int] = set()
    sources = _Sources(figure)

    def draw(here: Figure, lead: str, under: str, level: int) -> None:
        again = id(here) in drawn and bool(here.inputs)
        drawn.add(id(here))
        formula = f" = {here.formula}" if here.formula else ""
        text = f"{here.name}{formula}: {format_value(here)}{'  (see above)' if again else _origin(here, sources)}"
        inputs = () if again or (depth is not None and level >= depth) else here.inputs
        hang = under + (bar if inputs else "    ")
        if width is None:
            lines.append(lead + text)
        else:
            lines.extend(_wrapped_lines(text, max(width, len(hang) + 20), lead=lead, hang=hang) or [lead.rstrip()])
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
    return paper.verbatim("\n".join(lines))


def _bar(length: float, eighths: bool) -> str:
    """A bar of `length` columns; something is seen of every size above zero."""
    if not eighths:
        return "#" * max(round(length), 1 if length > 0 else 0)
    whole, rest = divmod(round(length * 8), 8)
    bar = "█" * whole + (_EIGHTHS[rest] if rest else "")
    return bar or ("▏" if length > 0 else "")
