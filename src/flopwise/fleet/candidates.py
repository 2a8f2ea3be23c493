"""Each workload's ways to run: offers x purchase x layouts, as `plan` finds them, sized and paid for a month.

Workloads that are the same but for their name are searched once. Of the ways found, those go on that no other of the
same provider and purchase makes pointless.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from flopwise.errors import InfeasibleError
from flopwise.fleet.places import offers_of
from flopwise.fleet.pricing import effective
from flopwise.fleet.searches import Key, Search, Searched, searched
from flopwise.search.answer import Candidate, Plan
from flopwise.units import HOUR_S, HOURS_PER_MONTH, format_bytes, format_seconds

if TYPE_CHECKING:
    from pathlib import Path

    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer
    from flopwise.fleet.file import Placed, Platform
    from flopwise.search.workload import Resolved

Advance = Callable[[int, int], None]
KEPT = 5
"""Instance types of one provider, bought one way, that go into the allocation of a workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to carry one workload for a month: `instances` machines, each on `busy_hours` and paid `paid_hours`.

    `kwh`: a month, at the meter, of all instances; None where a power limit is not known.
    """

    workload: int
    candidate: Candidate
    offer: Offer
    instances: int
    unit: int  # instances of one replica
    busy_hours: float
    paid_hours: float
    usd_per_hour: float
    usd_each: float
    kwh: float | None
    notes: tuple[str, ...] = ()

    @property
    def purchase(self) -> str:
        """How its machines are bought."""
        return self.candidate.purchase

    @property
    def usd(self) -> float:
        """A month of all instances, nothing shared."""
        return self.instances * self.usd_each


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A workload with the ways that carry it, cheapest first, and the plan they come from."""

    index: int
    placed: Placed
    wanted: Resolved | None  # as it was searched: with its window and the ways to buy
    plan: Plan | None
    ways: tuple[Way, ...]
    reasons: tuple[str, ...]  # where nothing carries it
    notes: tuple[str, ...] = ()

    @property
    def splittable(self) -> bool:
        """Whether its machines may be of several kinds: replicas, and machines to work on."""
        return self.placed.job.task not in {"pretrain", "finetune"}


def carried(platform: Platform, facts: Facts, advance: Advance | None = None) -> tuple[Carried, ...]:
    """Every workload with its ways; `advance(done, whole)` is called as workloads are searched.

    Raises:
        SpecError, UnknownNameError: a workload names what does not exist.
    """
    asked: dict[Key, Search] = {}
    places = _Places(platform, facts)
    keys = [_asked(placed, platform, places, asked) for placed in platform.workloads]
    answers = searched(asked, advance or (lambda _done, _whole: None))
    return tuple(
        _one(index, placed, places, None if key is None else (asked[key].wanted, answers[key]))
        for index, (placed, key) in enumerate(zip(platform.workloads, keys, strict=True))
    )


class _Places:
    """The offers that workloads may use, kept for those with the same residency and tags."""

    def __init__(self, platform: Platform, facts: Facts) -> None:
        self.platform, self.facts = platform, facts
        self._known: dict[tuple[tuple[str, ...], ...], tuple[Facts, dict[str, int]]] = {}

    def key(self, placed: Placed) -> tuple[tuple[str, ...], ...]:
        """What tells workloads apart here."""
        return tuple(placed.job.residency), tuple(placed.job.tags)

    def of(self, placed: Placed) -> tuple[Facts, dict[str, int]]:
        """The facts with only those offers, and how many fell for which reason."""
        key = self.key(placed)
        if key not in self._known:
            self._known[key] = offers_of(placed, self.platform, self.facts)
        return self._known[key]


def _asked(placed: Placed, platform: Platform, places: _Places, asked: dict[Key, Search]) -> Key | None:
    """Note the search that a workload needs; None where it needs none."""
    offered, _ = places.of(placed)
    if placed.wanted is None or not offered.offers or not purchases(placed):
        return None
    wanted = searched_as(placed, platform)
    key = msgspec.json.encode([wanted, places.key(placed)])
    asked.setdefault(key, Search(wanted=wanted, facts=offered))
    return key


def window_s(placed: Placed, platform: Platform) -> float:
    """Longest that one run may take: its share of the hours that the schedule has machines on, or of the month."""
    said = placed.job.hours is not None or placed.job.environment is not None
    said = said or placed.environment in platform.fleet.environments
    hours = placed.hours_per_month if said else HOURS_PER_MONTH
    return hours / (placed.runs_per_month or 1.0) * HOUR_S


