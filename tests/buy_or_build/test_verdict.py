"""The verdict: odds that drawing cases gives too, and tipping points at which both sums are equal."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwise.buy_or_build.alternatives import TippingPoint
from flopwise.buy_or_build.comparison import (
    TotalCost,
    chance_at_most,
    nearest_first,
    tipping_machine_price,
    tipping_throughput,
)
from flopwise.cost.intervals import ErrorBand


def band(low: float, median: float, high: float) -> ErrorBand:
    return ErrorBand(name="x", low=low, median=median, high=high, rows=9, source="s", date="2026-01-01")


def total_cost(upfront: float, each: float, capacity: float, volume: float, fixed: float = 0.0) -> TotalCost:
    """A year of `volume` a month on machines of `each` USD that carry `capacity`."""
    return TotalCost(
        upfront, fixed, lambda f: 12 * each * max(1, math.ceil(volume / (capacity * f))), band(0.8, 1.0, 1.3),
        band(0.6, 0.9, 1.2),
    )  # fmt: skip


def test_the_chance_is_the_share_of_drawn_cases() -> None:
    cost, chance = total_cost(30_000.0, 100.0, 10.0, 400.0, fixed=1000.0), random.Random(7)  # noqa: S311 - a simulation
    assert cost.training_band is not None
    for other in (60_000.0, 80_000.0, 95_000.0, 120_000.0):
        drawn = 0
        for _ in range(20_000):
            longer = 1 / cost.training_band.quantile(chance.random())
            served = cost.served(cost.throughput_band.quantile(chance.random()))
            drawn += cost.upfront * longer + cost.fixed + served <= other
        assert chance_at_most(cost, other) == pytest.approx(drawn / 20_000, abs=0.03)


@settings(deadline=None, max_examples=100)
@given(
    upfront=st.floats(0, 1e5), each=st.floats(1, 1e3), capacity=st.floats(1, 1e3), volume=st.floats(1, 1e4),
    other=st.floats(1, 1e6),
)  # fmt: skip
def test_beyond_the_tipping_throughput_the_other_alternative_is_cheaper(
    upfront: float, each: float, capacity: float, volume: float, other: float
) -> None:
    cost = total_cost(upfront, each, capacity, volume)
    turn = tipping_throughput(cost, other)
    if turn is None:
        assert cost.total(1000.0) > other or cost.total(0.001) <= other
    else:
        assert cost.total(turn) <= other
        assert cost.total(turn * (1 - 1e-5)) > other
    price = tipping_machine_price(cost, other)
    assert price is not None
    assert price * (cost.upfront + cost.served(1.0)) == pytest.approx(other)


def test_upkeep_alone_may_cost_more_than_the_other_way() -> None:
    assert tipping_machine_price(total_cost(0.0, 1.0, 1.0, 1.0, fixed=500.0), 400.0) is None


def test_the_nearest_input_comes_first_and_what_turns_nothing_last() -> None:
    def turn(name: str, at: float | None) -> TippingPoint:
        return TippingPoint(input=name, unit="times", now=2.0, at=at, then="x")

    given_ = [turn("never", None), turn("tenth", 0.2), turn("thrice", 6.0), turn("half", 1.0), turn("twice", 4.5)]
    assert [t.input for t in nearest_first(given_)] == ["half", "twice", "thrice", "tenth", "never"]
