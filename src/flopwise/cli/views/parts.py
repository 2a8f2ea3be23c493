"""What several answers have in common: rules of thumb, assumptions, shares of a whole, provenance, prices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli import options
from flopwise.cli.jsonout import picked
from flopwise.cli.render import Screen, bars, heading, table

if TYPE_CHECKING:
    from flopwise.api.memory import MemoryAnswer
    from flopwise.api.serve import ServeAnswer
    from flopwise.api.train import TrainAnswer
    from flopwise.cost.quick import QuickFormula
    from flopwise.provenance import Figure


def write_answer(
    answer: TrainAnswer | ServeAnswer | MemoryAnswer,
    document: Callable[[Any], dict[str, Any]],
    lines: Callable[[Any, Screen], Iterator[str]],
    *,
    explained: bool,
) -> None:
    """Write the answer as JSON or as lines, with the tree of its figures where that was asked for."""

    def text(paper: Screen) -> Iterator[str]:
        from flopwise.api.explain import figure_of

        yield from lines(answer, paper)
        if explained:
            yield tree((figure_of(answer),), paper)

    def plain() -> dict[str, Any]:
        if not explained:
            return document(answer)
        from flopwise.api.explain import figure_of
        from flopwise.provenance import to_json

        return document(answer) | {"provenance": [to_json(figure_of(answer))]}

    options.answer(plain, text)


def quick(rules: Iterable[QuickFormula]) -> list[dict[str, Any]]:
    """Rules of thumb as JSON."""
    return [picked(rule, "name formula unit value estimate") | {"error": rule.error_frac} for rule in rules]


def quick_table(rules: Sequence[QuickFormula], paper: Screen) -> str:
    """The rules of thumb beside the estimate."""
    from flopwise.provenance import Figure, format_value

    def shown(value: float | None, unit: str) -> str | None:
        return None if value is None else format_value(Figure("x", value, unit, kind="given"))

    def signed(fraction: float | None) -> str | None:
        if fraction is None:
            return None
        return f"{fraction + 1:.0f} x" if fraction > 9 else f"{100 * fraction:+.0f} %"

    rows = [(r.name, r.formula, shown(r.value, r.unit), shown(r.estimate, r.unit), signed(r.error_frac)) for r in rules]
    return table(["rule of thumb", "formula", ">says", ">estimate", ">off by"], rows, paper) if rows else ""


def assumption_list(assumptions: Iterable[str]) -> str:
    """What was assumed, one a line; values that stand in for others, in one line together."""
    from flopwise.cost.rates import fold_assumptions

    lines = fold_assumptions(dict.fromkeys(assumptions))
    return bullets("Assumptions", lines) if lines else ""


def bullets(title: str, lines: Iterable[str]) -> str:
    """A line, and others below it."""
    return "\n".join([title, *(f"  - {line}" for line in lines)])


def shares(rows: Sequence[tuple[str, float]], text: Callable[[float], str], paper: Screen) -> str:
    """Bars of the parts of a whole; parts that are nothing are left out."""
    whole = sum(size for _, size in rows) or 1.0
    shown = [
        (name.replace("_", " "), size, f"{text(size)}  {100 * size / whole:5.1f} %") for name, size in rows if size > 0
    ]
    return bars(shown, paper)


def tree(figures: Iterable[Figure], paper: Screen, *, depth: int | None = None) -> str:
    """Where figures come from."""
    from flopwise.provenance import render_tree

    drawn = [render_tree(figure, width=paper.width, depth=depth, ascii_only=not paper.unicode) for figure in figures]
    return "\n\n".join([heading("Where the figures come from", paper), *drawn])


def between(low: float, high: float, text: Callable[[float], str]) -> str:
    """The ends of an interval, in parentheses."""
    return f"({text(low)} to {text(high)} in 8 of 10 cases)"


def price(value: float | None) -> str | None:
    """US dollars, or nothing where they are not known; small amounts to three digits."""
    if value is None:
        return None
    return f"${value:.3g}" if 0 < value < 0.01 else units.format_usd(value)


def per_million(usd_per_hour: float | None, each_per_s: float) -> float | None:
    """US dollars for a million of what comes at `each_per_s`."""
    return None if usd_per_hour is None or not each_per_s else usd_per_hour / (each_per_s * units.HOUR_S) * 1e6


def energy(joules: float | None) -> str | None:
    """Energy in watt-hours, small amounts in joules."""
    if joules is None:
        return None
    return f"{joules:,.3g} J" if joules < units.HOUR_S else units.format_joules(joules)
