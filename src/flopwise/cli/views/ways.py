"""A comparison of ways on the screen: what each costs, how the sums grow, and where own machines pay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli.charts import Axis, Series, chart
from flopwise.cli.render import Screen, heading, table

if TYPE_CHECKING:
    from flopwise.api.compare_ways import Comparison
    from flopwise.fleet.ways import Crossing, Way

MARKS = {"api": "A", "open": "O", "finetune": "F", "pretrain": "S"}
WIDE = 30.0
"""Sums that lie so many times apart are drawn on a logarithmic axis."""


def blocks(found: Comparison, paper: Screen) -> Iterator[str]:
    """The blocks, in the order in which they are read."""
    volume = found.tokens_per_month
    growth = f", {units.format_percent(found.growth_frac)} more each month" if found.growth_frac else ""
    read, written = units.format_count(volume["input"]), units.format_count(volume["output"])
    yield heading(
        f"{found.model}: {read} tokens in and {written} out a month{growth}, over {found.months} months", paper
    )
    yield table(
        ("way", "training", ">up front", "serving", ">first month", ">total", ">USD/M tokens"),
        [_row(way) for way in found.ways if way.feasible],
        paper,
    )
    for way in found.ways:
        if not way.feasible:
            yield f"{way.name}: not feasible\n" + "\n".join(f"  - {reason}" for reason in way.reasons)
    yield _chart(found, paper)
    if found.break_even:
        yield "Where own machines pay:\n" + table(
            ("way", "against", ">month", ">tokens a month", "why"), [_crossing(c) for c in found.break_even], paper
        )
    notes = [f"{way.name}: a loss of {way.loss:.3g} nats a token expected" for way in found.ways if way.loss]
    yield "Assumed:\n" + "\n".join(f"  - {said}" for said in [*found.assumptions, *notes])


def _row(way: Way) -> tuple[Any, ...]:
    run, serving = way.training, way.serving
    trained = None
    if run is not None:
        times = f"{run.runs} x " if run.runs > 1 else ""
        trained = (
            f"{times}{units.format_count(run.tokens)} tokens, {run.num_instances} x {run.provider} {run.instance}, "
            f"{units.format_seconds(run.seconds)}"
        )
    served = None
    if serving is not None:
        served = f"{serving.provider} {serving.what}"
        if serving.num_instances is not None:
            served = f"{serving.num_instances} x {served}"
        if serving.last_what is not None:
            served += f", at last {serving.last_num_instances} x {serving.last_what}"
    return (
        way.name,
        trained,
        units.format_usd(way.upfront_usd or 0.0),
        served,
        units.format_usd(way.usd_per_month or 0.0),
        units.format_usd(way.total_usd or 0.0),
        units.format_usd(way.usd_per_million_tokens or 0.0),
    )


def _crossing(c: Crossing) -> tuple[Any, ...]:
    month = "at once" if c.month == 0 else c.month
    volume = None if c.tokens_per_month is None else units.format_count(c.tokens_per_month)
    return (c.way, c.against, month, volume, c.why or None)


def _chart(found: Comparison, paper: Screen) -> str:
    """What is paid by the end of each month."""
    feasible = [way for way in found.ways if way.feasible]
    ends = [way.cumulative_usd[-1] for way in feasible]
    wide = max(ends) > WIDE * min(ends)
    series = [
        Series(way.name, list(enumerate(way.cumulative_usd))[wide:], mark=MARKS[way.kind], line=True)
        for way in reversed(feasible)
    ]
    scale = ", logarithmic" if wide else ""  # from month 1 on, then: nothing is paid before it
    return chart(
        series, Axis("months", "{:.0f}".format), Axis(f"USD paid so far{scale}", units.format_usd, log=wide), paper
    )
