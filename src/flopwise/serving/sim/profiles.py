"""Traffic by the hour of the week: a profile by name, rates by hour, or a file of them; 168 rates from Monday 0:00."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from flopwise.errors import SpecError
from flopwise.files import read_at_most
from flopwise.options import ValueKind, kind_of
from flopwise.units import HOUR_S

HOURS_PER_DAY, HOURS_PER_WEEK = 24, 168
WEEKDAYS = 5
MOST_BYTES = 100_000_000
OFFICE_DAY = (5, 5, 5, 5, 5, 5, 5, 20, 60, 100, 100, 100, 80, 100, 100, 100, 100, 60, 30, 15, 15, 15, 5, 5)
"""Percent of its peak by the hour of a working day. Assumed: work from nine to five, and what jobs ask at night."""
OFFICE_WEEKEND = (5,) * HOURS_PER_DAY
WAVE = tuple(math.exp(math.cos((hour - 14) / HOURS_PER_DAY * 2 * math.pi)) for hour in range(HOURS_PER_DAY))
"""One wave a day, exp(cos x) as diurnal arrivals have, with its top, 2.15 times its mean, at two o'clock. Assumed."""
NAMED: dict[str, tuple[float, ...]] = {
    "office": (*OFFICE_DAY * WEEKDAYS, *OFFICE_WEEKEND * 2),
    "daily": WAVE * 7,
}
DAYS = {"weekdays": range(WEEKDAYS), "weekend": range(WEEKDAYS, 7), "daily": range(7)}
"""Days of the week that a mapping gives 24 rates for."""


def _as_written(value: object, what: str) -> object:
    """A name, a file, or rates; they are read where they are used."""
    if isinstance(value, bool) or not isinstance(value, str | Path | list | tuple | dict):
        raise SpecError(f"{what}: expected a name, a file, a list of rates or a mapping, not {kind_of(value)}")
    return value


PROFILE = ValueKind(
    f"{'|'.join(NAMED)}|path", _as_written, "text, list of quantity, or list by weekdays and weekend",
    {"anyOf": [{"type": "string", "minLength": 1},
               {"type": "array", "items": {"type": "number", "minimum": 0}},
               {"type": "object", "propertyNames": {"enum": [*DAYS]},
                "additionalProperties": {"type": "array", "items": {"type": "number", "minimum": 0}}}]},
)  # fmt: skip


def weekly_rates(profile: object, what: str = "profile") -> tuple[float, ...]:
    """Rates of the hours of a week, from Monday 0:00, over their mean; the rate is a straight line between them.

    `profile`: a name, 24 rates (of every day) or 168, a mapping of 24 for weekdays and for the weekend, or a CSV file:
    `hour,rate`, or a trace of requests with `arrival_s`, which is counted by the hour from a Monday 0:00 on.

    Raises: SpecError: none of these, or rates that cannot be.
    """
    if isinstance(profile, str | Path):
        rates = NAMED.get(str(profile)) or _rates_of_file(Path(profile), what)
    elif isinstance(profile, Mapping):
        rates = _rates_by_days(profile, what)
    elif isinstance(profile, Sequence):
        rates = _whole_week(profile, what)
    else:
        raise SpecError(f"{what}: a name ({', '.join(NAMED)}), 24 or 168 rates, or a file")
    mean = sum(rates) / HOURS_PER_WEEK
    return tuple(rate / mean for rate in rates)


def _whole_week(rates: Sequence[object], what: str) -> tuple[float, ...]:
    """168 rates of 24 or 168."""
    numbers = [float(r) for r in rates if isinstance(r, int | float) and not isinstance(r, bool)]
    if len(numbers) != len(rates) or len(rates) not in {HOURS_PER_DAY, HOURS_PER_WEEK}:
        raise SpecError(f"{what}: {len(rates)} entries; give 24 rates (of every day) or 168 (from Monday 0:00)")
    if not all(math.isfinite(r) and r >= 0 for r in numbers) or not any(numbers):
        raise SpecError(f"{what}: rates are 0 or more, one of them above 0")
    return tuple(numbers) * (HOURS_PER_WEEK // len(numbers))


def _rates_by_days(profile: Mapping[object, object], what: str) -> tuple[float, ...]:
    week: list[tuple[float, ...]] = [(0.0,) * HOURS_PER_DAY] * 7
    for name, rates in profile.items():
        if name not in DAYS or not isinstance(rates, list | tuple) or len(rates) != HOURS_PER_DAY:
            raise SpecError(f"{what}.{str(name)[:30]}: 24 rates of {', '.join(DAYS)}; other days have no traffic")
        for day in DAYS[str(name)]:
            week[day] = tuple(rates)
    return _whole_week([rate for day in week for rate in day], what)


def _rates_of_file(path: Path, what: str) -> tuple[float, ...]:
    name = str(path)[:60]
    try:
        data = read_at_most(path, MOST_BYTES)
        rows = list(csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline="")))
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise SpecError(f"{what}: {name} is not a profile ({', '.join(NAMED)}) nor a readable file: {reason}") from None
    if len(data) > MOST_BYTES:
        raise SpecError(f"{what}: {name} has over {MOST_BYTES:,} bytes")
    columns = rows[0].keys() if rows else set[str]()
    readers: tuple[tuple[set[str], Callable[[list[dict[str, str]]], list[float]]], ...] = (
        ({"hour", "rate"}, _rates_of_table), ({"arrival_s"}, _rates_of_trace),
    )  # fmt: skip
    for needed, read in readers:
        if needed <= set(columns):
            try:
                return _whole_week(read(rows), what)
            except (TypeError, ValueError) as error:
                text = error if isinstance(error, SpecError) else f"{name}: not a number in {', '.join(sorted(needed))}"
                raise SpecError(str(text)) from None
    raise SpecError(f"{what}: {name} needs the columns hour and rate, or arrival_s of a trace")


def _rates_of_table(rows: list[dict[str, str]]) -> list[float]:
    """The rates in the order of their hours."""
    by_hour = {int(row["hour"]): float(row["rate"]) for row in rows}
    whole = HOURS_PER_WEEK if len(by_hour) > HOURS_PER_DAY else HOURS_PER_DAY
    if set(by_hour) != set(range(whole)):
        raise SpecError(f"profile: hours 0 to 23, or 0 to 167 from Monday 0:00, each once; {len(rows)} rows given")
    return [by_hour[hour] for hour in range(whole)]


def _rates_of_trace(rows: list[dict[str, str]]) -> list[float]:
    """Requests of each hour of the week, on average over those that the trace has; of the day if it has less."""
    hours = np.floor(np.array([float(row["arrival_s"]) for row in rows]) / HOUR_S).astype(int)
    hours -= hours.min() // HOURS_PER_DAY * HOURS_PER_DAY
    span = int(hours.max()) + 1
    if span < HOURS_PER_DAY - 1:
        raise SpecError(f"profile: the trace is {span} h long; a profile needs at least one day")
    period = HOURS_PER_WEEK if span > HOURS_PER_WEEK - HOURS_PER_DAY else HOURS_PER_DAY
    counts = np.bincount(hours % period, minlength=period)
    times = np.maximum(np.bincount(np.arange(span) % period, minlength=period), 1)
    return [float(rate) for rate in counts / times]
