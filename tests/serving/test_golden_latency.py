"""TTFT, TPOT and rates by hand: closed loops, fixed batches, random arrivals, prompts in pieces, pipelines."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from plain_machine import ENGINE, plain_job, plain_runner, step_s

from flopwise.facts.models.catalog import load_model
from flopwise.serving.closed_loop import closed_loop
from flopwise.serving.deployment import paid_gpus
from flopwise.serving.estimate import burst_per_s, estimate
from flopwise.serving.iteration import Runner, whole_prompts
from flopwise.serving.memory import ServingLayout
from flopwise.serving.open_loop import OpenLoop, SteadyCurves, _queue_wait, _Spread, in_flight_at
from flopwise.serving.steady import fixed_batch, least_prompt_s
from named import FACTS

ONE = ServingLayout()
MACHINE = plain_runner()
INPUT, OUTPUT = 1024, 256
AHEAD = 1.5
"""Steps that a request does not see in its engine: half of the one that runs, and the one that is planned already."""
HALF_WAY = INPUT + OUTPUT / 2
"""Mean context of sequences that decode: the prompt, and half of an answer of equal chances to be anywhere."""


def test_a_user_alone_sees_his_own_steps_only() -> None:
    """TPOT: a step at the mean context. TTFT: the server's part of a request, and one step with the whole prompt."""
    found = closed_loop(MACHINE, ONE, 1.0, INPUT, OUTPUT)
    tpot_s = step_s(1, HALF_WAY)
    ttft_s = ENGINE.request_s + step_s(chunk=INPUT, seen=INPUT)
    assert float(found.tpot_s) == pytest.approx(tpot_s, rel=1e-9)
    assert float(found.ttft_s) == pytest.approx(ttft_s, rel=1e-9)
    assert float(found.requests_per_s) == pytest.approx(1 / (ttft_s + 255 * tpot_s), rel=1e-9)
    assert float(found.output_tokens_per_s) == pytest.approx(256 / (ttft_s + 255 * tpot_s), rel=1e-9)


@pytest.mark.parametrize("outputs", [2, 12, 256])
def test_a_user_alone_has_one_step_less_where_prompts_have_steps_of_their_own(outputs: int) -> None:
    """SGLang: the step of the prompt decodes nothing, and the next one brings the second token."""
    apart = plain_runner(plain_job(engine=replace(ENGINE, mixes=False, request_s=0.0)))
    found = closed_loop(apart, ONE, 1.0, 128, outputs)
    ttft_s, answer_s = step_s(chunk=128, seen=128), (outputs - 1) * step_s(1, 128 + outputs / 2)
    assert float(found.ttft_s) == pytest.approx(ttft_s, rel=1e-9)
    assert float(found.requests_per_s) == pytest.approx(1 / (ttft_s + answer_s), rel=1e-9)


def test_a_long_prompt_goes_in_pieces_of_the_engines_budget() -> None:
    """Sarathi-Serve (arXiv:2403.02310): 16,384 tokens in two steps of 8,192, which see 8,192 and 16,384 at the end."""
    found = closed_loop(MACHINE, ONE, 1.0, 16_384, OUTPUT)
    one_s = step_s(chunk=8192, seen=(8192 + 16_384) / 2)
    assert float(found.ttft_s) == pytest.approx(ENGINE.request_s + 2 * one_s, rel=1e-9)


