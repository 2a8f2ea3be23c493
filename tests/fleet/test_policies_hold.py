"""Every policy holds on the bill that is reported, and no cheaper bill holds them: all allocations of small fleets."""

from __future__ import annotations

import math
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, combinations, pairwise, product
from pathlib import Path
from typing import Any

import highspy
import numpy as np
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


Paid = tuple[str, bool]
"""A provider, and whether it is paid for spot."""


def has_redundant(options: list[MonthlyOption], demand: WorkloadDemand, taken: Counts, rules: Policies) -> bool:
    """Whether one machine less carries the workload for less money.

    At most the storage that went with it then costs what the dearest provider asks, and its provider's cheapest
    machines stand by for what it did for a backup: 1 of each part that it carried, and the share of the rest.
    """
    whole = sum(n / c.instances for c, n in taken)
    for c, _ in taken:
        part = 1 / c.instances
        if whole - part < 1 - EDGE:
            continue
        stored = demand.volumes_usd
        dearer = part * (max(stored.values()) - stored[c.provider]) if stored else 0.0
        standby = 0.0
        if demand.backup:
            share = rules.backup.share
            part = min(part + share * part, share)
            ready = [o for o in options if o.traits[:2] == c.traits[:2] and o.purchase == "on_demand"]
            ready = [] if c.provider == "a" and rules.quotas else ready
            hours = rules.backup.hours / 730
            standby = min((math.ceil(part * o.instances - EDGE) * o.usd_each * hours for o in ready), default=math.inf)
        if c.usd_each > dearer + standby + EDGE:
            return True
    return False


def counts_enough(
    bill: Tried, options: list[MonthlyOption], demands: list[WorkloadDemand], rules: Policies, slack: float
) -> bool:
    """Whether the shares, and the limit on spot, hold where no money beyond what work costs at least counts.

    A provider's work is worth its part of the workload's cheapest way there (on spot and else apart) with the traits
    that are open, what stands by the cheapest for all of the share, and neither more than is paid for it.
    Which parts those are is free within what the machines carry: a linear program.
    """
    if not rules.shares and rules.max_spot_share == 1:
        return True
    for number, (demand, (taken, _)) in enumerate(zip(demands, bill.taken, strict=True)):
        if demand.splittable and has_redundant([c for c in options if c.workload == number], demand, taken, rules):
            return False
    used = {trait for taken, spare in bill.taken for c, _ in (*taken, *spare) for trait in c.traits}
    unused = sorted({trait for c in options for trait in c.traits} - used, key=str)
    closings = chain.from_iterable(combinations(unused, size) for size in range(len(unused) + 1))
    open_ones = dict.fromkeys(
        tuple(n for n, c in enumerate(options) if not set(closed) & set(c.traits)) for closed in closings
    )
    return any(_counts_enough(bill, [options[n] for n in some], demands, rules, slack) for some in open_ones)


def _counts_enough(
    bill: Tried, options: list[MonthlyOption], demands: list[WorkloadDemand], rules: Policies, slack: float
) -> bool:
    """The same with those markets open that the options are in."""
    paid: dict[Paid, float] = {(p, spot): 0.0 for p in "ab" for spot in (False, True)}
    model = LinearRows()
    worth = {key: model.column() for key in paid}
    least: dict[Paid, dict[int, float]] = {key: {} for key in paid}
    for number, (demand, (taken, spare)) in enumerate(zip(demands, bill.taken, strict=True)):
        kinds: dict[tuple[str, bool, str], list[MonthlyOption]] = defaultdict(list)
        for c in options:
            if c.workload == number:
                kinds[c.provider, c.purchase == "spot", c.software if demand.backup else ""].append(c)
        hours = rules.backup.hours / 730
        parts, standing = list[int](), list[int]()
        for (provider, spot, _), mine in kinds.items():
            key = provider, spot
            paid[key] += sum(n * c.usd_each for c, n in taken if c in mine)
            paid[key] += sum(n * c.usd_each * hours for c, n in spare if c in mine)
            parts.append(model.column(sum(n / c.instances for c, n in taken if c in mine)))
            least[key][parts[-1]] = min(c.instances * c.usd_each for c in mine)
            ready = [c for c in mine if c.purchase == "on_demand" and demand.backup]
            if ready:
                share = rules.backup.share
                standing.append(model.column(sum(n / c.instances for c, n in spare if c in mine) / share))
                least[key][standing[-1]] = min(math.ceil(share * c.instances) * c.usd_each * hours for c in ready)
        model.row(dict.fromkeys(parts, 1.0), 1.0, 1.0)
        model.row(dict.fromkeys(standing, 1.0), 0.0, 1.0)
    for key, column in worth.items():
        model.row({column: 1.0}, 0.0, paid[key])
        model.row({column: 1.0} | {part: -usd for part, usd in least[key].items()}, -math.inf, 0.0)
    _add_shares(model, bill, rules, worth, paid, slack)
    return model.is_feasible


