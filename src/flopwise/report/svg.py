"""Pictures of a document as inline SVG: bars with intervals, spans along an axis. All texts are escaped."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from math import isfinite

from flopwise.report.blocks import Bars, Spans

WIDTH, LABEL, VALUE, ROW = 860.0, 240.0, 150.0, 26.0
"""Units of the picture: its width, the columns of names and of figures, a row's height."""


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def _text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    shown = words if len(words) <= 60 else words[:57] + "..."
    return f'<text x="{_number(x)}" y="{_number(y)}" class="{kind}" text-anchor="{anchor}">{escape(shown)}</text>'


def _rect(x: float, y: float, width: float, kind: str) -> str:
    return (
        f'<rect x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(ROW - 8)}" class="{kind}"/>'
    )


def bars(block: Bars) -> str:
    """Horizontal bars from a common zero, each with its interval and figure."""
    ends = [v for b in block.bars for v in (b.value, b.high or 0.0)] + [block.mark or 0.0]
    most = max([v for v in ends if isfinite(v)], default=0.0) or 1.0
    room, height = WIDTH - LABEL - VALUE, ROW * len(block.bars) + 14
    return _framed(height, block.title, "".join(_bar_lines(block, most, room, height)))


def _bar_lines(block: Bars, most: float, room: float, height: float) -> Iterator[str]:
    for number, bar in enumerate(block.bars):
        y, length = number * ROW + 4, max(0.0, min(bar.value / most, 1.0)) * room
        middle = y + ROW / 2 - 4
        yield _text(LABEL - 10, middle + 6, bar.name, "name", "end")
        yield _rect(LABEL, y, length, "bar")
        if bar.low is not None and bar.high is not None and isfinite(bar.high):
            left, right = (LABEL + min(v / most, 1.0) * room for v in (bar.low, bar.high))
            yield f'<path d="M{_number(left)} {_number(middle + 1)}H{_number(right)}" class="interval"/>'
            for x in (left, right):
                yield f'<path d="M{_number(x)} {_number(middle - 3)}v8" class="interval"/>'
        yield _text(WIDTH, middle + 6, bar.text, "value", "end")
    if block.mark is not None and isfinite(block.mark):
        x = LABEL + block.mark / most * room
        yield f'<path d="M{_number(x)} 0V{_number(height - 12)}" class="mark"/>'
        yield _text(x, height - 1, block.mark_text, "tick", "middle")


def spans(block: Spans) -> str:
    """Rows from a start to an end along one axis."""
    ends = [end for _, _, end, _ in block.rows] + [at for at, _ in block.ticks]
    most, room = max(ends, default=1.0) or 1.0, WIDTH - LABEL
    height = ROW * len(block.rows) + 22
    parts = []
    for at, words in block.ticks:
        x = LABEL + at / most * room
        parts.append(f'<path d="M{_number(x)} 0V{_number(height - 18)}" class="grid"/>')
        parts.append(_text(x, height - 4, words, "tick", "middle" if at else "start"))
    for number, (name, start, end, words) in enumerate(block.rows):
        y, left = number * ROW + 4, LABEL + start / most * room
        width = max((end - start) / most * room, 3.0)
        parts.append(_text(LABEL - 10, y + ROW / 2 + 2, name, "name", "end"))
        parts.append(_rect(left, y, width, "span"))
        parts.append(_text(left + 6, y + ROW / 2 + 2, words, "inside"))
    return _framed(height, block.title, "".join(parts))


def _framed(height: float, title: str, body: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {_number(height)}" role="img" aria-label="{escape(title, quote=True)}" '
        f'xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )
