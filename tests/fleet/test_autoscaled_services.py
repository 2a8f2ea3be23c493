"""Services that follow their traffic: levels and hours by hand, the base and the top bought best, a simulated day."""

from __future__ import annotations

import itertools
import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flopwise
from flopwise.errors import SpecError
from flopwise.fleet import autoscaling
from flopwise.fleet.assessment import Assessment
from flopwise.fleet.load_levels import LoadLevels
from flopwise.fleet.read import fleet_from
from flopwise.fleet.schedules import USUAL, WEEKS_PER_MONTH, WeeklySchedule
from flopwise.fleet.spec import Quota
from flopwise.report.scaling import machines_by_day

sys.path.insert(0, str(Path(__file__).parent))
from options import RULES, allocate, demand, option
from small import CHAT, TODAY, assess, catalog

ALWAYS = USUAL["production"]
DAY = [25.0] * 8 + [100.0] * 8 + [50.0] * 8
"""Rates of a day: a quarter of the peak for eight hours, all of it for eight, half of it for eight."""


def service(**more: Any) -> dict[str, Any]:
    """A service of 20 requests/s on average, with a day's profile."""
    traffic = CHAT["traffic"] | {"profile": DAY}
    return (
        {k: v for k, v in CHAT.items() if k != "volumes"}
        | {"traffic": traffic, "growth_per_month": 0, "constraints": {"gpus": ["L4"]}}
        | more
    )


def mean_hours(levels: LoadLevels, count: int) -> float:
    """Hours a month that one of so many machines is paid, on average."""
    return levels.paid_hours(levels.machines(count)) / count


@cache
def answer(policy: str = "concurrency", rate: float = 20) -> Assessment:
    traffic = CHAT["traffic"] | {"profile": DAY, "requests_per_s": rate}
    fleet = {
        "name": "f", "workloads": [service(autoscale={"policy": policy}, traffic=traffic)],
        "policies": {"purchase": ["on_demand", "reserved_1y"]},
    }  # fmt: skip
    return assess(fleet_from(fleet), catalog(), scenarios=100, today=TODAY)


def test_levels_of_a_day_by_hand() -> None:
    """An hour takes what its higher end takes: 7 hours at 1/4, 9 at 1 (from 7 o'clock), 8 at 1/2 (the last one, too).

    Of 730 h: 7/24, 9/24 and 8/24 are 212.9, 273.75 and 243.3 h. A cold start of 6 min moves 0.1 h of the hour before
    the rise to the peak's level, 30.4167 times a month: 3.0417 h. Cool-downs of 12 min keep what the falls leave for
    0.2 h: from the peak to a half, from a half to a quarter, 6.0833 h each.
    """
    levels = LoadLevels.of_traffic(DAY * 7, ALWAYS)
    assert levels.shares == (0.25, 0.5, 1.0)
    assert levels.hours == pytest.approx((730 * 7 / 24, 730 * 8 / 24, 730 * 9 / 24))
    assert levels.by_hour[:24] == (0,) * 7 + (2,) * 9 + (1,) * 8
    led = LoadLevels.of_traffic(DAY * 7, ALWAYS, cold_start_s=360, cool_down_s=720)
    each = 730 / 24
    assert led.hours == pytest.approx((each * (7 - 0.1 - 0.2), each * (8 - 0.2 + 0.2), each * (9 + 0.1 + 0.2)))
    assert sum(led.hours) == pytest.approx(730)
    assert led.starts_per_month == pytest.approx(730 / 24)


def test_machines_are_whole_and_mean_hours_follow() -> None:
    """Of 6 machines 2 (1.5), 3 and 6; pairs of machines 2, 4 and 6. On average (2 x 7 + 3 x 8 + 6 x 9) / 24 / 6."""
    levels = LoadLevels.of_traffic(DAY * 7, ALWAYS)
    assert levels.machines(6) == (2, 3, 6)
    assert levels.machines(6, unit=2) == (2, 4, 6)
    assert mean_hours(levels, 6) == pytest.approx(730 * (2 * 7 + 3 * 8 + 6 * 9) / 24 / 6)


def test_headroom_and_least() -> None:
    """A fifth more: 0.3 and 0.6 of the peak's machines, which have none beyond themselves."""
    assert LoadLevels.of_traffic(DAY * 7, ALWAYS, headroom=0.2).shares == pytest.approx((0.3, 0.6, 1.0))
    assert LoadLevels.of_traffic(DAY * 7, ALWAYS, least_share=0.4).shares == (0.4, 0.5, 1.0)
    nights = [0.0] * 8 + [1.0] * 8 + [0.0] * 8
    idle, asleep = LoadLevels.of_traffic(nights * 7, ALWAYS), LoadLevels.of_traffic(nights * 7, ALWAYS, least_share=0.0)
    assert idle.machines(5) == (1, 5)
    assert asleep.machines(5) == (5,)
    assert asleep.by_hour[0] is None
    assert asleep.hours == pytest.approx((730 * 9 / 24,))  # the eight hours, and that in which traffic rises


