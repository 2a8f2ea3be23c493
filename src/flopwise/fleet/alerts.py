"""What to watch: thresholds from the plan's own figures, each with how long, how grave, and what to do.

None is reached by the plan itself, nor within the interval that its figure has. Spend is the whole bill's: machines,
storage and traffic. Memory is what the engine takes of a device, which is more than the model needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from flopwise.fleet.assessment import Alert
from flopwise.fleet.bill import SolvedFleet, spot_interruptions
from flopwise.fleet.model import ChosenWorkload, paid_all_month
from flopwise.fleet.schedules import ALL_DAYS, DAY_NAMES, DAYS_PER_MONTH
from flopwise.search.deployments import PREFILL_BUSY
from flopwise.units import HOUR_S, format_count, format_percent, format_seconds

MINUTE_S = 60.0
MEMORY_LIMIT = 0.97
"""Share of a device's memory from which an alert is due, where the interval leaves more."""
MEMORY_SLACK = 0.05
"""The same above what the engine sets aside at the start: more of it is used by something else."""
SPEND_SLACK = 1.1
BUSY_LIMIT = 0.9
"""Share of what replicas can do from which queues grow out of hand; they are planned below `PREFILL_BUSY`."""
SELDOM = 0.05
"""Probability of more interruptions in a month than an alert allows."""


def alerts(fleet: SolvedFleet) -> list[Alert]:
    """Thresholds: spend of a day, month or run, latency, memory, throughput, load of the replicas, interruptions."""
    found = list(_fleet_spend(fleet))
    for chosen in fleet.chosen:
        found += _workload_spend(chosen, fleet)
        found += _memory_limit(chosen)
        found += _targets(chosen)
        found += _rates(chosen)
        found += _spot_alerts(chosen, fleet)
    return found


def _fleet_spend(fleet: SolvedFleet) -> Iterator[Alert]:
    """The dearest day that is planned, and the month so far where there is a budget."""
    days, budget, total = days_of_week(fleet), fleet.platform.rules.budget_per_month, fleet.cost.total
    day = max(ALL_DAYS, key=lambda d: days[d][0])
    usd, high = days[day]
    threshold, slack = _with_slack(usd, high)
    name = f"a {DAY_NAMES[day].capitalize()}" if usd > min(days)[0] * (1 + 1e-9) else "any day"
    yield Alert(
        metric="spend per day", workload="", threshold=threshold, unit="USD",
        why=f"{slack}; ${usd:,.2f} is planned at most, on {name}", key="spend_usd_per_day", severity="warning",
        action="see whose spend is above its own threshold, and turn off what nothing uses",
    )  # fmt: skip
    if budget is not None:
        early = total <= budget - usd
        why = "the budget less the dearest planned day, another of which could exceed it" if early else "the budget"
        yield Alert(
            metric="spend this month", workload="", threshold=budget - usd if early else budget, unit="USD",
            why=f"{why}; ${total:,.0f} is planned", key="spend_usd_this_month", severity="critical",
            action="put off runs that can wait, or raise the budget",
        )  # fmt: skip


def days_of_week(fleet: SolvedFleet) -> list[tuple[float, float]]:
    """(planned, upper end of the interval) of what each day of the week may cost, from Monday, USD.

    Assumes: machines that are paid all month, storage and traffic cost as much each day; a run may begin on any day of
    its schedule, and all of it that fits into a day is paid on that day.
    """
    steady = (fleet.cost.storage + fleet.cost.traffic) / DAYS_PER_MONTH
    days = [(steady, steady)] * len(ALL_DAYS)
    for row in fleet.rows:
        chosen = fleet.by_name.get(row.workload)
        even = chosen is None or row.role != "primary" or paid_all_month(row.purchase)
        shares = [1 / DAYS_PER_MONTH] * len(ALL_DAYS) if chosen is None or even else _day_shares(chosen)
        days = [
            (usd + share * row.usd_per_month, high + share * row.usd_high)
            for (usd, high), share in zip(days, shares, strict=True)
        ]
    return days


