"""What may go wrong, each scored from 0 to 1 by a margin that was computed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from flopwise.fleet.assessment import Allotment, Month, MonthlyCost, Risk, Scenarios, WhatIf
from flopwise.fleet.spec import API
from flopwise.fleet.week import most_at_once, slots
from flopwise.training.goodput import DEFAULT_RELIABILITY
from flopwise.units import HOUR_S, HOURS_PER_MONTH

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.fleet.file import Placed, Platform
    from flopwise.fleet.hours import Schedule
    from flopwise.fleet.results import Chosen

MONTHS_PER_YEAR = 12
BACKED = 0.2
"""What is left of a service's outage where a second provider stands ready. Assumed: the move fails one time in five."""
LEAST = 0.02
"""Risks that score less are left out."""
UNKNOWN = 0.5
"""Score of a risk whose rate nobody published."""
TARGETS = {"ttft": "latency", "tpot": "latency", "latency": "latency", "deadline": "availability"}


def risks(
    platform: Platform,
    chosen: Sequence[Chosen],
    rows: Sequence[Allotment],
    bill: MonthlyCost,
    asked: Sequence[WhatIf],
    drawn: Scenarios | None,
    ages: dict[str, float],
    months: Sequence[Month],
    facts: Facts,
) -> list[Risk]:
    """The register, worst first. `ages`: days since the price of each row's date; `months`: the bill to come."""
    found: list[Risk] = []
    spare = {r.workload for r in rows if r.role == "backup"}
    for held in chosen:
        found += _margins(held)
        found += _machine_lost(held, held.item.placed.name in spare)
    found += _quotas(platform, chosen, rows)
    found += _interruptions(rows, facts)
    found += _hosted(rows)
    found += _providers(platform, chosen, bill, asked)
    found += _prices(rows, bill, ages, platform.rules.max_price_age_days)
    found += _budget(drawn, platform.rules.budget_per_month, months)
    return sorted((r for r in found if r.score >= LEAST), key=lambda r: -r.score)


def _budget(drawn: Scenarios | None, budget: float | None, months: Sequence[Month]) -> Iterable[Risk]:
    """The chance of a month above the budget, and the share of the months to come that growth takes above it."""
    if drawn is not None and drawn.over_budget is not None:
        yield Risk(
            kind="budget", workload="", score=drawn.over_budget,
            evidence=f"{100 * drawn.over_budget:.0f} % of {drawn.runs:,} drawn months exceed the budget; "
            f"95 % stay below ${drawn.p95:,.0f}",
            mitigation="alert on the spend of a day; move runs that can wait to the next month",
        )  # fmt: skip
    over = [] if budget is None else [m for m in months if m.usd > budget]
    if over:
        yield Risk(
            kind="budget", workload="", score=len(over) / len(months),
            evidence=f"growth takes the bill past the budget in {over[0].month}; {len(over)} of the {len(months)} "
            "months ahead are above it",
            mitigation="raise the budget for those months, or assess again before: more load may suit other machines",
        )  # fmt: skip


def _margins(held: Chosen) -> Iterable[Risk]:
    """Memory, latency and deadlines: the probability that the target is missed."""
    candidate, name = held.way.candidate, held.item.placed.name
    for target, odds in candidate.meets.items():
        score = 1.0 - odds
        if target == "memory":
            used = candidate.memory_bytes / candidate.capacity_bytes
            evidence = f"{100 * used:.0f} % of the {candidate.gpu} is predicted; {100 * score:.1f} % likely not to fit"
            yield Risk(
                kind="memory", workload=name, score=score, evidence=evidence,
                mitigation="a smaller micro-batch, more recompute, or the next larger device",
            )  # fmt: skip
        elif target in TARGETS:
            how = "load-test before launch; one more replica", "start earlier, or take more machines"
            yield Risk(
                kind=TARGETS[target], workload=name, score=score, mitigation=how[target == "deadline"],
                evidence=f"{100 * score:.1f} % likely to miss its {target} target, by the measured errors of the model",
            )  # fmt: skip


