"""What to watch: thresholds from the plan's own figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from flopwise.fleet.assessment import Alert, Allotment
from flopwise.fleet.model import paid_all_month
from flopwise.fleet.risks import spot_interruptions
from flopwise.fleet.schedules import ALL_DAYS, DAY_NAMES, DAYS_PER_MONTH
from flopwise.search.deployments import PREFILL_BUSY
from flopwise.units import HOUR_S, format_count, format_seconds

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.fleet.bill import SolvedFleet
    from flopwise.fleet.model import ChosenWorkload, ResolvedJob

MEMORY_LIMIT = 0.97
"""Share of a device's memory from which an alert is due, where the interval leaves more."""
MEMORY_SLACK = 0.05
"""The same where the engine sets its memory aside at the start: more of it is used by something else."""
SPEND_SLACK = 1.1
SELDOM = 0.05
"""Probability of more interruptions in a month than an alert allows."""


def alerts(fleet: SolvedFleet) -> list[Alert]:
    """Thresholds: spend of a day, month or run, latency, memory, throughput, load of the replicas, interruptions."""
    rows: dict[str, list[Allotment]] = {}
    for row, _, chosen in fleet.primary:
        rows.setdefault(chosen.name, []).append(row)
    found = list(_fleet_spend(fleet))
    for chosen in fleet.chosen:
        own = rows.get(chosen.name, [])
        found += _workload_spend(chosen.job, own)
        found += _figure_limits(chosen)
        found += _interruptions(own, fleet.facts)
    return found


def _fleet_spend(fleet: SolvedFleet) -> Iterable[Alert]:
    """The dearest day that is planned, and the month so far where there is a budget."""
    days, budget, total = days_of_week(fleet), fleet.platform.rules.budget_per_month, fleet.cost.total
    day = max(ALL_DAYS, key=lambda d: days[d][0])
    usd, high = days[day]
    threshold, slack = _with_slack(usd, high)
    name = f"a {DAY_NAMES[day].capitalize()}" if usd > min(days)[0] * (1 + 1e-9) else "any day"
    yield Alert(
        metric="spend per day", workload="", threshold=threshold, unit="USD",
        why=f"{slack}; ${usd:,.2f} is planned at most, on {name}",
    )  # fmt: skip
    if budget is not None:
        early = total <= budget - usd
        why = "the budget less the dearest planned day, another of which could exceed it" if early else "the budget"
        yield Alert(
            metric="spend this month", workload="", threshold=budget - usd if early else budget, unit="USD",
            why=f"{why}; ${total:,.0f} is planned",
        )  # fmt: skip


def days_of_week(fleet: SolvedFleet) -> list[tuple[float, float]]:
    """(planned, upper end of the interval) of what each day of the week may cost, from Monday, USD.

    Assumes: machines that are paid all month, storage and traffic cost as much each day; a run may begin on any day of
    its schedule, and all of it that fits into a day is paid on that day.
    """
    steady = (fleet.cost.storage + fleet.cost.traffic) / DAYS_PER_MONTH
    days = [(steady, steady)] * len(ALL_DAYS)
    for row in fleet.rows:
        chosen = fleet.by_name.get(row.workload)
        even = chosen is None or row.role != "primary" or paid_all_month(row.purchase)
        shares = [1 / DAYS_PER_MONTH] * len(ALL_DAYS) if chosen is None or even else _day_shares(chosen)
        days = [
            (usd + share * row.usd_per_month, high + share * row.usd_high)
            for (usd, high), share in zip(days, shares, strict=True)
        ]
    return days


def _day_shares(chosen: ChosenWorkload) -> list[float]:
    """The share of a month's cost that each day of the week may bring."""
    job, minutes = chosen.job, chosen.job.schedule.minutes_by_weekday
    times = job.schedule.days_per_month
    if not job.ends:
        return [m / (60 * job.schedule.hours_per_day * times) for m in minutes]
    runs, hours = job.runs_per_month or 1.0, max(chosen.option.candidate.seconds / HOUR_S, 1e-9)
    at_once = max(1, math.ceil(runs / times - 1e-6))
    return [min(1.0, at_once / runs * min(1.0, 24 / hours)) if m else 0.0 for m in minutes]