def test_users_wait_for_prompts_of_others() -> None:
    """32 users. An answer of 256 tokens brings one prompt of one step, and waits for the steps that the engine is ahead
    of it: 256 of 258.5 steps of a user decode. Every step 31.5 x 1024 / 256 prompt tokens fall due, an eighth of a
    prompt; each user brings one in a step with equal chances, so that a binomial number of them share a step.

    In one round of ten all begin together: eight prompts fill a step, and the mean of four steps is 2.5. In the others
    they come within a time that grows with the spread of lengths, and find those who happen to wait; the last term is
    of those that came in the same step. Each of 31 others has one prompt for each of his: the ones that he waits for,
    half of them in the first round, make no token of his later."""
    users = 32
    others = (users - 1) / users  # of the prompts are not his own
    decoding = users * OUTPUT / (OUTPUT + 1 + AHEAD * others)
    due = decoding * INPUT / OUTPUT / INPUT
    share = 1 - (1 - due / users) ** users
    decode_s, together = step_s(decoding, HALF_WAY), due / share
    mixed_s = step_s(decoding, HALF_WAY, together * INPUT, INPUT, prompts=together)
    added_s = (mixed_s - decode_s) / together  # by one prompt
    tpot_s = decode_s + others * share * (mixed_s - decode_s)
    mean_s = decode_s + share * (mixed_s - decode_s)
    planned_s, alone_s, each_s = AHEAD * others * mean_s, decode_s + added_s, added_s + decode_s / 8
    first_s = 2.5 * step_s(decoding / 2, HALF_WAY, 8192, INPUT, prompts=8) - alone_s
    away_s = 255 * tpot_s + planned_s
    within_s = min(away_s, math.sqrt(12 * 3 * (1 / 9 / math.sqrt(3) * (alone_s + away_s)) ** 2 + (users * each_s) ** 2))
    queue_s = _response_s(users, each_s, within_s) - each_s
    busy = users * each_s / (alone_s + queue_s + away_s)
    longer = (decode_s**2 + share * (mixed_s**2 - decode_s**2)) / mean_s**2
    beside_s = others * (1 - busy) * longer * due * added_s * 7 / 8
    waits_s = planned_s * (1 - busy) + 0.1 * first_s + 0.9 * (queue_s + beside_s)
    ttft_s = ENGINE.request_s + waits_s + alone_s
    waited_for = (queue_s * added_s / each_s + beside_s) / added_s  # prompts of others, of 31
    met = 0.1 * 0.5 + 0.9 * (1 - waited_for / 31)
    token_s = decode_s + met * (tpot_s - decode_s)
    found = closed_loop(MACHINE, ONE, float(users), INPUT, OUTPUT)
    per_s = users / (ttft_s + 255 * token_s)
    assert float(found.batch) == pytest.approx(decoding, rel=1e-9)
    assert float(found.prefill_share) == pytest.approx(share, rel=1e-9)
    assert float(found.tpot_s) == pytest.approx(token_s, rel=1e-9)
    assert float(found.requests_per_s) == pytest.approx(per_s, rel=1e-9)
    assert float(found.ttft_s) == pytest.approx(ttft_s, rel=1e-9)


def _response_s(users: int, service_s: float, away_s: float) -> float:
    """Schweitzer's approximation, iterated: whom a user finds, one user less, and half of the one in service less."""
    response_s = service_s
    for _ in range(500):
        cycle_s = response_s + away_s
        there, serving = users * response_s / cycle_s, users * service_s / cycle_s
        response_s = service_s * (1 + (users - 1) / users * (there - serving / 2))
    return response_s


def test_replicas_whose_requests_are_alike_read_prompts_in_the_same_steps() -> None:
    """Mixtral on 8 attention replicas: one of them has a prompt in many a step, or all of them have one in few."""
    machine = plain_runner(plain_job(model=load_model("Mixtral-8x7B")))
    layout = ServingLayout(dp=8, ep=8)
    apart, alike = (closed_loop(machine, layout, 16.0, INPUT, OUTPUT, alike=a) for a in (False, True))
    own = float(alike.prefill_share)
    assert float(apart.prefill_share) == pytest.approx(1 - (1 - own) ** 8, rel=1e-6)
    assert float(alike.mixed.seconds) > 1.5 * float(apart.mixed.seconds)
    one = closed_loop(machine, ONE, 16.0, INPUT, OUTPUT), closed_loop(machine, ONE, 16.0, INPUT, OUTPUT, alike=True)
    assert float(one[0].requests_per_s) == float(one[1].requests_per_s)


