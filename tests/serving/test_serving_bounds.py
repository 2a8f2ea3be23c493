"""No estimate beats the datasheet, and what it is bound by is what its time goes to."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import flopwise
from flopwise.cost.cluster import Cluster, cluster
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.serving.estimate import estimate
from flopwise.serving.iteration import StepLoad
from flopwise.serving.job import PLAIN, Offload, Ranged, ServeJob, Speculation, Techniques
from flopwise.serving.memory import ServingLayout
from flopwise.serving.techniques import runner
from named import serve_job_with

FACTS = load_facts()
MODELS = (
    "Llama-3.1-8B", "Llama-3.1-70B", "Mixtral-8x7B", "gpt-oss-120b", "DeepSeek-V3", "Gemma-2-2B", "T5-large",
    "bert-base-uncased", "ViT-B/16", "Qwen2.5-0.5B", "Falcon-180B",
)  # fmt: skip
DEVICES = (
    "H100-SXM-80",
    "A100-PCIe-40",
    "B200",
    "B100",
    "T4",
    "MI300X",
    "RTX 4090",
    "EPYC 9R14",
    "TPU v5e",
    "P100-SXM2-16",
)
ENGINES = ("vllm", "vllm-v0", "sglang", "tensorrt-llm", "tensorrt-llm-v0", "llama.cpp", "llama.cpp-2024", "hf", "tgi")
TECHNIQUES = (
    PLAIN,
    Techniques(hit_frac=0.7),
    Techniques(shared_tokens=64),
    Techniques(kept_frac=0.1),
    Techniques(expert_skew=3.0),
    Techniques(offload=Offload(frac=0.4)),
    Techniques(prefill_gpus=8),
    Techniques(speculation=Speculation(name="ngram", tokens=6, acceptance=0.9)),
)
SIZES = st.floats(0.0, 4.0).map(lambda e: round(10.0**e))


def on(name: str) -> Cluster:
    return cluster(FACTS.accelerator(name), gpus_per_node=8)


@st.composite
def jobs(draw: st.DrawFn) -> ServeJob:
    tp, dp, pp = (draw(st.sampled_from(s)) for s in ((1, 2, 8), (1, 2), (1, 2, 4)))
    load = draw(st.sampled_from(("full", "some", "batch", "rate")))
    return serve_job_with(
        model=load_model(draw(st.sampled_from(MODELS))),
        cluster=on(draw(st.sampled_from(DEVICES))),
        layout=ServingLayout(tp=tp, dp=dp, pp=pp, ep=draw(st.sampled_from((1, tp * dp)))),
        weights=draw(st.sampled_from(("bf16", "fp8", "int8", "awq", "mxfp4", "Q4_K_M"))),
        kv_dtype=draw(st.sampled_from(("bf16", "fp8"))),
        engine=draw(st.sampled_from(ENGINES)),
        input_tokens=draw(SIZES),
        output_tokens=draw(SIZES),
        concurrency=draw(SIZES) if load in {"some", "batch"} else None,
        arrivals_per_s=draw(st.floats(0.01, 100.0)) if load == "rate" else None,
        static=load == "batch",
        prefill_tokens=draw(st.sampled_from((None, 128, 16_384))),
        techniques=draw(st.sampled_from(TECHNIQUES)),
    )


def inside(figure: Ranged) -> None:
    assert figure.low <= figure.value * (1 + 1e-9)
    assert figure.value <= figure.high * (1 + 1e-9)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(job=jobs())
def test_no_estimate_beats_the_datasheet(job: ServeJob) -> None:
    try:
        found = estimate(job)
    except (SpecError, MissingFactError):
        reject()
    for latency in (found.ttft_s, found.tpot_s):
        if latency is not None:
            assert latency.bound is not None
            assert latency.bound <= latency.value * (1 + 1e-9)
            assert latency.low >= latency.bound * (1 - 1e-9)
    assert found.throughput.bound is not None
    assert found.throughput.value <= found.throughput.bound * (1 + 1e-9)
    assert found.throughput.high <= found.throughput.bound * (1 + 1e-9)
    assert 0 <= found.mfu_frac <= 1
    assert found.lower_bound_s <= sum(seconds for _, seconds in found.breakdown) * (1 + 1e-9)


def test_bounds_are_those_of_the_datasheet_alone() -> None:
    """By hand: the floor of a token is the weights of the layers and the head once, and the cache of its context."""
    job = serve_job_with(model=load_model("Llama-3.1-8B"), cluster=on("H100-SXM-80"), concurrency=1, input_tokens=1000)
    found = estimate(job)
    weights = 2 * (8_030_261_248 - 128_256 * 4096)
    cache = (1000 + 256 / 2) * 2 * 32 * 8 * 128 * 2
    assert found.tpot_s is not None
    assert found.tpot_s.bound == pytest.approx((weights + cache) / 3.35e12, rel=0.01)
    assert found.ttft_s.bound == pytest.approx(2 * 1000 * (weights / 2 - 128_256 * 4096) / 989.4e12, rel=0.05)


@pytest.mark.parametrize(
    "device", ["H200-SXM-141", "A100-SXM-80", "B200", "RTX 4090", "MI300X", "L4", "B100", "TPU v5e"]
)
def test_what_computes_little_is_not_bound_by_computing(device: str) -> None:
    place = on(device)
    for name in ("gpt-oss-120b", "Qwen3-30B-A3B", "Mixtral-8x7B", "DeepSeek-V3", "Llama-3.1-8B", "SmolLM2-135M"):
        model = load_model(name)
        for weights in ("bf16", "awq"):
            for users in (1, 4, 16, 64, 256):
                job = serve_job_with(model=model, cluster=place, weights=weights, concurrency=users, static=True)
                step = runner(job).step(StepLoad(decode_batch=users, decode_context=1000), job.layout)
                parts = {"compute": step.compute_s, "memory": step.memory_s, "host": step.overhead_s}
                assert float(sum(parts.values())) == pytest.approx(float(step.seconds))
                most = max(parts, key=lambda part: float(parts[part]))
                useful_s = float(step.flops) / place.rates.peak_flops_per_s("bf16")
                assert most != "compute" or useful_s > 0.05 * float(step.seconds), (name, weights, users)


@pytest.mark.parametrize(
    ("name", "device", "users", "bound"),
    [
        ("gpt-oss-120b", "H200-SXM-141", 16, "memory bandwidth"),  # tiles of one or two tokens an expert
        ("Llama-3.1-8B", "H100-SXM-80", 1, "memory bandwidth"),
        ("SmolLM2-135M", "B200", 1, "host"),  # kernels shorter than their launch
    ],
)
def test_the_bound_is_what_the_time_goes_to(name: str, device: str, users: int, bound: str) -> None:
    weights = "mxfp4" if name == "gpt-oss-120b" else "bf16"
    job = serve_job_with(model=load_model(name), cluster=on(device), weights=weights, concurrency=users)
    assert estimate(job).bound == bound


def test_long_prompts_are_bound_by_computing() -> None:
    job = serve_job_with(
        model=load_model("Llama-3.1-8B"), cluster=on("H100-SXM-80"), input_tokens=8000, output_tokens=2, concurrency=8
    )
    found = estimate(job)
    assert found.bound == "compute"
    assert found.mfu_frac > 0.4


def test_cores_that_are_not_known_do_not_wait_for_one_another() -> None:
    """A B100 has some 0.78 of a B200's rate; that its cores are not counted must not cost more than that."""
    job = {"model": load_model("Llama-3.1-8B"), "concurrency": 1, "input_tokens": 4000, "output_tokens": 8}
    known, unknown = (estimate(serve_job_with(cluster=on(n), **job)).ttft_s.value for n in ("B200", "B100"))
    assert known < unknown < 1.5 * known


