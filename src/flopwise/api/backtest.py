"""Accuracy of the predictions: published or own measurements, compared with flopwise's predictions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flopwise.backtests.kinds import kind_of
from flopwise.backtests.run import Backtest, printed_rows, run_backtest
from flopwise.facts.catalog import load_facts
from flopwise.keywords import takes


@takes()
def backtest(
    kind: str,
    file: Path | str,
    *,
    facts: Path | str | None = None,
    calibration: str | None = None,
    progress: Callable[[float, float | None], None] | None = None,
) -> Backtest:
    """Predict every row of a measurement file: errors, and how often the intervals cover.

    What a row measured is never used to predict it.

    Args:
        kind: weights, memory, kernels, training, gpu-hours, io or serving.
        file: a CSV with the columns of that kind.
        progress: called with (rows done, rows in all).

    Raises:
        SpecError: the file cannot be read or lacks a column that the kind needs.
        UnknownNameError: there is no such kind.

    Examples:
        >>> import flopwise
        >>> done = flopwise.backtest("training", "examples/measured-training.csv")
        >>> print(done.kind.name, len(done.predictions))
        training ...
    """
    known = kind_of(kind)
    return run_backtest(known, printed_rows(known, Path(file)), load_facts(facts, calibration), progress)
