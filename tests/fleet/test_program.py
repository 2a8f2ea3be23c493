"""The solver of fleets: its answer is what its columns cost, and it writes nothing where the answer goes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small import FLEET, TODAY, catalog

from flopwise.fleet.assess import assess
from flopwise.fleet.program import Program, solve
from flopwise.fleet.read import fleet_from

EXISTING = Path(__file__).parents[2] / "examples" / "existing.yaml"


def test_standard_output_of_a_solved_fleet_is_its_json_alone() -> None:
    """In a process of its own: HiGHS prints its banner once a process, past Python."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "flopwise", "check", str(EXISTING), "--json"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert json.loads(done.stdout)["verdict"]


def test_columns_to_begin_from_are_left_where_presolve_alone_does_better() -> None:
    """One of two machines does: the solver needs no search for it, and must not answer with what it began from."""
    program = Program()
    cheap, dear = program.column(1.0, 3), program.column(2.0, 3)
    program.row({cheap: 1.0, dear: 1.0}, 1.0, np.inf)
    for start in (None, np.array([0.0, 3.0]), np.array([0.0, 1.0])):
        found = solve(program, 1e-3, 5.0, start)
        assert found.columns is not None
        assert float(np.dot(program.costs, found.columns)) == pytest.approx(found.objective) == pytest.approx(1.0)


def test_the_limit_on_spot_costs_what_the_bill_falls_by_without_it() -> None:
    policies = {"purchase": ["on_demand", "spot"]}
    free, held = (
        assess(fleet_from({**FLEET, "policies": policies | more}), catalog(), scenarios=0, today=TODAY).assessment
        for more in ({}, {"max_spot_share": 0})
    )
    (row,) = held.binding
    assert row.usd_per_month == pytest.approx(held.usd_per_month.total - free.usd_per_month.total)
    assert row.usd_per_month > 30
    assert row.moves
