"""A run with an end, against sums by hand over the steps that it must take, and against the steady state."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flopwise.api.serve import serve
from flopwise.cost.cluster import cluster
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.serving.estimate import estimate
from flopwise.serving.job import ServeEstimate, ServeJob
from flopwise.serving.sim import finite
from flopwise.serving.sim.engine import replica
from flopwise.serving.sim.finite import ArrivalRun, _drifts, closed_loop_run, finite_run
from flopwise.serving.sim.request import request_of
from flopwise.serving.sim.source import Traffic
from flopwise.serving.spec import Scheduling
from named import serve_job_with

FACTS = load_facts()
H100 = cluster(FACTS.accelerator("H100-SXM-80"), gpus_per_node=8)
JOB = serve_job_with(
    model=load_model("Llama-3.1-8B"), cluster=H100, engine=replace(FACTS.engine("vllm"), plans_ahead=False, front_s=0.0,
    front_token_s=0.0, stream_s=0.0), input_tokens=512, output_tokens=16, concurrency=8, requests=8,
)  # fmt: skip


def burst(count: int, output_tokens: int | str = 16) -> Traffic:
    """`count` requests at one instant."""
    return Traffic(requests=count, users=count, input_tokens=512, output_tokens=output_tokens)


def run_estimate(job: ServeJob, traffic: Traffic, replicas: int = 1) -> ServeEstimate:
    """The estimate of one replica by the means of a run."""
    return estimate(job, finite_run(job, traffic, replicas, FACTS).means)


def test_a_burst_takes_its_prompts_and_then_its_answers() -> None:
    """Eight prompts of 512 in one step of 4,096 tokens, then 15 steps of eight sequences: 128 tokens over both."""
    cost = replica(JOB, max_tokens=528).cost
    steps_s = sum(cost.seconds(batch=8, cached=8 * (513 + n)) for n in range(15))
    found = run_estimate(JOB, burst(8))
    assert found.tpot_s is not None
    assert found.output_tokens_per_s is not None
    assert found.tpot_s.value == pytest.approx(steps_s / 15, rel=0.02)
    first_s = found.ttft_s.value
    pairs_s = cost.seconds(chunk=512, start=512) - cost.seconds(chunk=512)  # of 512 tokens that see 512 more
    whole_s = cost.seconds(chunk=4096)  # one prompt of that length: its tokens see 28 such blocks besides
    assert first_s == pytest.approx(JOB.engine.request_s + whole_s - 28 * pairs_s, rel=0.03)
    assert found.output_tokens_per_s.value == pytest.approx(8 * 16 / (first_s + steps_s), rel=0.02)


def test_draws_are_the_runs_of_one_seed_after_another() -> None:
    """The steps of all are those of their mean lengths; where requests are alike, each run is that of its seed."""
    alike = Traffic(rate=20.0, requests=50, input_tokens="512:512", output_tokens="16:16", seed=3)
    drawn = replace(alike, input_tokens="100:900", output_tokens="lognormal:64:cv=1")
    for traffic in (alike, drawn):
        together = request_of(JOB, traffic, Scheduling(), FACTS, (), draws=3)
        alone = [request_of(JOB, replace(traffic, seed=seed), Scheduling(), FACTS, ()) for seed in (3, 4, 5)]
        runs = together.run_draws(1)
        assert [run.trace.prompt.tolist() for run in runs] == [one.trace.prompt.tolist() for one in alone]
        assert [run.trace.output.tolist() for run in runs] == [one.trace.output.tolist() for one in alone]
        assert together.job.input_tokens == round(float(np.mean([one.trace.prompt.mean() for one in alone])))
        for run, one in zip(runs, alone, strict=True):
            own = one.run_fixed(1)
            assert np.nanmean(run.tpot_s) == pytest.approx(np.nanmean(own.tpot_s), rel=0 if traffic is alike else 0.003)
            assert np.nanmean(run.ttft_s) == pytest.approx(np.nanmean(own.ttft_s), rel=0 if traffic is alike else 0.003)


def test_the_longest_answer_drains_alone() -> None:
    """A burst of answers of 1 to 1,023 tokens ends with few in a step: fewer tokens a second than of 512 each."""
    job = replace(JOB, output_tokens=512, concurrency=64, requests=64)
    alike, drawn = (run_estimate(job, burst(64, output_tokens=n)) for n in (512, "1:1023"))
    assert alike.output_tokens_per_s is not None
    assert drawn.output_tokens_per_s is not None
    assert 0.45 < drawn.output_tokens_per_s.value / alike.output_tokens_per_s.value < 0.75


def test_users_beyond_those_that_are_simulated_wait_as_long_as_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 12,000 users, from the growth of 2,048 to 4,096: what the whole run says. And a million take no longer."""
    job = replace(JOB, max_batch=64, concurrency=12_000, users=None, requests=None)
    whole = closed_loop_run(job, FACTS, percentiles=("p50", "p99"))
    assert len(whole.runs[-1].trace) == 10 * 12_000
    monkeypatch.setattr(finite, "MOST_USERS", 4096)
    grown = closed_loop_run(job, FACTS, percentiles=("p50", "p99"))
    assert len(grown.runs[-1].trace) == 10 * 4096
    assert grown.estimate.ttft_s.value == pytest.approx(whole.estimate.ttft_s.value, rel=0.005)
    assert grown.estimate.requests_per_s == pytest.approx(whole.estimate.requests_per_s, rel=0.005)
    assert grown.ttft_s == pytest.approx(whole.ttft_s, rel=0.02)
    assert grown.tpot_s == pytest.approx(whole.tpot_s, rel=0.02)
    million = closed_loop_run(replace(job, concurrency=1_000_000), FACTS)
    assert len(million.runs[-1].trace) == 10 * 4096
    rate = million.estimate.requests_per_s
    assert million.estimate.ttft_s.value == pytest.approx(0.95 * 1_000_000 / rate, rel=0.01), "one round in ten is half"


