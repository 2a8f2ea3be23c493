"""Batches of what waits, in closed form: against counting, queueing theory and a queue in plain Python."""

from __future__ import annotations

import numpy as np
import pytest

from flopwise.ops.types import Array
from flopwise.serving.open_loop import batch_sizes
from flopwise.serving.waiting_batches import WaitingBatches

NAMES = ("p50", "p90", "p95", "p99")
FIXED_S = 8.0
"""Of each batch; an input adds one second."""
REQUESTS = 60_000


def queue(most: int, load: float, fixed_s: float = FIXED_S) -> WaitingBatches:
    """Batches of up to so many, each of `fixed_s` and a second an input, at a share of what full ones sustain."""
    sizes = batch_sizes(most)[:, None]
    return WaitingBatches(sizes, fixed_s + sizes, np.array([load * most / (fixed_s + most)]))


def latencies(most: int, per_s: float, fixed_s: float = FIXED_S) -> Array:
    """What requests see of a server that takes all that wait, one batch after another."""
    came = np.cumsum(np.random.default_rng(1).exponential(1.0 / per_s, REQUESTS))
    done, free, first = np.empty(REQUESTS), 0.0, 0
    while first < REQUESTS:
        start = max(free, came[first])
        last = min(int(np.searchsorted(came, start, side="right")), first + most)
        free = start + fixed_s + last - first
        done[first:last] = free
        first = last
    return (done - came)[REQUESTS // 10 :]


@pytest.mark.parametrize("load", [0.02, 0.1, 0.3, 0.5, 0.8])
@pytest.mark.parametrize("most", [1, 4, 32, 512])
def test_the_share_of_time_in_which_a_batch_runs_against_a_queue_in_plain_python(most: int, load: float) -> None:
    batches = queue(most, load)
    came = np.cumsum(np.random.default_rng(1).exponential(1.0 / batches.arrivals_per_s[0], REQUESTS))
    free, idle_s, first = 0.0, 0.0, 0
    while first < REQUESTS:
        start = max(free, came[first])
        last = min(int(np.searchsorted(came, start, side="right")), first + most)
        idle_s += start - free
        free, first = start + FIXED_S + last - first, last
    assert float(batches.running_frac[0]) == pytest.approx(1.0 - idle_s / free, rel=0.03)


@pytest.mark.parametrize("load", [0.1, 0.3, 0.5, 0.7, 0.8])
@pytest.mark.parametrize("most", [4, 8, 32, 128, 512])
def test_batches_of_what_waits_against_a_queue_in_plain_python(most: int, load: float) -> None:
    """The mean within 6 %, the percentiles within 10 %, that of one in a hundred within 16 %."""
    batches = queue(most, load)
    seen = latencies(most, float(batches.arrivals_per_s[0]))
    assert float(batches.latency_s("mean")[0]) == pytest.approx(seen.mean(), rel=0.06)
    for name in NAMES:
        percentile = np.percentile(seen, float(name[1:]))
        assert float(batches.latency_s(name)[0]) == pytest.approx(percentile, rel=0.16 if name == "p99" else 0.1), name


@pytest.mark.parametrize("load", [0.1, 0.5, 0.8])
def test_batches_of_one_are_a_queue_with_constant_service(load: float) -> None:
    """M/D/1: a mean of s + rho s / (2 (1 - rho)) (Pollaczek-Khinchine)."""
    service_s = FIXED_S + 1.0
    expected = service_s + load * service_s / (2.0 * (1.0 - load))
    assert float(queue(1, load).latency_s("mean")[0]) == pytest.approx(expected, rel=0.01)


def test_a_request_that_comes_alone_is_answered_alone() -> None:
    batches = queue(64, 1e-6)
    assert float(batches.mean_batch[0]) == pytest.approx(1.0, abs=1e-4)
    for name in ("mean", *NAMES):
        assert float(batches.latency_s(name)[0]) == pytest.approx(FIXED_S + 1.0, rel=1e-3), name


def test_a_batch_holds_what_comes_during_one() -> None:
    """k = r (8 + k) + exp(-k) at 0.8 a second: 32 of them, when next to none of them finds the server idle."""
    sizes = batch_sizes(512)[:, None]
    batches = WaitingBatches(sizes, FIXED_S + sizes, np.array([0.8]))
    assert float(batches.mean_batch[0]) == pytest.approx(32.0, rel=1e-6)


def test_beyond_what_full_batches_sustain_nobody_is_answered() -> None:
    for name in ("mean", "p95"):
        assert float(queue(8, 0.95).latency_s(name)[0]) < np.inf
        assert float(queue(8, 1.01).latency_s(name)[0]) == np.inf


def test_columns_are_as_they_are_alone() -> None:
    """A table of four and one of sixteen side by side, the shorter with its last size again."""
    few, many = queue(4, 0.6), queue(16, 0.7)
    rows = len(many.sizes) - len(few.sizes)
    padded = [np.concatenate([column, np.repeat(column[-1:], rows, axis=0)]) for column in few[:2]]
    both = WaitingBatches(
        np.hstack([padded[0], many.sizes]), np.hstack([padded[1], many.step_s]),
        np.concatenate([few.arrivals_per_s, many.arrivals_per_s]),
    )  # fmt: skip
    for name in ("mean", "p99"):
        alone = [float(one.latency_s(name)[0]) for one in (few, many)]
        assert both.latency_s(name) == pytest.approx(alone, rel=1e-6), name


@pytest.mark.parametrize("load", [0.02, 0.4, 0.8, 0.97])
@pytest.mark.parametrize("most", [1, 4, 32, 512])
def test_a_percentile_is_where_its_share_is_answered(most: int, load: float) -> None:
    """A little before it fewer are answered, a little after it more; where answers alone are many, it is theirs."""
    batches = queue(most, load)
    parts = batches._parts(batches.mean_batch)
    busy_within = parts._busy_within()
    for name in NAMES:
        share, found = float(name[1:]) / 100, batches.latency_s(name)
        less, more = (busy_within(found * (1 + off)) for off in (-1e-5, 1e-5))
        alone = parts.idle * (found * (1 + 1e-5) >= parts.alone_s), parts.idle * (found * (1 - 1e-5) >= parts.alone_s)
        assert less + alone[1] <= share + 1e-6
        assert more + alone[0] >= share - 1e-6
