"""What each target of a service costs: the best plan with one target moved a step, the others as they are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flopwise.errors import MissingFactError
from flopwise.search.answer import TargetCost
from flopwise.search.serving import deployments
from flopwise.search.spec import Latency

if TYPE_CHECKING:
    from flopwise.search.serving_option import ServingOption
    from flopwise.search.workload import Resolved

LADDER = (1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0)
"""Steps of a decade: 30 ms is relaxed to 50 ms, 1 s to 1.5 s."""
WEAKER = {"p99": "p95"}
"""Percentiles that a target is relaxed to: nobody holds a service to less than p95 who asked for it."""
NODES = 3
"""Kinds of machines, the cheapest ones, that another percentile is planned anew on."""
NEAR = 1.5
"""Of machines that miss a target by no more than this factor."""


def stepped(value: float, up: int) -> float:
    """The next step of the ladder above (`up` 1) or below (-1) a value."""
    decade = 10.0 ** math.floor(math.log10(value) + 1e-9)
    steps = [LADDER[-2] / 10 * decade, *(step * decade for step in LADDER), LADDER[1] * 10 * decade]
    beyond = [s for s in steps if (s > value * 1.001 if up > 0 else s < value * 0.999)]
    return min(beyond) if up > 0 else max(beyond)


def moved(workload: Resolved) -> Iterator[tuple[str, Latency, Latency | None, Resolved]]:
    """(target, as it is, as it would be, the workload with it) of each step."""
    for name in ("ttft", "tpot", "latency"):
        held: Latency | None = getattr(workload, name)
        if held is None:
            continue
        others: list[Latency | None] = [Latency(held.percentile, stepped(held.seconds, up)) for up in (-1, 1)]
        if held.percentile in WEAKER:
            others.append(Latency(WEAKER[held.percentile], held.seconds))
        for other in (*others, None):
            changed: dict[str, Any] = {name: other}
            yield name, held, other, replace(workload, **changed)


def target_costs(options: Sequence[ServingOption], workload: Resolved) -> list[TargetCost]:
    """The cheapest plan for each step of each target, as estimated, against the cheapest as they are."""
    now = _cheapest(options, workload)
    found = []
    for name, held, other, asked in moved(workload):
        percentile = held.percentile if other is None else other.percentile
        # a percentile is part of what is estimated; a limit is only held against it
        same = other is None or percentile == held.percentile
        best = _cheapest(options if same else _anew(options, asked), asked)
        if not same and now is not None and (best is None or now[0] < best[0]):
            best = now  # what holds a percentile holds a weaker one
        cost = None if best is None else best[0]
        saves = None if best is None or now is None else now[0] - best[0]
        found.append(
            TargetCost(
                target=name, percentile=held.percentile, from_s=held.seconds, to_percentile=percentile,
                to_s=None if other is None else other.seconds, cost_usd=cost, saves_usd=saves,
                saves_frac=None if saves is None or now is None else saves / now[0],
                instead="" if best is None else _named(*best[1:]),
            )
        )  # fmt: skip
    return found


def _cheapest(options: Sequence[ServingOption], workload: Resolved) -> tuple[float, ServingOption, int] | None:
    """Cost, option and row of the cheapest plan that meets the targets of `workload`."""
    best: tuple[float, ServingOption, int] | None = None
    for option in options:
        rows = option.allowed(option.odds(workload))
        if rows.size:
            row = int(rows[option.cost_usd[rows].argmin()])
            cost = float(option.cost_usd[row])
            if best is None or cost < best[0]:
                best = cost, option, row
    return best


def _anew(options: Sequence[ServingOption], workload: Resolved) -> list[ServingOption]:
    """The options of the cheapest machines, estimated at the percentiles of `workload`."""
    least: dict[int, float] = {}
    for option in options:
        near = option.cost_usd[option.shortfall <= NEAR]
        least[id(option.node)] = min(float(near.min(initial=np.inf)), least.get(id(option.node), np.inf))
    nodes = set(sorted(least, key=least.__getitem__)[:NODES])
    found: list[ServingOption] = []
    made = {}
    for option in options:
        if id(option.node) not in nodes:
            continue
        key = id(option.found)
        if key not in made:
            try:
                made[key] = deployments(option.model, workload, option.node, option.found.weights, option.kv_dtype)
            except MissingFactError:
                made[key] = None
        other = made[key]
        if other is not None and other.batch.size:
            found.append(replace(option, memo={}, workload=workload, found=other))
    return found


def _named(option: ServingOption, row: int) -> str:
    offer, found = option.priced.offer, option.found
    return (
        f"{int(option.instances[row])} x {offer.provider} {offer.instance}, tp {int(found.tp[row])}, "
        f"batch {int(found.batch[row])}, {int(found.replicas[row])} replicas, {found.weights}"
    )