def test_a_batch_job_may_have_more_requests_than_a_run() -> None:
    """Its pace is that of the first, so that a hundred times as many requests take a hundred times as long."""
    few, many = (serve("Llama-3.1-8B", gpu="h100", requests=count).estimate for count in (10_000_000, 1_000_000_000))
    assert many.requests_per_s == pytest.approx(few.requests_per_s, rel=0.001)
    assert many.ttft_s.value == pytest.approx(100 * few.ttft_s.value, rel=0.001)


def test_a_long_run_of_users_is_the_steady_state() -> None:
    """32 users with 100 requests each: tokens a second of the closed loop, whose users are as many."""
    job = replace(JOB, output_tokens=128, concurrency=32, requests=3200)
    traffic = Traffic(requests=3200, users=32, input_tokens="256:768", output_tokens="64:192")
    found, steady = run_estimate(job, traffic), estimate(replace(job, requests=None))
    assert found.throughput.value == pytest.approx(steady.throughput.value, rel=0.1)
    assert found.throughput.band.name.startswith("serving.throughput")


def test_arrivals_at_a_rate_take_their_time() -> None:
    """100 requests at 2/s take 50 s, whatever the machine could do: 2/s less the wait for the last answer."""
    traffic = Traffic(requests=100, rate=2.0, input_tokens=512, output_tokens=16)
    found = run_estimate(replace(JOB, concurrency=None, arrivals_per_s=2.0, requests=100), traffic)
    assert 1.5 < found.requests_per_s < 2.5


def test_replicas_share_a_run() -> None:
    """Twice the requests on two replicas: each does what one alone did."""
    one, two = (run_estimate(JOB, burst(8 * n), n) for n in (1, 2))
    assert two.requests_per_s == pytest.approx(one.requests_per_s, rel=0.02)
    assert two.ttft_s.value == pytest.approx(one.ttft_s.value, rel=0.02)


def test_serve_says_the_run() -> None:
    answer = serve("Llama-3.1-8B", gpu="h100", input_tokens=230, output_tokens="lognormal:224:cv=0.8", requests=320)
    endless = serve("Llama-3.1-8B", gpu="h100", input_tokens=230, output_tokens=224, concurrency=320)
    assert dict(answer.settings)["requests"] == "230 tokens in, 224 out; 320 in total, all at once"
    assert answer.estimate.requests_per_s < endless.estimate.requests_per_s
    assert not any("mean length of requests" in note for note in answer.assumptions)
    assert answer.under_load is None


