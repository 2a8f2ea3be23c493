"""A document as one page of HTML (styles and pictures inside, nothing loaded from anywhere) and as Markdown.

Nothing in a text can become markup: each writer escapes it for its format.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html import escape
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from flopwise.report.blocks import (
    Bar,
    Bars,
    Block,
    Bullets,
    Curves,
    Document,
    Heading,
    Link,
    Points,
    Spans,
    Stream,
    Streams,
    Table,
    Text,
    Tiles,
)
from flopwise.units import format_number

if TYPE_CHECKING:
    from jinja2 import Template

_DATED = re.compile(r"\d{4}-\d\d(-\d\d)?")
"""Days and months, which are not to be broken into lines."""
COLUMNS = 40
"""Characters of the longest bar in Markdown."""
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!])")
_LEADING = re.compile(r"^(\d+)([.)])(?=\s|$)|^([-+=:])")
_PLAIN = re.compile(r"-?[$\d][\d,.]*( %| GiB| h)?")
_HIDDEN = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
"""Marks that turn the direction of what follows: a name must not reorder its sentence."""


def plain(text: str) -> str:
    """`text` without control characters and marks of direction; what no file can hold becomes a replacement mark."""
    kept = []
    for letter in _HIDDEN.sub("", text):
        kind = unicodedata.category(letter)
        if kind == "Cs" or (kind == "Cn" and ord(letter) & 0xFFFE == 0xFFFE) or letter == "\0":
            kept.append("\N{REPLACEMENT CHARACTER}")
        else:
            kept.append(" " if kind in {"Cc", "Zl", "Zp"} else letter)
    return "".join(kept)


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - only a report needs it
    from markupsafe import Markup  # noqa: PLC0415 - comes with jinja2

    made = Environment(
        loader=PackageLoader("flopwise.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    made.tests["dated"] = lambda cell: isinstance(cell, str) and _DATED.fullmatch(cell) is not None
    made.tests["link"] = lambda cell: isinstance(cell, Link)
    made.filters["path"] = quote
    return made.get_template("document.html.j2")


PICTURES = Path(__file__).parent / "templates" / "pictures.css"
"""How the pictures look, on any page that defines the colours it names."""


def html(document: Document) -> str:
    """The whole page. Every text is escaped by the template; pictures escape their own."""
    from markupsafe import Markup  # noqa: PLC0415 - comes with jinja2

    def kind(block: Block) -> str:
        return type(block).__name__.lower()

    def picture(block: Bars | Spans | Streams | Curves) -> Any:
        """As wide as a page, and as narrow as a phone; the styles show one of them."""
        match block:
            case Bars():
                parts = bars_svg(block), narrow_bars_svg(block)
            case Spans():
                parts = spans_svg(block), narrow_spans_svg(block)
            case Streams():
                parts = streams_svg(block), _narrow_table(block)
            case Curves():
                parts = curves_svg(block), curves_svg(block, NARROW, "narrow")
        return Markup("".join(parts))  # noqa: S704 - all texts in it are escaped

    return _template().render(document=document, kind=kind, picture=picture)


# Pictures: bars with intervals, spans along an axis

WIDTH, LABEL, ROW = 860.0, 232.0, 26.0
"""Units of the picture: its width, the column of names, a row's height."""
NARROW, STEP, LINE, THIN = 340.0, 42.0, 15.0, 12.0
"""Units of a picture on a narrow screen: its width, the height of a row whose name stands above its bar, that of a
further line of text, a bar's."""
TINTS = 4
"""Colours of ribbons."""
LETTER = 6.9
"""Width of a letter, on the safe side, at the pictures' size of type."""


