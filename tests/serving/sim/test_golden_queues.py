"""Queues by hand: spot workers with lives of known length, renewal theory by quadrature, caches, autoscalers, steps."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flopwise.serving.sim.autoscale import Autoscaling, Controller, Snapshot, elastic
from flopwise.serving.sim.batch import BatchQueue, fewest_on_demand, long_run_frac, on_demand, simulate_queue
from flopwise.serving.sim.cost import StepCost
from flopwise.serving.sim.engine import ReplicaLimits
from flopwise.serving.sim.request import ResponseCache, hit_rate
from flopwise.serving.sim.simulate import simulate
from flopwise.serving.sim.trace import PS, trace

QUEUE = BatchQueue(
    requests=30_000, requests_per_s=5.0, workers=1, boot_s=300.0, interruptions_per_s=1 / 3600, replace_s=600.0,
    spot_usd_per_hour=1.0, on_demand_usd_per_hour=3.0,
)  # fmt: skip


class Means:
    """Draws that are all their mean: every life lasts an hour, every absence ten minutes."""

    @staticmethod
    def exponential(mean: float, shape: tuple[int, ...]) -> Any:
        return np.full(shape, mean)


def played(queue: BatchQueue) -> tuple[float, float, int]:
    """(seconds, USD, interruptions) of one trial."""
    done = simulate_queue(queue, Means(), trials=1)  # type: ignore[arg-type]  # all that is drawn is exponential
    return float(done.seconds[0]), float(done.usd[0]), int(done.interruptions[0])


def test_a_worker_that_is_taken_back_boots_again() -> None:
    """6,000 s of work: 300 to 3,600 s, then away until 4,200 and booted at 4,500: 2,700 s are left, to 7,200."""
    assert played(QUEUE) == pytest.approx((7200.0, (3600 + 3000) / 3600, 1))


def test_requests_in_flight_are_lost_by_half() -> None:
    """500 in flight at 5 a second are 100 s in flight; ages are even, so that 50 s of work go back to the queue."""
    assert played(replace(QUEUE, in_flight=500.0)) == pytest.approx((7250.0, (3600 + 3050) / 3600, 1))
    assert QUEUE.lost_s(np.array([30.0, 1e4])).tolist() == [0.0, 0.0]
    assert replace(QUEUE, in_flight=500.0).lost_s(np.array([30.0, 1e4])) == pytest.approx([30 - 30**2 / 200, 50.0])


def test_saved_progress_is_lost_since_the_last_save_only() -> None:
    """A save of 15 s after each 135 s takes a tenth of the time: 6,000 s of work are 6,666.7. 3,300 s are 22 whole
    rounds, with nothing lost at the end; after two lives 66.7 s are left for the third, which works from 8,700."""
    saved = replace(QUEUE, in_flight=5e4, checkpoint_every_s=135.0, checkpoint_s=15.0)
    assert saved.useful_frac == 0.9
    assert played(saved)[0] == pytest.approx(8700 + 6000 / 0.9 - 2 * 3300, rel=1e-6)


def test_all_workers_share_the_queue_and_each_is_paid() -> None:
    """Four workers: 1,500 s of work after the boot, before anybody is taken back."""
    assert played(replace(QUEUE, workers=4)) == pytest.approx((1800.0, 4 * 1800 / 3600, 0))


def test_on_demand_takes_over_at_the_last_moment() -> None:
    """A spot worker has done t - 300 s of 6,000 at t; four others, booted in 300 s, must do the rest by 5,000:
    4 (4,700 - t) = 6,300 - t. While they boot it goes on, to 4,466.7; then they share what is left."""
    calm = replace(QUEUE, interruptions_per_s=0.0, deadline_s=5000.0, fallback_workers=4)
    switch = (4 * 4700 - 6300) / 3
    ready = switch + 300
    end = ready + (6000 - (ready - 300)) / 4
    usd = ready / 3600 + 4 * (end - switch) / 3600 * 3
    assert played(calm) == pytest.approx((end, usd, 0))
    assert end < 5000


def test_workers_that_nobody_takes_back_are_arithmetic() -> None:
    """300 s to boot and 6,000 s of one worker's time; a deadline of 1,800 leaves 1,500 s: four workers."""
    assert on_demand(QUEUE, 3) == pytest.approx((2300.0, 3 * 2300 / 3600 * 3.0))
    assert fewest_on_demand(replace(QUEUE, deadline_s=1800.0)) == 4
    assert fewest_on_demand(replace(QUEUE, deadline_s=1799.0)) == 5


@pytest.mark.parametrize(("every", "save"), [(None, 0.0), (200.0, 20.0), (2000.0, 50.0)])
@pytest.mark.parametrize("per_hour", [0.2, 2.0])
def test_the_share_of_time_that_counts_is_that_of_renewal_theory(
    per_hour: float, every: float | None, save: float
) -> None:
    """Work of a life of t seconds, less what is lost at its end, over life and absence, by quadrature over t."""
    rate, boot, away, flight = per_hour / 3600, 300.0, 600.0, 1000.0
    queue = replace(
        QUEUE, interruptions_per_s=rate, in_flight=flight * 5.0 * (1.0 if every is None else every / (every + save)),
        checkpoint_every_s=every, checkpoint_s=save,
    )  # fmt: skip
    step = 0.25
    worked = np.arange(step / 2, 40 / rate, step)
    since = worked if every is None else np.minimum(worked % (every + save), every)
    young = np.minimum(since, flight)
    lost = young - young**2 / (2 * flight)
    useful = 1.0 if every is None else every / (every + save)
    density = rate * np.exp(-rate * (worked + boot)) * step
    expected = useful * float(((worked - lost) * density).sum()) / (1 / rate + away)
    assert long_run_frac(queue) == pytest.approx(expected, rel=1e-4)


