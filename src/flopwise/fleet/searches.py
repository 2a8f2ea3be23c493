"""Many searches at once: shared between processes where there are several cores, bounded in work for large fleets."""

from __future__ import annotations

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
LEAST_KINDS = 4
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


def searched(asked: Mapping[Key, Search], advance: Advance) -> dict[Key, Searched]:
    """The answers of all searches; `advance(done, whole)` is called as they come.

    Raises:
        SpecError, UnknownNameError: a workload names what does not exist.
    """
    wide = sum(len(search.facts.offers) > 1 for search in asked.values())  # not those of one kind of own machines
    kinds = None if wide <= MANY else max(LEAST_KINDS, KINDS_IN_ALL // wide)
    keys, todo = list(asked), [(s, kinds) for s in asked.values()]
    found: dict[Key, Searched] = {}
    for done, (key, answer) in enumerate(zip(keys, _answers(todo), strict=True), start=1):
        found[key] = answer
        advance(done, len(keys))
    return found


def _answers(todo: Sequence[tuple[Search, int | None]]) -> Iterator[Searched]:
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


def _one(asked: Search, kinds: int | None) -> Searched:
    """One search; with only `kinds` of machines first, and with all where those do not do."""
    try:
        if kinds is not None:
            fewer = _planned(asked, replace(asked.facts, offers=promising(asked.facts, kinds)))
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


def promising(facts: Facts, kinds: int) -> tuple[Offer, ...]:
    """Offers of the kinds of machines (device and count) with most speed, bandwidth and memory for the money.

    Each measure in turn gives its next best kind, of every provider in turn, so that shares can be held.
    """
    rated: dict[tuple[str, str, int, float], tuple[float, float, float, float]] = {}
    for offer in facts.offers:
        cheapest = offer.cheapest()
        if cheapest is None:
            continue
        device, usd = facts.accelerators[offer.accelerator], cheapest[1]
        devices = offer.count * offer.accelerator_share
        peak = max((device.peak.get(d, 0.0) for d in ("bf16", "fp16")), default=0.0)
        own = (
            peak * devices / usd,
            device.hbm_bytes_per_s * devices / usd,
            device.hbm_bytes * devices / usd if peak else 0.0,
            1 / usd,
        )
        key = (offer.provider, offer.accelerator, offer.count, offer.accelerator_share)
        rated[key] = max(own, rated.get(key, own))
    providers = sorted({key[0] for key in rated})
    order = [
        iter(sorted((k for k in rated if k[0] == provider), key=lambda k: -rated[k][measure]))
        for measure in range(4)
        for provider in providers
    ]
    kept: set[tuple[str, str, int, float]] = set()
    most = max(kinds, len(providers))
    while len(kept) < min(most, len(rated)):
        for ranked in order:
            kept.update([n] if (n := next((k for k in ranked if k not in kept), None)) is not None else [])
            if len(kept) >= most:
                break
    return tuple(o for o in facts.offers if (o.provider, o.accelerator, o.count, o.accelerator_share) in kept)
