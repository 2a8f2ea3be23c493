"""What the accuracy scripts share: the files of a folder of measurements, their backtests, classes and sources."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flopwise.api.backtest import backtest
from flopwise.backtests.prediction import Prediction
from flopwise.backtests.run import Backtest, Row

FILES = {
    "weights": "weights_memory.csv",
    "memory": "training_memory.csv",
    "kernels": "kernels.csv",
    "training": "training_throughput.csv",
    "gpu-hours": "training_gpu_hours.csv",
    "serving": "serving.csv",
    "io": "io_dlio.csv",
}
"""The file of each kind in a folder of measurements."""
LEFT_OUT = {"training": "training_left_out.csv", "gpu-hours": "gpu_hours_left_out.csv"}
"""By kind, the file beside this one with predicted / measured - 1 under constants that have not seen a row's source."""
MIXTURE_SHARE = 0.9
"""A model that uses less than this share of its parameters for a token is a mixture."""


@dataclass(frozen=True, slots=True)
class Case:
    """One prediction with its row."""

    kind: str
    prediction: Prediction
    row: Row

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
        names = ("gpu",) if self.kind == "kernels" else ("source_key", "source")
        return next((self.row[n] for n in names if self.row.get(n)), "")


def unseen_errors(kind: str) -> dict[str, float]:
    """Errors of rows by constants that have not seen their source; empty where none were fitted."""
    path = Path(__file__).parent / LEFT_OUT.get(kind, "")
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as lines:
        return {row["id"]: float(row["error"]) for row in csv.DictReader(lines)}


def backtests(folder: Path) -> Iterator[Backtest]:
    """A backtest of every file that the folder has."""
    for kind, name in FILES.items():
        if (folder / name).is_file():
            yield backtest(kind, folder / name)


def cases(done: Backtest) -> list[Case]:
    """All predictions of one backtest with their rows."""
    return [Case(done.kind.name, p, r) for p, r in zip(done.predictions, done.rows, strict=True)]
