"""`flopwise runs compare`: runs against each other and against their plans."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.cli import options
from flopwise.cli.charts import Axis, Series, chart
from flopwise.cli.options import flags
from flopwise.cli.render import Screen, heading, table
from flopwise.cli.runs.lines import SHORT_ID, runs_line
from flopwise.options import name
from flopwise.records.spec import StoreSpec

if TYPE_CHECKING:
    from flopwise.records.comparison import Comparison

MARKS = "ABCDEFGH"
DRAWN = ("step_s", "loss", "e2e_s")
"""Metrics of which a chart is drawn in the terminal."""


@options.command(
    "compare",
    "flopwise runs compare pretrain-tiny serve-tiny",
    "flopwise runs compare pretrain-tiny serve-tiny -o build/runs.html",
    work="comparing runs",
)
@options.argument("runs", name("run", 4096), nargs=-1)
@options.page_flag
@flags(StoreSpec)
def command(*, runs: tuple[str, ...], output: Path | None, store: str | None) -> None:
    """Runs compared with each other and with their estimates.

    RUNS are ids, their first digits, or names; each is compared with the first. The answer has the settings that
    differ, and each figure side by side (medians of steady steps, means over requests) with the relative difference and
    whether it exceeds the noise of both (95 %, by a block bootstrap).
    """
    from flopwise.records.reports import compare_runs

    comparison = compare_runs(runs, store=store, page=output)
    first = runs_line("show", comparison.runs[0].run.run_id[:SHORT_ID], store=store)
    options.answer(comparison, _lines, document, further={"The first run against its estimate": first})


def document(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON."""
    return {
        "runs": [{"run_id": one.run.run_id, "name": one.run.name} for one in comparison.runs],
        "settings": {key: list(row) for key, row in comparison.settings.items()},
        "figures": [
            {
                "metric": one.metric,
                "values": [None if level is None else level.value for level in one.levels],
                "noise": [None if level is None else level.interval for level in one.levels],
                "against_first": list(one.against),
                "beyond_noise": list(one.sure),
                "against_plan": list(one.planned),
            }
            for one in comparison.contrasts
        ],
    }


def _lines(comparison: Comparison, paper: Screen) -> Iterator[str]:
    from flopwise.records.page import chart_points, contrast_cells, contrast_heads, figure_text

    names = [one.run.name for one in comparison.runs]
    first = comparison.contrasts[0] if comparison.contrasts else None
    yield heading(f"{len(names)} runs, against {names[0]}", paper)
    if first is None:
        yield "No metric was measured in any of them."
    yield table(contrast_heads(names), [contrast_cells(one) for one in comparison.contrasts], paper)
    yield heading("Settings that differ", paper)
    rows = [(key, *row) for key, row in comparison.settings.items()]
    yield table(["setting", *names], rows, paper) if rows else "None known."
    for metric in DRAWN:
        drawn = [(one.run.name, chart_points(one, metric)) for one in comparison.runs if metric in one.series]
        series = [
            Series(title, points, mark=MARKS[number % len(MARKS)], line=True)
            for number, (title, points) in enumerate(drawn)
            if len(points) > 1
        ]
        if series:
            yield heading(metric, paper)
            yield chart(series, Axis("step"), Axis(metric, partial(figure_text, metric)), paper, rows=10)
