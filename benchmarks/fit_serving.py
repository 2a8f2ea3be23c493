"""Fit the constants of serving engines to benchmarks/truth/serving.csv; each source and each GPU is left out in turn.

python benchmarks/fit_serving.py            report errors: plain, with each source and each GPU left out
python benchmarks/fit_serving.py --write    write the values, and the errors of left-out sources and GPUs
"""

from __future__ import annotations

import fitting
from flopwise.fitting.constants import start
from flopwise.fitting.robust import error_text, fit, group_lines
from flopwise.fitting.serving import ROUNDS, ServingModel, loads


def main() -> None:
    """Fit, report, write."""
    given = fitting.parser(__doc__).parse_args()
    rows, facts = fitting.published_rows("serving")
    model = ServingModel(loads(rows, facts), facts)
    point = start(model.constants, facts, fresh=given.fresh)
    print(f"{len(model.figures)} figures, {len(model.constants)} constants; start {error_text(model.errors(point))}")
    found = fit(model, point, ROUNDS, tell=print)
    fitting.show_values(found.values)
    unseen = {
        "source_out": found.left_out([load.source for load, _ in model.figures]),
        "GPU_out": found.left_out([load.job.cluster.accelerator.name for load, _ in model.figures]),
    }
    print(*group_lines(model.groups(), {"plain": found.errors, **unseen}), sep="\n")
    if given.write:
        fitting.write(found.values, "fit_serving.py", "published serving results")
        fitting.write_left_out("serving", [f"{load.id},{quantity}" for load, quantity in model.figures], unseen)


if __name__ == "__main__":
    main()
