"""What users and arrivals mean to `serve` and `simulate`: how many requests, when they begin, how long they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flopwise import serve, simulate


def test_both_name_what_users_do() -> None:
    """Ten requests each, begun by all at once; and so many requests as are given."""
    how: dict[str, Any] = {"gpu": "h100", "input_tokens": 512, "output_tokens": 128}
    for count, each in ((None, "10 requests each"), (100, "100 requests in turn")):
        served = serve("Llama-3.1-8B", concurrency=16, requests=count, **how).assumptions
        simulated = simulate("Llama-3.1-8B", users=16, requests=count, **how).assumptions
        for notes in (served, simulated):
            assert any("all 16 users begin at the same instant" in note and each in note for note in notes)
            assert any("vary by up to a ninth" in note for note in notes)
    equal = how | {"input_tokens": "512:512", "output_tokens": "128:128"}
    exact = simulate("Llama-3.1-8B", users=16, **equal)
    assert not any("vary by up to a ninth" in note for note in exact.assumptions)
    assert np.ptp(exact.simulated.trace.prompt) == 0
    drawn = simulate("Llama-3.1-8B", users=16, **how).simulated.trace
    assert (drawn.prompt.min(), drawn.prompt.max()) == (455, 569)


def test_one_user_asks_for_what_is_given() -> None:
    """Nobody is in step with him."""
    run = simulate("Llama-3.1-8B", gpu="h100", users=1, input_tokens=512, output_tokens=128)
    assert run.summary.requests == 10
    assert np.ptp(run.simulated.trace.prompt) == 0
    assert not any("users begin" in note for note in run.assumptions)


def test_lengths_vary_as_far_as_the_context_goes() -> None:
    """GPT-2 takes 1,024 tokens: of 900 and 100 no request is longer."""
    run = simulate("gpt2", gpu="h100", users=8, input_tokens=900, output_tokens=100)
    whole = run.simulated.trace.prompt + run.simulated.trace.output
    assert 1000 < whole.max() <= 1024
    assert run.summary.dropped == 0


def test_requests_that_are_too_long_are_said_to_be_left_out() -> None:
    how: dict[str, Any] = {"gpu": "h100", "output_tokens": 100, "input_tokens": "lognormal:30000:cv=2"}
    for users, rate in ((8, None), (None, 0.1)):
        found = serve("Llama-3.1-8B", concurrency=users, rate=rate, **how)
        assert found.keeps_up
        assert any("longer than the whole cache" in note for note in found.assumptions)


def test_replicas_behind_a_balancer_see_the_same_in_both() -> None:
    """Serve knew one replica under its share of arrivals at random: TPOT at p99 was half as long again."""
    how: dict[str, Any] = {"gpu": "h100", "input_tokens": 1024, "output_tokens": 128}
    most = serve("Llama-3.1-8B", **how).estimate.requests_per_s
    for replicas, busy in ((2, 0.6), (8, 0.85), (40, 0.6)):
        rate = replicas * busy * most
        found = serve("Llama-3.1-8B", gpus=replicas, rate=rate, **how)
        run = simulate("Llama-3.1-8B", replicas=replicas, rate=rate, requests=300_000, seed=9, **how).simulated
        assert found.under_load is not None
        for column in ("ttft_s", "tpot_s"):
            seen = np.asarray(getattr(run, column))[75_000:-75_000]
            for p in ("p50", "p95", "p99"):
                expected = float(np.percentile(seen, float(p[1:])))
                assert getattr(found.under_load, column)[p] == pytest.approx(expected, rel=0.1), (replicas, column, p)
        assert any("least loaded replica" in note for note in found.assumptions)


def test_a_pipeline_has_room_for_what_its_whole_cache_holds() -> None:
    """Each micro-batch had a share of the cache: one request of 32,000 tokens was too long for half of 38,584."""
    how: dict[str, Any] = {"gpu": "a100-80gb", "pp": 2, "input_tokens": 30_000, "output_tokens": 2_000}
    run = simulate("Llama-3.3-70B", users=1, **how).summary
    assert run.dropped == 0
    found = serve("Llama-3.3-70B", concurrency=1, closed_form=True, **how).estimate
    assert run.e2e_s.p50 == pytest.approx(found.e2e_s, rel=0.1)
