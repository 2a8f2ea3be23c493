"""A mixed-integer program as columns and rows, and HiGHS that solves it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from flopwise.ops.types import Array

FEASIBLE = 2
"""What HiGHS calls a feasible point."""
OPTIONS: dict[str, Any] = {"output_flag": False, "threads": 1, "random_seed": 0}
"""Silent, and the same answer each time."""
MOST_AT_ONCE = 4
PATIENCE = 0.4
"""Of the time for an allocation: until it has to have one."""
Answer = TypeVar("Answer")


@dataclass(slots=True)
class Program:
    """Columns and rows as they are made."""

    costs: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    rows: list[tuple[dict[int, float], float, float, str]] = field(default_factory=list)

    def column(self, cost: float, upper: float, *, whole: bool = True) -> int:
        """A variable from 0 to `upper`."""
        self.costs.append(cost)
        self.upper.append(upper)
        self.whole.append(whole)
        return len(self.costs) - 1

    def row(self, terms: dict[int, float], low: float, high: float, name: str) -> None:
        """A constraint on the sum of `terms`."""
        self.rows.append((terms, low, high, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best columns, None where there are none; of a relaxation what each row costs (`duals`)."""

    columns: Array | None
    objective: float = 0.0
    gap: float = 0.0
    duals: Array | None = None


def solved(program: Program, gap: float, seconds: float, start: Array | None = None, *, relaxed: bool = False) -> Found:
    """The columns that cost least, to a relative `gap` or after `seconds`; `start`: columns to begin from.

    Where nothing is feasible by `PATIENCE` of that time, it is given up. `relaxed`: as if nothing had to be whole.
    """
    import highspy  # noqa: PLC0415 - 130 ms, and only a fleet needs it

    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]  # the library has no annotations
    for name, value in (OPTIONS | {"mip_rel_gap": gap, "time_limit": seconds}).items():
        solver.setOptionValue(name, value)
    solver.passModel(_model(program, highspy, relaxed=relaxed))
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
        return Found(columns=None)
    held = solver.getSolution()
    columns, objective = np.array(held.col_value), float(info.objective_function_value)
    if relaxed:
        return Found(columns=columns, objective=objective, duals=np.array(held.row_dual))
    return Found(columns=columns, objective=objective, gap=max(0.0, float(info.mip_gap)))


def side_by_side(asks: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """The answers of questions that do not depend on one another, in their order: the solver leaves Python alone."""
    with ThreadPoolExecutor(max_workers=min(MOST_AT_ONCE, os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda ask: ask(), asks))


def _model(program: Program, highspy: Any, *, relaxed: bool) -> Any:
    lp = highspy.HighsLp()
    columns, rows = len(program.costs), len(program.rows)
    lp.num_col_, lp.num_row_ = columns, rows
    lp.col_cost_ = np.array(program.costs)
    lp.col_lower_, lp.col_upper_ = np.zeros(columns), np.array(program.upper, dtype=float)
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    if not relaxed:
        lp.integrality_ = [kinds[whole] for whole in program.whole]
    lp.row_lower_ = np.array([low for _, low, _, _ in program.rows])
    lp.row_upper_ = np.array([high for _, _, high, _ in program.rows])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.cumsum([0, *(len(terms) for terms, *_ in program.rows)])
    lp.a_matrix_.index_ = np.array([c for terms, *_ in program.rows for c in terms], dtype=np.int32)
    lp.a_matrix_.value_ = np.array([v for terms, *_ in program.rows for v in terms.values()])
    return lp
