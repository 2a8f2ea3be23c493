"""Techniques of serving: none of them changes nothing, more never hurts, and published figures where there are any."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flopwise
from flopwise.cost.cluster import cluster
from flopwise.cost.rates import rates
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.ops.routing import usual_skew
from flopwise.serving.disaggregated import pools, queue_s
from flopwise.serving.estimate import estimate, job_memory
from flopwise.serving.iteration import Runner, StepLoad
from flopwise.serving.job import Offload, ServeEstimate, ServeJob, Speculation, Techniques
from flopwise.serving.memory import ServingLayout
from flopwise.serving.technique_rules import technique_assumptions
from flopwise.serving.techniques import (
    TechniqueRunner,
    block_draft,
    cached_tokens,
    percentile_tpot_s,
    request_work,
    runner,
    tokens_per_step,
    tokens_variance,
)
from named import layer_bytes, serve_job_with, transfer_bytes, weight_bytes

FACTS = load_facts()
H100 = cluster(FACTS.accelerator("H100-SXM-80"), gpus_per_node=8)
LLAMA, DRAFT = load_model("Llama-3.1-8B"), load_model("Llama-3.2-1B")
JOB = serve_job_with(model=LLAMA, cluster=H100, input_tokens=2000, output_tokens=200, concurrency=32)


def served(how: Techniques, job: ServeJob = JOB) -> ServeEstimate:
    return estimate(replace(job, techniques=how))


def tpot_s(found: ServeEstimate) -> float:
    assert found.tpot_s is not None
    return found.tpot_s.value


def drafts(acceptance: float, tokens: int = 4) -> Techniques:
    return Techniques(speculation=Speculation(name="1B", tokens=tokens, acceptance=acceptance, draft=DRAFT))


def test_nothing_asked_is_the_plain_runner() -> None:
    assert type(runner(JOB)) is Runner
    assert type(runner(replace(JOB, techniques=Techniques(prefill_gpus=2)))) is Runner
    assert request_work(JOB) == (2000, 200)


def test_a_runner_whose_techniques_do_nothing_takes_the_same_steps() -> None:
    plain = runner(JOB)
    idle = runner(replace(JOB, techniques=Techniques(hit_frac=1e-12)))
    assert isinstance(idle, TechniqueRunner)
    load = StepLoad(decode_batch=16, decode_context=800, prefill_tokens=512, prefill_context=2000)
    assert float(np.asarray(idle.step(load, JOB.layout).seconds)) == pytest.approx(
        float(np.asarray(plain.step(load, JOB.layout).seconds)), rel=1e-9
    )


# ---- prefixes


@settings(max_examples=20, deadline=None)
@given(less=st.floats(0, 1), more=st.floats(0, 1))
def test_more_hits_are_never_slower(less: float, more: float) -> None:
    less, more = sorted((less, more))
    a, b = served(Techniques(hit_frac=less)), served(Techniques(hit_frac=more))
    assert b.ttft_s.value <= a.ttft_s.value * (1 + 1e-9)
    assert b.requests_per_s >= a.requests_per_s * (1 - 1e-9)
    assert b.max_concurrency == a.max_concurrency  # each sequence keeps its own copy


def test_a_shared_prefix_saves_work_and_memory_in_whole_blocks() -> None:
    plain, shared = served(Techniques()), served(Techniques(shared_tokens=1000))
    hits = served(Techniques(hit_frac=992 / 2000))  # 62 blocks of 16
    assert shared.ttft_s.value == pytest.approx(hits.ttft_s.value, rel=1e-9)
    each = 2 * 32 * 8 * 128 * 2  # bytes a token: K and V, layers, heads, dim, bf16
    assert shared.memory.items["shared prefix"] == pytest.approx(992 * each)
    assert shared.max_concurrency > plain.max_concurrency
    full = serve_job_with(model=LLAMA, cluster=H100, input_tokens=2000, output_tokens=200, max_batch=10**6)
    budget = float(job_memory(full).kv_budget_bytes)
    most = job_memory(replace(full, techniques=Techniques(shared_tokens=1000))).max_concurrency
    assert float(most) == pytest.approx(budget / (1108 * each), rel=0.03)  # 1,008 of the prompt, half an answer


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    assert float(cached_tokens(1000, hit_frac=1.0)) == 999
    assert float(cached_tokens(1000, shared_tokens=100, block_tokens=64)) == 64
    assert np.asarray(cached_tokens(np.array([10, 1000]), hit_frac=0.5)).tolist() == [5, 500]


# ---- eviction


@settings(max_examples=15, deadline=None)
@given(less=st.floats(0.05, 1), more=st.floats(0.05, 1))
def test_keeping_less_holds_more_and_decodes_no_slower(less: float, more: float) -> None:
    less, more = sorted((less, more))
    a, b = served(Techniques(kept_frac=more)), served(Techniques(kept_frac=less))
    assert b.max_concurrency >= a.max_concurrency
    assert tpot_s(b) <= tpot_s(a) * (1 + 1e-9)


def test_eviction_says_that_quality_is_not_modelled() -> None:
    told = " ".join(served(Techniques(kept_frac=0.2)).assumptions)
    assert "2306.14048" in told
    assert "quality" in told
    half = job_memory(replace(JOB, techniques=Techniques(kept_frac=0.5)))
    assert float(half.items["KV cache"]) == pytest.approx(0.5 * float(job_memory(JOB).items["KV cache"]), rel=0.01)


# ---- speculation


def test_expected_tokens_are_those_of_a_simulation() -> None:
    rng = np.random.default_rng(1)
    for acceptance, proposals in ((0.3, 4), (0.8, 5), (1.0, 3), (0.0, 6)):
        runs = rng.random((40_000, proposals)) < acceptance
        accepted = np.where(runs.all(1), proposals, np.argmin(runs, axis=1))
        assert float(tokens_per_step(acceptance, proposals)) == pytest.approx(accepted.mean() + 1, rel=0.02)
        assert float(tokens_variance(acceptance, proposals)) == pytest.approx(accepted.var(), rel=0.05, abs=1e-9)


def test_a_replica_that_cannot_keep_up_brings_no_token_in_time() -> None:
    """Beside one that can: a plan warned of an invalid value, infinite over infinite."""
    job, steps_s = replace(JOB, techniques=drafts(0.6)), np.array([0.02, np.inf])
    slow, fast = percentile_tpot_s(job, steps_s, steps_s, "p95")[::-1]  # type: ignore[index]  # a column
    assert slow == np.inf
    assert 0 < fast < 0.02


@pytest.mark.parametrize(
    ("acceptance", "proposals", "cost", "measured"),
    # Leviathan et al. 2023, table 2, T5-XXL: translation and summarisation at temperatures 0 and 1, drafts by T5-small,
    # whose cost is 0.02 of the target's (section 4.1)
    [(0.75, 7, 0.02, 3.4), (0.62, 7, 0.02, 2.6), (0.65, 5, 0.02, 3.1), (0.53, 5, 0.02, 2.3)],
)
def test_published_speed_ups(acceptance: float, proposals: int, cost: float, measured: float) -> None:
    faster = float(tokens_per_step(acceptance, proposals)) / (proposals * cost + 1.0)  # theorem 3.8
    assert faster == pytest.approx(measured, rel=0.25)


@settings(max_examples=15, deadline=None)
@given(less=st.floats(0, 1), more=st.floats(0, 1), proposals=st.integers(1, 8))
def test_more_accepted_is_never_slower(less: float, more: float, proposals: int) -> None:
    less, more = sorted((less, more))
    a, b = served(drafts(less, proposals)), served(drafts(more, proposals))
    assert tpot_s(b) <= tpot_s(a) * (1 + 1e-9)


def test_drafts_that_are_never_accepted_only_cost() -> None:
    plain, refused = served(Techniques()), served(drafts(0.0))
    assert tpot_s(refused) > tpot_s(plain)
    assert refused.memory.items["draft weights"] == pytest.approx(weight_bytes(DRAFT, "bf16"))
    assert refused.max_concurrency < plain.max_concurrency


def test_speculation_pays_less_as_the_batch_grows() -> None:
    gains = []
    for users in (1, 16, 128):
        job = replace(JOB, concurrency=users, input_tokens=256)
        gains.append(tpot_s(served(Techniques(), job)) / tpot_s(served(drafts(0.75), job)))
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1.5
    small, large = (
        flopwise.serve("Llama-3.1-8B", gpu="h100", concurrency=4, draft=d, acceptance=0.6).speculation
        for d in ("Llama-3.1-8B", "Llama-3.2-1B")
    )
    assert small is not None
    assert large is not None
    assert small.decode_speedup < 1 < large.decode_speedup  # the model drafting for itself gains nothing
    assert small.pays_up_to == 0


def test_one_block_on_an_h100_lies_near_what_sglang_publishes() -> None:
    """SGLang's page on EAGLE-3: 373 against 158 tokens/s, one stream of the 8B; its trees accept 4 to 6 tokens."""
    how: dict[str, Any] = {
        "gpu": "h100",
        "engine": "sglang",
        "concurrency": 1,
        "input_tokens": 100,
        "output_tokens": 300,
    }
    slow = flopwise.serve("Llama-3.1-8B", **how).estimate
    fast = flopwise.serve("Llama-3.1-8B", draft="eagle", acceptance=0.8, draft_tokens=5, **how).estimate
    assert 1 / tpot_s(slow) == pytest.approx(158, rel=0.2)
    assert tpot_s(slow) / tpot_s(fast) == pytest.approx(373 / 158, rel=0.25)
    block = block_draft(LLAMA)
    assert weight_bytes(block, "bf16") < 0.15 * weight_bytes(LLAMA, "bf16")


