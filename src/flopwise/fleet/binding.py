"""What each policy costs: the bill with it less the bill without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.errors import InfeasibleError
from flopwise.fleet.allocate import Allocation, constraints
from flopwise.fleet.assessment import Binding

if TYPE_CHECKING:
    from flopwise.fleet.file import Rules
    from flopwise.fleet.problem import Problem

MATTERS = 1e-3
"""Of the bill: what is below is the solver's gap."""


def bindings(made: Problem, found: Allocation, *, seconds: float = 3.0) -> list[Binding]:
    """Every policy that costs something, dearest first; re-solves the program once for each."""
    rows = []
    for name in constraints(made.rules, made.demands):
        try:
            free = made.solved(frozenset({name}), seconds=seconds)
        except InfeasibleError:
            continue
        cost = found.objective - free.objective
        if cost > max(MATTERS * found.objective, 0.5):
            text = f"{said(name, made.rules)} costs ${cost:,.0f} a month"
            rows.append(Binding(constraint=name, usd_per_month=cost, text=text))
    return sorted(rows, key=lambda row: -row.usd_per_month)


def said(name: str, rules: Rules) -> str:
    """A constraint in words."""
    if name.startswith("share of "):
        provider = name.removeprefix("share of ")
        return f"the {100 * rules.providers[provider]:g} % {provider} share"
    if name.startswith("quota "):
        cap = rules.caps[int(name.removeprefix("quota "))]
        what = " ".join(part for part in (cap.provider, cap.instance) if part)
        return f"the quota of {cap.most} x {what}"
    if name == "spot share":
        return f"the limit of {100 * rules.max_spot_share:g} % on spot"
    return {"backup": "capacity in a second provider", "budget": "the budget"}.get(name, name)
