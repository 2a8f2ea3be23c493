"""The few fitted constants of the memory of training stacks, from published peaks: the best point of a small grid.

They are the bytes a token and vocabulary entry at the loss, in eager code and under a compiler, and what the caching
allocator reserves beyond what tensors take; all stacks of a kind share them. The rest follows from the software.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from flopwise.backtests.memory import predict_row, reading_bytes, row_memory, row_stack, usual_row
from flopwise.backtests.prediction import Row
from flopwise.facts.catalog import Facts
from flopwise.facts.software import TrainingStack
from flopwise.fitting.constants import Array, Constant, Values, moved_records
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
DOCUMENTED = (
    ("weights_dtype", "master_weights", "grad_dtype", "states_dtype"),
    ("pipeline_gathered",),
    ("activations", "loss_chunks"),
    ("hf_modules", "lasting_gradients", "fp32_loss", "selective", "zero", "grad_sync", "degrees"),
)
"""Columns that anyone can read in a stack's documentation, those that decide most bytes first: how wide states are,
whose FSDP and allocator it has, what its kernels keep, the rest."""
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


TAKEN_BACK: dict[str, float | bool] = {
    "loss_bytes": 8.0, "fragmentation_frac": 0.0, "buffer_bytes": 0.0, "step_copies": 0.0, "gathered_units": 0.0,
    "sharded_loss_bytes": 0.0, "quantise_bytes": 0.0, "fp32_loss": False, "lasting_gradients": False,
    "frozen_stay_gathered": False, "quantised_keeps_input": False, "fp32_ends": False, "own_head": False,
    "joint_dropout": False, "root_gathered": False, "fp32_stream": False, "holds_inputs": False, "bucket_copies": 0.0,
    "chunks_keep_bytes": 2.0,
}  # fmt: skip
"""Columns of stacks that decide memory, each with what it is where software does without it."""
MOVED_BY = 0.01
"""A row whose prediction changes by more depends on a constant."""


@dataclass(frozen=True, slots=True)
class Dependence:
    """The rows that depend on a constant: number by publisher, and the change of their median error."""

    constant: str
    rows: Mapping[str, int]
    before: float  # median absolute error of these rows
    after: float  # of these rows, with the constant taken back

    @property
    def alone(self) -> bool:
        """True if a single publisher decides it."""
        return len(self.rows) == 1


def dependences(rows: Iterable[Row], facts: Facts) -> list[Dependence]:
    """The effect of each of `TAKEN_BACK` on the constants, those of most rows first; without those that move none.

    Source: the same prediction with the column taken back in all stacks. Assumes: what a row leaves open is usual.
    """
    usable = [usual_row(row) for row in rows if predict_row(row, facts).error is not None]
    measured = np.array([float(row["peak_bytes"]) for row in usable])
    publishers = [row.get("publisher") or row["study"] for row in usable]

    def predictions(known: Facts) -> Array:
        return np.array([reading_bytes(row, row_memory(row, known)) for row in usable])

    now, pairs = predictions(facts), []
    for name, value in TAKEN_BACK.items():
        stacks = {key: replace(stack, **{name: value}) for key, stack in facts.stacks.items()}  # type: ignore[arg-type]
        other = predictions(facts.with_tables(stacks=stacks))
        moved = np.abs(other / now - 1.0) > MOVED_BY
        if moved.any():
            errors = [float(np.median(np.abs(figures[moved] / measured[moved] - 1.0))) for figures in (now, other)]
            counts = Counter(publisher for publisher, hit in zip(publishers, moved, strict=True) if hit)
            pairs.append(Dependence(name, dict(counts.most_common()), *errors))
    return sorted(pairs, key=lambda one: -sum(one.rows.values()))


def software_of(stack: str) -> str:
    """The software whose versions and variants share a word of their names: DeepSpeed, else the first."""
    return "deepspeed" if "deepspeed" in stack else stack.partition("-")[0]


def nearest_stack(name: str, facts: Facts) -> str:
    """The stack of other software that has most documented columns in common; the first of equals."""
    own = facts.stacks[name]

    def alike(row: TrainingStack) -> tuple[int, ...]:
        return tuple(sum(getattr(row, c) == getattr(own, c) for c in columns) for columns in DOCUMENTED)

    return max((row for row in facts.stacks.values() if software_of(row.name) != software_of(name)), key=alike).name


def software_left_out(rows: Iterable[Row], facts: Facts) -> dict[str, float]:
    """By row, the error of a prediction with the nearest of other software in place of the row's own.

    Source: what a user has whose software no row was measured on.
    Assumes: documented columns of the software itself are not known either.
    """
    errors = {}
    for row in rows:
        other = nearest_stack(row_stack(row), facts)
        error = predict_row({**row, "software": other, "compiled": ""}, facts).error
        if error is not None:
            errors[row["id"]] = error
    return errors