def _with_slack(usd: float, high: float) -> tuple[float, str]:
    """(threshold, why) above what is planned."""
    upper = high > SPEND_SLACK * usd
    why = "the upper end of the interval" if upper else f"{100 * (SPEND_SLACK - 1):.0f} % above the plan"
    return max(high, SPEND_SLACK * usd), why


def _workload_spend(job: ResolvedJob, rows: Sequence[Allotment]) -> Iterable[Alert]:
    """Of one run, or of one day that the machines are on."""
    usd, high = sum(r.usd_per_month for r in rows), sum(r.usd_high for r in rows)
    if not usd:
        return
    if job.ends:
        times, metric, of = job.runs_per_month or 1.0, "spend per run", f"{job.runs_per_month or 1:,.3g} runs"
    else:
        times = job.schedule.days_per_month
        metric, of = "spend per day", f"{times:,.3g} days"
    threshold, why = _with_slack(usd, high)
    yield Alert(
        metric=metric, workload=job.name, threshold=threshold / times, unit="USD",
        why=f"{why}; ${usd / times:,.2f} is planned, {of} a month",
    )  # fmt: skip


def _figure_limits(chosen: ChosenWorkload) -> Iterable[Alert]:
    """Memory, targets, throughput of runs and load of replicas."""
    job, candidate, expected = chosen.job, chosen.option.candidate, chosen.figures
    workload = chosen.planned.workload
    if expected is None or workload is None:
        return
    figures = expected.figures
    planned, upper = expected.memory_frac, min(expected.memory_high_frac, MEMORY_LIMIT)
    why = f"the upper end of the interval of the {100 * planned:.0f} % that are planned on {candidate.gpu}"
    if upper <= planned * (1 + 1e-9):
        upper = planned + MEMORY_SLACK
        why = f"{100 * MEMORY_SLACK:.0f} points above the {100 * planned:.0f} % of the {candidate.gpu} that are planned"
    elif expected.memory_high_frac > MEMORY_LIMIT:
        why = f"{100 * planned:.0f} % of the {candidate.gpu} are planned; the interval reaches its end"
    limit = min(upper, 1.0)
    yield Alert(
        metric="device memory", workload=job.name, threshold=limit * candidate.capacity_bytes, unit="B", why=why
    )
    for name in ("ttft", "tpot", "latency"):
        target, figure = getattr(workload, name), figures.get(f"{name}_s")
        if target is not None:
            outlook = "" if figure is None else f"; {format_seconds(figure['value'])} is expected"
            yield Alert(
                metric=f"{target.percentile} {name}", workload=job.name, threshold=target.seconds, unit="s",
                why=f"the target{outlook}",
            )  # fmt: skip
    rate = figures.get("tokens_per_s") or figures.get("output_tokens_per_s")
    if job.ends and rate:
        why = (
            f"the lower end of the planned {format_count(rate['value'])}: below it the run takes longer and costs more"
        )
        yield Alert(metric="throughput at least", workload=job.name, threshold=rate["low"], unit="tokens/s", why=why)
    if not job.ends and "requests_per_s" in figures:
        capacity = figures["requests_per_s"]["value"] * PREFILL_BUSY
        why = f"{100 * PREFILL_BUSY:.0f} % of what the replicas can do: add one before"
        yield Alert(metric="requests", workload=job.name, threshold=capacity, unit="1/s", why=why)


def _interruptions(rows: Sequence[Allotment], facts: Facts) -> Iterable[Alert]:
    """More of them than chance explains."""
    for row in rows:
        if row.purchase == "spot":
            expected = spot_interruptions(row, facts)
            why = f"{expected:,.2g} are expected; this many come in fewer than one month of {1 / SELDOM:.0f}"
            yield Alert(
                metric="interruptions a month", workload=row.workload, threshold=float(seldom_more(expected) + 1),
                unit="", why=why,
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
