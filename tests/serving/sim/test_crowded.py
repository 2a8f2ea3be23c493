"""Users whose answers outgrow the cache: who comes last gives way and is read again, where the engine does that."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flopwise
from flopwise.backtests.serving import predict_row
from flopwise.serving.answer import ServeAnswer
from flopwise.serving.estimate import estimate, outgrows_cache
from flopwise.serving.sim.engine import replica
from flopwise.serving.sim.result import SimulatedRun
from named import FACTS

TRUTH = Path(__file__).parents[3] / "benchmarks" / "truth" / "serving.csv"
LONG: dict[str, Any] = {"gpu": "l4", "input": 200, "output": 800}


def served(users: int, **more: Any) -> ServeAnswer:
    found: ServeAnswer = flopwise.serve("Llama-3.1-8B", concurrency=users, **(LONG | more))
    return found


def room(**more: Any) -> int:
    """Users that the cache holds with answers half grown."""
    return int(flopwise.serve("Llama-3.1-8B", **(LONG | more)).estimate.max_concurrency)


def drawn_runs(gpu: str, lengths: Sequence[int], users: int) -> list[SimulatedRun]:
    """Ten requests of each user, drawn until there are 10,000, eight times at most."""
    inputs, outputs = lengths
    how: dict[str, Any] = {"gpu": gpu, "input": inputs, "output": outputs, "users": users}
    seeds = range(max(1, min(8, 1_000 // users)))
    return [flopwise.simulate("Llama-3.1-8B", seed=seed, **how).simulated for seed in seeds]


def mean(runs: Sequence[SimulatedRun], name: str) -> float:
    return float(np.mean([np.mean(getattr(run, name)) for run in runs]))


@pytest.mark.parametrize(("times", "length"), [(1.3, (200, 800)), (2, (1000, 1000)), (4, (100, 2000))])
def test_serve_says_what_the_simulator_says(times: float, length: tuple[int, int]) -> None:
    """All draws of `serve` have the steps and the cache of their mean lengths, each of these that of its own."""
    inputs, outputs = length
    users = round(times * room(input=inputs, output=outputs))
    found = served(users, input=inputs, output=outputs).estimate
    runs = drawn_runs("l4", length, users)
    assert all(run.totals.preemptions.sum() > 0 for run in runs), "the case shows nothing else"
    assert found.tpot_s is not None
    assert found.ttft_s.value == pytest.approx(mean(runs, "ttft_s"), rel=0.02)
    assert found.tpot_s.value == pytest.approx(mean(runs, "tpot_s"), rel=0.005)
    made = np.mean([run.summary().output_tokens_per_s for run in runs])
    assert found.requests_per_s * outputs == pytest.approx(made, rel=0.005)


def test_giving_way_takes_time_between_tokens_that_waiting_takes_before_the_first() -> None:
    """Those who wait for a place, as the engine's limit has it, are as quick as ever once they have one."""
    most = room()
    crowded, limited = served(4 * most), served(4 * most, max_batch=most)
    assert crowded.estimate.tpot_s is not None
    assert limited.estimate.tpot_s is not None
    assert crowded.estimate.tpot_s.value > 1.3 * limited.estimate.tpot_s.value
    assert crowded.estimate.ttft_s.value < limited.estimate.ttft_s.value
    assert crowded.estimate.requests_per_s < limited.estimate.requests_per_s
    assert any("preempted" in text for text in crowded.assumptions)
    assert not any("preempted" in text for text in limited.assumptions)