def test_verifying_reads_the_cache_once_for_all_proposals() -> None:
    machine = runner(JOB)
    one = StepLoad(decode_batch=8, decode_context=4000)
    five = replace(one, decode_tokens=5)
    ratio = machine.step(five, JOB.layout).seconds / machine.step(one, JOB.layout).seconds
    assert 1.0 <= float(np.asarray(ratio)) < 1.3


# ---- two pools


def test_the_cache_that_travels_is_as_long_as_distserve_says() -> None:
    """DistServe (arXiv:2401.09670) section 3.3: 1.13 GB (binary) for 512 tokens of OPT-66B."""
    assert float(transfer_bytes(load_model("OPT-66B"), 512, "bf16", 1)) == pytest.approx(1.13 * 2**30, rel=0.01)


def test_waiting_before_one_server_is_that_of_pollaczek_and_khinchine() -> None:
    assert float(queue_s(0.8, 1.0, 2.0)) == pytest.approx(0.8 * 2.0 / (2 * 0.2))
    assert float(queue_s(0.8, 4.0, 2.0)) < float(queue_s(0.8, 1.0, 2.0)) / 4


@settings(max_examples=15, deadline=None)
@given(users=st.integers(1, 200), gpus=st.sampled_from([1, 2, 4]))
def test_pools_obey_little_and_their_slower_half(users: int, gpus: int) -> None:
    job = replace(JOB, concurrency=users, techniques=Techniques(prefill_gpus=gpus))
    found = estimate(job)
    assert found.requests_per_s * found.e2e_s == pytest.approx(min(users, found.max_concurrency), rel=0.02)
    assert found.requests_per_s <= float(pools(job, runner(job)).most_per_s)
    assert found.num_gpus == 1 + gpus


