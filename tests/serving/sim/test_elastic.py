"""An autoscaler at work: where it is a fixed number of replicas, cold starts, billing, the fewest replicas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import REFERENCE

from flopwise.errors import SpecError
from flopwise.serving.sim.autoscale import MEASURES, AutoscaledRun, Autoscaling, elastic, fewest
from flopwise.serving.sim.cost import StepCost
from flopwise.serving.sim.engine import ReplicaLimits
from flopwise.serving.sim.fleet import FastFleet
from flopwise.serving.sim.result import Slo
from flopwise.serving.sim.simulate import Engine, simulate
from flopwise.serving.sim.trace import PS, RequestTrace, trace

BATCH, TOKENS = 8, 256


def cost() -> StepCost:
    """A step takes 10 ms and a tenth of one more for each token."""
    none = np.zeros(BATCH + 1, dtype=np.int64)
    tokens = (np.arange(TOKENS + 1, dtype=np.int64) * (PS // 1000) + PS // 100) * (np.arange(TOKENS + 1) > 0)
    return StepCost(tokens_ps=tokens, decode_ps=none, cached_ps=none, window_ps=none)


LIMITS = ReplicaLimits(max_batch=BATCH, step_tokens=TOKENS, num_blocks=400)


def asked(rate: float, seconds: float, seed: int = 0) -> RequestTrace:
    rng = np.random.default_rng(seed)
    arrival = np.sort(rng.random(rng.poisson(rate * seconds) + 1)) * seconds
    return trace(arrival, rng.integers(1, 64, arrival.size), rng.integers(1, 40, arrival.size))


def run(requests: RequestTrace, schedulers: int = 1, **rule: object) -> AutoscaledRun:
    return elastic(requests, cost(), LIMITS, Autoscaling(**rule), schedulers=schedulers)  # type: ignore[arg-type]


@pytest.mark.parametrize("balancer", ["round-robin", "least-loaded"])
def test_bounds_that_are_one_number_are_a_fixed_number_of_replicas(balancer: str) -> None:
    requests = asked(6.0, 120.0)
    rule = Autoscaling(least=3, most=3)
    scaled = elastic(requests, cost(), LIMITS, rule, balancer=balancer)
    fixed = simulate(requests, cost(), LIMITS, replicas=3, balancer=balancer)
    for mine, theirs in zip(scaled.simulated.outcome, fixed.outcome, strict=True):
        assert mine.tolist() == theirs.tolist()
    assert scaled.paid_s == pytest.approx(3 * scaled.end_ps / PS)
    assert (scaled.starts, scaled.most) == (0, 3)
    assert scaled.mean == pytest.approx(3.0)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(sorted(MEASURES)), st.integers(0, 2), st.integers(1, 3), st.floats(0, 30), st.integers(0, 1000))
def test_both_engines_scale_alike_to_the_last_bit(
    measure: str, least: int, schedulers: int, cold: float, seed: int
) -> None:
    rule = Autoscaling(measure=measure, least=least, most=least + 3, cold_start_s=cold, cool_down_s=20.0, tick_s=6.0)
    requests = asked(9.0, 60.0, seed)

    def scaled(engine: Engine) -> AutoscaledRun:
        return elastic(requests, cost(), LIMITS, rule, schedulers=schedulers, engine=engine)

    slow, fast = scaled(REFERENCE), scaled(FastFleet)
    assert slow.lives == fast.lives
    for column, other in zip(slow.simulated.outcome, fast.simulated.outcome, strict=True):
        assert column.tolist() == other.tolist()
    assert slow.line.ready.tolist() == fast.line.ready.tolist()


def test_an_endless_cool_down_never_gives_a_replica_back() -> None:
    quiet = run(asked(20.0, 60.0), measure="concurrency", target=2, cool_down_s=604_800, cold_start_s=5, tick_s=5)
    assert all(life.drained_ps < 0 for life in quiet.lives)
    assert (np.diff(quiet.line.ready) >= 0).all()


def test_isolated_requests_pay_a_cold_start_each() -> None:
    """Scale to zero: each request, half an hour after the last, finds nobody and waits for the start."""
    alone = trace(np.arange(6) * 1800.0 + 7.3, np.full(6, 10), np.full(6, 3))
    scaled = run(alone, least=0, cold_start_s=90, cool_down_s=0, tick_s=15)
    fixed = simulate(alone, cost(), LIMITS, replicas=1)
    assert scaled.simulated.ttft_s == pytest.approx(fixed.ttft_s + 90)
    assert scaled.starts == 6
    assert scaled.starting_s == pytest.approx(6 * 90)
    assert scaled.paid_s < 6 * (90 + 2 * 15)
    assert scaled.line.ready.min() == 0


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(MEASURES)), st.integers(0, 2), st.integers(1, 5), st.floats(0, 40), st.floats(0, 60),
    st.integers(1, 3), st.integers(0, 1000),
)  # fmt: skip
def test_whatever_the_rule_all_are_answered_and_bills_add_up(
    measure: str, least: int, more: int, cold: float, cool: float, schedulers: int, seed: int
) -> None:
    requests = asked(8.0, 90.0, seed)
    found = run(
        requests, schedulers, measure=measure, least=least, most=least + more, cold_start_s=cold, cool_down_s=cool,
        tick_s=7.0,
    )  # fmt: skip
    outcome = found.simulated.outcome
    assert (outcome.finish_ps >= outcome.arrival_ps).all()
    assert found.simulated.totals.output_tokens.sum() == requests.output.sum()
    assert found.most <= least + more
    for life in found.lives:
        assert life.wished_ps <= life.ready_ps
        assert life.off_ps < 0 or life.wished_ps <= life.drained_ps <= life.off_ps
    served_s = found.simulated.totals.up_ps.sum() / PS / schedulers
    assert (
        found.paid_s + 1e-6 >= served_s - (least + more) * 7.0
    )  # the fleet's clock runs on to the tick after the last answer
    assert found.starting_s <= found.paid_s + 1e-9


def test_a_bill_runs_from_the_wish_to_the_last_answer() -> None:
    found = run(
        asked(10.0, 120.0, 3), measure="concurrency", target=3, least=1, most=6, cold_start_s=20, cool_down_s=10
    )
    outcome, lives = found.simulated.outcome, found.lives
    assert any(life.off_ps > 0 for life in lives)
    for slot in np.unique(outcome.replica):
        ends = outcome.finish_ps[outcome.replica == slot]
        covered = [any(life.ready_ps <= end <= (life.off_ps if life.off_ps > 0 else found.end_ps) for life in lives)
                   for end in ends.tolist()]  # fmt: skip
        assert all(covered)


def test_schedulers_of_a_deployment_come_and_go_together() -> None:
    found = run(asked(12.0, 60.0), 2, measure="concurrency", target=4, least=1, most=3, cold_start_s=5, tick_s=5)
    assert found.simulated.timeline.replicas.tolist() == (2 * (found.line.ready + found.line.draining)).tolist()


def test_quicker_starts_serve_no_worse() -> None:
    requests = asked(15.0, 120.0, 5)
    goods = [
        run(requests, measure="concurrency", target=4, cold_start_s=s, tick_s=5).simulated.summary(Slo(ttft_s=1.0))
        for s in (0.0, 60.0, 119.0)
    ]
    assert goods[0].goodput_frac > goods[1].goodput_frac >= goods[2].goodput_frac


def test_the_fewest_replicas_are_those_that_trying_all_finds() -> None:
    for seed, share in ((0, 0.9), (1, 0.99), (2, 0.5)):
        requests, slo = asked(25.0, 30.0, seed), Slo(ttft_s=0.2)

        def attained(count: int, requests: RequestTrace = requests, slo: Slo = slo) -> float:
            return simulate(requests, cost(), LIMITS, replicas=count, balancer="least-loaded").summary(slo).goodput_frac

        tried = next(n for n in range(1, 40) if attained(n) >= share)
        assert tried > 1
        assert {fewest(attained, share, near=near) for near in (1, 3, 17)} == {tried}


def test_no_number_of_replicas_beats_the_step_itself() -> None:
    asked_for: list[int] = []

    def attained(count: int) -> float:
        asked_for.append(count)
        return min(0.1 * count, 0.6)

    assert fewest(attained, 0.9) is None
    assert max(asked_for) <= 64
    assert fewest(lambda _: 0.0, 0.5, most=64) is None
    with pytest.raises(SpecError, match="attainment"):
        fewest(attained, 1.5)


def test_what_cannot_be_is_refused() -> None:
    far = replace(asked(1.0, 10.0))
    late = far.arriving(far.arrival_ps + 3_000_000 * PS)
    with pytest.raises(SpecError, match="tick"):
        elastic(late, cost(), LIMITS, Autoscaling(tick_s=0.1))
