"""The cache of answers hits as often as theory says, and costs what it holds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flopwise import serve
from flopwise.errors import SpecError
from flopwise.serving.sim.cost import StepCost
from flopwise.serving.sim.engine import ReplicaLimits
from flopwise.serving.sim.request import ResponseCache, hit_rate, made_by, merge_hits, with_hits
from flopwise.serving.sim.result import at_shares
from flopwise.serving.sim.simulate import simulate
from flopwise.serving.sim.trace import PS, trace

ARRIVALS = np.arange(60_000.0)


def answered(cache: ResponseCache, arrival_s: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.bool_]:
    return made_by(cache, arrival_s, rng) >= 0


def rng() -> np.random.Generator:
    return np.random.default_rng(11)


@settings(max_examples=15)
@given(st.integers(20, 2000), st.floats(0.3, 1.5), st.floats(0.3, 1.0))
def test_hits_are_those_of_the_characteristic_time(entries: int, skew: float, repeated: float) -> None:
    cache = ResponseCache(entries=entries, prompts=3000, skew=skew, repeated=repeated)
    hits = answered(cache, ARRIVALS, rng())
    assert hits[20_000:].mean() == pytest.approx(hit_rate(cache), abs=0.015)


def test_a_cache_that_holds_all_prompts_misses_each_once() -> None:
    cache = ResponseCache(entries=100, prompts=100, skew=0.0)
    assert np.count_nonzero(~answered(cache, ARRIVALS, rng())) == 100
    assert hit_rate(cache) == 1.0


def test_nothing_repeats_nothing_hits() -> None:
    cache = ResponseCache(entries=100, prompts=100, repeated=0.0)
    assert not answered(cache, ARRIVALS, rng()).any()
    assert hit_rate(cache) == 0.0


def test_answers_expire() -> None:
    cache = ResponseCache(entries=10, prompts=1, ttl_s=9.5)
    hits = answered(cache, ARRIVALS[:100], rng())
    assert np.flatnonzero(~hits).tolist() == list(range(0, 100, 10))


def test_memory_is_paid_by_the_hour() -> None:
    cache = ResponseCache(entries=1_000_000, prompts=10, usd_per_gb_hour=0.02)
    assert cache.usd(500, 720 * 3600) == pytest.approx(2.5 * 0.02 * 720)


def steps() -> StepCost:
    """10 ms a step."""
    none = np.zeros(9, dtype=np.int64)
    tokens = np.full(65, PS // 100) * (np.arange(65) > 0)
    return StepCost(tokens_ps=tokens, decode_ps=none, cached_ps=none, window_ps=none)


def test_hits_need_no_replica_and_are_counted_in_what_users_see() -> None:
    """By hand: 10 ms a token; the second asks while the first is computed, the third after, the fourth is another."""
    asked = trace([0.0, 0.03, 1.0, 2.0], [5, 6, 7, 8], [10, 20, 30, 4])
    makers = np.array([-1, 0, 0, -1])
    whole = with_hits(asked, makers)
    assert (whole.prompt.tolist(), whole.output.tolist()) == ([5, 5, 5, 8], [10, 10, 10, 4])
    run = simulate(whole.take(makers < 0), steps(), ReplicaLimits(max_batch=8, step_tokens=64))
    found = merge_hits(run, whole, makers, 0.005)
    assert found.e2e_s == pytest.approx([0.1, 0.075, 0.005, 0.04])
    assert found.ttft_s == pytest.approx([0.01, 0.005, 0.005, 0.01])
    told = found.summary()
    assert (told.completed, told.dropped) == (4, 0)
    assert told.output_tokens_per_s * told.duration_s == pytest.approx(34)
    assert told.total_tokens_per_s * told.duration_s == pytest.approx(34 + 23)
    assert found.itl.sum() == 9 + 3 + 9
    assert told.mean_running * told.duration_s == pytest.approx(0.14)


def test_who_asks_what_was_dropped_is_dropped_too() -> None:
    asked = with_hits(trace([0.0, 1.0, 2.0], [500, 5, 5], [9, 9, 9]), np.array([-1, 0, -1]))
    makers = np.array([-1, 0, -1])
    run = simulate(asked.take(makers < 0), steps(), ReplicaLimits(max_batch=8, step_tokens=64, max_tokens=100))
    told = merge_hits(run, asked, makers, 0.005).summary()
    assert (told.completed, told.dropped) == (1, 2)


@pytest.mark.parametrize("wrong", [{"entries": 0}, {"prompts": 0}, {"repeated": 1.5}, {"ttl_s": -1}, {"skew": -1}])
def test_what_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SpecError, match="allowed"):
        ResponseCache(**({"entries": 5, "prompts": 5} | wrong))  # type: ignore[arg-type]  # figures of either kind


def test_a_cache_that_answers_nearly_all_has_its_own_time_at_every_percentile() -> None:
    """Zipf's exponent 2: the first 100 of 1,000 prompts are some 99.5 % of requests (1 - 0.0094 / 1.6439)."""
    found = serve("Llama-3.1-8B", gpu="h100", rate=8, response_cache=100, distinct=1000, skew=2)
    assert found.under_load is not None
    assert found.cached is not None
    assert found.cached.computed_frac < 0.02
    assert found.under_load.ttft_s["p95"] == found.cached.cache.hit_s


@pytest.mark.parametrize("count", [1, 2, 3, 100, 999])
def test_percentiles_are_those_of_numpy(count: int) -> None:
    values = rng().exponential(size=count)
    shares = [0.0, 33.3333, 50.0, 90.0, 95.0, 99.0, 99.999, 100.0]
    assert at_shares(values, shares) == np.percentile(values, shares).tolist()
    assert at_shares(values, []) == []
    assert np.isnan(at_shares(values[:0], shares)).all()
