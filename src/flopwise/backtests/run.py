"""One backtest: every row of a measurement file predicted and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flopwise.backtests.kinds import Kind
from flopwise.backtests.prediction import Prediction
from flopwise.backtests.summary import Summary, summarize
from flopwise.errors import UnknownNameError

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtest:
    """All predictions for a file, each with the row it belongs to."""

    kind: Kind
    predictions: tuple[Prediction, ...]
    rows: tuple[Row, ...]  # the row of each prediction, parallel to `predictions`
    columns: tuple[str, ...]

    @property
    def summary(self) -> Summary:
        """The figures of all predictions."""
        return summarize(self.predictions)

    @property
    def has_quantities(self) -> bool:
        """Whether a row has several quantities, which cannot be averaged."""
        return any(p.quantity for p in self.predictions) and self.kind.name == "serving"

    def grouped(self, names: Sequence[str]) -> dict[tuple[str, ...], Summary]:
        """Figures by the values of columns, and by quantity where rows have several; sorted.

        Raises:
            UnknownNameError: the file has no such column.
        """
        for name in names:
            if name not in self.columns:
                raise UnknownNameError("column", name, self.columns, f"the file has {', '.join(self.columns)}")
        groups: dict[tuple[str, ...], list[Prediction]] = {}
        for prediction, row in zip(self.predictions, self.rows, strict=True):
            key = tuple(row.get(name, "") for name in names)
            groups.setdefault((*key, prediction.quantity) if self.has_quantities else key, []).append(prediction)
        return {key: summarize(held) for key, held in sorted(groups.items())}

    def source_column(self) -> tuple[str, ...]:
        """The column that says where rows are from; none where the file has no such column."""
        return next(((name,) for name in self.kind.source if name in self.columns), ())

    def class_columns(self) -> tuple[str, ...]:
        """The columns of this kind's classes that the file has."""
        return tuple(name for name in self.kind.classes if name in self.columns)


def run_backtest(
    kind: Kind, rows: Iterable[Row], facts: Facts, progress: Callable[[float, float | None], None] | None = None
) -> Backtest:
    """Predict every row; `progress` is told how many are done."""
    held = list(rows)
    predict = kind.predictor(facts)
    predictions: list[Prediction] = []
    owners: list[Row] = []
    for done, row in enumerate(held, start=1):
        found = predict(row)
        predictions.extend(found)
        owners.extend(row for _ in found)
        if progress is not None:
            progress(done, len(held))
    columns = tuple(held[0]) if held else ()
    return Backtest(kind=kind, predictions=tuple(predictions), rows=tuple(owners), columns=columns)