def width(text: str) -> int:
    """Columns that `text` takes where wide letters take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def cut_short(text: str, most: int) -> str:
    """At most `most` columns of it."""
    if width(text) <= most:
        return text
    kept = ""
    for letter in text:
        if width(kept) + width(letter) > most - 1:
            break
        kept += letter
    return f"{kept.rstrip()}…"


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def _text(x: float, y: float, words: str, kind: str, anchor: str = "start", most: int = 60) -> str:
    whole = plain(words)
    shown = cut_short(whole, most)
    title = f"<title>{escape(whole)}</title>" if shown != whole else ""
    place = f'x="{_number(x)}" y="{_number(y)}" class="{kind}" text-anchor="{anchor}"'
    return f"<text {place}>{title}{escape(shown)}</text>"


def _name(y: float, words: str) -> str:
    return _text(LABEL - 10, y, words, "name", "end", int((LABEL - 14) / LETTER))


def _rect(x: float, y: float, wide: float, kind: str, tall: float = ROW - 8) -> str:
    return f'<rect x="{_number(x)}" y="{_number(y)}" width="{_number(wide)}" height="{_number(tall)}" class="{kind}"/>'


def bars_svg(block: Bars) -> str:
    """Horizontal bars from a common zero, each with its interval and figure."""
    most = _most(block)
    beside = max((width(b.text) for b in block.bars), default=0) * LETTER + 14
    room = WIDTH - LABEL - min(beside, 300.0)
    height = ROW * len(block.bars) + (18 if block.mark is not None else 4)
    return _svg(height, block.title, "".join(_bar_lines(block, most, room, height)))


def _most(block: Bars) -> float:
    """The value at the right end of bars."""
    ends = [v for b in block.bars for v in (b.value, b.high or 0.0)] + [block.mark or 0.0]
    return max([v for v in ends if isfinite(v)], default=0.0) or 1.0


def narrow_bars_svg(block: Bars) -> str:
    """The same with names and figures above the bars, on lines of their own where one has no room for both."""
    most, parts, letters = _most(block), list[str](), int(NARROW / LETTER)
    second = LINE if any(width(plain(bar.name)) + width(bar.text) + 2 > letters for bar in block.bars) else 0.0
    step = STEP + second
    height = step * len(block.bars) + (18 if block.mark is not None else 4)
    for number, bar in enumerate(block.bars):
        y = number * step
        parts.append(_text(0, y + 13, bar.name, "name", most=letters))
        beside = (NARROW, y + 13, bar.text, "value", "end")
        parts.append(_text(0, y + 13 + second, bar.text, "value") if second else _text(*beside))
        parts.append(_rect(0, y + second + 19, max(0.0, min(bar.value / most, 1.0)) * NARROW, "bar", THIN))
        parts += _interval_lines(bar, most, 0.0, NARROW, y + second + 19 + THIN / 2)
    if block.mark is not None and isfinite(block.mark):
        parts.append(f'<path d="M{_number(block.mark / most * NARROW)} 0V{_number(height - 14)}" class="mark"/>')
        half = width(block.mark_text) * LETTER / 2
        x = max(half, min(block.mark / most * NARROW, NARROW - half))
        parts.append(_text(x, height - 2, block.mark_text, "tick", "middle"))
    return _svg(height, block.title, "".join(parts), NARROW, "narrow")


def _interval_lines(bar: Bar, most: float, start: float, room: float, y: float) -> Iterator[str]:
    """The interval of a bar that begins at `start`, at the level `y`."""
    if bar.low is None or bar.high is None or not isfinite(bar.high):
        return
    left, right = (start + min(v / most, 1.0) * room for v in (bar.low, bar.high))
    if right - left > 1:
        yield f'<path d="M{_number(left)} {_number(y)}H{_number(right)}" class="interval"/>'
        for x in (left, right):
            yield f'<path d="M{_number(x)} {_number(y - 4)}v8" class="interval"/>'


def _bar_lines(block: Bars, most: float, room: float, height: float) -> Iterator[str]:
    for number, bar in enumerate(block.bars):
        y, length = number * ROW + 4, max(0.0, min(bar.value / most, 1.0)) * room
        middle = y + ROW / 2 - 4
        yield _name(middle + 6, bar.name)
        yield _rect(LABEL, y, length, "bar")
        yield from _interval_lines(bar, most, LABEL, room, middle + 1)
        yield _text(WIDTH - 2, middle + 6, bar.text, "value", "end")
    if block.mark is not None and isfinite(block.mark):
        x = LABEL + block.mark / most * room
        yield f'<path d="M{_number(x)} 0V{_number(height - 14)}" class="mark"/>'
        half = width(block.mark_text) * LETTER / 2
        yield _text(min(x, WIDTH - half), height - 2, block.mark_text, "tick", "middle")


def spans_svg(block: Spans) -> str:
    """Rows from a start to the end of one axis."""
    most, room = block.end or 1.0, WIDTH - LABEL
    height = ROW * len(block.rows) + 22
    parts = []
    for at, words in block.ticks:
        x = LABEL + at / most * room
        parts.append(f'<path d="M{_number(x)} 0V{_number(height - 18)}" class="grid"/>')
        beyond = x + width(words) * LETTER / 2 > WIDTH
        parts.append(_text(x, height - 4, words, "tick", "end" if beyond else "middle" if at else "start"))
    for number, row in enumerate(block.rows):
        y, left = number * ROW + 4, LABEL + row.start / most * room
        fits = (WIDTH - left - 8) >= width(row.text) * LETTER
        parts.append(_name(y + ROW / 2 + 2, row.name))
        parts.append(_rect(left, y, max(WIDTH - left, 3.0), "span"))
        inside, beside = (left + 6, "inside", "start"), (left - 6, "value", "end")
        x, kind, anchor = inside if fits else beside
        parts.append(_text(x, y + ROW / 2 + 2, row.text, kind, anchor))
    return _svg(height, block.title, "".join(parts))


def narrow_spans_svg(block: Spans) -> str:
    """The same with names and texts above the rows."""
    most, step, parts = block.end or 1.0, STEP + 14, list[str]()
    height, free = step * len(block.rows) + 20, 0.0
    for at, words in block.ticks:
        x, half = at / most * NARROW, width(words) * LETTER / 2
        parts.append(f'<path d="M{_number(x)} 0V{_number(height - 18)}" class="grid"/>')
        middle = max(half, min(x, NARROW - half))
        if middle - half >= free:
            parts.append(_text(middle, height - 4, words, "tick", "middle"))
            free = middle + half + LETTER
    for number, row in enumerate(block.rows):
        y, left = number * step, row.start / most * NARROW
        letters = int(NARROW / LETTER)
        parts += [_text(0, y + 13, row.name, "name", most=letters), _text(0, y + 28, row.text, "tick", most=letters)]
        parts.append(_rect(left, y + 33, max(NARROW - left, 3.0), "span", THIN))
    return _svg(height, block.title, "".join(parts), NARROW, "narrow")


def _narrow_table(block: Streams) -> str:
    """A picture of streams as a table: a narrow screen has no room for three columns of names."""
    table = _picture_table(block)
    head = "".join(f'<th scope="col">{escape(plain(name.removeprefix(">")))}</th>' for name in table.headers)
    rows = ("".join(f"<td>{escape(plain(str(cell)))}</td>" for cell in row) for row in table.rows)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<table class="narrow"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


Node = tuple[int, str]
"""A node of a graph: its column and its name."""
NODES, NODE = (216.0, 378.0, 540.0), 10.0
"""Places of the columns of nodes in a graph, and the width of a node."""
MOST_LETTERS = (int(210 / LETTER), int(140 / LETTER), 42)
"""Letters that the names of each column have room for: those of instances have many capitals."""
LEAST_NODE, ALL_NODES, GAP = 16.0, 190.0, 8.0
"""Height of a node of next to nothing, what the heights of a column share beyond that, and between two nodes."""


def streams_svg(block: Streams) -> str:
    """Three columns of nodes, joined by ribbons; the way of each ribbon is its title."""
    places, height = _node_places(block.rows)
    parts = list(_ribbons(block.rows, places))
    for (column, name), (top, tall) in places.items():
        x, middle = NODES[column], top + tall / 2 + 4
        parts.append(
            f'<rect x="{_number(x)}" y="{_number(top)}" width="{NODE:g}" height="{_number(tall)}" class="node"/>'
        )
        parts.append(_label(column, middle, name, "over"))
    parts += [_label(column, 12, header, "tick") for column, header in enumerate(block.headers)]
    label = "; ".join(f"{' to '.join(row.nodes)}, {row.text}" for row in block.rows)
    return _svg(height, f"{block.title}: {label}", "".join(parts))


def _ribbons(rows: Sequence[Stream], places: Mapping[Node, tuple[float, float]]) -> Iterator[str]:
    """The ribbons of each row, coloured by its node in the middle; they leave and reach a node in its order."""
    done, order = dict.fromkeys(places, 0.0), list(places)
    tints = {name: number % TINTS for number, name in enumerate(dict.fromkeys(row.nodes[1] for row in rows))}
    totals = {node: sum(row.value for row in rows if row.nodes[node[0]] == node[1]) or 1.0 for node in places}
    for row in sorted(rows, key=lambda row: [order.index(node) for node in enumerate(row.nodes)]):
        ends = []
        for node in enumerate(row.nodes):
            top, tall = places[node]
            ends.append((top + done[node], tall * row.value / totals[node]))
            done[node] += ends[-1][1]
        title = f"<title>{escape(plain(' → '.join(row.nodes)))}: {escape(plain(row.text))}</title>"
        for left, right, start, end in zip(NODES, NODES[1:], ends, ends[1:], strict=False):
            outline = _ribbon(left + NODE, right, start, end)
            yield f'<path d="{outline}" class="t{tints[row.nodes[1]]}">{title}</path>'


def _node_places(rows: Sequence[Stream]) -> tuple[dict[Node, tuple[float, float]], float]:
    """(top and height of each node by its column and name, height of the picture); nodes follow those before them."""
    whole = sum(row.value for row in rows) or 1.0
    by_middle = sorted(rows, key=lambda row: -sum(r.value for r in rows if r.nodes[1] == row.nodes[1]))
    places: dict[Node, tuple[float, float]] = {}
    tallest = 0.0
    for column in range(3):
        top = 22.0
        for name in dict.fromkeys(row.nodes[column] for row in by_middle):
            tall = LEAST_NODE + ALL_NODES * sum(r.value for r in rows if r.nodes[column] == name) / whole
            places[column, name] = top, tall
            top += tall + GAP
        tallest = max(tallest, top)
    for column in range(3):  # shorter columns stand in the middle
        mine = [key for key in places if key[0] == column]
        end = sum(places[mine[-1]]) + GAP if mine else 0.0
        for key in mine:
            places[key] = places[key][0] + (tallest - end) / 2, places[key][1]
    return places, tallest


def _label(column: int, y: float, words: str, kind: str) -> str:
    """A text of a column: left of the first, right of the others."""
    x, anchor = (NODES[0] - 6, "end") if column == 0 else (NODES[column] + NODE + 6, "start")
    return _text(x, y, words, kind, anchor, MOST_LETTERS[column])


def _ribbon(left: float, right: float, start: tuple[float, float], end: tuple[float, float]) -> str:
    """The outline of a ribbon between two (top, thickness)."""
    half = _number((left + right) / 2)
    (a, thick), (b, other) = start, end
    return (
        f"M{_number(left)} {_number(a)}C{half} {_number(a)} {half} {_number(b)} {_number(right)} {_number(b)}"
        f"V{_number(b + other)}C{half} {_number(b + other)} {half} {_number(a + thick)} {_number(left)} "
        f"{_number(a + thick)}Z"
    )


TALL = 200.0
"""Height of a chart's frame."""
LEFT = 86.0
"""Width of the column of its figures."""