def test_only_what_can_outgrow_its_cache_is_simulated() -> None:
    job = served(1).estimate.job
    most = room()
    assert outgrows_cache(replace(job, concurrency=most + 1))
    assert not outgrows_cache(replace(job, concurrency=most))
    assert not outgrows_cache(replace(job, concurrency=2 * most, max_batch=most // 2))
    assert not outgrows_cache(replace(job, concurrency=None))
    assert not outgrows_cache(replace(job, concurrency=2 * most, static=True))
    assert not outgrows_cache(replace(job, concurrency=2 * most, requests=10))
    for name in ("sglang", "tensorrt-llm", "llama.cpp"):
        assert not outgrows_cache(replace(job, concurrency=2 * most, engine=FACTS.engine(name)))


def test_engines_that_reserve_whole_answers_never_take_them_back() -> None:
    """As many at once as have room with whole answers, in the simulator as in the estimate."""
    how: dict[str, Any] = {**LONG, "engine": "tensorrt-llm"}
    found = flopwise.serve("Llama-3.1-8B", **how).estimate
    assert found.max_concurrency == found.max_whole_contexts
    assert replica(found.job).limits.max_batch == found.max_whole_contexts
    run = flopwise.simulate("Llama-3.1-8B", users=3 * found.max_concurrency, **how)
    assert run.summary.preemptions == 0
    steady = estimate(replace(found.job, concurrency=3 * found.max_concurrency))
    assert steady.tpot_s is not None
    assert steady.tpot_s.value == pytest.approx(run.summary.tpot_s.p50, rel=0.1)


def test_a_full_cache_was_measured() -> None:
    """64 users of whom 50 have room with half an answer of 7,373 tokens, Llama-3.3-70B in 8 bits on an H100: waiting
    alone came to less than half of the time per token that giving way added, and to twice the time to the first."""
    with TRUTH.open(encoding="utf-8", newline="") as lines:
        row = next(one for one in csv.DictReader(lines) if one["id"] == "s2493")
    found = {p.quantity: p for p in predict_row(row, FACTS)}
    for quantity in ("tpot_s", "ttft_s"):
        one = found[quantity]
        assert one.measured is not None
        assert one.predicted == pytest.approx(one.measured, rel=0.15)


def test_users_with_short_answers_meet_few_prompts() -> None:
    found = flopwise.serve("Llama-3.1-8B", gpu="h100", input=1000, output=16, concurrency=8)
    assert found.estimate.tpot_s is not None
    runs = drawn_runs("h100", (1000, 16), 8)
    assert found.estimate.ttft_s.value == pytest.approx(mean(runs, "ttft_s"), rel=1e-9)
    assert found.estimate.tpot_s.value == pytest.approx(mean(runs, "tpot_s"), rel=1e-9)
    closed_form = estimate(found.estimate.job).tpot_s
    assert closed_form is not None
    assert closed_form.value > 1.2 * found.estimate.tpot_s.value, "the case shows nothing else"


def test_users_are_simulated_unless_the_closed_form_is_asked_for() -> None:
    how: dict[str, Any] = {"gpu": "h100", "input": 1024, "output": 256, "concurrency": 32}
    asked = flopwise.serve("Llama-3.1-8B", simulate=True, **how)
    plain, closed = (flopwise.serve("Llama-3.1-8B", closed_form=yes, **how) for yes in (False, True))
    assert asked.document() == plain.document()
    assert plain.closed_loop is not None
    assert closed.closed_loop is None
    assert plain.estimate.ttft_s.value != closed.estimate.ttft_s.value
    assert plain.estimate.ttft_s.value == pytest.approx(closed.estimate.ttft_s.value, rel=0.1)


def test_arrivals_with_short_answers_are_simulated_at_any_load() -> None:
    found = flopwise.serve("Llama-3.1-8B", gpu="h100", input=1000, output=16, rate=0.3)
    assert any("fewer than 100 tokens" in text for text in found.assumptions)
    alone = flopwise.serve("Llama-3.1-8B", gpu="h100", input=1000, output=16, concurrency=1)
    assert not any("simulated" in text for text in alone.assumptions)


def test_prompts_alone_are_simulated_for_users_too() -> None:
    """More users of one-token answers are never answered less often, as the closed form said from 4 users on."""
    rates = [
        flopwise.serve("gpt-oss-20b", gpu="h100", input=5000, output=1, concurrency=users).estimate.requests_per_s
        for users in (1, 2, 4, 8, 16)
    ]
    assert all(more > 0.99 * fewer for fewer, more in pairwise(rates))
    run = flopwise.simulate("gpt-oss-20b", gpu="h100", input=5000, output=1, users=4, requests=400)
    assert rates[2] == pytest.approx(run.summary.requests_per_s, rel=0.05)
