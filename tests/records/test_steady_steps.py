"""The steady part of a run: what is set apart, and how far chance moves the rest."""

from __future__ import annotations

import numpy as np
import pytest

from flopwise.records.model import Event
from flopwise.records.steady import SteadySteps, level, steady


def split(seconds: list[float], events: list[Event] | None = None, stride: int = 1) -> SteadySteps:
    values = np.array(seconds)
    steps = np.arange(1, values.size + 1) * stride
    found = steady(steps, np.cumsum(values * stride), values, events or [])
    assert found is not None
    return found


def test_warm_up_and_pauses_by_hand() -> None:
    # 2 slow lines, then 1.0 s; a checkpoint of 9 s more at line 12 and something of 4 s at line 16
    seconds = [30.0, 2.0, *[1.0] * 9, 10.0, *[1.0] * 3, 5.0, *[1.0] * 4]
    found = split(seconds, [Event(0.0, "checkpoint", "saved", step=12)])
    assert (found.level.value, found.warm_up_lines, found.level.count) == (1.0, 2, 16)
    assert found.warm_up_s == pytest.approx(29.0 + 1.0)
    assert [(p.kind, p.count, p.seconds) for p in found.pauses] == [("checkpoint", 1, 9.0), ("other", 1, 4.0)]
    assert found.whole_s == pytest.approx(sum(seconds))
    assert found.warm_up_s + sum(pause.seconds for pause in found.pauses) == pytest.approx(43.0)


def test_a_line_of_many_steps_weighs_as_many() -> None:
    found = split([1.0] * 10 + [3.0] + [1.0] * 9, stride=50)
    [pause] = found.pauses
    assert pause.seconds == pytest.approx(2.0 * 50)
    assert found.whole_s == pytest.approx(22.0 * 50)


def test_an_evaluation_within_the_line_names_its_pause() -> None:
    seconds = [1.0] * 10 + [8.0] + [1.0] * 9
    at_s = float(np.cumsum(seconds)[10]) - 2.0
    [pause] = split(seconds, [Event(at_s, "evaluation", "")]).pauses
    assert pause.kind == "evaluation"


def test_recorded_pauses_between_steps_are_pauses_though_no_step_is_slow() -> None:
    """Step times of callbacks leave evaluations out: 5 s after each tenth of 30 steps of a second; 3 s have no name."""
    at_s = np.cumsum([1.0 + 5.0 * (n in {10, 20}) + 3.0 * (n == 15) for n in range(30)])
    events = [Event(float(at_s[n]) - 1.0, "evaluation", "evaluation: 5.00 s", step=n) for n in (10, 20)]
    found = steady(np.arange(1, 31), at_s, np.ones(30), events)
    assert found is not None
    assert found.kept.all()
    [pause] = found.pauses
    assert (pause.kind, pause.count) == ("evaluation", 2)
    assert pause.seconds == pytest.approx(10.0)
    assert found.whole_s == pytest.approx(30.0 + 10.0)


def test_noise_alone_makes_neither_warm_up_nor_pauses() -> None:
    noise = np.random.default_rng(7).normal(1.0, 0.02, 500)
    found = split(list(noise))
    assert (found.warm_up_lines, found.pauses) == (0, ())
    assert found.level.value == pytest.approx(float(np.median(noise)))


def test_half_of_the_lines_may_be_pauses() -> None:
    found = split([1.0, 1.0, 6.0] * 40)
    assert found.level.value == 1.0
    [pause] = found.pauses
    assert pause.count == 40


def test_few_and_broken_times() -> None:
    assert split([5.0]).level.error is None
    assert split([float("nan"), 2.0, 2.0, 2.0]).level.value == 2.0
    assert steady(np.array([1]), np.array([0.0]), np.array([float("nan")]), []) is None


def test_the_error_of_a_mean_is_that_of_independent_values() -> None:
    """Standard deviation over the root of the number: of 400 values of spread 1, 0.05."""
    values = np.random.default_rng(3).normal(10.0, 1.0, 400)
    found = level(values, "mean")
    assert found is not None
    assert found.value == pytest.approx(values.mean())
    assert found.error == pytest.approx(0.05, rel=0.25)
    median = level(values)
    assert median is not None
    assert median.error == pytest.approx(1.2533 * 0.05, rel=0.35)  # of a normal median: sqrt(pi / 2) times that


def test_the_error_of_a_long_run_is_that_of_its_stretches() -> None:
    """6,000 independent values of spread 1: 1 / sqrt(6,000) = 0.0129 of their mean."""
    found = level(np.random.default_rng(2).normal(10.0, 1.0, 6000), "mean")
    assert found is not None
    assert found.error == pytest.approx(0.0129, rel=0.3)


def test_values_that_drift_have_a_larger_error_than_the_same_values_shuffled() -> None:
    drift = 1.0 + 0.2 * np.sin(np.linspace(0, 6 * np.pi, 150))
    mixed = np.random.default_rng(5).permutation(drift)
    slow, quick = level(drift, "mean"), level(mixed, "mean")
    assert slow is not None
    assert quick is not None
    assert slow.error is not None
    assert quick.error is not None
    assert slow.error > 1.5 * quick.error


def test_the_interval_of_a_level_holds_the_truth_as_often_as_it_says() -> None:
    drawn = np.random.default_rng(11)
    held = 0
    for _ in range(200):
        one = level(drawn.normal(5.0, 0.3, 60))
        assert one is not None
        assert one.interval is not None
        held += one.interval[0] <= 5.0 <= one.interval[1]
    assert 0.86 <= held / 200 <= 1.0
