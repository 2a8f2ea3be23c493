"""Uneven routing against sampled routing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwise.ops.routing import (
    balanced_rank_load,
    busiest_rank,
    dropped_frac,
    expert_shares,
    fullest_copies,
    hottest_rank_load,
    touched_frac,
    usual_skew,
    zipf_exponent,
)


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


@pytest.mark.parametrize(("experts", "top_k", "ep"), [(256, 8, 32), (128, 8, 4), (16, 1, 4), (64, 6, 8)])
@pytest.mark.parametrize("tokens", [8, 64, 1024])
def test_the_busiest_rank_is_that_of_tokens_that_choose_at_random(
    experts: int, top_k: int, ep: int, tokens: int
) -> None:
    rng = np.random.default_rng(11)
    most_copies, most_touched = [], []
    for _ in range(300):
        chosen = rng.random((tokens, experts)).argpartition(top_k, axis=1)[:, :top_k]
        counts = np.bincount(chosen.ravel(), minlength=experts).reshape(ep, -1)
        most_copies.append(counts.sum(axis=1).max())
        most_touched.append((counts > 0).sum(axis=1).max())
    copies, touched = busiest_rank(experts, top_k, float(tokens), ep)
    near = 0.12 if tokens * top_k < 4 * ep else 0.08  # few are further from normal numbers
    assert float(copies) == pytest.approx(np.mean(most_copies), rel=near)
    assert float(touched) == pytest.approx(np.mean(most_touched), rel=near)


def test_ranks_of_deepseek_r1_as_tensorrt_llm_counted_them() -> None:
    """Tech blog 4, table 1: 4,096 tokens, EP 32, 1,024 copies a rank. The hottest expert has 11.9 times the mean and
    the hottest rank 2.56 times; with 32 redundant experts the hottest rank 1.11 times, on 36 ranks 1.115."""
    hottest = 1 + 10.948
    alone, _ = busiest_rank(256, 8, 4096.0, 32, hottest)
    assert float(alone) / 1024 == pytest.approx(2.564, rel=0.1)
    for ep, measured in ((32, 1.109), (36, 1.115)):
        copied, _ = busiest_rank(256, 8, 4096.0, ep, hottest, redundant=32)
        assert float(copied) * ep / (4096 * 8) == pytest.approx(measured, rel=0.03)
    assert balanced_rank_load(256, 1.0, 32, 0) == pytest.approx(1.0)
    assert balanced_rank_load(256, hottest, 32, 32) < 0.5 * float(hottest_rank_load(256, hottest, 32))


def test_experts_that_nobody_balances_load_ranks_as_measured() -> None:
    """The most popular of 256 has 11.9 times the mean: 4.65 % of the tokens. Its rank of four has a quarter of the 255
    others but one, 63 of them, 63 / 255 x 95.35 % = 23.56 %, 28.2 % in all: 1.128 times the mean. Half as many experts
    are taken as pairs of them, and eight as groups of 32: a number of ranks has the same fullest one.
    """
    assert usual_skew(256, 8) == pytest.approx(11.9)
    assert float(hottest_rank_load(256, usual_skew(256, 8), 4)) == pytest.approx(1.128, rel=1e-3)
    for experts in (512, 384, 256, 128, 64, 32):
        for ranks, load in ((4, 1.128), (8, 1.300), (32, 2.330)):
            assert float(hottest_rank_load(experts, usual_skew(experts, 1), ranks)) == pytest.approx(load, rel=0.06)
    assert usual_skew(8, 2) == pytest.approx(1.300, rel=1e-3)
    assert usual_skew(8, 8) == 1.0
    assert usual_skew(4, 3) == pytest.approx(1.128, rel=1e-3)
    assert usual_skew(32, 16) == 2.0  # no expert has a token twice


def test_experts_that_a_loss_alone_evened_out_are_less_even() -> None:
    """Of 256 experts the shares by the power 0.8 of the rank, 1, 0.5743, 0.4152 ..., are 10.726 times the first in all:
    it has 9.323 % of the tokens. Its rank of four has 63 of 255 others, 0.2471 x 90.68 % = 22.40 %, 31.73 % in all:
    1.269 times the mean; its rank of 32 has 7, 2.489 %: 3.780 times, where DeepSeek-R1's has 2.33 times.

    Mixtral's eight experts are taken as groups of 32: 8 (9.323 % + 31 / 255 x 90.68 %) = 1.628 times the mean.

    Counted in Qwen3.6-35B-A3B: 1.35 times the mean of four ranks, in steps of hundreds to thousands of random tokens.
    """
    total = sum(rank**-0.8 for rank in range(1, 257))
    assert total == pytest.approx(10.726, rel=1e-4)
    assert usual_skew(256, 8, steered=False) == pytest.approx(256 / total)
    for ranks, load in ((4, 1.269), (32, 3.780)):
        for experts in (256, 128, 64):
            skew = usual_skew(experts, 1, steered=False)
            assert float(hottest_rank_load(experts, skew, ranks)) == pytest.approx(load, rel=0.01)
    assert usual_skew(8, 2, steered=False) == pytest.approx(1.628, rel=1e-3)
    assert usual_skew(4, 4, steered=False) == 1.0  # no expert has a token twice
    counted = float(fullest_copies(256, 8, 1000, 4, usual_skew(256, 8, steered=False))) / (1000 * 8 / 4)
    assert counted == pytest.approx(1.35, rel=0.06)
    assert zipf_exponent(256, usual_skew(256, 8, steered=False)) == pytest.approx(0.8)
    assert zipf_exponent(256, usual_skew(256, 8)) == pytest.approx(0.594, abs=1e-3)


@pytest.mark.parametrize(("experts", "top_k"), [(256, 8), (128, 4), (384, 8), (32, 4)])
@pytest.mark.parametrize("steered", [True, False])
@pytest.mark.parametrize("tokens", [1, 4, 32, 128, 1024])
def test_popular_experts_leave_others_without_a_token(experts: int, top_k: int, tokens: int, *, steered: bool) -> None:
    """Sampled: each token takes its k experts without repetition, by their popularity (Gumbel's largest of keys)."""
    skew, rng = usual_skew(experts, top_k, steered=steered), np.random.default_rng(5)
    keys = np.log(expert_shares(experts, skew)) + rng.gumbel(size=(max(4096 // tokens, 4), tokens, experts))
    chosen = keys.argpartition(experts - top_k, axis=2)[:, :, -top_k:].reshape(len(keys), -1)
    counted = np.mean([len(set(each)) for each in chosen.tolist()]) / experts
    found = float(touched_frac(experts, top_k, float(tokens), skew))
    assert found == pytest.approx(counted, rel=0.04 if steered else 0.05)
    even = float(touched_frac(experts, top_k, float(tokens)))
    assert even == pytest.approx(1 - (1 - top_k / experts) ** tokens)
    assert found <= even * (1 + 1e-9)


def test_each_octave_of_experts_is_as_popular_as_its_mean() -> None:
    """Four experts by 1 / rank: 12, 6, 4 and 3 of 25 tokens, a skew of 1.92; the last two are taken as 3.5 of 25."""
    chances = (12 / 25, 6 / 25, 3.5 / 25, 3.5 / 25)
    for tokens in (1, 3, 10):
        expected = sum(1 - (1 - p) ** tokens for p in chances) / 4
        assert float(touched_frac(4, 1, float(tokens), 48 / 25)) == pytest.approx(expected, rel=1e-6)
    assert np.allclose(touched_frac(4, 1, np.array([1.0, 1.0]), 48 / 25), 0.25)


def test_one_rank_has_everything() -> None:
    copies, touched = busiest_rank(64, 6, 100.0, 1)
    assert float(copies) == pytest.approx(600)
    assert float(touched) == pytest.approx(64 * (1 - (1 - 6 / 64) ** 100))
