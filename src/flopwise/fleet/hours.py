"""When machines are on: schedules as they are written, their hours of a month and their place in the week.

All times are of one clock for the whole fleet, whichever that is: only what overlaps matters.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flopwise.errors import SpecError, nearest_names
from flopwise.units import HOURS_PER_MONTH, parse_count

if TYPE_CHECKING:
    from flopwise.fleet.spec import Hours

DAY_MIN, WEEK_MIN = 24 * 60, 7 * 24 * 60
DAYS_PER_MONTH = HOURS_PER_MONTH / 24
WEEKS_PER_MONTH = DAYS_PER_MONTH / 7
DAY_NAMES = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
GROUPS = {"weekdays": (0, 1, 2, 3, 4), "weekends": (5, 6), "daily": (0, 1, 2, 3, 4, 5, 6)}
ALL_DAYS, WORKDAYS = GROUPS["daily"], GROUPS["weekdays"]
MORNING_MIN = 9 * 60
"""When machines are taken to be turned on where no start is given."""
MOST_WORKDAYS = 23.0
"""Days a month up to which a schedule without named days is taken to be on from Monday to Friday."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """`hours_per_day` from `start_min` (minutes of the day), on each of `weekdays` (0 is Monday).

    `days_per_month`: on how many days of an average month. `fixed`: its place in the week was stated; otherwise
    machines are taken to be on from nine o'clock, on working days as far as those suffice.
    """

    hours_per_day: float
    days_per_month: float
    weekdays: tuple[int, ...] = ALL_DAYS
    start_min: int = 0
    fixed: bool = False

    @property
    def hours_per_month(self) -> float:
        """Source: arithmetic; a month has 730 hours, and so each day of the week 4.345 times."""
        return self.hours_per_day * self.days_per_month

    @property
    def always(self) -> bool:
        """Whether machines are never turned off."""
        return self.hours_per_day >= 24 and self.days_per_month >= DAYS_PER_MONTH

    @property
    def starts_per_month(self) -> float:
        """How often machines are turned on: once for each of its days, once where they stay on."""
        return 1.0 if self.always else max(1.0, self.days_per_month)

    @property
    def windows(self) -> tuple[tuple[int, int], ...]:
        """The parts of the week in which machines may be on: disjoint (start, stop) in minutes from Monday 0:00."""
        length = math.ceil(self.hours_per_day * 60 - 1e-6)
        found = []
        for day in self.weekdays:
            start = day * DAY_MIN + self.start_min
            found.append((start, min(start + length, WEEK_MIN)))
            if start + length > WEEK_MIN:
                found.append((0, start + length - WEEK_MIN))
        return tuple(sorted(found))

    @property
    def minutes_by_weekday(self) -> tuple[int, ...]:
        """Minutes of each day of the week, from Monday, that its windows hold."""
        days = [(day * DAY_MIN, (day + 1) * DAY_MIN) for day in ALL_DAYS]
        return tuple(sum(max(0, min(b, end) - max(a, begin)) for a, b in self.windows) for begin, end in days)

    def __str__(self) -> str:
        """As people write it."""
        if self.always:
            return "always"
        if not self.fixed:
            return f"{self.hours_per_day:g} h on {self.days_per_month:.3g} days a month"
        return f"{_days_text(self.weekdays)} {self.start_text}-{self.stop_text}"

    def plain(self) -> dict[str, Any] | None:
        """As plain data; start, stop and days are None where they were not stated, the whole None where always on."""
        if self.always:
            return None
        return {
            "start": self.start_text if self.fixed else None,
            "stop": self.stop_text if self.fixed else None,
            "days": [DAY_NAMES[day][:3] for day in self.weekdays] if self.fixed else None,
            "hours_per_day": self.hours_per_day,
            "days_per_month": self.days_per_month,
        }

    @property
    def start_text(self) -> str:
        """08:00."""
        return _clock_text(self.start_min)

    @property
    def stop_text(self) -> str:
        """16:00; 24:00 where a day ends."""
        stop = self.start_min + math.ceil(self.hours_per_day * 60 - 1e-6)
        return _clock_text(stop if stop <= DAY_MIN else stop - DAY_MIN)


USUAL = {
    "development": Schedule(hours_per_day=8, days_per_month=22, weekdays=WORKDAYS, start_min=MORNING_MIN),
    "staging": Schedule(hours_per_day=4, days_per_month=22, weekdays=WORKDAYS, start_min=MORNING_MIN),
    "production": Schedule(hours_per_day=24, days_per_month=DAYS_PER_MONTH),
    "training": Schedule(hours_per_day=24, days_per_month=WEEKS_PER_MONTH, weekdays=WORKDAYS),
}
"""Environments that a fleet does not describe itself: working days; weekly training on a day that is not said."""


def schedule(hours: Hours | None, environment: str, where: str) -> Schedule:
    """The schedule of a workload with `hours` of its own, or of an environment by its usual name.

    Raises:
        SpecError: contradicting or impossible times; no hours, and an environment that has none either. Says where.
    """
    if hours is None:
        if environment not in USUAL:
            raise SpecError(
                f"{where}: environment {environment[:60]!r} has no hours; describe it under `environments`, or use "
                f"{', '.join(USUAL)}"
            )
        return USUAL[environment]
    if hours.always:
        if any(held is not None for held in (hours.per_day, hours.days, hours.start, hours.stop)):
            raise SpecError(
                f"{where}: `always` leaves nothing to say of per_day, days, start and stop; give one or the other"
            )
        return USUAL["production"]
    named = None if hours.days is None else _weekdays(hours.days, f"{where}.days")
    start_min, per_day = _span(hours, named is not None, where)
    if isinstance(named, tuple):
        days = len(named) * WEEKS_PER_MONTH
        return Schedule(
            hours_per_day=per_day, days_per_month=days, weekdays=named,
            start_min=_morning(per_day) if start_min is None else start_min, fixed=True,
        )  # fmt: skip
    if named is None:
        named = 22.0 if start_min is None else DAYS_PER_MONTH
    return Schedule(
        hours_per_day=per_day,
        days_per_month=min(named, DAYS_PER_MONTH),
        weekdays=WORKDAYS if named <= MOST_WORKDAYS else ALL_DAYS,
        start_min=_morning(per_day) if start_min is None else start_min,
        fixed=start_min is not None,
    )


def _span(hours: Hours, named: bool, where: str) -> tuple[int | None, float]:
    """(minute of the day that machines are turned on or None, hours a day)."""
    if hours.start is not None or hours.stop is not None:
        if hours.start is None or hours.stop is None:
            raise SpecError(f"{where}: start and stop go together, such as start: 08:00, stop: 16:00")
        if hours.per_day is not None:
            raise SpecError(f"{where}.per_day: start and stop say it; leave out per_day, or start and stop")
        start, stop = (_clock(v, f"{where}.{k}") for k, v in (("start", hours.start), ("stop", hours.stop)))
        if start == stop:
            raise SpecError(f"{where}.stop: the same time as start; a whole day is start: 00:00, stop: 24:00")
        if start == DAY_MIN:
            raise SpecError(f"{where}.start: 24:00 is the end of a day; allowed: 00:00 to 23:59")
        return start, (stop - start) % DAY_MIN / 60 or 24.0
    if hours.per_day is None:
        if named and not _is_number(hours.days):
            return 0, 24.0
        raise SpecError(f"{where}: needs `always: true`, start and stop, or per_day (and days, 22 where not given)")
    return None, hours.per_day


def _morning(per_day: float) -> int:
    return 0 if per_day >= 24 else MORNING_MIN


def _within(value: float, what: str, most: float) -> float:
    if not 0 < value <= most:
        raise SpecError(f"{what}: {value:g} is out of range; allowed: above 0, up to {most:g}")
    return value


def _clock(value: object, what: str) -> int:
    """Minutes of the day: 08:00 or 8 (o'clock). YAML reads 16:00 without quotes as the number 960: minutes."""
    text = str(value).strip()
    found = re.fullmatch(r"(\d{1,2}):([0-5]\d)", text)
    if found:
        minutes = 60 * int(found[1]) + int(found[2])
    elif re.fullmatch(r"\d{1,4}", text) and (int(text) <= 24 or int(text) >= 60):
        minutes = int(text) * 60 if int(text) <= 24 else int(text)
    else:
        raise SpecError(f"{what}: {text[:40]!r} is no time of day; allowed: 00:00 to 24:00")
    if minutes > DAY_MIN:
        raise SpecError(f"{what}: {_clock_text(minutes)} is no time of day; allowed: 00:00 to 24:00")
    return minutes


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and value.strip()[:1] in set("+-.0123456789"))