def test_prompts_that_fill_every_step_hold_decoding_back() -> None:
    """Answers of 16 tokens to prompts of 4,096: a budget of 8,192 admits two prompts a step, so 32 sequences decode."""
    found = closed_loop(MACHINE, ONE, 500.0, 4096, 16)
    decoding = 8192 * 16 / 4096
    full_s = step_s(decoding, 4096 + 8, 8192, 4096, prompts=2)
    assert float(found.batch) == pytest.approx(decoding)
    assert float(found.prefill_share) == 1.0
    assert float(found.requests_per_s) == pytest.approx(decoding / (16 * full_s), rel=1e-9)
    decode_s = step_s(decoding, 4096 + 8)
    met_s = decode_s + 499 / 500 * (full_s - decode_s)  # whoever decodes meets prompts of others in every step
    assert float(found.tpot_s) == pytest.approx(met_s, rel=1e-9)


@pytest.mark.parametrize(("users", "inputs", "outputs"), [(64, 512, 2), (16, 2048, 4), (200, 256, 8)])
def test_short_answers_are_no_more_than_the_steps_have_time_for(users: int, inputs: int, outputs: int) -> None:
    """Utilisation law: a request takes the part of its prompt, and of the steps in which it decodes, or which it misses
    before its own, those of all users together; what that is beyond the time of waits and steps makes both longer, as
    far as all steps of an answer carry prompts: with 200 users."""
    rounds = outputs + AHEAD * (users - 1) / users
    decoding = users * outputs / (rounds + 1)
    due = decoding / outputs
    together = due / (1 - (1 - due / users) ** users)
    decode_s = step_s(decoding, inputs + outputs / 2)
    mixed_s = step_s(decoding, inputs + outputs / 2, together * inputs, inputs, prompts=together)
    at_most = 8192 // inputs
    full_s = step_s(decoding, inputs + outputs / 2, 8192, inputs, prompts=at_most)
    prompt_s = min((mixed_s - decode_s) / together, (full_s - decode_s) / at_most)
    found = closed_loop(MACHINE, ONE, float(users), inputs, outputs)
    per_s = 1 / (prompt_s + rounds / users * decode_s)
    assert float(found.requests_per_s) == pytest.approx(per_s, rel=1e-9)
    whole_s = float(found.ttft_s) + (outputs - 1) * float(found.tpot_s)
    assert whole_s == pytest.approx(users / per_s, rel=1e-9)
    assert decode_s < float(found.tpot_s) <= mixed_s * (1 + 1e-9)
    assert (float(found.tpot_s) == pytest.approx(mixed_s, rel=1e-9)) is (users == 200)


def test_a_burst_is_answered_in_waves() -> None:
    """100 requests of which 40 run at once: two full waves and one of 20, each as long as a round of so many users."""
    rates = np.asarray(closed_loop(MACHINE, ONE, np.array([40.0, 20.0]), INPUT, OUTPUT).requests_per_s)
    seconds = 2 * 40 / float(rates[0]) + 20 / float(rates[1])
    assert burst_per_s(MACHINE, ONE, 100.0, np.array([40.0]), INPUT, OUTPUT) == pytest.approx(100 / seconds, rel=1e-12)
    full = burst_per_s(MACHINE, ONE, 80.0, np.array([40.0]), INPUT, OUTPUT)
    assert full == pytest.approx(float(rates[0]), rel=1e-12)
    few = burst_per_s(MACHINE, ONE, 20.0, np.array([40.0, 50.0]), INPUT, OUTPUT)  # no more than there are
    assert few == pytest.approx(float(rates[1]), rel=1e-12)
    either = burst_per_s(MACHINE, ONE, 40.0, np.array([40.0, 20.0]), INPUT, OUTPUT)
    mean_s = (40 / float(rates[0]) + 40 / float(rates[1])) / 2  # memory for 40 or for 20, as likely as each other
    assert either == pytest.approx(40 / mean_s, rel=1e-12)


