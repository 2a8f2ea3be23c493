"""What each policy costs: the bill with it less the bill without it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from flopwise.errors import InfeasibleError
from flopwise.fleet.assessment import Binding
from flopwise.fleet.milp import side_by_side
from flopwise.fleet.policies import constraints, said

if TYPE_CHECKING:
    from flopwise.fleet.allocate import Allocation
    from flopwise.fleet.problem import Problem

MATTERS = 1e-3
"""Of the bill: what is below is the solver's gap."""


def bindings(made: Problem, found: Allocation, *, seconds: float = 2.0) -> list[Binding]:
    """Every policy that costs something, dearest first; re-solves the program once for each.

    Policies that stand in for one another cost nothing one by one, so all shares, and all policies, are also left out
    together.
    """
    named = constraints(made.rules, made.demands, made.choices)
    shares = [name for name in named if name.startswith("share of")]
    groups = {name: (frozenset({name}), f"{said(name, made.rules)} costs") for name in named}
    if len(shares) > 1:
        groups[SHARES] = (frozenset(shares), f"the shares of {', '.join(made.rules.providers)} together cost")
    if len(named) > max(1, len(shares)):
        groups[ALL] = (frozenset(named), "all policies together cost")
    costs = side_by_side([partial(_cost, made, found, dropped, seconds) for dropped, _ in groups.values()])
    rows = [
        Binding(constraint=name, usd_per_month=cost, text=f"{words} ${cost:,.0f} a month")
        for (name, (_, words)), cost in zip(groups.items(), costs, strict=True)
        if cost > max(MATTERS * found.objective, 0.5)
    ]
    return sorted(rows, key=lambda row: -row.usd_per_month)


def _cost(made: Problem, found: Allocation, dropped: frozenset[str], seconds: float) -> float:
    """By how much the bill is higher with the policies than without; 0 where that is not found in time."""
    try:
        free = made.solved(dropped, seconds=seconds, start=found)
    except InfeasibleError:
        return 0.0
    return found.objective - free.objective


SHARES, ALL = "all shares", "all policies"
