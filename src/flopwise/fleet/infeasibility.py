"""Why no allocation holds all policies: the one that comes nearest, and what would have to give in it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from flopwise.errors import InfeasibleError
from flopwise.fleet.milp import solve
from flopwise.fleet.model import (
    Budget,
    InstanceQuota,
    OwnMachineCount,
    ProviderShare,
    SecondProvider,
    SpotLimit,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from flopwise.fleet.allocation_program import AllocationProgram
    from flopwise.fleet.model import Policy
    from flopwise.ops.types import Array

FLOOR_GAP, NEAREST_GAP = 1e-3, 0.05
TIE = 1e-3
"""What the bill counts for beside what has to give: among the nearest allocations a cheap one."""
OPPOSED_S = 1.0
ELSEWHERE = 2.0
"""Times the bill without policies: beyond that counts, something has to give."""
NOTHING = 1e-6


class RelaxedProgram:
    """A program whose policies may give, at a price: the least that has to give in all is its optimum."""

    def __init__(self, made: AllocationProgram, tie: float = TIE) -> None:
        self.made = made
        self.slack: dict[Policy, list[tuple[int, float]]] = defaultdict(list)
        program = made.program
        scale = max(_free_usd(made), 1.0)
        program.costs = [tie * cost / scale for cost in program.costs]
        for row in program.rows:
            if row.policy is None:
                continue
            weight = self._weight(row.policy, scale)
            for bound, sign in ((row.low, 1.0), (row.high, -1.0)):
                if np.isfinite(bound):
                    column = program.column(weight, np.inf, whole=False)
                    row.terms[column] = sign
                    self.slack[row.policy].append((column, weight))

    def _weight(self, policy: Policy, scale: float) -> float:
        """Shares and own machines count by parts of the bill, quotas and backups by parts of what they allow or ask."""
        if isinstance(policy, InstanceQuota):
            return 1.0 / max(1, policy.most)
        if isinstance(policy, OwnMachineCount):
            own = next(o.own for o in self.made.options if o.own and o.instance == policy.instance)
            return own.tiers[-1][1] / scale
        return 1.0 if isinstance(policy, SecondProvider) else 1.0 / scale

    def gives(self, columns: Array) -> dict[Policy, float]:
        """By how much each policy gives, weighted; those that do."""
        sums = {policy: sum(columns[c] * w for c, w in slack) for policy, slack in self.slack.items()}
        return {policy: value for policy, value in sums.items() if value > NOTHING}


def _free_usd(made: AllocationProgram) -> float:
    """What the fleet costs without any policy, each workload by itself."""
    whole = [
        min(made.options[i].instances * made.options[i].usd_each for i in mine) for mine in made.of.values() if mine
    ]
    return float(sum(whole))


def nearest(made: AllocationProgram, seconds: float) -> Array:
    """Columns that hold all policies after all, where the time was too short to find them; each step has `seconds`.

    Raises:
        InfeasibleError: the policies contradict one another; says which, by how much, or the floor of a budget.
    """
    _check_budget(made, seconds)
    trial = made.relaxed_by(frozenset())
    relaxed = RelaxedProgram(trial)
    solution = solve(trial.program, NEAREST_GAP, seconds)
    if solution.columns is None:
        raise InfeasibleError(f"no allocation that holds these policies was found within {seconds:g} s")
    gives = relaxed.gives(solution.columns)
    if gives:
        proven = solution.objective * (1 - solution.gap) > ELSEWHERE * TIE
        raise _conflict_error(trial, gives, solution.columns, None if proven else seconds)
    return solution.columns[: len(made.program.costs)]


def _check_budget(made: AllocationProgram, seconds: float) -> None:
    """Refuse a budget below what the other policies cost at least."""
    budget = next((policy for policy in made.policies if isinstance(policy, Budget)), None)
    if budget is None:
        return
    free = made.relaxed_by(frozenset({budget}))
    solution = solve(free.program, FLOOR_GAP, seconds)
    floor = 0.0 if solution.columns is None else _sum(free.usd_terms(), solution.columns)
    if floor > budget.usd:
        raise InfeasibleError(
            f"a month costs ${floor:,.0f} at least under these policies; the budget is ${budget.usd:,.0f}"
        )


def _opposed(made: AllocationProgram) -> list[Policy]:
    """Policies that contradict one another even if machines could be divided; none where only that is the trouble."""
    trial = made.relaxed_by(frozenset())
    relaxed = RelaxedProgram(trial, tie=0.0)
    solution = solve(trial.program, 0.0, OPPOSED_S, relaxed=True)
    if solution.columns is None or solution.duals is None or not relaxed.gives(solution.columns):
        return []
    priced = {row.policy for row, dual in zip(trial.program.rows, solution.duals, strict=True) if abs(dual) > NOTHING}
    return [policy for policy in trial.policies if policy in priced]


def _conflict_error(
    made: AllocationProgram, gives: dict[Policy, float], columns: Array, seconds: float | None
) -> InfeasibleError:
    """The error that names what gives, and by how much; after `seconds` in which nothing better was found."""
    giving = sorted(gives, key=lambda policy: -gives[policy])
    opposed = _opposed(made)
    distances = [_distance(made, policy, columns) for policy in giving]
    if opposed:
        involved = [policy for policy in made.policies if policy in {*giving, *opposed}]
        what = f"no allocation holds {_listed(list(map(str, involved)))}{' together' if len(involved) > 1 else ''}"
        what += _widen(involved)
    elif seconds is not None:
        what = f"no allocation that holds all policies was found within {seconds:g} s"
    elif all(isinstance(policy, ProviderShare) for policy in giving):
        beside = _because_of_backups(made) or ": the workloads do not divide so"
        what = f"the shares of the providers cannot be held{beside}{_widen(giving)}"
    else:
        what = f"no allocation holds all policies: whole machines do not fit {giving[0]}"
    return InfeasibleError(f"{what}. The nearest has: {'; '.join(distances)}", distances)


def _widen(policies: Collection[Policy]) -> str:
    """Advice on shares, where there are any."""
    shares = any(isinstance(policy, ProviderShare) for policy in policies)
    return "; widen policies.share_tolerance, or change the shares" if shares else ""


def _because_of_backups(made: AllocationProgram) -> str:
    """That the shares could be held without backups, where that is so; else nothing."""
    backed = [d.name for d in made.demands if d.backup]
    if not backed or SecondProvider() in made.without:
        return ""
    trial = made.relaxed_by(frozenset({SecondProvider()}))
    relaxed = RelaxedProgram(trial)
    solution = solve(trial.program, NEAREST_GAP, OPPOSED_S)
    if solution.columns is None or relaxed.gives(solution.columns):
        return ""
    return f" with capacity in a second provider (the backup of {_listed(backed, 4)}), only without it"


def _distance(made: AllocationProgram, policy: Policy, columns: Array) -> str:
    """What a policy asks, and what the nearest allocation has."""
    if isinstance(policy, InstanceQuota):
        return f"{policy}: {_sum(made.quota_terms(policy), columns):.0f} are needed"
    if isinstance(policy, OwnMachineCount):
        option = next(o for o in made.options if o.own is not None and o.instance == policy.instance)
        assert option.own is not None
        used = columns[made.pools[option.machine]]
        return f"{policy}, {option.own.most}: {used:.0f} are needed; buy more, or allow other ways"
    if isinstance(policy, Budget):
        return f"{policy} of ${policy.usd:,.0f}: ${_sum(made.usd_terms(), columns):,.0f} are needed"
    if isinstance(policy, SecondProvider):
        return f"{policy}: {_listed(_unready(made, columns), 4)} can have too little of it"
    terms, whole = made.share_terms(policy)
    part = 100 * _sum(terms, columns) / max(_sum(whole, columns), NOTHING)
    limit, within = 100 * policy.share, ""
    if not isinstance(policy, SpotLimit):
        tolerance = made.rules.share_tolerance
        within = f" (within {100 * tolerance:g} %)"
        limit += (100 if part > limit else -100) * tolerance
    return f"{policy}{within}: {_telling_digits(part, limit)} % is as near as it comes"


def _unready(made: AllocationProgram, columns: Array) -> list[str]:
    """Workloads of which the other providers have too little if one is lost."""
    names = []
    for number, demand in enumerate(made.demands):
        primary, ready = dict[str, float](), dict[str, float]()
        for provider, mine in made.by_provider(number).items():
            primary[provider] = sum(columns[made.own[i]] * made.part(i) for i in mine)
            spare = [columns[made.spare[i]] / made.options[i].instances for i in mine if i in made.spare]
            ready[provider] = primary[provider] + sum(spare)
        carried, standby = sum(primary.values()), sum(ready.values())
        short = (
            standby - ready[lost] < made.rules.backup_share * (1.0 - carried + primary[lost]) - NOTHING
            for lost in primary
        )
        if demand.backup and any(short):
            names.append(demand.name)
    return names


def _sum(terms: dict[int, float], columns: Array) -> float:
    return float(sum(columns[column] * factor for column, factor in terms.items()))


def _telling_digits(part: float, bound: float) -> str:
    """A percentage with as many digits as tell it from what it misses."""
    digits = next((d for d in range(1, 9) if abs(part - round(part, d)) <= 0.1 * abs(part - bound)), 9)
    return f"{part:.{digits}f}"


def _listed(words: Sequence[str], most: int = 9) -> str:
    """Some things with commas and an `and`."""
    if len(words) > most:
        words = [*words[: most - 1], f"{len(words) - most + 1} more"]
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + [*words[-1:]])
