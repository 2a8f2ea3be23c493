"""Slots of the week: against the clock, minute by minute, and the packing on shared machines against brute force."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwise.fleet.model import MonthlyOption, OwnPool
from flopwise.fleet.schedules import DAY_MIN, WEEK_MIN, WeeklySchedule, schedule, slots
from flopwise.fleet.spec import Hours

sys.path.insert(0, str(Path(__file__).parent))
from options import RULES, allocate, demand, option

times = st.tuples(st.integers(0, 23), st.integers(1, 24), st.sets(st.integers(0, 6), min_size=1))


def made(start: int, length: int, days: set[int]) -> WeeklySchedule:
    return WeeklySchedule(
        hours_per_day=length, days_per_month=len(days), weekdays=tuple(sorted(days)), start_min=60 * start, fixed=True
    )


def is_on(one: WeeklySchedule, minute: int) -> bool:
    """By the clock: it was turned on some day at its start, and its hours are not over."""
    return any(
        (minute - day * DAY_MIN - one.start_min) % WEEK_MIN < one.hours_per_day * 60 - 1e-9 for day in one.weekdays
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(times, min_size=1, max_size=5))
def test_slots_are_the_sets_of_what_is_on_together(rows: list[tuple[int, int, set[int]]]) -> None:
    held = [made(*row) for row in rows]
    minutes: dict[tuple[bool, ...], int] = {}
    for minute in range(0, WEEK_MIN, 60):
        on = tuple(is_on(one, minute) for one in held)
        minutes[on] = minutes.get(on, 0) + 60
    found = slots([*held, None], most=1000)
    whole = found.pop()
    assert sum(whole) == pytest.approx(1.0)
    by_set = {tuple(own[n] > 0 for own in found): share for n, share in enumerate(whole)}
    assert len(by_set) == len(whole), "equal sets are one slot"
    assert by_set == {on: pytest.approx(length / WEEK_MIN) for on, length in minutes.items()}
    for own in found:
        assert all(share in (0.0, part) for share, part in zip(own, whole, strict=True))


def test_few_schedules_make_few_slots() -> None:
    office, night = made(8, 8, {0, 1, 2, 3, 4}), made(20, 4, {0, 1, 2, 3, 4})
    day, evening, whole = slots([office, night, None])
    assert len(whole) == 3
    assert not any(a and b for a, b in zip(day, evening, strict=True))
    assert sum(day) == pytest.approx(40 / 168)
    assert sum(evening) == pytest.approx(20 / 168)
    assert slots([None, None]) == [(1.0,), (1.0,)]
    assert slots([office, office]) == [(40 / 168, 0.0)] * 2 or slots([office, office]) == [(0.0, 40 / 168)] * 2


def test_many_schedules_are_widened_and_never_narrowed() -> None:
    held = [made(n % 24, 1 + n % 11, {n % 7, (n * 3) % 7}) for n in range(60)]
    found = slots(held, most=12)
    assert len(found[0]) <= 12
    for one, own in zip(held, found, strict=True):
        assert sum(own) * 168 >= one.hours_per_day * len(one.weekdays) - 1e-6
    for (a, own), (b, other) in product(zip(held, found, strict=True), repeat=2):
        if any(is_on(a, minute) and is_on(b, minute) for minute in range(0, WEEK_MIN, 60)):
            assert any(x and y for x, y in zip(own, other, strict=True)), "what overlaps still does"


def pool_size(rows: list[tuple[int, int, set[int], int]]) -> int:
    """Most machines that are on in any hour of the week."""
    held = [(made(start, length, days), count) for start, length, days, count in rows]
    return max(sum(count for one, count in held if is_on(one, hour * 60)) for hour in range(168))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 23), st.integers(1, 20), st.sets(st.integers(0, 6), min_size=1),
                          st.integers(1, 4)), min_size=1, max_size=6))  # fmt: skip
def test_fixed_schedules_share_a_pool_of_the_busiest_hour(rows: list[tuple[int, int, set[int], int]]) -> None:
    week = slots([made(start, length, days) for start, length, days, _ in rows])
    options = [
        option(n, "aws", 1000, count, purchase="reserved_1y", hours=length * len(days) * 730 / 168)
        for n, (_, length, days, count) in enumerate(rows)
    ]
    demands = [demand(f"w{n}", slots=own) for n, own in enumerate(week)]
    assert allocate(options, demands, RULES).pools[options[0].machine] == pool_size(rows)


def fits(pool: int, fixed: list[tuple[int, ...]], runs: list[tuple[int, tuple[int, ...]]]) -> bool:
    """Whether runs of so many hours find free machines, each on one machine at a time, in the hours they may use."""
    free = [pool - sum(hour in on for on in fixed) for hour in range(6)]
    if min(free) < 0:
        return False

    def placed(left: list[tuple[int, tuple[int, ...]]], free: list[int]) -> bool:
        if not left:
            return True
        (length, allowed), *others = left
        for hours in product((False, True), repeat=6):
            taken = [hour for hour, on in enumerate(hours) if on]
            if len(taken) != length or any(hour not in allowed or free[hour] < 1 for hour in taken):
                continue
            if placed(others, [f - hours[h] for h, f in enumerate(free)]):
                return True
        return False

    return placed(runs, free)


parts = st.sets(st.integers(0, 5), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(st.lists(parts, max_size=3), st.lists(st.tuples(st.integers(1, 6), parts), min_size=1, max_size=4))
def test_runs_fill_what_schedules_leave(fixed: list[set[int]], runs: list[tuple[int, set[int]]]) -> None:
    """A week of six slots, all ways to place each run tried: the program finds the smallest pool."""
    runs = [(min(length, len(allowed)), allowed) for length, allowed in runs]
    shares = [tuple(1 / 6 if slot in on else 0.0 for slot in range(6)) for on in (*fixed, *(a for _, a in runs))]
    lengths = [len(on) for on in fixed] + [length for length, _ in runs]
    options = [
        option(n, "aws", 1000, purchase="reserved_1y", hours=length * 730 / 6) for n, length in enumerate(lengths)
    ]
    demands = [demand(f"w{n}", flexible=n >= len(fixed), slots=own) for n, own in enumerate(shares)]
    asked = [(length, tuple(allowed)) for length, allowed in runs]
    least = next(pool for pool in range(1, 9) if fits(pool, [tuple(on) for on in fixed], asked))
    assert allocate(options, demands, RULES).pools[options[0].machine] == least


def test_two_half_day_jobs_share_one_machine() -> None:
    hours = [Hours(start="08:00", stop="16:00", days="weekdays"), Hours(start="20:00", stop="24:00", days="weekdays")]
    day, evening = slots([schedule(h, "x", "h") for h in hours])

    def pools(second: tuple[float, ...]) -> int:
        options = [option(n, "aws", 1000, purchase="reserved_1y", hours=100) for n in range(2)]
        demands = [demand("a", split=True, slots=day)]
        demands.append(replace(demands[0], name="b", slots=second))
        return sum(allocate(options, demands, RULES).pools.values())

    assert pools(evening) == 1
    assert pools(day) == 2


def test_a_run_is_on_no_more_machines_than_it_has() -> None:
    """700 hours of one machine do not fit into the weekends of two, nor beside a weekday job on the same."""
    weekday = demand("w", slots=(5 / 7, 0.0))
    run = demand("r", flexible=True, slots=(5 / 7, 2 / 7))
    held: list[MonthlyOption] = [
        option(0, "aws", 1000, purchase="reserved_1y", hours=521),
        option(1, "aws", 1000, purchase="reserved_1y", hours=400),
    ]
    assert allocate(held, [weekday, run], RULES).pools[held[0].machine] == 2
    held[1] = replace(held[1], busy_hours=200)
    assert allocate(held, [weekday, run], RULES).pools[held[0].machine] == 1


def gangs_fit(pool: int, runs: list[tuple[int, int]], hours: int = 5) -> bool:
    """Whether runs of (machines, hours) find their machines all at once, an hour here and an hour there."""

    def placed(left: list[tuple[int, int]], free: list[int]) -> bool:
        if not left:
            return True
        (size, length), *others = left
        return any(
            all(free[h] >= size for h in on) and placed(others, [f - size * (h in on) for h, f in enumerate(free)])
            for on in combinations(range(hours), length)
        )

    return placed(sorted(runs, reverse=True), [pool] * hours)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=2, max_size=5))
def test_runs_on_several_machines_are_on_all_of_them_at_once(runs: list[tuple[int, int]]) -> None:
    """Five hours a month, all ways to place each run tried: the pool holds them, at little more than the least."""
    options = [
        option(n, "aws", 1000, size, purchase="reserved_1y", hours=length * 730 / 5 - 1e-6)
        for n, (size, length) in enumerate(runs)
    ]
    demands = [demand(f"w{n}", flexible=True) for n in range(len(runs))]
    pool = allocate(options, demands, RULES, gap=0.0).pools[options[0].machine]
    least = next(m for m in range(1, 30) if gangs_fit(m, runs))
    assert least <= pool
    in_turn = max(size for size, _ in runs)
    if all(size > 1 for size, _ in runs) and sum(length for _, length in runs) <= 5:
        assert pool == least == in_turn
    if all(size == 1 for size, _ in runs):
        assert pool == least


def test_rows_of_runs_stand_beside_each_other_on_own_machines() -> None:
    """Four runs of two machines for half a month each: two after two others, on four machines of your own."""
    own = OwnPool(tiers=((0, 0.0), (9, 100.0)), hours=700.0)
    options = [option(n, "own", 100, 2, purchase="owned", hours=350, own=own, instance="box") for n in range(4)]
    demands = [demand(f"w{n}", flexible=True) for n in range(4)]
    assert allocate(options, demands, RULES).pools[options[0].machine] == 4


def test_two_runs_on_two_machines_each_do_not_fit_on_three() -> None:
    """As hours they fill 3 machines; but they cannot be on at the same time, and one after another takes too long."""
    options = [option(n, "aws", 1000, 2, purchase="reserved_1y", hours=500) for n in range(2)]
    demands = [demand(f"w{n}", flexible=True) for n in range(2)]
    assert allocate(options, demands, RULES).pools[options[0].machine] == 4
    shorter = [replace(c, busy_hours=360.0) for c in options]
    assert allocate(shorter, demands, RULES).pools[options[0].machine] == 2
