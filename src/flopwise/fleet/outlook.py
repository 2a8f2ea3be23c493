"""What to watch and in which order to build: alerts and phases, from the plan's own figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from flopwise.facts.reliability import spot_record
from flopwise.fleet.assessment import Alert, Allotment, MonthlyCost, Phase
from flopwise.fleet.hours import DAYS_PER_MONTH
from flopwise.search.serving import PREFILL_BUSY
from flopwise.units import HOUR_S, format_count, format_seconds

if TYPE_CHECKING:
    from pathlib import Path

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
    folder: Path | None = None,
) -> list[Alert]:
    """Thresholds: spend of a day or of a run, latency, memory, throughput, load of the replicas, interruptions."""
    budget = platform.rules.budget_per_month
    day = (budget if budget is not None else bill.high) / DAYS_PER_MONTH
    why = "the budget, spread over the month" if budget is not None else "the upper end of the bill's interval"
    found = [Alert(metric="spend per day", workload="", threshold=day, unit="USD", why=why)]
    paid: dict[str, list[Allotment]] = {}
    for row in rows:
        if row.role == "primary":
            paid.setdefault(row.workload, []).append(row)
    for held in chosen:
        own = paid.get(held.item.placed.name, [])
        found += _spend(held.item.placed, own)
        found += _of_workload(held)
        found += _interruptions(own, folder)
    return found


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
    upper = high > SPEND_SLACK * usd
    why = "the upper end of the interval" if upper else f"{100 * (SPEND_SLACK - 1):.0f} % above the plan"
    yield Alert(
        metric=metric, workload=placed.name, threshold=max(high, SPEND_SLACK * usd) / times, unit="USD",
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


def _interruptions(rows: Sequence[Allotment], folder: Path | None) -> Iterable[Alert]:
    """More of them than chance explains."""
    for row in rows:
        if row.purchase != "spot":
            continue
        expected = (
            spot_record(row.provider, row.gpu, folder).interruptions_per_s * HOUR_S * row.hours_per_month * row.count
        )
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
