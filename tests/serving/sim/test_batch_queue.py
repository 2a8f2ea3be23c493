"""A queue of requests on spot workers through the API: arithmetic, odds, facts of providers, bad input."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flopwise.api.serve import serve
from flopwise.api.simulate import batch
from flopwise.errors import InfeasibleError, MissingFactError, SpecError, UnknownNameError
from flopwise.serving.sim.batch import mean_lengths
from flopwise.serving.spec import BatchRequest

MODEL = "Llama-3.1-8B"
HOW: dict[str, Any] = {
    "gpu": "h100", "workers": 4, "spot_interruptions": 0.0, "spot_price": 1.0, "price": 4.0,
    "input_tokens": "1000", "output_tokens": "200", "trials": 200,
}  # fmt: skip


def test_without_interruptions_the_median_is_what_serve_says() -> None:
    """All memory full: requests over the rate of the workers, the boot before."""
    found = batch(MODEL, 1_000_000, **HOW)
    one = serve(MODEL, gpu="h100", input_tokens=1000, output_tokens=200).estimate
    median = one.throughput.band.median
    expected = 120 + 1_000_000 / (4 * one.requests_per_s * median)
    assert found.outcome.percentile("seconds", 0.5) == pytest.approx(expected, rel=0.02)
    assert found.outcome.interruptions.sum() == 0
    spot, paid = next(row for row in found.sweep if row.workers == 4), found.on_demand
    assert spot.p50_s == pytest.approx(paid.p50_s, rel=0.02)
    assert spot.mean_usd is not None
    assert paid.mean_usd == pytest.approx(4 * spot.mean_usd, rel=0.02)


def test_trials_spread_as_the_measured_errors_of_throughput() -> None:
    found = batch(MODEL, 1_000_000, **HOW | {"trials": 2000})
    band = found.estimate.throughput
    work = found.outcome.seconds - 120
    rates = 1_000_000 / 4 / work
    assert np.quantile(rates, 0.1) == pytest.approx(band.low, rel=0.02)
    assert np.quantile(rates, 0.9) == pytest.approx(min(band.high, band.bound or np.inf), rel=0.02)


def test_few_requests_are_not_all_in_flight_of_a_full_worker() -> None:
    few = batch(MODEL, 40, **HOW)
    assert few.queue.in_flight <= 10
    assert few.queue.requests_per_s < batch(MODEL, 1_000_000, **HOW).queue.requests_per_s


def test_more_workers_are_earlier_and_likelier_in_time() -> None:
    found = batch(MODEL, 2_000_000, deadline=4 * 3600.0, **HOW | {"spot_interruptions": 0.2 / 3600})
    rows = found.sweep
    assert [r.workers for r in rows] == sorted({2, 3, 4, 6, 8, 12, 16})
    assert [r.p50_s for r in rows] == sorted((r.p50_s for r in rows), reverse=True)
    odds = [r.met_frac or 0.0 for r in rows]
    assert odds == sorted(odds)
    fewest = found.fewest_on_demand
    assert fewest is not None
    assert fewest.met_frac is not None
    assert fewest.met_frac >= 0.9
    alone = batch(MODEL, 2_000_000, deadline=4 * 3600.0, **HOW | {"workers": fewest.workers - 1})
    assert alone.on_demand.met_frac is not None
    assert alone.on_demand.met_frac < 0.9


def test_the_provider_s_interruptions_and_prices_are_taken() -> None:
    known = {key: HOW[key] for key in ("gpu", "workers", "input_tokens", "output_tokens", "trials")}
    found = batch(MODEL, 1_000_000, provider="aws", **known)
    assert found.queue.interruptions_per_s == pytest.approx(-np.log1p(-0.10) / (30 * 86400), rel=0.05)
    assert 0 < found.queue.spot_usd_per_hour < found.queue.on_demand_usd_per_hour
    assert any("Spot Instance Advisor" in told for told in found.assumptions)
    with pytest.raises(MissingFactError, match="spot-interruptions"):
        batch(MODEL, 1_000_000, **known)


def test_a_worker_over_several_instances_is_taken_back_as_often_as_any_of_them() -> None:
    how = HOW | {"spot_interruptions": 1e-6, "workers": 1}
    two = batch("Llama-3.1-70B", 100_000, tp=4, gpus_per_node=2, **how)
    assert two.queue.interruptions_per_s == pytest.approx(2e-6)
    one = batch("Llama-3.1-70B", 100_000, tp=8, **how)
    assert one.queue.interruptions_per_s == pytest.approx(1e-6)
    assert one.queue.spot_usd_per_hour == pytest.approx(8.0)


def test_workers_of_one_instance_are_taken_back_together() -> None:
    how = HOW | {"spot_interruptions": 1e-6, "workers": 6}
    eight = batch(MODEL, 100_000, gpus_per_node=8, **how)
    assert eight.queue.workers_per_instance == 6
    assert eight.queue.interruptions_per_s == pytest.approx(1e-6)
    assert any("6 workers, which are interrupted together" in text for _, text in eight.settings)
    assert batch(MODEL, 100_000, gpus_per_node=1, **how).queue.workers_per_instance == 1
    assert batch("Llama-3.1-70B", 100_000, tp=4, gpus_per_node=8, **how).queue.workers_per_instance == 2


def test_falling_back_costs_less_than_on_demand_and_holds_the_deadline() -> None:
    how = HOW | {"spot_interruptions": 1 / 3600, "replace_s": 1800.0, "workers": 8}
    spot = batch(MODEL, 2_000_000, deadline=6 * 3600.0, **how)
    saved = batch(MODEL, 2_000_000, deadline=6 * 3600.0, fallback=16, **how)
    assert spot.outcome.met_frac is not None
    assert saved.outcome.met_frac is not None
    assert saved.outcome.met_frac > spot.outcome.met_frac
    assert saved.outcome.fell_back.any()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"fallback": 2}, "--deadline"),
        ({"checkpoint_time": 2.0}, "--checkpoint-every"),
        ({"workers": 0}, "workers"),
        ({"spot_price": -1.0}, "spot price"),
        ({"input_tokens": "many"}, "input tokens: 'many' is not a quantity"),
        ({"deadline": float("nan")}, "deadline"),
        ({"trials": 0}, "trials"),
        ({"nonsense": 1}, "nonsense"),
        ({"gpu": "h1000"}, "h1000"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises((SpecError, UnknownNameError), match=said):
        batch(MODEL, 1000, **HOW | wrong)


def test_what_does_not_fit_or_never_ends_is_infeasible() -> None:
    with pytest.raises((InfeasibleError, SpecError)):
        batch("Llama-3.1-405B", 1000, **HOW)
    with pytest.raises(InfeasibleError, match="never empties"):
        batch(MODEL, 1000, **HOW | {"spot_interruptions": 1 / 100, "cold_start": 1200.0})
    assert mean_lengths(replace(BatchRequest(queue=1), output_tokens="7")) == (1024.0, 7.0)
