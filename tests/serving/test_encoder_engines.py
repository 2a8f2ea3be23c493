"""Encoders run on what people run them on: the engine by device, batches by tokens, 8 bits between kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import flopwise
from flopwise.cost.cluster import cluster
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.serving.deployment import usual_engine
from flopwise.serving.estimate import estimate
from flopwise.serving.iteration import whole_prompts
from flopwise.serving.job import ServeJob
from flopwise.serving.memory import ServingLayout
from flopwise.serving.sim.trace import PS
from flopwise.serving.techniques import runner

FACTS = load_facts()
BERT_LARGE = load_model("BERT large (uncased)")


def encoder_job(gpu: str, weights: str, *, engine: str = "tensorrt", batch: int = 32, tokens: int = 384) -> ServeJob:
    return ServeJob(
        model=BERT_LARGE, cluster=cluster(FACTS.accelerator(gpu), gpus_per_node=1), layout=ServingLayout(tp=1),
        weights=FACTS.weight_format(weights), kv_dtype=FACTS.cache_format("bf16"), engine=FACTS.engine(engine),
        input_tokens=tokens, output_tokens=0, concurrency=batch,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("gpu", "engine"),
    [("T4", "tei"), ("H100", "tei"), ("V100", "onnxruntime"), ("MI300X", "onnxruntime"), ("Graviton3", "tei"),
     ("Inferentia2", "hf"), ("TPU v5e", "vllm")],
)  # fmt: skip
def test_the_engine_of_an_encoder_follows_the_device(gpu: str, engine: str) -> None:
    device = FACTS.accelerator(gpu)
    assert usual_engine(FACTS, BERT_LARGE, device).name == engine
    assert usual_engine(FACTS, load_model("Llama-3.1-8B"), device).name == "vllm"
    assert usual_engine(FACTS, load_model("ViT-B/16"), device).name != "tei"  # it reads text


def test_a_processor_runs_its_encoders_in_the_format_that_the_engine_has() -> None:
    on_arm = flopwise.serve("roberta-base", gpu="Graviton3", input_tokens=128)
    assert (on_arm.estimate.job.engine.name, on_arm.estimate.job.weights.name) == ("tei", "fp32")
    on_turing = flopwise.serve("roberta-base", gpu="t4", input_tokens=128)
    assert (on_turing.estimate.job.engine.name, on_turing.estimate.job.weights.name) == ("tei", "fp16")
    given = flopwise.serve("roberta-base", gpu="t4", weights="fp32", input_tokens=128)
    assert given.estimate.job.weights.name == "fp32"


def test_batches_are_filled_by_tokens_and_the_rest_waits() -> None:
    """16,384 tokens are 32 inputs of 512: of 100 in flight each waits 100 / 32 passes (Little's law)."""
    job = encoder_job("L4", "fp16", engine="tei", batch=100, tokens=512)
    step_s = float(runner(job).step(whole_prompts(BERT_LARGE, 32, 512), job.layout).seconds)
    found = estimate(job)
    assert found.concurrency == 32
    assert found.requests_per_s == pytest.approx(32 / step_s)
    assert found.ttft_s.value == pytest.approx(job.engine.request_s + step_s * 100 / 32)
    assert FACTS.engine("tei").most_inputs(20_000) == 1  # longer than a batch: alone
    assert FACTS.engine("tei").most_inputs(1) == 512
    assert FACTS.engine("onnxruntime").most_inputs(512) == 512


@pytest.mark.parametrize(
    ("gpu", "weights", "seconds"),
    [("A30", "fp16", 88.39e-3), ("A30", "int8", 47.04e-3), ("A100-SXM-40GB", "fp16", 42.52e-3),
     ("A100-SXM-40GB", "int8", 23.13e-3)],
)  # fmt: skip
def test_bert_large_within_a_seventh_of_tensorrts_own_table(gpu: str, weights: str, seconds: float) -> None:
    """NVIDIA/TensorRT demo/BERT, 384 tokens, 32 inputs: nothing was fitted to it."""
    assert estimate(encoder_job(gpu, weights)).ttft_s.value == pytest.approx(seconds, rel=1 / 7)


@pytest.mark.parametrize(
    ("model", "tokens", "seconds"),
    [("bert-base-uncased", 128, 8.1e-3), ("bert-base-uncased", 512, 9.9e-3), ("bert-large-uncased", 128, 15.82e-3)],
)  # fmt: skip
def test_transformers_read_a_sentence_without_what_generate_does(model: str, tokens: int, seconds: float) -> None:
    """One sentence on an A10G. Source: philschmid/aws-neuron-samples, benchmark/results_encoder.md (p95 of single
    inputs). Generating has a start of its own.
    """
    job = replace(encoder_job("A10G", "fp16", engine="hf", batch=1, tokens=tokens), model=load_model(model))
    assert estimate(job).ttft_s.value == pytest.approx(seconds, rel=0.2)
    assert job.software.request_s == FACTS.engine("hf").pass_request_s
    writes = replace(job, model=load_model("Llama-3.1-8B"), output_tokens=16)
    assert writes.software.request_s == FACTS.engine("hf").request_s


def test_scales_found_beforehand_leave_eight_bits_between_kernels() -> None:
    """By hand: half the bytes of norms, sums and activations, and no pass that quantises before a product."""
    job = encoder_job("A30", "int8")
    found = machine_s(job)
    slower = machine_s(replace(job, engine=replace(job.engine, static_scales=False)))
    rates, value = job.cluster.rates, job.cluster.rates.value
    tokens, width = 32 * 384, 1024
    read = rates.read_bytes_per_s * value["pointwise_frac"]
    quantised = tokens * (width + width + width + 4 * width)  # inputs of q, k and v, of o, of up and of down
    quantise_s = quantised * 3 / read + 4 * value["quantise_kernels"] * value["kernel_s"]
    assert slower - found > 24 * quantise_s
    assert found > 0.4 * slower


def machine_s(job: ServeJob) -> float:
    """Seconds of one pass over the job's batch."""
    return float(runner(job).step(whole_prompts(job.model, 32, job.input_tokens), job.layout).seconds)


def test_an_engine_that_only_reads_refuses_to_write() -> None:
    with pytest.raises(SpecError, match="tei does not generate text"):
        flopwise.serve("Llama-3.1-8B", gpu="h100", engine="tei")
    assert flopwise.serve("Llama-3.1-8B", gpu="h100", engine="tei", encode=True).estimate.tpot_s is None


def test_a_plan_names_the_engine_of_each_machine() -> None:
    plan = flopwise.plan(
        {"model": "roberta-base", "task": "encode", "traffic": {"requests_per_s": 2, "input_tokens": 128},
         "software": ["any"], "constraints": {"gpus": ["t4", "graviton3", "inferentia2"]}}
    )  # fmt: skip
    engines = {one.gpu: (one.layout["engine"], one.layout["weights"]) for one in plan.plans}
    assert engines["Graviton3"] == ("tei", "fp32")
    assert engines["T4"] == ("tei", "fp16")
    assert any("as none was given (constraints.engine)" in text and "tei" in text for text in plan.assumptions)


@pytest.mark.parametrize("gpu", ["L4", "H100", "Xeon Platinum 8480+"])
@pytest.mark.parametrize("users", [1, 2, 8, 64])
def test_users_of_an_encoder_get_no_more_than_their_latency_allows(gpu: str, users: int) -> None:
    """Little's law where all of them go into one batch, and the simulator where they do not, the end of a run apart:
    one user of an H100 had 1,554 answers a second at 1.64 ms each."""
    closed = flopwise.serve("bert-base-uncased", gpu=gpu, concurrency=users, closed_form=True).estimate
    run = flopwise.simulate("bert-base-uncased", gpu=gpu, users=users).simulated
    done_s = np.sort(run.outcome.finish_ps)[users - 1 : -users] / PS
    assert closed.requests_per_s == pytest.approx((len(done_s) - 1) / (done_s[-1] - done_s[0]), rel=0.01)
    if users <= 8:
        assert closed.requests_per_s == pytest.approx(users / closed.ttft_s.value, rel=1e-6)


def test_an_input_that_finds_nobody_takes_at_least_one_pass_of_its_own() -> None:
    """At one input a second of 33 ms each hardly any meets another: the bound of half of them is one input's."""
    asked: dict[str, Any] = {"gpu": "p100-sxm2-16", "tp": 2, "gpus": 2, "input": "1k"}
    alone = flopwise.serve("bge-reranker-v2-m3", **asked, concurrency=1).estimate
    load = flopwise.serve("bge-reranker-v2-m3", **asked, rate=1)
    assert load.estimate.ttft_s.bound == pytest.approx(alone.ttft_s.bound)
    assert load.under_load is not None
    for percentile, seconds in load.under_load.ttft_s.items():
        assert load.under_load.ttft_s_low[percentile] <= seconds <= load.under_load.ttft_s_high[percentile]


@pytest.mark.parametrize(("gpu", "engine"), [("Apple M4", "llama.cpp"), ("h100", "vllm"), ("mi300x", "vllm")])
def test_models_that_generate_have_an_engine_that_uses_the_gpu(gpu: str, engine: str) -> None:
    """vLLM runs on Apple's chips, too, on the processor's cores; whoever names it has it."""
    assert flopwise.serve("Llama-3.2-1B", gpu=gpu, concurrency=1).estimate.job.engine.name == engine
    assert flopwise.serve("Llama-3.2-1B", gpu=gpu, concurrency=1, engine="vllm").estimate.job.engine.name == "vllm"
