"""What to watch: thresholds from the plan's own figures, each with how long, how grave, and what to do.

None is reached by the plan itself, nor within the interval that its figure has. Spend is the whole bill's: machines,
storage and traffic. Memory is what the engine takes of a device, which is more than the model needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from flopwise.fleet.assessment import Alert
from flopwise.fleet.bill import SolvedFleet, spot_interruptions
from flopwise.fleet.model import ChosenWorkload, paid_all_month
from flopwise.fleet.schedules import ALL_DAYS, DAY_NAMES, DAYS_PER_MONTH
from flopwise.fleet.workload_alerts import figure_alerts, interruption_alert, spend_alert, with_slack
from flopwise.units import HOUR_S, format_usd


def alerts(fleet: SolvedFleet) -> list[Alert]:
    """Thresholds: spend of a day, month or run, latency, memory, throughput, load of the replicas, interruptions."""
    found = list(_fleet_spend(fleet))
    for chosen in fleet.chosen:
        found += _workload_spend(chosen, fleet)
        if chosen.figures is not None and chosen.planned.workload is not None:
            found += figure_alerts(chosen.name, chosen.planned.workload, chosen.option.candidate, chosen.figures)
        found += _spot_alerts(chosen, fleet)
    return found


def _fleet_spend(fleet: SolvedFleet) -> Iterator[Alert]:
    """Alerts on the most expensive planned day, and on the month so far if there is a budget."""
    days, budget, total = days_of_week(fleet), fleet.platform.rules.budget_per_month, fleet.cost.total
    day = max(ALL_DAYS, key=lambda d: days[d][0])
    usd, high = days[day]
    threshold, slack = with_slack(usd, high)
    name = f"a {DAY_NAMES[day].capitalize()}" if usd > min(days)[0] * (1 + 1e-9) else "any day"
    yield Alert(
        metric="spend per day", workload="", threshold=threshold, unit="USD",
        why=f"{slack}; {format_usd(usd, 2)} at most is planned, on {name}", key="spend_usd_per_day", severity="warning",
        action="check which spend exceeds its own threshold, and turn off unused machines",
    )  # fmt: skip
    if budget is not None:
        early = total <= budget - usd
        why = (
            "the budget less the most expensive planned day: one more such day could exceed it"
            if early
            else "the budget"
        )
        yield Alert(
            metric="spend this month", workload="", threshold=budget - usd if early else budget, unit="USD",
            why=f"{why}; {format_usd(total, 0)} is planned", key="spend_usd_this_month", severity="critical",
            action="postpone runs that can wait, or raise the budget",
        )  # fmt: skip


def days_of_week(fleet: SolvedFleet) -> list[tuple[float, float]]:
    """(planned, upper end of the interval) of the cost of each day of the week, from Monday, USD.

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


def _workload_spend(chosen: ChosenWorkload, fleet: SolvedFleet) -> Iterator[Alert]:
    """Alert on the spend of one run, or of one day with machines on, storage and traffic included."""
    job, usd = chosen.job, fleet.cost.by_workload.get(chosen.name, 0.0)
    if not usd:
        return
    high = usd + sum(row.usd_high - row.usd_per_month for row in fleet.rows if row.workload == chosen.name)
    one, times = ("run", job.runs) if job.ends else ("day", job.schedule.days_per_month)
    times = times if job.levels is None else 1 / max(job.levels.day_shares)  # that of its busiest day
    yield spend_alert(job.name, one, usd, high, times)


def _spot_alerts(chosen: ChosenWorkload, fleet: SolvedFleet) -> Iterable[Alert]:
    """More of them than chance explains."""
    mine = (row for row in fleet.rows if row.workload == chosen.name and row.role == "primary")
    for row in (row for row in mine if row.purchase == "spot"):
        yield interruption_alert(row.workload, spot_interruptions(row, fleet.facts))
