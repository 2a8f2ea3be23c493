"""What `flopwise runs show` says first: the verdict, the figures beside the plan, where the time goes, charts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from flopwise.cli.charts import Axis, Series, chart
from flopwise.cli.jsonout import attributes
from flopwise.cli.parts import bullets
from flopwise.cli.render import Screen, heading, table
from flopwise.units import format_seconds

if TYPE_CHECKING:
    from flopwise.api.run_reports import ExplainedRun

DRAWN = ("step_s", "loss", "ttft_s", "e2e_s")
"""Metrics of which a chart is drawn in the terminal."""


def explained_document(found: ExplainedRun) -> dict[str, Any]:
    """The explanation as JSON."""
    why, steady = found.explanation, found.measured.steady
    return {
        "verdict": why.verdict,
        "figures": [
            attributes(
                one,
                "metric measured=measured.value noise=measured.interval statistic=measured.statistic "
                "count=measured.count expected=expected.value low=expected.low high=expected.high difference place "
                "derived",
            )
            for one in why.outcomes
        ],
        "terms": [attributes(one, "name expected_s measured_s difference_s basis") for one in why.terms],
        "causes": list(why.causes),
        "steady": None
        if steady is None
        else attributes(steady, "warm_up_lines warm_up_s whole_s") | {"pauses": list(steady.pauses)},
        "notes": list(why.notes),
    }


def explained_blocks(found: ExplainedRun, paper: Screen) -> Iterator[str]:
    """The verdict, and what stands behind it."""
    from flopwise.records.page import OUTCOME_HEADS, chart_points, figure_text, outcome_cells

    why = found.explanation
    yield heading(why.verdict, paper)
    if why.terms:
        whole = sum(term.expected_s for term in why.terms)
        rows = [
            (t.name, format_seconds(t.expected_s), format_seconds(t.measured_s),
             f"{t.difference_s / whole:+.1%}".replace("%", " %"), t.basis)
            for t in why.terms
        ]  # fmt: skip
        yield heading(f"Where the time of a {'step' if found.measured.trains else 'request'} goes", paper)
        yield table(["term", ">expected", ">measured", ">of the whole", "how it is known"], rows, paper)
    if why.causes:
        yield bullets("Likely causes", [f"{c.name}: {c.evidence}; {c.lever}" for c in why.causes])
    yield heading("Steady figures" if found.measured.trains else "Figures", paper)
    yield table(OUTCOME_HEADS, [outcome_cells(one) for one in why.outcomes], paper)
    for metric in DRAWN:
        points = chart_points(found.measured, metric)
        if len(points) > 1:
            yield heading(f"{metric} over the run", paper)
            axis = Axis(metric, partial(figure_text, metric))
            across = Axis("step" if found.measured.trains else "request")
            yield chart([Series(metric, points, line=True)], across, axis, paper, rows=8)
    if why.notes:
        yield bullets("How this was found", why.notes)
