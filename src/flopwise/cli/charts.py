"""Points and lines on a plane, drawn with braille dots, or with plain characters where the encoding has no others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

from flopwise.cli.render import Screen, plain_text, screen
from flopwise.units import format_number
from flopwise.values import dataclass

_BRAILLE = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # [row][column] of a braille cell
_LARGEST = 1e290  # spans of what lies beyond overflow
_COLORS = ("dim", "green", "yellow", "cyan")


@dataclass(frozen=True, slots=True)
class Series:
    """Points (x, y) of one series; `line` joins them in order, `mark` draws each."""

    name: str
    points: Sequence[tuple[float, float]]
    mark: str = ""
    line: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """The scale of an axis and the format of its figures."""

    label: str
    text: Callable[[float], str] = partial(format_number, digits=4)
    log: bool = False

    def place(self, value: float) -> float:
        """The position of `value` along the axis, in the axis's own measure."""
        return math.log10(value) if self.log else value

    def value(self, place: float) -> float:
        """The value at position `place`: the inverse of `place`."""
        return 10.0**place if self.log else place


@dataclass(frozen=True, slots=True)
class _PlotArea:
    """The picture's extent, in the axes' measures, and its size in dots."""

    left: float
    right: float
    low: float
    high: float
    columns: int
    rows: int

    def dot(self, x: float, y: float) -> tuple[int, int]:
        """Column and row of a point, row 0 at the top."""
        across = (x - self.left) / (self.right - self.left)
        up = (y - self.low) / (self.high - self.low)
        return round(across * (self.columns - 1)), round((1 - up) * (self.rows - 1))


def chart(series: Sequence[Series], x: Axis, y: Axis, to: Screen | None = None, *, rows: int = 14) -> str:
    """Draw `series` in one frame, later ones over earlier ones; empty text when there is no finite point.

    Points that an axis cannot hold (not finite or absurdly large; not positive on a logarithmic one) are left out.
    """
    paper = to or screen()
    placed = [
        (s, [(x.place(a), y.place(b)) for a, b in s.points if _drawable(a, x) and _drawable(b, y)]) for s in series
    ]
    every = [point for _, points in placed for point in points]
    if not every:
        return ""
    (left, right), (low, high) = _extent([p[0] for p in every], x), _extent([p[1] for p in every], y)
    ticks = [paper.spell(y.text(y.value(v))) for v in (high, (low + high) / 2, low)]
    margin = max(map(len, ticks))
    columns = max(paper.columns - margin - 4, 20)
    fine = (2, 4) if paper.unicode else (1, 1)
    frame = _PlotArea(left, right, low, high, columns * fine[0], rows * fine[1])
    cells = _cells(placed, frame, fine, paper)
    labels = {0: ticks[0], (rows - 1) // 2: ticks[1], rows - 1: ticks[2]}
    lines = [plain_text(y.label)]
    for row in range(rows):
        body = "".join(cells.get((column, row), " ") for column in range(columns)).rstrip()
        lines.append(f"{labels.get(row, '').rjust(margin)} │{body}")
    lines.append(f"{' ' * margin} └{'─' * columns}")
    lines.append(" " * (margin + 2) + _ruler(x, left, right, columns, paper))
    lines.append(" " * (margin + 2) + "   ".join([plain_text(x.label), *_legend(series, paper)]))
    return paper.verbatim("\n".join(lines))


def _drawable(value: float, axis: Axis) -> bool:
    return abs(value) < _LARGEST and (value > 0 or not axis.log)


def _extent(values: list[float], axis: Axis) -> tuple[float, float]:
    """Lowest and highest value, set apart when they are one."""
    low, high = min(values), max(values)
    if high - low <= max(1e-12 * max(abs(low), abs(high)), 1e-300):
        spread = 0.5 if axis.log else max(abs(low) * 0.5, 1e-9)
        return low - spread, high + spread
    return low, high


def _mark(series: Series, paper: Screen) -> str:
    return paper.spell(series.mark) or ("" if paper.unicode else ".")


def _cells(
    placed: Sequence[tuple[Series, list[tuple[float, float]]]], frame: _PlotArea, fine: tuple[int, int], paper: Screen
) -> dict[tuple[int, int], str]:
    """The characters of the picture by (column, row)."""
    cells: dict[tuple[int, int], str] = {}
    for index, (one, points) in enumerate(placed):
        color = _COLORS[min(index, len(_COLORS) - 1)]
        dots = [frame.dot(*point) for point in points]
        lit: dict[tuple[int, int], int] = {}
        for across, down in _line_dots(dots) if one.line else dots:
            column, row = across // fine[0], down // fine[1]
            lit[column, row] = lit.get((column, row), 0) | _DOTS[down % fine[1]][across % fine[0]]
        for place, bits in lit.items():
            cells[place] = paper.paint(chr(_BRAILLE + bits) if paper.unicode else ".", color)
        for across, down in dots if _mark(one, paper) else []:
            cells[across // fine[0], down // fine[1]] = paper.paint(_mark(one, paper), color)
    return cells


def _line_dots(dots: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Every dot on the straight lines between neighbours."""
    yield from dots[:1]
    for (x0, y0), (x1, y1) in pairwise(dots):
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for step in range(1, steps + 1):
            yield round(x0 + (x1 - x0) * step / steps), round(y0 + (y1 - y0) * step / steps)


def _ruler(x: Axis, left: float, right: float, columns: int, paper: Screen) -> str:
    """The figures under the x axis: its ends and its middle."""
    first, middle, end = (paper.spell(x.text(x.value(v))) for v in (left, (left + right) / 2, right))
    line = first.ljust(columns // 2 - len(middle) // 2)
    line = (line if len(line) > len(first) or len(line) < columns // 2 else first + " ") + middle
    return line + end.rjust(max(columns - len(line), len(end) + 1))


def _legend(series: Sequence[Series], paper: Screen) -> list[str]:
    """One entry for each named series: its mark and its name."""
    return [
        f"{paper.paint(_mark(one, paper) or '⠂', _COLORS[min(index, len(_COLORS) - 1)])} {plain_text(one.name)}"
        for index, one in enumerate(series)
        if one.name
    ]
