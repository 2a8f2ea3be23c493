"""The memory of training stacks, judged: the rows that a constant decides, and software that no row was measured on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from flopwise.backtests.memory import predict_row, reading_bytes, row_memory, row_stack, usual_row
from flopwise.backtests.prediction import Row
from flopwise.facts.catalog import Facts
from flopwise.facts.software import TrainingStack
from flopwise.fitting.robust import Array

DOCUMENTED = (
    ("weights_dtype", "master_weights", "grad_dtype", "states_dtype"),
    ("pipeline_gathered",),
    ("activations", "loss_chunks", "fused_adapters"),
    ("hf_modules", "lasting_gradients", "fp32_loss", "selective", "zero", "grad_sync", "degrees"),
)
"""Columns that anyone can read in a stack's documentation, those that decide most bytes first: how wide states are,
whose FSDP and allocator it has, what its kernels keep, the rest."""
TAKEN_BACK: dict[str, float | bool] = {
    "loss_bytes": 8.0, "fragmentation_frac": 0.0, "buffer_bytes": 0.0, "step_copies": 0.0, "gathered_units": 0.0,
    "sharded_loss_bytes": 0.0, "quantise_bytes": 0.0, "fp32_loss": False, "lasting_gradients": False,
    "frozen_stay_gathered": False, "quantised_keeps_input": False, "fp32_ends": False, "own_head": False,
    "joint_dropout": False, "root_gathered": False, "fp32_stream": False, "holds_inputs": False, "bucket_copies": 0.0,
    "chunks_keep_bytes": 2.0, "fused_adapters": False,
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
