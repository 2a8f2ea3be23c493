"""How a replica spreads: experts over attention replicas, batches over pipeline stages, arrivals over time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flopwise
from flopwise.cost.cluster import cluster
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.serving.estimate import estimate
from flopwise.serving.iteration import StepLoad
from flopwise.serving.job import ServeJob, Techniques, in_its_class, is_far, serving_class
from flopwise.serving.memory import ServingLayout
from flopwise.serving.steady import micro_batches
from flopwise.serving.techniques import runner
from named import FACTS, serve_job_with, weight_bytes, weights_per_gpu

H100 = cluster(load_facts().accelerator("H100-SXM-80GB"))
LLAMA, MIXTRAL = load_model("Llama-3.1-8B"), load_model("Mixtral-8x7B")


def _job(**changes: object) -> ServeJob:
    return serve_job_with(**{"model": LLAMA, "cluster": H100, "input_tokens": 512, "output_tokens": 256, **changes})


@pytest.mark.parametrize("degrees", [{"tp": 4}, {"tp": 4, "ep": 4}, {"tp": 4, "ep": 2}])
def test_experts_are_held_once_however_they_are_spread(degrees: dict[str, int]) -> None:
    whole = weight_bytes(MIXTRAL, "bf16")
    held = 4 * float(weights_per_gpu(MIXTRAL, "bf16", ServingLayout(**degrees)))
    assert whole <= held < 1.01 * whole  # norms and routers are on every rank


def test_attention_replicas_hold_the_experts_once_and_all_else_each() -> None:
    shared = float(weights_per_gpu(MIXTRAL, "bf16", ServingLayout(dp=4, ep=4)))
    alone = float(weights_per_gpu(MIXTRAL, "bf16", ServingLayout()))
    experts = 32 * 8 * 3 * 4096 * 14336 * 2.0
    assert shared == pytest.approx(alone - 0.75 * experts, rel=1e-6)


def test_attention_replicas_deliver_more_than_one_of_them() -> None:
    one = estimate(_job(model=MIXTRAL, layout=ServingLayout(tp=4), concurrency=64))
    four = estimate(_job(model=MIXTRAL, layout=ServingLayout(dp=4, ep=4), concurrency=64))
    assert four.num_gpus == one.num_gpus == 4
    assert four.concurrency == pytest.approx(one.concurrency, rel=0.05)
    assert 0.2 < four.throughput.value / one.throughput.value < 5


def test_experts_over_more_ranks_than_there_are_cannot_be() -> None:
    with pytest.raises(SpecError, match="ep 8"):
        estimate(_job(model=MIXTRAL, layout=ServingLayout(tp=2, dp=2, ep=8)))


def test_pipeline_stages_work_at_once_except_where_an_engine_passes_one_batch() -> None:
    machine = runner(_job(layout=ServingLayout(pp=4)))
    assert float(micro_batches(machine, ServingLayout(pp=4), 64.0)) == 4
    assert float(micro_batches(machine, ServingLayout(pp=4), 1.0)) == 1
    serial = runner(_job(engine="llama.cpp", layout=ServingLayout(pp=4)))
    assert float(micro_batches(serial, ServingLayout(pp=4), 64.0)) == 1
    alone = estimate(_job(concurrency=16)).throughput.value
    piped = estimate(_job(layout=ServingLayout(pp=4), concurrency=64)).throughput.value
    assert 2.5 * alone < piped <= 4.05 * alone


@given(st.floats(0.05, 1.5))
def test_random_arrivals_are_served_up_to_the_capacity(share: float) -> None:
    most = estimate(_job(concurrency=None))
    found = estimate(_job(arrivals_per_s=share * most.requests_per_s))
    assert found.requests_per_s == pytest.approx(
        min(share, 1.0) * most.requests_per_s, rel=0.05
    )  # not all batches fill tiles
    assert found.concurrency <= most.concurrency * 1.001
    calm = estimate(_job(arrivals_per_s=0.01))
    assert found.tpot_s is not None
    assert calm.tpot_s is not None
    assert found.tpot_s.value >= 0.999 * calm.tpot_s.value
    assert np.isfinite(found.ttft_s.value)


def test_a_step_without_prefill_or_without_decoding_starts_no_kernel_for_it() -> None:
    machine, layout = runner(_job()), ServingLayout()
    decode = machine.step(StepLoad(decode_batch=8, decode_context=100.0), layout)
    both = machine.step(
        StepLoad(decode_batch=8, decode_context=100.0, prefill_tokens=1, prefill_context=1, prompts=1), layout
    )
    assert float(both.seconds) - float(decode.seconds) > 32 * 1e-6
    assert np.isfinite(float(machine.step(StepLoad(prefill_tokens=64, prefill_context=64), layout).seconds))


def test_classes_of_errors() -> None:
    assert serving_class(_job(), "tpot") == "serving.tpot.server.dense"
    assert serving_class(_job(model=MIXTRAL), "throughput") == "serving.throughput.server.moe"
    assert serving_class(_job(static=True), "throughput") == "serving.throughput.batch.dense"
    assert serving_class(_job(engine="llama.cpp"), "tpot.moe") == "serving.tpot.local"
    assert serving_class(_job(), "ttft", queued=True) == "serving.ttft.queued"
    split = replace(_job(), techniques=Techniques(prefill_gpus=2))
    assert serving_class(split, "tpot") == "serving.tpot.split"
    arriving = replace(_job(), arrivals_per_s=8.0)
    assert serving_class(in_its_class(arriving, 5.0), "tpot") == "serving.tpot.rate.dense"
    assert serving_class(in_its_class(arriving, 3.9), "tpot") == "serving.tpot.server.dense"  # most wait to the end
    assert serving_class(in_its_class(replace(arriving, requests=99), 3.9), "ttft") == "serving.ttft.run"
    assert serving_class(replace(_job(), eager=True), "tpot") == "serving.tpot.server.dense.far"
    ported = replace(_job(), cluster=cluster(FACTS.accelerator("MI300X")))
    assert serving_class(ported, "tpot") == "serving.tpot.server.dense.ported"
    assert serving_class(replace(ported, engine=_job(engine="llama.cpp").engine), "tpot") == "serving.tpot.local.far"


def test_replicas_that_share_experts_have_errors_of_their_own() -> None:
    shared = replace(_job(), model=FACTS.model("Qwen3-30B-A3B"), layout=ServingLayout(dp=4, ep=4))
    for quantity in ("ttft", "tpot", "throughput"):
        name = serving_class(shared, quantity)
        assert name == serving_class(replace(shared, layout=ServingLayout()), quantity) + ".replicas"
    assert serving_class(replace(_job(), layout=ServingLayout(dp=4)), "tpot") == "serving.tpot.server.dense"
    assert serving_class(replace(shared, eager=True), "tpot") == "serving.tpot.server.moe.far"


@pytest.mark.parametrize(
    ("device", "engine", "tp", "far"),
    [
        ("H200-SXM-141", "vllm", 1, False),
        ("B300", "sglang", 1, False),  # Blackwell Ultra is Blackwell but for a part
        ("L40S", "vllm", 1, True),  # no kernel of an Ada card was timed
        ("MI300X", "vllm", 1, True),
        ("RTX PRO 6000 Server", "vllm", 1, False),
        ("RTX 5090", "vllm", 1, False),
        ("RTX 5090", "vllm", 2, True),  # its messages pass through the host's memory
        ("A100-SXM-80", "vllm-2023", 1, True),  # no graphs
        ("RTX 4090", "llama.cpp", 1, False),
        ("RX 7900 XT", "llama.cpp", 1, True),
    ],
)
def test_far_from_what_was_measured(device: str, engine: str, tp: int, *, far: bool) -> None:
    machines = cluster(FACTS.accelerator(device))
    job = replace(_job(engine=engine), cluster=machines, layout=ServingLayout(tp=tp))
    assert is_far(job) is far


@pytest.mark.parametrize(
    ("model", "layout", "gpus", "users"),
    [("Llama-3.1-8B", {}, 8, 1), ("Llama-3.1-8B", {}, 8, 100), ("Granite-3.1-8B", {"tp": 2, "dp": 8}, 16, 7),
     ("bge-m3", {}, 2, 3)],
)  # fmt: skip
def test_users_shared_by_replicas_are_as_many_as_there_are(
    model: str, layout: dict[str, Any], gpus: int, users: int
) -> None:
    """Little's law: what is answered a second times how long it takes is what is in flight; simulated to the end of a
    run, when few are left, up to a twentieth less."""
    for closed_form, least in ((True, 0.99), (False, 0.95)):
        found = flopwise.serve(model, gpu="gb200", gpus=gpus, concurrency=users, closed_form=closed_form, **layout)
        in_flight = found.replicas * found.estimate.requests_per_s * found.estimate.e2e_s
        assert least * users < in_flight < 1.01 * users


def test_a_lone_request_through_stages_takes_no_less_than_it_takes() -> None:
    """The bound of a run with an end is that of a step with one sequence, not of as many as arrive in the long run."""
    found = flopwise.serve(
        "OLMo-2-7B", gpu="arc pro b60", engine="llama.cpp", tp=2, pp=4, output=4000, requests=1, rate=2
    ).estimate
    assert found.tpot_s is not None
    assert found.tpot_s.low <= found.tpot_s.value <= found.tpot_s.high
    assert found.e2e_low <= found.e2e_s <= found.e2e_high


def test_the_interval_of_requests_in_flight_is_that_of_their_states() -> None:
    """SGLang gives recurrent states a pool: what varies is its room, not the engine's own limit of 4,096."""
    found = flopwise.serve("Mamba2-2.7B", gpu="h100", engine="sglang", output=4000, rate=2)
    _, (low, high) = found.room_ends()
    assert found.estimate.max_concurrency < 100
    assert 0.9 * found.estimate.max_concurrency < low <= found.estimate.max_concurrency <= high < 4096


