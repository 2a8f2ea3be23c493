"""The policies of a fleet by name, and in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flopwise.fleet.allocate import Choice, Demand
    from flopwise.fleet.file import Rules


def constraints(rules: Rules, demands: Sequence[Demand], choices: Sequence[Choice] = ()) -> list[str]:
    """Names of all policies that an allocation has to hold, and of the numbers of own machines."""
    named = [f"share of {name}" for name in rules.providers]
    named += [f"quota {number}" for number in range(len(rules.caps))]
    named += ["spot share"] if rules.max_spot_share < 1 else []
    named += ["backup"] if any(d.backup for d in demands) else []
    named += dict.fromkeys(f"own {c.instance}" for c in choices if c.own is not None)
    return named + (["budget"] if rules.budget_per_month is not None else [])


def said(name: str, rules: Rules) -> str:
    """A constraint in words."""
    if name.startswith("share of "):
        provider = name.removeprefix("share of ")
        return f"the {100 * rules.providers[provider]:g} % {provider} share"
    if name.startswith("quota "):
        cap = rules.caps[int(name.removeprefix("quota "))]
        what = " ".join(part for part in (cap.provider, cap.instance) if part)
        return f"the quota of {cap.most} x {what}"
    if name.startswith("own "):
        return f"the number of own {name.removeprefix('own ')}"
    if name == "spot share":
        return f"the limit of {100 * rules.max_spot_share:g} % on spot"
    return {"backup": "capacity in a second provider", "budget": "the budget"}.get(name, name)
