"""Quantiles of buckets by hand, what grew between two readings, and draws that keep the mean."""

from __future__ import annotations

import numpy as np
import pytest

from flopwise.records.histograms import histogram

INF = float("inf")
HELD = histogram([(0.1, 2), (0.2, 6), (0.4, 9), (INF, 10)], 2.6, 10)


def test_a_quantile_lies_between_the_ends_of_its_bucket() -> None:
    """The 5th of 10 is the 3rd of 4 in (0.1, 0.2]: 0.1 + 0.1 * 3/4; the first bucket begins at 0."""
    assert HELD.quantile(0.5) == pytest.approx((0.175, 0.1, 0.2))
    assert HELD.quantile(0.1) == pytest.approx((0.05, 0.0, 0.1))
    assert HELD.quantile(0.9) == pytest.approx((0.4, 0.2, 0.4))


def test_above_the_last_end_only_a_bound_is_known() -> None:
    assert HELD.quantile(0.99) == (0.4, 0.4, INF)


def test_nothing_observed_has_no_quantile() -> None:
    assert histogram([(0.1, 0), (INF, 0)], 0, 0).quantile(0.5) is None


def test_quantiles_of_buckets_are_those_of_prometheus() -> None:
    """Of counts without their +Inf, which alone says how many there are, none is known."""
    counts = histogram([(INF, 100.0), (0.1, 10.0), (1.0, 95.0), (0.5, 60.0)], 0.0, 0.0)
    values = [bound.value for share in (0.5, 0.99, 0.05) if (bound := counts.quantile(share)) is not None]
    assert values == pytest.approx([0.1 + 0.4 * (50 - 10) / 50, 1.0, 0.05])
    assert histogram([(0.1, 5.0)], 0.0, 0.0).quantile(0.5) is None


def test_growth_is_the_difference_and_a_fallen_counter_counts_from_zero() -> None:
    before = histogram([(0.1, 1), (0.2, 2), (0.4, 2), (INF, 2)], 0.3, 2)
    assert HELD.since(before).below == (1, 4, 7, 8)
    assert HELD.since(before).total == pytest.approx(2.3)
    assert before.since(HELD) is before


def test_draws_have_the_mean_of_the_observations_and_stay_in_order_of_size() -> None:
    drawn = HELD.draws(1000, np.random.default_rng(0))
    assert drawn.mean() == pytest.approx(0.26)
    assert (drawn > 0).all()
    assert len(np.unique(drawn)) == 1000