def _add_shares(
    model: LinearRows, bill: Tried, rules: Policies, worth: dict[Paid, int], paid: dict[Paid, float], slack: float,
) -> None:  # fmt: skip
    """Rows of the shares and of the limit on spot; storage is worth what it costs."""
    stored = {p: bill.by.get(p, 0.0) - sum(usd for key, usd in paid.items() if key[0] == p) for p in "ab"}
    room, tolerance = slack * bill.usd, rules.share_tolerance
    for name, share in rules.shares.items():
        (other,), low, high = {"a", "b"} - {name}, share - tolerance, share + tolerance
        mine, theirs = ([column for key, column in worth.items() if key[0] == p] for p in (name, other))
        if low > 0:
            needed = low * bill.by.get(other, 0.0) - (1 - low) * stored[name]
            model.row(dict.fromkeys(mine, 1 - low), needed - room, math.inf)
        if high < 1:
            needed = (1 - high) * bill.by.get(name, 0.0) - high * stored[other]
            model.row(dict.fromkeys(theirs, high), needed - room, math.inf)
    limit = rules.max_spot_share
    if limit < 1:
        needed = (1 - limit) * bill.spot - limit * sum(stored.values())
        model.row({column: limit for key, column in worth.items() if not key[1]}, needed - room, math.inf)


class LinearRows:
    """A linear program without whole numbers, of which only whether anything holds all rows is asked."""

    def __init__(self) -> None:
        self.solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]  # the library has no annotations
        self.solver.silent()

    def column(self, most: float = math.inf) -> int:
        self.solver.addVar(0.0, most)
        return int(self.solver.getNumCol()) - 1

    def row(self, terms: dict[int, float], low: float, high: float) -> None:
        columns, factors = np.array([*terms], dtype=np.int32), np.array([*terms.values()], dtype=float)
        self.solver.addRow(low, high, len(terms), columns, factors)

    @property
    def is_feasible(self) -> bool:
        self.solver.run()
        return bool(self.solver.getModelStatus() == highspy.HighsModelStatus.kOptimal)


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


PLACES: dict[str, dict[str, Any]] = {
    "usual": {}, "region": {"region": "s"}, "marketplace": {"marketplace": True}, "vendor": {"software": "rocm"},
    "retired": {"retires_on": "2025-09-30"},
    "device": {"gpu": "L4"}, "purchase": {"purchase": "reserved_1y"},
}  # fmt: skip
"""What machines are beside what they usually are: what a policy of that name would leave out."""
VALUE: dict[str, Callable[[MonthlyOption], object]] = {
    "region": lambda one: one.region, "marketplace": lambda one: one.offer.marketplace,
    "retired": lambda one: one.offer.retires_on,
    "vendor": lambda one: one.software, "device": lambda one: one.offer.accelerator,
    "purchase": lambda one: one.purchase,
}  # fmt: skip
"""What such a policy looks at."""


