"""The autoscaler's rule: proportional, bounded, quick up and patient down."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwise.errors import SpecError, UnknownNameError
from flopwise.serving.sim.autoscale import MEASURES, Autoscaling, Controller, Snapshot

snapshots = st.builds(
    Snapshot, st.integers(0, 50), st.integers(0, 20), st.integers(0, 5000), st.integers(0, 5000), st.floats(0, 1),
    st.floats(0, 1),
)  # fmt: skip


def seen(ready: int = 4, *, waiting: int = 0, running: int = 0, busy: float = 0.0, kv: float = 0.0) -> Snapshot:
    return Snapshot(ready, 0, waiting, running, busy, kv)


@given(st.sampled_from(sorted(MEASURES)), snapshots, st.integers(0, 5), st.integers(5, 60))
def test_wishes_stay_between_the_bounds(measure: str, now: Snapshot, least: int, most: int) -> None:
    rule = Autoscaling(measure=measure, least=least, most=most)
    assert least <= Controller(rule).desired_replicas(0.0, now) <= max(most, now.ready + now.starting)


@given(st.sampled_from(sorted(MEASURES)), snapshots, st.integers(0, 3000))
def test_more_requests_never_ask_for_fewer_replicas(measure: str, now: Snapshot, more: int) -> None:
    rule = Autoscaling(measure=measure, most=1000)
    heavier = now._replace(waiting=now.waiting + more)
    assert Controller(rule).desired_replicas(0.0, heavier) >= Controller(rule).desired_replicas(0.0, now)


def test_concurrency_asks_for_as_many_as_hold_the_target() -> None:
    rule = Autoscaling(measure="concurrency", target=10)
    assert Controller(rule).desired_replicas(0.0, seen(4, running=55)) == 6


def test_utilisation_is_the_horizontal_pod_autoscaler_s_formula() -> None:
    rule = Autoscaling(measure="utilisation", target=0.5)
    assert Controller(rule).desired_replicas(0.0, seen(4, running=1, busy=0.75)) == 6


def test_small_deviations_are_left_alone() -> None:
    rule = Autoscaling(measure="concurrency", target=10)
    assert Controller(rule).desired_replicas(0.0, seen(4, running=43)) == 4


def test_growth_is_limited_to_doubling_or_four_more() -> None:
    rule = Autoscaling(measure="concurrency", target=1, most=1000)
    assert Controller(rule).desired_replicas(0.0, seen(2, running=500)) == 6
    assert Controller(rule).desired_replicas(0.0, seen(20, running=500)) == 40


def test_it_goes_down_only_after_the_cool_down() -> None:
    control = Controller(Autoscaling(measure="concurrency", target=10, cool_down_s=300, tick_s=60))
    assert control.desired_replicas(0.0, seen(4, running=80)) == 8
    wishes = [control.desired_replicas(60.0 * tick, seen(8, running=20)) for tick in range(1, 7)]
    assert wishes == [8, 8, 8, 8, 8, 2]


def test_it_scales_to_zero_and_back() -> None:
    control = Controller(Autoscaling(least=0, cool_down_s=0))
    assert control.desired_replicas(0.0, seen(2)) == 0
    assert control.desired_replicas(15.0, seen(0, waiting=1)) == 1


@pytest.mark.parametrize(
    "wrong", [{"target": 0.0}, {"least": 5, "most": 2}, {"tick_s": 0}, {"cold_start_s": -1}, {"tolerance": 2}]
)
def test_rules_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SpecError, match="allowed"):
        Autoscaling(**wrong)  # type: ignore[arg-type]  # figures of either kind


def test_an_unknown_measure_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="concurrency"):
        Autoscaling(measure="concurency")
