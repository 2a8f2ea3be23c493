"""The front end: requests are handled one after another, and tokens of a step handed out one after another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from reference import REFERENCE

from flopwise.serving.sim.cost import StepCost
from flopwise.serving.sim.engine import ReplicaLimits
from flopwise.serving.sim.fleet import FastFleet
from flopwise.serving.sim.result import SimulatedRun
from flopwise.serving.sim.simulate import simulate
from flopwise.serving.sim.trace import trace
from flopwise.serving.steady import front_end_s
from named import FACTS

MS, US = 10**9, 10**6


def flat(step_ps: int, **front: Any) -> StepCost:
    """Steps of one length, whatever they carry."""
    none = np.zeros(65, dtype=np.int64)
    tokens = np.full(8193, step_ps, dtype=np.int64)
    tokens[0] = 0
    return StepCost(tokens_ps=tokens, decode_ps=none, cached_ps=none, window_ps=none, **front)


def run(cost: StepCost, arrivals: Any, prompts: Any, outputs: Any, **how: Any) -> SimulatedRun:
    """On one replica, in both simulators."""
    asked, limits = trace(arrivals, prompts, outputs), ReplicaLimits(max_batch=64)
    fast, slow = (simulate(asked, cost, limits, engine=e, **how) for e in (FastFleet, REFERENCE))
    for expected, got in zip(slow.outcome, fast.outcome, strict=True):
        np.testing.assert_array_equal(got, expected)
    return fast


@pytest.mark.parametrize("engine", [FastFleet, REFERENCE])
def test_a_request_waits_for_those_before_it_in_the_front_end(engine: Any) -> None:
    """10 ms alone, of which 4 hold up the next one; 10 us a token. The scheduler sees the first of three that come
    together after 10 + 1 ms, the next when the first has let go (4 ms later) and its 200 tokens are read (2 ms)."""
    cost = flat(US, request_ps=10 * MS, front_ps=4 * MS, front_token_ps=10 * US)
    asked = trace([0.0, 0.0, 0.0, 1.0], [100, 200, 300, 100], [1, 1, 1, 1])
    found = simulate(asked, cost, ReplicaLimits(max_batch=64), engine=engine)
    assert found.outcome.start_ps.tolist() == [11 * MS, 17 * MS, 24 * MS, 1011 * MS]
    assert found.wait_s == pytest.approx([0.0, 0.005, 0.011, 0.0])


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_its_queue_is_that_of_one_server_with_constant_jobs(load: float) -> None:
    """Pollaczek and Khinchine: load x 2 ms / (2 (1 - load)); the closed form says the same."""
    count = 100_000
    arrivals = np.cumsum(np.random.default_rng(3).exponential(0.002 / load, count))
    cost = flat(1, request_ps=3 * MS, front_ps=2 * MS)
    asked = trace(arrivals, np.full(count, 10), np.ones(count, dtype=np.int64))
    found = simulate(asked, cost, ReplicaLimits(max_batch=64))
    expected = load * 0.002 / (2 * (1 - load))
    assert float(np.mean(found.wait_s)) == pytest.approx(expected, rel=0.05)
    engine = replace(FACTS.engine("vllm"), front_s=0.002, front_token_s=0.0)
    assert float(front_end_s(engine, 10, load / 0.002, 0.0)) == pytest.approx(expected, rel=1e-12)


def test_tokens_of_a_step_go_out_one_after_another() -> None:
    """Four prompts in one step of 10 ms: clients have all four first tokens after three more of a millisecond."""
    cost = flat(10 * MS, stream_ps=MS)
    found = run(cost, [0.0] * 4, [5] * 4, [3] * 4)
    assert found.outcome.first_ps.tolist() == [13 * MS] * 4
    assert found.outcome.finish_ps.tolist() == [33 * MS] * 4
    alone = run(cost, [0.0], [5], [3])
    assert (alone.outcome.first_ps[0], alone.outcome.finish_ps[0]) == (10 * MS, 30 * MS)


def test_a_front_end_slower_than_the_steps_sets_the_pace() -> None:
    """Four tokens take 16 ms, a step 10: of 21 steps, the last begins to go out after 20 x 16 ms more."""
    found = run(flat(10 * MS, stream_ps=4 * MS), [0.0] * 4, [5] * 4, [21] * 4)
    assert found.outcome.first_ps.tolist() == [22 * MS] * 4
    assert found.outcome.finish_ps.tolist() == [(22 + 20 * 16) * MS] * 4
    assert found.tpot_s == pytest.approx(np.full(4, 0.016))


def test_users_ask_no_faster_than_the_front_end_handles() -> None:
    """64 users, 5 ms a request, next to nothing in the engine: 200 requests a second."""
    count = 2000
    asked = [np.zeros(count), np.full(count, 5), np.ones(count, dtype=np.int64)]
    found = run(flat(1, request_ps=5 * MS, front_ps=5 * MS), *asked, users=64)
    assert found.summary().requests_per_s == pytest.approx(200, rel=0.01)
    assert float(np.median(found.ttft_s)) == pytest.approx(64 * 0.005, rel=0.01)


def test_prompts_wait_in_the_front_end_of_their_own_pool() -> None:
    """Two at once for a pool of one: the second is seen 4 ms later; answers are decoded without being handled again."""
    cost = flat(10 * MS, request_ps=10 * MS, front_ps=4 * MS)
    found = run(cost, [0.0, 0.0], [5, 5], [2, 2], prefill_replicas=1)
    assert found.outcome.start_ps.tolist() == [10 * MS, 20 * MS]
    assert found.outcome.finish_ps.tolist() == [30 * MS, 40 * MS]
