"""When machines are on: schedules, their hours of a month, their place in the week, and what is on at the same time.

All times are of one clock for the whole fleet, whichever that is: only what overlaps matters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from flopwise.errors import SpecError, nearest_names
from flopwise.units import HOURS_PER_MONTH, format_number, parse_count
from flopwise.values import dataclass

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
class WeeklySchedule:
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
        """True if machines are never turned off."""
        return self.hours_per_day >= 24 and self.days_per_month >= DAYS_PER_MONTH

    @property
    def starts_per_month(self) -> float:
        """The number of starts a month: one for each of its days, one in all where machines stay on."""
        return 1.0 if self.always else max(1.0, self.days_per_month)

    @property
    def windows(self) -> tuple[tuple[int, int], ...]:
        """The parts of the week in which machines may be on: disjoint (start, stop) in minutes from Monday 0:00."""
        length = math.ceil(self.hours_per_day * 60 - 1e-6)
        slots = []
        for day in self.weekdays:
            start = day * DAY_MIN + self.start_min
            slots.append((start, min(start + length, WEEK_MIN)))
            if start + length > WEEK_MIN:
                slots.append((0, start + length - WEEK_MIN))
        return tuple(sorted(slots))

    @property
    def minutes_by_weekday(self) -> tuple[int, ...]:
        """Minutes of each day of the week, from Monday, that its windows hold."""
        days = [(day * DAY_MIN, (day + 1) * DAY_MIN) for day in ALL_DAYS]
        return tuple(sum(max(0, min(b, end) - max(a, begin)) for a, b in self.windows) for begin, end in days)

    @property
    def times(self) -> tuple[str, str]:
        """The times at which machines are turned on and off: 08:00, 16:00; 24:00 where a day ends."""
        stop = self.start_min + math.ceil(self.hours_per_day * 60 - 1e-6)
        return _clock_text(self.start_min), _clock_text(stop if stop <= DAY_MIN else stop - DAY_MIN)

    def __str__(self) -> str:
        """As people write it."""
        if self.always:
            return "always"
        if not self.fixed:
            return f"{self.hours_per_day:g} h on {format_number(self.days_per_month)} days a month"
        group = next((name for name, members in GROUPS.items() if members == self.weekdays), None)
        return f"{group or ', '.join(DAY_NAMES[day][:3] for day in self.weekdays)} {'-'.join(self.times)}"

    def plain(self) -> dict[str, Any] | None:
        """As plain data; start, stop and days are None where they were not stated, the whole None where always on."""
        if self.always:
            return None
        start, stop = self.times if self.fixed else (None, None)
        days = [DAY_NAMES[day][:3] for day in self.weekdays] if self.fixed else None
        hours = {"hours_per_day": self.hours_per_day, "days_per_month": self.days_per_month}
        return {"start": start, "stop": stop, "days": days, **hours}


USUAL = {
    "development": WeeklySchedule(hours_per_day=8, days_per_month=22, weekdays=WORKDAYS, start_min=MORNING_MIN),
    "staging": WeeklySchedule(hours_per_day=4, days_per_month=22, weekdays=WORKDAYS, start_min=MORNING_MIN),
    "production": WeeklySchedule(hours_per_day=24, days_per_month=DAYS_PER_MONTH),
    "training": WeeklySchedule(hours_per_day=24, days_per_month=WEEKS_PER_MONTH, weekdays=WORKDAYS),
}
"""Environments that a fleet does not describe itself: working days; weekly training on a day that is not said."""


def schedule(hours: Hours | None, environment: str, where: str) -> WeeklySchedule:
    """The schedule of a workload with `hours` of its own, or of an environment by its usual name.

    Raises: SpecError: contradicting or impossible times; no hours, and an environment that has none either. Says where.
    """
    if hours is None:
        if environment not in USUAL:
            raise SpecError(
                f"{where}: environment {environment[:60]!r} has no hours; describe it under `environments`, or use "
                f"{', '.join(USUAL)}"
            )
        return USUAL[environment]
    if hours.always:
        if (hours.per_day, hours.days, hours.start, hours.stop) != (None, None, None, None):
            raise SpecError(f"{where}: `always` excludes per_day, days, start and stop; give one or the other")
        return USUAL["production"]
    days = None if hours.days is None else _weekdays(hours.days, f"{where}.days")
    start_min, per_day = _span(hours, days is not None, where)
    fixed = start_min is not None
    if start_min is None:
        start_min = 0 if per_day >= 24 else MORNING_MIN
    if isinstance(days, tuple):
        weekdays, num_days, fixed = days, len(days) * WEEKS_PER_MONTH, True
    else:
        given = (DAYS_PER_MONTH if fixed else 22.0) if days is None else days
        weekdays, num_days = (WORKDAYS if given <= MOST_WORKDAYS else ALL_DAYS), min(given, DAYS_PER_MONTH)
    return WeeklySchedule(
        hours_per_day=per_day, days_per_month=num_days, weekdays=weekdays, start_min=start_min, fixed=fixed
    )


def _span(hours: Hours, named: bool, where: str) -> tuple[int | None, float]:
    """(minute of the day that machines are turned on or None, hours a day)."""
    if hours.start is not None or hours.stop is not None:
        if hours.start is None or hours.stop is None:
            raise SpecError(f"{where}: start and stop go together, such as start: 08:00, stop: 16:00")
        if hours.per_day is not None:
            raise SpecError(f"{where}.per_day: start and stop already give it; leave out per_day, or start and stop")
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


def _clock(value: object, what: str) -> int:
    """Minutes of the day: 08:00 or 8 (o'clock). YAML reads 16:00 without quotes as the number 960: minutes."""
    text = str(value).strip()
    clock = re.fullmatch(r"(\d{1,2}):([0-5]\d)", text)
    if clock:
        minutes = 60 * int(clock[1]) + int(clock[2])
    elif re.fullmatch(r"\d{1,4}", text) and (int(text) <= 24 or int(text) >= 60):
        minutes = int(text) * 60 if int(text) <= 24 else int(text)
    else:
        raise SpecError(f"{what}: {text[:40]!r} is not a time of day; allowed: 00:00 to 24:00")
    if minutes > DAY_MIN:
        raise SpecError(f"{what}: {_clock_text(minutes)} is not a time of day; allowed: 00:00 to 24:00")
    return minutes


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and value.strip()[:1] in set("+-.0123456789"))


