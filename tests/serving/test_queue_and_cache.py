"""`serve` with an order of its queue, with classes of requests, and with a cache of whole answers before it."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from flopwise import cli
from flopwise.api.serve import serve
from flopwise.api.simulate import simulate
from flopwise.errors import SpecError, UnknownNameError
from flopwise.options import OptionError
from flopwise.serving.sim.request import ResponseCache, computed_frac
from flopwise.serving.sim.source import Traffic
from flopwise.serving.sim.traffic import draw_requests
from flopwise.serving.spec import PriorityClass, QueueSpec

SHAPE: dict[str, Any] = {"gpu": "h100", "input_tokens": 1000, "output_tokens": 200}
CLASSES: dict[str, Any] = {"policy": "priority", "priorities": "0=20%,1=80%"}
ANSWERS: dict[str, Any] = {"response_cache": 500, "distinct": 4000, "repeated": 0.7, "cache_price": 0.02}


def test_classes_are_read_from_text_mappings_and_lists() -> None:
    wanted = (PriorityClass(0, 0.2), PriorityClass(3, 0.8))
    for said in ("0=20%,3=80%", "3=0.8, 0=0.2", {0: "20%", 3: 0.8}, ["0=0.2", "3=0.8"], wanted):
        assert QueueSpec(policy="priority", priorities=said).priorities == wanted  # type: ignore[arg-type]  # as said
    wrongs: tuple[Any, ...] = ("0=20%,1=70%", "", "0", "a=100%", "0=150%", {})
    for wrong in wrongs:
        with pytest.raises(SpecError, match="priorities"):
            QueueSpec(priorities=wrong)
    with pytest.raises(SpecError, match="each class needs its share, such as 0=20%,1=80%"):
        QueueSpec(priorities="0:0.2,1:0.8")  # type: ignore[arg-type]  # as said


def test_classes_are_drawn_beside_requests_that_stay_the_same() -> None:
    plain = Traffic(rate=10.0, requests=20_000, input_tokens="100:300")
    classes = Traffic(rate=10.0, requests=20_000, input_tokens="100:300", priorities="0=25%,5=75%")  # type: ignore[arg-type]
    alike, drawn = draw_requests(plain), draw_requests(classes)
    assert (alike.arrival_ps == drawn.arrival_ps).all()
    assert (alike.prompt == drawn.prompt).all()
    assert set(drawn.priority.tolist()) == {0, 5}
    assert np.mean(drawn.priority == 0) == pytest.approx(0.25, abs=0.01)
    with pytest.raises(SpecError, match="column priority"):
        draw_requests(Traffic(trace="any.csv", priorities="0=100%"))  # type: ignore[arg-type]  # as said


def test_users_of_the_first_class_wait_for_nobody_but_each_other() -> None:
    """200 users on 64 places: with first come, first served all wait alike; with classes almost the second alone."""
    load = SHAPE | {"concurrency": 200, "max_batch": 64}
    classes = serve("Llama-3.1-8B", **load, **CLASSES)
    alike = serve("Llama-3.1-8B", **load, simulate=True)
    assert not alike.by_priority
    first, second = classes.by_priority[0], classes.by_priority[1]
    assert first.frac == pytest.approx(0.2, abs=0.03)
    assert first.ttft_s.p50 < 0.2 * alike.estimate.ttft_s.value < second.ttft_s.p50
    # an order that leaves nobody idle changes no rate
    assert classes.estimate.requests_per_s == pytest.approx(alike.estimate.requests_per_s, rel=0.03)
    assert any("served by priority" in note for note in classes.assumptions)


@pytest.mark.parametrize("queue", [CLASSES, {"policy": "shortest"}, {"preempt": "swap"}], ids=lambda q: next(iter(q)))
def test_serve_and_simulate_agree(queue: dict[str, Any]) -> None:
    load = SHAPE | {"max_batch": 24, "rate": 7.0, "output_tokens": "100:300"} | queue
    found = serve("Llama-3.1-8B", **load)
    run = simulate("Llama-3.1-8B", requests=6000, **load).summary
    assert found.under_load is not None
    assert found.under_load.utilisation_frac > 0.6
    for percentile in ("p50", "p95"):
        assert found.under_load.ttft_s[percentile] == pytest.approx(getattr(run.ttft_s, percentile), rel=0.1)
        assert found.under_load.tpot_s[percentile] == pytest.approx(getattr(run.tpot_s, percentile), rel=0.1)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"policy": "priority", "rate": 1.0}, "needs the classes"),
        ({"priorities": "0=100%", "rate": 1.0}, "with --policy priority"),
        ({"policy": "shortest"}, "needs a load"),
        ({"preempt": "swap"}, "needs a load"),
        ({"policy": "deadline", "rate": 1.0}, "have deadlines"),
        ({"policy": "shortest", "static": True, "concurrency": 4}, "has no queue"),
        ({"response_cache": 10, "rate": 1.0}, "give distinct"),
        ({"response_cache": 10, "distinct": 10, "concurrency": 4}, "give --rate"),
        ({"response_cache": 10, "distinct": 5, "rate": 1.0}, "nothing is left to compute"),
        ({"distinct": 10, "rate": 1.0}, "needs the number of cached answers"),
    ],
)
def test_what_nothing_comes_of_is_refused(said: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        serve("Llama-3.1-8B", **SHAPE, **said)
    with pytest.raises(UnknownNameError, match="nearest: shortest"):
        serve("Llama-3.1-8B", **SHAPE, rate=1.0, policy="shortes")


def test_hits_of_a_cache_that_expires_are_those_of_renewals() -> None:
    """One prompt at r requests a second, valid t seconds after it was made: of 1 + r t requests one is computed."""
    for rate, ttl in ((2.0, 5.0), (0.5, 1.0)):
        cache = ResponseCache(entries=10, prompts=1, ttl_s=ttl)
        assert computed_frac(cache, rate) == pytest.approx(1 / (1 + rate * ttl), rel=0.03)
    lasting = ResponseCache(entries=500, prompts=4000, repeated=0.7)
    assert computed_frac(ResponseCache(entries=500, prompts=4000, repeated=0.7, ttl_s=1e9), 1.0) == pytest.approx(
        computed_frac(lasting, 1.0), rel=0.02
    )
    assert math.isinf(lasting.ttl_s)


def test_a_cache_of_answers_takes_its_hits_off_the_load() -> None:
    """Percentiles are over hits and misses; what misses is the load; the bill is shared by all requests."""
    found = serve("Llama-3.1-8B", **SHAPE, rate=20.0, **ANSWERS)
    run = simulate(
        "Llama-3.1-8B", rate=20.0, requests=30_000, **SHAPE,
        cache=ResponseCache(entries=500, prompts=4000, repeated=0.7),
    )  # fmt: skip
    cached, load = found.cached, found.under_load
    assert cached is not None
    assert load is not None
    assert run.cache is not None
    assert 1 - cached.computed_frac == pytest.approx(run.cache.hit_frac, abs=0.02)
    alone = serve("Llama-3.1-8B", **SHAPE, rate=20.0 * cached.computed_frac, simulate=True)
    assert alone.under_load is not None
    assert load.requests_per_s == 20.0
    assert load.utilisation_frac == pytest.approx(alone.under_load.utilisation_frac, rel=1e-9)
    for percentile in ("p90", "p95", "p99"):
        assert load.ttft_s[percentile] == pytest.approx(getattr(run.summary.ttft_s, percentile), rel=0.1)
        assert load.tpot_s[percentile] == pytest.approx(getattr(run.summary.tpot_s, percentile), rel=0.1)
    share = 1 - (1 - 0.95) / cached.computed_frac  # of what is computed, at the 95th percentile of all
    assert cached.percentile_of_computed("p95") == f"p{100 * share:.6f}"
    hourly = found.estimate.usd_per_hour
    assert hourly is not None
    memory = 500 * (500 + 4 * 200) / 1e9 * 0.02
    assert found.usd_per_million_requests == pytest.approx((hourly + memory) / (20.0 * 3600) * 1e6, rel=1e-6)
    tokens = (found.estimate.usd_per_million_input_tokens, found.estimate.usd_per_million_output_tokens)
    assert None not in tokens
    request_usd = sum((usd or 0.0) * count / 1e6 for usd, count in zip(tokens, (1000, 200), strict=True))
    assert request_usd * 20.0 * 3600 == pytest.approx(hourly + memory, rel=1e-6)  # the whole bill of an hour


def test_a_percentile_among_the_hits_is_that_of_a_hit(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["serve", "Llama-3.1-8B", "--gpu", "h100", "--rate", "20", "--response-cache", "500", "--distinct", "600"]
    assert cli.main([*asked, "--repeated", "90%", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["response_cache"]["hit_frac"] > 0.5
    load = shown["under_load"]
    assert (load["ttft_s"]["p50"], load["ttft_s_low"]["p50"], load["ttft_s_high"]["p50"]) == (0.005, 0.005, 0.005)
    assert load["tpot_s"]["p50"] == 0.0
    assert load["ttft_s_low"]["p99"] < load["ttft_s"]["p99"] < load["ttft_s_high"]["p99"]


def test_classes_stand_in_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--gpu", "h100", "--rate", "5", "--policy", "priority", "--priorities", "0=20%,1=80%"]
    for verb in (["serve", "Llama-3.1-8B"], ["simulate", "Llama-3.1-8B", "--requests", "500"]):
        assert cli.main([*verb, *asked]) == 0
        text = capsys.readouterr().out
        assert "By priority" in text
        assert "priority (0 20.0 %, 1 80.0 %)" in text or verb[0] == "simulate"
        assert cli.main([*verb, *asked, "--json"]) == 0
        classes = json.loads(capsys.readouterr().out)["priorities"]
        assert [one["priority"] for one in classes] == [0, 1]
        assert sum(one["frac"] for one in classes) == pytest.approx(1.0)
        assert classes[0]["ttft_s"]["p95"] > 0


def test_an_order_of_the_queue_without_a_name_is_an_option_error() -> None:
    with pytest.raises(OptionError, match="policy"):
        QueueSpec(policy="priority").check()


@pytest.mark.parametrize("command", ["serve", "simulate", "plan"])
def test_classes_need_the_order_that_has_them_in_every_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    task = ["--task", "serve"] if command == "plan" else []
    given = [command, "Llama-3.1-8B", *task, "--gpu", "h100", "--rate", "5", "--priorities", "0=20%,1=80%"]
    assert cli.main(given) == 2
    assert "with --policy priority; give it" in capsys.readouterr().err


def test_hits_come_first_among_percentiles_also_where_nothing_is_simulated() -> None:
    """Three quarters of requests are hits: the median is one, and p90 of all is p60 of what is computed."""
    asked: dict[str, Any] = {"gpu": "h100", "input": 128, "output": 1}
    found = serve("Llama-3.1-8B", **asked, rate=3.0, response_cache=1000, distinct=5000)
    assert found.cached is not None
    plain = serve("Llama-3.1-8B", **asked, rate=3.0 * found.cached.computed_frac).under_load
    load = found.under_load
    assert plain is not None
    assert load is not None
    assert load.ttft_s["p50"] == load.ttft_s_low["p50"] == 0.005
    assert plain.ttft_s["p50"] <= load.ttft_s["p90"] <= plain.ttft_s["p90"]
    assert list(load.ttft_s.values()) == sorted(load.ttft_s.values())
    assert list(load.ttft_s_low.values()) == sorted(load.ttft_s_low.values())


@pytest.mark.parametrize("rate", [1e-5, 1e-9])
def test_requests_that_are_seldom_cost_what_the_machine_does_between_them(rate: float) -> None:
    """Nobody waits for another; a request pays for the time until the next, beyond the simulator's clock as well."""
    found, alone = (serve("Llama-3.1-8B", **SHAPE, rate=one, price=2.0) for one in (rate, 1e-4))
    assert found.under_load is not None
    assert alone.under_load is not None
    assert found.usd_per_million_requests == pytest.approx(2.0 / 3600 / rate * 1e6, rel=1e-6)
    assert found.under_load.ttft_s["p50"] == pytest.approx(alone.under_load.ttft_s["p50"], rel=0.02)
    with pytest.raises(SpecError, match=r"10 requests at .* take longer than the simulator's clock, 46\.3 days"):
        simulate("Llama-3.1-8B", **SHAPE, rate=1e-9, requests=10)


def test_the_bill_of_two_replicas_has_one_cache_of_answers() -> None:
    """An hour of both and of the cache, over the 72,000 requests of it, and over their tokens in and out."""
    found = serve("Llama-3.1-8B", **SHAPE, rate=20.0, gpus=2, **(ANSWERS | {"cache_price": 5_000.0}))
    each = found.estimate
    assert found.cached is not None
    assert each.usd_per_hour is not None
    assert each.usd_per_million_input_tokens is not None
    assert each.usd_per_million_output_tokens is not None
    assert found.cached.usd_per_hour > 0
    million = (2 * each.usd_per_hour + found.cached.usd_per_hour) / 72_000 * 1e6
    assert found.usd_per_million_requests == pytest.approx(million, rel=1e-9)
    job = each.job
    tokens_usd = each.usd_per_million_input_tokens * job.input_tokens
    tokens_usd += each.usd_per_million_output_tokens * job.output_tokens
    assert tokens_usd == pytest.approx(million, rel=1e-9)
