"""Bytes kept and sent, by the tiers of data/storage_prices.csv."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwise.cost.money import idle_note, tiered_usd, volume_usd
from flopwise.facts.catalog import load_facts

FACTS = load_facts()


def test_traffic_is_billed_by_tiers() -> None:
    gib = 2**30
    found = volume_usd("aws", "egress", 20_000 * gib, FACTS)
    assert found is not None
    assert found[0] == pytest.approx((10_240 - 100) * 0.09 + (20_000 - 10_240) * 0.085)
    free = volume_usd("aws", "egress", 50 * gib, FACTS)
    assert free is not None
    assert free[0] == 0
    stored = volume_usd("aws", "storage", 1024 * gib, FACTS)
    assert stored is not None
    assert stored[0] == pytest.approx(1024 * 0.023)
    assert volume_usd("vast", "egress", 1e12, FACTS) is None


@settings(deadline=None)
@given(a=st.floats(0, 1e16), b=st.floats(0, 1e16))
def test_more_bytes_never_cost_less(a: float, b: float) -> None:
    tiers = ((0.0, 0.0), (1e11, 9e-11), (1e13, 8.5e-11))
    assert tiered_usd(a + b, tiers) >= tiered_usd(a, tiers) * (1 - 1e-12)


def test_what_stands_idle_is_that_of_all_replicas() -> None:
    """Two of three devices each on a machine of eight: ten of sixteen."""
    assert idle_note(8.0, 3, 2) == (
        "machines are rented whole: 10 of the 16 accelerators that are paid for stand idle",
    )
    assert idle_note(8 / 3, 1, 3) == (
        "machines are rented whole: 5 of the 8 accelerators that are paid for stand idle",
    )
    assert idle_note(4.0, 4) == idle_note(None, 4) == ()
