"""Fit the constants of a training step to benchmarks/truth/training.csv; each publisher is left out in turn.

python benchmarks/fit_training.py            report errors, plain and with each publisher left out
python benchmarks/fit_training.py --write    write the values, and the errors of left-out publishers
"""

from __future__ import annotations

import math

import numpy as np

import fitting
from flopwise.fitting.constants import start
from flopwise.fitting.robust import Fit, error_text, fit, group_lines
from flopwise.fitting.training import LEAST_GAIN, ROUNDS, TrainingModel, runs


def main() -> None:
    """Fit, report, write."""
    given = fitting.parser(__doc__).parse_args()
    rows, facts = fitting.published_rows("training")
    model = TrainingModel(runs(rows, facts), facts)
    point = start(model.constants, facts, fresh=given.fresh)
    print(f"{len(model.runs)} runs, {len(model.constants)} constants; start {error_text(model.errors(point))}")
    found = fit(model, point, ROUNDS, LEAST_GAIN, print)
    fitting.show_values(found.values)
    unseen = found.left_out([run.publisher for run in model.runs])
    print(*group_lines(model.groups(), {"plain": found.errors, "publisher out": unseen}), sep="\n")
    if given.write:
        fitting.write(found.values, "fit_training.py", f"{len(model.runs)} published training runs")
        (fitting.HERE / "accuracy" / "training_constants.csv").write_text(moved_text(found, model), encoding="utf-8")
        fitting.write_left_out("training", [run.id for run in model.runs], {"error": unseen})


FELT = 0.02
"""A constant moves a row where the logarithm of its error changes by this share of the constant's own."""


def moved_text(found: Fit, model: TrainingModel) -> str:
    """For each constant the rows and publishers that it moves, and where it goes without the weightiest of these."""
    publishers = np.array([run.publisher for run in model.runs])
    without = found.points_without(publishers.tolist())
    lines = ["constant,scopes,value,prior,rows,publishers,moved_most_by,value_without,change_percent"]
    for index, (constant, value) in enumerate(found.values.items()):
        felt = np.abs(found.slopes[:, index]) > FELT
        whose = sorted(set(publishers[felt].tolist()))
        moves = {name: float(point[index] - found.point[index]) for name, point in without.items() if name in whose}
        most = max(moves, key=lambda name: abs(moves[name]), default="")
        other = value * math.exp(moves.get(most, 0.0))
        cells = (
            constant.name, " ".join(constant.scopes), f"{value:.4g}", f"{constant.prior:.4g}", int(felt.sum()),
            " ".join(whose), most, f"{other:.4g}", f"{100 * (other / value - 1):+.0f}",
        )  # fmt: skip
        lines.append(",".join(map(str, cells)))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
