"""`flopwise.compare`: its sums are those of the plans, and what cannot be compared is said."""

from __future__ import annotations

import datetime as dt
import json
import math
from typing import Any

import msgspec
import pytest

import flopwise
from flopwise.api.buy_or_build import compare
from flopwise.buy_or_build.alternatives import CostComparison, MonthlyTraffic
from flopwise.errors import InfeasibleError, SpecError, UnknownNameError
from flopwise.price_import.age import age_notes

VOLUME = 1e9
AWS = {"providers": ["aws"], "gpus": ["l4", "l40s", "a100-80gb", "h100"]}


@pytest.fixture(scope="module")
def found() -> CostComparison:
    return compare(
        "Llama-3.1-8B",
        traffic=MonthlyTraffic(tokens_per_month=VOLUME, input_tokens=800, output_tokens=200),
        months=6,
        api_prices=[(0.15, 0.60)],
        method={"kind": "lora", "rank": 16},
        runs=3,
        upkeep_usd_per_month=100.0,
        constraints=AWS,
        simulate=False,
    )


def test_the_api_costs_its_price_list(found: CostComparison) -> None:
    [api] = [way for way in found.ways if way.kind == "api"]
    assert api.usd_per_month == pytest.approx(800 * 0.15 + 200 * 0.60)
    assert api.total_usd == pytest.approx(6 * 240.0)
    assert api.upfront_usd == 0


def test_own_ways_are_the_cheapest_plans(found: CostComparison) -> None:
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
    tuned_s = math.ceil(tuned.seconds)  # billed by the second
    assert ways["finetune"].upfront_usd == pytest.approx(3 * tuned.usd_per_hour * tuned_s / 3600)
    run = ways["pretrain"].training
    assert run is not None
    assert run.tokens == pytest.approx(20 * 8_030_261_248)
    for way in found.ways:
        assert len(way.cumulative_usd) == 7
        assert way.cumulative_usd[0] == way.upfront_usd
        assert way.cumulative_usd[-1] == way.total_usd
    assert [way.total_usd for way in found.ways] == sorted(way.total_usd or 0 for way in found.ways)


def test_every_figure_has_ends_and_lies_between_them(found: CostComparison) -> None:
    for way in found.ways:
        for name in ("upfront_usd", "usd_per_month", "last_usd_per_month", "total_usd", "usd_per_million_tokens"):
            low, value, high = (getattr(way, name + end) for end in ("_low", "", "_high"))
            assert low <= value <= high, (way.name, name)
            assert way.kind != "api" or low == high
        rows = zip(way.cumulative_usd_low, way.cumulative_usd, way.cumulative_usd_high, strict=True)
        assert all(low <= value <= high for low, value, high in rows)
        assert way.cumulative_usd_high[-1] == pytest.approx(way.total_usd_high)
        if way.training is not None:
            run = way.training
            assert run.seconds_low < run.seconds < run.seconds_high
            assert run.cost_usd_low < run.cost_usd < run.cost_usd_high
            assert way.upfront_usd_high == pytest.approx(run.runs * run.cost_usd_high)
    for cross in found.break_even:
        assert cross.tokens_per_month is not None
        assert cross.tokens_per_month_low is not None
        assert cross.tokens_per_month_low <= cross.tokens_per_month
        assert cross.tokens_per_month_high is None or cross.tokens_per_month <= cross.tokens_per_month_high


@pytest.mark.parametrize(("times", "cheapest"), [(0.1, "API as given"), (100.0, "open weights")])
def test_a_price_far_beyond_both_ends_settles_the_verdict(times: float, cheapest: str) -> None:
    """Own machines cost thousands of USD at either end of their errors; the API a hundred, or a hundred thousand."""
    verdict = compare(
        "Llama-3.1-8B", traffic=MonthlyTraffic(tokens_per_month=VOLUME), ways=["api", "open"], constraints=AWS,
        api_prices=[(0.15 * times, 0.60 * times)], simulate=False,
    ).decision  # fmt: skip
    assert (verdict.cheapest, verdict.chance, verdict.settled) == (cheapest, 1.0, True)