@st.composite
def fleets(
    draw: Any, places: tuple[str, ...] = ("usual", "region", "device")
) -> tuple[list[MonthlyOption], list[WorkloadDemand], Policies]:
    options, demands = [], []
    for number in range(draw(st.integers(1, 3))):
        split = draw(st.booleans())
        kinds = draw(
            st.lists(
                st.tuples(
                    st.sampled_from("ab"), st.sampled_from(PURCHASES), st.sampled_from(places), st.integers(1, 3),
                    st.integers(1, 60),
                ),
                min_size=1, max_size=2 if split else 3, unique_by=lambda k: k[:3],
            )
        )  # fmt: skip
        options += [
            option(
                number, provider, float(usd), n, instance=f"{provider}{number}",
                **{"purchase": purchase} | PLACES[place],
            )
            for provider, purchase, place, n, usd in kinds
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
    strict = _least(bills, options, demands, rules, -EDGE)
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
        loose = _least(bills, options, demands, rules, 1e-4)
        assert loose is not None
        assert found.usd >= loose * (1 - 1e-6)


def _least(
    bills: Iterable[Tried], options: list[MonthlyOption], demands: list[WorkloadDemand], rules: Policies, slack: float,
    above: float = 0.0,
) -> float | None:  # fmt: skip
    """The least of the bills that hold all policies, with shares of no more than work is worth.

    `above`: no cheaper bill does, as is known of less strict `slack`.
    """
    ordered = sorted((b for b in bills if b.usd >= above and holds(b, rules, slack)), key=lambda b: b.usd)
    return next((b.usd for b in ordered if counts_enough(b, options, demands, rules, slack)), None)


def _bounds(
    bills: list[Tried], options: list[MonthlyOption], demands: list[WorkloadDemand], rules: Policies
) -> tuple[float, float]:
    """The least bills that hold all policies strictly and loosely; infinite without any."""
    loose = _least(bills, options, demands, rules, 1e-4)
    if loose is None:
        return math.inf, math.inf
    strict = _least(bills, options, demands, rules, -EDGE, above=loose)
    return math.inf if strict is None else strict, loose


def _of(found: Allocation, number: int) -> list[Counts]:
    return [tuple((t.option, t.count) for t in found.taken if t.option.workload == number and t.role == "primary")]


@settings(max_examples=100, deadline=None)
@given(fleets(), st.sampled_from(["shares", "spot", "all spot", "quotas", "budget"]))
def test_a_looser_policy_never_costs_more(
    fleet: tuple[list[MonthlyOption], list[WorkloadDemand], Policies], which: str
) -> None:
    """Wider shares, more on spot or all, larger quotas, a larger budget: what was allowed stays allowed."""
    options, demands, rules = fleet
    try:
        strict = allocate(options, demands, rules, gap=0.0)
    except InfeasibleError:
        return
    more = {
        "shares": {"share_tolerance": rules.share_tolerance + 0.1},
        "spot": {"max_spot_share": (1 + rules.max_spot_share) / 2},
        "all spot": {"max_spot_share": 1.0},
        "quotas": {"quotas": tuple(replace(quota, most=quota.most + 2) for quota in rules.quotas)},
        "budget": {"budget_per_month": None},
    }
    looser = replace(rules, **more[which])  # type: ignore[arg-type]  # by name
    assert allocate(options, demands, looser, gap=0.0).usd <= strict.usd * (1 + 1e-6)


@pytest.mark.parametrize("which", VALUE)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_one_more_of_what_policies_allow_never_costs_more(which: str, data: st.DataObject) -> None:
    """One more region, the marketplace, retired machines, one more vendor, device or way to buy: no plan is lost."""
    options, demands, rules = data.draw(fleets(("usual", which)))
    usual = [one for one in options if VALUE[which](one) not in PLACES[which].values()]
    try:
        strict = allocate(usual, demands, rules, gap=0.0)
    except InfeasibleError:
        return
    assert allocate(options, demands, rules, gap=0.0).usd <= strict.usd * (1 + 1e-6)


@pytest.mark.parametrize("which", VALUE)
def test_one_more_of_it_with_shares_that_bind_never_costs_more(which: str) -> None:
    """Two or three workloads that two providers do, cheaper with one more; each bill is the least by hand."""
    draw, cheaper = random.Random(which), 0  # noqa: S311 - figures for a test
    for _ in range(40):
        numbers = range(draw.randint(2, 3))
        usual = [option(n, p, float(draw.randint(40, 120))) for n in numbers for p in draw.choice(["a", "b", "ab"])]
        more = [
            option(o.workload, o.provider, round(o.usd_each * draw.uniform(0.2, 1.1)), **PLACES[which])
            for o in usual
            if draw.random() < 0.6
        ]
        demands = [WorkloadDemand(name=f"w{n}", splittable=False, flexible=False) for n in numbers]
        share = draw.choice([0.3, 0.5, 0.7])
        rules = replace(RULES, providers={"a": share, "b": 1 - share}, share_tolerance=0.1)
        least = math.inf
        for some in (usual, usual + more):
            try:
                usd = allocate(some, demands, rules, gap=0.0).usd
            except InfeasibleError:
                usd = math.inf
            assert usd <= least * (1 + 1e-6)
            cheaper += usd < least < math.inf
            strict, loose = _bounds(list(tried(some, demands, rules)), some, demands, rules)
            assert loose * (1 - 1e-6) <= usd <= strict * (1 + 1e-6)
            least = usd
    assert cheaper, "some of the bills get smaller"


STEPS: dict[str, list[float | None]] = {
    "max_spot_share": [0.1, 0.3, 0.6, 1.0],
    "share_tolerance": [0.05, 0.1, 0.2, 0.4],
    "budget_per_month": [100.0, 150.0, 200.0, None],
}
"""Values of policies from the strictest to the loosest."""


@pytest.mark.parametrize("field", STEPS)
def test_each_step_that_relaxes_a_policy_costs_no_more(field: str) -> None:
    """Nor is it refused: two workloads and more that two providers do on spot and on demand, with shares of the bill.

    Each bill is the least by hand, and what is refused holds with nothing.
    """
    draw = random.Random(11)  # noqa: S311 - figures for a test
    for _ in range(40):
        numbers = range(draw.randint(2, 3))
        options = [option(n, p, float(draw.randint(40, 120))) for n in numbers for p in draw.choice(["a", "b", "ab"])]
        options += [
            option(o.workload, o.provider, round(o.usd_each * draw.uniform(0.2, 0.9)), purchase="spot")
            for o in options
            if draw.random() < 0.7
        ]
        demands = [WorkloadDemand(name=f"w{n}", splittable=False, flexible=False) for n in numbers]
        share = draw.choice([0.3, 0.5, 0.7])
        rules = replace(RULES, providers={"a": share, "b": 1 - share}, share_tolerance=0.1)
        bills = list(tried(options, demands, rules))
        least = math.inf
        for value in STEPS[field]:
            looser = replace(rules, **{field: value})  # type: ignore[arg-type]  # by name
            try:
                usd = allocate(options, demands, looser, gap=0.0).usd
            except InfeasibleError:
                usd = math.inf
            assert usd <= least * (1 + 1e-6)
            strict, loose = _bounds(bills, options, demands, looser)
            assert loose * (1 - 1e-6) <= usd <= strict * (1 + 1e-6)
            least = min(least, usd)


Keep = Callable[[MonthlyOption], bool]
ALLOWED: dict[str, list[Keep]] = {
    "regions": [lambda one: one.region == "r", lambda one: one.region != "t", lambda _: True],
    "devices": [lambda one: one.offer.accelerator != "L4", lambda _: True],
    "purchase": [lambda one: one.purchase == "on_demand", lambda one: one.purchase != "reserved_1y", lambda _: True],
}
"""What policies allow of the options of a large fleet, from the strictest to the loosest."""
LIMITS: dict[str, list[float]] = {"share_tolerance": [0.03, 0.06, 0.15], "max_spot_share": [0.1, 0.3, 1.0]}


@cache
def large_fleet(seed: int) -> tuple[list[MonthlyOption], list[WorkloadDemand], Policies]:
    """Over 4,000 options: 110 workloads, three providers, regions and ways to buy; shares that bind for one provider.

    These are of the cheapest bill on demand in one region, a tenth of it moved to the provider that has least.
    """
    draw, options, demands = random.Random(seed), list[MonthlyOption](), list[WorkloadDemand]()  # noqa: S311 - a test
    level = {name: draw.uniform(0.8, 1.3) for name in "abc"}
    place = {(name, region): 1.0 if region == "r" else draw.uniform(0.4, 1.3) for name in "abc" for region in "rst"}
    device = {"H100-SXM-80": 1.0, "L4": draw.uniform(0.5, 1.3)}
    buying = {"on_demand": 1.0, "spot": draw.uniform(0.2, 0.6), "reserved_1y": draw.uniform(0.5, 0.9)}
    for number in range(110):
        usd, interruptible = 10 ** draw.uniform(1, 2.5), draw.random() < 0.5
        ways = product(draw.sample("abc", draw.choice([2, 3, 3])), "rst", device, buying)
        options += [
            option(
                number, name, usd * level[name] * place[name, region] * device[gpu] * buying[how]
                * draw.uniform(0.9, 1.2), region=region, gpu=gpu, purchase=how, instance=f"{name}{gpu}",
            )
            for name, region, gpu, how in ways
            if how != "spot" or interruptible
        ]  # fmt: skip
        demands.append(WorkloadDemand(name=f"w{number}", splittable=draw.random() < 0.4, flexible=False))
    usual = [one for one in options if ALLOWED["regions"][0](one) and ALLOWED["purchase"][0](one)]
    free = allocate(usual, demands, RULES)
    least = min("abc", key=lambda name: free.by_provider.get(name, 0.0))
    shares = {name: 0.9 * free.by_provider.get(name, 0.0) / free.usd + 0.1 * (name == least) for name in "abc"}
    return options, demands, replace(RULES, providers=shares, share_tolerance=0.04)


@cache
def whole_allocation(seed: int) -> Allocation:
    """Of all options, which every field of `ALLOWED` ends with."""
    return allocate(*large_fleet(seed))


@pytest.mark.parametrize("field", [*ALLOWED, *LIMITS])
@pytest.mark.parametrize("seed", [0, 2])
def test_a_looser_policy_never_costs_more_in_a_large_fleet(seed: int, field: str) -> None:
    """But for the solver's own gap; and nothing is left unknown of what leaving others out would save."""
    options, demands, rules = large_fleet(seed)
    assert len(options) > 4000
    if field in ALLOWED:
        *stricter, loosest = ALLOWED[field]
        assert all(map(loosest, options))
        found = [allocate([one for one in options if keep(one)], demands, rules) for keep in stricter]
        found.append(whole_allocation(seed))
    else:
        looser = (replace(rules, **{field: limit}) for limit in LIMITS[field])  # type: ignore[arg-type]  # by name
        found = [allocate(options, demands, one) for one in looser]
    assert all(one.whole_traits for one in found)
    assert all(later.usd <= before.usd * 1.0011 for before, later in pairwise(found))


@settings(max_examples=100, deadline=None)
@given(fleets())
def test_no_provider_is_paid_more_than_its_machines_in_use_could_do_the_work_for(
    fleet: tuple[list[MonthlyOption], list[WorkloadDemand], Policies],
) -> None:
    """With the regions, devices and ways to buy that some workload uses: what costs more moves no share.

    Where no quota forces it. Spot is compared with spot: what nobody interrupts does more.
    """
    options, demands, rules = fleet
    try:
        found = allocate(options, demands, replace(rules, quotas=()), gap=0.0)
    except InfeasibleError:
        return
    used = {trait for taken in found.taken for trait in taken.option.traits}
    for taken in (one for one in found.taken if one.role == "primary"):
        own, demand = taken.option, demands[taken.option.workload]
        if demand.splittable or demand.backup:
            continue
        alike = (
            one.instances * one.usd_each
            for one in options
            if (one.workload, one.provider) == (own.workload, own.provider) and {*one.traits} <= used
            if (one.purchase == "spot") == (own.purchase == "spot")
        )
        assert taken.usd <= min(alike) * (1 + 1e-6)


@settings(max_examples=60, deadline=None)
@given(fleets())
def test_a_restriction_that_the_bill_meets_does_not_change_it(
    fleet: tuple[list[MonthlyOption], list[WorkloadDemand], Policies],
) -> None:
    """Quotas of what is taken, a budget of the bill, no more on spot than there is."""
    options, demands, rules = fleet
    try:
        found = allocate(options, demands, rules, gap=0.0)
    except InfeasibleError:
        return
    bill = reported(found, demands)
    quotas = (*rules.quotas, *(Quota(most=n, provider="a", instance=None) for n in [bill.on_a] if n))
    held = replace(rules, quotas=quotas, budget_per_month=found.usd * (1 + 1e-9))
    assert allocate(options, demands, held, gap=0.0).usd == pytest.approx(found.usd, rel=1e-6)


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
