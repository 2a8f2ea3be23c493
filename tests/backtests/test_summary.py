"""The figures of a backtest, against arithmetic done by hand."""

from __future__ import annotations

import pytest

from flopwise.backtests.kinds import KINDS
from flopwise.backtests.prediction import Prediction
from flopwise.backtests.run import Backtest
from flopwise.backtests.summary import reasons, summarize, worst


def _row(name: str, measured: float | None, predicted: float) -> Prediction:
    low, high = 0.9 * predicted, 1.2 * predicted
    return Prediction(id=name, unit="s", measured=measured, predicted=predicted, low=low, high=high)


ROWS = [
    _row("a", 10.0, 11.0),
    _row("b", 10.0, 8.0),
    _row("c", 10.0, 40.0),
    _row("d", None, 5.0),
    Prediction(id="e", unit="s", skipped="why"),
]


def test_errors_bias_and_coverage_are_those_of_the_rows_that_were_measured() -> None:
    found = summarize(ROWS)
    assert (found.rows, found.predicted_rows, found.skipped_rows) == (5, 4, 1)
    assert found.median_abs_error == pytest.approx(0.2)  # of 0.1, 0.2, 3.0
    assert found.p90_abs_error == pytest.approx(0.2 + 0.8 * 2.8)
    assert found.bias == pytest.approx(0.1)  # of -0.2, 0.1, 3.0
    assert found.coverage == pytest.approx(1 / 3)  # a: 9.9 <= 10; b: 10 > 9.6; c: 36 > 10


def test_nothing_predicted_has_no_figures() -> None:
    found = summarize([Prediction(id="e", unit="s", skipped="why")])
    assert (found.median_abs_error, found.p90_abs_error, found.bias, found.coverage) == (None, None, None, None)


def test_rows_that_nobody_measured_are_no_success() -> None:
    kind = KINDS["memory"]
    bare = Backtest(kind=kind, predictions=(_row("d", None, 5.0),), rows=({},), columns=())
    assert bare.verdict == "1 of 1 row predicted, none of them measured: their errors need the column peak_bytes."
    some = Backtest(kind=kind, predictions=(ROWS[0], ROWS[3]), rows=({}, {}), columns=())
    assert some.verdict.startswith("2 of 2 rows predicted, 1 of them measured: median error 10.0 %")


def test_the_worst_are_worst_as_a_ratio_and_the_reasons_are_counted() -> None:
    far = [_row("half", 10.0, 4.0), _row("double", 10.0, 20.0)]
    assert [p.id for p in worst([*ROWS, *far], 3)] == ["c", "half", "double"]
    refused = [Prediction(id=name, unit="s", skipped=why) for name, why in (("x", "b"), ("y", "a"), ("z", "b"))]
    assert reasons([*refused, *far]) == [("b", 2), ("a", 1)]
