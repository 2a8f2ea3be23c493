"""The assessment of a whole platform: search, allocation, and everything that is read from them."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from flopwise.errors import InfeasibleError
from flopwise.facts.catalog import Facts
from flopwise.facts.offers import UNDATED, days_old, retirement_note
from flopwise.facts.price_coverage import OFTEN_UNKNOWN, PriceCoverage, coverage_text, price_coverage
from flopwise.fleet.advice import advice
from flopwise.fleet.alerts import alerts
from flopwise.fleet.allocate import BudgetError, allocate, allocation_problem
from flopwise.fleet.assessment import Assessment, Binding, MonthlyCost, RulingPolicies, RulingPolicy, Scenarios
from flopwise.fleet.autoscaling import scaling
from flopwise.fleet.bill import SolvedFleet
from flopwise.fleet.model import Allocation, ChosenWorkload, PlannedWorkload, Platform
from flopwise.fleet.months import forecast
from flopwise.fleet.months import scenarios as drawn_scenarios
from flopwise.fleet.offers import OwnOffer, allowed_devices, providers_with_tags, why_not_allowed
from flopwise.fleet.option import monthly_option
from flopwise.fleet.outlook import bindings, what_ifs
from flopwise.fleet.planned import Search, planned_workloads, rented_purchases, run_searches, searched_workload
from flopwise.fleet.program import GUARD_S
from flopwise.fleet.provider_choice import provider_choices
from flopwise.fleet.read import resolve_names
from flopwise.fleet.risks import risks
from flopwise.fleet.roadmap import roadmap
from flopwise.fleet.savings import baseline_of, savings
from flopwise.fleet.spec import Policies
from flopwise.fleet.tables import comparison_tables
from flopwise.search.allowed import PORTED_SOFTWARE, USUAL_SOFTWARE, AllowedDevices
from flopwise.search.answer import Plan, Port
from flopwise.search.porting import cheapest_by_software, port
from flopwise.search.workload import Resolved
from flopwise.units import format_number, format_percent, format_usd
from flopwise.values import dataclass, replace

Advance = Callable[[str, int, int], None]
ROUNDED = 5e-5
"""A gap that rounds to nothing."""
STAGES = ("searching", "allocating", "what if", "scenarios")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessed:
    """An assessment, and the plan of each planned workload by its name."""

    assessment: Assessment
    plans: dict[str, Plan]


def assess(
    platform: Platform, facts: Facts, *, advance: Advance | None = None, scenarios: int = 1000, seed: int = 0,
    today: str | None = None,
) -> Assessed:  # fmt: skip
    """Assess a platform over the offers of `facts`; `advance(stage, done, whole)` is called as it goes.

    `scenarios`: drawn months, 0 for none. `today`: the date of the assessment (2026-11-21), for the age of prices.

    A budget below what the machines cost at least takes no answer away: the warnings say so.

    Raises:
        SpecError, UnknownNameError: something in the fleet is wrong.
        InfeasibleError: nothing can run any workload, or policies contradict one another; says which.
    """
    started = time.perf_counter()
    advance = advance or (lambda _stage, _done, _whole: None)
    fleet = recommended_fleet(platform, facts, advance)
    platform, facts, problem, allocation = fleet.platform, fleet.facts, fleet.problem, fleet.allocation
    chosen = fleet.chosen
    advance(STAGES[2], 0, 3)
    binding = bindings(problem, allocation)
    rules = _ruling_policies(binding)
    advance(STAGES[2], 1, 3)
    questions = what_ifs(platform, problem, allocation, facts)
    advance(STAGES[2], 2, 3)
    saved = savings(fleet)
    advance(STAGES[3], 0, 1)
    drawn = drawn_scenarios(fleet, scenarios, seed) if scenarios else None
    advance(STAGES[3], 1, 1)
    tables, months, ages = comparison_tables(fleet), forecast(fleet, today, scenarios, seed), dict[str, float]()
    if today is not None:  # days since each date of a price
        day, dates = dt.date.fromisoformat(today), {row.price_date for row in fleet.rows} - {"", UNDATED}
        ages = {date: float(days_old(date, day)) for date in dates}
    coverage = {purchase: rows for purchase in OFTEN_UNKNOWN if (rows := _prices_known(fleet, purchase))}
    notes = dict.fromkeys(_price_notes(fleet, ages))
    notes |= dict.fromkeys(coverage_text(rows, purchase) for purchase, rows in coverage.items())
    spot_known = coverage.pop("spot", ())
    assessment = Assessment(
        name=platform.fleet.name, date=today or "",
        workloads=fleet.results(rules), allocation=list(fleet.rows),
        usd_per_month=_expected_cost(fleet.cost, drawn), savings=saved,
        risks=risks(fleet, questions, drawn, ages, months), binding=binding, warnings=list(fleet.warnings),
        optimality=_optimality(problem.items, allocation),
        whatif=questions, scenarios=drawn, roadmap=roadmap(fleet, today), monitoring=alerts(fleet),
        optimality_gap=allocation.gap, budget_per_month=platform.rules.budget_per_month,
        assumptions=list(_assumptions(fleet, drawn is not None, today)),
        price_notes=[*notes, *fleet.price_notes, *_own_notes(tables["own_machines"])],
        elapsed_s=time.perf_counter() - started, fleet=dict(platform.written), forecast=months,
        spot_coverage=list(spot_known), reserved_coverage={term: list(rows) for term, rows in coverage.items()},
        by_provider=provider_choices(fleet, rules), if_you_port=workload_ports(fleet),
        scaled=scaling(chosen, facts), advice=advice(fleet), baseline=baseline_of(platform),
        **tables,  # type: ignore[arg-type]  # fields by name
    )  # fmt: skip
    return Assessed(assessment=assessment, plans=plans_by_workload(chosen))


def _ruling_policies(binding: Iterable[Binding]) -> RulingPolicies:
    """The constraints that rule cheaper machines out, by workload."""
    rules: dict[str, list[RulingPolicy]] = {}
    for row in sorted(binding, key=lambda row: (row.constraint.startswith("all "), -row.usd_per_month)):
        for move in row.moves:
            rule = RulingPolicy(text=row.cost_text, usd_per_month=move.usd_per_month_without)
            rules.setdefault(move.workload, []).append(rule)
    return rules


def recommended_fleet(platform: Platform, facts: Facts, advance: Advance) -> SolvedFleet:
    """The cheapest machines that policies and targets allow, for the workloads that something runs. Raises as `assess`.

    Policies that these cannot hold are left out, with a warning, where that is their budget, or shares of a bill that
    lacks the workloads that nothing runs.
    """
    platform, facts = resolve_names(platform, facts)
    items = planned_workloads(platform, facts, lambda done, whole: advance(STAGES[0], done, whole))
    lost, warnings = [item for item in items if not item.options], list[str]()
    reasons = [f"{item.name[:60]}: {reason}" for item in lost for reason in item.reasons[:6]]
    kept = [item for item in items if item.options]
    if not kept:
        names = ", ".join(item.name[:60] for item in items[:10])
        raise InfeasibleError(f"no offer can run any of the {len(items)} workloads: {names}", reasons)
    if lost:
        platform = replace(platform, jobs=tuple(item.job for item in kept))
        kept = [
            replace(item, index=number, options=tuple(replace(option, workload=number) for option in item.options))
            for number, item in enumerate(kept)
        ]
    advance(STAGES[1], 0, 1)
    problem = allocation_problem(platform, kept, facts)
    try:
        allocation = allocate(problem, bound=True)
    except InfeasibleError as error:
        freer = _less_bound(platform, kept, facts, error, lost=bool(lost))
        if freer is None:
            raise InfeasibleError(str(error), [*error.reasons, *reasons]) from None
        rules, warning, allocation = freer
        warnings.append(warning)
        problem = allocation_problem(replace(platform, rules=rules), kept, facts)
        platform = replace(platform, rules=replace(rules, budget_per_month=platform.rules.budget_per_month))
    advance(STAGES[1], 1, 1)
    return replace(SolvedFleet.of(platform, facts, problem, allocation), lost=tuple(lost), warnings=tuple(warnings))


def _less_bound(
    platform: Platform, items: Sequence[PlannedWorkload], facts: Facts, error: InfeasibleError, *, lost: bool
) -> tuple[Policies, str, Allocation] | None:
    """The policies without the fewest that may be left out, why, and their allocation; None where that is not enough.

    `lost`: whether there are workloads that nothing runs; then shares go before the budget, as they are of a bill that
    has these workloads.
    """
    rules, without_shares = (
        platform.rules,
        f"shares of the bill are ignored, as workloads without machines are not in it; if they are held, {error}",
    )
    unbound, ways = replace(rules, budget_per_month=None), list[tuple[Policies, str]]()
    if lost and rules.shares:
        ways.append((replace(rules, providers=None), without_shares))
    if rules.budget_per_month is not None:
        budget = f"the budget of {format_usd(rules.budget_per_month, 0)} a month is not held"
        ways.append((unbound, str(error) if isinstance(error, BudgetError) else f"{budget}: {error}"))
        if lost and rules.shares:
            ways.append((replace(unbound, providers=None), f"{budget}; {without_shares}"))
    for fewer, warning in ways:
        if fewer is unbound and isinstance(error, BudgetError) and error.free is not None:
            return fewer, warning, error.free
        try:
            trial = allocation_problem(replace(platform, rules=fewer), items, facts)
            return fewer, warning, allocate(trial, bound=True)
        except InfeasibleError:
            continue
    return None


def _expected_cost(cost: MonthlyCost, drawn: Scenarios | None) -> MonthlyCost:
    """The bill with what to expect of it: mean and interval of the drawn months."""
    if drawn is None:
        return cost
    return msgspec.structs.replace(cost, expected=drawn.mean, low=drawn.p10, high=drawn.p90)


def _optimality(items: Sequence[PlannedWorkload], allocation: Allocation) -> str:
    """The proof of the bill, in words."""
    options, gap = sum(len(item.options) for item in items), allocation.gap
    proven = "proven optimal" if gap < ROUNDED else f"proven within {format_percent(gap, 2)} of the optimum"
    if allocation.out_of_time:
        proven += f" (the solver's time limit of {GUARD_S:g} s was reached: a faster machine may find less)"
    text = f"{proven} among {options:,} ways to run the workloads"
    if allocation.left_out:
        text += ", with the regions, devices or purchase options left out that are named with the cost of policies"
    if not allocation.whole_traits:
        text += (
            f"; leaving out {'others' if allocation.left_out else 'regions, devices or purchase options'} for all "
            "workloads may cost less (the solver reached its limit)"
        )
    few = [item.num_kinds for item in items if item.num_kinds is not None]
    if not few:
        return text
    return (
        f"{text}; for {len(few):,} of them only the {min(few)} most promising kinds of machines were searched, so the "
        "proof does not cover the others"
    )


KEPT_IN_ALL, MOST, LEAST = 3000, 20, 3
"""Candidates in the files of a whole fleet, at most and at least in one file: a thousand workloads stay a few MB."""


def plans_by_workload(chosen: Sequence[ChosenWorkload]) -> dict[str, Plan]:
    """The plan of each planned workload by its name: the allocated machines first, then other candidates."""
    most = min(MOST, max(LEAST, KEPT_IN_ALL // max(1, len(chosen))))
    return {c.name: _short_plan(c, c.planned.plan, most) for c in chosen if c.planned.plan is not None}


def _short_plan(chosen: ChosenWorkload, plan: Plan, most: int) -> Plan:
    """`plan` with what the fleet took as the first candidates, then the cheapest others by the fleet's own bill.

    Of others one of each kind of machine and purchase, the cheapest of every provider among them: a list of twenty
    regions of the same would tell nothing.
    """
    parts = sorted(chosen.parts, key=lambda taken: taken.option is not chosen.option)
    taken = {id(part.option.candidate): part.option.candidate for part in parts}
    others = [o.candidate for o in chosen.planned.options if id(o.candidate) not in taken]
    varied = {(c.provider, c.instance, c.purchase): c for c in reversed(others)}
    listed = [c for c in others if varied[c.provider, c.instance, c.purchase] is c]
    room, cheapest = max(0, most - len(taken)), {c.provider: id(c) for c in reversed(listed)}
    first_of_each = [id(c) for c in listed if cheapest[c.provider] == id(c)][:room]  # no provider is left out
    rest = [id(c) for c in listed if id(c) not in first_of_each][: room - len(first_of_each)]
    first, kept = len(taken), [*taken.values(), *(c for c in listed if id(c) in {*first_of_each, *rest})]
    note = (
        f"the first {'candidate is' if first == 1 else f'{first} candidates are'} what the fleet takes; then come "
        f"{len(kept) - first:,} of {len(others):,} others, by what a month of them costs in the fleet"
    )
    workload, window = chosen.planned.workload, list[str]()
    if workload is not None and workload.deadline_s is not None and chosen.job.ends:
        window = [f"each run ends within its window of {workload.deadline_s / 3600:,.1f} h"]
    usd, hours = sum(part.usd for part in chosen.parts), chosen.option.paid_hours
    times = (
        f"{format_number(chosen.job.runs, 4)} runs a month"
        if chosen.job.ends
        else f"{format_number(hours, 4)} h a month"
    )
    of = "its tokens" if chosen.option.candidate.is_hosted else "these machines"
    return msgspec.structs.replace(
        plan,
        cost_scope=f"{plan.cost_scope}; the fleet pays for {times}, {format_usd(usd, 2)} for {of}",
        plans=[msgspec.structs.replace(c, rank=n) for n, c in enumerate(kept, start=1)],
        front=plan.front[:most],
        fronts={},
        demoted=[],
        misses=plan.misses[:LEAST],
        assumptions=[note, *window, *plan.assumptions],
    )


def _price_notes(fleet: SolvedFleet, ages: dict[str, float]) -> Iterator[str]:
    """Prices that are older than the fleet allows, and how the taken machines are billed."""
    most = fleet.platform.rules.max_price_age_days
    for row in fleet.rows:
        age = ages.get(row.price_date, 0.0)
        if age > most:
            priced = f"{row.provider} {row.instance} is of {row.price_date}"
            yield f"the price of {priced}, {age:,.0f} days old; more than {most:g} days"
        if row.price_note:
            yield f"{row.provider} {row.instance} in {row.region}, {row.purchase.replace('_', ' ')}: {row.price_note}"
        if row.retires_on:
            yield f"{row.provider} {row.instance} in {row.region}: {retirement_note(row.retires_on)}"
    for option in [taken.option for chosen in fleet.chosen for taken in chosen.parts]:
        yield from (f"{option.provider} {option.instance}: {note}" for note in option.notes)


def _prices_known(fleet: SolvedFleet, purchase: str) -> tuple[PriceCoverage, ...]:
    """Of how many offers that the policies allow such a price is known; none where nothing may be bought so."""
    jobs = (job for job in fleet.platform.jobs if purchase != "spot" or job.interruptible)
    if not any(purchase in job.purchase for job in jobs):
        return ()
    shares, regions, facts = fleet.platform.rules.shares, fleet.platform.rules.regions, fleet.facts
    offers = (
        offer
        for offer in facts.offers
        if not isinstance(offer, OwnOffer)
        and facts.accelerators[offer.accelerator].kind != "cpu"
        and (fleet.platform.rules.include_retired or not offer.retires_on)
        and (not shares or offer.provider in shares)
        and (not regions or any(offer.serves(region) for region in regions))
    )
    return price_coverage(offers, purchase)


def _own_notes(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Machines that are there and carry nothing, in the bill or not."""
    for row in rows:
        idle, paid = row["there"] - row["used"], row["idle_usd_per_month"]
        which = f"idle: {idle} of {row['there']} own {row['machine']}"
        if idle > 0 and paid:
            yield f"{which}, paid; giving them up would save {format_usd(paid, 0)} a month (room, staff, support)"
        elif idle > 0:
            usd = idle * row["usd_per_month_standing"]
            yield f"{which}, not in the bill; keeping them would add {format_usd(usd, 0)} a month"