def searched_as(placed: Placed, platform: Platform) -> Resolved:
    """The workload that is searched: bought as the fleet allows, each run within its window."""
    assert placed.wanted is not None
    wanted = placed.wanted
    asked = wanted.source.constraints.purchase
    buys = [p for p in purchases(placed) if not asked or p in asked]
    limits = msgspec.structs.replace(wanted.source.constraints, purchase=buys)
    changes: dict[str, Any] = {"source": msgspec.structs.replace(wanted.source, constraints=limits, name=None)}
    if placed.ends:
        longest = window_s(placed, platform)
        changes["deadline_s"] = longest if wanted.deadline_s is None else min(longest, wanted.deadline_s)
    return msgspec.structs.replace(wanted, **changes)


def purchases(placed: Placed) -> list[str]:
    """Ways to buy: spot only what may be interrupted."""
    return [p for p in placed.purchase if p != "spot" or placed.interruptible]


def _one(index: int, placed: Placed, places: _Places, found: tuple[Resolved, Searched] | None) -> Carried:
    offered, fell = places.of(placed)
    told = [f"{count} offers: {reason}" for reason, count in fell.items()]
    buys = purchases(placed)
    if not offered.offers or not buys:
        why = told if buys else ["spot is the only way to buy, and it may not be interrupted"]
        return Carried(index=index, placed=placed, wanted=None, plan=None, ways=(), reasons=tuple(why))
    if found is None:
        machines = _workstations(index, placed, offered, buys)
        told = [] if machines else [_no_machine(placed, offered)]
        return Carried(index=index, placed=placed, wanted=None, plan=None, ways=machines, reasons=tuple(told))
    wanted, answer = found
    if answer.plan is None or not answer.plan.plans:
        why = list(answer.reasons) if answer.plan is None else _missing(answer.plan, wanted)
        return Carried(
            index=index,
            placed=placed,
            wanted=wanted,
            plan=answer.plan,
            ways=(),
            reasons=tuple(why + told) or ("unknown",),
        )
    offers = {(o.provider, o.instance, o.region): o for o in offered.offers}
    ways = [
        way(index, placed, c, offers[c.provider, c.instance, c.region], folder=offered.folder)
        for c in answer.plan.plans
    ]
    ways.sort(key=lambda w: w.usd)
    few = f"only the {answer.few} most promising kinds of machines were searched: the fleet is large"
    notes = () if answer.few is None else (few,)
    return Carried(
        index=index, placed=placed, wanted=wanted, plan=answer.plan, ways=tuple(ways), reasons=(), notes=notes
    )


def _missing(answer: Plan, wanted: Resolved) -> list[str]:
    """Why nothing carries it: the nearest miss with its figures, then what was ruled out."""
    told = []
    if answer.misses:
        near = answer.misses[0]
        over = ", ".join(f"{name} {times:.2g} times its limit" for name, times in near.shortfall.items() if times > 1)
        odds = ", ".join(f"{name} met with {100 * p:.0f} %" for name, p in near.meets.items() if p < wanted.confidence)
        told.append(
            f"the nearest is {near.num_instances} x {near.provider} {near.instance} ({near.gpu}), "
            f"{format_seconds(near.seconds)}: {over or odds or 'beyond a limit'}"
        )
    return told + [f"{r.reason} ({r.count} {r.unit}{': ' + r.example if r.example else ''})" for r in answer.ruled_out]