@pytest.mark.parametrize(("model", "gpu", "rate"), [("Llama-3.1-8B", "h100", 0.1), ("Mixtral-8x7B", "2xh100", 0.1)])
def test_a_service_far_below_what_it_sustains_answers_all_that_arrives(model: str, gpu: str, rate: float) -> None:
    found = flopwise.serve(model, gpu=gpu, rate=rate).estimate.throughput
    assert (found.low, found.value, found.high) == pytest.approx((rate, rate, rate))


def test_what_is_answered_near_the_limit_may_be_less_than_arrives() -> None:
    """The interval of what is sustained, cut at what arrives."""
    most = flopwise.serve("Llama-3.1-8B", gpu="h100").estimate.requests_per_s
    found = flopwise.serve("Llama-3.1-8B", gpu="h100", rate=0.95 * most).estimate.throughput
    assert 0.5 * most < found.low < 0.95 * found.value
    assert found.high == pytest.approx(0.95 * most)


def test_one_answer_after_another_is_as_sure_as_each_of_them() -> None:
    found = flopwise.serve("Llama-3.1-8B", gpu="4090", weights="Q4_K_M", engine="llama.cpp", concurrency=1).estimate
    assert found.throughput.value == pytest.approx(1.0 / found.e2e_s, rel=1e-3)
    assert found.throughput.low == pytest.approx(1.0 / found.e2e_high, rel=1e-3)
    assert found.throughput.high == pytest.approx(1.0 / found.e2e_low, rel=1e-3)