def _assumptions(fleet: SolvedFleet, drawn: bool, today: str | None = None) -> Iterator[str]:
    """Assumptions of the fleet and its schedules, then of each workload's plan."""
    rules, spreads, jobs = fleet.platform.rules, fleet.platform.rules.scenarios, [chosen.job for chosen in fleet.chosen]
    yield "a month has 730 hours; a run without a deadline has its share of its environment's hours"
    yield "machines are available when they are needed, at list prices, up to the quotas"
    if drawn:
        yield (
            f"simulated months: demand varies by {100 * spreads.demand:.3g} %, spot prices by "
            f"{100 * spreads.spot_price:.3g} %, others by {100 * spreads.list_price:.3g} % (standard deviations; "
            f"policies.scenarios sets them), an interruption costs {spreads.rework_hours:g} h, predictions vary by "
            "their measured errors"
        )
    yield from dict.fromkeys(_attestations(fleet))
    if rules.carbon_usd_per_kg:
        yield "machines of unknown power count in the choice as the workload's option with the highest emissions"
    if any(job.schedule.fixed for job in jobs):
        yield "times of schedules are by one clock for the whole fleet; each day of the week comes 4.345 times"
    if loose := [job.name for job in jobs if not (job.schedule.fixed or job.schedule.always or job.ends)]:
        how = "no times of day are given; machines are assumed to be on from 9:00, on working days first"
        yield f"{_first_names(loose)}: {how}"
    if len(ported := dearest(fleet.chosen)) < len(fleet.chosen):
        share = sum(map(_paid_usd, ported)) / max(sum(map(_paid_usd, fleet.chosen)), 1e-9)
        yield (
            f"ports to other software were searched for the {len(ported)} workloads that cost most, "
            f"{format_percent(share, 0)} of the cost of machines"
        )
    if early := [job.name for job in jobs if today and (job.spec.starts or today) < today[:7]]:
        yield f"{_first_names(early)}: start before the day of this assessment, and are assumed to run already"
    yield from dict.fromkeys(note for item in fleet.problem.items for note in item.notes)
    by_text: dict[str, list[str]] = {}
    for chosen in fleet.chosen:
        spot = [taken.option for taken in chosen.parts if taken.option.purchase == "spot"]
        taken_spot = {f"spot {option.candidate.gpu} of {option.provider}" for option in spot}
        for text in () if chosen.planned.plan is None else chosen.planned.plan.assumptions:
            if not text.startswith("spot ") or text.split(":", 1)[0] in taken_spot:  # not of spot that is not taken
                by_text.setdefault(text, []).append(chosen.name)
    yield from (f"{_first_names(names)}: {text}" for text, names in by_text.items())


