"""The solver of fleets: its answer is what its columns cost, and it writes nothing where the answer goes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small import FLEET, TODAY, catalog

from flopwise.fleet.assess import assess
from flopwise.fleet.program import EFFORT, EffortLimit, Program, Solution, solve
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
        found = solve(program, 1e-3, EFFORT, start)
        assert found.columns is not None
        assert float(np.dot(program.costs, found.columns)) == pytest.approx(found.objective) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(8))
def test_columns_below_a_bound_are_the_best_or_none(seed: int) -> None:
    program, draw = Program(), np.random.default_rng(seed)
    columns = [program.column(float(draw.uniform(1, 9)), 5) for _ in range(40)]
    for _ in range(15):
        some = draw.choice(columns, 8, replace=False)
        program.row({int(c): float(draw.uniform(0.2, 3)) for c in some}, float(draw.uniform(3, 9)), np.inf)
    least = solve(program, 0.0, EFFORT).objective
    for factor in (1.05, 1.0001):
        found = solve(program, 0.0, EFFORT, below=factor * least)
        assert found.columns is not None
        assert found.objective == pytest.approx(least)
        assert found.gap == pytest.approx(0.0, abs=1e-6)
    for factor in (0.9999, 0.9):
        found = solve(program, 0.0, EFFORT, below=factor * least)
        assert found.columns is None
        assert found.finished


def test_columns_below_a_bound_are_searched_for_with_all_of_the_effort() -> None:
    """Nothing that costs so little is found: not even by the end of the effort, at which the search is given up."""
    program, effort = market_split(), 1e5
    found = solve(program, 0.0, effort, below=1e-3)
    assert found.columns is None
    assert not found.finished
    assert effort <= found.effort < 1.2 * effort


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


def market_split() -> Program:
    """Six sums of thirty wholes that can hardly be met at once, and what is missed has to be paid: long to solve."""
    program, draw = Program(), np.random.default_rng(0)
    columns = [program.column(0.0, 1) for _ in range(30)]
    for _ in range(6):
        weights = draw.integers(1, 100, len(columns))
        over, under = (program.column(1.0, np.inf, whole=False) for _ in range(2))
        half = float(weights.sum() // 2)
        program.row({**dict(zip(columns, map(float, weights), strict=True)), over: -1.0, under: 1.0}, half, half)
    return program


def slowed(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """As if the machine were busy with other work: each question whether to go on takes longer."""
    check = EffortLimit.check

    def slow_check(self: EffortLimit, event: object) -> None:
        time.sleep(seconds)
        check(self, event)

    monkeypatch.setattr(EffortLimit, "check", slow_check)


def test_a_slow_machine_finds_the_same_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The effort ends the search long before its optimum, on any machine at the same place."""
    effort = 1e5
    found = solve(market_split(), 0.0, effort)
    more = solve(market_split(), 0.0, 3 * effort)
    slowed(monkeypatch, 0.02)
    slow = solve(market_split(), 0.0, effort)
    assert found.columns is not None
    assert slow.columns is not None
    assert (slow.columns == found.columns).all()
    assert (slow.objective, slow.gap) == (found.objective, found.gap)
    assert not slow.out_of_time
    assert more.objective < found.objective  # so it was the effort that ended it


def test_a_search_that_the_clock_ends_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not solve(market_split(), 0.0, 1e5).out_of_time
    slowed(monkeypatch, 0.05)
    monkeypatch.setattr("flopwise.fleet.program.GUARD_S", 0.5)
    assert solve(market_split(), 0.0, 1e9).out_of_time


def test_an_answer_that_the_clock_ended_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bill, what a policy costs and each question that is allocated anew, where the solver has hardly any time."""

    def late(*args: object, **how: object) -> Solution:
        return replace(solve(*args, **how), out_of_time=True)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr("flopwise.fleet.allocate.solve", late)
    policies = {"purchase": ["on_demand", "spot"], "max_spot_share": 0}
    told = assess(fleet_from({**FLEET, "policies": policies}), catalog(), scenarios=0, today=TODAY).assessment
    assert "time limit of 300 s" in told.optimality
    assert told.binding
    assert all("time limit of 300 s" in row.text for row in told.binding)
    rows = [row for row in told.whatif if row.name.startswith(("prices of", "traffic"))]
    assert rows
    assert all("time limit of 300 s" in row.text for row in rows)
