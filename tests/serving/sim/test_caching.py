"""The cache of answers hits as often as theory says, and costs what it holds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwise.errors import SpecError
from flopwise.serving.sim.caching import ResponseCache, answered, hit_rate

ARRIVALS = np.arange(60_000.0)


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


@pytest.mark.parametrize("wrong", [{"entries": 0}, {"prompts": 0}, {"repeated": 1.5}, {"ttl_s": -1}, {"skew": -1}])
def test_what_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SpecError, match="allowed"):
        ResponseCache(**({"entries": 5, "prompts": 5} | wrong))  # type: ignore[arg-type]  # figures of either kind
