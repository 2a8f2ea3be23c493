"""Rates, dollars and joules of a replica by hand, from its steps."""

from __future__ import annotations

import math

import pytest
from plain_machine import (
    CHIP,
    ENGINE,
    FFN,
    FLOPS_PER_S,
    LAUNCH_S,
    LAYERS,
    LINK_BYTES_PER_S,
    VOCAB,
    WIDTH,
    plain_job,
    step_s,
)

from flopwise.cost.cluster import cluster
from flopwise.serving.estimate import estimate
from flopwise.serving.job import Speculation, Techniques
from flopwise.serving.memory import ServingLayout
from named import FACTS

INPUT, OUTPUT, USERS = 1024, 256, 32
HALF_WAY = INPUT + OUTPUT / 2
DECODING = USERS * OUTPUT / (OUTPUT + 1 + 1.5 * (USERS - 1) / USERS)
"""An answer takes 256 steps after that of its prompt, and those that its user waits for."""
DUE = DECODING / OUTPUT
"""Prompts that fall due a step: each answer of 256 tokens brings one."""
SHARE = 1 - (1 - DUE / USERS) ** USERS
"""Of steps that carry any: with equal chances of each user's, a binomial number of them."""
DECODE_S = step_s(DECODING, HALF_WAY)
MIXED_S = step_s(DECODING, HALF_WAY, DUE / SHARE * INPUT, INPUT, prompts=DUE / SHARE)
MEAN_S = DECODE_S + SHARE * (MIXED_S - DECODE_S)
USD_PER_HOUR = 2.0


def test_rates_and_what_a_million_tokens_cost() -> None:
    """The bill of an hour over the tokens of an hour; prompts pay for the time that they add to steps."""
    found = estimate(plain_job(concurrency=USERS))
    per_s, on_prompts = found.requests_per_s, SHARE * (MIXED_S - DECODE_S) / MEAN_S
    assert found.tpot_s is not None
    assert found.output_tokens_per_s is not None
    assert per_s == pytest.approx(USERS / (found.ttft_s.value + 255 * found.tpot_s.value), rel=1e-9)
    assert found.e2e_s == pytest.approx(found.ttft_s.value + 255 * found.tpot_s.value)
    assert found.output_tokens_per_s.value == pytest.approx(per_s * 256)
    assert found.total_tokens_per_s == pytest.approx(per_s * (1024 + 256))
    assert found.usd_per_hour == USD_PER_HOUR
    assert found.prefill_frac == pytest.approx(on_prompts, rel=1e-9)
    answers = USD_PER_HOUR / 3600 * (1 - on_prompts) / (per_s * 256) * 1e6
    prompts = USD_PER_HOUR / 3600 * on_prompts / (per_s * 1024) * 1e6
    assert found.usd_per_million_output_tokens == pytest.approx(answers, rel=1e-9)
    assert found.usd_per_million_input_tokens == pytest.approx(prompts, rel=1e-9)


def test_an_answer_of_one_token_costs_what_its_prompt_does() -> None:
    """The pass of a prompt makes the first token: no step decodes, so no part of the bill is of output tokens."""
    found = estimate(plain_job(concurrency=USERS, output_tokens=1))
    assert found.prefill_frac == 1
    assert found.usd_per_million_output_tokens is None
    prompts = USD_PER_HOUR / 3600 / (found.requests_per_s * 1024) * 1e6
    assert found.usd_per_million_input_tokens == pytest.approx(prompts, rel=1e-9)
    assert not any("split between input and output" in text for text in found.assumptions)


def test_all_accelerators_of_a_replica_are_paid() -> None:
    found = estimate(plain_job(concurrency=USERS, layout=ServingLayout(tp=2, pp=2)))
    assert found.usd_per_hour == 4 * USD_PER_HOUR
    beside = estimate(plain_job(concurrency=USERS, layout=ServingLayout(tp=2), techniques=Techniques(prefill_gpus=4)))
    assert beside.usd_per_hour == 6 * USD_PER_HOUR
    assert beside.prefill_frac == pytest.approx(4 / 6)