def test_hours_are_those_of_the_schedule() -> None:
    """On from nine to five on working days, of which the profile has all at its peak."""
    office = WeeklySchedule(hours_per_day=8, days_per_month=5 * WEEKS_PER_MONTH, weekdays=(0, 1, 2, 3, 4),
                            start_min=540, fixed=True)  # fmt: skip
    levels = LoadLevels.of_traffic(DAY * 7, office)
    assert sum(levels.hours) == pytest.approx(office.hours_per_month)
    assert levels.by_hour[5 * 24 + 10] is None
    with pytest.raises(SpecError, match="no traffic"):
        LoadLevels.of_traffic(([0.0] * 20 + [1.0] + [0.0] * 3) * 7, office, least_share=0.0)


def test_many_levels_are_joined_upwards() -> None:
    """A rate for each hour: twelve levels are kept, no hour on fewer machines than it needs, the peak among them."""
    rates = [float(1 + hour) for hour in range(24)] * 7
    exact, joined = LoadLevels.of_traffic(rates, ALWAYS, most=24), LoadLevels.of_traffic(rates, ALWAYS)
    assert len(exact.shares) == 23
    assert len(joined.shares) == 12
    for one, other in zip(exact.by_hour, joined.by_hour, strict=True):
        assert one is not None
        assert other is not None
        assert joined.shares[other] >= exact.shares[one]
    assert mean_hours(joined, 24) <= 1.1 * mean_hours(exact, 24)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.integers(5, 60)), min_size=1, max_size=3),
    st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True),
)
def test_base_and_top_are_bought_best(kinds: list[tuple[bool, int, int]], parts: list[int]) -> None:
    """Machines paid all month or by the hour, of several sizes, over levels: every combination tried."""
    shares = (*sorted(part / 10 for part in parts), 1.0)
    levels = LoadLevels(shares=shares, hours=tuple(730 / len(shares) for _ in shares), by_hour=())
    options = []
    for number, (reserved, n, usd) in enumerate(kinds):
        hours = 730.0 if reserved else mean_hours(levels, n)
        how, each = ("reserved_1y", 0.6 * usd) if reserved else ("on_demand", usd * hours / 730)
        options.append(option(0, f"p{number}", each, n, purchase=how, hours=hours))
    best = float("inf")
    for counts in itertools.product(*(range(n + 1) for _, n, _ in kinds)):
        whole = sum(c / n for c, (_, n, _) in zip(counts, kinds, strict=True))
        if whole < 1 - 1e-9 or whole > 1 + max(1 / n for _, n, _ in kinds) - 1e-6:
            continue
        bill = 0.0
        bill += sum(0.6 * price * c * reserved for c, (reserved, _, price) in zip(counts, kinds, strict=True))
        for share, hours in zip(shares, levels.hours, strict=True):
            fixed = [reserved or share == 1 for reserved, _, _ in kinds]
            ranges = [range(c if still else 0, c + 1) for c, still in zip(counts, fixed, strict=True)]
            bill += min(
                sum(p * c * hours / 730 * (not reserved) for c, (reserved, _, p) in zip(on, kinds, strict=True))
                for on in itertools.product(*ranges)
                if sum(c / n for c, (_, n, _) in zip(on, kinds, strict=True)) >= share - 1e-9
            )
        best = min(best, bill)
    found = allocate(options, [demand("s", split=True, levels=levels)], RULES, gap=1e-9)
    assert found.usd == pytest.approx(best)
    assert sum(found.by_provider.values()) == pytest.approx(found.usd)


def test_a_reserved_base_with_an_on_demand_top_by_hand() -> None:
    """Four machines at the peak, 40 % of the hours; one in the others. Reserved $60, on demand $100 for 730 h.

    The first is needed all the time: reserved, 60. Three for 292 h: on demand 3 x 40 = 120. Fixed: 240.
    """
    levels = LoadLevels(shares=(0.25, 1.0), hours=(438.0, 292.0), by_hour=())
    hours = mean_hours(levels, 4)
    assert hours == pytest.approx((730 + 3 * 292) / 4)
    ways = [option(0, "a", 60, 4, purchase="reserved_1y"), option(0, "a", 100 * hours / 730, 4, hours=hours)]
    found = allocate(ways, [demand("s", split=True, levels=levels)], RULES)
    assert found.usd == pytest.approx(60 + 120)
    bought = {taken.option.purchase: taken for taken in found.taken}
    assert (bought["reserved_1y"].count, bought["on_demand"].count) == (1, 3)
    assert bought["on_demand"].by_level == (0, 3)
    assert bought["on_demand"].paid_hours == pytest.approx(292)
    few = allocate(
        ways, [demand("s", split=True, levels=levels)], replace(RULES, quotas=(Quota(most=4, provider="a"),))
    )
    assert few.usd == pytest.approx(180)  # quotas count machines of the peak