def _weekdays(value: object, what: str) -> float | tuple[int, ...]:
    """Days a month, or days of the week: `[mon, fri]`, `mon-fri`, `weekdays`, `weekends`, `daily`."""
    if _is_number(value):
        return _within(parse_count(value, what), what, 31.0)
    words = value if isinstance(value, list) else str(value).split(",")
    found = {day for word in words for day in _named_days(str(word).strip().lower(), what)}
    if not found:
        raise SpecError(f"{what}: names no day; allowed: mon to sun, {', '.join(GROUPS)}, or days a month")
    return tuple(sorted(found))


def _named_days(word: str, what: str) -> tuple[int, ...]:
    if word in GROUPS:
        return GROUPS[word]
    first, dash, last = (part.strip() for part in word.partition("-"))
    start = _day(first, what)
    if not dash:
        return (start,)
    return tuple((start + n) % 7 for n in range((_day(last, what) - start) % 7 + 1))


def _day(word: str, what: str) -> int:
    for number, name in enumerate(DAY_NAMES):
        if len(word) >= 3 and name.startswith(word):
            return number
    near = nearest_names(word, (*DAY_NAMES, *GROUPS))
    raise SpecError(
        f"{what}: unknown day {word[:40]!r}; allowed: mon to sun, mon-fri, {', '.join(GROUPS)}, or days a month"
        + (f"; nearest: {near[0]}" if near else "")
    )


def _clock_text(minutes: int) -> str:
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def _days_text(days: tuple[int, ...]) -> str:
    group = next((name for name, held in GROUPS.items() if held == days), None)
    return group or ", ".join(DAY_NAMES[day][:3] for day in days)