def test_a_fixed_batch_pays_for_its_prompts_first() -> None:
    found = estimate(plain_job(concurrency=16, static=True))
    prompts_s = 2 * step_s(chunk=8192, seen=INPUT, prompts=8)
    whole_s = prompts_s + 255 * step_s(16, HALF_WAY)
    assert found.prefill_frac == pytest.approx(prompts_s / whole_s, rel=1e-9)
    assert found.requests_per_s == pytest.approx(16 / whole_s, rel=1e-9)


def test_the_mean_step_its_lines_and_its_use_of_the_device() -> None:
    found = estimate(plain_job(concurrency=USERS, layout=ServingLayout(tp=2)))
    each = DUE / SHARE
    decode_s = step_s(DECODING, HALF_WAY, tp=2)
    mixed_s = step_s(DECODING, HALF_WAY, each * INPUT, INPUT, prompts=each, tp=2)
    mean_s = decode_s + SHARE * (mixed_s - decode_s)
    lines = dict(found.breakdown)
    assert sum(lines.values()) == pytest.approx(mean_s, rel=1e-9)
    rows = DECODING + DUE * INPUT
    assert lines["communication"] == pytest.approx(2 * LAYERS * (LAUNCH_S + rows * WIDTH * 2 / LINK_BYTES_PER_S))
    host_s = ENGINE.step_s + LAYERS * ENGINE.layer_s + DECODING * ENGINE.sequence_s
    assert lines["host"] == pytest.approx(host_s, rel=1e-9)
    weights = LAYERS * (2 * WIDTH * 5120 + 3 * WIDTH * FFN)
    pairs = DECODING * HALF_WAY + DUE * INPUT * (INPUT + 1) / 2
    flops = 2 * rows * weights + 2 * (DECODING + DUE) * VOCAB * WIDTH + LAYERS * 4 * 4096 * pairs
    assert found.mfu_frac == pytest.approx(flops / 2 / mean_s / FLOPS_PER_S, rel=1e-9)  # of one of two ranks


def test_the_ceiling_of_the_rate_is_the_mean_step_at_datasheet_rates() -> None:
    """Each step gives a token to every sequence that decodes: batch / (tokens x floor of the step)."""
    found = estimate(plain_job(concurrency=USERS))
    assert found.throughput.bound == pytest.approx(DECODING / (OUTPUT * found.lower_bound_s), rel=1e-9)
    drafts = Techniques(speculation=Speculation(name="ngram", tokens=4, acceptance=0.5))
    spoken = estimate(plain_job(concurrency=1, techniques=drafts))
    rounds = 1 + 255 / (1 + 0.5 + 0.25 + 0.125 + 0.0625)
    assert spoken.throughput.bound == pytest.approx(spoken.concurrency / (rounds * spoken.lower_bound_s), rel=1e-9)


def test_joules_follow_what_the_step_is_busy_with() -> None:
    """Latif et al. 2024 (arXiv:2412.08602) and Patel et al. 2023 (arXiv:2308.12908), as shares of the 700 W limit: 0.95
    computing, 0.65 reading, 0.40 sending, 0.10 idle; half of it again for the host; 1.2 at the meter."""
    found = estimate(plain_job(concurrency=USERS, layout=ServingLayout(tp=2)))
    lines = dict(found.breakdown)
    whole = sum(lines.values())
    busy = 0.95 * lines["compute"] + 0.65 * lines["memory bandwidth"] + 0.40 * lines["communication"]
    assert CHIP.tdp_w == 700.0
    watts = 700.0 * ((busy + 0.10 * lines["host"]) / whole + 0.50) * 1.2
    assert found.joules_per_request == pytest.approx(2 * watts / found.requests_per_s, rel=1e-9)
    assert found.joules_per_output_token == pytest.approx(2 * watts / (found.requests_per_s * 256), rel=1e-9)


