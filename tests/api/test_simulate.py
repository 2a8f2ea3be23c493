"""`flopwise.simulate`: traffic as it is asked for, the analytical model's figures where both apply, laws, bad input."""

import json
from pathlib import Path
from typing import Any

import pytest

from flopwise import cli
from flopwise.api.serve import serve
from flopwise.api.simulate import simulate
from flopwise.errors import InfeasibleError, SpecError
from flopwise.serving.sim.elasticity import replica_sizes
from flopwise.serving.sim.result import Slo
from flopwise.serving.sim.source import Traffic

HOW: dict[str, Any] = {"gpu": "h100", "input_tokens": "512", "output_tokens": "64"}
MODEL = "Llama-3.1-8B"


def test_a_closed_loop_is_what_the_analytical_model_says() -> None:
    run = simulate(MODEL, users=32, requests=1600, gpu="h100", input_tokens="512", output_tokens="64:192").summary
    same = serve(MODEL, gpu="h100", input_tokens=512, output_tokens=128, concurrency=32).estimate
    assert same.tpot_s is not None
    assert run.tpot_s.p50 == pytest.approx(same.tpot_s.value, rel=0.25)
    assert run.requests_per_s == pytest.approx(same.requests_per_s, rel=0.25)


def test_littles_law_and_conservation() -> None:
    run = simulate(MODEL, rate=10.0, requests=800, **HOW)
    found = run.summary
    assert found.completed == found.requests == 800
    inside_s = run.simulated.e2e_s.mean() - run.simulated.host_ps.mean() / 1e12
    assert found.mean_queue + found.mean_running == pytest.approx(found.requests_per_s * inside_s, rel=1e-6)
    line = run.simulated.timeline
    assert line.running.mean() + line.queue.mean() == pytest.approx(found.mean_running + found.mean_queue, rel=0.1)
    assert run.simulated.totals.output_tokens.sum() == 800 * 64


def test_the_same_seed_gives_the_same_run_and_another_another() -> None:
    first, again, other = (simulate(MODEL, rate=10.0, requests=100, seed=s, **HOW).summary for s in (1, 1, 2))
    assert first == again
    assert first.ttft_s != other.ttft_s


def test_a_trace_file_is_replayed_as_fast_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{5 + i},{100 + i},{5 + i}\n" for i in range(50))
    )
    once, twice = (simulate(MODEL, gpu="h100", trace=path, scale=s) for s in (1.0, 2.0))
    assert once.simulated.trace.arrival_ps[-1] == 49 * 10**12
    assert twice.simulated.trace.arrival_ps[-1] == 49 * 10**12 // 2
    assert once.simulated.trace.prompt.tolist() == list(range(100, 150))
    drawn = simulate(MODEL, gpu="h100", rate=5.0, requests=30, lengths_from=path).simulated.trace
    assert (drawn.prompt - drawn.output == 95).all()


def test_shared_prefixes_are_computed_once() -> None:
    how: dict[str, Any] = {
        "gpu": "h100",
        "rate": 5.0,
        "requests": 200,
        "input_tokens": "64",
        "output_tokens": "16",
        "prefixes": 2,
    }
    kept = simulate(MODEL, prefix_tokens=1024, **how).summary
    anew = simulate(MODEL, prefix_tokens=1024, prefix_cache=False, **how).summary
    assert kept.reused_frac == pytest.approx(1024 / 1088, rel=0.03)
    assert anew.reused_frac == 0
    assert kept.ttft_s.p50 < anew.ttft_s.p50


def test_goodput_counts_what_holds_the_objective() -> None:
    run = simulate(MODEL, rate=10.0, requests=300, slo=Slo(ttft_s=0.06), **HOW)
    assert run.summary.goodput_frac == pytest.approx((run.simulated.ttft_s <= 0.06).mean())
    assert 0 < run.summary.goodput_frac < 1


def test_prompts_on_replicas_of_their_own_keep_steps_of_answers_short() -> None:
    how: dict[str, Any] = {"gpu": "h100", "rate": 6.0, "requests": 200, "input_tokens": "4000", "output_tokens": "100"}
    apart = simulate(MODEL, replicas=1, prefill_replicas=1, **how)
    mixed = simulate(MODEL, replicas=2, **how)
    assert apart.replicas == mixed.replicas == 2
    assert apart.summary.itl_s.p99 < mixed.summary.itl_s.p99


def test_what_could_never_run_is_dropped_and_counted() -> None:
    run = simulate(MODEL, gpu="h100", rate=5.0, requests=50, input_tokens="1000:200000", output_tokens="10").summary
    assert run.dropped == run.drop_reasons["longer than the context window"] > 0
    assert run.completed + run.dropped == 50


