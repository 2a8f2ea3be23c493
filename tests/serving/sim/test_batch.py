"""Batch queues on interrupted workers: renewal theory, certainty without interruptions, the rule to fall back."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwise.errors import InfeasibleError, SpecError
from flopwise.serving.sim.batch import BatchQueue, _Lives, fewest_on_demand, long_run_frac, on_demand, simulate_queue

QUEUE = BatchQueue(
    requests=200_000, requests_per_s=5.0, workers=4, boot_s=120.0, spot_usd_per_hour=1.0, on_demand_usd_per_hour=3.0
)


def rng() -> np.random.Generator:
    return np.random.default_rng(2)


def test_without_interruptions_it_is_arithmetic() -> None:
    done = simulate_queue(QUEUE, rng(), trials=3)
    assert done.seconds == pytest.approx(120 + 200_000 / 20)
    assert done.usd == pytest.approx(4 * (120 + 200_000 / 20) / 3600)
    seconds, usd = on_demand(QUEUE)
    assert done.seconds == pytest.approx(seconds)
    assert usd == pytest.approx(3 * done.usd[0])


@settings(max_examples=12, deadline=None)
@given(st.floats(0.02, 3.0), st.floats(0.0, 600.0), st.floats(0.0, 900.0), st.floats(0.0, 400.0), st.floats(0.0, 20.0))
def test_long_queues_go_at_the_rate_of_renewal_theory(
    per_hour: float, boot: float, away: float, flight: float, save: float
) -> None:
    queue = replace(
        QUEUE, requests=3_000_000, workers=8, interruptions_per_s=per_hour / 3600, boot_s=boot, replace_s=away,
        in_flight=flight, checkpoint_every_s=300.0 if save > 10 else None, checkpoint_s=save,
    )  # fmt: skip
    mean = simulate_queue(queue, rng(), trials=20).seconds.mean()
    expected = queue.requests / (queue.requests_per_s * queue.workers * long_run_frac(queue))
    assert mean == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize(("workers", "together", "instances"), [(8, 1, 8), (8, 8, 1), (8, 4, 2), (5, 4, 2)])
def test_workers_of_one_instance_go_together(workers: int, together: int, instances: int) -> None:
    """With nothing lost, found or booted, an instance is always there; a life that ends stops all of its workers."""
    queue = replace(
        QUEUE, requests=50_000, workers=workers, workers_per_instance=together, boot_s=0.0, replace_s=600.0,
        interruptions_per_s=1 / 3600,
    )  # fmt: skip
    lives = _Lives(queue, rng())
    lives.extend(50_000.0)
    ups = np.unique(np.diff(lives.progress().rate))
    assert len(lives.size) == instances
    assert set(np.abs(ups)) <= {float(together), float(workers % together), float(min(workers, together))}
    at = 20_000.0
    up = (lives.starts <= at) & (lives.ends > at)
    here = int(np.searchsorted(lives.progress().at, at, side="right")) - 1
    assert lives.progress().rate[here] == (up * lives.size).sum()


def test_shared_instances_keep_the_mean_and_widen_the_spread() -> None:
    """The sum of n workers that go together varies as n times one, of n that go alone as the square root of n."""
    alone = replace(
        QUEUE, requests=2_000_000, workers=8, interruptions_per_s=1 / 3600, replace_s=1800.0, boot_s=60.0, in_flight=50
    )
    apart = simulate_queue(alone, rng(), trials=300).seconds
    shared = simulate_queue(replace(alone, workers_per_instance=8), rng(), trials=300).seconds
    assert shared.mean() == pytest.approx(apart.mean(), rel=0.05)
    assert shared.std() / apart.std() == pytest.approx(8**0.5, rel=0.3)


def test_more_interruptions_take_longer() -> None:
    means = [
        simulate_queue(replace(QUEUE, interruptions_per_s=x / 3600, in_flight=50, replace_s=300), rng(), trials=50)
        .seconds.mean() for x in (0.0, 0.1, 0.5, 2.0)
    ]  # fmt: skip
    assert means == sorted(means)


def test_fallback_meets_a_deadline_that_spot_alone_misses() -> None:
    spot = replace(QUEUE, interruptions_per_s=1 / 3600, replace_s=1200, in_flight=100, deadline_s=12_000.0)
    alone = simulate_queue(spot, rng(), trials=100)
    saved = simulate_queue(replace(spot, fallback_workers=8), rng(), trials=100)
    assert alone.met_frac is not None
    assert alone.met_frac < 0.2
    assert saved.met_frac == 1.0
    assert saved.fell_back.any()
    assert alone.usd.mean() < saved.usd.mean() < on_demand(spot)[1] * 1.2


@settings(max_examples=40, deadline=None)
@given(
    st.floats(0.01, 6.0), st.floats(0.0, 900.0), st.floats(0.0, 1800.0), st.floats(0.0, 2000.0), st.integers(1, 12),
    st.floats(1.0, 3.0), st.sampled_from([None, 60.0, 1200.0]), st.integers(0, 10_000),
)  # fmt: skip
def test_on_demand_workers_take_over_in_time_whatever_happens(
    per_hour: float, boot: float, away: float, flight: float, others: int, room: float, save: float | None, seed: int
) -> None:
    """With a deadline that the on-demand workers alone could meet, no trial misses it."""
    needed = boot + QUEUE.requests / (QUEUE.requests_per_s * others)
    queue = replace(
        QUEUE, interruptions_per_s=per_hour / 3600, boot_s=boot, replace_s=away, in_flight=flight,
        fallback_workers=others, deadline_s=needed * room, checkpoint_every_s=save, checkpoint_s=5.0,
    )  # fmt: skip
    done = simulate_queue(queue, np.random.default_rng(seed), trials=10)
    assert (done.seconds <= needed * room * (1 + 1e-9)).all()
    assert (done.seconds > boot).all()


def test_a_life_is_billed_from_its_start_to_its_end_or_the_last_answer() -> None:
    """By hand: the machine is paid while it boots, and no longer than until the queue is empty."""
    queue = replace(QUEUE, workers=1, requests=6000, boot_s=300.0, interruptions_per_s=0.5 / 3600, replace_s=600.0)
    for seed in range(20):
        draws = np.random.default_rng(seed)
        done = simulate_queue(queue, np.random.default_rng(seed), trials=1)
        first = float(draws.exponential(7200.0))
        if first >= 1500:
            assert done.seconds[0] == pytest.approx(1500)
            assert done.usd[0] == pytest.approx(1500 / 3600)
        else:
            assert done.interruptions[0] >= 1
            assert done.usd[0] < done.seconds[0] / 3600


def test_saving_tokens_loses_less_than_starting_anew() -> None:
    queue = replace(QUEUE, in_flight=6000.0, interruptions_per_s=1 / 3600)  # 20 minutes in flight
    often = replace(queue, checkpoint_every_s=60.0, checkpoint_s=0.1)
    assert long_run_frac(queue) < long_run_frac(often) < 1
    worked = np.array([0.0, 600.0, 1200.0, 5000.0])
    assert queue.lost_s(worked) == pytest.approx([0, 450, 600, 600])
    assert often.lost_s(np.array([60.05, 60.1, 120.1])) == pytest.approx([58.5, 0.0, 58.5], abs=0.1)
    assert queue.most_lost_s == pytest.approx(600)


def test_the_fewest_on_demand_workers_meet_the_deadline_and_one_less_does_not() -> None:
    queue = replace(QUEUE, deadline_s=5000.0)
    count = fewest_on_demand(queue)
    assert count is not None
    assert on_demand(queue, count)[0] <= 5000 < on_demand(queue, count - 1)[0]
    assert fewest_on_demand(replace(queue, deadline_s=100.0)) is None
    assert fewest_on_demand(QUEUE) is None


def test_a_roomy_deadline_needs_no_fallback() -> None:
    queue = replace(QUEUE, interruptions_per_s=0.1 / 3600, deadline_s=40_000.0, fallback_workers=8)
    assert not simulate_queue(queue, rng(), trials=20).fell_back.any()


def test_a_deadline_that_nothing_meets_is_missed_and_said() -> None:
    queue = replace(QUEUE, deadline_s=100.0, fallback_workers=2)
    done = simulate_queue(queue, rng(), trials=2)
    assert done.met_frac == 0.0
    assert done.fell_back.all()


def test_workers_that_never_get_going_are_refused() -> None:
    with pytest.raises(InfeasibleError, match="never empties"):
        simulate_queue(replace(QUEUE, interruptions_per_s=1 / 60, boot_s=600.0), rng())


@pytest.mark.parametrize(
    "wrong",
    [{"requests": 0}, {"workers": 0}, {"boot_s": -1}, {"requests_per_s": float("nan")}, {"interruptions_per_s": 1.0}],
)
def test_what_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SpecError, match="allowed"):
        replace(QUEUE, **wrong)  # type: ignore[arg-type]  # figures of either kind


def test_falling_back_needs_a_deadline() -> None:
    with pytest.raises(SpecError, match="deadline"):
        simulate_queue(replace(QUEUE, fallback_workers=2), rng())
