"""What each target of a service costs: the best plan with one target moved a step, the others as they are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flopwise.errors import MissingFactError
from flopwise.search.answer import TargetCost
from flopwise.search.deployments import deployments
from flopwise.search.serving_option import latency_targets
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
Best = tuple[float, "ServingOption", int]
"""Cost, option and row of a plan."""


def stepped(value: float, up: int) -> float:
    """The next step of the ladder above (`up` 1) or below (-1) a value."""
    decade = 10.0 ** math.floor(math.log10(value) + 1e-9)
    steps = [LADDER[-2] / 10 * decade, *(step * decade for step in LADDER), LADDER[1] * 10 * decade]
    beyond = [s for s in steps if (s > value * 1.001 if up > 0 else s < value * 0.999)]
    return min(beyond) if up > 0 else max(beyond)


def _moved_targets(workload: Resolved) -> Iterator[tuple[str, Latency, Latency | None]]:
    """(target, as it is, as it would be) of each step; None: without it."""
    for name, now in latency_targets(workload).items():
        if now is not None:
            yield from ((name, now, Latency(now.percentile, stepped(now.seconds, up))) for up in (-1, 1))
            if now.percentile in WEAKER:
                yield name, now, Latency(WEAKER[now.percentile], now.seconds)
            yield name, now, None


def target_costs(options: Sequence[ServingOption], workload: Resolved) -> list[TargetCost]:
    """The cheapest plan for each step of each target, as estimated, against the cheapest as they are.

    A percentile is part of what is estimated, so that another one is estimated anew; a limit is only held against it.
    What holds a percentile holds a weaker one.
    """
    now = _cheapest(options, workload)
    costs = []
    for name, target, moved in _moved_targets(workload):
        changed: dict[str, Any] = {name: moved}
        wanted = replace(workload, **changed)
        percentile = target.percentile if moved is None else moved.percentile
        if percentile == target.percentile:
            best = _cheapest(options, wanted)
        else:
            plans = (_cheapest(_estimated_anew(options, wanted), wanted), now)
            best = min((plan for plan in plans if plan is not None), key=lambda plan: plan[0], default=None)
        cost = None if best is None else best[0]
        saves = None if cost is None or now is None else now[0] - cost
        costs.append(
            TargetCost(
                target=name, percentile=target.percentile, from_s=target.seconds, to_percentile=percentile,
                to_s=None if moved is None else moved.seconds, cost_usd=cost, saves_usd=saves,
                saves_frac=None if saves is None or now is None else saves / now[0],
                instead="" if best is None else _plan_text(*best[1:]),
            )
        )  # fmt: skip
    return costs


def _cheapest(options: Sequence[ServingOption], workload: Resolved) -> Best | None:
    """The cheapest plan that meets the targets of `workload`."""
    best: Best | None = None
    for option in options:
        rows = option.allowed(option.odds(workload))
        if rows.size:
            row = int(rows[option.cost_usd[rows].argmin()])
            if best is None or option.cost_usd[row] < best[0]:
                best = float(option.cost_usd[row]), option, row
    return best


def _estimated_anew(options: Sequence[ServingOption], workload: Resolved) -> list[ServingOption]:
    """The options of the cheapest machines, estimated at the percentiles of `workload`."""
    least: dict[int, float] = {}
    for option in options:
        near = option.cost_usd[option.shortfall <= NEAR]
        least[id(option.node)] = min(float(near.min(initial=np.inf)), least.get(id(option.node), np.inf))
    nodes = set(sorted(least, key=least.__getitem__)[:NODES])
    estimates = {}
    found: list[ServingOption] = []
    for option in options:
        key = id(option.found)
        if id(option.node) not in nodes:
            continue
        if key not in estimates:
            try:
                estimates[key] = deployments(option.model, workload, option.node, option.found.weights, option.kv_dtype)
            except MissingFactError:
                estimates[key] = None
        other = estimates[key]
        if other is not None and other.batch.size:
            found.append(option.estimated_as(other, workload))
    return found


def _plan_text(option: ServingOption, row: int) -> str:
    offer, found = option.priced.offer, option.found
    return (
        f"{int(option.instances[row])} x {offer.provider} {offer.instance}, tp {int(found.tp[row])}, "
        f"batch {int(found.batch[row])}, {int(found.replicas[row])} replicas, {found.weights.name}"
    )
