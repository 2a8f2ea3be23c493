"""Why no allocation holds all policies: the one that comes nearest, and what would have to give in it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from flopwise.errors import InfeasibleError
from flopwise.fleet.formulation import Formulation
from flopwise.fleet.milp import solved
from flopwise.fleet.policies import constraints, said

if TYPE_CHECKING:
    from flopwise.fleet.file import Rules
    from flopwise.ops.types import Array

FLOOR_GAP, NEAREST_GAP = 1e-3, 0.05
TIE = 1e-3
"""What the bill counts for beside what has to give: among the nearest allocations a cheap one."""
OPPOSED_S = 1.0
ELSEWHERE = 2.0
"""Times the bill without policies: beyond that counts, something has to give."""
NOTHING = 1e-6
WIDEN = "; widen policies.share_tolerance, or change the shares"


class Elastic:
    """A program whose policies may give, at a price: the least that has to give in all is its optimum."""

    def __init__(self, made: Formulation, tie: float = TIE) -> None:
        self.made = made
        self.given: dict[str, list[tuple[int, float]]] = defaultdict(list)
        program, policies = made.program, set(constraints(made.rules, made.demands, made.choices))
        scale = max(_free_usd(made), 1.0)
        program.costs = [tie * cost / scale for cost in program.costs]
        for terms, low, high, name in program.rows:
            if name not in policies:
                continue
            weight = self._weight(name, scale)
            for bound, sign in ((low, 1.0), (high, -1.0)):
                if np.isfinite(bound):
                    column = program.column(weight, np.inf, whole=False)
                    terms[column] = sign
                    self.given[name].append((column, weight))

    def _weight(self, name: str, scale: float) -> float:
        """Shares and own machines count by parts of the bill, quotas and backups by parts of what they allow or ask."""
        if name.startswith("quota "):
            return 1.0 / max(1, self.made.rules.caps[int(name.removeprefix("quota "))].most)
        if name.startswith("own "):
            return self._own_usd(name) / scale
        return 1.0 if name == "backup" else 1.0 / scale

    def _own_usd(self, name: str) -> float:
        """USD a month of one own machine more."""
        return next(c.own.tiers[-1][1] for c in self.made.choices if c.own and name == f"own {c.instance}")

    def gives(self, columns: Array) -> dict[str, float]:
        """By how much each policy gives, weighted; those that do."""
        sums = {name: sum(columns[c] * w for c, w in held) for name, held in self.given.items()}
        return {name: value for name, value in sums.items() if value > NOTHING}


def _free_usd(made: Formulation) -> float:
    """What the fleet costs without any policy, each workload by itself."""
    whole = [
        min(made.choices[i].instances * made.choices[i].usd_each for i in mine) for mine in made.of.values() if mine
    ]
    return float(sum(whole))


def nearest(made: Formulation, seconds: float) -> Array:
    """Columns that hold all policies after all, where the time was too short to find them; each step has `seconds`.

    Raises:
        InfeasibleError: the policies contradict one another; says which, by how much, or the floor of a budget.
    """
    rules, without = made.rules, made.without
    if rules.budget_per_month is not None and "budget" not in without:
        _check_budget(_again(made, without | {"budget"}), rules.budget_per_month, seconds)
    trial = _again(made, without)
    elastic = Elastic(trial)
    found = solved(trial.program, NEAREST_GAP, seconds)
    if found.columns is None:
        raise InfeasibleError(f"no allocation that holds these policies was found within {seconds:g} s")
    gives = elastic.gives(found.columns)
    if gives:
        proven = found.objective * (1 - found.gap) > ELSEWHERE * TIE
        raise _explained(trial, gives, found.columns, None if proven else seconds)
    return found.columns[: len(made.program.costs)]


def _again(made: Formulation, without: frozenset[str]) -> Formulation:
    return Formulation(made.choices, made.demands, made.rules, without, made.risen)


def _check_budget(made: Formulation, budget: float, seconds: float) -> None:
    """Refuse a budget below what the other policies cost at least."""
    found = solved(made.program, FLOOR_GAP, seconds)
    if found.columns is None:
        return
    floor = sum(found.columns[column] * usd for column, usd in made.money().items())
    if floor > budget:
        raise InfeasibleError(
            f"a month costs ${floor:,.0f} at least under these policies; the budget is ${budget:,.0f}"
        )


def _opposed(made: Formulation) -> list[str]:
    """Policies that contradict one another even if machines could be divided; none where only that is the trouble."""
    trial = _again(made, made.without)
    elastic = Elastic(trial, tie=0.0)
    found = solved(trial.program, 0.0, OPPOSED_S, relaxed=True)
    if found.columns is None or found.duals is None or not elastic.gives(found.columns):
        return []
    prices = {name for (*_, name), dual in zip(trial.program.rows, found.duals, strict=True) if abs(dual) > NOTHING}
    return [name for name in constraints(made.rules, made.demands, made.choices) if name in prices]


def _explained(made: Formulation, gives: dict[str, float], columns: Array, seconds: float | None) -> InfeasibleError:
    """The error that names what gives, and by how much; after `seconds` in which nothing better was found."""
    names = sorted(gives, key=lambda name: -gives[name])
    opposed = _opposed(made)
    told = [_gives(made, name, columns) for name in names]
    if opposed:
        held = [n for n in constraints(made.rules, made.demands, made.choices) if n in {*names, *opposed}]
        what = f"no allocation holds {_listed([said(name, made.rules) for name in held])}"
        what += " together" if len(held) > 1 else ""
        what += WIDEN if any(name.startswith("share of") for name in held) else ""
    elif seconds is not None:
        what = f"no allocation that holds all policies was found within {seconds:g} s"
    elif all(name.startswith("share of") for name in names):
        beside = _in_the_way(made)
        what = f"the shares of the providers cannot be held{beside or ': the workloads do not divide so'}{WIDEN}"
    else:
        what = f"no allocation holds all policies: whole machines do not fit {said(names[0], made.rules)}"
    return InfeasibleError(f"{what}. The nearest has: {'; '.join(told)}", told)


def _in_the_way(made: Formulation) -> str:
    """That the shares could be held without backups, where that is so; else nothing."""
    backed = [d.name for d in made.demands if d.backup]
    if not backed or "backup" in made.without:
        return ""
    trial = _again(made, made.without | {"backup"})
    elastic = Elastic(trial)
    found = solved(trial.program, NEAREST_GAP, OPPOSED_S)
    if found.columns is None or elastic.gives(found.columns):
        return ""
    return f" with capacity in a second provider (the backup of {_listed(backed, 4)}), only without it"


def _gives(made: Formulation, name: str, columns: Array) -> str:
    """What a policy asks, and what the nearest allocation has."""
    rules, words = made.rules, said(name, made.rules)
    whole = sum(columns[column] * usd for column, usd in made.money().items())
    if name.startswith("quota "):
        terms = made.counted(rules.caps[int(name.removeprefix("quota "))])
        return f"{words}: {sum(columns[c] * n for c, n in terms.items()):.0f} are needed"
    if name.startswith("own "):
        pool = next(c for c in made.choices if c.own is not None and name == f"own {c.instance}")
        assert pool.own is not None
        most = sum(count for count, _ in pool.own.tiers)
        return f"{words}, {most}: {columns[made.pools[pool.machine]]:.0f} are needed; buy more, or allow other ways"
    if name == "budget":
        return f"{words} of ${rules.budget_per_month:,.0f}: ${whole:,.0f} are needed"
    if name == "backup":
        return f"{words}: {_listed(made.unready(columns), 4)} can have too little of it"
    if name == "spot share":
        whole = sum(columns[column] * usd for column, usd in made.agreed().items())
        mine = made.agreed(lambda paid: paid.purchase == "spot")
    else:
        mine = made.agreed(lambda paid: paid.provider == name.removeprefix("share of "))
        whole = sum(columns[column] * usd for column, usd in made.divided().items())
    part = 100 * sum(columns[column] * usd for column, usd in mine.items()) / max(whole, NOTHING)
    tolerance = "" if name == "spot share" else f" (within {100 * rules.share_tolerance:g} %)"
    return f"{words}{tolerance}: {_exact(part, _bound(name, part, rules))} % is as near as it comes"


def _bound(name: str, part: float, rules: Rules) -> float:
    """The limit of a share that `part` is beyond, in percent."""
    if name == "spot share":
        return 100 * rules.max_spot_share
    share = 100 * rules.providers[name.removeprefix("share of ")]
    return share + (100 if part > share else -100) * rules.share_tolerance


def _exact(part: float, bound: float) -> str:
    """A percentage with as many digits as tell it from what it misses."""
    digits = next((d for d in range(1, 9) if abs(part - round(part, d)) <= 0.1 * abs(part - bound)), 9)
    return f"{part:.{digits}f}"


def _listed(words: list[str], most: int = 9) -> str:
    """Some things with commas and an `and`."""
    if len(words) > most:
        words = [*words[: most - 1], f"{len(words) - most + 1} more"]
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + words[-1:])
