"""Fit rates and fixed times of kernels and messages to benchmarks/truth/kernels.csv.

python benchmarks/fit_kernels.py                     report errors of the shipped calibration
python benchmarks/fit_kernels.py --write             refit, report, write
python benchmarks/fit_kernels.py --leave-out B200    refit without a GPU, report on it alone; `all`: each in turn
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial

import numpy as np

import fitting
from flopwise.fitting.kernels import CONSTANTS, KernelFit, fit_kernels, origin, without_gpu
from flopwise.fitting.robust import group_lines


def main() -> None:
    """Fit, report, write."""
    options = fitting.parser(__doc__)
    options.add_argument("--descents", type=int, default=1, help="all but the first from shaken values")
    options.add_argument("--leave-out", metavar="GPU")
    given = options.parse_args()
    rows, facts = fitting.published_rows("kernels")
    begin = {c: c.prior if given.fresh else c.present_value(facts) for c in CONSTANTS}
    if given.leave_out:
        gpus = sorted({row["gpu"] for row in rows}) if given.leave_out == "all" else [given.leave_out]
        predicted = {i: s for gpu in gpus for i, s in without_gpu(rows, facts, gpu, given.descents).items()}
    else:
        found = KernelFit(rows, facts, begin)
        if given.write:
            found = fit_kernels(rows, facts, begin, descents=given.descents)
            what = f"{len(rows)} published kernels and collectives (aiconfigurator, vidur)"
            fitting.write(found.values, "fit_kernels.py", partial(origin, rows=what))
        predicted = found.predicted
    errors, groups = [], defaultdict(list)
    for place, (index, seconds) in enumerate(predicted.items()):
        row = rows[index]
        errors.append(np.log(seconds / float(row["seconds"])))
        for name in ("all", row["op"], row["gpu"], f"{row['op']} {row['dtype']}", f"{row['op']} {row['gpu']}",
                     row["library"], f"{row['op']} {row['library']}"):  # fmt: skip
            groups[name].append(place)
    print(*group_lines(groups, {"left out" if given.leave_out else "plain": np.array(errors)}), sep="\n")


if __name__ == "__main__":
    main()
