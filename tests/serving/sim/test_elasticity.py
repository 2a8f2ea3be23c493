"""Autoscaling, replicas of other sizes and cached answers through the API: against fixed replicas and brute force."""

from typing import Any

import pytest

from flopwise.api.simulate import autoscale, simulate
from flopwise.errors import InfeasibleError, SpecError
from flopwise.serving.sim.autoscale import Autoscaling
from flopwise.serving.sim.elasticity import replica_sizes, scaled_rule
from flopwise.serving.sim.request import ResponseCache, simulation_request
from flopwise.serving.sim.result import Slo

MODEL = "Llama-3.1-8B"
HOW: dict[str, Any] = {"gpu": "l4", "input_tokens": "256:768", "output_tokens": "20:60"}
BUSY: dict[str, Any] = HOW | {"rate": 8.0, "requests": 500}
CACHE = ResponseCache(entries=200, prompts=400, repeated=0.8)


def test_a_rule_of_one_number_costs_and_serves_as_that_many_replicas() -> None:
    found = autoscale(MODEL, rule=Autoscaling(least=2, most=2), slo=Slo(ttft_s=1.0), **BUSY)
    fixed = simulate(MODEL, replicas=2, slo=Slo(ttft_s=1.0), **BUSY)
    assert found.answer.summary.ttft_s == fixed.summary.ttft_s
    assert found.answer.summary.replica_hours == pytest.approx(fixed.summary.replica_hours, rel=0.02)
    assert found.answer.cost_usd == pytest.approx(fixed.cost_usd, rel=0.02)
    replicas = dict(found.answer.settings)["replicas"]
    assert replicas.endswith(f"on average, 2 at most, {dict(fixed.settings)['replicas'].removeprefix('2, ')}")
    last = found.provisions[-1]
    assert (last.name, last.most) == ("fixed, as many on average", 2)
    assert last.cost_usd == pytest.approx(found.answer.cost_usd, rel=1e-6)


def test_the_fixed_peak_is_the_fewest_that_hold_the_share() -> None:
    slo = Slo(ttft_s=0.4)
    rule = Autoscaling(measure="concurrency", target=4, most=8, cold_start_s=5, tick_s=5)
    found = autoscale(MODEL, rule=rule, slo=slo, attain=0.95, **BUSY)
    peak = next(p for p in found.provisions if p.name == "fixed, for the peak")
    shares = {n: simulate(MODEL, replicas=n, slo=slo, **BUSY).summary.goodput_frac for n in range(1, peak.most + 1)}
    assert peak.most > 1
    assert [n for n, share in shares.items() if share >= 0.95] == [peak.most]
    assert peak.summary.goodput_frac == shares[peak.most]


def test_an_objective_below_the_step_itself_has_no_fixed_peak() -> None:
    found = autoscale(MODEL, slo=Slo(ttft_s=1e-4), attain=0.9, **HOW, rate=2.0, requests=50)
    assert found.unreached is not None
    assert "fixed, for the peak" not in {p.name for p in found.provisions}
    none = autoscale(MODEL, slo=Slo(ttft_s=1e-4), **HOW, rate=2.0, requests=50)
    assert none.unreached is not None
    assert "no attainment to compare" in none.unreached


def test_without_an_objective_the_peak_is_the_most_that_the_autoscaler_had() -> None:
    found = autoscale(MODEL, rule=Autoscaling(target=8, cold_start_s=5, tick_s=5), **BUSY)
    assert found.attain is None
    assert found.provisions[1].most == found.elastic.most == found.answer.replicas > 1


def test_an_autoscaler_saves_hours_where_traffic_has_a_wave() -> None:
    """A morning with a peak: fewer hours than the fixed peak for nearly the same share in time."""
    rule = Autoscaling(measure="concurrency", target=16, least=1, most=8, cold_start_s=60, tick_s=30)
    wave: dict[str, Any] = {"rate": 0.9, "arrivals": "diurnal", "peak": 6.0, "peak_hour": 4.0, "duration_s": 28_800.0}
    found = autoscale(MODEL, rule=rule, slo=Slo(ttft_s=1.0), attain=0.99, **HOW, **wave)
    mine, peak = found.provisions[:2]
    assert peak.most > 1
    assert mine.summary.goodput_frac > 0.9
    assert mine.replica_hours < 0.8 * peak.replica_hours


def test_rules_grow_with_the_size_of_a_replica() -> None:
    rule = Autoscaling(measure="concurrency", target=10, least=1, most=8)
    assert scaled_rule(rule, 2) == Autoscaling(measure="concurrency", target=20, least=1, most=4)
    assert scaled_rule(Autoscaling(measure="kv", target=0.5, most=8), 4).wanted_at == 0.5


def test_the_same_accelerators_in_other_sizes() -> None:
    sizes = replica_sizes(MODEL, replicas=4, slo=Slo(ttft_s=1.0), **BUSY)
    assert [(s.tp, s.most) for s in sizes] == [(1, 4), (2, 2), (4, 1)]
    for size in sizes:
        alone = simulate(MODEL, replicas=size.most, tp=size.tp, slo=Slo(ttft_s=1.0), **BUSY)
        assert size.provision is not None
        assert size.provision.summary.ttft_s == alone.summary.ttft_s
    first, last = sizes[0].provision, sizes[-1].provision
    assert first is not None
    assert last is not None
    assert last.summary.tpot_s.p50 < first.summary.tpot_s.p50


def test_a_size_that_does_not_fit_is_named_with_its_reason() -> None:
    sizes = replica_sizes("Llama-3.1-70B", gpu="h100", tp=4, replicas=1, rate=0.5, requests=20)
    assert [(s.tp, s.provision is None) for s in sizes if s.tp != 2] == [(1, True), (4, False)]
    assert "does not fit" in sizes[0].why
    with pytest.raises(InfeasibleError):
        replica_sizes("Llama-3.1-70B", gpu="h100", tp=1, replicas=2, rate=0.5, requests=20)


def test_a_cache_answers_what_repeats_and_says_what_it_saves() -> None:
    slo = Slo(ttft_s=0.5)
    answer = simulate(MODEL, replicas=2, slo=slo, cache=CACHE, attain=0.95, **BUSY)
    report = answer.cache
    assert report is not None
    assert answer.summary.completed == 500
    assert report.hits == len(answer.simulated.cached)
    assert 0 < report.hit_frac < report.long_run_frac  # it starts empty
    assert answer.summary.ttft_s.p50 < report.without.ttft_s.p50
    request = simulation_request(MODEL, **BUSY).with_cache(CACHE)
    for one, fewest in ((request, report.fewest), (request.without_cache, report.fewest_without)):
        share = [one.run_fixed(n).summary(slo).goodput_frac for n in range(1, 9)]
        assert fewest == 1 + next(place for place, value in enumerate(share) if value >= 0.95)
    assert report.fewest is not None
    assert report.fewest_without is not None
    assert report.fewest < report.fewest_without
    assert report.saved_usd is not None
    assert report.saved_usd > 0


def test_stores_of_prefixes_are_paid_with_their_replica() -> None:
    """1,000 GB at $0.0876 a month, of 730 hours: 12 cents an hour of each replica, besides its accelerator."""
    prefixes: dict[str, Any] = {**BUSY, "requests": 200, "prefixes": 4, "prefix_tokens": 128}
    rule = Autoscaling(least=2, most=2)
    plain = autoscale(MODEL, rule=rule, **prefixes)
    stored = autoscale(MODEL, rule=rule, kv_stores="nvme=1000GB@6GB/s@0.0876", **prefixes)
    assert len(stored.provisions) == 3
    for without, with_stores in zip(plain.provisions, stored.provisions, strict=True):
        assert without.cost_usd is not None
        each = without.cost_usd / without.replica_hours
        assert with_stores.cost_usd == pytest.approx((each + 0.12) * with_stores.replica_hours, rel=1e-9)
    assert stored.answer.cost_usd == pytest.approx(stored.provisions[0].cost_usd, rel=1e-9)


def test_an_autoscaler_behind_a_cache_has_fewer_replicas() -> None:
    rule = Autoscaling(target=4, cold_start_s=5, tick_s=5)
    found = autoscale(MODEL, rule=rule, cache=CACHE, compare=False, **BUSY)
    mine, bare = found.provisions
    assert mine.replica_hours < bare.replica_hours
    assert mine.summary.completed == bare.summary.completed == 500


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"users": 4}, "--users"),
        ({"rate": 1.0, "prefill_replicas": 1}, "prefill"),
        ({"rate": 1.0, "attain": 0.9}, "--ttft"),
        ({"rate": 1.0, "attain": 1.5, "slo": Slo(ttft_s=1)}, "attain: 1.5 is out of range; allowed: above 0, up to 1"),
        ({"users": 4, "cache": CACHE}, "--users"),
    ],
)
def test_contradictions_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        autoscale(MODEL, **HOW, **wrong)
    with pytest.raises(SpecError, match="replicas"):
        replica_sizes(MODEL, replicas=0, **BUSY)