def test_micro_batches_of_a_pipeline_follow_one_another() -> None:
    """Four stages, 64 users: four batches of 16, each step longer by 3 x `stage_loss` for stages that wait."""
    decoding = 16 * OUTPUT / (OUTPUT + 1 + AHEAD * 15 / 16)
    slower = 1 + 3 * ENGINE.stage_loss
    found = closed_loop(MACHINE, ServingLayout(pp=4), 64.0, INPUT, OUTPUT)
    assert float(found.decode.seconds) == pytest.approx(slower * step_s(decoding, HALF_WAY, pp=4), rel=1e-9)
    due = decoding / OUTPUT
    each = due / (1 - (1 - due / 16) ** 16)
    mixed_s = slower * step_s(decoding, HALF_WAY, each * INPUT, INPUT, prompts=each, pp=4)
    assert float(found.mixed.seconds) == pytest.approx(mixed_s, rel=1e-9)
    assert float(found.batch) == pytest.approx(4 * decoding, rel=1e-9)
    whole_s = float(found.ttft_s) + 255 * float(found.tpot_s)
    assert float(found.requests_per_s) == pytest.approx(64 / whole_s, rel=1e-6)


def test_a_fixed_batch_reads_its_prompts_and_then_decodes() -> None:
    """16 prompts of 1,024 in two steps of eight; no server stands before them."""
    found = fixed_batch(MACHINE, ONE, 16.0, INPUT, OUTPUT)
    ttft_s, tpot_s = 2 * step_s(chunk=8192, seen=INPUT, prompts=8), step_s(16, HALF_WAY)
    assert float(found.ttft_s) == pytest.approx(ttft_s, rel=1e-9)
    assert float(found.tpot_s) == pytest.approx(tpot_s, rel=1e-9)
    assert float(found.requests_per_s) == pytest.approx(16 / (ttft_s + 255 * tpot_s), rel=1e-9)


def test_a_fixed_batch_fills_the_stages_of_a_pipeline_once() -> None:
    """Four rounds of prompts through two stages: (4 + 2 - 1) / 2 passes through all of them."""
    found = fixed_batch(MACHINE, ServingLayout(pp=2), 32.0, INPUT, OUTPUT)
    assert float(found.ttft_s) == pytest.approx(5 / 2 * step_s(chunk=8192, seen=INPUT, prompts=8, pp=2), rel=1e-9)
    tpot_s = (1 + ENGINE.stage_loss) * step_s(16, HALF_WAY, pp=2)
    assert float(found.tpot_s) == pytest.approx(tpot_s, rel=1e-9)


# ---- requests that arrive at random


def loop_at(machine: Runner, users: float, per_s: float, inputs: int, outputs: int, more_s: float = 0.0) -> OpenLoop:
    """Random arrivals where as many decode as of `users` in a closed loop, and one more takes `more_s` a step."""
    sizes = np.array([[users]])
    steady = closed_loop(machine, ONE, sizes.ravel(), inputs, outputs)
    curves = SteadyCurves.of(machine, ONE, sizes, steady, inputs, outputs)
    there = curves.steady._replace(batch=np.array([[float(np.asarray(steady.batch)[0])]]))
    return OpenLoop(curves, np.array([[per_s]]), there, np.array([[more_s]]))


def test_the_wait_is_that_of_pollaczek_and_khinchine() -> None:
    """M/D/1 for prompts before one: rho s / (2 (1 - rho)), s what a budget full of prompts takes for each. Where there
    are none, half of a step and the one that is planned; in these and in its own are the prompts of a step each, of
    which a request meets a longer one than most."""
    per_s = 12.0
    loop = loop_at(MACHINE, 40.0, per_s, INPUT, OUTPUT)
    decoding = 40 * OUTPUT / (OUTPUT + 1 + AHEAD * 39 / 40)
    due = decoding / OUTPUT
    share = 1 - (1 - due / 40) ** 40
    decode_s = step_s(decoding, HALF_WAY)
    mixed_s = step_s(decoding, HALF_WAY, due / share * INPUT, INPUT, prompts=due / share)
    added_s = (mixed_s - decode_s) * share / due
    mean_s = decode_s + share * (mixed_s - decode_s)
    each_s = step_s(decoding, HALF_WAY, 8192, INPUT, prompts=8) / 8
    rho = per_s * each_s
    assert 0.1 < rho < 0.5
    planned = AHEAD * (1 - rho)
    longer_s = (decode_s**2 + share * (mixed_s**2 - decode_s**2)) / mean_s
    beside = per_s * (planned + 1) * longer_s * (1 - 1 / 8)
    expected = (
        ENGINE.request_s + decode_s + added_s + planned * decode_s
        + beside * added_s + rho * each_s / (2 * (1 - rho))
    )  # fmt: skip
    mean = loop.percentile("mean")
    assert np.asarray(mean.ttft_s).item() == pytest.approx(expected, rel=1e-9)
    assert np.asarray(mean.tpot_s).item() == pytest.approx(
        mean_s + per_s * (rho * each_s / (2 * (1 - rho)) + added_s) * added_s / 255 / (1 - per_s * added_s), rel=1e-9
    )
    variance = decode_s**2 / 12 + beside * added_s**2 + rho / (1 - rho) * each_s**2 / 3
    variance += (rho / (1 - rho) * each_s / 2) ** 2
    p50, p99 = (np.asarray(loop.percentile(name).ttft_s).item() for name in ("p50", "p99"))
    assert p50 < expected
    assert expected + 2.3263 * math.sqrt(variance) < p99 < expected + 4 * math.sqrt(variance)


