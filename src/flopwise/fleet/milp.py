"""A mixed-integer program as columns and rows, and HiGHS that solves it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from flopwise.fleet.model import Policy
    from flopwise.ops.types import Array

FEASIBLE = 2
"""What HiGHS calls a feasible point."""
OPTIONS: dict[str, Any] = {"output_flag": False, "threads": 1, "random_seed": 0}
"""Silent, and the same answer each time."""
PATIENCE = 0.4
"""Share of the time for an allocation after which it has to have one."""


@dataclass(slots=True)
class ProgramRow:
    """`low` <= sum of `terms` (column: factor) <= `high`; `policy`: whose it is, None where it is of the machines."""

    terms: dict[int, float]
    low: float
    high: float
    policy: Policy | None


@dataclass(slots=True)
class Program:
    """Columns and rows as they are made."""

    costs: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    rows: list[ProgramRow] = field(default_factory=list)

    def column(self, cost: float, upper: float, *, whole: bool = True) -> int:
        """Number of a new variable from 0 to `upper`."""
        self.costs.append(cost)
        self.upper.append(upper)
        self.whole.append(whole)
        return len(self.costs) - 1

    def row(self, terms: dict[int, float], low: float, high: float, policy: Policy | None = None) -> None:
        """Add a constraint on the sum of `terms`."""
        self.rows.append(ProgramRow(terms, low, high, policy))

    def at_most(self, terms: dict[int, float], high: float, policy: Policy | None = None) -> None:
        """Add the constraint that the sum of `terms` is no more than `high`."""
        self.row(terms, -np.inf, high, policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The best columns, None where there are none; of a relaxation what each row costs (`duals`)."""

    columns: Array | None
    objective: float = 0.0
    gap: float = 0.0
    duals: Array | None = None


def solve(
    program: Program, gap: float, seconds: float, start: Array | None = None, *, relaxed: bool = False
) -> Solution:
    """The columns that cost least, to a relative `gap` or after `seconds`; `start`: columns to begin from.

    Where nothing is feasible by `PATIENCE` of that time, it is given up. `relaxed`: as if nothing had to be whole.
    """
    import highspy  # noqa: PLC0415 - 130 ms, and only a fleet needs it

    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]  # the library has no annotations
    for name, value in (OPTIONS | {"mip_rel_gap": gap, "time_limit": seconds}).items():
        solver.setOptionValue(name, value)
    solver.passModel(_highs_model(program, highspy, relaxed=relaxed))
    if start is not None:
        solution = highspy.HighsSolution()
        solution.col_value = [float(v) for v in start]
        solver.setSolution(solution)

    def give_up(event: Any) -> None:
        late = event.data_out.running_time > PATIENCE * seconds
        if late and not np.isfinite(event.data_out.mip_primal_bound):
            event.interrupt()

    if not relaxed:
        solver.cbMipInterrupt.subscribe(give_up)
    solver.run()
    info = solver.getInfo()
    if info.primal_solution_status != FEASIBLE:
        return Solution(columns=None)
    solution = solver.getSolution()
    columns, objective = np.array(solution.col_value), float(info.objective_function_value)
    if relaxed:
        return Solution(columns=columns, objective=objective, duals=np.array(solution.row_dual))
    return Solution(columns=columns, objective=objective, gap=max(0.0, float(info.mip_gap)))


def _highs_model(program: Program, highspy: Any, *, relaxed: bool) -> Any:
    lp = highspy.HighsLp()
    columns, rows = len(program.costs), program.rows
    lp.num_col_, lp.num_row_ = columns, len(rows)
    lp.col_cost_ = np.array(program.costs)
    lp.col_lower_, lp.col_upper_ = np.zeros(columns), np.array(program.upper, dtype=float)
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    if not relaxed:
        lp.integrality_ = [kinds[whole] for whole in program.whole]
    lp.row_lower_, lp.row_upper_ = np.array([row.low for row in rows]), np.array([row.high for row in rows])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.cumsum([0, *(len(row.terms) for row in rows)])
    lp.a_matrix_.index_ = np.array([column for row in rows for column in row.terms], dtype=np.int32)
    lp.a_matrix_.value_ = np.array([factor for row in rows for factor in row.terms.values()])
    return lp
