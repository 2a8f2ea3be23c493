"""`flopwise backtest`: predictions held against measurements."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli import options
from flopwise.cli.options import add, flags
from flopwise.cli.progress import Progress
from flopwise.cli.render import Screen, heading, known_text, table
from flopwise.facts.spec import SourceSpec
from flopwise.options import FILE, name

if TYPE_CHECKING:
    from flopwise.backtests.run import Backtest
    from flopwise.backtests.summary import Errors

WORST = 8
MOST_REASONS = 12
_FIGURES = (">rows", ">predicted", ">median error", ">90 %", ">bias", ">in the interval")


@options.command(
    "backtest",
    "flopwise backtest training examples/measured-training.csv",
    "flopwise backtest serving examples/measured-serving.csv --by tp",
    work="predicting",
)
@options.argument("kind")
@options.argument("file", FILE)
@add("--by", name("column"), "Split by this column of the file.", repeated=True)
@flags(SourceSpec, "facts calibration")
def command(*, kind: str, file: Path, by: tuple[str, ...], facts: Path | None, calibration: str | None) -> None:
    """Predictions for a measurement file: errors and coverage.

    KIND is weights, memory, kernels, training, gpu-hours, io or serving; FILE is a CSV with the columns of that kind.
    Rows that cannot be predicted are skipped with a reason. The interval should contain 80 % of the measurements.
    """
    from flopwise.api.backtest import backtest

    with Progress(f"predicting {kind}") as progress:
        done = backtest(kind, file, facts=facts, calibration=calibration, progress=progress)
    if not any(prediction.predicted is not None for prediction in done.predictions):
        further = {"Every row with the reason": shlex.join(["flopwise", "backtest", kind, str(file), "--json"])}
    elif kind in ("kernels", "training", "serving", "gpu-hours"):
        further = {"Constants fitted to these rows": shlex.join(["flopwise", "calibrate", str(file), "--dry-run"])}
    else:
        further = {"The errors of each model": shlex.join(["flopwise", "backtest", kind, str(file), "--by", "model"])}
    text, plain = lambda result, paper: _report(result, by, paper), lambda result: document(result, by)
    options.answer(done, text, plain, further=further)


def document(done: Backtest, by: tuple[str, ...] = ()) -> dict[str, Any]:
    """The backtest as the JSON that scripts rely on; with `by` the figures of each group, too."""
    rows = done.document()
    if by:
        names = (*by, "quantity") if done.has_quantities else by
        rows["groups"] = [
            {**dict(zip(names, key, strict=True)), **asdict(figures)} for key, figures in done.groups(by).items()
        ]
    return rows


def _report(done: Backtest, by: tuple[str, ...], paper: Screen) -> Iterator[str]:
    from flopwise.backtests.summary import reasons, worst

    sources = tuple(name for name in done.kind.source if name in done.columns)[:1]
    classes = tuple(name for name in done.kind.classes if name in done.columns)
    for names in [by] if by else [sources, classes]:
        if names:
            yield _groups(done, names, paper)
    far = worst(done.predictions, WORST)
    if far:
        yield heading("Largest errors", paper)
        yield table(
            ["row", "quantity", ">measured", ">predicted", ">10 %", ">90 %", "unit", ">error"],
            [
                (p.id, p.quantity, p.measured, p.predicted, p.low, p.high, p.unit, known_text(p.error, _signed_percent))
                for p in far
            ],
            paper,
        )
    missing = reasons(done.predictions)
    if missing:
        yield heading("Skipped", paper)
        yield table([">rows", "why"], [(count, why) for why, count in missing[:MOST_REASONS]], paper)
        if len(missing) > MOST_REASONS:
            yield f"and {len(missing) - MOST_REASONS} more reasons (--json has all)"


def _groups(done: Backtest, names: tuple[str, ...], paper: Screen) -> str:
    titles = (*names, "quantity") if done.has_quantities else names
    rows = [(*key, *_cells(figures)) for key, figures in done.groups(names).items()]
    return table([*titles, *_FIGURES], rows, paper)


def _cells(s: Errors) -> tuple[Any, ...]:
    return (
        s.rows, s.predicted_rows, known_text(s.median_abs_error, units.format_percent),
        known_text(s.p90_abs_error, units.format_percent), known_text(s.bias, _signed_percent),
        known_text(s.coverage, units.format_percent),
    )  # fmt: skip


def _signed_percent(value: float) -> str:
    return units.format_change(value + 1, 1)
