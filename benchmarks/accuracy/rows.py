"""What the accuracy scripts share: predictions for benchmarks/truth, and errors of constants on unseen sources."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flopwise.api.backtest import backtest
from flopwise.backtests.prediction import Prediction, Row

TRUTH = Path(__file__).resolve().parents[1] / "truth"
TRUTH_DATE = "2026-12-01"
"""Day of the newest rows in it."""
KINDS = ("weights", "memory", "kernels", "training", "gpu-hours", "serving", "io")
"""The kinds of measurements in the order of the report; each has a file of that name."""
LEFT_OUT = {
    "kernels": "kernels_left_out.csv",
    "training": "training_left_out.csv",
    "gpu-hours": "gpu_hours_left_out.csv",
    "serving": "serving_left_out.csv",
}
"""By kind, the file beside this one with predicted / measured - 1 under constants that have not seen a row's source, or
its publisher; of kernels its GPU."""
MIXTURE_SHARE = 0.9
"""A model that uses less than this share of its parameters for a token is a mixture."""


@dataclass(frozen=True, slots=True)
class Case:
    """One prediction with its row."""

    kind: str
    prediction: Prediction
    row: Row

    @property
    def key(self) -> tuple[str, str]:
        """Row and quantity."""
        return self.prediction.id, self.prediction.quantity

    @property
    def ratio(self) -> float | None:
        """Measured / predicted, or None."""
        p = self.prediction
        if not p.measured or not p.predicted or not np.isfinite(p.predicted):
            return None
        return p.measured / p.predicted

    @property
    def source(self) -> str:
        """Where the row is from; a kernel's device stands for its source, as all have one publisher."""
        names = ("gpu",) if self.kind == "kernels" else ("study", "source")
        return next((self.row[n] for n in names if self.row.get(n)), "")

    @property
    def publisher(self) -> str:
        """Whose rows are left out together."""
        return self.row.get("publisher") or self.source


def unseen_errors(kind: str, what: str = "source") -> dict[tuple[str, str], float]:
    """Errors by row and quantity of constants that have not seen its source (`what`: GPU); empty without a fit."""
    path = Path(__file__).parent / LEFT_OUT.get(kind, "")
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    column = f"{what}_out" if rows and f"{what}_out" in rows[0] else "error"
    return {(row["id"], row.get("quantity", "")): float(row[column]) for row in rows if column in row}


def cases(kind: str) -> list[Case]:
    """All predictions for the measurements of a kind, with their rows."""
    done = backtest(kind, TRUTH / f"{kind}.csv")
    return [Case(kind, p, r) for p, r in zip(done.predictions, done.rows, strict=True)]
