"""The simulator against queueing theory and conservation."""

from dataclasses import replace

import numpy as np
import pytest
import reference
from numpy.typing import NDArray

from flopwise.serving.sim.cost import StepCost
from flopwise.serving.sim.engine import ReplicaLimits
from flopwise.serving.sim.fleet import FastFleet
from flopwise.serving.sim.result import BINS, SimulatedRun, Slo, bin_edges_ps
from flopwise.serving.sim.setup import Transfer
from flopwise.serving.sim.simulate import simulate
from flopwise.serving.sim.trace import PS, Column, trace

ENGINE = FastFleet  # which equals the reference: see test_sim_core.py
SIZE = 40_000
US = 10**6
Ints = NDArray[np.int64]


def linear(most: int, batch: int, *, ps_per_token: int = US) -> StepCost:
    """A step that takes a fixed time a token and nothing else."""
    none: Column = np.zeros(batch + 1, dtype=np.int64)
    return StepCost(
        tokens_ps=np.arange(most + 1, dtype=np.int64) * ps_per_token, decode_ps=none, cached_ps=none, window_ps=none
    )


def poisson(rate: float, count: int, seed: int) -> NDArray[np.float64]:
    return np.asarray(np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count)))


def one_server(prompt: Ints, load: float) -> SimulatedRun:
    """Batch 1, answers of one token: each prompt is a job of a microsecond a token."""
    rate = load / (float(prompt.mean()) * 1e-6)
    asked = trace(poisson(rate, len(prompt), 1), prompt, np.ones_like(prompt))
    most = int(prompt.max())
    return simulate(asked, linear(most, 1), ReplicaLimits(max_batch=1, step_tokens=most), engine=ENGINE)


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_one_server_with_constant_jobs_waits_as_pollaczek_and_khinchine_say(load: float) -> None:
    run = one_server(np.full(5 * SIZE, 1000), load)
    assert np.mean(run.wait_s) == pytest.approx(load * 1e-3 / (2 * (1 - load)), rel=0.06)


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_one_server_with_exponential_jobs_waits_as_m_m_1(load: float) -> None:
    prompt = np.maximum(np.random.default_rng(2).exponential(1000, 8 * SIZE), 1).astype(np.int64)
    run = one_server(prompt, load)
    mean = float(prompt.mean()) * 1e-6
    assert np.mean(run.wait_s) == pytest.approx(load / (1 - load) * mean, rel=0.08)
    tail = load * np.exp(-(1 - load) * 3.0)  # P(wait > 3 jobs)
    assert np.mean(run.wait_s > 3 * mean) == pytest.approx(tail, rel=0.15)


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_one_waits_longer_than_99_of_100_as_m_m_1(load: float) -> None:
    """P(wait > t) = load exp(-(1 - load) t / job); 20 batches show that chance is below what is allowed."""
    prompt = np.maximum(np.random.default_rng(3).exponential(1000, 3_000_000), 1).astype(np.int64)
    run = one_server(prompt, load)
    expected = float(np.log(load / 0.01) / (1 - load) * prompt.mean()) * 1e-6
    found = np.percentile(run.wait_s.reshape(20, -1), 99, axis=1)
    assert found.std(ddof=1) / 20**0.5 < 0.015 * expected
    assert found.mean() == pytest.approx(expected, rel=0.03)


