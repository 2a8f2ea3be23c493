"""Many searches at once: shared between processes where there are several cores, bounded in work for large fleets."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

from flopwise.errors import InfeasibleError, SpecError, UnknownNameError
from flopwise.search.answer import Plan
from flopwise.search.plan import plan

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer
    from flopwise.search.workload import Resolved

Advance = Callable[[int, int], None]
Result = TypeVar("Result")
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
OF_OFFERS = ("provider", "region", "instance", "GPU with a price")
"""Kinds of names that offers have."""
WORTH_SHARING = 4
"""Searches from which other processes are worth starting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One question to `plan`: a workload over the offers that it may use."""

    workload: Resolved
    facts: Facts
    where: str = ""  # the file, the line and the workload


class SearchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a search; `reasons` where the constraints leave nothing.

    `num_kinds`: how many kinds of machines were searched, where there were more.
    """

    plan: Plan | None
    reasons: tuple[str, ...] = ()
    num_kinds: int | None = None


def run_searches(
    searches: Mapping[Key, Search], advance: Advance, shares: Sequence[str] = (), times: int = 1
) -> dict[Key, SearchAnswer]:
    """The answers of all searches; `advance(done, whole)` is called as they come.

    `shares`: providers that have a share of the bill. `times`: as many kinds of machines as usual in a large fleet.

    Raises:
        SpecError, UnknownNameError: a workload names what does not exist.
    """
    wide = sum(len(search.facts.offers) > 1 for search in searches.values())  # not those of one kind of own machines
    kinds = None if wide <= MANY else times * max(LEAST_KINDS, KINDS_IN_ALL // wide, OF_SHARE * len(shares))
    keys, todo = list(searches), list(searches.values())
    encode = msgspec.msgpack.encode  # between processes an answer is much smaller as bytes than as objects
    data = forked(lambda number: encode(_answer(todo[number], kinds, shares)), len(todo), WORTH_SHARING)
    answers: dict[Key, SearchAnswer] = {}
    for done, (key, answer) in enumerate(zip(keys, data, strict=True), start=1):
        answers[key] = msgspec.msgpack.decode(answer, type=SearchAnswer)
        advance(done, len(keys))
    return answers


def _answer(search: Search, kinds: int | None, shares: Sequence[str]) -> SearchAnswer:
    """One search: of only `kinds` of machines first, and of all where nothing on those carries the workload."""
    try:
        if kinds is not None:
            purchases = search.workload.purchase
            some = promising(search.facts, kinds, purchases, shares)
            answer = _planned(search.workload, search.facts.replaced(offers=some))
            if answer.plan is not None and answer.plan.plans:
                return msgspec.structs.replace(answer, num_kinds=kinds)
        return _planned(search.workload, search.facts)
    except SpecError as error:
        raise SpecError(f"{search.where}: {error}" if search.where else str(error)) from None


def _planned(workload: Resolved, facts: Facts) -> SearchAnswer:
    """The plan over the offers of `facts`; what it constrains exists, so that a name among none of them is a reason."""
    try:
        return SearchAnswer(plan=plan(workload, facts, alone=False))
    except InfeasibleError as error:
        return SearchAnswer(plan=None, reasons=(str(error), *error.reasons))
    except UnknownNameError as error:
        if error.kind not in OF_OFFERS:
            raise
        reason = f"none of the offers that are left is of the {error.kind} {error.given}"
        return SearchAnswer(plan=None, reasons=(reason,))


Kind = tuple[str, str, int, float]
"""Provider, accelerator, how many of it, and which share of each."""


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
        kept += _best_in_turn([k for k in rated if k[0] == provider], rated, max(OF_SHARE, kinds // len(named)))
    if named:
        kept += _best_in_turn([k for k in rated if k[0] not in named], rated, OF_SHARE)
    else:
        kept = _best_in_turn(list(rated), rated, kinds, most_of_one=-(-kinds // OF_ONE))
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


def _best_in_turn(
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


# Work shared between forked processes: facts need not be sent to them

_CALLED: Callable[[int], object] | None = None


def forked(call: Callable[[int], Result], count: int, least: int) -> Iterator[Result]:
    """`call(0)` to `call(count - 1)` in order, from as many processes as there are cores; here below `least` of them.

    Processes are forked only from a main thread alone on Linux. Results are sent back, so they are plain data.

    Raises:
        Whatever `call` raises.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    unsafe = threading.active_count() > 1 or sys.platform != "linux" or multiprocessing.current_process().daemon
    if cores < 2 or unsafe or count < least:
        yield from map(call, range(count))
        return
    global _CALLED  # noqa: PLW0603 - what forked processes find in place
    _CALLED = call
    try:
        with multiprocessing.get_context("fork").Pool(min(cores, count)) as pool:
            yield from pool.imap(_call, range(count))
    finally:
        _CALLED = None


def _call(number: int) -> object:
    assert _CALLED is not None
    return _CALLED(number)
