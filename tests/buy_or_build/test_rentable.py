"""Rentable units: sums by hand, and break-evens that a scan finds too."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from flopwise.buy_or_build.self_hosted import (
    RentableUnits,
    break_even_month,
    break_even_volume,
    cumulative_usd,
    monthly_volumes,
    summed_ends,
    unit_of,
)
from flopwise.cost.intervals import ErrorBand
from flopwise.search.answer import Candidate

HOURS = 730.0


def units(*rows: tuple[float, float]) -> RentableUnits:
    return RentableUnits(
        usd_per_month=np.array([usd for usd, _ in rows]),
        tokens_per_month=np.array([tokens for _, tokens in rows]),
        candidates=(),
        instances=(1,) * len(rows),
    )


def candidate(num_instances: int, num_gpus: int, replicas: int, tp: int, rate: float, usd_per_hour: float) -> Candidate:
    return Candidate(
        rank=1, provider="p", region="r", instance="i", num_instances=num_instances, gpu="G", num_gpus=num_gpus,
        purchase="on_demand", layout={"tp": tp, "pp": 1, "dp": 1, "replicas": replicas}, seconds=1.0,
        usd_per_hour=usd_per_hour, cost_usd=usd_per_hour * HOURS, energy_joules=None, meets={},
        figures={"requests_per_s_capacity": rate}, memory_bytes=1.0, capacity_bytes=2.0, price_date="2026-01-01",
        price_source="s",
    )  # fmt: skip


def test_sums_by_hand() -> None:
    volumes = monthly_volumes(100.0, 0.5, 3)
    assert volumes.tolist() == [100.0, 150.0, 225.0]
    rentable = units((10.0, 100.0), (25.0, 1000.0))
    assert rentable.monthly_usd(volumes).tolist() == [10.0, 20.0, 25.0]
    assert rentable.cheapest(150.0) == (0, 2)
    assert rentable.cheapest(225.0) == (1, 1)
    assert cumulative_usd(7.0, rentable.monthly_usd(volumes)).tolist() == [7.0, 17.0, 37.0, 62.0]


def test_the_month_from_whose_end_on_it_stays_cheaper() -> None:
    api = np.array([0.0, 10.0, 20.0, 30.0, 40.0])
    assert break_even_month(np.array([15.0, 16.0, 17.0, 18.0, 19.0]), api) == 2
    assert break_even_month(np.array([5.0, 6.0, 25.0, 26.0, 40.0]), api) == 3
    assert break_even_month(np.array([15.0, 30.0, 45.0, 60.0, 75.0]), api) is None
    assert break_even_month(np.zeros(5), api) == 0


def test_a_unit_is_a_full_instance_or_all_instances_of_a_replica() -> None:
    seconds = HOURS * 3600
    usd, tokens, instances = unit_of(candidate(1, 8, 1, 2, 3.0, 16.0), 1000.0, 2.0, 1e6)
    assert (usd, instances) == (16.0 * HOURS, 1)
    assert tokens == pytest.approx(4 * 3.0 / 2.0 * 1000.0 * seconds)  # four replicas of tp 2 in eight GPUs
    usd, tokens, instances = unit_of(candidate(4, 32, 2, 16, 6.0, 64.0), 1000.0, 1.0, 5.0 * 1000 * seconds)
    assert (usd, instances) == (2 * 16.0 * HOURS, 2)
    assert tokens == pytest.approx(3.0 * 1000.0 * seconds)


def test_machines_that_latency_needs_are_not_left_out() -> None:
    """A plan of five machines that its rate alone would not need stays one of five."""
    volume = 1e9
    row = unit_of(candidate(5, 5, 5, 1, 100.0, 5.0), 1000.0, 1.0, volume)
    assert units(row[:2]).monthly_usd(np.array([volume]))[0] == pytest.approx(5.0 * HOURS)


prices = st.floats(1.0, 1e4)
capacities = st.floats(10.0, 1e5)


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.tuples(prices, capacities), min_size=1, max_size=3),
    upfront=st.floats(0.0, 1e5),
    upkeep=st.floats(0.0, 1e3),
    months=st.integers(1, 36),
    api=st.floats(0.01, 50.0),
)
@example(rows=[(1.0, 125.0)], upfront=0.0, upkeep=1.0, months=1, api=0.01)
def test_the_break_even_volume_is_the_first_of_a_scan(
    rows: list[tuple[float, float]], upfront: float, upkeep: float, months: int, api: float
) -> None:
    rentable = units(*rows)
    found = break_even_volume(upfront, upkeep, months, api, rentable)

    def excess(volumes: np.ndarray) -> np.ndarray:
        paid: np.ndarray = upfront + months * (rentable.monthly_usd(volumes) + upkeep - api * volumes)
        return paid

    if found is None:
        assert all(api * tokens <= usd * (1 + 1e-9) for usd, tokens in rows)
        assert (excess(np.geomspace(1e-3, 1e9, 500)) >= -1e-6 * months * 1e9 * api).all()
        return
    assume(found < 1e12)
    scale = upfront + months * api * found
    at = excess(found * np.array([1 - 1e-9, 1 + 1e-9]))  # on either side: the next token may need another machine
    assert at.min() <= 1e-7 * scale
    below = np.linspace(0.0, found * (1 - 1e-6), 4001)[1:]
    assert (excess(below) > -1e-7 * scale).all()


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.tuples(prices, capacities), min_size=1, max_size=3),
    low=st.floats(0.3, 0.9),
    high=st.floats(1.1, 3.0),
    upfront=st.floats(0.0, 1e5),
    api=st.floats(0.01, 50.0),
)
def test_measured_errors_move_sums_and_break_evens_to_both_sides(
    rows: list[tuple[float, float]], low: float, high: float, upfront: float, api: float
) -> None:
    band = ErrorBand(name="x", low=low, median=1.0, high=high, rows=9, source="s", date="2026-01-01")
    plain = units(*rows)
    rentable = RentableUnits(plain.usd_per_month, plain.tokens_per_month, (), plain.instances, (band,) * len(rows))
    assert rentable.factor(0.1) == pytest.approx(low, rel=1e-6)
    assert rentable.factor(0.9) == pytest.approx(high, rel=1e-6)
    volumes = np.geomspace(1.0, 1e6, 40)
    best, middle, worst = (rentable.monthly_usd(volumes, rentable.factor(q)) for q in (0.9, 0.5, 0.1))
    assert (best <= middle).all()
    assert (middle <= worst).all()
    assert middle == pytest.approx(plain.monthly_usd(volumes))
    ends = [break_even_volume(upfront, 0.0, 12, api, rentable.carrying(rentable.factor(q))) for q in (0.9, 0.5, 0.1)]
    known = [v for v in ends if v is not None]
    assert known == sorted(known)
    assert ends == [*known, *[None] * (3 - len(known))], "what never pays at its best never pays at its worst"


def test_ends_of_a_sum_are_those_of_its_spread() -> None:
    low, high = summed_ends(np.array([7.0, 10.0]), (3.0, 0.0, 7.0), (np.array([4.0, 7.0]), 0.0, np.array([7.0, 10.0])))
    assert low.tolist() == pytest.approx([7 - 5.0, 10 - 58**0.5])
    assert high.tolist() == pytest.approx([7 + 5.0, 10 + 5.0])
