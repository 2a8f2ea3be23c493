"""One result for each workload: what it is, what it takes, its best machines, why not cheaper ones, and its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from flopwise.fleet.assessment import WorkloadResult
from flopwise.fleet.spec import API, OWNED
from flopwise.ops.tensors import parameters
from flopwise.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flopwise.facts.catalog import Facts
    from flopwise.fleet.model import ChosenWorkload, MonthlyOption, PlannedWorkload
    from flopwise.search.answer import Candidate, Plan

SIZES = ((1e9, "small"), (20e9, "medium"), (float("inf"), "large"))
"""Categories of models by parameters."""
SAME = 1.005


def size_of(parameters: int) -> str:
    """The category of a model."""
    return next(name for most, name in SIZES if parameters < most)


def workload_result(chosen: ChosenWorkload, facts: Facts) -> WorkloadResult:
    """The result of one workload."""
    job, option, figures = chosen.job, chosen.option, chosen.figures
    energy, carbon = _electricity(chosen)
    size, pattern, count = _kind(chosen, facts)
    memory = option.candidate.memory_bytes * max(1, job.gpus_each) if figures is None else figures.memory_bytes
    return WorkloadResult(
        name=job.name, environment=job.environment, kind=job.spec.task, model=job.spec.model, parameters=count,
        size=size, memory_bytes=None if option.purchase == API else memory or None,
        intensity=None if figures is None else figures.intensity, pattern=pattern, hours_per_month=option.busy_hours,
        runs_per_month=job.runs_per_month, feasible=True, reasons=[], best=_best(chosen),
        why_not_cheaper=why_not_cheaper(chosen), energy_kwh_per_month=energy, carbon_kg_per_month=carbon,
        starts=job.spec.starts, schedule=job.schedule.plain(), targets=_targets(chosen.planned),
    )  # fmt: skip


def _targets(item: PlannedWorkload) -> dict[str, dict[str, Any]]:
    """What is asked, under the names of the figures that answer it."""
    workload, targets = item.workload, dict[str, dict[str, Any]]()
    if workload is None:
        return targets
    for name in ("ttft", "tpot", "latency"):
        limit = getattr(workload, name)
        if limit is not None:
            targets[f"{name}_s"] = {"value": limit.seconds, "percentile": limit.percentile}
    rate = workload.requests_per_s
    if item.job.ends:
        if workload.deadline_s is not None:
            targets["run_s"] = {"value": workload.deadline_s}
    elif rate is not None:
        targets["requests_per_s"] = {"value": rate, "mean": rate / workload.peak}
    return targets


def _kind(chosen: ChosenWorkload, facts: Facts) -> tuple[str, str, int | None]:
    """(size, what bounds it, parameters) of a workload."""
    figures, workload = chosen.figures, chosen.planned.workload
    if figures is not None:
        return size_of(figures.parameters), figures.pattern, figures.parameters
    if workload is None:
        return "machines", "machines to work on", None
    count = int(parameters(facts.model(workload.model)))
    return size_of(count), "answered by an API", count


def _electricity(chosen: ChosenWorkload) -> tuple[float | None, float | None]:
    """(kWh, kg of CO2) a month over all machines; None where one part is not known."""
    kwh: float | None = 0.0
    kg: float | None = 0.0
    for taken in chosen.parts:
        option, count, whole = taken.option, taken.count, taken.option.instances
        kwh = None if option.kwh is None or kwh is None else kwh + option.kwh * count / whole
        kg = None if option.kg is None or kg is None else kg + option.kg * count / whole
    return kwh, kg


def _best(chosen: ChosenWorkload) -> dict[str, Any]:
    option, candidate, figures = chosen.option, chosen.option.candidate, chosen.figures
    return {
        "provider": option.provider, "region": option.region, "instance": option.instance, "gpu": candidate.gpu,
        "num_gpus": chosen.main.count * option.gpus_each, "num_instances": chosen.main.count,
        "purchase": option.purchase, "layout": candidate.layout,
        "memory_bytes_per_gpu": candidate.memory_bytes or None, "capacity_bytes": candidate.capacity_bytes or None,
        "meets": candidate.meets, "figures": dict(candidate.figures) if figures is None else figures.figures,
        "breakdown": {} if figures is None else figures.breakdown, "usd_per_month": option.usd,
    }  # fmt: skip


def why_not_cheaper(chosen: ChosenWorkload) -> str:
    """The cheaper options there are, and what stands against each: a policy of the fleet, or a target it misses."""
    option, reasons = chosen.option, []
    first = next((other for other in chosen.planned.options if other.usd * SAME < option.usd), None)
    if first is not None:
        reasons.append(
            f"{_machines(first.candidate, first.instances)} {BOUGHT[first.purchase]} would cost ${first.usd:,.0f} a "
            f"month instead of ${option.usd:,.0f}: {_obstacle(first, option)}"
        )
    misses = [] if chosen.planned.plan is None else chosen.planned.plan.misses
    reasons += [
        f"{_machines(near, near.num_instances)} {BOUGHT[near.purchase]} {_shortfall(near, chosen.planned)}"
        for near in misses[: 2 - len(reasons)]
    ]
    return "; ".join(reasons) or "it is the cheapest on offer that does the work"


def _obstacle(cheaper: MonthlyOption, option: MonthlyOption) -> str:
    """What stands against a cheaper option."""
    if option.purchase == OWNED:
        return "own machines are paid all month, and others use them, too"
    if cheaper.purchase == OWNED:
        return "there are only so many of them, and other workloads or policies of the fleet come first"
    return "policies of the fleet (shares, quotas, backup ...) stand against it"


BOUGHT = {
    "on_demand": "on demand", "spot": "on spot", "reserved_1y": "reserved for a year", API: "by the token",
    "reserved_3y": "reserved for three years", OWNED: "of one's own",
}  # fmt: skip


def _machines(candidate: Candidate, count: int) -> str:
    if candidate.purchase == API:
        return f"{candidate.provider}'s {candidate.instance}"
    return f"{count} x {candidate.provider} {candidate.instance} ({candidate.gpu})"


def _shortfall(near: Candidate, item: PlannedWorkload) -> str:
    """What a cheaper candidate misses, with figures."""
    assert item.workload is not None
    workload = item.workload
    if not near.meets:
        return "is beyond a limit"
    name = min(near.meets, key=lambda n: near.meets[n])
    odds = f"{100 * near.meets[name]:.0f} % likely to hold it, {100 * workload.confidence:.0f} % are asked"
    limit = {"ttft": workload.ttft, "tpot": workload.tpot, "latency": workload.latency}.get(name)
    if name == "memory":
        return f"needs {format_bytes(near.memory_bytes)} of {format_bytes(near.capacity_bytes)} ({odds})"
    if limit is not None:
        value = near.figures["e2e_s" if name == "latency" else f"{name}_s"] or 0.0
        return f"has {limit.percentile} {name} {format_seconds(value)} of {format_seconds(limit.seconds)} ({odds})"
    if name == "deadline" and workload.deadline_s is not None:
        return f"takes {format_seconds(near.seconds)} of {format_seconds(workload.deadline_s)} ({odds})"
    times = near.shortfall.get(name)
    return f"misses {name}" + (f" {times:.2g} times" if times else "") + f" ({odds})"


# The plan of each workload as its file holds it

KEPT_IN_ALL, MOST, LEAST = 3000, 20, 3
"""Candidates in the files of a whole fleet, at most and at least in one file: a thousand workloads stay a few MB."""


def plans_by_workload(chosen: Sequence[ChosenWorkload]) -> dict[str, Plan]:
    """The plan of each planned workload by its name: what the fleet takes first, then what else was considered."""
    most = min(MOST, max(LEAST, KEPT_IN_ALL // max(1, len(chosen))))
    return {c.name: _shortened(c, c.planned.plan, most) for c in chosen if c.planned.plan is not None}


def _shortened(chosen: ChosenWorkload, plan: Plan, most: int) -> Plan:
    """`plan` with what the fleet took as the first candidates, then the cheapest others by the fleet's own bill.

    Of others one of each kind of machine and purchase: a list of twenty regions of the same would tell nothing.
    """
    parts = sorted(chosen.parts, key=lambda taken: taken.option is not chosen.option)
    taken = {id(part.option.candidate): part.option.candidate for part in parts}
    others = [o.candidate for o in chosen.planned.options if id(o.candidate) not in taken]
    varied = {(c.provider, c.instance, c.purchase): c for c in reversed(others)}
    varied_first = [c for c in others if varied[c.provider, c.instance, c.purchase] is c]
    first, kept = len(taken), [*taken.values(), *varied_first[: max(0, most - len(taken))]]
    note = (
        f"the first {'candidate is' if first == 1 else f'{first} candidates are'} what the fleet takes; then come "
        f"{len(kept) - first:,} of {len(others):,} others, by what a month of them costs in the fleet"
    )
    workload, window = chosen.planned.workload, list[str]()
    if workload is not None and workload.deadline_s is not None and chosen.job.ends:
        window = [f"each run ends within its window of {workload.deadline_s / 3600:,.1f} h"]
    return msgspec.structs.replace(
        plan,
        plans=[msgspec.structs.replace(c, rank=n) for n, c in enumerate(kept, start=1)],
        front=plan.front[:most],
        fronts={},
        demoted=[],
        misses=plan.misses[:LEAST],
        assumptions=[note, *window, *plan.assumptions],
    )