def _day_shares(chosen: ChosenWorkload) -> Sequence[float]:
    """The share of a month's cost that each day of the week may bring."""
    job, minutes = chosen.job, chosen.job.schedule.minutes_by_weekday
    times = job.schedule.days_per_month
    if job.levels is not None:
        return job.levels.day_shares
    if not job.ends:
        return [m / (60 * job.schedule.hours_per_day * times) for m in minutes]
    runs, hours = job.runs, max(chosen.option.candidate.paid_s / HOUR_S, 1e-9)
    at_once = max(1, math.ceil(runs / times - 1e-6))
    return [min(1.0, at_once / runs * min(1.0, 24 / hours)) if m else 0.0 for m in minutes]


def _with_slack(usd: float, high: float) -> tuple[float, str]:
    """(threshold, why) above what is planned."""
    if high > SPEND_SLACK * usd:
        return high, "the upper end of the interval"
    return SPEND_SLACK * usd, f"{100 * (SPEND_SLACK - 1):.0f} % above the plan"


def _workload_spend(chosen: ChosenWorkload, fleet: SolvedFleet) -> Iterator[Alert]:
    """Of one run, or of one day that the machines are on, with what it stores and sends."""
    job, usd = chosen.job, fleet.cost.by_workload.get(chosen.name, 0.0)
    if not usd:
        return
    high = usd + sum(row.usd_high - row.usd_per_month for row in fleet.rows if row.workload == chosen.name)
    one, times = ("run", job.runs) if job.ends else ("day", job.schedule.days_per_month)
    times = times if job.levels is None else 1 / max(job.levels.day_shares)  # that of its busiest day
    threshold, why = _with_slack(usd, high)
    why += f"; ${usd / times:,.2f} is planned, storage and traffic included, {times:,.3g} {one}s a month"
    yield Alert(
        metric=f"spend per {one}", workload=job.name, threshold=threshold / times, unit="USD", why=why,
        key=f"spend_usd_per_{one}", severity="warning",
        action="see what runs longer, or on more machines, than planned, and turn off what nothing uses",
    )  # fmt: skip


def _memory_limit(chosen: ChosenWorkload) -> Iterator[Alert]:
    """Memory of a device beyond the interval, or beyond what the engine takes of it."""
    expected, candidate = chosen.figures, chosen.option.candidate
    if expected is None:
        return
    whole, planned, upper = candidate.capacity_bytes, expected.memory_frac, expected.memory_high_frac
    action = "a smaller micro-batch, or more recompute"
    if expected.engine_bytes is not None:
        planned = max(planned, expected.engine_bytes / whole)
        upper, action = planned, "find what else uses the device; give the engine less of it, or admit fewer requests"
        how = f"the engine takes {format_percent(planned, 0)} of the {candidate.gpu}"
    else:
        how = f"{format_percent(planned, 0)} of the {candidate.gpu} are planned"
    limit = min(upper, MEMORY_LIMIT)
    why = f"the upper end of the interval; {how}"
    if limit <= planned * (1 + 1e-9):
        limit = planned + MEMORY_SLACK
        why = f"{100 * MEMORY_SLACK:.0f} points above what is planned: {how}"
    elif upper > MEMORY_LIMIT:
        why = f"{how}; the interval reaches its end"
    if limit < 1.0:
        yield Alert(
            metric="device memory", workload=chosen.name, threshold=limit * whole, unit="B", why=why,
            key="device_memory_bytes", for_s=5 * MINUTE_S, severity="critical", action=action,
        )  # fmt: skip


