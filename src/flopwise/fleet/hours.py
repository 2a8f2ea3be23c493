"""How many hours of a month machines are on, and when in the week: environments, schedules, runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.errors import SpecError
from flopwise.units import HOURS_PER_MONTH, parse_count

if TYPE_CHECKING:
    from flopwise.fleet.spec import Hours

DAYS_PER_MONTH = HOURS_PER_MONTH / 24
WEEKS_PER_MONTH = DAYS_PER_MONTH / 7
USUAL = {
    "development": (8.0, 22.0),
    "staging": (4.0, 22.0),
    "production": (24.0, DAYS_PER_MONTH),
    "training": (24.0, WEEKS_PER_MONTH),
}
"""Hours a day and days a month of environments that a fleet does not describe itself: working days; weekly training."""


OFFICE_HOURS, WORKING_DAYS = 9.0, 23.0


def daily(hours: Hours, where: str) -> tuple[float, float]:
    """(hours a day, days a month).

    Raises:
        SpecError: contradicting or impossible figures; says where.
    """
    if hours.always:
        if hours.per_day is not None or hours.days is not None:
            raise SpecError(f"{where}: `always` leaves nothing to say of per_day and days; give one or the other")
        return 24.0, DAYS_PER_MONTH
    if hours.per_day is None:
        raise SpecError(f"{where}: needs `always: true`, or per_day (and days, 22 where not given)")
    per_day = parse_count(hours.per_day, f"{where}.per_day")
    days = 22.0 if hours.days is None else parse_count(hours.days, f"{where}.days")
    for name, value, most in (("per_day", per_day, 24.0), ("days", days, 31.0)):
        if not 0 < value <= most:
            raise SpecError(f"{where}.{name}: {value:g} is out of range; allowed: above 0, up to {most:g}")
    return per_day, min(days, DAYS_PER_MONTH)


def hours_per_month(hours: Hours | None, environment: str, where: str) -> float:
    """Hours a month of a workload with `hours` of its own, or of an environment by its usual name.

    Source: arithmetic; a month has 730 hours on average.
    Raises: SpecError: no hours, and an environment that has none either.
    """
    if hours is not None:
        per_day, days = daily(hours, where)
        return per_day * days
    if environment not in USUAL:
        raise SpecError(
            f"{where}: environment {environment[:60]!r} has no hours; describe it under `environments`, or use "
            f"{', '.join(USUAL)}"
        )
    per_day, days = USUAL[environment]
    return per_day * days


def slots(hours: Hours | None, environment: str) -> tuple[int, ...]:
    """Which of the week's slots (office hours, weekday nights, weekends) a schedule is on in.

    Assumes: up to nine hours on at most 23 days a month are office hours; longer working days reach into the nights.
    """
    per_day, days = USUAL.get(environment, (24.0, DAYS_PER_MONTH)) if hours is None else daily(hours, environment)
    if days > WORKING_DAYS:
        return (0, 1, 2)
    return (0,) if per_day <= OFFICE_HOURS else (0, 1)


def starts_per_month(hours: Hours | None, environment: str) -> float:
    """How often machines with a schedule are turned on: once for each of its days, once where they stay on."""
    per_day, days = USUAL.get(environment, (24.0, DAYS_PER_MONTH)) if hours is None else daily(hours, environment)
    return 1.0 if days >= DAYS_PER_MONTH and per_day >= 24.0 else max(1.0, days)


def monthly_usd(count: float, usd_per_hour: float, hours: float) -> float:
    """Cost of `count` instances that are on `hours` a month, in USD. Source: arithmetic."""
    return count * usd_per_hour * hours
