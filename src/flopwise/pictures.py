"""Answers as pictures, drawn with matplotlib where it is installed: bars with a limit, and points on two axes."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flopwise.errors import SpecError
from flopwise.units import format_number
from flopwise.values import dataclass

BLUE, GREY, RED = "#2563eb", "#94a3b8", "#dc2626"
"""Colours of the main bars, of the others, and of limits."""
TITLE_COLUMNS = 90
MOST_BARS = 40
"""Rows that a bar chart of facts still shows legibly."""
Point = tuple[float, float]


class Picture:
    """A picture: `title` stands above; a figure for it alone is `height` inches high."""

    __slots__ = ()
    if TYPE_CHECKING:
        title: str

        @property
        def height(self) -> float:
            """Height of a figure with this picture alone, in inches."""

        def draw(self, axes: Any) -> None:
            """Draw on axes of matplotlib."""

    def plot(self, axes: Any = None) -> Any:
        """The axes with the picture: those of matplotlib that are given, else new ones.

        Raises: SpecError: matplotlib is not installed.
        """
        title, how = textwrap.fill(self.title, TITLE_COLUMNS), {"fontsize": "medium", "parse_math": False}
        if axes is not None:
            axes.set_title(title, loc="left", **how)
        else:
            try:
                pyplot = import_module("matplotlib.pyplot")
            except ImportError:
                raise SpecError("plot needs matplotlib: pip install matplotlib") from None
            figure, axes = pyplot.subplots(figsize=(8, self.height), layout="constrained")
            figure.suptitle(title, x=0.01, ha="left", **how)
        self.draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
        return axes


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPicture(Picture):
    """A bar for each name, the first at the top; `limit` is a line with its name."""

    title: str
    unit: str
    rows: Sequence[tuple[str, float]]
    limit: tuple[str, float] | None = None

    @property
    def height(self) -> float:
        """Height of a figure with this picture alone, in inches."""
        return 1.8 + 0.3 * len(self.rows)

    def draw(self, axes: Any) -> None:
        """Draw on axes of matplotlib."""
        names, sizes = [name for name, _ in self.rows], [size for _, size in self.rows]
        bars = axes.barh(names, sizes, color=BLUE)
        axes.bar_label(bars, labels=[f"{format_number(size)}" for size in sizes], padding=3)
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.set_xlabel(self.unit)
        for label in axes.get_yticklabels():
            label.set_parse_math(False)  # a dollar is a dollar
        if self.limit is not None:
            name, size = self.limit
            axes.axvline(size, color=RED, linestyle="--", label=f"{name}: {format_number(size, 4)} {self.unit}")
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PointPicture(Picture):
    """Named series of points, the first in front; those of `lines` are joined; `dots`: each point has one.

    `log`: both axes are logarithmic.
    """

    title: str
    x: str
    y: str
    series: Mapping[str, Sequence[Point]]
    lines: Sequence[str] = field(default=())
    log: bool = False
    dots: bool = True

    def draw(self, axes: Any) -> None:
        """Draw on axes of matplotlib."""
        marker = "o" if self.dots else "none"
        for number, (name, points) in enumerate(self.series.items()):
            across, up = [x for x, _ in points], [y for _, y in points]
            joined = {"linestyle": "-"} if name in self.lines else {"linestyle": "none"}
            color = BLUE if number == 0 else GREY if number == 1 else None
            axes.plot(across, up, marker=marker, label=name, color=color, zorder=10 - number, **joined)
        axes.set_xlabel(self.x)
        axes.set_ylabel(self.y)
        if self.log:
            axes.set_xscale("log")
            axes.set_yscale("log")
        for text in axes.legend().get_texts():
            text.set_parse_math(False)

    @property
    def height(self) -> float:
        """Height of a figure with this picture alone, in inches."""
        return 4.5