def curves_svg(block: Curves, wide: float = WIDTH, kind: str = "wide") -> str:
    """Lines in one frame over their ticks, with a legend below where there are several."""
    places = [place for curve in block.curves for place in curve.points if isfinite(place[0]) and isfinite(place[1])]
    across = [x for x, _ in places] + [x for x, _ in block.x_ticks]
    up = [y for _, y in places] + [y for y, _ in block.y_ticks]
    if not places:
        return _svg(0.0, block.title, "", wide, kind)
    left, right, low, high = min(across), max(across), min(up), max(up)

    def at(x: float, y: float) -> tuple[str, str]:
        """The place of a point in the picture."""
        beside = LEFT + (x - left) / ((right - left) or 1.0) * (wide - LEFT - 8)
        return _number(beside), _number(6 + (1 - (min(max(y, low), high) - low) / ((high - low) or 1.0)) * TALL)

    parts = []
    if block.band is not None:
        (_, top), (_, bottom) = at(left, block.band[1]), at(left, block.band[0])
        tall = _number(float(bottom) - float(top))
        parts.append(f'<rect x="{LEFT:g}" y="{top}" width="{_number(wide - LEFT - 8)}" height="{tall}" class="band"/>')
    for y, words in block.y_ticks:
        _, level = at(left, y)
        parts.append(f'<path d="M{LEFT:g} {level}H{wide - 8:g}" class="grid"/>')
        parts.append(_text(LEFT - 8, float(level) + 4, words, "tick", "end", int(LEFT / LETTER)))
    free = 0.0
    for number, (x, words) in enumerate(block.x_ticks):
        anchor = "start" if not number else "end" if number == len(block.x_ticks) - 1 else "middle"
        place, long = float(at(x, low)[0]), width(words) * LETTER
        begin = place - {"start": 0.0, "middle": long / 2, "end": long}[anchor]
        if begin >= free:
            parts.append(_text(place, TALL + 24, words, "tick", anchor))
            free = begin + long
    for number, curve in enumerate(block.curves):
        line = "L".join(" ".join(at(x, y)) for x, y in curve.points if isfinite(x) and isfinite(y))
        if line:
            title = f"<title>{escape(plain(curve.name))}</title>"
            parts.append(f'<path d="M{line}" class="curve c{number % TINTS}">{title}</path>')
    legend = [curve.name for curve in block.curves] if len(block.curves) > 1 else []
    for number, name in enumerate(legend):
        y = TALL + 46 + 16 * number
        parts.append(f'<path d="M{LEFT:g} {y - 4:g}h24" class="curve c{number % TINTS}"/>')
        parts.append(_text(LEFT + 32, y, name, "name", most=int((wide - LEFT - 32) / LETTER)))
    return _svg(TALL + 30 + 16 * (len(legend) + bool(legend)), block.title, "".join(parts), wide, kind)


