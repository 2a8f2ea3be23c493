"""A sweep on the screen: one line a workload, with its best plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli.render import Screen, heading, table
from flopwise.cli.views.plan import TRAINING, layout, meets

if TYPE_CHECKING:
    from flopwise.search.sweep import Planned, Sweep

HEADERS = ("workload", "task", "instances", ">GPUs", "GPU", "layout", ">time", ">cost", ">meets")


def blocks(sweep: Sweep, paper: Screen) -> Iterator[str]:
    """The blocks of a sweep, in the order in which they are read."""
    answered = sum(1 for p in sweep.planned if p.plan is not None and p.plan.plans)
    yield heading(f"{len(sweep.planned)} workloads, {answered} with a plan that meets every target", paper)
    yield table(HEADERS, [_row(p) for p in sweep.planned], paper)
    told = [f"  - {p.name}: {p.reasons[0]}" for p in sweep.planned if p.plan is None and p.reasons]
    if told:
        yield "No answer:\n" + "\n".join(told)
    seconds = units.format_seconds(sweep.elapsed_s)
    yield f"{sweep.evaluated:,} candidates evaluated in {seconds} (engine: {sweep.engine})"


def _row(one: Planned) -> tuple[Any, ...]:
    plan = one.plan
    if plan is None:
        return (one.name, None, "no answer", None, None, None, None, None, None)
    if not plan.plans:
        near = f"none; nearest: {plan.misses[0].instance}" if plan.misses else "none"
        return (one.name, plan.task, near, None, None, None, None, None, None)
    best = plan.plans[0]
    runs = plan.task in (*TRAINING, "batch")
    cost = units.format_usd(best.cost_usd) + ("" if runs else "/month")
    where = f"{best.num_instances} x {best.provider} {best.instance}"
    time = units.format_seconds(best.seconds)
    return (one.name, plan.task, where, best.num_gpus, best.gpu, layout(best), time, cost, meets(best))
