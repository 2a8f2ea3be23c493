"""What to watch and in which order to build: alerts and phases, from the plan's own figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from flopwise.fleet.assessment import Alert, MonthlyCost, Phase
from flopwise.fleet.hours import DAYS_PER_MONTH
from flopwise.search.serving import PREFILL_BUSY

if TYPE_CHECKING:
    from flopwise.fleet.results import Chosen

PHASES = ("development", "staging", "training", "production", "large models")
MEMORY_LIMIT = 0.97
"""Share of a device's memory from which an alert is due, where the interval leaves more."""
SPEND_SLACK = 1.1
LARGE = 20e9
"""Parameters from which a model is large."""


def alerts(chosen: Sequence[Chosen], bill: MonthlyCost, budget: float | None) -> list[Alert]:
    """Thresholds: spend of a day, latency, memory, throughput, load of the replicas."""
    day = (budget if budget is not None else bill.high) / DAYS_PER_MONTH
    why = "the budget, spread over the month" if budget is not None else "the upper end of the bill's interval"
    found = [Alert(metric="spend per day", workload="", threshold=day, unit="USD", why=why)]
    for held in chosen:
        found += _of_workload(held, bill)
    return found


def _of_workload(held: Chosen, bill: MonthlyCost) -> Iterable[Alert]:
    placed, candidate, told = held.item.placed, held.way.candidate, held.figures
    own = bill.by_workload.get(placed.name, 0.0) * SPEND_SLACK / DAYS_PER_MONTH
    yield Alert(metric="spend per day", workload=placed.name, threshold=own, unit="USD", why="a tenth above its plan")
    if told is None:
        return
    limit = min(max(told.memory_frac, min(told.memory_high_frac, MEMORY_LIMIT)), 1.0)
    why = f"{100 * told.memory_frac:.0f} % is planned on {candidate.gpu}; this is the upper end of the interval"
    yield Alert(
        metric="device memory", workload=placed.name, threshold=limit * candidate.capacity_bytes, unit="B", why=why
    )
    wanted = held.item.wanted
    assert wanted is not None
    for name in ("ttft", "tpot", "latency"):
        target = getattr(wanted, name)
        if target is not None:
            yield Alert(
                metric=f"{target.percentile} {name}", workload=placed.name, threshold=target.seconds, unit="s",
                why="the target",
            )  # fmt: skip
    rate = told.figures.get("tokens_per_s") or told.figures.get("output_tokens_per_s")
    if placed.ends and rate:
        why = "the lower end of the planned throughput: below it the run takes longer and costs more"
        yield Alert(metric="throughput at least", workload=placed.name, threshold=rate["low"], unit="tokens/s", why=why)
    if not placed.ends and "requests_per_s" in told.figures:
        capacity = told.figures["requests_per_s"]["value"] * PREFILL_BUSY
        why = f"{100 * PREFILL_BUSY:.0f} % of what the replicas can do: add one before"
        yield Alert(metric="requests", workload=placed.name, threshold=capacity, unit="1/s", why=why)


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