def test_prompts_elsewhere_leave_decoding_alone_and_more_of_them_shorten_the_wait() -> None:
    both, one, four = served(Techniques()), served(Techniques(prefill_gpus=1)), served(Techniques(prefill_gpus=4))
    assert tpot_s(one) < tpot_s(both)
    assert four.ttft_s.value < one.ttft_s.value
    bill = four.usd_per_hour
    assert bill is None or bill == pytest.approx(5 * (served(Techniques()).usd_per_hour or 0))


def test_a_slow_network_delays_first_tokens_by_the_transfer() -> None:
    def ttft(network: float) -> float:
        how: dict[str, Any] = {
            "gpu": "h100",
            "tp": 8,
            "prefill_gpus": 8,
            "gpus_per_node": 8,
            "concurrency": 1,
            "input_tokens": 8000,
        }
        return float(flopwise.serve("Llama-3.1-8B", network=network, **how).estimate.ttft_s.value)

    nbytes = float(transfer_bytes(LLAMA, 8000, "bf16", 8))
    assert nbytes / 1e9 <= ttft(1e9) - ttft(100e9) <= 1.6 * nbytes / 1e9


# ---- layers on the host


def test_streamed_layers_take_as_long_as_their_weights_travel() -> None:
    job = replace(JOB, concurrency=1, techniques=Techniques(offload=Offload(frac=0.5)))
    bytes_moved = 0.5 * float(layer_bytes(LLAMA, "bf16", ServingLayout()))
    assert tpot_s(estimate(job)) > bytes_moved / 64e9
    assert tpot_s(estimate(job)) == pytest.approx(bytes_moved / (0.76 * 63e9), rel=0.25)
    assert float(job_memory(JOB).items["weights"]) - float(job_memory(job).items["weights"]) == pytest.approx(
        bytes_moved
    )


@settings(max_examples=10, deadline=None)
@given(less=st.integers(0, 80), more=st.integers(0, 80))
def test_more_layers_on_the_card_are_never_slower(less: int, more: int) -> None:
    less, more = sorted((less, more))
    host = rates(FACTS.accelerator("Ryzen 9 7950X"))
    card = cluster(FACTS.accelerator("RTX 4090"), gpus_per_node=1)
    job = serve_job_with(
        model=load_model("Llama-2-70B"), cluster=card, engine="llama.cpp", weights="Q4_K_M", concurrency=1
    )

    def at(layers: int) -> float:
        away = None if layers == 80 else Offload(frac=1 - layers / 80, host=host)
        return tpot_s(served(Techniques(offload=away), job))

    assert at(more) <= at(less) * (1 + 1e-9)