def _machine_lost(held: Chosen, backup: bool) -> Iterable[Risk]:
    """Services: the probability that a machine fails within a year, times the share of requests the others lack."""
    placed, told = held.item.placed, held.figures
    if placed.ends or told is None:
        return
    count = sum(n for _, n in held.parts)
    gpus = max(1, held.way.candidate.num_gpus // held.way.candidate.num_instances)
    hours = count * gpus * held.way.busy_hours * MONTHS_PER_YEAR
    odds = -math.expm1(-hours * HOUR_S / DEFAULT_RELIABILITY.mtbf_gpu_s)
    lacking = 1.0
    if count > 1 and placed.wanted is not None and placed.wanted.requests_per_s:
        left = told.figures["requests_per_s"]["value"] * (count - held.way.unit) / count
        lacking = max(0.0, 1.0 - left / placed.wanted.requests_per_s)
    elif count > held.way.unit:
        lacking = held.way.unit / count
    whole = count <= held.way.unit
    carries = "one machine carries all of it" if count == 1 else f"all {count} machines are needed for one replica"
    evidence = carries if whole else f"without one of {count} machines {100 * lacking:.0f} % of the requests lack room"
    yield Risk(
        kind="availability", workload=placed.name, score=odds * lacking * (BACKED if backup else 1.0),
        evidence=f"{evidence}; one fails within a year with {100 * odds:.0f} %"
        + (", a second provider stands ready" if backup else ""),
        mitigation="rehearse the move to the backup" if backup else "one more replica, in another zone",
    )  # fmt: skip


def _quotas(platform: Platform, chosen: Sequence[Chosen], rows: Sequence[Allotment]) -> Iterable[Risk]:
    """Quotas that are more than half used, now or after a year's growth."""
    growth = {c.item.placed.name: (1 + c.item.placed.growth_per_month) ** MONTHS_PER_YEAR for c in chosen}
    placed = {c.item.placed.name: c.item.placed for c in chosen}
    for cap in platform.rules.caps:
        mine = [r for r in rows if _matches(cap.provider, r.provider) and _matches(cap.instance, r.instance)]
        if not mine or not cap.most:
            continue
        week = slots([_may_run(r, placed) for r in mine])
        used = most_at_once(week, [r.count for r in mine])
        later = most_at_once(week, [r.count * growth.get(r.workload, 1.0) for r in mine])
        what = " ".join(part for part in (cap.provider, cap.instance) if part)
        when = "if all run at once" if used == sum(r.count for r in mine) else "at the busiest time of the week"
        yield Risk(
            kind="availability", workload="", score=max(0.0, min(1.0, 2 * used / cap.most - 1)),
            evidence=f"{used:g} of the quota of {cap.most} x {what} are taken, {when}"
            + (f"; growth asks for {later:,.1f} after a year" if later > cap.most else ""),
            mitigation="ask for a higher quota now: large accelerators take weeks; or let runs follow one another",
        )  # fmt: skip


def _may_run(row: Allotment, placed: Mapping[str, Placed]) -> Schedule | None:
    """When machines of a row may be on: a backup at any time, and runs whose place in the week was not stated."""
    held = placed.get(row.workload)
    if held is None or row.role != "primary" or (held.ends and not held.schedule.fixed):
        return None
    return held.schedule


def _matches(pattern: str | None, name: str) -> bool:
    return pattern is None or fnmatchcase(name.lower(), pattern.lower())


def _interruptions(rows: Sequence[Allotment], facts: Facts) -> Iterable[Risk]:
    for row in rows:
        if row.purchase != "spot":
            continue
        record = facts.spot(row.provider, row.gpu)
        hours = row.count * min(row.hours_per_month, HOURS_PER_MONTH)
        expected = record.interruptions_per_s * HOUR_S * hours
        score = -math.expm1(-expected)
        told = f"{record.share}, {record.confidence} confidence"
        evidence = f"{expected:.2g} interruptions expected in {hours:,.1f} instance hours a month: {told}"
        yield Risk(
            kind="interruption", workload=row.workload, score=score, evidence=evidence,
            mitigation="checkpoints; on demand as the fallback when spot capacity is gone",
        )  # fmt: skip


def _hosted(rows: Sequence[Allotment]) -> Iterable[Risk]:
    """What the price list of an API leaves open."""
    for row in rows:
        if row.purchase == API:
            yield Risk(
                kind="availability", workload=row.workload, score=UNKNOWN,
                evidence=f"the price of {row.provider}'s {row.instance} leaves latency, rate limits and precision open",
                mitigation="try it with the real requests, ask for a committed rate, keep the machines' plan ready",
            )  # fmt: skip


def _providers(
    platform: Platform, chosen: Sequence[Chosen], bill: MonthlyCost, asked: Sequence[WhatIf]
) -> Iterable[Risk]:
    """The share of the bill with one provider, times what its loss would cost."""
    for question in asked:
        provider = question.name.removesuffix(" is lost")
        if provider == question.name or not bill.total:
            continue
        share = bill.by_provider.get(provider, 0.0) / bill.total
        hurt = 1.0 if not question.feasible else min(1.0, max(0.0, (question.change_usd or 0.0) / bill.total))
        loss = (
            _irreplaceable(provider, platform, chosen, question)
            if not question.feasible
            else f"its loss adds ${max(0.0, question.change_usd or 0):,.0f} a month"
        )
        yield Risk(
            kind="single provider", workload="", score=share * hurt,
            evidence=f"{100 * share:.0f} % of the bill is with {provider}; {loss}",
            mitigation="keep images, data and quotas ready with a second provider",
        )  # fmt: skip


def _irreplaceable(provider: str, platform: Platform, chosen: Sequence[Chosen], question: WhatIf) -> str:
    """Why nothing takes a provider's place: what the fleet itself asks for, else what is on offer."""
    stuck = [held.item.placed for held in chosen if all(w.offer.provider == provider for w in held.item.ways)]
    if not stuck:
        return f"the others cannot take its place together: {question.text}"
    rules = platform.rules
    policies = [f"policies.{name}" for name in ("providers", "regions") if getattr(rules, name)]
    asked = dict[str, None]()
    for placed in stuck:
        limits, job = placed.job.constraints, placed.job
        own = [f"constraints.{name}" for name in LIMITING if getattr(limits, name)]
        own += [name for name in ("residency", "tags", "purchase") if getattr(job, name)]
        if not own and not policies:
            return f"nothing else on offer could carry {placed.name[:60]}"
        asked |= dict.fromkeys(own)
    names = ", ".join(placed.name[:60] for placed in stuck[:4]) + (" and others" if len(stuck) > 4 else "")
    return f"within its {', '.join([*policies, *asked])} nothing else could carry {names}"


LIMITING = ("providers", "regions", "instances", "gpus", "purchase", "max_gpus", "max_usd_per_hour")
"""Constraints that may leave a workload one provider only."""


def _prices(
    rows: Sequence[Allotment], bill: MonthlyCost, ages: dict[str, float], max_age_days: float
) -> Iterable[Risk]:
    """Old prices, and money on prices that move."""
    old = [r for r in rows if ages.get(r.price_date, 0.0) > max_age_days]
    if old and bill.compute:
        share = sum(r.usd_per_month for r in old) / bill.compute
        oldest = min(r.price_date for r in old)
        yield Risk(
            kind="price", workload="", score=share,
            evidence=f"{100 * share:.0f} % of the bill is at prices older than {max_age_days:g} days (since {oldest})",
            mitigation="flopwise prices refresh, or import a newer list",
        )  # fmt: skip
    spot = sum(r.usd_per_month for r in rows if r.purchase == "spot")
    if spot and bill.compute:
        yield Risk(
            kind="price", workload="", score=spot / bill.compute * UNKNOWN,
            evidence=f"{100 * spot / bill.compute:.0f} % of the bill is at spot prices, which move",
            mitigation="allow several instance types and zones, so that capacity comes from the cheapest at the time; "
            "keep on demand as the fallback, and alert where spot nears its price",
        )  # fmt: skip