def _attestations(fleet: SolvedFleet) -> Iterator[str]:
    """The evidence for the tags of taken providers, where that is not their own page."""
    records = fleet.facts.rows("regions.TAGS")
    for chosen in fleet.chosen:
        for provider in dict.fromkeys(taken.option.provider for taken in chosen.parts):
            for tag in chosen.job.spec.tags:
                record = records.get((provider, tag.strip().lower()))
                if record is not None and record.confidence != "high":
                    source = f"{record.source} ({record.date}, {record.confidence} confidence)"
                    taken_from = f"{provider}'s attestation {tag} is taken from {source}"
                    yield f"{chosen.name}: {taken_from}; ask the provider for the document"


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


@dataclass(frozen=True, slots=True)
class PortQuestion:
    """One workload to search a port for: the key of its search, the workload, and the machines that it may rent."""

    chosen: ChosenWorkload
    key: bytes
    workload: Resolved
    facts: Facts


PORTED = 150
"""Workloads of a large fleet whose ports are looked for."""


def dearest(chosen: Sequence[ChosenWorkload]) -> Sequence[ChosenWorkload]:
    """The `PORTED` workloads with the highest cost, or all if there are fewer."""
    return sorted(chosen, key=_paid_usd, reverse=True)[:PORTED] if len(chosen) > PORTED else chosen


