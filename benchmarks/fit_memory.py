"""Fit the few constants of the memory of training stacks to benchmarks/truth/memory.csv, leaving each source out.

python benchmarks/fit_memory.py            report the best point of the grid and its errors
python benchmarks/fit_memory.py --write    write the values
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

import fitting
from flopwise.fitting.memory import grid
from flopwise.fitting.robust import group_lines


def main() -> None:
    """Fit, report, write."""
    given = fitting.parser(__doc__).parse_args()
    found = grid(*fitting.published_rows("memory"))
    fitting.show_values(found.values())
    groups: dict[str, list[int]] = defaultdict(list)
    for index, source in enumerate(found.sources):
        groups["all"].append(index)
        groups[source].append(index)
    columns = {"plain": found.errors[found.best()], "source out": found.left_out()}
    print(*group_lines(groups, {name: np.log1p(errors) for name, errors in columns.items()}), sep="\n")
    if given.write:
        fitting.write(found.values(), "fit_memory.py", f"{len(found.ids)} published peaks")


if __name__ == "__main__":
    main()
