"""One backtest: every row of a measurement file predicted and compared, as a whole and by group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from flopwise.backtests.columns import COLUMNS, Origin, Scaled, our_columns
from flopwise.backtests.kinds import MeasurementKind
from flopwise.backtests.prediction import Prediction, Row
from flopwise.backtests.summary import Errors, summarize
from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.catalog import Facts
from flopwise.facts.rows import check_header, each_row
from flopwise.pictures import Picture, Point, PointPicture
from flopwise.results import Result, attributes
from flopwise.units import format_change, format_percent
from flopwise.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Backtest(Result):
    """All predictions for a file, each with its row."""

    kind: MeasurementKind
    predictions: tuple[Prediction, ...]
    rows: tuple[Row, ...]  # the row of each prediction, parallel to `predictions`: the file's columns beside ours
    columns: tuple[str, ...]  # the file's, and those of ours that are filled in

    table: ClassVar[str] = "rows"

    @property
    def verdict(self) -> str:
        """The number of predicted rows and their errors, in a sentence."""
        s = self.summary
        text = f"{s.predicted_rows:,} of {s.rows:,} {'row' if s.rows == 1 else 'rows'} predicted"
        predicted = [p for p in self.predictions if p.predicted is not None]
        if predicted and not any(p.measured for p in predicted):
            columns = " or ".join(self.kind.measured)
            return f"{text}, none of them measured: their errors need the column {columns}."
        if s.median_abs_error is None or s.p90_abs_error is None or s.bias is None:
            return f"{text}."
        compared = sum(p.error is not None for p in predicted)
        text += f", {compared:,} of them measured" if compared < len(predicted) else ""
        errors = f"median error {format_percent(s.median_abs_error)}, 90th percentile {format_percent(s.p90_abs_error)}"
        bias = format_change(s.bias + 1, 1)
        inside = "" if s.coverage is None else f", {format_percent(s.coverage)} inside the 80 % interval"
        return f"{text}: {errors}, bias {bias}{inside}."

    def document(self) -> dict[str, Any]:
        """The backtest by key."""
        names = "id quantity measured predicted low high unit error skipped band=band.name"
        rows = [attributes(p, names) | {"quantity": p.quantity or None} for p in self.predictions]
        return {"kind": self.kind.name, "rows": rows, "summary": self.summary}

    def picture(self) -> Picture:
        """Predicted against measured values, on logarithmic axes."""
        series: dict[str, list[Point]] = {}
        for p in self.predictions:
            if p.measured and p.predicted:
                series.setdefault(p.quantity or self.kind.name, []).append((p.measured, p.predicted))
        if not series:
            raise SpecError("there is nothing to plot: no row was predicted")
        unit = next(p.unit for p in self.predictions if p.measured and p.predicted)
        return PointPicture(title=self.verdict, x=f"measured, {unit}", y=f"predicted, {unit}", series=series, log=True)

    @property
    def summary(self) -> Errors:
        """The figures of all predictions."""
        return summarize(self.predictions)

    @property
    def has_quantities(self) -> bool:
        """True if a row has several quantities, which cannot be averaged."""
        return any(p.quantity for p in self.predictions) and self.kind.name == "serving"

    def groups(self, names: Sequence[str]) -> dict[tuple[str, ...], Errors]:
        """Figures by the values of columns, and by quantity where rows have several; sorted.

        Raises: UnknownNameError: the file has no such column.
        """
        for name in names:
            if name not in self.columns:
                raise UnknownNameError("column", name, self.columns, f"the file has {', '.join(self.columns)}")
        groups: dict[tuple[str, ...], list[Prediction]] = {}
        for prediction, row in zip(self.predictions, self.rows, strict=True):
            key = tuple(row.get(name, "") for name in names)
            groups.setdefault((*key, prediction.quantity) if self.has_quantities else key, []).append(prediction)
        return {key: summarize(members) for key, members in sorted(groups.items())}


def printed_rows(kind: MeasurementKind, file: Path) -> list[Row]:
    """The rows of a measurement file as they are: with our columns, or with those of published tables.

    A `config` (of the model, a path beside the file) becomes a path from here.

    Raises: SpecError: the file cannot be read or lacks a column that the kind needs.
    """
    rows: list[Row] = [*each_row(file, ())]
    check_header(file, tuple(rows[0]), [_present_name(COLUMNS[kind.name][c], c, rows[0]) for c in kind.needed])
    return [{**row, "config": str(file.parent / row["config"])} if row.get("config") else row for row in rows]


def _present_name(origin: Origin, column: str, row: Row) -> str:
    """The name under which a row has a column of ours; ours where it has it under none."""
    published = origin if isinstance(origin, str) else origin.column if isinstance(origin, Scaled) else column
    return published if column not in row and published in row else column


def measurements(kind: MeasurementKind, file: Path) -> list[Row]:
    """The rows of a measurement file in our columns. Raises SpecError: as `printed_rows`."""
    return [our_columns(kind.name, row) for row in printed_rows(kind, file)]


def run_backtest(
    kind: MeasurementKind,
    rows: Iterable[Row],
    facts: Facts,
    progress: Callable[[float, float | None], None] | None = None,
) -> Backtest:
    """Predict every row; `progress` receives the number of rows done."""
    printed = list(rows)
    ours = [our_columns(kind.name, row) for row in printed]
    predict = kind.predictor(facts)
    predictions: list[Prediction] = []
    owners: list[Row] = []
    for done, (row, own) in enumerate(zip(printed, ours, strict=True), start=1):
        of_row = predict(own)
        predictions.extend(of_row)
        owners.extend({**own, **row} for _ in of_row)
        if progress is not None:
            progress(done, len(printed))
    filled = dict.fromkeys(name for own in ours for name, text in own.items() if text)
    columns = tuple(dict.fromkeys((*(printed[0] if printed else ()), *filled)))
    return Backtest(kind=kind, predictions=tuple(predictions), rows=tuple(owners), columns=columns)