def test_the_verdict_turns_where_it_says(found: CostComparison) -> None:
    """The API's price of the verdict, given back, makes both ways cost the same."""
    made = found.decision
    assert made.cheapest == found.cheapest
    assert made.chance is not None
    assert made.settled == (made.chance >= 0.9)
    assert any("a million tokens of this mix" in why for why in made.because)
    turns = {turn.input.partition(",")[0].partition(" per ")[0]: turn for turn in made.turns}
    price = turns["price of the API"]
    assert price.times is not None
    assert price.low is not None
    assert price.high is not None
    assert price.low <= (price.at or 0.0) <= price.high
    again = compare(
        "Llama-3.1-8B",
        traffic=MonthlyTraffic(tokens_per_month=VOLUME, input_tokens=800, output_tokens=200),
        months=6,
        ways=["api", "open"],
        api_prices=[(0.15 * price.times, 0.60 * price.times)],
        upkeep_usd_per_month=100.0,
        constraints=AWS,
        simulate=False,
    )
    totals = [way.total_usd for way in again.ways]
    assert totals[0] == pytest.approx(totals[1])


def test_machines_cost_what_is_billed_not_what_is_listed() -> None:
    asked: dict[str, Any] = {
        "traffic": MonthlyTraffic(tokens_per_month=VOLUME), "ways": ["open"], "simulate": False,
        "constraints": {"providers": ["gcp"], "gpus": ["L4"]},
    }  # fmt: skip
    [spot] = compare("Llama-3.1-8B", purchase=["spot"], **asked).ways
    assert spot.serving is not None
    assert spot.serving.usd_per_hour is not None
    assert spot.serving.num_instances is not None
    listed = 730 * spot.serving.usd_per_hour * spot.serving.num_instances
    assert listed * 1.00001 < (spot.usd_per_month or 0.0) < listed * 1.05
    assert any("interruption" in note for note in spot.serving.price_notes)
    [sustained] = compare(
        "Llama-3.1-8B", traffic=MonthlyTraffic(tokens_per_month=1e7), ways=["open"], simulate=False,
        constraints={"providers": ["gcp"], "gpus": ["T4", "V100-SXM2-16"]},
    ).ways  # fmt: skip
    assert sustained.serving is not None
    assert sustained.serving.what.startswith("n1-")
    assert sustained.serving.usd_per_hour is not None
    assert sustained.serving.num_instances is not None
    paid = (sustained.usd_per_month or 0.0) / (730 * sustained.serving.usd_per_hour * sustained.serving.num_instances)
    assert paid == pytest.approx(0.7, abs=1e-6)


def test_it_is_a_document(found: CostComparison) -> None:
    plain = json.loads(json.dumps(msgspec.to_builtins(found)))
    assert plain["decision"]["turns"]
    assert plain["ways"][0]["total_usd_low"] <= plain["ways"][0]["total_usd_high"]
    for way in found.ways:
        if way.serving is not None and way.serving.filled_frac is not None:
            assert 0 < (way.serving.filled_frac_low or 0) <= way.serving.filled_frac
            assert way.serving.filled_frac <= (way.serving.filled_frac_high or 0) <= 1


def test_old_prices_are_named(found: CostComparison) -> None:
    assert not age_notes(found.price_dates(), dt.date(2026, 1, 1))
    told = age_notes(found.price_dates(), dt.date(2030, 1, 1))
    assert all("days old" in note and "flopwise prices" in note for note in told)
    whole = [part.price_date for way in found.ways for part in (way.training, way.serving) if part is not None]
    assert 1 <= len(told) <= len([day for day in whole if day]), "a price of your own has no age"


def test_at_the_break_even_volume_the_sums_are_equal(found: CostComparison) -> None:
    """The volume of the answer, given back as the traffic, costs no more on own machines than at the API."""
    [cross] = [c for c in found.break_even if c.way == "fine-tune"]
    assert cross.tokens_per_month is not None
    again = compare(
        "Llama-3.1-8B",
        traffic=MonthlyTraffic(tokens_per_month=1.02 * cross.tokens_per_month, input_tokens=800, output_tokens=200),
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
        traffic=MonthlyTraffic(tokens_per_month=1e8),
        ways=["api", "open", "pretrain"],
        api_prices=[(1.0, 2.0)],
        constraints={"gpus": ["T4"], "max_gpus": 1},
        simulate=False,
    )
    assert found.cheapest == "API as given"
    failed = [way for way in found.ways if not way.feasible]
    assert {way.kind for way in failed} == {"open", "pretrain"}
    assert all(way.reasons and way.total_usd is None for way in failed)
    assert not found.break_even