def _weekdays(value: object, what: str) -> float | tuple[int, ...]:
    """Days a month, or days of the week: `[mon, fri]`, `mon-fri`, `weekdays`, `weekends`, `daily`."""
    if _is_number(value):
        number = parse_count(value, what)
        if not 0 < number <= 31:
            raise SpecError(f"{what}: {number:g} is out of range; allowed: above 0, up to 31")
        return number
    words = value if isinstance(value, list) else str(value).split(",")
    days = {day for word in words for day in _named_days(str(word).strip().lower(), what)}
    if not days:
        raise SpecError(f"{what}: names no day; allowed: mon to sun, {', '.join(GROUPS)}, or days a month")
    return tuple(sorted(days))


def _named_days(word: str, what: str) -> tuple[int, ...]:
    if word in GROUPS:
        return GROUPS[word]
    first, _, last = (part.strip() for part in word.partition("-"))
    start, end = _day(first, what), _day(last if "-" in word else first, what)
    return tuple((start + n) % 7 for n in range((end - start) % 7 + 1))


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


# Months as a fleet writes them: 2027-01


def month_after(first: str, later: int) -> str:
    """The month `later` months after `first`."""
    year, month = (int(part) for part in first.split("-")[:2])
    return f"{year + (month - 1 + later) // 12:04d}-{(month - 1 + later) % 12 + 1:02d}"


def months_between(first: str, second: str) -> int:
    """Months from `first` to `second`; below 0 where it is earlier."""
    (a, b), (c, d) = ((int(part) for part in text.split("-")[:2]) for text in (first, second))
    return (c - a) * 12 + d - b


# The week cut into slots at every time that a schedule starts or stops

MOST_SLOTS = 24
"""Slots beyond which schedules are widened to coarser times: a fleet of a thousand schedules has as many slots."""
GRIDS_MIN = (1, 15, 60, 120, 240, 480, DAY_MIN, WEEK_MIN)
Windows = tuple[tuple[int, int], ...]


def slots(schedules: Sequence[WeeklySchedule | None], most: int = MOST_SLOTS) -> list[tuple[float, ...]]:
    """Each schedule's share of the week in each slot: 0 where it is off; None may be on at any time.

    A slot is all the time of the week in which the same schedules are on, so its parts need not touch.

    Assumes: with more than `most` slots, schedules are widened to whole quarters of an hour, hours, and so on: machines
    are then shared less than they could be, never more.
    """
    distinct = sorted({s.windows for s in schedules if s is not None and not s.always})
    for grid in GRIDS_MIN:
        lengths = _slot_minutes([_widened_to(grid, windows) for windows in distinct])
        if len(lengths) <= most:
            break
    shares = tuple(minutes / WEEK_MIN for minutes in lengths.values())
    own = {
        windows: tuple(share if number in on else 0.0 for on, share in zip(lengths, shares, strict=True))
        for number, windows in enumerate(distinct)
    }
    return [shares if s is None or s.always else own[s.windows] for s in schedules]


def most_at_once(week: Sequence[tuple[float, ...]], counts: Sequence[float]) -> float:
    """The greatest sum of the `counts` that are on in one slot of a `week` from `slots`."""
    return max(
        (sum(n for part, n in zip(parts, counts, strict=True) if part) for parts in zip(*week, strict=True)), default=0
    )


def _widened_to(grid: int, windows: Windows) -> Windows:
    """Windows from and to whole multiples of `grid` minutes, none narrower than before."""
    wide = [(start // grid * grid, min(-(-stop // grid) * grid, WEEK_MIN)) for start, stop in windows]
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(wide):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return tuple(joined)


def _slot_minutes(schedules: Sequence[Windows]) -> dict[frozenset[int], int]:
    """Minutes of the week for each set of schedules that are on together, in the order of the week."""
    cuts = sorted({0, WEEK_MIN, *(end for windows in schedules for window in windows for end in window)})
    turns: dict[int, list[tuple[int, bool]]] = {cut: [] for cut in cuts}
    for number, windows in enumerate(schedules):
        for start, stop in windows:
            turns[stop].append((number, False))
            turns[start].append((number, True))
    on: set[int] = set()
    minutes: dict[frozenset[int], int] = {}
    for cut, following in pairwise(cuts):
        on -= {number for number, starts in turns[cut] if not starts}
        on |= {number for number, starts in turns[cut] if starts}
        together = frozenset(on)
        minutes[together] = minutes.get(together, 0) + following - cut
    return minutes