TAKEN = 1 / (1e-3 + 64 * 1e-6)
"""Requests of 64 tokens that vLLM's front end takes a second."""


@pytest.mark.parametrize(
    ("asked", "most_per_s"),
    [
        ({"model": "Qwen3-0.6B", "gpu": "h100", "tp": 8, "output": 2}, TAKEN),
        ({"model": "Mistral-7B-v0.3", "gpu": "mi355x", "tp": 4, "output": 2, "prefill_gpus": 4}, TAKEN),
        ({"model": "Llama-3.1-8B", "gpu": "mi300x", "tp": 4, "output": 600, "prefill_gpus": 4}, 1 / (600 * 45e-6)),
    ],
)
def test_no_more_is_answered_than_the_front_end_takes_and_streams(asked: dict[str, Any], most_per_s: float) -> None:
    """vLLM: a millisecond a request and a microsecond a token of its prompt, 45 us for each token that goes out."""
    load = flopwise.serve(**asked, input=64, rate=1).under_load
    assert load is not None
    assert 1 / load.utilisation_frac == pytest.approx(most_per_s, rel=1e-6)
    run = flopwise.simulate(**asked, input=64, users=500, requests=8000)
    assert run.summary.requests_per_s == pytest.approx(most_per_s, rel=0.02)
