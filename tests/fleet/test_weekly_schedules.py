"""Schedules as they are written, and their hours of a month."""

from typing import Any

import pytest

from flopwise.errors import SpecError
from flopwise.fleet.read import parse_fleet
from flopwise.fleet.schedules import schedule
from flopwise.fleet.spec import Hours


def test_environments_have_their_usual_hours() -> None:
    assert schedule(None, "development", "w").hours_per_month == 176
    assert schedule(None, "staging", "w").hours_per_month == 88
    assert schedule(None, "production", "w").hours_per_month == 730
    assert schedule(None, "training", "w").hours_per_month == pytest.approx(730 / 7)


def test_hours_of_a_workload_s_own() -> None:
    assert schedule(Hours(per_day=10, days=20), "production", "w").hours_per_month == 200
    assert schedule(Hours(per_day=6), "production", "w").hours_per_month == 132
    assert schedule(Hours(always=True), "nowhere", "w").hours_per_month == 730


@pytest.mark.parametrize(
    ("hours", "why"),
    [
        ({}, "always: true"),
        ({"per_day": 25}, "up to 24"),
        ({"per_day": 0}, "above 0"),
        ({"per_day": 8, "days": 40}, "up to 31"),
        ({"always": True, "per_day": 3}, "one or the other"),
        ({"always": True, "days": ["mon"]}, "one or the other"),
        ({"days": 22}, "start and stop, or per_day"),
        ({"start": "08:00"}, "go together"),
        ({"stop": "08:00", "days": "weekdays"}, "go together"),
        ({"start": "08:00", "stop": "08:00"}, "the same time"),
        ({"start": "24:00", "stop": "08:00"}, "end of a day"),
        ({"start": "08:00", "stop": "25:00"}, r"stop: '25:00' is not a time|stop: 25:00 is not a time"),
        ({"start": "08:60", "stop": "12:00"}, "start: '08:60' is not a time"),
        ({"start": "morning", "stop": "12:00"}, "not a time of day; allowed: 00:00"),
        ({"start": -8, "stop": "12:00"}, "'-8' is not a time"),
        ({"start": "08:00", "stop": "16:00", "per_day": 8}, "leave out per_day"),
        ({"per_day": 8, "days": ["mon", "tusday"]}, "unknown day 'tusday'.*nearest: tuesday"),
        ({"per_day": 8, "days": "weekday"}, "nearest: weekdays"),
        ({"per_day": 8, "days": []}, "names no day"),
        ({"per_day": "nan", "days": 5}, "per day"),
        ({"per_day": 8, "days": "inf"}, "unknown day"),
    ],
)
def test_hours_that_cannot_be_are_refused(hours: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        schedule(Hours(**hours), "production", "workloads.0.hours")


@pytest.mark.parametrize(
    ("hours", "month", "windows"),
    [
        (Hours(start="08:00", stop="16:00", days=["mon", "tue", "wed", "thu", "fri"]), 40, (480, 960)),
        (Hours(start=8, stop=960, days="weekdays"), 40, (480, 960)),  # YAML reads 16:00 as 960
        (Hours(start="8:30", stop="10:00", days="mon, wed-thu"), 4.5, (510, 600)),
        (Hours(start="22:00", stop="06:00", days="sun"), 8, (0, 360)),  # over the end of the week
        (Hours(start="00:00", stop="24:00", days=["sat"]), 24, (7200, 8640)),
        (Hours(days=["Saturday"]), 24, (7200, 8640)),
        (Hours(start="20:00", stop="24:00"), 28, (1200, 1440)),  # every day
        (Hours(per_day=6, days="weekends"), 12, (7740, 8100)),  # from nine
        (Hours(days="fri-mon"), 96, (0, 1440)),
    ],
)
def test_hours_of_the_week(hours: Hours, month: float, windows: tuple[int, int]) -> None:
    """Hours a week by hand, and the first window in minutes from Monday."""
    found = schedule(hours, "x", "h")
    assert found.hours_per_month == pytest.approx(month * 730 / 168)
    assert found.windows[0] == windows
    assert sum(stop - start for start, stop in found.windows) == pytest.approx(60 * month)
    assert found.fixed


def test_days_of_a_month_with_times() -> None:
    found = schedule(Hours(start="08:00", stop="16:00", days=22), "x", "h")
    assert (found.hours_per_month, found.weekdays, str(found)) == (176, (0, 1, 2, 3, 4), "weekdays 08:00-16:00")
    assert schedule(Hours(start="18:00", stop="02:00", days=30), "x", "h").weekdays == tuple(range(7))
    assert str(schedule(Hours(start="18:00", stop="02:00", days=["mon"]), "x", "h")) == "mon 18:00-02:00"
    assert str(schedule(Hours(days="sat"), "x", "h")) == "sat 00:00-24:00"
    assert str(schedule(Hours(per_day=8), "x", "h")) == "8 h on 22 days a month"
    assert str(schedule(None, "production", "h")) == "always"


def test_times_as_yaml_reads_them() -> None:
    text = "name: x\nworkloads: [{name: d, task: develop, machines: {}, hours: {start: 08:00, stop: 16:30, days: fri}}]"
    [placed] = parse_fleet(text).jobs
    assert str(placed.schedule) == "fri 08:00-16:30"


def test_an_unknown_environment_is_named() -> None:
    with pytest.raises(SpecError, match="'qa' has no hours"):
        schedule(None, "qa", "w")
