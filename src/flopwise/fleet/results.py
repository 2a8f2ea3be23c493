"""One row for each workload: what it is, what it takes, its best way, and why not the cheaper one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flopwise.fleet.assessment import WorkloadResult
from flopwise.fleet.forked import forked
from flopwise.fleet.measured import Measured, measured
from flopwise.fleet.money import carbon_of
from flopwise.fleet.spec import API, OWNED
from flopwise.ops.tensors import parameters
from flopwise.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.fleet.allocate import Allocation
    from flopwise.fleet.candidates import Carried
    from flopwise.fleet.problem import Problem
    from flopwise.fleet.way import Way
    from flopwise.search.answer import Candidate

SIZES = ((1e9, "small"), (20e9, "medium"), (float("inf"), "large"))
"""Categories of models by parameters."""
SAME = 1.005
WORTH_SHARING = 40
"""Estimates from which other processes are worth starting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A workload with the way that carries most of it, and its figures."""

    item: Carried
    way: Way
    count: int
    figures: Measured | None
    parts: tuple[tuple[Way, int], ...]  # every kind of machine with how many, primary


def size_of(parameters: int) -> str:
    """The category of a model."""
    return next(name for most, name in SIZES if parameters < most)


def chosen_ways(made: Problem, found: Allocation, facts: Facts) -> list[Chosen]:
    """The main way of each workload, estimated in full."""
    parts: dict[int, list[tuple[Way, int]]] = {}
    for taken in found.taken:
        if taken.role == "primary":
            parts.setdefault(taken.choice.workload, []).append((made.ways[taken.choice.candidate], taken.count))
    mains = [max(parts[number], key=lambda entry: entry[1] * entry[0].usd_each) for number in range(len(made.items))]
    keys = [(id(item.plan), id(main.candidate)) for item, (main, _) in zip(made.items, mains, strict=True)]
    first = {key: number for number, key in reversed(list(enumerate(keys)))}
    todo = list(first.values())
    told = forked(lambda n: measured(made.items[todo[n]], mains[todo[n]][0], facts), len(todo), WORTH_SHARING)
    known = dict(zip(first, told, strict=True))
    return [
        Chosen(item=item, way=main, count=count, figures=known[keys[number]], parts=tuple(parts[number]))
        for number, (item, (main, count)) in enumerate(zip(made.items, mains, strict=True))
    ]


def result(chosen: Chosen, facts: Facts) -> WorkloadResult:
    """The row of one workload."""
    item, found, told = chosen.item, chosen.way, chosen.figures
    placed, held = item.placed, found.candidate
    energy, carbon = _footprint(chosen, facts)
    size, pattern, count = _kind(chosen, facts)
    memory = held.memory_bytes * max(1, placed.gpus_each) if told is None else told.memory_bytes
    return WorkloadResult(
        name=placed.name,
        environment=placed.environment,
        kind=placed.job.task,
        model=placed.job.model,
        parameters=count,
        size=size,
        memory_bytes=None if found.purchase == API else memory or None,
        intensity=None if told is None else told.intensity,
        pattern=pattern,
        hours_per_month=found.busy_hours,
        runs_per_month=placed.runs_per_month,
        feasible=True,
        reasons=[],
        best=_best(chosen),
        why_not_cheaper=why_not_cheaper(chosen),
        energy_kwh_per_month=energy,
        carbon_kg_per_month=carbon,
        starts=placed.job.starts,
        schedule=placed.schedule.plain(),
        targets=_targets(item),
    )


def _targets(item: Carried) -> dict[str, dict[str, Any]]:
    """What is asked, under the names of the figures that answer it."""
    wanted, found = item.wanted, dict[str, dict[str, Any]]()
    if wanted is None:
        return found
    for name in ("ttft", "tpot", "latency"):
        limit = getattr(wanted, name)
        if limit is not None:
            found[f"{name}_s"] = {"value": limit.seconds, "percentile": limit.percentile}
    if item.placed.ends:
        if wanted.deadline_s is not None:
            found["run_s"] = {"value": wanted.deadline_s}
    elif wanted.requests_per_s is not None:
        found["requests_per_s"] = {"value": wanted.requests_per_s, "mean": wanted.requests_per_s / wanted.arriving.peak}
    return found


def _kind(chosen: Chosen, facts: Facts) -> tuple[str, str, int | None]:
    """(size, what bounds it, parameters) of a workload."""
    told, wanted = chosen.figures, chosen.item.wanted
    if told is not None:
        return size_of(told.parameters), told.pattern, told.parameters
    if wanted is None:
        return "machines", "machines to work on", None
    count = int(parameters(facts.model(wanted.model)))
    return size_of(count), "answered by an API", count


def _footprint(chosen: Chosen, facts: Facts) -> tuple[float | None, float | None]:
    """(kWh, kg of CO2) a month over all machines; None where one part is not known."""
    energy: float | None = 0.0
    carbon: float | None = 0.0
    for found, count in chosen.parts:
        own = None if found.kwh is None else found.kwh * count / found.instances
        kg = carbon_of(own, found.offer, facts)
        energy = None if own is None or energy is None else energy + own
        carbon = None if kg is None or carbon is None else carbon + kg
    return energy, carbon


def _best(chosen: Chosen) -> dict[str, Any]:
    found, held = chosen.way, chosen.way.candidate
    return {
        "provider": found.offer.provider,
        "region": found.offer.region,
        "instance": found.offer.instance,
        "gpu": held.gpu,
        "num_gpus": chosen.count * found.gpus_each,
        "num_instances": chosen.count,
        "purchase": found.purchase,
        "layout": held.layout,
        "memory_bytes_per_gpu": held.memory_bytes or None,
        "capacity_bytes": held.capacity_bytes or None,
        "meets": held.meets,
        "figures": dict(held.figures) if chosen.figures is None else chosen.figures.figures,
        "breakdown": {} if chosen.figures is None else chosen.figures.breakdown,
        "usd_per_month": found.usd,
    }


def why_not_cheaper(chosen: Chosen) -> str:
    """The cheaper ways there are, and what stands against each: a policy of the fleet, or a target it misses."""
    item, found = chosen.item, chosen.way
    told = []
    ahead = [w for w in item.ways if w.usd * SAME < found.usd]
    if ahead:
        first = ahead[0]
        told.append(
            f"{_named(first.candidate, first.instances)} {_bought(first.purchase)} would cost ${first.usd:,.0f} a "
            f"month instead of ${found.usd:,.0f}: {_against(first, found)}"
        )
    misses = [] if item.plan is None else item.plan.misses
    told += [
        f"{_named(near, near.num_instances)} {_bought(near.purchase)} {_missed(near, item)}"
        for near in misses[: 2 - len(told)]
    ]
    return "; ".join(told) or "it is the cheapest on offer that does the work"


def _against(cheaper: Way, found: Way) -> str:
    """What stands against a cheaper way."""
    if found.purchase == OWNED:
        return "own machines are paid all month, and others use them, too"
    if cheaper.purchase == OWNED:
        return "there are only so many of them, and other workloads or policies of the fleet come first"
    return "policies of the fleet (shares, quotas, backup ...) stand against it"


def _bought(purchase: str) -> str:
    return {"on_demand": "on demand", "spot": "on spot", "reserved_1y": "reserved for a year", API: "by the token",
            "reserved_3y": "reserved for three years", OWNED: "of one's own"}[purchase]  # fmt: skip


def _named(held: Candidate, count: int) -> str:
    if held.purchase == API:
        return f"{held.provider}'s {held.instance}"
    return f"{count} x {held.provider} {held.instance} ({held.gpu})"


def _missed(near: Candidate, item: Carried) -> str:
    """What a cheaper candidate misses, with figures."""
    assert item.wanted is not None
    wanted = item.wanted
    if not near.meets:
        return "is beyond a limit"
    name = min(near.meets, key=lambda n: near.meets[n])
    odds = f"{100 * near.meets[name]:.0f} % likely to hold it, {100 * wanted.confidence:.0f} % are asked"
    limit = {"ttft": wanted.ttft, "tpot": wanted.tpot, "latency": wanted.latency}.get(name)
    if name == "memory":
        return f"needs {format_bytes(near.memory_bytes)} of {format_bytes(near.capacity_bytes)} ({odds})"
    if limit is not None:
        value = near.figures["e2e_s" if name == "latency" else f"{name}_s"] or 0.0
        return f"has {limit.percentile} {name} {format_seconds(value)} of {format_seconds(limit.seconds)} ({odds})"
    if name == "deadline" and wanted.deadline_s is not None:
        return f"takes {format_seconds(near.seconds)} of {format_seconds(wanted.deadline_s)} ({odds})"
    times = near.shortfall.get(name)
    return f"misses {name}" + (f" {times:.2g} times" if times else "") + f" ({odds})"
