"""Every policy holds on the bill that is reported, and no cheaper bill holds them: all allocations of small fleets."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwise.errors import InfeasibleError
from flopwise.fleet.model import Allocation, MonthlyOption, WorkloadDemand
from flopwise.fleet.spec import Backup, Policies, Quota

sys.path.insert(0, str(Path(__file__).parent))
from options import RULES, allocate, option

EDGE = 1e-6
Counts = tuple[tuple[MonthlyOption, int], ...]


@dataclass(frozen=True)
class Tried:
    """One allocation by hand: USD by provider, of all, of spot; instances of provider a."""

    by: dict[str, float]
    spot: float
    on_a: int
    taken: tuple[tuple[Counts, Counts], ...] = ()  # of each workload: primary, and standing by

    @property
    def usd(self) -> float:
        return sum(self.by.values())


def primaries(options: list[MonthlyOption], demand: WorkloadDemand) -> Iterator[Counts]:
    """All ways to carry a workload: one choice whole, or instances of several with less than the coarsest over."""
    if not demand.splittable:
        yield from (((c, c.instances),) for c in options)
        return
    coarsest = max(1 / c.instances for c in options)
    for counts in product(*(range(c.instances + 1) for c in options)):
        if 1 - EDGE <= sum(n / c.instances for n, c in zip(counts, options, strict=True)) < 1 + coarsest - EDGE:
            yield tuple((c, n) for n, c in zip(counts, options, strict=True) if n)


def backups(options: list[MonthlyOption], demand: WorkloadDemand, taken: Counts, rules: Policies) -> Iterator[Counts]:
    """All ways that leave a share of what any provider carries to the others: theirs, or standing by on demand."""
    if not demand.backup:
        yield ()
        return
    carried = dict.fromkeys({c.provider for c in options}, 0.0)
    for c, n in taken:
        carried[c.provider] += n / c.instances
    ready = [c for c in options if c.purchase == "on_demand"]
    for counts in product(*(range(math.ceil(rules.backup.share * c.instances) + 1) for c in ready)):
        spare = dict.fromkeys(carried, 0.0)
        for n, c in zip(counts, ready, strict=True):
            spare[c.provider] += n / c.instances
        if all(
            sum(spare[q] + carried[q] for q in carried if q != lost)
            >= rules.backup.share * (1 - sum(carried[q] for q in carried if q != lost)) - EDGE
            for lost in carried
        ):
            yield tuple((c, n) for n, c in zip(counts, ready, strict=True) if n)


def volumes(demand: WorkloadDemand, taken: Counts) -> list[dict[str, float]]:
    """Shares of the volumes by provider, on a grid: with the machines, and with no provider more than they carry."""
    carried: dict[str, float] = defaultdict(float)
    for c, n in taken:
        carried[c.provider] += n / c.instances
    if len(carried) == 1 or not demand.volumes_usd:
        return [dict.fromkeys(list(carried)[:1], 1.0)]
    low, high = max(0.0, 1 - carried["b"]), min(1.0, carried["a"])
    steps = [low + (high - low) * k / 4 for k in range(5)]
    return [{"a": v, "b": 1 - v} for v in steps]


def tried(options: list[MonthlyOption], demands: list[WorkloadDemand], rules: Policies) -> Iterator[Tried]:
    """Every allocation of the fleet."""
    each = []
    for number, demand in enumerate(demands):
        mine = [c for c in options if c.workload == number]
        each.append(
            [
                (taken, spare, split)
                for taken in primaries(mine, demand)
                for spare in backups(mine, demand, taken, rules)
                for split in volumes(demand, taken)
            ]
        )
    for picked in product(*each):
        by: dict[str, float] = defaultdict(float)
        spot, on_a = 0.0, 0
        for demand, (taken, spare, split) in zip(demands, picked, strict=True):
            for c, n in taken:
                by[c.provider] += n * c.usd_each
                spot += n * c.usd_each * (c.purchase == "spot")
                on_a += n * (c.provider == "a")
            for c, n in spare:
                by[c.provider] += n * c.usd_each * rules.backup.hours / 730
                on_a += n * (c.provider == "a")
            for provider, share in split.items():
                by[provider] += share * demand.volumes_usd.get(provider, 0.0)
        yield Tried(by=dict(by), spot=spot, on_a=on_a, taken=tuple((taken, spare) for taken, spare, _ in picked))


def each_usd(c: MonthlyOption, demand: WorkloadDemand) -> float:
    """USD a month of one instance with its part of the volumes."""
    return c.usd_each + demand.volumes_usd.get(c.provider, 0.0) / c.instances


def in_place_of(c: MonthlyOption, other: MonthlyOption, *, split: bool) -> int:
    """Instances of another option that carry what one of `c` does (all of it where it is not split)."""
    return math.ceil(other.instances / c.instances - EDGE) if split else other.instances


def always_better(other: MonthlyOption, c: MonthlyOption, demand: WorkloadDemand, *, counted: bool) -> bool:
    """Whether any part of a workload that one option carries costs no more on another, nor takes more machines."""
    if demand.backup and c.purchase == "on_demand" and other.purchase != "on_demand":
        return False
    parts = range(1, c.instances + 1) if demand.splittable or demand.backup else [c.instances]
    needed = {k: math.ceil(k * other.instances / c.instances - EDGE) for k in parts}
    return all(n * other.usd_each <= k * c.usd_each + EDGE and (not counted or n <= k) for k, n in needed.items())


def wasteful(bill: Tried, options: list[MonthlyOption], demands: list[WorkloadDemand], rules: Policies) -> bool:
    """Whether some machine is not needed, or could be changed for a cheaper one that no policy stands against.

    A share of the bill stands against leaving its own provider, and against coming to it, and against nothing else.
    """
    if not rules.shares and rules.max_spot_share == 1:
        return False
    most: dict[int, int] = defaultdict(int)
    for c in options:
        most[c.workload] = max(most[c.workload], c.instances * (c.provider == "a"))
    caps = [cap for cap in rules.quotas if 2 * sum(most.values()) > cap.most]
    for number, (demand, (taken, spare)) in enumerate(zip(demands, bill.taken, strict=True)):
        mine = [c for c in options if c.workload == number]
        order = {id(c): n for n, c in enumerate(sorted(mine, key=lambda c: (c.usd_each * c.instances, c.instances)))}
        carried = sum(n / c.instances for c, n in taken)
        for c, _ in taken:
            if demand.splittable and not demand.backup and carried - 1 / c.instances >= 1 - EDGE:
                return True
            for d in mine:
                n, units = in_place_of(c, d, split=demand.splittable), 1 if demand.splittable else c.instances
                less, more = units * each_usd(c, demand), n * each_usd(d, demand)
                counted = bool(caps) and c.provider == "a"
                better = order[id(d)] < order[id(c)] and always_better(d, c, demand, counted=counted)
                if d.provider != c.provider:
                    better = bool(rules.shares) and more < less - EDGE and not demand.backup
                if better and not _breaks(bill, rules, caps, (c, less), (d, n, more)):
                    return True
        if spare and _idle(mine, demand, taken, spare, rules, caps):
            return True
    return False


def _breaks(
    bill: Tried, rules: Policies, caps: list[Quota], goes: tuple[MonthlyOption, float],
    comes: tuple[MonthlyOption, int, float],
) -> bool:  # fmt: skip
    """Whether a policy stands against a change of machines, of so many USD for so many machines of so many USD."""
    (c, less), (d, n, more) = goes, comes
    after, tolerance = bill.usd - less + more, rules.share_tolerance
    if d.purchase == "spot" != c.purchase and bill.spot + more > rules.max_spot_share * after:
        return True
    if d.provider == c.provider:
        return False
    low, high = (rules.shares.get(x.provider, 0.0) + by for x, by in ((c, -tolerance), (d, tolerance)))
    if low > 0 and bill.by[c.provider] - less < low * after:
        return True
    if high < 1 and bill.by.get(d.provider, 0.0) + more > high * after:
        return True
    return any(d.provider == "a" and bill.on_a + n > cap.most for cap in caps)


def _idle(
    mine: list[MonthlyOption], demand: WorkloadDemand, taken: Counts, spare: Counts, rules: Policies, caps: list[Quota]
) -> bool:
    """Whether something stands by that is not needed, or more is paid for it than its provider asks for all of it."""
    ready = list(backups(mine, demand, taken, rules))
    for c, _ in spare:
        fewer = tuple((d, n - (d is c)) for d, n in spare if n - (d is c))
        if fewer in ready:
            return True
    for provider in {c.provider for c, _ in spare}:
        free = [
            c for c in mine if c.purchase == "on_demand" and c.provider == provider and not (caps and provider == "a")
        ]
        whole = min((math.ceil(rules.backup.share * c.instances) * c.usd_each for c in free), default=math.inf)
        paid = sum(n * c.usd_each for c, n in spare if c.provider == provider)
        if paid > whole + EDGE:
            return True
    return False


def holds(bill: Tried, rules: Policies, slack: float) -> bool:
    """Whether a bill is within all policies, by `slack` of it."""
    room, most = slack * bill.usd, rules.share_tolerance
    if rules.budget_per_month is not None and bill.usd > rules.budget_per_month + room:
        return False
    if bill.spot > rules.max_spot_share * bill.usd + room or any(bill.on_a > cap.most for cap in rules.quotas):
        return False
    return all(
        (share - most) * bill.usd - room <= bill.by.get(name, 0.0) <= (share + most) * bill.usd + room
        for name, share in rules.shares.items()
    )


def reported(found: Allocation, demands: list[WorkloadDemand]) -> Tried:
    """The bill of an answer, added up from its parts."""
    by: dict[str, float] = defaultdict(float)
    for t in found.taken:
        by[t.option.provider] += t.usd
    for (number, provider), share in found.volumes.items():
        by[provider] += share * demands[number].volumes_usd[provider]
    return Tried(
        by=dict(by), spot=sum(t.usd for t in found.taken if t.option.purchase == "spot"),
        on_a=sum(t.count for t in found.taken if t.option.provider == "a"),
    )  # fmt: skip


PURCHASES = ("on_demand", "spot", "reserved_1y")


@st.composite
def fleets(draw: Any) -> tuple[list[MonthlyOption], list[WorkloadDemand], Policies]:
    options, demands = [], []
    for number in range(draw(st.integers(1, 3))):
        split = draw(st.booleans())
        kinds = draw(
            st.lists(
                st.tuples(st.sampled_from("ab"), st.sampled_from(PURCHASES), st.integers(1, 3), st.integers(1, 60)),
                min_size=1, max_size=2 if split else 3, unique_by=lambda k: k[:2],
            )
        )  # fmt: skip
        options += [
            option(number, provider, float(usd), n, purchase=purchase, instance=f"{provider}{number}")
            for provider, purchase, n, usd in kinds
        ]  # fmt: skip
        stored = {p: float(draw(st.integers(0, 40))) for p in sorted({k[0] for k in kinds})}
        demands.append(
            WorkloadDemand(
                name=f"w{number}", splittable=split, flexible=False, backup=draw(st.integers(0, 4)) == 0,
                volumes_usd=stored if draw(st.booleans()) else {},
            )
        )  # fmt: skip
    share = draw(st.sampled_from([None, 0.3, 0.5, 0.8]))
    rules = replace(
        RULES,
        providers={} if share is None else {"a": share, "b": 1 - share},
        share_tolerance=draw(st.sampled_from([0.05, 0.2])),
        max_spot_share=draw(st.sampled_from([1.0, 0.3])),
        quotas=(
            (Quota(most=draw(st.integers(1, 4)), provider="a", instance=None),) if draw(st.booleans()) else ()
        ),
        backup=Backup(share=0.25, on=False, hours=draw(st.sampled_from([73, 365]))),
        budget_per_month=draw(st.sampled_from([None, None, 60.0])),
    )  # fmt: skip
    return options, demands, rules


@settings(max_examples=150, deadline=None)
@given(fleets())
def test_the_bill_is_the_least_that_holds_every_policy(
    fleet: tuple[list[MonthlyOption], list[WorkloadDemand], Policies],
) -> None:
    options, demands, rules = fleet
    bills = list(tried(options, demands, rules))
    strict = _least((b for b in bills if holds(b, rules, -EDGE)), options, demands, rules)
    try:
        found = allocate(options, demands, rules, gap=0.0)
    except InfeasibleError:
        assert strict is None
        return
    bill = reported(found, demands)
    assert holds(bill, rules, EDGE)
    assert found.usd == found.objective == pytest.approx(bill.usd)
    assert found.by_provider == pytest.approx(bill.by)
    assert strict is None or found.usd <= strict * (1 + 1e-6)
    if all(len(volumes(d, t)) == 1 for n, d in enumerate(demands) for t in _of(found, n)):
        loose = _least((b for b in bills if holds(b, rules, 1e-4)), options, demands, rules)
        assert loose is not None
        assert found.usd >= loose * (1 - 1e-6)


def _least(
    bills: Iterator[Tried], options: list[MonthlyOption], demands: list[WorkloadDemand], rules: Policies
) -> float | None:
    """The least of bills without waste."""
    ordered = sorted(bills, key=lambda b: b.usd)
    return next((b.usd for b in ordered if not wasteful(b, options, demands, rules)), None)


def _of(found: Allocation, number: int) -> list[Counts]:
    return [tuple((t.option, t.count) for t in found.taken if t.option.workload == number and t.role == "primary")]


@settings(max_examples=60, deadline=None)
@given(fleets())
def test_the_machines_and_volumes_are_the_workloads(
    fleet: tuple[list[MonthlyOption], list[WorkloadDemand], Policies],
) -> None:
    """Each is carried whole with less than the coarsest instance over; volumes are nowhere without machines."""
    options, demands, rules = fleet
    try:
        found = allocate(options, demands, rules)
    except InfeasibleError:
        return
    for number, demand in enumerate(demands):
        mine = [c for c in options if c.workload == number]
        taken = _of(found, number)[0]
        assert sorted((c.instance, c.purchase, n) for c, n in taken) in [
            sorted((c.instance, c.purchase, n) for c, n in way) for way in primaries(mine, demand)
        ]
        shares = {provider: share for (own, provider), share in found.volumes.items() if own == number}
        assert sum(shares.values()) == pytest.approx(1.0 if any(demand.volumes_usd.values()) else sum(shares.values()))
        assert set(shares) <= {c.provider for c, _ in taken}