def test_waits_have_the_moments_of_a_queue_that_is_played() -> None:
    """Lindley's recursion over 400,000 requests, 60 and 80 % busy; percentiles of the wait beside a normal time."""
    rng = np.random.default_rng(5)
    for rho in (0.6, 0.8):
        gaps, waits = rng.exponential(1 / rho, 400_000), np.zeros(400_000)
        for i in range(1, len(waits)):
            waits[i] = max(waits[i - 1] + 1.0 - gaps[i], 0.0)
        found = _queue_wait(rho, 1.0)
        assert float(found.mean) == pytest.approx(waits.mean(), rel=0.05)
        assert float(found.variance) == pytest.approx(waits.var(), rel=0.1)
        assert float(found.third) == pytest.approx(((waits - waits.mean()) ** 3).mean(), rel=0.2)
        times = waits + rng.normal(5.0, 1.0, len(waits))
        whole = found.plus(_Spread(5.0, 1.0, 0.0))
        for name, share in (("p50", 50), ("p95", 95), ("p99", 99)):
            assert float(whole.at(name)) == pytest.approx(np.percentile(times, share), rel=0.05)


def test_answers_meet_the_batch_and_the_prompts_of_the_same_arrivals() -> None:
    """Shots of a Poisson stream, played: 20 answers under way on average, each of 100 steps."""
    machine = plain_runner()
    loop = loop_at(machine, 20.0, 1e-6, INPUT, 101, more_s=2e-4)
    batch = np.asarray(loop.steady.batch).item()
    each_s = np.asarray(loop.steady.added_s).item() / 100
    rng = np.random.default_rng(2)
    sums = np.empty(20_000)
    for i in range(len(sums)):
        before, after = rng.random(rng.poisson(batch)), rng.random(rng.poisson(batch))
        sums[i] = 2e-4 * (before.sum() + after.sum()) + each_s * len(after)
    found = loop._each_token
    assert np.asarray(found.variance).item() == pytest.approx(sums.var(), rel=0.05)
    assert np.asarray(found.third).item() == pytest.approx(((sums - sums.mean()) ** 3).mean(), rel=0.25)


def test_pieces_of_a_prompt_are_served_one_after_another() -> None:
    """Two pieces of 8,192, which fill the budget of a step each: nobody else's prompt is in them."""
    per_s = 0.3
    context, decoding = 16_384 + OUTPUT / 2, 4 * OUTPUT / (OUTPUT + 2 + AHEAD * 3 / 4)
    piece_s, decode_s = step_s(decoding, context, 8192, 12_288), step_s(decoding, context)
    rho = per_s * 2 * piece_s
    wait_s = rho * 2 * piece_s / (2 * (1 - rho))
    under_way = 1 - math.exp(-decoding)
    planned_s = under_way * (1 - rho) * AHEAD * decode_s
    found = loop_at(MACHINE, 4.0, per_s, 16_384, OUTPUT).percentile("mean")
    expected = ENGINE.request_s + 2 * piece_s + wait_s + planned_s
    assert np.asarray(found.ttft_s).item() == pytest.approx(expected, rel=1e-9)