def test_classes_of_requests_wait_as_cobham_says() -> None:
    """M/M/1 without interruption: W_k = load job / ((1 - load of the classes before k) (1 - load up to and with k)).

    Source: Cobham 1954, "Priority assignment in waiting line problems". Classes of 20, 30 and 50 % at a load of 0.8.
    """
    load, shares, count = 0.8, np.array([0.2, 0.3, 0.5]), 3_000_000
    prompt = np.maximum(np.random.default_rng(4).exponential(1000, count), 1).astype(np.int64)
    job_s = float(prompt.mean()) * 1e-6
    priority = np.random.default_rng(5).choice(3, count, p=shares)
    asked = trace(poisson(load / job_s, count, 1), prompt, np.ones_like(prompt), priority=priority)
    limits = ReplicaLimits(max_batch=1, step_tokens=int(prompt.max()))
    run = simulate(asked, linear(int(prompt.max()), 1), limits, policy="priority", engine=ENGINE)
    upto = np.cumsum(load * shares)
    before = upto - load * shares
    for one in range(3):
        expected = load * job_s / ((1 - before[one]) * (1 - upto[one]))
        assert np.mean(run.wait_s[priority == one]) == pytest.approx(expected, rel=0.03)
    classes = run.by_priority()
    assert [round(c.frac, 2) for c in classes.values()] == shares.tolist()
    assert classes[0].ttft_s.p95 < classes[1].ttft_s.p95 < classes[2].ttft_s.p95


@pytest.mark.parametrize("kind", ["constant", "geometric", "two sizes"])
def test_steps_that_grow_with_the_batch_share_the_processor(kind: str) -> None:
    """M/G/1-PS: the mean response is that of the mean job, whatever the distribution of the jobs."""
    rng, load = np.random.default_rng(3), 0.5
    outputs = {
        "constant": np.full(SIZE, 100),
        "geometric": rng.geometric(0.01, SIZE),
        "two sizes": rng.choice([20, 580], SIZE, p=[6 / 7, 1 / 7]),
    }[kind]
    asked = trace(poisson(load / (outputs.mean() * 1e-6), SIZE, 4), np.ones_like(outputs), outputs)
    run = simulate(asked, linear(2000, 1000), ReplicaLimits(max_batch=1000, step_tokens=2000), engine=ENGINE)
    assert np.mean(run.e2e_s) == pytest.approx(outputs.mean() * 1e-6 / (1 - load), rel=0.09)