def test_half_of_a_70b_on_a_desktop_reads_it_at_the_speed_of_its_memory() -> None:
    """40 of 80 layers of 41 GB on two channels of DDR5 (83 GB/s): 0.25 s a token at least, and not twice that."""
    found = flopwise.serve(
        "Llama-2-70B", gpu="rtx 4090", engine="llama.cpp", weights="Q4_K_M", gpu_layers=40, concurrency=1
    )
    least = 0.5 * 40e9 / 83.2e9
    assert least < tpot_s(found.estimate) < 2 * least
    assert found.fits
    assert found.host_bytes == pytest.approx(20e9, rel=0.1)


# ---- experts


def test_uneven_experts_cost_and_balanced_ones_do_not() -> None:
    job = serve_job_with(
        model=load_model("Mixtral-8x7B"), cluster=H100, layout=ServingLayout(tp=8, ep=8), concurrency=256
    )
    even, uneven = served(Techniques(), job), served(Techniques(expert_skew=2.0), job)
    assert uneven.requests_per_s < even.requests_per_s
    assert served(
        Techniques(expert_skew=2.0), replace(job, layout=ServingLayout(tp=8))
    ).requests_per_s == pytest.approx(served(Techniques(), replace(job, layout=ServingLayout(tp=8))).requests_per_s)


def test_experts_that_nobody_balances_are_as_uneven_as_measured() -> None:
    """On eight ranks the fullest has 1.63 times the mean (`usual_skew`), and none where they are sliced.

    There 8,192 tokens read all of them, even or not; 16 that decode read 51 % of 128, 64 % if all were alike.
    """
    job = serve_job_with(model=load_model("Qwen3-30B-A3B"), cluster=H100, layout=ServingLayout(dp=8, ep=8))
    load = StepLoad(prefill_tokens=8192, prefill_context=8192)

    def seconds(how: Techniques, layout: ServingLayout) -> float:
        return float(runner(replace(job, techniques=how, layout=layout)).step(load, layout).seconds)

    spread, sliced = ServingLayout(dp=8, ep=8), ServingLayout(tp=4)
    usual, even = Techniques(), Techniques(expert_skew=1.0)
    stated = Techniques(expert_skew=usual_skew(128, 8, steered=False))
    assert seconds(usual, spread) == seconds(stated, spread)
    assert 1.1 < seconds(usual, spread) / seconds(even, spread) < 1.63
    assert seconds(usual, sliced) == seconds(even, sliced)
    (said,) = (note for note in technique_assumptions(job) if "the power 0.8 of their rank" in note)
    assert "the fullest of 8 ranks has 1.63 times the mean" in said
    steered = replace(job, model=load_model("GLM-4.5"))
    assert any("as popular as those of DeepSeek-R1" in note for note in technique_assumptions(steered))
    assert not any("fullest" in note for note in technique_assumptions(replace(job, layout=sliced)))
    (said,) = (n for n in technique_assumptions(replace(job, layout=sliced, concurrency=16)) if "of their rank" in n)
    assert "a step of 16 tokens reads 51% of 128, 64% if all were alike (--expert-skew 1)" in said
    read = []
    for how in (usual, even):
        machine = runner(replace(job, techniques=how, layout=sliced))
        items, load = machine.model.stacks[0].kinds[0].items, StepLoad(decode_batch=16, decode_context=1)
        kernels = machine.kernels_of(items, load, sliced, inside=True)
        read.append(max(float(np.asarray(each.work.touched)) for each in kernels if each.work.kind == "grouped"))
    assert read == pytest.approx([0.513 * 128, 128 * (1 - (1 - 8 / 128) ** 16)], rel=0.01)


def test_one_prefill_device_that_holds_no_instance_is_one() -> None:
    split = replace(JOB, layout=ServingLayout(tp=2), techniques=Techniques(prefill_gpus=1))
    with pytest.raises(SpecError, match="1 prefill GPU: no whole number of instances of tp 2 x pp 1"):
        estimate(split)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (Techniques(hit_frac=1.5), "hit rate 1.5"),
        (Techniques(kept_frac=0.0), "above 0, up to 1"),
        (Techniques(shared_tokens=2000), "fewer than"),
        (Techniques(shared_tokens=10, hit_frac=0.5), "give one"),
        (Techniques(prefill_gpus=-1), "prefill"),
        (Techniques(offload=Offload(frac=1.2)), "offloaded layers"),
        (Techniques(expert_skew=2.0), "no experts"),
        (drafts(1.2), "acceptance"),
        (drafts(0.5, 0), "1 to 64"),
    ],
)
def test_what_cannot_be_is_refused(how: Techniques, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        served(how)