def test_a_fleet_follows_its_traffic() -> None:
    """The bill is of the hours of the levels; a fixed number costs more; rows, hours and machines agree."""
    found = answer()
    (scaled,) = found.scaled
    assert scaled.peak_requests_per_s == pytest.approx(20 * 100 / (sum(DAY) / 24))
    assert scaled.mean_requests_per_s == pytest.approx(20)
    assert scaled.machines_peak == max(scaled.machines_by_hour) == sum(row.count for row in found.allocation)
    assert scaled.machines_by_hour[12] == scaled.machines_peak > scaled.machines_by_hour[3]
    assert scaled.usd_per_month == pytest.approx(sum(row.usd_per_month for row in found.allocation))
    assert scaled.saved_usd == pytest.approx(scaled.usd_fixed - scaled.usd_per_month)
    assert re.fullmatch(r"\d+ x \S+ \S+ .*(on demand|on spot|reserved for (a year|three years))", scaled.fixed), (
        scaled.fixed
    )
    assert scaled.saved_usd > 0
    for row in found.allocation:
        if row.purchase == "on_demand" and row.provider == "aws":
            assert row.usd_per_hour is not None
            assert row.usd_per_month == pytest.approx(row.count * row.hours_per_month * row.usd_per_hour, rel=1e-3)
    hours = sum(row.count * row.hours_per_month for row in found.allocation)
    assert scaled.machines_mean == pytest.approx(hours / 730, rel=1e-6)
    still = assess(
        fleet_from({"name": "f", "workloads": [service(autoscale={"fixed": True})],
                    "policies": {"purchase": ["on_demand", "reserved_1y"]}}),
        catalog(), scenarios=0, today=TODAY,
    )  # fmt: skip
    assert not still.scaled
    assert still.usd_per_month.total == pytest.approx(scaled.usd_fixed)


def test_a_day_through_the_simulator_holds_the_targets() -> None:
    """All of the day: the target holds in each hour, on about the machine-hours that the bill has.

    At 10 requests/s; where half of the peak is just what some machines carry, the policy starts one more.
    """
    (scaled,) = answer(rate=10).scaled
    day = scaled.simulated
    assert day is not None
    assert day["hours"] == 24
    assert day["targets"]["latency"]["held"]
    assert day["targets"]["latency"]["worst_hour_s"] <= 1.0
    assert day["answered_in_time_frac"] > 0.95
    assert day["requests"] == pytest.approx(10 * 86400, rel=0.01)
    more = day["machine_hours"] / day["planned_machine_hours"] - 1
    assert more == pytest.approx(0, abs=0.12)
    assert (scaled.note == "") == (more <= 0.05)  # what is more than a twentieth is said


def test_a_day_of_models_that_answer_in_one_pass_has_no_further_tokens() -> None:
    """Each input is one pass, with a wait for at most three others at its p95: not 256 steps."""
    traffic = CHAT["traffic"] | {"profile": DAY, "input_tokens": 512}
    encoder = {
        "name": "search", "task": "encode", "model": "bge-m3", "traffic": traffic, "growth_per_month": 0,
        "constraints": {"gpus": ["L4"]}, "targets": {"latency": {"p95": "100ms"}},
    }  # fmt: skip
    (scaled,) = assess(fleet_from({"name": "f", "workloads": [encoder]}), catalog(), scenarios=0, today=TODAY).scaled
    assert scaled.simulated is not None
    latency = scaled.simulated["targets"]["latency"]
    lone = flopwise.serve("bge-m3", gpu="l4", input=512, concurrency=1).estimate.ttft_s.value
    assert lone < latency["value_s"] < 4 * lone
    assert latency["held"]


def test_a_policy_that_keeps_machines_longer_says_what_that_costs() -> None:
    """By the queue replicas that are busy stay: the simulated day has more machine-hours than the bill."""
    (scaled,) = answer("queue", rate=20).scaled
    assert scaled.simulated is not None
    more = scaled.simulated["machine_hours"] / scaled.simulated["planned_machine_hours"] - 1
    assert more > 0.1
    assert f"{100 * more:.0f} % longer than planned" in scaled.note


def test_of_more_requests_the_hours_around_the_steepest_rise_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were not, as machines were given for those hours alone. Traffic rises to its peak at seven o'clock."""
    monkeypatch.setattr(autoscaling, "MOST_REQUESTS", 300_000)
    found = answer.__wrapped__("concurrency", rate=20)
    (scaled,) = found.scaled
    assert scaled.simulated is not None
    first, count = scaled.simulated["first_hour"] % 24, scaled.simulated["hours"]
    assert first <= 7 < first + count < 24
    assert 200_000 < scaled.simulated["requests"] <= 300_000
    assert scaled.simulated["machine_hours"] > 0


def test_what_goes_with_a_profile() -> None:
    with pytest.raises(SpecError, match=r"workloads\.0\.autoscale: follows a profile"):
        fleet_from({"name": "f", "workloads": [CHAT | {"autoscale": {"policy": "kv"}}]})
    with pytest.raises(SpecError, match=r"traffic\.peak: the profile has a highest rate"):
        fleet_from({"name": "f", "workloads": [service(traffic=CHAT["traffic"] | {"profile": "office", "peak": 2})]})


def test_days_that_are_alike_are_one_line() -> None:
    week = ([1] * 8 + [2] * 16) * 5 + [1] * 48
    assert machines_by_day(week) == [("mon-fri", "0-8 h: 1, 8-24 h: 2"), ("sat-sun", "0-24 h: 1")]