def test_cost_is_hours_times_price() -> None:
    run = simulate(MODEL, rate=10.0, requests=100, replicas=3, price=2.0, **HOW)
    assert run.usd_per_hour == 6.0
    assert run.cost_usd == pytest.approx(2.0 * run.summary.replica_hours)
    assert run.summary.replica_hours == pytest.approx(3 * run.simulated.end_ps / 1e12 / 3600, rel=0.05)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, "one of --trace, --rate and --users"),
        ({"rate": 5.0, "users": 4}, "given: rate, users"),
        ({"rate": 5.0, "input_tokens": "x"}, "input tokens: 'x' is not a quantity"),
        ({"rate": 5.0, "duration_s": 5.0, "requests": 7}, "both given"),
        ({"rate": 5.0, "burstiness": 3.0}, "goes with gamma"),
        ({"rate": 5.0, "prefixes": 3}, "go together"),
        ({"rate": 5.0, "requests": 10, "replicas": 0}, "allowed: 1 to 1,000,000"),
        ({"rate": 5.0, "requests": 10, "preempt": "x"}, "not one of recompute, swap"),
        ({"rate": 5.0, "requests": 10, "max_batch": -1}, "allowed"),
        ({"users": 3, "duration_s": 10.0}, "go with --rate"),
    ],
)
def test_contradictions_are_named(said: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        simulate(MODEL, gpu="h100", **said)


def test_unknown_names_are_answered_with_the_nearest() -> None:
    wrong: list[dict[str, Any]] = [{"policy": "fcsf"}, {"balancer": "round robbin"}, {"arrivals": "poison"}]
    for said in wrong:
        with pytest.raises(SpecError, match="nearest"):
            simulate(MODEL, gpu="h100", rate=5.0, requests=10, **said)


def test_weights_that_do_not_fit_are_infeasible() -> None:
    with pytest.raises(InfeasibleError, match="does not fit"):
        simulate("Llama-3.1-70B", gpu="l4", rate=1.0, requests=10)


def test_encoders_answer_at_once() -> None:
    answer = simulate("bert-base-uncased", gpu="h100", rate=1.0, requests=10)
    assert answer.summary.completed == 10
    assert answer.document()["usd_per_million_output_tokens"] is None


def test_traffic_says_where_it_comes_from() -> None:
    with pytest.raises(SpecError, match="leave out --input"):
        Traffic(trace=Path("x"), input_tokens="5").check()


def test_the_command_answers_as_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    said = ["simulate", MODEL, "--gpu", "h100", "--rate", "5", "--requests", "60", "--ttft", "1s"]
    assert cli.main(said) == 0
    shown = capsys.readouterr().out
    assert "TTFT" in shown
    assert "goodput" in shown
    assert cli.main([*said, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
        assert set(plain[name]) == {"p50", "p90", "p95", "p99"}
    assert {
        "completed", "dropped", "preemptions", "output_tokens_per_s", "goodput_per_s", "replica_hours", "cost_usd",
    } <= set(plain)  # fmt: skip
    assert plain["completed"] == 60


@pytest.mark.parametrize(
    ("more", "code"),
    [(["--rate", "0"], 2), (["--rate", "nan"], 2), (["--trace", "missing.csv"], 2), (["--users", "0"], 2), ([], 2)],
)
def test_bad_input_is_exit_2_and_one_message(more: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", MODEL, "--gpu", "h100", *more]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") <= 3


def test_the_way_to_the_scheduler_is_no_queue() -> None:
    """Replicas that are idle half of the time keep up, however many requests are on their way to the scheduler."""
    run = simulate(MODEL, gpu="h100", rate=60.0, requests=500, input_tokens="100", output_tokens="1")
    before_s = run.simulated.request_ps / 1e12
    assert before_s > 0
    assert (run.simulated.outcome.start_ps - run.simulated.outcome.arrival_ps).min() / 1e12 >= before_s
    assert run.summary.wait_s.p50 < before_s
    assert run.summary.mean_queue < run.summary.mean_running


def test_intervals_end_at_the_floor_and_are_those_of_the_traffic(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i},100,50\n" for i in range(20)))
    traced = simulate(MODEL, gpu="h100", trace=path)
    paced = simulate(
        MODEL, gpu="h100", rate=1.0, arrivals="uniform", requests=20, input_tokens="100", output_tokens="50"
    )
    low, high = traced.intervals["tpot_s"]["p50"]
    weights_s = 2 * 7.5e9 / 3.35e12  # what all but the embedding takes at datasheet bandwidth
    assert low >= weights_s
    assert [end / traced.summary.tpot_s.p50 for end in (low, high)] == pytest.approx(
        [end / paced.summary.tpot_s.p50 for end in paced.intervals["tpot_s"]["p50"]], rel=0.02
    )


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"users": 2, "arrivals": "gamma"}, "--arrivals gamma"),
        ({"rate": 1.0, "think_s": 3.0}, "--think"),
    ],
)
def test_options_that_would_say_nothing_are_refused(said: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        simulate(MODEL, **HOW, **said)


def test_replicas_are_paid_until_the_last_answer() -> None:
    run = simulate(MODEL, rate=2.0, requests=20, replicas=3, price=2.0, **HOW)
    assert run.summary.replica_hours == pytest.approx(3 * run.simulated.outcome.finish_ps.max() / 3.6e15, rel=1e-12)
    assert run.cost_usd == pytest.approx(2.0 * run.summary.replica_hours)
    traffic = Traffic(rate=2.0, requests=20, input_tokens="512", output_tokens="64")
    same = replica_sizes(MODEL, replicas=3, traffic=traffic, gpu="h100")
    assert same[0].provision is not None
    assert same[0].provision.replica_hours == run.summary.replica_hours


@pytest.mark.parametrize(
    ("policy", "column", "values"), [("priority", "priority", "12"), ("deadline", "deadline_s", "98")]
)
def test_a_policy_that_orders_nothing_is_told(tmp_path: Path, policy: str, column: str, values: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"arrival_s,prompt_tokens,output_tokens,{column}\n0,10,5,{values[0]}\n0,10,5,{values[1]}\n")
    told, none = (
        [text for text in simulate(MODEL, gpu="h100", policy=policy, **said).assumptions if "first served" in text]
        for said in ({"rate": 1.0, "requests": 3}, {"trace": path})
    )
    assert len(told) == 1
    assert column in told[0]
    assert not none
