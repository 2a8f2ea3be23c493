"""Uneven routing against sampled routing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwise.ops.routing import dropped_frac, expert_shares, hottest_rank_load


@given(experts=st.sampled_from([2, 8, 60, 128, 256]), skew=st.floats(1.0, 2.0))
def test_shares_have_the_skew_and_sum_to_one(experts: int, skew: float) -> None:
    shares = expert_shares(experts, skew)
    assert shares.sum() == pytest.approx(1)
    assert shares.max() * experts == pytest.approx(skew, rel=1e-6)
    assert (np.diff(shares) <= 1e-15).all()


@pytest.mark.parametrize("experts", [8, 64, 256])
@pytest.mark.parametrize("skew", [1.0, 1.3, 2.0, 4.0])
def test_the_fullest_rank_is_that_of_experts_laid_out_at_random(experts: int, skew: float) -> None:
    rng = np.random.default_rng(7)
    shares = expert_shares(experts, skew)
    for ep in (1, 2, 4, 8, experts):
        groups = rng.permuted(np.tile(shares, (400, 1)), axis=1).reshape(400, ep, -1).sum(axis=2)
        sampled = groups.max(axis=1).mean() * ep
        assert float(hottest_rank_load(experts, skew, ep)) == pytest.approx(sampled, rel=0.04)


@pytest.mark.parametrize(("experts", "skew", "capacity"), [
    (8, 1.0, 1.0), (8, 1.0, 1.25), (64, 1.0, 1.0), (64, 1.5, 1.25), (128, 3.0, 1.25), (128, 2.0, 0.5), (64, 4.0, 2.0),
])  # fmt: skip
@pytest.mark.parametrize("routed", [2048, 65536])
def test_what_capacity_turns_away_is_what_sampled_tokens_lose(
    experts: int, skew: float, capacity: float, routed: int
) -> None:
    rng = np.random.default_rng(3)
    sent = rng.multinomial(routed, expert_shares(experts, skew), size=400)
    lost = np.maximum(sent - capacity * routed / experts, 0).sum(axis=1).mean() / routed
    assert float(dropped_frac(experts, skew, capacity, routed)) == pytest.approx(lost, rel=0.05, abs=2e-4)


@given(skew=st.floats(1.0, 8.0), ep=st.sampled_from([1, 2, 4, 8, 16, 32, 64]))
def test_the_fullest_rank_lies_between_the_mean_and_the_fullest_expert(skew: float, ep: int) -> None:
    load = float(hottest_rank_load(64, skew, ep))
    assert 1 - 1e-9 <= load <= skew + 1e-9
    assert load <= ep + 1e-9


def test_columns_are_the_scalars() -> None:
    ep = np.array([1, 4, 64])
    assert np.allclose(hottest_rank_load(64, 2.5, ep), [float(hottest_rank_load(64, 2.5, int(e))) for e in ep])
    sent = np.array([512, 4096])
    assert np.allclose(dropped_frac(64, 2.5, 1.25, sent), [dropped_frac(64, 2.5, 1.25, int(s)) for s in sent])
