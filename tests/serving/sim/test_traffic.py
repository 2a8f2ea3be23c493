"""Arrival processes have the rates, the burstiness and the daily shape that they are asked for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwise.errors import SpecError
from flopwise.serving.sim import traffic
from flopwise.units import DAY_S, HOUR_S


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("name", ["poisson", "gamma", "uniform", "diurnal"])
def test_every_process_has_its_mean_rate_and_stays_inside_the_duration(name: str) -> None:
    arrivals = traffic.PROCESSES[name](3.0, 2 * DAY_S, rng())
    assert arrivals.size == pytest.approx(3.0 * 2 * DAY_S, rel=0.02)
    assert arrivals.min() >= 0
    assert arrivals.max() < 2 * DAY_S
    assert (np.diff(arrivals) >= 0).all()


def test_poisson_gaps_have_a_coefficient_of_variation_of_one() -> None:
    gaps = np.diff(traffic.poisson(10.0, 20_000.0, rng()))
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gamma_gaps_have_the_burstiness_asked_for(cv: float) -> None:
    gaps = np.diff(traffic.gamma(10.0, 50_000.0, rng(), cv=cv))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)


@pytest.mark.parametrize("peak", [1.0, 1.5, 3.0, 8.0])
def test_a_day_peaks_at_its_hour_and_as_high_as_asked(peak: float) -> None:
    arrivals = traffic.diurnal(5.0, 14 * DAY_S, rng(), peak_over_mean=peak, peak_hour=9.0)
    hours = arrivals % DAY_S / HOUR_S
    assert np.count_nonzero(abs(hours - 9.0) < 0.25) / (14 * HOUR_S / 2) / 5.0 == pytest.approx(peak, rel=0.03)
    elsewhere = np.histogram(hours, bins=24, range=(0, 24))[0] / 14 / HOUR_S / 5.0
    assert elsewhere.max() <= 1.03 * peak


def test_weekends_are_as_quiet_as_asked_and_the_mean_stays() -> None:
    arrivals = traffic.diurnal(4.0, 21 * DAY_S, rng(), weekend=0.25)
    per_day = np.histogram(arrivals / DAY_S, bins=21, range=(0, 21))[0].reshape(3, 7).mean(axis=0)
    assert per_day[5:].mean() / per_day[:5].mean() == pytest.approx(0.25, rel=0.02)
    assert arrivals.size / (21 * DAY_S) == pytest.approx(4.0, rel=0.01)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=24).filter(lambda rates: max(rates) > 0.1))
def test_a_profile_gives_each_part_of_the_day_its_share(hourly: list[float]) -> None:
    shape = np.array(hourly)
    arrivals = traffic.varying(0.2, 10 * DAY_S, np.random.default_rng(1), shape=shape)
    counts = np.histogram(arrivals % DAY_S, bins=shape.size, range=(0, DAY_S))[0]
    following = np.roll(shape, -1)
    expected = (shape + following) / (shape + following).sum() * 0.2 * 10 * DAY_S
    assert np.abs(counts - expected).max() <= 6 * np.sqrt(expected.max()) + 6


def test_the_same_seed_gives_the_same_arrivals() -> None:
    assert (traffic.poisson(2.0, 500.0, rng()) == traffic.poisson(2.0, 500.0, rng())).all()


@pytest.mark.parametrize(
    ("process", "rate", "duration", "options"),
    [
        ("poisson", 0.0, 10.0, {}),
        ("poisson", float("nan"), 10.0, {}),
        ("uniform", 1.0, float("inf"), {}),
        ("gamma", 1.0, 10.0, {"cv": 0.0}),
        ("diurnal", 1.0, 10.0, {"peak_over_mean": 0.5}),
        ("diurnal", 1.0, 10.0, {"peak_hour": 25.0}),
        ("diurnal", 1.0, 10.0, {"weekend": -1.0}),
        ("profile", 1.0, 10.0, {"shape": [0.0, 0.0]}),
        ("poisson", 1e9, 1e9, {}),
    ],
)
def test_what_cannot_be_is_refused(process: str, rate: float, duration: float, options: dict[str, float]) -> None:
    with pytest.raises(SpecError, match=r"allowed|needs"):
        traffic.PROCESSES[process](rate, duration, rng(), **options)