def test_littles_law_and_conservation() -> None:
    rng = np.random.default_rng(5)
    prompt, output = rng.integers(1, 200, 2000), rng.integers(1, 50, 2000)
    asked = trace(poisson(250.0, 2000, 6), prompt, output)
    limits = ReplicaLimits(max_batch=8, step_tokens=64, num_blocks=14, block_tokens=16)
    run = simulate(asked, linear(64, 8, ps_per_token=20 * US), limits, engine=ENGINE, samples=4000)
    facts = run.summary()
    assert facts.completed + facts.dropped + facts.live == facts.requests == 2000
    assert facts.dropped == int(np.count_nonzero(-(-(prompt + output - 1) // 16) > 14)) > 0
    assert facts.live == 0
    assert facts.preemptions > 0
    done = run.reasons == 0
    assert run.totals.output_tokens.sum() == output[done].sum()
    assert run.totals.prompt_tokens.sum() >= prompt[done].sum()
    assert run.itl.sum() == (output[done] - 1).sum()
    there = run.timeline.time_s < run.end_ps / PS
    assert np.mean(run.timeline.running[there]) == pytest.approx(facts.mean_running, rel=0.1)
    assert np.mean(run.timeline.queue[there]) == pytest.approx(facts.mean_queue, rel=0.1)
    ordered = (run.outcome.arrival_ps <= run.outcome.start_ps) & (run.outcome.start_ps < run.outcome.first_ps)
    assert np.all(ordered[done])
    assert np.all((run.outcome.first_ps <= run.outcome.finish_ps)[done])


def test_gaps_between_tokens_add_up_to_the_answers() -> None:
    """The histogram's mean is the mean gap, to the width of its bins."""
    rng = np.random.default_rng(7)
    asked = trace(poisson(500.0, 500, 8), rng.integers(1, 100, 500), rng.integers(2, 60, 500))
    limits = ReplicaLimits(max_batch=16, step_tokens=64, mix=False)
    run = simulate(asked, linear(64, 16, ps_per_token=5 * US), limits, engine=ENGINE)
    edges = bin_edges_ps()
    middle = (edges[:-1] + edges[1:] - 1) / 2
    total = float(np.sum(run.outcome.finish_ps - run.outcome.first_ps))
    assert float(np.sum(run.itl * middle)) == pytest.approx(total, rel=0.004)


def test_first_tokens_wait_for_the_launch_of_the_next_prompts() -> None:
    """Three prompts at once, each 100 us of a step of its own, and 70 us to launch one: the first token is there at 100
    and goes out at 140, when the second prompt is launched, the second's at 240, the last with its own step's end.

    Prompts that take longer (150 us) than two launches are read before the next one is launched, and kept by nobody.
    """
    limits = ReplicaLimits(max_batch=4, step_tokens=10, mix=False)
    for each_us, ready in ((10, (140, 240, 300)), (15, (150, 300, 450))):
        cost = replace(linear(40, 4, ps_per_token=each_us * US), tokens_after_launch=True, beyond_ps=(70 * US, 0))
        run = simulate(trace(np.zeros(3), np.full(3, 10), np.full(3, 5)), cost, limits, engine=ENGINE)
        assert (run.outcome.first_ps // US).tolist() == list(ready)
        at_once = replace(cost, tokens_after_launch=False)
        free = simulate(trace(np.zeros(3), np.full(3, 10), np.full(3, 5)), at_once, limits)
        assert run.outcome.finish_ps.tolist() == free.outcome.finish_ps.tolist()
        total = float(np.sum(run.outcome.finish_ps - run.outcome.first_ps))
        middle = (bin_edges_ps()[:-1] + bin_edges_ps()[1:] - 1) / 2
        assert float(np.sum(run.itl * middle)) == pytest.approx(total, rel=0.004)


def test_bins_are_narrow_and_hold_what_they_say() -> None:
    edges = bin_edges_ps()
    assert len(edges) == BINS + 1
    for gap in (0, 1, 255, 256, 257, 10**9, 12345678901, 2**62 - 1):
        place = reference.bin_of(gap)
        assert edges[place] <= gap < edges[place + 1]
    assert np.all(np.diff(edges[:-1]) > 0)
    assert np.max(np.diff(edges[256:-1]) / edges[256:-2]) < 0.008


@pytest.mark.parametrize("balancer", ["round-robin", "least-loaded", "least-tokens"])
def test_more_replicas_are_not_worse(balancer: str) -> None:
    rng = np.random.default_rng(9)
    asked = trace(poisson(300.0, 2000, 10), rng.integers(1, 300, 2000), rng.integers(1, 30, 2000))
    limits = ReplicaLimits(max_batch=8, step_tokens=128)
    means = [
        simulate(asked, linear(128, 8, ps_per_token=30 * US), limits, replicas=n, balancer=balancer, engine=ENGINE)
        .summary()
        .e2e_s.p95
        for n in (1, 2, 4)
    ]
    assert means == sorted(means, reverse=True)


def test_shortest_first_waits_least_on_average_and_least_loaded_beats_round_robin() -> None:
    rng = np.random.default_rng(11)
    asked = trace(poisson(900.0, 4000, 12), rng.integers(1, 2000, 4000), np.ones(4000))
    cost, limits = linear(2000, 1), ReplicaLimits(max_batch=1, step_tokens=2000)
    by_policy = {p: simulate(asked, cost, limits, policy=p, engine=ENGINE) for p in ("fcfs", "shortest")}
    assert np.mean(by_policy["shortest"].wait_s) < 0.8 * np.mean(by_policy["fcfs"].wait_s)
    spread = trace(asked.arrival_ps / PS / 3, asked.prompt, asked.output)
    by_balancer = [
        float(np.mean(simulate(spread, cost, limits, replicas=3, balancer=b, engine=ENGINE).wait_s))
        for b in ("round-robin", "least-loaded", "least-tokens")
    ]
    assert by_balancer[0] > by_balancer[1] > by_balancer[2]


def test_a_closed_loop_holds_its_number_and_follows_the_law_of_response_time() -> None:
    """R = N / X - Z: users over throughput, less the time they think."""
    rng = np.random.default_rng(13)
    count, users, think = 3000, 24, 0.01
    asked = trace(np.zeros(count), rng.integers(1, 50, count), rng.integers(1, 30, count))
    run = simulate(
        asked, linear(64, 8, ps_per_token=300 * US), ReplicaLimits(max_batch=8, step_tokens=64), users=users,
        think_s=think, replicas=2, engine=ENGINE,
    )  # fmt: skip
    rate = count / (run.end_ps / PS)
    assert np.mean(run.e2e_s) == pytest.approx(users / rate - think, rel=0.02)
    assert max(run.timeline.running + run.timeline.queue) <= users


def test_a_prefill_pool_hands_over_and_decoding_never_waits_for_prompts() -> None:
    rng = np.random.default_rng(14)
    asked = trace(poisson(100.0, 500, 15), rng.integers(100, 900, 500), rng.integers(2, 40, 500))
    cost, limits = linear(1024, 64, ps_per_token=12 * US), ReplicaLimits(max_batch=64, step_tokens=1024)
    path = Transfer(latency_s=1e-3, s_per_token=1e-6)
    split = simulate(asked, cost, limits, prefill_replicas=1, transfer=path, engine=ENGINE)
    mixed = simulate(asked, cost, limits, replicas=2, engine=ENGINE)
    assert split.summary().completed == 500
    assert split.totals.prompt_tokens.tolist() == [int(asked.prompt.sum()), 0]
    assert split.totals.output_tokens.tolist() == [500, int(asked.output.sum()) - 500]
    assert split.itl_s(99.9) < 2e-3 < mixed.itl_s(99.9)
    least = 1e-3 + 1e-6 * asked.prompt
    own = 12e-6 * asked.prompt
    assert np.all(split.outcome.first_ps - split.outcome.start_ps >= np.rint((own + least) * PS))
    alone = simulate(asked.take(np.array([0])), cost, limits, prefill_replicas=1, transfer=path, engine=ENGINE)
    assert alone.ttft_s[0] == pytest.approx(own[0] + least[0])  # the first token comes with the cache
    assert alone.tpot_s[0] == pytest.approx(12e-6)  # and no further one waits for it


def test_a_shared_prefix_is_computed_once() -> None:
    count = 50
    asked = trace(
        np.arange(count) * 1.0, np.full(count, 1000), np.full(count, 2), prefix=np.zeros(count),
        prefix_tokens=np.full(count, 960),
    )  # fmt: skip
    limits = ReplicaLimits(max_batch=4, step_tokens=1024, prefix_cache=True, num_blocks=200)
    run = simulate(asked, linear(1024, 4), limits, engine=ENGINE)
    assert run.totals.prompt_tokens.tolist() == [1000 + 40 * (count - 1)]
    assert run.totals.reused_tokens.tolist() == [960 * (count - 1)]
    assert run.ttft_s[0] == pytest.approx(1e-3)
    assert np.allclose(run.ttft_s[1:], 4e-5)


def test_goodput_counts_those_who_hold_every_target() -> None:
    asked = trace([0.0, 0.0, 10.0], [1000, 1000, 1000], [1, 11, 11])
    run = simulate(asked, linear(1024, 1), ReplicaLimits(max_batch=1, step_tokens=1024), engine=ENGINE)
    assert run.good(Slo(ttft_s=1.5e-3)).tolist() == [True, False, True]
    assert run.good(Slo(tpot_s=1e-7)).tolist() == [True, False, False]
    assert run.good(Slo(e2e_s=1.05e-3)).tolist() == [True, False, True]
    assert run.summary(Slo(ttft_s=1.5e-3)).goodput_frac == pytest.approx(2 / 3)