def _svg(height: float, title: str, body: str, wide: float = WIDTH, kind: str = "wide") -> str:
    return (
        f'<svg class="picture {kind}" viewBox="0 0 {wide:g} {_number(height)}" role="img" '
        f'aria-label="{escape(plain(title), quote=True)}" xmlns="http://www.w3.org/2000/svg"><title>{escape(plain(title))}</title>{body}</svg>'
    )


# Markdown: tables as tables, bars as characters


def markdown_text(text: str) -> str:
    """`text` as Markdown shows it letter by letter, on one line."""
    shown = " ".join(plain(str(text)).split())
    shown = _SPECIAL.sub(r"\\\1", shown).replace("&", "&amp;")
    return _LEADING.sub(lambda m: f"{m[1]}\\{m[2]}" if m[1] else f"\\{m[3]}", shown)


def markdown(document: Document) -> str:
    """The whole document."""
    parts = [f"# {markdown_text(document.title)}", markdown_text(document.lead)]
    for section in document.sections:
        parts.append(f"## {markdown_text(section.title)}")
        parts += ["\n".join(_lines(block)) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def _lines(block: Block) -> Iterator[str]:
    match block:
        case Text():
            yield f"**{markdown_text(block.text)}**" if block.strong else markdown_text(block.text)
        case Heading():
            yield f"### {markdown_text(block.text)}"
        case Bullets():
            yield from (f"- {markdown_text(item)}" for item in block.items)
        case Points():
            yield from (f"- **{markdown_text(lead)}** {markdown_text(item)}" for lead, item in block.items)
        case Tiles():
            yield from _table(Table(["", ">", ""], [(t.name, t.value, t.note) for t in block.tiles]))
        case Table():
            yield from _table(block)
        case Bars():
            yield from _bars(block)
        case Streams() | Spans() | Curves():
            yield from _table(_picture_table(block))


def _picture_table(block: Streams | Spans | Curves) -> Table:
    """The figures of a picture, as a table."""
    match block:
        case Streams():
            heads = [block.title.split(",", 1)[0], *block.headers[1:], ">"]
            return Table(heads, [(*row.nodes, row.text) for row in block.rows])
        case Spans():
            return Table([block.title, "from", ""], [(r.name, r.begins, r.text) for r in block.rows])
    ends = [(c.name, *(f"{format_number(c.points[end][1], 4)}" for end in (0, -1))) for c in block.curves if c.points]
    return Table([block.title, ">first", ">last"], ends)


def _table(block: Table) -> Iterator[str]:
    yield f"| {' | '.join(markdown_text(h.removeprefix('>')) for h in block.headers)} |"
    yield f"|{'|'.join('---:' if h.startswith('>') else '---' for h in block.headers)}|"
    for row in block.rows:
        yield f"| {' | '.join(_cell(cell) for cell in row)} |"
    if block.note:
        yield ""
        yield markdown_text(block.note)


def _cell(cell: str | Link) -> str:
    if isinstance(cell, Link):
        return f"[{markdown_text(cell.text)}]({quote(cell.file)})"
    return cell if cell == "-" or _PLAIN.fullmatch(cell) else markdown_text(cell)


def _bars(block: Bars) -> Iterator[str]:
    most = max((bar.value for bar in block.bars), default=0.0)
    yield f"{markdown_text(block.title)}{f' ({markdown_text(block.mark_text)})' if block.mark_text else ''}"
    yield ""
    intervals, rows = any(bar.interval for bar in block.bars), []
    for bar in block.bars:
        length = max(round(COLUMNS * bar.value / most), 1 if bar.value > 0 else 0) if most > 0 else 0
        rows.append((bar.name, "█" * length, bar.text, *([bar.interval] if intervals else [])))
    yield from _table(Table(["", "", ">", *(["interval"] if intervals else [])], rows))
