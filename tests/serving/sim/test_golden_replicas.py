"""What replicas, spot workers and cached answers cost, by hand from the runs behind them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flopwise.api.serve import serve
from flopwise.api.simulate import autoscale, batch, simulate
from flopwise.serving.sim.autoscale import Autoscaling
from flopwise.serving.sim.elasticity import replica_sizes, replica_start_s
from flopwise.serving.sim.request import ResponseCache
from flopwise.serving.sim.result import Slo
from named import FACTS

MODEL, PARAMETERS = "Llama-3.1-8B", 8_030_261_248
HOW: dict[str, Any] = {"gpu": "l4", "input_tokens": "256:768", "output_tokens": "20:60", "rate": 8.0, "requests": 500}
SPOT: dict[str, Any] = {
    "gpu": "h100", "workers": 4, "spot_interruptions": 0.0, "spot_price": 1.0, "price": 4.0,
    "input_tokens": "1000", "output_tokens": "200", "trials": 100,
}  # fmt: skip


def test_a_replica_starts_a_minute_after_the_wish_and_as_its_engine_does() -> None:
    """A machine in 60 s, then process, weights by one loader from a local drive, compilation, graphs, warm-up."""
    row, drive = FACTS.engine("vllm"), FACTS.storage("nvme")
    weights_s = 2 * PARAMETERS / min(row.loader_bytes_per_s, drive.read_bytes_per_s)
    layers_s = 32 * (row.compile_s_per_layer + row.capture_s_per_layer)
    expected = 60 + row.bootstrap_s + weights_s + layers_s + row.warmup_s
    job = serve(MODEL, gpu="h100", input_tokens=1000, output_tokens=200).estimate.job
    assert replica_start_s(job, FACTS.storage("nvme"), FACTS) == pytest.approx(expected, rel=1e-9)
    assert batch(MODEL, 1_000_000, **SPOT).queue.boot_s == pytest.approx(expected, rel=1e-9)


def test_spot_workers_are_paid_by_the_accelerator_and_the_hour() -> None:
    """Two GPUs a worker at 1 and 4 USD; four workers from their boot to the last answer."""
    found = batch(MODEL, 1_000_000, tp=2, **SPOT)
    one = serve(MODEL, gpu="h100", tp=2, input_tokens=1000, output_tokens=200).estimate
    assert found.queue.requests_per_s == pytest.approx(one.requests_per_s)
    assert found.queue.in_flight == pytest.approx(one.concurrency)
    assert (found.queue.spot_usd_per_hour, found.queue.on_demand_usd_per_hour) == (2.0, 8.0)
    assert found.outcome.usd == pytest.approx(found.outcome.seconds / 3600 * 4 * 2.0)
    speeds = np.sort(1_000_000 / (found.outcome.seconds - found.queue.boot_s) / 4 / one.requests_per_s)
    assert float(np.median(speeds)) == pytest.approx(one.throughput.band.median, rel=0.02)
    assert found.long_run_frac == 1.0


def test_fixed_replicas_are_paid_until_the_last_answer() -> None:
    found = simulate(MODEL, replicas=3, price=2.0, **HOW)
    ended_s = float((found.simulated.outcome.finish_ps.max()) / 1e12)
    assert found.summary.replica_hours == pytest.approx(3 * ended_s / 3600, rel=1e-6)
    assert found.usd_per_hour == 6.0
    assert found.cost_usd == pytest.approx(6.0 * ended_s / 3600, rel=1e-6)


def test_an_autoscaler_pays_the_hours_of_its_replicas() -> None:
    """Two GPUs a replica at 2 USD."""
    rule = Autoscaling(target=4, cold_start_s=5, tick_s=5, most=4)
    found = autoscale(MODEL, rule=rule, tp=2, price=2.0, **HOW)
    lives_s = sum(
        ((life.off_ps if life.off_ps > 0 else found.elastic.end_ps) - life.wished_ps) / 1e12
        for life in found.elastic.lives
    )
    mine, peak = found.provisions[:2]
    assert mine.replica_hours == pytest.approx(found.elastic.paid_s / 3600)
    assert found.elastic.paid_s == pytest.approx(lives_s, rel=1e-6)
    assert mine.cost_usd == pytest.approx(mine.replica_hours * 4.0)
    ended_s = float(simulate(MODEL, replicas=peak.most, tp=2, **HOW).simulated.outcome.finish_ps.max()) / 1e12
    assert peak.replica_hours == pytest.approx(peak.most * ended_s / 3600, rel=1e-6)
    assert peak.cost_usd == pytest.approx(peak.replica_hours * 4.0)


def test_sizes_of_one_fleet_cost_alike_by_the_hour() -> None:
    for size in replica_sizes(MODEL, replicas=4, price=2.0, **HOW):
        assert size.provision is not None
        assert size.provision.cost_usd == pytest.approx(size.provision.replica_hours * size.tp * 2.0)


def test_a_cache_saves_the_replicas_that_it_makes_needless_and_costs_its_memory() -> None:
    """200 entries of 500 bytes and 4 a token of the mean answer, at 1,000 USD a GB and hour; 1.5 USD a replica."""
    cache = ResponseCache(entries=200, prompts=400, repeated=0.8, usd_per_gb_hour=1000.0)
    found = simulate(
        MODEL, replicas=2, slo=Slo(ttft_s=0.4), cache=cache, attain=0.95, price=1.5, **HOW
    )  # fmt: skip
    report = found.cache
    assert report is not None
    assert report.fewest is not None
    assert report.fewest_without is not None
    hours = found.simulated.end_ps / 1e12 / 3600
    memory = 200 * (500 + 4 * float(found.simulated.trace.output.mean())) / 1e9 * 1000.0 * hours
    assert report.usd == pytest.approx(memory, rel=1e-6)
    saved = (report.fewest_without - report.fewest) * 1.5 * hours - memory
    assert report.saved_usd == pytest.approx(saved, rel=1e-6)
    assert report.hit_frac == pytest.approx(len(found.simulated.cached) / 500)


def test_three_replicas_pay_for_the_whole_machine_that_they_share() -> None:
    """Each of one device, on a machine of eight at its listed price an hour."""
    where: dict[str, Any] = {"provider": "aws", "instance": "p5.48xlarge", "region": "us-east-1"}
    (offer,) = FACTS.offers_for(**where)
    found = simulate("Llama-3.1-8B", **where, rate=3.0, requests=30, replicas=3)
    assert found.usd_per_hour == pytest.approx(offer.on_demand_usd_per_hour)
    assert found.cost_usd == pytest.approx(found.simulated.paid_s / 3600 * (offer.on_demand_usd_per_hour or 0.0))
