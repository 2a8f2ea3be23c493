"""Each workload's options: offers x purchase x layouts, as `plan` finds them, sized and paid for a month.

Workloads that are the same but for their name are searched once. Machines that people work on need no search: every
offer that will do is an option, one instance a machine.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import inf

import msgspec

from flopwise.errors import InfeasibleError, SpecError
from flopwise.facts.catalog import Facts
from flopwise.facts.offers import Offer, names_instance
from flopwise.fleet.forked import run_forked
from flopwise.fleet.load_levels import SLIGHT, LoadLevels
from flopwise.fleet.model import MonthlyOption, PlannedWorkload, Platform, ResolvedJob, is_rented
from flopwise.fleet.offers import OwnOffer, allowed_devices, api_offers, providers_with_tags, why_not_allowed, with_own
from flopwise.fleet.option import api_option, monthly_option
from flopwise.fleet.spec import API, OWNED, Workstations
from flopwise.search.allowed import ANY_SOFTWARE, USUAL_SOFTWARE, AllowedDevices, device_names
from flopwise.search.answer import Candidate, Plan
from flopwise.search.nodes import forbidding_constraint
from flopwise.search.plan import check, plan
from flopwise.search.rank import price_facts
from flopwise.search.replica import candidate_job, with_lengths
from flopwise.search.spec import TRAINING
from flopwise.search.workload import Resolved
from flopwise.serving.sim.autoscale import Autoscaling
from flopwise.serving.sim.elasticity import replica_start_s
from flopwise.serving.startup import DEFAULT_STORAGE
from flopwise.units import (
    HOUR_S,
    HOURS_PER_MONTH,
    format_bytes,
    format_chance,
    format_rate,
    format_seconds,
    format_times,
)
from flopwise.values import dataclass, replace

Advance = Callable[[int, int], None]
Tags = tuple[object, ...]
"""Residency, tags and limits on devices: workloads with the same may use the same offers."""
Offered = tuple["Facts", dict[str, int]]
"""The facts with only the offers that a workload may use, and how many others were refused for which reason."""
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
"""Parts of the searches from which other processes are worth starting."""
LEAST_PARTS = 16
"""Parts of the searches at least, however many are alike: processes end at about the same time."""


def planned_workloads(platform: Platform, facts: Facts, advance: Advance | None = None) -> tuple[PlannedWorkload, ...]:
    """Every workload with its options; `advance(done, whole)` is called as workloads are searched.

    Raises: SpecError, UnknownNameError: a workload names what does not exist.
    """
    facts = with_own(facts, platform.fleet.own_machines)
    _check_workloads(platform, facts)
    offered: dict[Tags, Offered] = {}
    for job in platform.jobs:
        if _tags(job) not in offered:
            offered[_tags(job)] = _allowed_offers(job, platform, facts)
    searches: dict[bytes, Search] = {}
    keys = [_add_searches(n, platform, offered[_tags(job)][0], searches) for n, job in enumerate(platform.jobs)]
    rules = platform.rules
    answers = run_searches(
        searches, advance or (lambda _done, _whole: None), tuple(rules.shares), by_region=rules.has_shares
    )
    return tuple(
        _planned_workload(
            index, platform, offered[_tags(job)], [(searches[key].workload, answers[key]) for key in mine]
        )
        for index, (job, mine) in enumerate(zip(platform.jobs, keys, strict=True))
    )


def _allowed_offers(job: ResolvedJob, platform: Platform, facts: Facts) -> Offered:
    """The facts with only the offers that a workload may use, and how many others are refused for which reason."""
    having, devices = providers_with_tags(job, facts), allowed_devices(job, platform, facts)
    reasons = [why_not_allowed(offer, job, platform, devices, having) for offer in facts.offers]
    allowed = tuple(offer for offer, reason in zip(facts.offers, reasons, strict=True) if reason is None)
    return facts.with_tables(offers=allowed), Counter(reason for reason in reasons if reason is not None)


def _check_workloads(platform: Platform, facts: Facts) -> None:
    """Refuse what no machine could run, in whichever workload, before the first search."""
    seen = set[bytes]()
    for number, job in enumerate(platform.jobs):
        if job.workload is None:
            continue
        workload = job.workload.nameless
        key = msgspec.json.encode(workload, enc_hook=str)
        if key in seen:
            continue
        try:
            check(workload, facts)
        except SpecError as error:
            raise SpecError(f"{_place(number, platform)}: {error}") from None
        seen.add(key)


def _place(number: int, platform: Platform) -> str:
    """File and line of a workload, as far as they are known, and its name."""
    at, name = platform.source.at(f"workloads.{number}"), platform.jobs[number].name
    return f"{at}: workload {name[:60]}".removeprefix(": ")


def _tags(job: ResolvedJob) -> Tags:
    spec, limits = job.spec, job.spec.constraints
    return (
        spec.residency, spec.tags, limits.gpus, limits.vendors, limits.exclude, limits.software, limits.marketplace,
        limits.include_retired, limits.instances,
    )  # fmt: skip


def _add_searches(number: int, platform: Platform, facts: Facts, searches: dict[bytes, Search]) -> list[bytes]:
    """Keys of the searches that a workload needs: over what is rented, and over each kind of own machines.

    Own machines are searched apart: there are only so many, and their price must not rule out what could be rented.
    """
    job = platform.jobs[number]
    if job.workload is None:
        return []
    own = [offer for offer in facts.offers if isinstance(offer, OwnOffer)]
    parts: list[tuple[list[str], tuple[Offer, ...]]] = []
    if purchases := rented_purchases(job):
        parts.append((purchases, tuple(o for o in facts.offers if not isinstance(o, OwnOffer))))
    if OWNED in job.purchase:
        parts += [([OWNED], (offer,)) for offer in own]
    keys = []
    for purchases, offers in parts:
        some = facts.with_tables(offers=offers) if own else facts
        workload: Resolved | None = _with_software(
            searched_workload(job, platform, purchases), allowed_devices(job, platform, facts), owned=OWNED in purchases
        )
        if workload is not None and platform.fleet.own_machines:
            workload = narrowed_to_offers(workload, some, whole=not job.splittable)
        if workload is None or not offers:
            continue
        mine = offers[0].instance if purchases == [OWNED] else ""
        key = msgspec.json.encode([workload, _tags(job), mine], enc_hook=str)
        searches.setdefault(key, Search(workload=workload, facts=some, where=_place(number, platform)))
        keys.append(key)
    return keys


def window_s(job: ResolvedJob, platform: Platform) -> float:
    """Longest that one run may take: its share of the hours that the schedule has machines on, or of the month."""
    described = job.spec.hours is not None or job.spec.environment is not None
    described = described or job.environment in (platform.fleet.environments or {})
    hours = job.hours_per_month if described else HOURS_PER_MONTH
    return hours / job.runs * HOUR_S


def _with_software(workload: Resolved, devices: AllowedDevices, *, owned: bool) -> Resolved:
    """The workload with the software and hosts that it may have: own machines have whichever they need."""
    software = tuple[str, ...]()
    if owned or devices.software is None:
        software = (ANY_SOFTWARE,)
    elif devices.software != USUAL_SOFTWARE:
        software = tuple(sorted(devices.software))
    return workload.with_limits(
        software=software, marketplace=devices.marketplace, include_retired=devices.include_retired
    )


def searched_workload(job: ResolvedJob, platform: Platform, purchases: list[str]) -> Resolved:
    """The workload that is searched: bought as the fleet allows, each run within its window."""
    assert job.workload is not None
    workload = job.workload
    limits = workload.limits.purchase
    allowed = tuple(p for p in purchases if not limits or p == OWNED or p in limits)
    bought = workload.nameless.with_limits(purchase=allowed or ("on_demand",))
    kinds = bought.assumed_prices | platform.rules.assumed_prices
    bought = replace(bought, **dict.fromkeys(kinds, "assume")) if kinds else bought  # type: ignore[arg-type]  # by name
    if not job.ends:
        return bought
    longest = window_s(job, platform)
    return replace(bought, deadline_s=longest if workload.deadline_s is None else min(longest, workload.deadline_s))


def narrowed_to_offers(workload: Resolved, facts: Facts, *, whole: bool) -> Resolved | None:
    """The workload with only those of its constraints' names that these offers have; None where they exclude them all.

    A constraint may name own machines and rented ones alike. What is carried `whole` has no more own machines than
    there are; others may have some of them.
    """
    limits, offers = workload.limits, facts.offers
    have: dict[str, Callable[[str], bool]] = {
        "providers": lambda name: any(o.provider.lower() == name.lower() for o in offers),
        "regions": lambda name: any(o.serves(name) for o in offers),
        "instances": lambda name: any(names_instance(name, o.instance) for o in offers),
        "gpus": lambda name: any(o.accelerator in device_names([name], facts) for o in offers),
    }
    kept = {field: tuple(name for name in getattr(limits, field) if known(name)) for field, known in have.items()}
    if any(getattr(limits, field) and not names for field, names in kept.items()):
        return None
    own = [o.pool.most * o.count for o in offers if whole and isinstance(o, OwnOffer)]
    most = min([workload.max_gpus, *own])
    if most < workload.min_gpus:
        return None
    return replace(workload.with_limits(**kept), max_gpus=most)


def rented_purchases(job: ResolvedJob) -> list[str]:
    """The purchase options of a workload: spot only where it may be interrupted."""
    return [p for p in job.purchase if is_rented(p) and (p != "spot" or job.interruptible)]


def _planned_workload(
    index: int, platform: Platform, offered: Offered, answers: list[tuple[Resolved, SearchAnswer]]
) -> PlannedWorkload:
    job, (facts, refused) = platform.jobs[index], offered
    job = replace(job, workload=_with_usual_lengths(job.workload, facts))
    job = _with_levels(job, [answer.plan for _, answer in answers if answer.plan is not None], facts)
    apis, notes = api_offers(job, platform, facts)
    options = [api_option(index, job, offer) for offer in apis]
    own, assumptions = [o for o in facts.offers if isinstance(o, OwnOffer)], list[str]()
    if own and OWNED not in job.purchase:
        notes.append(f"its purchase options leave own machines out; add {OWNED} to use them")
    elif own:
        assumptions += [offer.assumed for offer in own]
    if job.workload is None:
        options += workstation_options(index, job, facts)
    for _, answer in answers:
        for candidate in [] if answer.plan is None else answer.plan.plans:
            options.append(monthly_option(index, job, candidate, facts.offers_by_key[candidate.offer_key], facts))
        if answer.num_kinds is not None:
            kinds = answer.num_kinds
            assumptions.append(f"only the {kinds} most promising kinds of machines were searched: the fleet is large")
    return PlannedWorkload(
        index=index, job=job, workload=_with_usual_lengths(answers[0][0], facts) if answers else job.workload,
        plan=_joined_plan([answer.plan for _, answer in answers if answer.plan is not None]),
        options=tuple(sorted(options, key=lambda option: option.usd)),
        reasons=() if options else tuple(_why_none(job, facts, refused, answers, notes)),
        notes=(*assumptions, *(f"{job.name[:60]}: {note}" for note in notes)),
        num_kinds=min((answer.num_kinds for _, answer in answers if answer.num_kinds is not None), default=None),
    )  # fmt: skip


def _with_usual_lengths(workload: Resolved | None, facts: Facts) -> Resolved | None:
    """A service whose requests are as long as in its plan, where nobody says how long they are; others as they are."""
    if workload is None or workload.task in TRAINING:
        return workload
    return with_lengths(workload, facts.model(workload.model))[0]


def _with_levels(job: ResolvedJob, plans: Sequence[Plan], facts: Facts) -> ResolvedJob:
    """The workload with its levels of load, where it has a profile of traffic and does not stay fixed.

    Assumes: the cold start of the cheapest candidate, for all of them.
    """
    workload, how = job.workload, job.spec.autoscale
    candidates = [candidate for plan in plans for candidate in plan.plans]
    if workload is None or not workload.profile or how.fixed or job.ends or not candidates:
        return job
    first, usual = min(candidates, key=lambda c: c.cost_usd), Autoscaling()
    cold_start_s = how.cold_start
    if cold_start_s is None:
        offer = facts.offers_by_key[first.offer_key]
        served = candidate_job(workload, facts.model(workload.model), facts, offer, first)
        cold_start_s = replica_start_s(served, facts.storage(DEFAULT_STORAGE), facts)
    fewest = min(int(c.layout.get("replicas", 1)) for c in candidates)
    least = usual.least if how.min_replicas is None else how.min_replicas
    levels = LoadLevels.of_traffic(
        workload.profile, job.schedule, headroom=how.headroom, cold_start_s=cold_start_s,
        cool_down_s=usual.cool_down_s if how.cool_down is None else how.cool_down,
        least_share=max(SLIGHT, min(1.0, least / fewest)) if least > 1 else least * SLIGHT,
    )  # fmt: skip
    return replace(job, levels=levels)


def _joined_plan(plans: list[Plan]) -> Plan | None:
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
        timed=sum(p.timed for p in plans),
        elapsed_s=sum(p.elapsed_s for p in plans),
    )


def _why_none(
    job: ResolvedJob,
    facts: Facts,
    refused: dict[str, int],
    answers: list[tuple[Resolved, SearchAnswer]],
    notes: list[str],
) -> list[str]:
    """Why nothing carries a workload."""
    others = [f"{count} offers: {reason}" for reason, count in refused.items()] + notes
    if not job.purchase:
        return [f"{API} is its only purchase option, and answers requests: it cannot {job.spec.task}"]
    if not answers and job.purchase == ("spot",) and not job.interruptible:
        return ["spot is its only purchase option, and the workload may not be interrupted"]
    if not answers and job.workload is None and facts.offers and set(job.purchase) - {"spot", API}:
        return [*_why_no_workstation(job, facts), *others]
    why: list[str] = []
    for workload, answer in answers:
        why += answer.reasons if answer.plan is None else _near_misses(answer.plan, workload)
    return why + others or ["none of the offers that its constraints allow is left"]


def _near_misses(plan: Plan, workload: Resolved) -> list[str]:
    """The nearest miss with its figures, then what was ruled out, what decides first."""
    reasons = []
    if plan.misses:
        near, least = plan.misses[0], workload.confidence
        over = ", ".join(
            f"{name} {format_times(times)} its limit" for name, times in near.shortfall.items() if times > 1
        )
        odds = ", ".join(f"{format_chance(p)} chance of meeting {name}" for name, p in near.meets.items() if p < least)
        reasons.append(
            f"the nearest is {near.num_instances} x {near.provider} {near.instance} ({near.gpu}), "
            f"{format_seconds(near.seconds)}: {over or odds or 'exceeds a limit'}"
        )
    return reasons + [f"{r.reason} ({r.count} {r.unit}{': ' + r.example if r.example else ''})" for r in plan.decisive]


# Many searches at once: shared between processes where there are several cores, bounded in work for large fleets


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One question to `plan`: a workload over the offers that it may use."""

    workload: Resolved
    facts: Facts
    where: str = ""  # the file, the line and the workload

    @property
    def likeness(self) -> tuple[str, str, int, int]:
        """The sort key that brings searches with most in common together."""
        workload = self.workload
        return workload.task, workload.model, workload.input_tokens, workload.output_tokens


class SearchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a search; `reasons` where the constraints leave nothing.

    `num_kinds`: how many kinds of machines were searched, where there were more.
    """

    plan: Plan | None
    reasons: tuple[str, ...] = ()
    num_kinds: int | None = None


def run_searches(
    searches: Mapping[bytes, Search], advance: Advance, shares: Sequence[str] = (), *,
    by_region: bool = False,
) -> dict[bytes, SearchAnswer]:  # fmt: skip
    """The answers of all searches; `advance(done, whole)` is called as they come.

    `shares`: providers that have a share of the bill.
    `by_region`: an instance is looked for in every region, since parts of the bill are limited and its cheapest region
    may have to be left out.

    Raises: SpecError, UnknownNameError: a workload names what does not exist.
    """
    wide = sum(len(search.facts.offers) > 1 for search in searches.values())  # not those of one kind of own machines
    kinds = None if wide <= MANY else max(LEAST_KINDS, KINDS_IN_ALL // wide, OF_SHARE * len(shares))
    parts = _alike_parts(searches)
    encode = msgspec.msgpack.encode  # between processes an answer is much smaller as bytes than as objects
    data = run_forked(
        lambda number: encode([_answer(searches[key], kinds, shares, by_region=by_region) for key in parts[number]]),
        len(parts), WORTH_SHARING,
    )  # fmt: skip
    answers: dict[bytes, SearchAnswer] = {}
    for part, answered in zip(parts, data, strict=True):
        answers |= zip(part, msgspec.msgpack.decode(answered, type=list[SearchAnswer]), strict=True)
        advance(len(answers), len(searches))
    return answers


def _alike_parts(searches: Mapping[bytes, Search]) -> list[list[bytes]]:
    """Keys of the searches in parts, the largest first: what those of a part have in common is estimated once."""
    most = -(-len(searches) // LEAST_PARTS)
    keys = sorted(searches, key=lambda key: searches[key].likeness)
    alike = (list(group) for _, group in itertools.groupby(keys, key=lambda key: searches[key].likeness))
    parts = (group[first : first + most] for group in alike for first in range(0, len(group), most))
    return sorted(parts, key=len, reverse=True)


def _answer(search: Search, kinds: int | None, shares: Sequence[str], *, by_region: bool) -> SearchAnswer:
    """One search: of only `kinds` of machines first, and of all where nothing on those carries the workload."""
    try:
        if kinds is not None:
            some = _with_promising(search.facts, kinds, search.workload.purchase, tuple(shares))
            answer = _search_answer(search.workload, some, by_region=by_region)
            if answer.plan is not None and answer.plan.plans:
                return msgspec.structs.replace(answer, num_kinds=kinds)
        return _search_answer(search.workload, search.facts, by_region=by_region)
    except SpecError as error:
        raise SpecError(f"{search.where}: {error}" if search.where else str(error)) from None


@lru_cache(maxsize=16)
def _with_promising(facts: Facts, kinds: int, purchases: tuple[str, ...], shares: tuple[str, ...]) -> Facts:
    """The facts with the offers that are `promising` alone."""
    return facts.with_tables(offers=promising(facts, kinds, purchases, shares))


def _search_answer(workload: Resolved, facts: Facts, *, by_region: bool) -> SearchAnswer:
    """The plan over the offers of `facts`; what it constrains exists, so that a name among none of them is a reason."""
    try:
        return SearchAnswer(plan=plan(workload, facts, alone=False, by_region=by_region))
    except InfeasibleError as error:
        return SearchAnswer(plan=None, reasons=(str(error), *error.reasons))


Kind = tuple[str, str, int, float]
"""Provider, accelerator, how many of it, and which share of each."""


def promising(facts: Facts, kinds: int, purchases: Sequence[str], shares: Sequence[str] = ()) -> tuple[Offer, ...]:
    """Offers of the kinds of machines (device and count) with most speed, bandwidth and memory for the money.

    Money is what they cost bought in one of `purchases`. Each measure in turn gives its next best kind: of every
    provider with one of the `shares` in turn, so that they can be held, else of whichever has not yet a third of them.
    """
    rated = _money_worth(facts, purchases)
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


def _money_worth(facts: Facts, purchases: Sequence[str]) -> dict[Kind, tuple[float, ...]]:
    """Speed, bandwidth, memory and machines for the money of each kind that has a price."""
    rated: dict[Kind, tuple[float, ...]] = {}
    for offer in facts.offers:
        usd = min((p for p in map(offer.price_usd_per_hour, purchases) if p), default=None)
        if usd is None:
            continue
        device, devices = facts.accelerators[offer.accelerator], offer.count * offer.accelerator_share
        peak = max((device.peak.get(d, 0.0) for d in ("bf16", "fp16")), default=0.0)
        speeds = (peak, device.hbm_bytes_per_s, device.hbm_bytes if peak else 0.0)
        own = (*(speed * devices / usd for speed in speeds), 1 / usd)
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


# Machines that people work on

NEARLY = 0.93
"""Of the memory that is asked for: devices sold as 16 GB tell of somewhat less."""


def workstation_options(index: int, job: ResolvedJob, facts: Facts) -> list[MonthlyOption]:
    """Every offer with enough accelerators of enough memory that the constraints allow, by each way to buy it."""
    devices = _constraint_devices(job, facts)
    return [
        monthly_option(index, job, _workstation(job, offer, purchase, facts), offer, facts)
        for offer in _sufficient_offers(job, facts)
        for purchase in _workstation_purchases(job, offer)
        if _ruling_constraint(job, offer, purchase, devices) is None
    ]


def _workstation_purchases(job: ResolvedJob, offer: Offer) -> list[str]:
    """Ways to buy an offer that the workload may use and that have a price."""
    purchases = [*rented_purchases(job), *(p for p in job.purchase if p == OWNED)]
    return [p for p in purchases if offer.price_usd_per_hour(p) is not None]


def _why_no_workstation(job: ResolvedJob, facts: Facts) -> list[str]:
    """The machines that only constraints rule out, else the requirement that nothing on offer meets."""
    refused, devices = Counter[str](), _constraint_devices(job, facts)
    for offer in _sufficient_offers(job, facts):
        purchase = next(iter(_workstation_purchases(job, offer)), None)
        if purchase is not None and (name := _ruling_constraint(job, offer, purchase, devices)) is not None:
            refused[name] += 1
    if refused:
        values = {name: getattr(job.spec.constraints, name) for name in refused}
        texts = {n: ", ".join(v) if isinstance(v, tuple) else f"{v:g}" for n, v in values.items()}
        return [
            f"{count} suitable offers are ruled out by constraints.{name} ({texts[name][:120]})"
            for name, count in refused.items()
        ]
    most, machines = max(facts.offered_accelerator(o).hbm_bytes for o in facts.offers), _machines(job)
    needed = f"{machines.gpus_each} accelerator{'s' if machines.gpus_each > 1 else ''}"
    if machines.memory is not None:
        needed += f" of {format_rate(machines.memory, 'B')}"
    if machines.gpus:
        needed += f" ({' or '.join(machines.gpus)})"
    return [f"no machine on offer has {needed} and a known price; the largest accelerator has {format_bytes(most)}"]


def _machines(job: ResolvedJob) -> Workstations:
    assert job.spec.machines is not None, "only machines to work on are planned without a model"
    return job.spec.machines


def _sufficient_offers(job: ResolvedJob, facts: Facts) -> list[Offer]:
    """Offers whose machines are what is asked for, whatever the constraints say."""
    machines = _machines(job)
    named, least = device_names(machines.gpus, facts), NEARLY * (machines.memory or 0.0)
    wide = (o for o in facts.offers if o.count >= machines.gpus_each and (not named or o.accelerator in named))
    devices = ((offer, facts.offered_accelerator(offer)) for offer in wide)
    return [offer for offer, device in devices if device.kind != "cpu" and device.hbm_bytes >= least]


def _constraint_devices(job: ResolvedJob, facts: Facts) -> AllowedDevices:
    """The devices that its constraints name; software and hosts were looked at with the policies."""
    limits = replace(job.spec.constraints, software=(ANY_SOFTWARE,), marketplace=True, include_retired=True)
    return AllowedDevices.of(limits, facts, limits.instances)


def _ruling_constraint(job: ResolvedJob, offer: Offer, purchase: str, devices: AllowedDevices) -> str | None:
    """The constraint that forbids an offer, bought so, for all of the machines together; None: none does."""
    limits, count = job.spec.constraints, _machines(job).count
    name = forbidding_constraint(offer, limits, devices, inf if limits.max_gpus is None else limits.max_gpus / count)
    if name is not None or purchase == OWNED:
        return name
    if limits.purchase and purchase not in limits.purchase:
        return "purchase"
    usd, most_usd = (offer.price_usd_per_hour(purchase) or 0.0) * count, limits.max_usd_per_hour
    return "max_usd_per_hour" if most_usd is not None and usd > most_usd else None


def _workstation(job: ResolvedJob, offer: Offer, purchase: str, facts: Facts) -> Candidate:
    count = _machines(job).count
    rate = (offer.price_usd_per_hour(purchase) or 0.0) * count
    return Candidate(
        rank=0, provider=offer.provider, region=offer.region, instance=offer.instance, num_instances=count,
        gpu=offer.accelerator, num_gpus=count * offer.count, purchase=purchase, layout={}, seconds=0.0,
        usd_per_hour=rate, cost_usd=rate * job.hours_per_month, energy_joules=None, meets={}, figures={},
        memory_bytes=_machines(job).memory or 0.0, capacity_bytes=float(facts.offered_accelerator(offer).hbm_bytes),
        **price_facts(offer, purchase, count),
    )  # fmt: skip
