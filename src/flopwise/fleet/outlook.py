"""What to watch and in which order to build: alerts and phases, from the plan's own figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from flopwise.fleet.assessment import Alert, Allotment, MonthlyCost, Phase
from flopwise.fleet.hours import ALL_DAYS, DAY_NAMES, DAYS_PER_MONTH
from flopwise.fleet.spec import OWNED
from flopwise.search.deployments import PREFILL_BUSY
from flopwise.units import HOUR_S, format_count, format_seconds

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.fleet.file import Placed, Platform
    from flopwise.fleet.results import Chosen

PHASES = ("development", "staging", "training", "production", "large models")
MEMORY_LIMIT = 0.97
"""Share of a device's memory from which an alert is due, where the interval leaves more."""
MEMORY_SLACK = 0.05
"""The same where the engine sets its memory aside at the start: more of it is used by something else."""
SPEND_SLACK = 1.1
SELDOM = 0.05
"""Probability of more interruptions in a month than an alert allows."""
LARGE = 20e9
"""Parameters from which a model is large."""


def alerts(
    platform: Platform,
    chosen: Sequence[Chosen],
    rows: Sequence[Allotment],
    bill: MonthlyCost,
    facts: Facts,
) -> list[Alert]:
    """Thresholds: spend of a day, month or run, latency, memory, throughput, load of the replicas, interruptions."""
    found = list(_of_fleet(platform.rules.budget_per_month, chosen, rows, bill))
    paid: dict[str, list[Allotment]] = {}
    for row in rows:
        if row.role == "primary":
            paid.setdefault(row.workload, []).append(row)
    for held in chosen:
        own = paid.get(held.item.placed.name, [])
        found += _spend(held.item.placed, own)
        found += _of_workload(held)
        found += _interruptions(own, facts)
    return found


def _of_fleet(
    budget: float | None, chosen: Sequence[Chosen], rows: Sequence[Allotment], bill: MonthlyCost
) -> Iterable[Alert]:
    """The dearest day that is planned, and the month so far where there is a budget."""
    days = days_of_week(chosen, rows, bill)
    day = max(ALL_DAYS, key=lambda d: days[d][0])
    usd, high = days[day]
    threshold, slack = _with_slack(usd, high)
    name = f"a {DAY_NAMES[day].capitalize()}" if usd > min(days)[0] * (1 + 1e-9) else "any day"
    yield Alert(
        metric="spend per day", workload="", threshold=threshold, unit="USD",
        why=f"{slack}; ${usd:,.2f} is planned at most, on {name}",
    )  # fmt: skip
    if budget is not None:
        early = bill.total <= budget - usd
        why = "the budget less the dearest planned day, another of which could exceed it" if early else "the budget"
        yield Alert(
            metric="spend this month", workload="", threshold=budget - usd if early else budget, unit="USD",
            why=f"{why}; ${bill.total:,.0f} is planned",
        )  # fmt: skip


def days_of_week(chosen: Sequence[Chosen], rows: Sequence[Allotment], bill: MonthlyCost) -> list[tuple[float, float]]:
    """(planned, upper end of the interval) of what each day of the week may cost, from Monday, USD.

    Assumes: machines that are paid all month, storage and traffic cost as much each day; a run may begin on any day of
    its schedule, and all of it that fits into a day is paid on that day.
    """
    placed = {held.item.placed.name: held for held in chosen}
    steady = (bill.storage + bill.traffic) / DAYS_PER_MONTH
    days = [[steady, steady] for _ in ALL_DAYS]
    for row in rows:
        held = placed.get(row.workload)
        paid = row.role != "primary" or row.purchase == OWNED or row.purchase.startswith("reserved")
        shares = [1 / DAYS_PER_MONTH] * len(ALL_DAYS) if held is None or paid else _day_shares(held)
        for day, share in zip(days, shares, strict=True):
            day[0] += share * row.usd_per_month
            day[1] += share * row.usd_high
    return [(usd, high) for usd, high in days]


def _day_shares(held: Chosen) -> list[float]:
    """The share of a month's cost that each day of the week may bring."""
    placed, minutes = held.item.placed, held.item.placed.schedule.minutes_by_weekday
    times = placed.schedule.days_per_month
    if not placed.ends:
        return [m / (60 * placed.schedule.hours_per_day * times) for m in minutes]
    runs, hours = placed.runs_per_month or 1.0, max(held.way.candidate.seconds / HOUR_S, 1e-9)
    at_once = max(1, math.ceil(runs / times - 1e-6))
    return [min(1.0, at_once / runs * min(1.0, 24 / hours)) if m else 0.0 for m in minutes]


def _with_slack(usd: float, high: float) -> tuple[float, str]:
    """(threshold, why) above what is planned."""
    upper = high > SPEND_SLACK * usd
    why = "the upper end of the interval" if upper else f"{100 * (SPEND_SLACK - 1):.0f} % above the plan"
    return max(high, SPEND_SLACK * usd), why


