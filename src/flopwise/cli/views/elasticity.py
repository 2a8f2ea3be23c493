"""Replicas that come and go, on the screen: against fixed numbers, over time, by size; and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli import questions
from flopwise.cli.charts import Axis, Series, chart
from flopwise.cli.render import Screen, heading, pairs, table
from flopwise.cli.views import simulate

if TYPE_CHECKING:
    from flopwise.serving.sim.elasticity import AutoscaleAnswer, Provision, Size

HEADERS = [">replicas", ">at most", ">in time", ">TTFT p50", ">p99", ">TPOT p99", ">replica-hours", ">cost"]
SPARE = (">at most", ">replica-hours")
RATE_BINS = 100
"""Steps of the curve of requests a second."""


def document(found: AutoscaleAnswer) -> dict[str, Any]:
    """The run as the JSON of `flopwise simulate`, and what belongs to the autoscaler."""
    held = found.elastic
    times, rates = arrivals(found)
    return simulate.document(found.answer) | {
        "autoscale": {
            "rule": {name: getattr(held.rule, name) for name in held.rule.__slots__} | {"target": held.rule.wanted_at},
            "mean_replicas": held.mean,
            "most_replicas": held.most,
            "cold_starts": held.starts,
            "starting_hours": held.starting_s / units.HOUR_S,
            "attain": found.attain,
            "unreached": found.unreached,
            "provisions": [_row(p) for p in found.provisions],
            "timeline": held.line._asdict(),
            "arrivals": {"time_s": times, "requests_per_s": rates},
        },
        "assumptions": [*found.answer.assumptions, *found.notes],
    }


def _row(one: Provision) -> dict[str, Any]:
    told = one.summary
    return {
        "name": one.name,
        "mean_replicas": one.replicas,
        "most_replicas": one.most,
        "goodput_frac": told.goodput_frac,
        "ttft_s": told.ttft_s._asdict(),
        "tpot_s": told.tpot_s._asdict(),
        "replica_hours": one.replica_hours,
        "cost_usd": one.cost_usd,
    }


def arrivals(found: AutoscaleAnswer) -> tuple[list[float], list[float]]:
    """(seconds, requests a second around then) of the traffic."""
    import numpy as np

    from flopwise.serving.sim.trace import PS

    come = found.answer.simulated.trace.arrival_ps / PS
    counts, edges = np.histogram(come, bins=min(RATE_BINS, max(len(come) // 5, 1)), range=(0, max(come[-1], 1e-9)))
    width = edges[1] - edges[0]
    return (edges[:-1] + width / 2).tolist(), (counts / width).tolist()


def blocks(found: AutoscaleAnswer, paper: Screen) -> Iterator[str]:
    """The run as people read it."""
    yield from simulate.summary_blocks(found.answer, paper, most=True)
    held = found.elastic
    yield pairs(
        [
            ("cold starts", f"{held.starts:,}: {held.starting_s / units.HOUR_S:,.3g} replica-hours until they served"),
            ("replica-hours", f"{held.paid_s / units.HOUR_S:,.4g}, {held.mean:,.3g} replicas on average"),
        ],
        paper,
    )
    yield heading("Against fixed numbers of replicas", paper)
    objective = any(limit is not None for limit in found.answer.slo)
    yield table(
        ["", *HEADERS], [[p.name, *_cells(p, objective=objective)] for p in found.provisions], paper, spare=SPARE
    )
    if found.attain is not None and found.unreached is None:
        yield f"The peak is the fewest that answer {100 * found.attain:.4g} % of the requests in time."
    if found.unreached is not None:
        yield f"There is no fixed peak: {found.unreached}."
    yield from _charts(found, paper)
    yield questions.assumption_list((*found.answer.assumptions, *found.notes))


def _cells(one: Provision, *, objective: bool) -> list[Any]:
    told = one.summary
    seconds = (told.ttft_s.p50, told.ttft_s.p99, told.tpot_s.p99)
    return [
        f"{one.replicas:,.3g}",
        one.most,
        units.format_percent(told.goodput_frac, 2) if objective else None,
        *(units.format_seconds(s) if isfinite(s) else None for s in seconds),
        f"{one.replica_hours:,.4g}",
        questions.price(one.cost_usd),
    ]


def _charts(found: AutoscaleAnswer, paper: Screen) -> Iterator[str]:
    """Traffic, replicas, and requests in flight over time."""
    line, seen = found.elastic.line, found.elastic.simulated.timeline
    if len(line.time_s) < 3:
        return
    clock = Axis("time", units.format_seconds)
    times = line.time_s.tolist()

    def curve(name: str, values: Any) -> Series:
        return Series(name, list(zip(times, values.tolist(), strict=True)), line=True)

    count = "{:,.3g}".format
    traffic = Series("arrivals", list(zip(*arrivals(found), strict=True)), line=True)
    yield chart([traffic], clock, Axis("requests/s", count), paper, rows=7)
    replicas = [curve("starting as well", line.ready + line.starting), curve("ready", line.ready)]
    yield chart(replicas, clock, Axis("replicas", count), paper, rows=7)
    flight = [curve("running", seen.running), curve("waiting", seen.queue)]
    yield chart(flight, clock, Axis("requests", count), paper, rows=7)


def vertical_document(sizes: tuple[Size, ...]) -> dict[str, Any]:
    """Replicas of every size as JSON; nothing where they were not asked for."""
    if not sizes:
        return {}
    return {
        "vertical": [
            {"tp": s.tp, "most_replicas": s.most, "why": s.why or None}
            | ({} if s.provision is None else _row(s.provision) | {"gpu_hours": s.provision.replica_hours * s.tp})
            for s in sizes
        ]
    }


def vertical_blocks(sizes: tuple[Size, ...], paper: Screen) -> Iterator[str]:
    """The same accelerators as many small replicas or few large ones."""
    if not sizes:
        return
    yield heading("The same accelerators as replicas of other sizes", paper)
    rows = [
        [f"tp {s.tp}", *(_cells(s.provision, objective=True) if s.provision else [None, s.most, *[None] * 6])]
        for s in sizes
    ]
    yield table(["", *HEADERS], rows, paper, spare=SPARE)
    told = [f"tp {s.tp}: {s.why}" for s in sizes if s.why]
    if told:
        yield "\n".join(told)