def test_as_many_are_in_flight_as_the_rate_of_arrivals_asks_for() -> None:
    """Little's law: as many decode as come while one decodes; below what one user reaches, a share of one."""
    curves = SteadyCurves.up_to(MACHINE, ONE, 200.0, INPUT, OUTPUT)
    for per_s in (2.0, 10.0):
        found = curves.at(np.array([[per_s]])).steady
        mean_s = found.decode.seconds + found.prefill_share * (found.mixed.seconds - found.decode.seconds)
        assert np.asarray(found.batch).item() == pytest.approx(per_s * OUTPUT * np.asarray(mean_s).item(), rel=0.02)
    twenty = closed_loop(MACHINE, ONE, 20.0, INPUT, OUTPUT)
    job = estimate(plain_job(arrivals_per_s=float(twenty.requests_per_s), max_batch=200))
    assert job.concurrency == pytest.approx(float(twenty.batch), rel=0.02)
    assert job.requests_per_s == float(twenty.requests_per_s)
    per_s = 0.5 * float(closed_loop(MACHINE, ONE, 1.0, INPUT, OUTPUT).requests_per_s)
    calm = estimate(plain_job(arrivals_per_s=per_s, max_batch=200))
    mixed_s = step_s(1, HALF_WAY, INPUT, INPUT)
    wait_s = (1 - math.exp(-0.5)) * AHEAD * step_s(1, HALF_WAY)  # if an answer is under way
    assert calm.ttft_s.value == pytest.approx(ENGINE.request_s + mixed_s + wait_s, rel=0.01)
    assert calm.concurrency == pytest.approx(0.5, rel=0.02)


def test_the_closed_forms_have_the_same_terms() -> None:
    """A user alone waits for its own tokens only; random arrivals for each other as well; users' rate is bounded."""
    machine = plain_runner(front_s=0.002, front_token_s=1e-6, stream_s=1e-4)
    more = float(closed_loop(machine, ONE, 1.0, 1024, 256).ttft_s - closed_loop(MACHINE, ONE, 1.0, 1024, 256).ttft_s)
    assert more == pytest.approx(1024e-6, rel=1e-6)
    steady = closed_loop(MACHINE, ONE, 16.0, 1024, 256)
    calm, busy = (
        np.asarray(loop_at(m, 16.0, 4.0, 1024, 256).percentile("mean").ttft_s).item() for m in (MACHINE, machine)
    )
    rho = 4.0 * 3.024e-3
    queue_s = rho * 3.024e-3 / (2 * (1 - rho))
    assert float(busy - calm) == pytest.approx(1024e-6 + queue_s + float(steady.batch) * 1e-4, rel=1e-6)
    stuck = closed_loop(plain_runner(stream_s=1e-3), ONE, 100.0, 1024, 256)
    assert float(stuck.output_tokens_per_s) <= 1000 * (1 + 1e-9)
    assert float(stuck.tpot_s) == pytest.approx(float(stuck.batch) * 1e-3)


# ---- what an estimate makes of it


def test_the_bound_of_a_first_token_is_its_prompt_at_datasheet_rates() -> None:
    """Products and attention of 8,192 tokens in full, and half of the pairs, at the peak rate, without the host."""
    weights = 32 * (4096 * (6144 + 4096) + 3 * 4096 * 14336)
    flops = 2 * 8192 * weights + 2 * 128256 * 4096 + 32 * 4 * 32 * 128 * 8192 * 8193 / 2
    found = float(np.asarray(least_prompt_s(MACHINE, ONE, 8192)))
    assert found == pytest.approx(flops / 989.4e12, rel=0.01)
    two = float(np.asarray(least_prompt_s(MACHINE, ServingLayout(pp=2), 16_384)))
    whole = float(np.asarray(least_prompt_s(MACHINE, ONE, 16_384)))
    assert two == pytest.approx(whole / 2, rel=1e-9)  # two pieces in two stages


