"""Memory of software that no row was measured on, by the nearest of other software."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flopwise.backtests.kinds import KINDS
from flopwise.backtests.run import measurements
from flopwise.fitting.memory import nearest_stack, software_left_out, software_of
from named import FACTS

ROWS = Path(__file__).parents[2] / "benchmarks/truth/memory.csv"


def test_the_nearest_stack_is_of_other_software() -> None:
    for name in FACTS.stacks:
        assert software_of(nearest_stack(name, FACTS)) != software_of(name)


def test_memory_of_software_that_is_left_out() -> None:
    """The goal: a median of 12 % and a 90th percentile of 32 %, over nearly all rows."""
    rows = measurements(KINDS["memory"], ROWS)
    errors = software_left_out(rows, FACTS)
    found = np.abs(list(errors.values()))
    assert len(found) >= 0.95 * len(rows)
    assert np.median(found) < 0.12
    assert np.quantile(found, 0.9) < 0.32
