"""Fit the few constants of the memory of training stacks to benchmarks/truth/memory.csv, leaving each source out.

python benchmarks/fit_memory.py            report the best point of the grid and its errors
python benchmarks/fit_memory.py --write    write the values

They are the bytes a token and vocabulary entry at the loss, in eager code and under a compiler, and what the caching
allocator reserves beyond what tensors take; all stacks of a kind share them. The rest follows from the software.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from functools import partial

import numpy as np

import fitting
from flopwise.backtests.memory import predict_row
from flopwise.backtests.prediction import Row
from flopwise.facts.catalog import Facts
from flopwise.fitting.deployment import moved_records
from flopwise.fitting.robust import Array, Constant, Values
from flopwise.values import dataclass

EAGER = (
    "hf-trainer",
    "hf-trainer-2026",
    "litgpt",
    "fsdp-eager",
    "torchtune-eager",
    "torchtune-2024",
    "deepspeed-zero3",
    "fsdp-fused",
)
COMPILED = ("fsdp-compile", "torchtune-compile", "fsdp-te")
GRID = ((10.0, 12.0, 14.0, 16.0), (8.0, 10.0, 12.0, 14.0), (0.03, 0.05, 0.08, 0.12))
LARGE = 0.4
"""An absolute error counts up to here."""
Point = tuple[float, ...]


@dataclass(frozen=True)
class MemoryGrid:
    """Relative errors of all rows that can be predicted, at every point."""

    constants: tuple[Constant, ...]
    ids: tuple[str, ...]
    sources: tuple[str, ...]
    errors: dict[Point, Array]

    def best(self, members: Array | slice = slice(None)) -> Point:
        """The point with the least mean error of `members`."""
        return min(self.errors, key=lambda point: np.minimum(np.abs(self.errors[point][members]), LARGE).mean())

    def values(self) -> Values:
        """The constants at the best point."""
        return dict(zip(self.constants, self.best(), strict=True))

    def left_out(self) -> Array:
        """Errors of every row at the best point of the other sources."""
        names = np.array(self.sources)
        unseen = np.empty(len(names))
        for name in dict.fromkeys(self.sources):
            unseen[names == name] = self.errors[self.best(names != name)][names == name]
        return unseen


def grid(rows: Iterable[Row], facts: Facts) -> MemoryGrid:
    """Predict every row at every point of the grid."""
    stack = partial(Constant, table="stacks")
    constants = (
        stack("loss_bytes", EAGER, 12.0, 10.0, 16.0),
        stack("loss_bytes", COMPILED, 10.0, 8.0, 14.0),
        stack("fragmentation_frac", tuple(facts.stacks), 0.05, 0.03, 0.12),
    )
    usable = [row for row in rows if predict_row(row, facts).error is not None]
    errors: dict[Point, Array] = {}
    for point in itertools.product(*GRID):
        values = dict(zip(constants, point, strict=True))
        moved = facts.with_tables(stacks=moved_records(facts.stacks, "stacks", values))
        errors[point] = np.array([predict_row(row, moved).error for row in usable], dtype=float)
    return MemoryGrid(constants, tuple(r["id"] for r in usable), tuple(r["study"] for r in usable), errors)


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
    print(*fitting.group_lines(groups, {name: np.log1p(errors) for name, errors in columns.items()}), sep="\n")
    if given.write:
        fitting.write(found.values(), "fit_memory.py", f"{len(found.ids)} published peaks")


if __name__ == "__main__":
    main()
