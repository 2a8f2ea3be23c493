"""Each workload's ways to run: offers x purchase x layouts, as `plan` finds them, sized and paid for a month.

Workloads that are the same but for their name are searched once. Of the ways found, those go on that no other of the
same provider and purchase makes pointless.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from flopwise.errors import InfeasibleError, SpecError
from flopwise.fleet.own import OwnOffer, with_own
from flopwise.fleet.places import offers_of
from flopwise.fleet.searches import Key, Search, Searched, searched
from flopwise.fleet.spec import API, OWNED
from flopwise.fleet.tokens import api_offers
from flopwise.fleet.way import Way, api_way, way
from flopwise.fleet.workstations import why_none, workstations
from flopwise.search.answer import Plan
from flopwise.search.plan import check
from flopwise.units import HOUR_S, HOURS_PER_MONTH, format_seconds

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer
    from flopwise.fleet.file import Placed, Platform
    from flopwise.search.workload import Resolved

Advance = Callable[[int, int], None]
KEPT = 5
"""Instance types of one provider, bought one way, that go into the allocation of a workload."""


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
    few: int | None = None  # kinds of machines that were searched, of more

    @property
    def splittable(self) -> bool:
        """Whether its machines may be of several kinds: replicas, and machines to work on."""
        return splittable(self.placed)


def splittable(placed: Placed) -> bool:
    """Whether a workload's machines may be of several kinds."""
    return placed.job.task not in {"pretrain", "finetune"}


def carried(platform: Platform, facts: Facts, advance: Advance | None = None, *, times: int = 1) -> tuple[Carried, ...]:
    """Every workload with its ways; `advance(done, whole)` is called as workloads are searched.

    `times`: so many times the kinds of machines that are searched for each workload of a large fleet.

    Raises:
        SpecError, UnknownNameError: a workload names what does not exist.
    """
    asked: dict[Key, Search] = {}
    facts = with_own(facts, platform.machines)
    _check(platform, facts)
    places = _Places(platform, facts)
    keys = [_asked(number, platform, places, asked) for number in range(len(platform.workloads))]
    answers = searched(asked, advance or (lambda _done, _whole: None), tuple(platform.rules.providers), times)
    return tuple(
        _one(index, placed, places, [(asked[key].wanted, answers[key]) for key in mine])
        for index, (placed, mine) in enumerate(zip(platform.workloads, keys, strict=True))
    )


def _check(platform: Platform, facts: Facts) -> None:
    """Refuse what no machine could run, in whichever workload, before the first search."""
    seen = set[bytes]()
    for number, placed in enumerate(platform.workloads):
        if placed.wanted is None:
            continue
        wanted = placed.wanted.nameless
        key = msgspec.json.encode(wanted, enc_hook=str)
        if key in seen:
            continue
        try:
            check(wanted, facts)
        except SpecError as error:
            raise SpecError(f"{_where(number, platform)}: {error}") from None
        seen.add(key)


def _where(number: int, platform: Platform) -> str:
    """File and line of a workload, as far as they are known, and its name."""
    at, name = platform.source.at(f"workloads.{number}"), platform.workloads[number].name
    return f"{at}: workload {name[:60]}".removeprefix(": ")


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


def _asked(number: int, platform: Platform, places: _Places, asked: dict[Key, Search]) -> list[Key]:
    """Note the searches that a workload needs: over what is rented, and over each kind of own machines.

    Own machines are searched apart: there are only so many, and their price must not rule out what could be rented.
    """
    placed = platform.workloads[number]
    if placed.wanted is None:
        return []
    offered, _ = places.of(placed)
    own = [offer for offer in offered.offers if isinstance(offer, OwnOffer)]
    parts: list[tuple[list[str], tuple[Offer, ...]]] = []
    if rented := purchases(placed):
        parts.append(
            (rented, tuple(o for o in offered.offers if not isinstance(o, OwnOffer)) if own else offered.offers)
        )
    if OWNED in placed.purchase:
        parts += [([OWNED], (offer,)) for offer in own]
    keys = []
    for buys, offers in parts:
        some = offered.replaced(offers=offers) if own else offered
        wanted: Resolved | None = searched_as(placed, platform, buys)
        if wanted is not None and platform.machines:
            wanted = narrowed(wanted, some, whole=not splittable(placed))
        if wanted is None or not offers:
            continue
        mine = offers[0].instance if buys == [OWNED] else ""
        key = msgspec.json.encode([wanted, places.key(placed), mine], enc_hook=str)
        asked.setdefault(key, Search(wanted=wanted, facts=some, where=_where(number, platform)))
        keys.append(key)
    return keys


def window_s(placed: Placed, platform: Platform) -> float:
    """Longest that one run may take: its share of the hours that the schedule has machines on, or of the month."""
    said = placed.job.hours is not None or placed.job.environment is not None
    said = said or placed.environment in (platform.fleet.environments or {})
    hours = placed.hours_per_month if said else HOURS_PER_MONTH
    return hours / (placed.runs_per_month or 1.0) * HOUR_S


def searched_as(placed: Placed, platform: Platform, buys: list[str]) -> Resolved:
    """The workload that is searched: bought as the fleet allows, each run within its window."""
    assert placed.wanted is not None
    wanted = placed.wanted
    asked = wanted.limits.purchase
    allowed = tuple(p for p in buys if not asked or p == OWNED or p in asked)
    bought = wanted.nameless.limited(purchase=allowed or ("on_demand",))
    if not placed.ends:
        return bought
    longest = window_s(placed, platform)
    return replace(bought, deadline_s=longest if wanted.deadline_s is None else min(longest, wanted.deadline_s))


