"""A document as one page of HTML: styles and pictures (SVG) inside, no script, nothing loaded from anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from html import escape
from math import isfinite
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from flopwise.report.blocks import Bars, Block, Document, Link, Spans
from flopwise.report.words import plain, shortened, width

if TYPE_CHECKING:
    from jinja2 import Template


_DATED = re.compile(r"\d{4}-\d\d(-\d\d)?")
"""Days and months, which are not to be broken into lines."""


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


def html(document: Document) -> str:
    """The whole page. Every text is escaped by the template; pictures escape their own."""
    from markupsafe import Markup  # noqa: PLC0415 - comes with jinja2

    def kind(block: Block) -> str:
        return type(block).__name__.lower()

    def drawn(block: Bars | Spans) -> Any:
        return Markup(bars_svg(block) if isinstance(block, Bars) else spans_svg(block))  # noqa: S704 - all texts in it are escaped

    return _template().render(document=document, kind=kind, drawn=drawn)


# Pictures: bars with intervals, spans along an axis

WIDTH, LABEL, ROW = 860.0, 232.0, 26.0
"""Units of the picture: its width, the column of names, a row's height."""
LETTER = 6.9
"""Width of a letter, on the safe side, at the pictures' size of type."""


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def _text(x: float, y: float, words: str, kind: str, anchor: str = "start", most: int = 60) -> str:
    whole = plain(words)
    shown = shortened(whole, most)
    title = f"<title>{escape(whole)}</title>" if shown != whole else ""
    place = f'x="{_number(x)}" y="{_number(y)}" class="{kind}" text-anchor="{anchor}"'
    return f"<text {place}>{title}{escape(shown)}</text>"


def _name(y: float, words: str) -> str:
    return _text(LABEL - 10, y, words, "name", "end", int((LABEL - 14) / LETTER))


def _rect(x: float, y: float, wide: float, kind: str) -> str:
    return (
        f'<rect x="{_number(x)}" y="{_number(y)}" width="{_number(wide)}" height="{_number(ROW - 8)}" class="{kind}"/>'
    )


def bars_svg(block: Bars) -> str:
    """Horizontal bars from a common zero, each with its interval and figure."""
    ends = [v for b in block.bars for v in (b.value, b.high or 0.0)] + [block.mark or 0.0]
    most = max([v for v in ends if isfinite(v)], default=0.0) or 1.0
    beside = max((width(b.text) for b in block.bars), default=0) * LETTER + 14
    room = WIDTH - LABEL - min(beside, 300.0)
    height = ROW * len(block.bars) + (18 if block.mark is not None else 4)
    return _svg(height, block.title, "".join(_bar_lines(block, most, room, height)))


def _bar_lines(block: Bars, most: float, room: float, height: float) -> Iterator[str]:
    for number, bar in enumerate(block.bars):
        y, length = number * ROW + 4, max(0.0, min(bar.value / most, 1.0)) * room
        middle = y + ROW / 2 - 4
        yield _name(middle + 6, bar.name)
        yield _rect(LABEL, y, length, "bar")
        if bar.low is not None and bar.high is not None and isfinite(bar.high):
            left, right = (LABEL + min(v / most, 1.0) * room for v in (bar.low, bar.high))
            if right - left > 1:
                yield f'<path d="M{_number(left)} {_number(middle + 1)}H{_number(right)}" class="interval"/>'
                for x in (left, right):
                    yield f'<path d="M{_number(x)} {_number(middle - 3)}v8" class="interval"/>'
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
        parts.append(
            _text(left + 6, y + ROW / 2 + 2, row.text, "inside")
            if fits
            else _text(left - 6, y + ROW / 2 + 2, row.text, "value", "end")
        )
    return _svg(height, block.title, "".join(parts))


def _svg(height: float, title: str, body: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {_number(height)}" role="img" aria-label="{escape(plain(title), quote=True)}" '
        f'xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )
