"""`flopwise.compare`: its sums are those of the plans, and what cannot be compared is said."""

from __future__ import annotations

from typing import Any

import pytest

import flopwise
from flopwise.api.compare_ways import Comparison, Traffic, compare
from flopwise.errors import InfeasibleError, SpecError, UnknownNameError

VOLUME = 1e9
AWS = {"providers": ["aws"]}


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare(
        "Llama-3.1-8B",
        traffic=Traffic(tokens_per_month=VOLUME, input_tokens=800, output_tokens=200),
        months=6,
        api_prices=[(0.15, 0.60)],
        method={"kind": "lora", "rank": 16},
        runs=3,
        upkeep_usd_per_month=100.0,
        constraints=AWS,
        simulate=False,
    )


def test_the_api_costs_its_price_list(found: Comparison) -> None:
    [api] = [way for way in found.ways if way.kind == "api"]
    assert api.usd_per_month == pytest.approx(800 * 0.15 + 200 * 0.60)
    assert api.total_usd == pytest.approx(6 * 240.0)
    assert api.upfront_usd == 0


def test_own_ways_are_the_cheapest_plans(found: Comparison) -> None:
    ways = {way.kind: way for way in found.ways}
    rate = VOLUME / 1000 / (730 * 3600)
    serving: dict[str, Any] = {
        "model": "Llama-3.1-8B", "task": "serve", "constraints": AWS, "simulate": False,
        "traffic": {"requests_per_s": rate, "input_tokens": 800, "output_tokens": 200},
    }  # fmt: skip
    tuning: dict[str, Any] = {
        "model": "Llama-3.1-8B", "task": "finetune", "constraints": AWS, "data": {"tokens": 50e6},
        "method": {"kind": "lora", "rank": 16},
    }  # fmt: skip
    served, tuned = flopwise.plan(serving).plans[0], flopwise.plan(tuning).plans[0]
    assert ways["open"].usd_per_month == pytest.approx(served.cost_usd + 100.0)
    assert ways["open"].upfront_usd == 0
    assert ways["finetune"].upfront_usd == pytest.approx(3 * tuned.cost_usd)
    run = ways["pretrain"].training
    assert run is not None
    assert run.tokens == pytest.approx(20 * 8_030_261_248)
    for way in found.ways:
        assert len(way.cumulative_usd) == 7
        assert way.cumulative_usd[0] == way.upfront_usd
        assert way.cumulative_usd[-1] == way.total_usd
    assert [way.total_usd for way in found.ways] == sorted(way.total_usd or 0 for way in found.ways)


def test_at_the_break_even_volume_the_sums_are_equal(found: Comparison) -> None:
    """The volume of the answer, given back as the traffic, costs no more on own machines than at the API."""
    [cross] = [c for c in found.break_even if c.way == "fine-tune"]
    assert cross.tokens_per_month is not None
    again = compare(
        "Llama-3.1-8B",
        traffic=Traffic(tokens_per_month=1.02 * cross.tokens_per_month, input_tokens=800, output_tokens=200),
        months=6,
        ways=["api", "finetune"],
        api_prices=[(0.15, 0.60)],
        method={"kind": "lora", "rank": 16},
        runs=3,
        upkeep_usd_per_month=100.0,
        constraints=AWS,
        simulate=False,
    )
    totals = {way.kind: way.total_usd or 0.0 for way in again.ways}
    assert totals["finetune"] <= totals["api"] * 1.001


def test_what_is_not_feasible_is_told_beside_the_others() -> None:
    found = compare(
        "Llama-3.1-70B",
        traffic=Traffic(tokens_per_month=1e8),
        ways=["api", "open", "pretrain"],
        api_prices=[(1.0, 2.0)],
        constraints={"gpus": ["T4"], "max_gpus": 1},
        simulate=False,
    )
    assert found.cheapest == "API api as given"
    failed = [way for way in found.ways if not way.feasible]
    assert {way.kind for way in failed} == {"open", "pretrain"}
    assert all(way.reasons and way.total_usd is None for way in failed)
    assert not found.break_even


def test_nothing_feasible_is_an_error_with_reasons() -> None:
    with pytest.raises(InfeasibleError) as caught:
        compare(
            "Llama-3.1-70B",
            traffic=Traffic(tokens_per_month=1e8),
            ways=["open"],
            constraints={"gpus": ["T4"], "max_gpus": 1},
            simulate=False,
        )
    assert caught.value.reasons


def test_the_cheapest_host_of_the_mix_is_taken() -> None:
    found = compare("Llama-3.1-8B", traffic=Traffic(tokens_per_month=1e6), ways=["api"])
    asked = compare("Llama-3.1-8B", traffic=Traffic(tokens_per_month=1e6), ways=["api"], apis=["groq/Llama-3.1-8B"])
    assert found.ways[0].total_usd is not None
    assert asked.ways[0].total_usd is not None
    assert found.ways[0].total_usd <= asked.ways[0].total_usd
    assert asked.ways[0].serving is not None
    assert asked.ways[0].serving.provider == "groq"


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"apis": ["gpt-5.4-minni"]}, UnknownNameError, "gpt-5.4-mini"),
        ({"apis": ["nobody/Llama-3.1-8B"]}, UnknownNameError, "Llama-3.1-8B"),
        ({"api_prices": [(0.0, 0.0)]}, SpecError, "free of charge"),
        ({"api_prices": [(-1.0, 2.0)]}, SpecError, "out of range"),
        ({"months": 0}, SpecError, "months"),
        ({"pretrain_tokens": 1e9}, SpecError, "pretrain: .* not compared"),
        ({"method": {"kind": "lora"}}, SpecError, "finetune: .* not compared"),
        ({"runs": 0}, SpecError, "runs"),
        ({"upkeep_usd_per_month": -5.0}, SpecError, "upkeep"),
    ],
)
def test_bad_input(changes: dict[str, Any], error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        compare("Llama-3.1-8B", traffic=Traffic(tokens_per_month=1e6), ways=["api"], **changes)


def test_traffic_out_of_range_is_refused() -> None:
    with pytest.raises(SpecError, match="tokens_per_month"):
        Traffic(tokens_per_month=0.0)
    with pytest.raises(SpecError, match="growth_frac"):
        Traffic(tokens_per_month=1.0, growth_frac=-1.0)
