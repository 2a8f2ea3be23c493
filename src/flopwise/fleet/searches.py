"""Many searches at once: shared between processes where there are several cores, bounded in work for large fleets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from flopwise.errors import InfeasibleError, SpecError, UnknownNameError
from flopwise.fleet.forked import forked
from flopwise.search.answer import Plan
from flopwise.search.plan import plan

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer
    from flopwise.search.workload import Resolved

Advance = Callable[[int, int], None]
Key = bytes
MANY = 40
"""Searches beyond which each looks at fewer kinds of machines."""
KINDS_IN_ALL = 1600
"""Kinds of machines that all searches of a large fleet look at together: what keeps it under a minute."""
LEAST_KINDS = 12
OF_SHARE = 3
"""Kinds of machines at least of each provider that has a share of the bill."""
OF_ONE = 3
"""One provider has at most so much of them (a third) where none has a share: others stand ready."""
WORTH_SHARING = 4
"""Searches from which other processes are worth starting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One question to `plan`: a workload over the offers that it may use."""

    wanted: Resolved
    facts: Facts
    where: str = ""  # the file, the line and the workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """Its answer; `reasons` where the constraints leave nothing. `few`: only so many kinds of machines were seen."""

    plan: Plan | None
    reasons: tuple[str, ...] = ()
    few: int | None = None


def searched(
    asked: Mapping[Key, Search], advance: Advance, shares: Sequence[str] = (), times: int = 1
) -> dict[Key, Searched]:
    """The answers of all searches; `advance(done, whole)` is called as they come.

    `shares`: providers that have a share of the bill. `times`: as many kinds of machines as usual in a large fleet.

    Raises:
        SpecError, UnknownNameError: a workload names what does not exist.
    """
    wide = sum(len(search.facts.offers) > 1 for search in asked.values())  # not those of one kind of own machines
    kinds = None if wide <= MANY else times * max(LEAST_KINDS, KINDS_IN_ALL // wide, OF_SHARE * len(shares))
    keys, todo = list(asked), [(s, kinds, tuple(shares)) for s in asked.values()]
    found: dict[Key, Searched] = {}
    for done, (key, answer) in enumerate(zip(keys, _answers(todo), strict=True), start=1):
        found[key] = answer
        advance(done, len(keys))
    return found


def _answers(todo: Sequence[tuple[Search, int | None, tuple[str, ...]]]) -> Iterator[Searched]:
    """In order, by several processes."""
    for data in forked(lambda number: _encoded(_one(*todo[number])), len(todo), WORTH_SHARING):
        yield msgspec.msgpack.decode(data, type=_Sent).searched()


class _Sent(msgspec.Struct):
    """A `Searched` between processes: as bytes much smaller than its objects."""

    plan: Plan | None
    reasons: list[str]
    few: int | None

    def searched(self) -> Searched:
        return Searched(plan=self.plan, reasons=tuple(self.reasons), few=self.few)


def _encoded(found: Searched) -> bytes:
    return msgspec.msgpack.encode(_Sent(found.plan, list(found.reasons), found.few))


def _one(asked: Search, kinds: int | None, shares: tuple[str, ...] = ()) -> Searched:
    """One search; with only `kinds` of machines first, and with all where those do not do."""
    try:
        if kinds is not None:
            buys = asked.wanted.purchase
            fewer = _planned(asked, asked.facts.replaced(offers=promising(asked.facts, kinds, buys, shares)))
            if fewer.plan is not None and fewer.plan.plans:
                return replace(fewer, few=kinds)
        return _planned(asked, asked.facts)
    except SpecError as error:
        raise SpecError(f"{asked.where}: {error}" if asked.where else str(error)) from None


def _planned(asked: Search, facts: Facts) -> Searched:
    """The plan over the offers of `facts`; what it constrains exists, so that a name among none of them is a reason."""
    try:
        return Searched(plan=plan(asked.wanted, facts, alone=False))
    except InfeasibleError as error:
        return Searched(plan=None, reasons=(str(error), *error.reasons))
    except UnknownNameError as error:
        if error.kind not in OF_OFFERS:
            raise
        return Searched(plan=None, reasons=(f"none of the offers that are left is of the {error.kind} {error.given}",))


OF_OFFERS = ("provider", "region", "instance", "GPU with a price")
"""Kinds of names that offers have."""


Kind = tuple[str, str, int, float]


def promising(facts: Facts, kinds: int, purchases: Sequence[str], shares: Sequence[str] = ()) -> tuple[Offer, ...]:
    """Offers of the kinds of machines (device and count) with most speed, bandwidth and memory for the money.

    Money is what they cost bought in one of `purchases`. Each measure in turn gives its next best kind: of every
    provider with one of the `shares` in turn, so that they can be held, else of whichever has not yet a third of them.
    """
    rated = _rated(facts, purchases)
    providers = {name.lower() for name in shares}
    named = sorted({key[0] for key in rated if key[0].lower() in providers})
    kept: list[Kind] = []
    for provider in named:
        kept += _turns([k for k in rated if k[0] == provider], rated, max(OF_SHARE, kinds // len(named)))
    if named:
        kept += _turns([k for k in rated if k[0] not in named], rated, OF_SHARE)
    else:
        kept = _turns(list(rated), rated, kinds, most_of_one=-(-kinds // OF_ONE))
    return tuple(o for o in facts.offers if _kind(o) in kept)


def _kind(offer: Offer) -> Kind:
    return offer.provider, offer.accelerator, offer.count, offer.accelerator_share


def _rated(facts: Facts, purchases: Sequence[str]) -> dict[Kind, tuple[float, float, float, float]]:
    """Speed, bandwidth, memory and machines for the money of each kind that has a price."""
    rated: dict[Kind, tuple[float, float, float, float]] = {}
    for offer in facts.offers:
        usd = min((p for p in map(offer.price_usd_per_hour, purchases) if p), default=None)
        if usd is None:
            continue
        device, devices = facts.accelerators[offer.accelerator], offer.count * offer.accelerator_share
        peak = max((device.peak.get(d, 0.0) for d in ("bf16", "fp16")), default=0.0)
        own = (
            peak * devices / usd,
            device.hbm_bytes_per_s * devices / usd,
            device.hbm_bytes * devices / usd if peak else 0.0,
            1 / usd,
        )
        rated[_kind(offer)] = max(own, rated.get(_kind(offer), own))
    return rated


def _turns(
    some: Sequence[Kind], rated: Mapping[Kind, tuple[float, ...]], most: int, *, most_of_one: int | None = None
) -> list[Kind]:
    """At most so many of `some`, the next best by each measure in turn; the limit on one provider gives way to it."""
    order = [sorted(some, key=lambda k: -rated[k][measure]) for measure in range(4)]
    kept: list[Kind] = []
    for limit in (most_of_one or most, most):
        while len(kept) < most:
            before = len(kept)
            for ranked in order:
                of = Counter(k[0] for k in kept)
                new = next((k for k in ranked if k not in kept and of[k[0]] < limit), None)
                kept += [] if new is None or len(kept) >= most else [new]
            if len(kept) == before:
                break
    return kept