def test_requests_beyond_the_memory_wait_until_others_are_done() -> None:
    most = estimate(plain_job(concurrency=None)).max_concurrency
    full, crowded = (estimate(plain_job(concurrency=n)) for n in (most, most + 1000))
    waiting_s = 1000 / full.requests_per_s
    assert crowded.ttft_s.value == pytest.approx(full.ttft_s.value + waiting_s, rel=1e-9)
    assert crowded.e2e_s == pytest.approx(full.e2e_s + waiting_s, rel=1e-9)


def test_attention_replicas_divide_the_requests() -> None:
    """Two replicas with 16 of 32 requests each: twice the rate of one with 16, the same latencies."""
    two, one = estimate(plain_job(concurrency=32, layout=ServingLayout(dp=2))), estimate(plain_job(concurrency=16))
    assert two.requests_per_s == pytest.approx(2 * one.requests_per_s, rel=1e-9)
    assert two.ttft_s.value == pytest.approx(one.ttft_s.value, rel=1e-9)
    assert two.concurrency == pytest.approx(2 * one.concurrency, rel=1e-9)
    assert two.max_concurrency == 2 * one.max_concurrency


def test_an_encoder_answers_with_one_pass_over_its_batch() -> None:
    """BERT (arXiv:1810.04805): 12 layers of 768 with 3,072 inside, bidirectional: all pairs of 512 tokens."""
    found = estimate(plain_job(model=load_model("bert-base-uncased"), input_tokens=512, concurrency=64))
    rows, layer = 64 * 512, 4 * 768 * 768 + 2 * 768 * 3072
    products_s = 12 * 2 * rows * layer / 989.4e12
    pairs_s = 12 * 4 * 64 * 768 * 512 * 512 / 989.4e12
    host_s = ENGINE.step_s + 12 * ENGINE.layer_s
    assert found.ttft_s.value == pytest.approx(ENGINE.request_s + products_s + pairs_s + host_s, rel=0.05)
    assert found.requests_per_s == pytest.approx(64 / found.ttft_s.value, rel=1e-9)  # Little's law
    pooler = plain_runner(found.job).kernels_of(
        found.job.model.stacks[0].after, whole_prompts(found.job.model, 64, 512), ONE, inside=False
    )
    assert {float(np.asarray(k.work.flops)) for k in pooler} >= {2.0 * 64 * 768 * 768}  # of the first token of each


def test_what_a_server_does_to_a_request_stands_before_its_prompt() -> None:
    slow = replace(MACHINE, engine=replace(MACHINE.engine, request_s=1.0))
    found = closed_loop(slow, ONE, 1.0, INPUT, OUTPUT)
    assert float(found.ttft_s) == pytest.approx(1.0 + step_s(chunk=INPUT, seen=INPUT), rel=1e-9)


def test_requests_in_flight_lie_between_the_batches_that_sustain_their_rate() -> None:
    """Batches of 1, 2 and 4 sustain 10, 16 and 20 requests/s: half of one at 5, 1.5 at 13, 3 at 18, all four at 25. A
    rate that falls in between counts as the one before: 10, 10, 20 put 15 halfway between two and four."""
    sizes, rates = np.array([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]]), np.array([[10.0, 10.0], [16.0, 9.0], [20.0, 20.0]])
    found = in_flight_at(sizes, rates, np.array([[5.0, 5.0], [13.0, 15.0], [18.0, 20.0], [25.0, 40.0]]))
    assert found == pytest.approx(np.array([[0.5, 0.5], [1.5, 3.0], [3.0, 4.0], [4.0, 4.0]]))


def test_replicas_pay_for_the_machines_that_they_stand_in() -> None:
    """Machines of 8: 3 replicas of one device share one, 8/3 each; 3 of 6 devices have one each; 3 of 16 have two."""
    offer = next(o for o in FACTS.offers if o.count == 8)
    for tp, pp, paid in ((1, 1, 8 / 3), (2, 3, 8.0), (8, 2, 16.0), (3, 4, 16.0)):
        job = plain_job(layout=ServingLayout(tp=tp, pp=pp))
        rented = replace(job, cluster=replace(job.cluster, offer=offer))
        assert paid_gpus(rented, 3) == pytest.approx(paid)
    assert paid_gpus(plain_job(), 3) is None