def _targets(chosen: ChosenWorkload) -> Iterator[Alert]:
    """Latencies over their targets, and as many waiting requests as the rest of the target can work off."""
    workload, expected = chosen.planned.workload, chosen.figures
    if workload is None or expected is None:
        return
    figures = expected.figures
    alert = partial(Alert, workload=chosen.name, severity="critical", action="add a replica, or shed load")
    for name in ("ttft", "tpot", "latency"):
        target, figure = getattr(workload, name), figures.get(f"{name}_s")
        if target is not None:
            outlook = "" if figure is None else f"; {format_seconds(figure['value'])} is expected"
            yield alert(
                metric=f"{target.percentile} {name}", threshold=target.seconds, unit="s", why=f"the target{outlook}",
                key=f"{name}_seconds_{target.percentile}", for_s=5 * MINUTE_S,
            )  # fmt: skip
    target, figure, rate = workload.latency or workload.ttft, figures.get("latency_s"), figures.get("requests_per_s")
    if chosen.job.ends or target is None or figure is None or rate is None:
        return
    first = figures.get("ttft_s", figure) if target is workload.ttft else figure
    if target.seconds > first["value"]:
        spare = target.seconds - first["value"]
        yield alert(
            metric="requests waiting", threshold=max(1.0, rate["value"] * spare), unit="requests", for_s=MINUTE_S,
            why=f"what {rate['value']:,.3g} requests/s work off in the {format_seconds(spare)} that the target leaves",
            key="requests_waiting",
        )  # fmt: skip


def _rates(chosen: ChosenWorkload) -> Iterator[Alert]:
    """Throughput of runs, load of replicas."""
    job, expected = chosen.job, chosen.figures
    if expected is None:
        return
    figures, alert = expected.figures, partial(Alert, workload=job.name, severity="warning")
    rate = figures.get("tokens_per_s") or figures.get("output_tokens_per_s")
    if job.ends and rate:
        why = f"the lower end of the planned {format_count(rate['value'])}: below it "
        why += "the run takes longer and costs more"
        yield alert(
            metric="throughput at least", threshold=rate["low"], unit="tokens/s", why=why, key="tokens_per_s",
            above=False, for_s=15 * MINUTE_S, action="look for a slow machine, network or storage, or stop the run",
        )  # fmt: skip
    if job.ends or "requests_per_s" not in figures:
        return
    capacity, unit = figures["requests_per_s"]["value"], chosen.option.unit
    more = f"scale up: {unit:,} x {chosen.option.instance} more"
    yield alert(
        metric="requests", threshold=capacity * PREFILL_BUSY, unit="1/s", key="requests_per_s", for_s=10 * MINUTE_S,
        why=f"{100 * PREFILL_BUSY:.0f} % of what the replicas can do: add one before", action=more,
    )  # fmt: skip
    busy = chosen.option.candidate.figures.get("busy_frac")
    if busy is not None and busy < BUSY_LIMIT:
        yield alert(
            metric="load of the replicas", threshold=BUSY_LIMIT, unit="", key="replica_load_frac", action=more,
            for_s=10 * MINUTE_S, why=f"of what they can do; {format_percent(busy, 0)} is planned at the busiest",
        )  # fmt: skip


def _spot_alerts(chosen: ChosenWorkload, fleet: SolvedFleet) -> Iterable[Alert]:
    """More of them than chance explains."""
    mine = (row for row in fleet.rows if row.workload == chosen.name and row.role == "primary")
    for row in (row for row in mine if row.purchase == "spot"):
        expected = spot_interruptions(row, fleet.facts)
        why = f"{expected:,.2g} are expected; this many come in fewer than one month of {1 / SELDOM:.0f}"
        yield Alert(
            metric="interruptions a month", workload=row.workload, threshold=float(seldom_more(expected) + 1), unit="",
            why=why, key="interruptions_per_month", severity="warning",
            action="go to another zone or type, or buy on demand",
        )  # fmt: skip


def seldom_more(expected: float) -> int:
    """The least n that a Poisson count of mean `expected` exceeds with less than `SELDOM`."""
    count, term = 0, math.exp(-min(expected, 700.0))
    reached = term
    while 1 - reached >= SELDOM and count < 10_000:
        count += 1
        term *= expected / count
        reached += term
    return count