def _spend(placed: Placed, rows: Sequence[Allotment]) -> Iterable[Alert]:
    """Of one run, or of one day that the machines are on."""
    usd, high = sum(r.usd_per_month for r in rows), sum(r.usd_high for r in rows)
    if not usd:
        return
    if placed.ends:
        times, metric, of = placed.runs_per_month or 1.0, "spend per run", f"{placed.runs_per_month or 1:,.3g} runs"
    else:
        times = placed.schedule.days_per_month
        metric, of = "spend per day", f"{times:,.3g} days"
    threshold, why = _with_slack(usd, high)
    yield Alert(
        metric=metric, workload=placed.name, threshold=threshold / times, unit="USD",
        why=f"{why}; ${usd / times:,.2f} is planned, {of} a month",
    )  # fmt: skip


def _of_workload(held: Chosen) -> Iterable[Alert]:
    placed, candidate, told = held.item.placed, held.way.candidate, held.figures
    if told is None:
        return
    planned, upper = told.memory_frac, min(told.memory_high_frac, MEMORY_LIMIT)
    why = f"the upper end of the interval of the {100 * planned:.0f} % that are planned on {candidate.gpu}"
    if upper <= planned * (1 + 1e-9):
        upper = planned + MEMORY_SLACK
        why = f"{100 * MEMORY_SLACK:.0f} points above the {100 * planned:.0f} % of the {candidate.gpu} that are planned"
    elif told.memory_high_frac > MEMORY_LIMIT:
        why = f"{100 * planned:.0f} % of the {candidate.gpu} are planned; the interval reaches its end"
    limit = min(upper, 1.0)
    yield Alert(
        metric="device memory", workload=placed.name, threshold=limit * candidate.capacity_bytes, unit="B", why=why
    )
    wanted = held.item.wanted
    assert wanted is not None
    for name in ("ttft", "tpot", "latency"):
        target = getattr(wanted, name)
        if target is not None:
            expected = told.figures.get(f"{name}_s")
            said = "" if expected is None else f"; {format_seconds(expected['value'])} is expected"
            yield Alert(
                metric=f"{target.percentile} {name}", workload=placed.name, threshold=target.seconds, unit="s",
                why=f"the target{said}",
            )  # fmt: skip
    rate = told.figures.get("tokens_per_s") or told.figures.get("output_tokens_per_s")
    if placed.ends and rate:
        why = (
            f"the lower end of the planned {format_count(rate['value'])}: below it the run takes longer and costs more"
        )
        yield Alert(metric="throughput at least", workload=placed.name, threshold=rate["low"], unit="tokens/s", why=why)
    if not placed.ends and "requests_per_s" in told.figures:
        capacity = told.figures["requests_per_s"]["value"] * PREFILL_BUSY
        why = f"{100 * PREFILL_BUSY:.0f} % of what the replicas can do: add one before"
        yield Alert(metric="requests", workload=placed.name, threshold=capacity, unit="1/s", why=why)


def _interruptions(rows: Sequence[Allotment], facts: Facts) -> Iterable[Alert]:
    """More of them than chance explains."""
    for row in rows:
        if row.purchase != "spot":
            continue
        expected = facts.spot(row.provider, row.gpu).interruptions_per_s * HOUR_S * row.hours_per_month * row.count
        why = f"{expected:,.2g} are expected; this many come in fewer than one month of {1 / SELDOM:.0f}"
        yield Alert(
            metric="interruptions a month", workload=row.workload, threshold=float(seldom_more(expected) + 1), unit="",
            why=why,
        )  # fmt: skip


def seldom_more(expected: float) -> int:
    """The least n that a Poisson count of mean `expected` exceeds with less than `SELDOM`."""
    count, term = 0, math.exp(-min(expected, 700.0))
    reached = term
    while 1 - reached >= SELDOM and count < 10_000:
        count += 1
        term *= expected / count
        reached += term
    return count


def roadmap(chosen: Sequence[Chosen], bill: MonthlyCost) -> list[Phase]:
    """Phases in order of their months, else in the usual order; the cost of each is of what it adds."""
    groups: dict[tuple[str, str], list[str]] = {}
    for held in chosen:
        placed = held.item.placed
        groups.setdefault((placed.job.starts or "", _phase(held)), []).append(placed.name)
    ordered = sorted(groups.items(), key=lambda g: (g[0][0], PHASES.index(g[0][1])))
    rows, running = list[Phase](), 0.0
    for (start, name), names in ordered:
        usd = sum(bill.by_workload.get(n, 0.0) for n in names)
        running += usd
        text = f"adds ${usd:,.0f} a month; ${running:,.0f} from then on"
        rows.append(Phase(name=name, start=start or None, workloads=names, usd_per_month=usd, text=text))
    return rows


def _phase(held: Chosen) -> str:
    placed, told = held.item.placed, held.figures
    if placed.job.task == "develop" or placed.environment in {"development", "staging"}:
        return "staging" if placed.environment == "staging" else "development"
    if told is not None and told.parameters >= LARGE:
        return "large models"
    return "training" if placed.job.task in {"pretrain", "finetune"} else "production"