def test_nothing_feasible_is_an_error_with_reasons() -> None:
    with pytest.raises(InfeasibleError) as caught:
        compare(
            "Llama-3.1-70B",
            traffic=MonthlyTraffic(tokens_per_month=1e8),
            ways=["open"],
            constraints={"gpus": ["T4"], "max_gpus": 1},
            simulate=False,
        )
    assert caught.value.reasons


def test_the_cheapest_host_of_the_mix_is_taken() -> None:
    found = compare("Llama-3.1-8B", traffic=MonthlyTraffic(tokens_per_month=1e6), ways=["api"])
    asked = compare(
        "Llama-3.1-8B", traffic=MonthlyTraffic(tokens_per_month=1e6), ways=["api"], apis=["groq/Llama-3.1-8B"]
    )
    assert found.ways[0].total_usd is not None
    assert asked.ways[0].total_usd is not None
    assert found.ways[0].total_usd <= asked.ways[0].total_usd
    assert asked.ways[0].serving is not None
    assert asked.ways[0].serving.provider == "groq"
    assert asked.decision.against is None
    assert "a million tokens of this mix" in asked.decision.because[0]


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"apis": ["gpt-5.4-minni"]}, UnknownNameError, "gpt-5.4-mini"),
        ({"apis": ["nobody/Llama-3.1-8B"]}, UnknownNameError, "Llama-3.1-8B"),
        ({"api_prices": [(0.0, 0.0)]}, SpecError, "out of range"),
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
        compare("Llama-3.1-8B", traffic=MonthlyTraffic(tokens_per_month=1e6), ways=["api"], **changes)


@pytest.mark.parametrize(
    ("model", "given", "lengths"),
    [
        ("gpt2", {}, (768, 256)),  # a context of 1,024
        ("gpt2", {"input_tokens": 1000}, (1000, 24)),
        ("gpt2", {"tokens_per_month": "3B/1B"}, (768, 256)),
        ("gpt2", {"tokens_per_month": "1B/3B"}, (256, 768)),
        ("bert-base-uncased", {}, (512, 0)),  # it writes nothing
        ("Llama-3.1-8B", {}, (1024, 256)),
        ("Llama-3.1-8B", {"tokens_per_month": "1B/3B"}, (1024, 3072)),
    ],
)
def test_lengths_that_nobody_gives_fit_the_context(model: str, given: dict[str, Any], lengths: tuple[int, int]) -> None:
    options = {"tokens_per_month": "1B", "way": "open", **given}
    answer = compare(model, simulate=False, constraints={"gpus": ["l4"], "providers": ["aws"]}, **options)
    assert (answer.input_tokens, answer.output_tokens) == lengths


def test_traffic_out_of_range_is_refused() -> None:
    with pytest.raises(SpecError, match="tokens_per_month"):
        MonthlyTraffic(tokens_per_month=0.0)
    with pytest.raises(SpecError, match="growth_frac"):
        MonthlyTraffic(tokens_per_month=1.0, growth_frac=-1.0)
    with pytest.raises(SpecError, match=r"growth_frac: 1.5 is out of range; allowed: -0.99 to 1"):
        MonthlyTraffic(tokens_per_month=1.0, growth_frac=1.5)


def test_what_is_trained_for_longer_than_a_month_says_when_it_answers() -> None:
    """Fine-tuning of an hour is no matter; a training of a year is none of the months that are compared."""
    found = flopwise.compare("Llama-3.1-70B", tokens_per_month="20B", ttft="p95=1s", simulate=False)
    trained = {way.name: way.training.seconds for way in found.ways if way.training is not None}
    late = [note for note in found.assumptions if "of training; what answers until then" in note]
    assert trained["fine-tune"] < 30 * 24 * 3600 < trained["train from scratch"]
    assert len(late) == 1
    assert late[0].startswith("the months of 'train from scratch' begin after ")
