"""Fit the constants of a training step to benchmarks/truth/training.csv; each source is left out in turn.

python benchmarks/fit_training.py            report errors, plain and with each source left out
python benchmarks/fit_training.py --write    write the values, and the errors of left-out sources
"""

from __future__ import annotations

import fitting
from flopwise.fitting.constants import start
from flopwise.fitting.robust import error_text, fit, group_lines
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
    unseen = found.left_out([run.source for run in model.runs])
    print(*group_lines(model.groups(), {"plain": found.errors, "source out": unseen}), sep="\n")
    if given.write:
        fitting.write(found.values, "fit_training.py", f"{len(model.runs)} published training runs")
        fitting.write_left_out("training", [run.id for run in model.runs], {"error": unseen})


if __name__ == "__main__":
    main()