def _paid_usd(chosen: ChosenWorkload) -> float:
    """The monthly cost of a workload's machines, in USD."""
    return sum(taken.usd for taken in chosen.parts)


def workload_ports(fleet: SolvedFleet) -> list[Port]:
    """For each workload of the usual software the cheapest rented machines with each other one, the cheapest first.

    What a port saves is against what the plan pays for the workload's machines. Workloads alike are searched once; of
    a large fleet the `dearest` are.
    """
    searches, rented, most = dict[bytes, Search](), dict[Hashable, Facts](), {id(one) for one in dearest(fleet.chosen)}
    chosen = (one for one in fleet.chosen if id(one) in most)
    questions = [question for one in chosen if (question := _question(one, fleet, rented)) is not None]
    for one in questions:
        ported = one.workload.with_limits(software=PORTED_SOFTWARE)
        searches.setdefault(one.key, Search(workload=ported, facts=one.facts))
    answers = run_searches(searches, lambda _done, _whole: None)
    return [row for one in questions for row in _ports(one, answers[one.key].plan, fleet.facts)]


def _question(chosen: ChosenWorkload, fleet: SolvedFleet, rented: dict[Hashable, Facts]) -> PortQuestion | None:
    """The search for a workload's ports; None where it has none. `rented`: what those before it could rent."""
    job, platform, facts = chosen.job, fleet.platform, fleet.facts
    limits, purchases = job.spec.constraints, rented_purchases(job)
    named = limits.software or limits.gpus or limits.vendors or limits.instances
    if job.workload is None or named or not purchases:
        return None
    if allowed_devices(job, platform, facts).software != USUAL_SOFTWARE:
        return None
    devices = AllowedDevices.of(replace(platform.rules, software=PORTED_SOFTWARE), facts, (), limits)
    alike = job.spec.residency, job.spec.tags, limits
    if alike not in rented:
        having = providers_with_tags(job, facts)
        offers = (o for o in facts.offers if why_not_allowed(o, job, platform, devices, having) is None)
        rented[alike] = facts.with_tables(offers=tuple(o for o in offers if not isinstance(o, OwnOffer)))
    if not rented[alike].offers:
        return None
    workload = searched_workload(job, platform, purchases).with_limits(
        marketplace=devices.marketplace, include_retired=devices.include_retired
    )
    key = msgspec.json.encode([workload, [*rented].index(alike)], enc_hook=str)
    return PortQuestion(chosen, key, workload, rented[alike])


def _ports(question: PortQuestion, plan: Plan | None, facts: Facts) -> list[Port]:
    """The rows of one workload, from the plan of what it could run on after a port."""
    chosen = question.chosen
    paid = _paid_usd(chosen)
    rows = []
    for software, candidate in cheapest_by_software([] if plan is None else plan.plans, facts):
        offer = question.facts.offers_by_key[candidate.offer_key]
        option = monthly_option(chosen.planned.index, chosen.job, candidate, offer, facts)
        whole = msgspec.structs.replace(candidate, num_instances=option.instances)
        rows.append(port(software, whole, question.workload, facts, option.usd, paid, chosen.name))
    return sorted(rows, key=lambda row: row.cost_usd)