def test_devices_idle_where_nobody_is_in_flight() -> None:
    """A request a minute of about a second: steps run in 1 - exp(-L) of the time, L in flight on average (M/G/inf);
    in the rest devices draw 0.10 of their 700 W, and their hosts half of it as always."""
    found = estimate(plain_job(arrivals_per_s=1 / 60, layout=ServingLayout(tp=2)))
    running = found.running_frac
    assert running == pytest.approx(1 - math.exp(-found.e2e_s / 60), rel=0.05)
    assert running < 0.1
    lines = dict(found.breakdown)
    whole = sum(lines.values())
    busy = 0.95 * lines["compute"] + 0.65 * lines["memory bandwidth"] + 0.40 * lines["communication"]
    drawn = running * (busy + 0.10 * lines["host"]) / whole + (1 - running) * 0.10
    watts = 700.0 * (drawn + 0.50) * 1.2
    assert found.joules_per_request == pytest.approx(2 * watts * 60, rel=1e-9)


def test_prompts_keep_devices_busy_too() -> None:
    """Answers of one token: steps run for the prompts alone, five of them a second; of two replicas that each has half
    of them, either runs but for the product of what both are idle."""
    found = estimate(plain_job(arrivals_per_s=5.0, output_tokens=1))
    assert found.running_frac == pytest.approx(5 * step_s(chunk=INPUT, seen=INPUT), rel=0.1)
    one, two = (estimate(plain_job(arrivals_per_s=5.0 * n, layout=ServingLayout(dp=n))) for n in (1, 2))
    assert two.running_frac == pytest.approx(1 - (1 - one.running_frac) ** 2, rel=1e-9)
    assert one.running_frac < two.running_frac < 1


def test_cached_elements_are_converted_by_the_cores() -> None:
    """As products are computed, at 0.95 of the limit: an A100 has no units for an fp8 cache."""
    slow = cluster(FACTS.accelerator("A100-SXM-80"))
    found = estimate(plain_job(concurrency=USERS, cluster=slow, kv_dtype=FACTS.cache_format("fp8")))
    lines = dict(found.breakdown)
    busy = 0.95 * (lines["compute"] + lines["cache conversion"]) + 0.65 * lines["memory bandwidth"]
    assert slow.accelerator.tdp_w is not None
    assert found.watts == pytest.approx(slow.accelerator.tdp_w * (busy + 0.10 * lines["host"]) / sum(lines.values()))


def test_half_a_user_keeps_a_replica_busy_half_of_the_time() -> None:
    """One user of two replicas: each answers half as many requests, and draws its idle power between them."""
    whole, half = (estimate(plain_job(concurrency=1, users=users)) for users in (1.0, 0.5))
    assert whole.joules_per_request is not None
    idle = 700.0 * (0.10 + 0.50) * 1.2 / whole.requests_per_s
    assert half.requests_per_s == pytest.approx(whole.requests_per_s / 2)
    assert half.joules_per_request == pytest.approx(whole.joules_per_request + idle, rel=1e-9)


@pytest.mark.parametrize("per_s", [0.01, 1.0, 8.0])
def test_pools_draw_power_for_what_each_of_them_does(per_s: float) -> None:
    """Two devices read prompts, for the FLOPs of each at the datasheet's rate; one decodes in 1 - exp(-L) of the time,
    L answers under way on average (M/G/infinity). The rest of the time each draws 0.10 of its limit."""
    found = estimate(plain_job(arrivals_per_s=per_s, techniques=Techniques(prefill_gpus=2)))
    assert found.tpot_s is not None
    answering = 1 - math.exp(-per_s * 255 * found.tpot_s.value)
    flops = 2 * INPUT * LAYERS * (2 * WIDTH * 5120 + 3 * WIDTH * FFN) + LAYERS * 4 * 4096 * INPUT * INPUT / 2
    reading = per_s / 2 * flops / FLOPS_PER_S
    lines = dict(found.breakdown)
    decoding = (0.95 * lines["compute"] + 0.65 * lines["memory bandwidth"] + 0.10 * lines["host"]) / sum(lines.values())
    drawn = answering * decoding + (1 - answering) * 0.10 + 2 * (reading * 0.95 + (1 - reading) * 0.10)
    assert found.watts == pytest.approx(700.0 * drawn / 3, rel=0.01)
    assert found.joules_per_request == pytest.approx(700.0 * (drawn + 3 * 0.50) * 1.2 / per_s, rel=0.01)
