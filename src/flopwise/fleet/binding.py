"""What each policy costs: the bill with it less the bill without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.errors import InfeasibleError
from flopwise.fleet.assessment import Binding
from flopwise.fleet.policies import constraints, said

if TYPE_CHECKING:
    from flopwise.fleet.allocate import Allocation
    from flopwise.fleet.problem import Problem

MATTERS = 1e-3
"""Of the bill: what is below is the solver's gap."""


def bindings(made: Problem, found: Allocation, *, seconds: float = 3.0) -> list[Binding]:
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
    rows = []
    for name, (dropped, words) in groups.items():
        try:
            free = made.solved(dropped, seconds=seconds)
        except InfeasibleError:
            continue
        cost = found.objective - free.objective
        if cost > max(MATTERS * found.objective, 0.5):
            rows.append(Binding(constraint=name, usd_per_month=cost, text=f"{words} ${cost:,.0f} a month"))
    return sorted(rows, key=lambda row: -row.usd_per_month)


SHARES, ALL = "all shares", "all policies"