def test_as_many_users_as_said_are_served_at_once() -> None:
    """A single user's prompts meet nobody's; of 16 at once the last waits for 15 others, the mean for half of them."""
    given: dict[str, Any] = {"gpu": "h100", "input_tokens": 8192, "output_tokens": 2, "requests": 16}
    alone, together = (serve("Llama-3.1-8B", concurrency=users, **given).estimate.ttft_s.value for users in (1, 16))
    assert together / alone == pytest.approx(17 / 2, rel=0.2)


@pytest.mark.parametrize(("model", "given"), [("bert-base", {}), ("Llama-3.1-8B", {"static": True, "concurrency": 4})])
def test_one_pass_and_fixed_batches_have_no_run(model: str, given: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="requests"):
        serve(model, gpu="h100", requests=10, **given)


@pytest.mark.parametrize(
    ("given", "in_flight", "decoding"),
    [
        ({"requests": 1, "concurrency": 100}, 1, 1),  # one request is never a hundred
        ({"output_tokens": 1, "concurrency": 8}, 8, None),  # users wait for their prompts, too
        ({"requests": 30, "concurrency": 4}, 4, 4),
        ({"concurrency": 32}, 32, 29.7),  # users of whom 2 in 3 seconds are left when no request follows
        ({"concurrency": 32, "closed_form": True}, 32, 31.7),
        ({"concurrency": 48, "closed_form": True}, 48, 47.5),
        ({"concurrency": 64, "closed_form": True}, 64, 63),
    ],
)
def test_in_flight_are_those_who_wait_for_an_answer(
    given: dict[str, Any], in_flight: int, decoding: float | None
) -> None:
    answer = serve("Llama-3.1-8B", gpu="h100", **given)
    assert f"with {in_flight} in flight" in answer.verdict
    if decoding is not None:
        assert answer.document()["concurrency"] == pytest.approx(decoding, abs=0.5)


def test_users_of_split_pools_are_simulated_as_others_are() -> None:
    given: dict[str, Any] = {"gpu": "h100", "prefill_gpus": 1, "concurrency": 16}
    closed, simulated = (serve("Llama-3.1-8B", closed_form=one, **given) for one in (True, False))
    assert closed.closed_loop is None
    assert simulated.closed_loop is not None
    assert simulated.estimate.ttft_s.value != closed.estimate.ttft_s.value
    assert simulated.estimate.requests_per_s == pytest.approx(closed.estimate.requests_per_s, rel=0.1)


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        ("Llama-3.1-8B", {"static": True, "concurrency": 8}, "simulate: a fixed batch"),
        ("bert-base", {"static": True, "concurrency": 8}, "simulate: a fixed batch"),
        ("bert-base", {}, "simulate: needs a load: give --concurrency or --rate"),
        ("Llama-3.1-8B", {}, "simulate: needs a load: give --concurrency or --rate"),
    ],
)
def test_what_has_no_queue_is_not_simulated(model: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        serve(model, gpu="h100", simulate=True, **given)


@pytest.mark.parametrize("way", [1, -1])
@pytest.mark.parametrize(("errors", "drifts"), [(2.9, False), (3.1, True)])
def test_a_drift_is_three_standard_errors_of_both_halves(errors: float, drifts: bool, way: int) -> None:
    """Welch 1947: halves of five spans with variances of 2.5 and 10 have means with an error of sqrt(0.5 + 2)."""
    first = np.arange(-2.0, 3.0)
    spans = np.concatenate([first, 2 * first + errors * 2.5**0.5])
    assert _drifts(way * np.stack([np.tile(first, 2), spans], axis=1)) is drifts


@pytest.mark.parametrize(("drifts", "simulated"), [(False, 500), (True, 2000)])
def test_runs_go_on_while_percentiles_change_one_way(
    monkeypatch: pytest.MonkeyPatch, drifts: bool, simulated: int
) -> None:
    for name, value in {"SETTLED_FRAC": 0.0, "LONGEST_ARRIVALS": 500, "DRIFTING_ARRIVALS": 2000}.items():
        monkeypatch.setattr(finite, name, value)
    monkeypatch.setattr(finite, "_drifts", lambda _: drifts)
    run = ArrivalRun.of(replace(JOB, arrivals_per_s=1.0, concurrency=None, requests=None), ["p50"], FACTS)
    assert len(run.simulated.trace) == simulated