# ---- caches of answers


def test_alike_prompts_hit_as_often_as_the_cache_holds_them() -> None:
    """100 prompts asked alike, 30 held: the next one is held with probability 0.3."""
    assert hit_rate(ResponseCache(entries=30, prompts=100, skew=0.0)) == pytest.approx(0.3, rel=1e-6)


def test_the_characteristic_time_fills_the_cache() -> None:
    """Che, Tung and Wang 2002: T with sum(1 - exp(-p T)) = entries; new prompts, 0.4 T of them, fill it too."""
    popularity = np.array([1 / k for k in range(1, 51)])
    popularity *= 0.6 / popularity.sum()
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        held = sum(1 - math.exp(-p * middle) for p in popularity) + 0.4 * middle
        low, high = (middle, high) if held < 40 else (low, middle)
    expected = sum(p * (1 - math.exp(-p * low)) for p in popularity)
    assert hit_rate(ResponseCache(entries=40, prompts=50, skew=1.0, repeated=0.6)) == pytest.approx(expected, rel=1e-6)


# ---- autoscalers


@pytest.mark.parametrize(
    ("measure", "target", "seen", "wanted"),
    [
        ("concurrency", 8.0, Snapshot(4, 0, 16, 40, 1.0, 0.5), 7),  # 56 in flight, 8 each
        ("utilisation", 0.5, Snapshot(4, 0, 0, 5, 0.9, 0.1), 8),  # 4 x 0.9 / 0.5 = 7.2
        ("kv", 0.5, Snapshot(4, 0, 0, 5, 0.1, 0.9), 8),
        ("queue", 4.0, Snapshot(4, 0, 12, 40, 1.0, 0.5), 7),  # 12 waiting, 4 each, beside the four that work
        ("queue", 4.0, Snapshot(4, 0, 2, 10, 0.2, 0.5), 3),  # 4 x (0.2 + 0.5)
    ],
)
def test_a_measure_asks_for_what_holds_its_target(measure: str, target: float, seen: Snapshot, wanted: int) -> None:
    rule = Autoscaling(measure=measure, target=target, most=100, cool_down_s=0.0)
    assert Controller(rule).desired_replicas(0.0, seen) == wanted


def steps(seconds: float) -> StepCost:
    """A step of so many seconds, whatever is in it."""
    none = np.zeros(9, dtype=np.int64)
    tokens = np.full(65, round(seconds * PS)) * (np.arange(65) > 0)
    return StepCost(tokens_ps=tokens, decode_ps=none, cached_ps=none, window_ps=none)


def test_a_replica_is_paid_from_the_wish_to_the_last_answer() -> None:
    """Nobody is there at first: the tick at the first arrival asks for one, which serves 30 s later and makes 20 tokens
    of half a second."""
    rule = Autoscaling(measure="concurrency", target=8, least=0, most=4, tick_s=5.0, cold_start_s=30.0, cool_down_s=0.0)
    found = elastic(trace([1.0], [10], [20]), steps(0.5), ReplicaLimits(max_batch=8, step_tokens=64), rule)
    assert found.simulated.ttft_s == pytest.approx([30.0 + 0.5])
    assert found.simulated.e2e_s == pytest.approx([30.0 + 10.0])
    assert found.paid_s == pytest.approx(30.0 + 10.0, abs=rule.tick_s)


# ---- requests through one replica


def test_times_and_rates_of_three_requests() -> None:
    """Steps of 0.1 s, prompts of 10 tokens in 16 a step: the second prompt goes in two steps with the first's tokens.

    Step 1: prompt 1 and six tokens of prompt 2; step 2: a token of 1 and the rest of 2; from then on both decode.
    """
    asked = trace([0.0, 0.0, 10.0], [10, 10, 10], [5, 3, 1])
    found = simulate(asked, steps(0.1), ReplicaLimits(max_batch=8, step_tokens=16), replicas=1)
    assert found.ttft_s == pytest.approx([0.1, 0.2, 0.1])
    assert found.e2e_s == pytest.approx([0.5, 0.4, 0.1])
    assert found.tpot_s[:2] == pytest.approx([0.4 / 4, 0.2 / 2])
    seen = found.summary()
    assert seen.duration_s == pytest.approx(10.1)
    assert seen.requests_per_s == pytest.approx(3 / 10.1)
    assert seen.output_tokens_per_s == pytest.approx(9 / 10.1)
    assert seen.total_tokens_per_s == pytest.approx(39 / 10.1)
    assert seen.utilisation_frac == pytest.approx(0.6 / 10.1)
    assert seen.mean_running == pytest.approx((0.5 + 0.4 + 0.1) / 10.1, rel=0.15)
    assert seen.replica_hours == pytest.approx(10.1 / 3600)


def test_replicas_are_paid_before_the_first_request() -> None:
    """One request after 1,000 s, of two steps of 0.1 s: replicas are paid for 1,000.2 s."""
    found = simulate(trace([1000.0], [10], [2]), steps(0.1), ReplicaLimits(max_batch=8, step_tokens=16), replicas=2)
    assert found.paid_s == pytest.approx(1000.2)
    assert found.summary().duration_s == pytest.approx(0.2)
