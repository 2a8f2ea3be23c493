"""Effective prices: golden arithmetic, and the same answers by counting hour by hour."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwise.cost.money import billed_hours
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.offers import Offer
from flopwise.fleet import prices
from flopwise.fleet.prices import effective, run_usd

FACTS = load_facts()
OFFERS = {offer.key: offer for offer in FACTS.offers}
N1_TIERS = ((0.0, 1.0), (0.25, 0.8), (0.5, 0.6), (0.75, 0.4))


def offer(provider: str = "aws", instance: str = "x", **prices: float) -> Offer:
    return Offer(
        provider=provider, instance=instance, region="r", accelerator="H100-SXM-80", count=1, source="s",
        price_date="2026-01-01", **prices,  # type: ignore[arg-type]
    )  # fmt: skip


# workload, instance, instances, hours a month, the amount that price pages and hand calculations give
GOLDEN = [
    ("g4dn.xlarge", 2, 8 * 22, 185),
    ("p3.2xlarge", 1, 4 * 22, 269),
    ("g4dn.2xlarge", 3, 720, 1624),
]


@pytest.mark.parametrize(("instance", "count", "hours", "usd"), GOLDEN)
def test_monthly_costs_are_those_of_a_pocket_calculator(instance: str, count: int, hours: float, usd: float) -> None:
    found = effective(OFFERS["aws", instance, "us-east-1"], "on_demand", hours, FACTS)
    assert found is not None
    assert count * found.usd_per_month == pytest.approx(usd, abs=0.5)
    assert found.usd_per_hour_effective == pytest.approx(found.usd_per_hour_list)


def test_a_reservation_is_paid_whether_used_or_not() -> None:
    bought = offer(on_demand_usd_per_hour=2.0, reserved_1y_usd_per_hour=1.2)
    half = effective(bought, "reserved_1y", 365, FACTS)
    assert half is not None
    assert half.billed_hours == 730
    assert half.usd_per_month == pytest.approx(876)
    assert half.usd_per_hour_effective == pytest.approx(2.4)
    assert half.break_even_frac == pytest.approx(0.6)
    assert effective(bought, "reserved_3y", 730, FACTS) is None, "no price is known, so there is none"
    for hours in range(1, 731):
        used = effective(bought, "on_demand", hours, FACTS)
        kept = effective(bought, "reserved_1y", hours, FACTS)
        assert used is not None
        assert kept is not None
        cheaper = kept.usd_per_month < used.usd_per_month - 1e-9
        assert cheaper == (hours / 730 > 0.6 + 1e-12)


def test_spot_is_not_for_what_may_not_be_interrupted() -> None:
    bought = offer(on_demand_usd_per_hour=2.0, spot_usd_per_hour=1.0)
    assert effective(bought, "spot", 100, FACTS, interruptible=False) is None
    assert effective(offer(on_demand_usd_per_hour=2.0), "spot", 100, FACTS) is None


def test_unknown_interruptions_are_assumed_not_left_out() -> None:
    found = effective(offer(provider="vast", spot_usd_per_hour=1.0), "spot", 100, FACTS, checkpoint_s=60)
    assert found is not None
    assert any("assumed" in note and "low confidence" in note for note in found.notes)
    assert found.usd_per_hour_effective > 1.001
    said = effective(offer(provider="vast", spot_usd_per_hour=1.0), "spot", 100, FACTS, interruptions_per_hour=0.0)
    assert said is not None
    assert said.usd_per_hour_effective == pytest.approx(1.0), "of those who say that there are none"
    known = effective(offer(spot_usd_per_hour=1.0), "spot", 100, FACTS, checkpoint_s=60)
    assert known is not None
    assert known.usd_per_hour_effective > 1.0
    assert any("Spot Instance Advisor" in note for note in known.notes)


@settings(deadline=None)
@given(
    rate=st.floats(0, 2), checkpoint_s=st.floats(0, 600), restart_s=st.floats(0, 1800),
    saved=st.none() | st.floats(60, 36_000), hours=st.floats(0.1, 744), instances=st.integers(1, 64),
)  # fmt: skip
def test_spot_never_costs_less_than_it_is_listed(
    rate: float, checkpoint_s: float, restart_s: float, saved: float | None, hours: float, instances: int
) -> None:
    found = effective(
        offer(provider="vast", spot_usd_per_hour=1.0), "spot", hours, FACTS, checkpoint_s=checkpoint_s,
        restart_s=restart_s, interruptions_per_hour=rate, saved_every_s=saved, instances=instances,
    )  # fmt: skip
    assert found is not None
    assert found.usd_per_hour_effective >= found.usd_per_hour_list * (1 - 1e-9)
    worse = effective(
        offer(provider="vast", spot_usd_per_hour=1.0), "spot", hours, FACTS, checkpoint_s=checkpoint_s,
        restart_s=restart_s + 60, interruptions_per_hour=rate, saved_every_s=saved, instances=instances,
    )  # fmt: skip
    assert worse is not None
    assert worse.usd_per_hour_effective >= found.usd_per_hour_effective * (1 - 1e-9)


def _simulated(mtbf_s: float, saved_s: float, stall_s: float, restart_s: float, seed: int) -> float:
    """Share of progress of a long job, run interruption by interruption."""
    chance = random.Random(seed)  # noqa: S311 - a simulation
    clock = done = 0.0
    until = chance.expovariate(1 / mtbf_s)
    while clock < 4000 * mtbf_s:
        if until >= saved_s + stall_s:
            until -= saved_s + stall_s
            clock += saved_s + stall_s
            done += saved_s
            continue
        clock += until
        until = chance.expovariate(1 / mtbf_s)
        while until < restart_s:
            clock += until
            until = chance.expovariate(1 / mtbf_s)
        clock += restart_s
        until -= restart_s
    return done / clock


@pytest.mark.parametrize(("saved_s", "stall_s", "restart_s"), [(1800, 60, 300), (600, 30, 900), (7200, 300, 600)])
def test_the_share_of_spot_time_that_counts_is_that_of_a_simulation(
    saved_s: float, stall_s: float, restart_s: float
) -> None:
    mtbf_s = 4 * 3600
    expected = _simulated(mtbf_s, saved_s, stall_s, restart_s, seed=1)
    assert prices.spot_frac(1 / mtbf_s, stall_s, restart_s, saved_s) == pytest.approx(expected, rel=0.02)


def test_the_best_interval_is_no_worse_than_any_other() -> None:
    best = prices.spot_frac(1 / 7200, 60.0, 600.0)
    tried = prices.spot_frac(1 / 7200, 60.0, 600.0, np.linspace(60, 20_000, 500))
    assert best >= np.max(tried) * 0.999


def test_where_nothing_is_saved_only_restarts_cost() -> None:
    assert prices.spot_frac(1 / 3600, 0.0, 600.0) == pytest.approx(math.exp(-600 / 3600), rel=1e-6)


@settings(deadline=None)
@given(used=st.floats(0, 1))
def test_sustained_use_equals_counting_the_hours(used: float) -> None:
    hours = round(used * 7300)
    each = [next(share for start, share in reversed(N1_TIERS) if i / 7300 >= start - 1e-12) for i in range(hours)]
    expected = sum(each) / hours if hours else 1.0
    assert prices.sustained_frac(hours / 7300, N1_TIERS) == pytest.approx(expected, rel=1e-9)


def test_a_whole_month_of_n1_is_thirty_percent_off_and_of_a2_is_not() -> None:
    n1, a2 = OFFERS["gcp", "n1-standard-4+1xT4", "us-central1"], OFFERS["gcp", "a2-highgpu-1g", "us-central1"]
    for bought, share in ((n1, 0.7), (a2, 1.0)):
        found = effective(bought, "on_demand", 730, FACTS)
        assert found is not None
        assert found.usd_per_hour_effective == pytest.approx(share * found.usd_per_hour_list)
    short = effective(n1, "on_demand", 150, FACTS)
    assert short is not None
    assert short.usd_per_hour_effective == pytest.approx(short.usd_per_hour_list)


def test_time_is_rounded_as_the_provider_bills_it() -> None:
    assert billed_hours(1.0, 1, 3600, 3600) == 1
    assert billed_hours(1.01, 1, 3600, 3600) == 2
    assert billed_hours(10 * 30 / 3600, 10, 1, 60) == pytest.approx(10 * 60 / 3600)
    hourly = effective(
        offer("paperspace", on_demand_usd_per_hour=1.0), "on_demand", 22 * 7.5, FACTS, starts_per_month=22
    )
    seconds = effective(offer("aws", on_demand_usd_per_hour=1.0), "on_demand", 22 * 7.5, FACTS, starts_per_month=22)
    assert hourly is not None
    assert seconds is not None
    assert (hourly.billed_hours, seconds.billed_hours) == (22 * 8, 22 * 7.5)
    unknown = effective(offer("massedcompute", on_demand_usd_per_hour=1.0), "on_demand", 1.23, FACTS)
    assert unknown is not None
    assert unknown.billed_hours == 1.23
    assert any("is not known; billed as used" in note for note in unknown.notes)


@settings(deadline=None)
@given(hours=st.floats(0.01, 744), starts=st.integers(1, 1000), unit=st.sampled_from([1, 60, 3600]))
def test_what_is_billed_is_never_less_than_what_is_used(hours: float, starts: int, unit: float) -> None:
    assert billed_hours(hours, starts, unit, unit) >= hours * (1 - 1e-9)


def test_columns_equal_single_calls() -> None:
    rates, saved = np.array([1e-6, 1e-5, 1e-4]), 1800.0
    column = prices.spot_frac(rates, 60.0, 600.0, saved)
    assert column == pytest.approx([float(prices.spot_frac(r, 60.0, 600.0, saved)) for r in rates], rel=1e-15)
    used = np.linspace(0, 1, 11)
    single = [float(prices.sustained_frac(u, N1_TIERS)) for u in used]
    assert prices.sustained_frac(used, N1_TIERS) == pytest.approx(single, rel=1e-15)


@pytest.mark.parametrize(
    "wrong",
    [{"hours_per_month": 0}, {"hours_per_month": 800}, {"checkpoint_s": -1}, {"saved_every_s": 0}, {"instances": 0},
     {"interruptions_per_hour": -1}, {"restart_s": float("nan")}, {"starts_per_month": 0}],
)  # fmt: skip
def test_impossible_figures_are_refused(wrong: dict[str, float]) -> None:
    given: dict[str, float] = {"hours_per_month": 100, **wrong}
    with pytest.raises(SpecError, match="is out of range; allowed"):
        effective(offer(spot_usd_per_hour=1.0), "spot", given.pop("hours_per_month"), FACTS, **given)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="unknown purchase option"):
        effective(offer(), "lease", 100, FACTS)


def test_a_run_is_paid_from_its_start_to_its_end() -> None:
    bought = offer(on_demand_usd_per_hour=2.0, spot_usd_per_hour=1.0, reserved_1y_usd_per_hour=1.5)
    hourly = offer("paperspace", on_demand_usd_per_hour=2.0)
    asked = [
        (bought, "on_demand", 10 / 3600, 2.0 * 60 / 3600),  # at least a minute
        (bought, "on_demand", 1.5, 3.0),
        (bought, "on_demand", 2000.0, 4000.0),  # over months
        (bought, "spot", 100.0, 100.0),  # its interruptions are in the hours
        (bought, "reserved_1y", 10.0, 1.5 * 730),
        (bought, "reserved_1y", 731.0, 1.5 * 2 * 730),
        (hourly, "on_demand", 1.01, 4.0),
    ]
    for sold, purchase, hours, usd in asked:
        found = run_usd(sold, purchase, hours, FACTS)
        assert found is not None
        assert found[0] == pytest.approx(usd, rel=1e-6)
    assert run_usd(hourly, "spot", 1.0, FACTS) is None