def way(
    index: int, placed: Placed, candidate: Candidate, offer: Offer, factor: float = 1.0, folder: Path | None = None
) -> Way:
    """A candidate as it serves a month, of `factor` times the traffic or runs it was planned for.

    Services get as many more replicas, so that each has as many requests as planned; runs are as many more.
    """
    gpus_each = max(1, candidate.num_gpus // candidate.num_instances)
    instances, unit, runs = candidate.num_instances, 1, (placed.runs_per_month or 1.0) * factor
    held = candidate.layout
    if "replicas" in held:
        each = held["tp"] * held["pp"] * held["dp"]
        unit = max(1, -(-each // gpus_each))
        if factor != 1.0 and not placed.ends:
            replicas = -(-round(held["replicas"] * factor * 1e6) // 10**6)
            instances = replicas * unit if each > gpus_each else -(-replicas // max(1, gpus_each // each))
    if placed.wanted is None:
        instances = candidate.num_instances
    if placed.ends:
        busy = candidate.seconds / HOUR_S * runs
        at_once = max(1, -(-round(busy / HOURS_PER_MONTH * 1e6) // 10**6))
        instances, busy = instances * at_once, busy / at_once
        energy = None if candidate.energy_joules is None else candidate.energy_joules * runs
    else:
        busy = placed.hours_per_month
        energy = None
        if candidate.energy_joules is not None:
            energy = candidate.energy_joules * busy / HOURS_PER_MONTH * instances / candidate.num_instances
    counted = 0.0 if placed.job.task in {"pretrain", "finetune"} else None  # runs have their interruptions in them
    price = effective(
        offer,
        candidate.purchase,
        busy,
        interruptible=placed.interruptible,
        interruptions_per_hour=counted,
        starts_per_month=runs if placed.ends else placed.schedule.starts_per_month,
        folder=folder,
    )
    assert price is not None, "the search takes what has a price"
    return Way(
        workload=index,
        candidate=candidate,
        offer=offer,
        instances=instances,
        unit=unit,
        busy_hours=busy,
        paid_hours=price.billed_hours,
        usd_per_hour=price.usd_per_hour_list,
        usd_each=price.usd_per_month,
        kwh=None if energy is None else energy / 3.6e6,
        notes=price.notes,
    )


def scaled(item: Carried, factor: float, folder: Path | None = None) -> Carried:
    """The workload with `factor` times the traffic or runs, on the same layouts.

    Assumes: what it sends grows with its traffic or runs; what it stores does not.
    """
    if factor == 1.0 or item.placed.wanted is None:
        return item
    placed, few = item.placed, chosen_few(item)
    more = replace(placed, egress_bytes=placed.egress_bytes * factor, inter_zone_bytes=placed.inter_zone_bytes * factor)
    ways = tuple(way(item.index, placed, w.candidate, w.offer, factor, folder) for w in few)
    return replace(item, placed=more, ways=ways)


def _workstations(index: int, placed: Placed, facts: Facts, buys: list[str]) -> tuple[Way, ...]:
    """Machines to work on: every offer with enough accelerators of enough memory, one instance a machine."""
    job = placed.job
    assert job.machines is not None
    named = {facts.accelerator(name).name for name in job.machines.gpus}
    found = []
    for offer in facts.offers:
        device = facts.offered_accelerator(offer)
        if (named and offer.accelerator not in named) or not _fits(placed, offer, device.hbm_bytes, device.kind):
            continue
        limits = job.constraints
        if limits.providers and offer.provider not in limits.providers:
            continue
        if limits.instances and offer.instance not in limits.instances:
            continue
        found += [
            way(index, placed, _machine(placed, offer, buy, device.hbm_bytes), offer, folder=facts.folder)
            for buy in buys
            if offer.price_usd_per_hour(buy) is not None
        ]
    return tuple(sorted(found, key=lambda w: w.usd))


def _fits(placed: Placed, offer: Offer, hbm_bytes: float, kind: str) -> bool:
    least = placed.least_memory_bytes or 0.0
    return kind != "cpu" and offer.count >= placed.gpus_each and hbm_bytes >= 0.93 * least


def _machine(placed: Placed, offer: Offer, purchase: str, hbm_bytes: float) -> Candidate:
    rate = offer.price_usd_per_hour(purchase) or 0.0
    count = placed.workstations
    return Candidate(
        rank=0, provider=offer.provider, region=offer.region, instance=offer.instance, num_instances=count,
        gpu=offer.accelerator, num_gpus=count * offer.count, purchase=purchase, layout={}, seconds=0.0,
        usd_per_hour=rate * count, cost_usd=rate * count * placed.hours_per_month, energy_joules=None, meets={},
        figures={}, memory_bytes=placed.least_memory_bytes or 0.0, capacity_bytes=float(hbm_bytes),
        price_date=offer.price_date, price_source=offer.source,
    )  # fmt: skip


def _no_machine(placed: Placed, facts: Facts) -> str:
    most = max(facts.offered_accelerator(o).hbm_bytes for o in facts.offers)
    asked = f"{placed.gpus_each} accelerators"
    if placed.least_memory_bytes:
        asked += f" of {format_bytes(placed.least_memory_bytes)} each"
    return f"no machine on offer has {asked} and a known price; the largest accelerator has {format_bytes(most)}"


def chosen_few(item: Carried, most: int = KEPT) -> list[Way]:
    """The ways worth weighing: of each provider and purchase the cheapest few instance types, and the greenest.

    The unit that replicas come in has to be the same kind for all: ways whose replicas span machines are left out where
    others do not.
    """
    groups: dict[tuple[str, str], list[Way]] = defaultdict(list)
    for found in item.ways:
        groups[found.offer.provider, found.purchase].append(found)
    kept: list[Way] = []
    for group in groups.values():
        best = group[:most]
        green = [w for w in group if w.kwh is not None]
        if green:
            least = min(green, key=lambda w: w.kwh or 0.0)
            best += [] if any(least is w for w in best) else [least]
        kept += best
    return kept


def unmet(items: Sequence[Carried]) -> None:
    """Refuse a fleet with workloads that nothing carries.

    Raises:
        InfeasibleError: names them, with the reasons.
    """
    lost = [item for item in items if not item.ways]
    if lost:
        names = ", ".join(item.placed.name[:60] for item in lost[:10])
        raise InfeasibleError(
            f"nothing on offer can run {len(lost)} of the {len(items)} workloads: {names}",
            [f"{item.placed.name[:60]}: {reason}" for item in lost for reason in item.reasons[:6]],
        )
