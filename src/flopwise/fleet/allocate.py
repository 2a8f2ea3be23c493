"""Which machines for which workload, how bought, so that a month costs least: a mixed-integer program.

Each workload has choices (an offer, a way to buy it, the instances that carry all of it). Services and batches may be
split over several; a training run is all on one. What is reserved, or one's own, is paid all month whoever uses it:
such machines are pools that workloads share over the week. An API takes a workload whole, or not. What a workload
stores and sends goes with its machines. Solved with HiGHS (Huangfu and Hall 2018, doi:10.1007/s12532-017-0130-5).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flopwise.errors import InfeasibleError
from flopwise.fleet.conflict import nearest
from flopwise.fleet.formulation import MARGIN, Formulation, backup_usd
from flopwise.fleet.milp import solved
from flopwise.fleet.prune import undominated
from flopwise.fleet.spec import OWNED
from flopwise.units import HOURS_PER_MONTH

if TYPE_CHECKING:
    from flopwise.fleet.file import Rules
    from flopwise.ops.types import Array

Machine = tuple[str, str, str, str]
LATER = 0.3
"""Of the time for an allocation: that to improve one that comes late."""
STEP = 0.2
"""The same for each step of finding out why there is none."""


def rented(purchase: str) -> bool:
    """Whether machines bought so are a cloud's, at a price that it may change."""
    return purchase in {"on_demand", "spot"} or purchase.startswith("reserved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """Own machines of one kind: those that are there, at what using one adds a month, then those to be bought.

    `off_usd`: a month of one that is there, used or not. `hours`: a month that one can be worked.
    """

    tiers: tuple[tuple[int, float], ...]  # (at most so many, USD a month of each)
    off_usd: float = 0.0
    hours: float = HOURS_PER_MONTH

    def used_usd(self, count: int) -> float:
        """USD a month of so many used machines; beyond the last as it."""
        left, usd, paid = count, 0.0, min(count, self.tiers[0][0]) * self.off_usd
        for most, usd in self.tiers:
            paid, left = paid + min(left, most) * usd, left - min(left, most)
        return paid + left * usd

    def idle(self, count: int) -> int:
        """Machines that are there and paid beside `count` used ones."""
        return max(0, self.tiers[0][0] - count) if self.off_usd else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One way to carry a whole workload: so many instances of one offer, bought one way.

    `usd_each`: USD a month of one instance for the hours that it is paid, rework and checkpoints included; of reserved
    machines the whole month, which a pool pays once. `busy_hours`: a month, of one instance.
    """

    workload: int
    provider: str
    region: str
    instance: str
    purchase: str
    instances: int
    usd_each: float
    busy_hours: float
    kg_each: float = 0.0
    candidate: int = 0  # the caller's number of it
    unit: int = 1  # instances of the smallest part that a splittable workload may be split into
    usd_running: float = 0.0  # that an instance's work adds to `usd_each`: the power of own machines
    own: Own | None = None  # of own machines: how many there are, and what they cost together

    @property
    def pooled(self) -> bool:
        """Whether its machines are paid all month, used or not."""
        return self.purchase.startswith(("reserved", OWNED))

    def pool_usd(self, machines: int) -> float:
        """USD a month of so many of its machines, used by whomever."""
        return machines * self.usd_each if self.own is None else self.own.used_usd(machines)

    @property
    def machine(self) -> Machine:
        """What tells pools apart."""
        return (self.provider, self.region, self.instance, self.purchase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a workload allows: may it be split, when is it on, must another provider stand ready.

    `volumes_usd`: what its storage and traffic cost a month, by the provider that carries all of it.
    """

    name: str
    splittable: bool
    flexible: bool  # runs that may be put anywhere in their slots; others are on in all of them
    slots: tuple[float, ...] = ()  # share of the week of each slot it is on in, else 0 (`week.slots`); (): on in all
    backup: bool = False
    volumes_usd: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """So many instances of a choice, and what they cost a month; `role` primary or backup.

    Of machines shared with other workloads it costs its part by hours of use.
    """

    choice: Choice
    count: int
    usd: float
    role: str = "primary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The answer: machines taken, pools with the instances that are paid, the bill and how far it may be from the best.

    `usd`: a month, machines and volumes; `objective`: that with the weight on carbon. `volumes`: the share of what a
    workload (its number) stores and sends that is with a provider; `by_provider`: the bill.
    """

    taken: tuple[Taken, ...]
    pools: dict[Machine, int]
    idle: dict[Machine, tuple[int, float]]  # own machines that are paid and not used, and the USD of all of them
    volumes: dict[tuple[int, str], float]
    by_provider: dict[str, float]
    usd: float
    objective: float
    kg: float
    gap: float
    dropped: frozenset[str] = frozenset()
    columns: Array | None = field(default=None, repr=False, compare=False)  # of the program, to begin another from


def allocate(
    choices: Sequence[Choice],
    demands: Sequence[Demand],
    rules: Rules,
    *,
    without: frozenset[str] = frozenset(),
    gap: float = 1e-3,
    seconds: float = 10.0,
    start: Allocation | None = None,
    risen: Mapping[str, float] | None = None,
) -> Allocation:
    """The allocation that costs least (with the weight on carbon), within `gap` of it or after `seconds`.

    `start`: an allocation of the same choices under more policies, or other prices, to begin from.

    `risen`: providers whose prices are so many times those at which shares of the bill, spot too, are to be held.

    `without`: constraints to leave out: `budget`, `share of PROVIDER`, `quota N`, `spot share`, `backup`,
    `own INSTANCE` (how many machines of one's own there can be: more of them cost what the last does).

    Source: the program stands in `flopwise.fleet.formulation`; solved by HiGHS.
    Assumes: an instance of a choice carries its share of the workload; of thousands of choices those of `undominated`
    do; runs that may be put anywhere fill what fixed schedules leave of a pool, in slots of the week; runs
    that need several machines at once take turns on some (in large allocations on own machines only); services share a
    machine by their hours, never at the same time.
    Raises: InfeasibleError: a workload has no choice, or the constraints contradict one another; says which.
    """
    _check_choices(choices, demands)
    made = Formulation(undominated(choices, rules), demands, rules, without, risen)
    begun = None if start is None else start.columns
    fits = begun is not None and len(begun) == len(made.program.costs)
    found = solved(made.program, gap, seconds, begun if fits else None)
    if found.columns is None:
        found = solved(made.program, gap, seconds * LATER, nearest(made, seconds * STEP))
    if found.columns is None:
        raise InfeasibleError(f"no allocation that holds these policies was found within {seconds:g} s")
    return _answer(made, found.columns, found.gap)


def _check_choices(choices: Sequence[Choice], demands: Sequence[Demand]) -> None:
    held = {c.workload for c in choices}
    missing = [d.name for n, d in enumerate(demands) if n not in held]
    if missing:
        raise InfeasibleError(f"nothing on offer carries {', '.join(missing[:5])}")


def _answer(made: Formulation, columns: Array, gap: float) -> Allocation:
    """The columns read back; every sum is of what is returned, so that it is the bill to the cent."""
    counts = made.counts(columns)
    primary = [(choice, int(counts[i])) for i, choice in enumerate(made.choices) if counts[i]]
    pools = {machine: round(columns[column]) for machine, column in made.pools.items() if columns[column] > HALF}
    used: dict[Machine, float] = defaultdict(float)
    for choice, count in primary:
        if made.shared(choice):
            used[choice.machine] += count * choice.busy_hours
        elif choice.pooled:
            pools[choice.machine] = pools.get(choice.machine, 0) + count
    taken = []
    for choice, count in primary:
        usd = choice.usd_each * count
        if made.shared(choice):
            paid = choice.pool_usd(round(columns[made.pools[choice.machine]]))
            usd = paid * count * choice.busy_hours / used[choice.machine]
        usd += choice.usd_running * count
        taken.append(Taken(choice=choice, count=count, usd=usd))
    for i, column in made.spare.items():
        if columns[column] > HALF:
            count, choice = round(columns[column]), made.choices[i]
            taken.append(Taken(choice=choice, count=count, usd=count * backup_usd(choice, made.rules), role="backup"))
    volumes = _volumes(made, columns, primary)
    idle = _idle(made, pools)
    by_provider: dict[str, float] = defaultdict(float)
    bills = [(row.choice.provider, row.usd) for row in taken] + [
        (machine[0], paid) for machine, (_, paid) in idle.items()
    ]
    bills += [(p, share * made.demands[number].volumes_usd[p]) for (number, p), share in volumes.items()]
    for provider, bill in bills:
        by_provider[provider] += bill
    usd, kg = sum(by_provider.values()), sum(choice.kg_each * count for choice, count in primary)
    return Allocation(
        taken=tuple(taken),
        pools=pools,
        idle=idle,
        volumes=volumes,
        by_provider=dict(by_provider),
        usd=usd,
        objective=usd + made.rules.carbon_usd_per_kg * kg,
        kg=kg,
        gap=gap,
        dropped=made.without,
        columns=columns,
    )


def _idle(made: Formulation, pools: Mapping[Machine, int]) -> dict[Machine, tuple[int, float]]:
    """Own machines that are there and paid, and not used."""
    owned = {choice.machine: choice.own for choice in made.choices if choice.own is not None}
    counts = {machine: own.idle(pools.get(machine, 0)) for machine, own in owned.items()}
    return {machine: (count, count * owned[machine].off_usd) for machine, count in counts.items() if count}


HALF = 0.5
"""A column of whole numbers above it is not zero."""


def _volumes(made: Formulation, columns: Array, primary: Sequence[tuple[Choice, int]]) -> dict[tuple[int, str], float]:
    """Shares of each workload's volumes by provider; they add up to one."""
    found: dict[tuple[int, str], float] = {}
    for choice, _ in primary:
        demand = made.demands[choice.workload]
        if not demand.splittable and choice.provider in demand.volumes_usd:
            found[choice.workload, choice.provider] = 1.0
    for (number, provider), column in made.volumes.items():
        if columns[column] > MARGIN:
            found[number, provider] = float(columns[column])
    sums: dict[int, float] = defaultdict(float)
    for (number, _), share in found.items():
        sums[number] += share
    return {key: share / sums[key[0]] for key, share in found.items()}
