"""What to watch of one workload: thresholds from the figures of its candidate, which the plan itself does not reach."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from flopwise.fleet.assessment import Alert
from flopwise.fleet.expected import ExpectedFigures
from flopwise.search.answer import Candidate
from flopwise.search.deployments import PREFILL_BUSY
from flopwise.search.service_machines import replica_machines
from flopwise.search.spec import TRAINING
from flopwise.search.workload import Resolved
from flopwise.units import format_count, format_number, format_percent, format_seconds, format_usd

MINUTE_S = 60.0
MEMORY_LIMIT = 0.97
"""Share of a device's memory from which an alert is due, where the interval leaves more."""
MEMORY_SLACK = 0.05
"""Excess over the memory that the engine reserves at the start: something else uses it."""
SPEND_SLACK = 1.1
BUSY_LIMIT = 0.9
"""Share of what replicas can do from which queues grow out of hand; they are planned below `PREFILL_BUSY`."""
SELDOM = 0.05
"""Probability of more interruptions in a month than an alert allows."""


def figure_alerts(name: str, workload: Resolved, candidate: Candidate, expected: ExpectedFigures) -> Iterator[Alert]:
    """Memory, latencies, throughput and load of a workload that is called `name`."""
    yield from _memory_limit(name, candidate, expected)
    yield from _targets(name, workload, expected.figures)
    yield from _rates(name, workload, candidate, expected.figures)


def _memory_limit(name: str, candidate: Candidate, expected: ExpectedFigures) -> Iterator[Alert]:
    """Memory of a device beyond the interval, or beyond what the engine takes of it."""
    whole, planned, upper = candidate.capacity_bytes, expected.memory_frac, expected.memory_high_frac
    action = "a smaller micro-batch, or more recompute"
    if expected.engine_bytes is not None:
        planned = max(planned, expected.engine_bytes / whole)
        upper, action = planned, "find what else uses the device; give the engine less memory, or admit fewer requests"
        how = f"the engine takes {format_percent(planned, 0)} of the {candidate.gpu}"
    else:
        how = f"{format_percent(planned, 0)} of the {candidate.gpu} are planned"
    limit = min(upper, MEMORY_LIMIT)
    why = f"the upper end of the interval; {how}"
    if limit <= planned * (1 + 1e-9):
        limit = planned + MEMORY_SLACK
        why = f"{100 * MEMORY_SLACK:.0f} points above the plan: {how}"
    elif upper > MEMORY_LIMIT:
        why = f"{how}; the interval reaches its end"
    if limit < 1.0:
        yield Alert(
            metric="device memory", workload=name, threshold=limit * whole, unit="B", why=why,
            key="device_memory_bytes", for_s=5 * MINUTE_S, severity="critical", action=action,
        )  # fmt: skip


def _targets(title: str, workload: Resolved, figures: Mapping[str, Any]) -> Iterator[Alert]:
    """Latencies over their targets, and as many waiting requests as the rest of the target can work off."""
    alert = partial(Alert, workload=title, severity="critical", action="add a replica, or shed load")
    for name in ("ttft", "tpot", "latency"):
        target, figure = getattr(workload, name), figures.get(f"{name}_s")
        if target is not None:
            outlook = "" if figure is None else f"; {format_seconds(figure['value'])} is expected"
            yield alert(
                metric=f"{target.percentile} {name}", threshold=target.seconds, unit="s", why=f"the target{outlook}",
                key=f"{name}_seconds_{target.percentile}", for_s=5 * MINUTE_S,
            )  # fmt: skip
    target, figure, rate = workload.latency or workload.ttft, figures.get("latency_s"), figures.get("requests_per_s")
    if workload.task == "batch" or target is None or figure is None or rate is None:
        return
    first = figures.get("ttft_s", figure) if target is workload.ttft else figure
    if target.seconds > first["value"]:
        spare = target.seconds - first["value"]
        yield alert(
            metric="requests waiting", threshold=max(1.0, rate["value"] * spare), unit="requests", for_s=MINUTE_S,
            why=f"the queue that {format_number(rate['value'])} requests/s clear in the remaining "
            f"{format_seconds(spare)}",
            key="requests_waiting",
        )  # fmt: skip


def _rates(name: str, workload: Resolved, candidate: Candidate, figures: Mapping[str, Any]) -> Iterator[Alert]:
    """Throughput of runs, load of replicas."""
    alert, ends = partial(Alert, workload=name, severity="warning"), workload.task in (*TRAINING, "batch")
    rate = figures.get("tokens_per_s") or figures.get("output_tokens_per_s")
    if ends and rate:
        why = f"the lower end of the planned {format_count(rate['value'])}: below it "
        why += "the run takes longer and costs more"
        yield alert(
            metric="throughput at least", threshold=rate["low"], unit="tokens/s", why=why, key="tokens_per_s",
            above=False, for_s=15 * MINUTE_S, action="look for a slow machine, network or storage, or stop the run",
        )  # fmt: skip
    if ends or "requests_per_s" not in figures:
        return
    capacity = figures["requests_per_s"]["value"]
    more = f"scale up: add {replica_machines(candidate):,} x {candidate.instance}"
    yield alert(
        metric="requests", threshold=capacity * PREFILL_BUSY, unit="1/s", key="requests_per_s", for_s=10 * MINUTE_S,
        why=f"{100 * PREFILL_BUSY:.0f} % of the capacity of the replicas: add one before", action=more,
    )  # fmt: skip
    busy = candidate.figures.get("busy_frac")
    if busy is not None and busy < BUSY_LIMIT:
        yield alert(
            metric="load of the replicas", threshold=BUSY_LIMIT, unit="", key="replica_load_frac", action=more,
            for_s=10 * MINUTE_S, why=f"of their capacity; {format_percent(busy, 0)} is planned at the busiest",
        )  # fmt: skip


def spend_alert(name: str, one: str, usd: float, high: float, times: float) -> Alert:
    """Alert on the spend of one run or day: a month costs `usd` (at most `high`) and has `times` of them."""
    threshold, why = with_slack(usd, high)
    why += f"; {format_usd(usd / times, 2)} is planned, storage and traffic included, "
    why += f"{format_number(times)} {one}s a month"
    return Alert(
        metric=f"spend per {one}", workload=name, threshold=threshold / times, unit="USD", why=why,
        key=f"spend_usd_per_{one}", severity="warning",
        action="find runs that take longer or more machines than planned, and turn off unused machines",
    )  # fmt: skip


def interruption_alert(name: str, expected: float) -> Alert:
    """More interruptions a month than chance explains where so many are expected."""
    why = f"{format_number(expected, 2)} are expected; this many occur in fewer than one month in {1 / SELDOM:.0f}"
    return Alert(
        metric="interruptions a month", workload=name, threshold=float(seldom_more(expected) + 1), unit="",
        why=why, key="interruptions_per_month", severity="warning",
        action="go to another zone or type, or buy on demand",
    )  # fmt: skip


def with_slack(usd: float, high: float) -> tuple[float, str]:
    """(threshold, why) above what is planned."""
    if high > SPEND_SLACK * usd:
        return high, "the upper end of the interval"
    return SPEND_SLACK * usd, f"{100 * (SPEND_SLACK - 1):.0f} % above the plan"


def seldom_more(expected: float) -> int:
    """The least n that a Poisson count of mean `expected` exceeds with less than `SELDOM`."""
    count, term = 0, math.exp(-min(expected, 700.0))
    reached = term
    while 1 - reached >= SELDOM and count < 10_000:
        count += 1
        term *= expected / count
        reached += term
    return count
