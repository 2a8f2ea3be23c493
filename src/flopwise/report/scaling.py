"""Services that follow their traffic: machines by the hour of the week, what that saves, and the simulated day."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from flopwise.fleet.assessment import Assessment, ScaledService
from flopwise.fleet.schedules import DAY_NAMES
from flopwise.report.blocks import Block, Bullets, Table
from flopwise.report.words import digits, usd
from flopwise.units import format_percent, format_seconds


def scaling(assessment: Assessment) -> Iterator[Block]:
    """One table of what it brings, one of machines by the hour, one of what the simulator says."""
    if not assessment.scaled:
        return
    yield Table(
        ["service", ">requests/s, peak", ">mean", ">machines, peak", ">mean", ">paid all month", ">a month",
         ">with a fixed number", ">saved"],
        [
            (s.workload, digits(s.peak_requests_per_s), digits(s.mean_requests_per_s), f"{s.machines_peak:,}",
             digits(s.machines_mean), f"{s.machines_always:,}", usd(s.usd_per_month),
             f"{usd(s.usd_fixed)}: {s.fixed}", usd(s.saved_usd))
            for s in assessment.scaled
        ],
        "Machines are ready when the hour that needs them begins, and paid for from a cold start before it. Machines "
        "paid by the month carry the base load where that is cheaper, machines paid by the hour the rest. The fixed "
        "number is the cheapest way to buy the machines of the peak for all hours.",
    )  # fmt: skip
    yield Table(
        ["service", "days", "machines by the hour", "cold start"],
        [
            ("" if n else s.workload, days, hours, "" if n else format_seconds(s.cold_start_s))
            for s in assessment.scaled
            for n, (days, hours) in enumerate(machines_by_day(s.machines_by_hour))
        ],
    )
    rows = [row for s in assessment.scaled for row in _simulated_rows(s)]
    if rows:
        yield Table(
            ["service", "target", ">all requests", ">worst hour", "", ">in time", ">machine-hours", ">planned"], rows,
            "The simulator ran the busiest day, or the hours around its steepest rise: the policy may add machines to "
            "those of the hour, up to the number at the peak.",
        )  # fmt: skip
    if notes := [f"{s.workload}: {s.note}" for s in assessment.scaled if s.note]:
        yield Bullets(notes)


def machines_by_day(by_hour: Sequence[int]) -> list[tuple[str, str]]:
    """(days that are alike, machines of their hours as 0-7: 1, 7-18: 2)."""
    days = [tuple(by_hour[24 * day : 24 * day + 24]) for day in range(7)]
    rows = []
    for day in dict.fromkeys(days):
        named = [DAY_NAMES[n][:3] for n in range(7) if days[n] == day]
        alike = named[0] if len(named) == 1 else f"{named[0]}-{named[-1]}"
        numbers = [n for n in range(7) if days[n] == day]
        if numbers[-1] - numbers[0] + 1 != len(numbers):
            alike = ", ".join(named)
        parts = []
        for count, group in groupby(range(24), key=lambda hour: day[hour]):
            hours = list(group)
            parts.append(f"{hours[0]}-{hours[-1] + 1} h: {count:,}")
        rows.append((alike, ", ".join(parts)))
    return rows


def _simulated_rows(s: ScaledService) -> Iterator[tuple[str, ...]]:
    day = s.simulated
    if day is None:
        return
    for n, (name, target) in enumerate(day["targets"].items()):
        hour = target["worst_hour"]
        when = f"{format_seconds(target['worst_hour_s'])}, {DAY_NAMES[hour // 24][:3]} {hour % 24} h"
        yield (
            "" if n else s.workload, f"{target['percentile']} {name} {format_seconds(target['target_s'])}",
            format_seconds(target["value_s"]), when, "held" if target["held"] else "MISSED",
            *(("", "", "") if n else (
                format_percent(day["answered_in_time_frac"]), digits(day["machine_hours"]),
                digits(day["planned_machine_hours"]),
            )),
        )  # fmt: skip