def narrowed(wanted: Resolved, facts: Facts, *, whole: bool) -> Resolved | None:
    """The workload with only those of its constraints' names that these offers have; None where they exclude them all.

    A constraint may name machines of one's own and rented ones alike. What is carried `whole` has no more machines of
    one's own than there are; others may have some of them.
    """
    limits, offers = wanted.limits, facts.offers
    have: dict[str, Callable[[str], bool]] = {
        "providers": lambda name: any(o.provider.lower() == name.lower() for o in offers),
        "regions": lambda name: any(o.serves(name) for o in offers),
        "instances": lambda name: any(o.instance.lower() == name.lower() for o in offers),
        "gpus": lambda name: any(o.accelerator == facts.accelerator(name).name for o in offers),
    }
    kept = {field: tuple(name for name in getattr(limits, field) if known(name)) for field, known in have.items()}
    if any(getattr(limits, field) and not names for field, names in kept.items()):
        return None
    own = [o for o in offers if isinstance(o, OwnOffer)]
    most = min([wanted.max_gpus, *(o.most * o.count for o in own if whole)])
    if most < wanted.min_gpus:
        return None
    return replace(wanted.limited(**kept), max_gpus=most)


def purchases(placed: Placed) -> list[str]:
    """Ways to rent: spot only what may be interrupted."""
    return [p for p in placed.purchase if p not in {OWNED, API} and (p != "spot" or placed.interruptible)]


def _buys(placed: Placed) -> list[str]:
    """Ways to have machines to work on."""
    return [*purchases(placed), *(p for p in placed.purchase if p == OWNED)]


def _one(index: int, placed: Placed, places: _Places, found: list[tuple[Resolved, Searched]]) -> Carried:
    offered, fell = places.of(placed)
    apis, notes = api_offers(placed, places.platform, offered)
    ways = [api_way(index, placed, offer) for offer in apis]
    own, told = [o for o in offered.offers if isinstance(o, OwnOffer)], list[str]()
    if own and OWNED not in placed.purchase:
        notes.append(f"its list of ways to buy leaves own machines out; add {OWNED} to use them")
    elif own:
        told += [offer.assumed for offer in own]
    if placed.wanted is None:
        ways += workstations(index, placed, offered, _buys(placed))
    offers = {o.key: o for o in offered.offers}
    for _, answer in found:
        plans = [] if answer.plan is None else answer.plan.plans
        ways += [way(index, placed, c, offers[c.provider, c.instance, c.region], offered) for c in plans]
        if answer.few is not None:
            told.append(f"only the {answer.few} most promising kinds of machines were searched: the fleet is large")
    reasons = () if ways else _why_none(placed, offered, fell, found, notes)
    told += [f"{placed.name[:60]}: {note}" for note in notes]
    return Carried(
        index=index,
        placed=placed,
        wanted=found[0][0] if found else placed.wanted,
        plan=_together([answer.plan for _, answer in found if answer.plan is not None]),
        ways=tuple(sorted(ways, key=lambda w: w.usd)),
        reasons=tuple(reasons),
        notes=tuple(told),
        few=min((answer.few for _, answer in found if answer.few is not None), default=None),
    )


def _together(plans: list[Plan]) -> Plan | None:
    """The answers of one workload's searches as one: candidates of all, cheapest first."""
    if len(plans) < 2:
        return plans[0] if plans else None
    ranked = sorted((c for p in plans for c in p.plans), key=lambda c: c.cost_usd)
    return msgspec.structs.replace(
        plans[0],
        plans=[msgspec.structs.replace(c, rank=n) for n, c in enumerate(ranked, start=1)],
        misses=[c for p in plans for c in p.misses],
        ruled_out=[r for p in plans for r in p.ruled_out],
        assumptions=list(dict.fromkeys(text for p in plans for text in p.assumptions)),
        evaluated=sum(p.evaluated for p in plans),
        elapsed_s=sum(p.elapsed_s for p in plans),
    )


def _why_none(
    placed: Placed, offered: Facts, fell: dict[str, int], found: list[tuple[Resolved, Searched]], notes: list[str]
) -> list[str]:
    """Why nothing carries a workload."""
    told = [f"{count} offers: {reason}" for reason, count in fell.items()] + notes
    if not placed.purchase:
        return [f"{API} is the only way to buy, and answers requests: it cannot {placed.job.task}"]
    if not found and placed.purchase == ("spot",) and not placed.interruptible:
        return ["spot is the only way to buy, and it may not be interrupted"]
    if not found and placed.wanted is None and offered.offers and set(placed.purchase) - {"spot", API}:
        return [*why_none(placed, offered, _buys(placed)), *told]
    why: list[str] = []
    for wanted, answer in found:
        why += list(answer.reasons) if answer.plan is None else _missing(answer.plan, wanted)
    return why + told or ["no offer that its constraints name is left"]


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


def scaled(item: Carried, factor: float, facts: Facts) -> Carried:
    """The workload with `factor` times the traffic or runs, on the same layouts.

    Assumes: what it sends grows with its traffic or runs; what it stores does not.
    """
    if factor == 1.0 or item.placed.wanted is None:
        return item
    placed, few = item.placed, chosen_few(item)
    more = replace(placed, egress_bytes=placed.egress_bytes * factor, inter_zone_bytes=placed.inter_zone_bytes * factor)
    ways = tuple(way(item.index, placed, w.candidate, w.offer, facts, factor) for w in few)
    return replace(item, placed=more, ways=ways)


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
