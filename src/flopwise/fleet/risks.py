"""What may go wrong, each scored from 0 to 1 by a margin that was computed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from flopwise.facts.reliability import spot_record
from flopwise.fleet.assessment import Allotment, MonthlyCost, Risk, Scenarios, WhatIf
from flopwise.fleet.spec import API
from flopwise.training.goodput import DEFAULT_RELIABILITY
from flopwise.units import HOUR_S, HOURS_PER_MONTH

if TYPE_CHECKING:
    from pathlib import Path

    from flopwise.fleet.results import Chosen

LEAST = 0.02
"""Risks that score less are left out."""
UNKNOWN = 0.5
"""Score of a risk whose rate nobody published."""
TARGETS = {"ttft": "latency", "tpot": "latency", "latency": "latency", "deadline": "availability"}


def risks(
    chosen: Sequence[Chosen],
    rows: Sequence[Allotment],
    bill: MonthlyCost,
    asked: Sequence[WhatIf],
    drawn: Scenarios | None,
    ages: dict[str, float],
    folder: Path | None = None,
    *,
    max_age_days: float = 180.0,
) -> list[Risk]:
    """The register, worst first. `ages`: days since the price of each row's date."""
    found: list[Risk] = []
    for held in chosen:
        found += _margins(held)
        found += _single_machine(held, rows)
    found += _interruptions(rows, folder)
    found += _hosted(rows)
    found += _providers(bill, asked)
    found += _prices(rows, bill, ages, max_age_days)
    if drawn is not None and drawn.over_budget is not None:
        found.append(
            Risk(
                kind="budget", workload="", score=drawn.over_budget,
                evidence=f"{100 * drawn.over_budget:.0f} % of {drawn.runs:,} drawn months exceed the budget; "
                f"95 % stay below ${drawn.p95:,.0f}",
                mitigation="alert on the spend of a day; move runs that can wait to the next month",
            )
        )  # fmt: skip
    return sorted((r for r in found if r.score >= LEAST), key=lambda r: -r.score)


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


def _single_machine(held: Chosen, rows: Sequence[Allotment]) -> Iterable[Risk]:
    """Services on one machine: the probability that it fails within a month."""
    placed = held.item.placed
    if placed.ends or held.figures is None or sum(n for _, n in held.parts) > 1:
        return
    gpus = max(1, held.way.candidate.num_gpus // held.way.candidate.num_instances)
    score = -math.expm1(-gpus * held.way.busy_hours * HOUR_S / DEFAULT_RELIABILITY.mtbf_gpu_s)
    backup = any(r.workload == placed.name and r.role == "backup" for r in rows)
    evidence = f"one instance carries it; it fails in a month with {100 * score:.1f} %"
    yield Risk(
        kind="availability", workload=placed.name, score=score * (0.2 if backup else 1.0),
        evidence=evidence + (", a second provider stands ready" if backup else ""),
        mitigation="a second replica in another zone" if not backup else "rehearse the move to the backup",
    )  # fmt: skip


def _interruptions(rows: Sequence[Allotment], folder: Path | None) -> Iterable[Risk]:
    for row in rows:
        if row.purchase != "spot":
            continue
        record = spot_record(row.provider, row.gpu, folder)
        hours = row.count * min(row.hours_per_month, HOURS_PER_MONTH)
        expected = record.interruptions_per_s * HOUR_S * hours
        score = -math.expm1(-expected)
        evidence = f"{expected:.2g} interruptions expected in {hours:,.1f} instance hours a month: {record.text}"
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


def _providers(bill: MonthlyCost, asked: Sequence[WhatIf]) -> Iterable[Risk]:
    """The share of the bill with one provider, times what its loss would cost."""
    for question in asked:
        provider = question.name.removesuffix(" is lost")
        if provider == question.name or not bill.total:
            continue
        share = bill.by_provider.get(provider, 0.0) / bill.total
        hurt = 1.0 if not question.feasible else min(1.0, max(0.0, (question.change_usd or 0.0) / bill.total))
        loss = (
            "nothing could replace it"
            if not question.feasible
            else f"its loss adds ${max(0.0, question.change_usd or 0):,.0f} a month"
        )
        yield Risk(
            kind="single provider", workload="", score=share * hurt,
            evidence=f"{100 * share:.0f} % of the bill is with {provider}; {loss}",
            mitigation="keep images, data and quotas ready with a second provider",
        )  # fmt: skip


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
            mitigation="cap the bid at the on-demand price",
        )  # fmt: skip
