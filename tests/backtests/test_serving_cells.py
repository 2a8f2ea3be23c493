"""The cells of serving measurements, in the ways that people write them."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

import flopwise
from flopwise.backtests.columns import our_columns
from flopwise.backtests.prediction import model_spellings, named_model
from flopwise.backtests.serving import (
    acceptance_of,
    burst_requests,
    measured_quantities,
    median_of_requests,
    predict_row,
    row_cache_format,
    row_device,
    row_engine,
    row_format,
    row_job,
    row_layout,
    row_lengths,
)
from flopwise.backtests.trtllm_bench import BenchLimits
from flopwise.cost.collectives import all_reduce_s
from flopwise.cost.intervals import ErrorBand
from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.formats import BF16
from flopwise.ops.weights import weight_bytes
from flopwise.serving.estimate import estimate, job_memory
from flopwise.serving.job import Ranged
from flopwise.serving.memory import ServingLayout
from flopwise.values import replace
from named import FACTS


def _printed(**cells: str) -> Mapping[str, str]:
    """A row with the columns of published tables, in ours."""
    return our_columns("serving", {"n_gpus": "1", **cells})


@pytest.mark.parametrize(
    ("cells", "name"),
    [
        ({"engine": "vLLM"}, "vllm"),
        ({"engine": "vllm", "engine_version": "0.6.3"}, "vllm-v0"),
        ({"engine": "vllm", "engine_version": "0.5.4"}, "vllm-2024"),  # the API server in the engine's process
        ({"engine": "vllm", "engine_version": "0.2"}, "vllm-2023"),  # no CUDA graphs
        ({"engine": "vllm", "engine_version": "0.11.0"}, "vllm-2025"),  # experts in Triton kernels
        ({"engine": "vllm", "engine_version": "0.19.0"}, "vllm-2026"),  # graphs beside its share of the card
        ({"engine": "vllm", "engine_version": "0.21.0"}, "vllm"),
        ({"engine": "vllm", "date": "2026-06-02"}, "vllm"),
        ({"engine": "vllm", "engine_version": "0.1.dev12777 (a node)", "date": "2026-03-22"}, "vllm-2026"),  # untagged
        ({"engine": "vllm", "date": "2025-08-14"}, "vllm-2025"),
        ({"engine": "TensorRT Edge-LLM", "engine_version": "0.4.0"}, "tensorrt-llm"),  # counts releases of its own
        ({"engine": "whisper.cpp", "engine_version": "1.8.2"}, "llama.cpp"),
        ({"engine": "sglang", "engine_version": "0.5.9"}, "sglang-2025"),  # prompts without graphs
        ({"engine": "sglang", "engine_version": "0.5.10.post1"}, "sglang-2026"),  # whole prompts in pools of windows
        ({"engine": "sglang", "date": "2026-09-10"}, "sglang-2026"),
        ({"engine": "sglang", "engine_version": "0.5.23"}, "sglang"),
        ({"engine": "sglang"}, "sglang"),
        ({"engine": "sglang", "engine_version": "0.4"}, "sglang-2024"),  # products with scales of blocks in Triton
        ({"engine": "sglang", "engine_version": "0.4.6"}, "sglang-2025"),
        ({"engine": "sglang", "date": "2025-04-04"}, "sglang-2024"),
        ({"engine": "sglang", "date": "2025-12"}, "sglang-2025"),
        ({"engine": "SGLang-JAX", "engine_version": "0.1.0", "date": "2026-10-01"}, "sglang"),  # releases of its own
        ({"engine": "TensorRT-LLM (Triton backend)"}, "tensorrt-llm"),
        ({"engine": "NIM (TRT-LLM)", "engine_version": "1.8.0"}, "tensorrt-llm"),
        ({"engine": "TensorRT-LLM", "engine_version": "0.6.1"}, "tensorrt-llm-2023"),
        ({"engine": "TensorRT-LLM", "engine_version": "0.17 (TRT engine)"}, "tensorrt-llm-v0"),
        ({"engine": "trtllm", "engine_version": "1.2.0rc6.post2"}, "tensorrt-llm"),
        ({"engine": "vllm", "date": "2024-04-27"}, "vllm-v0"),
        ({"engine": "Deepspeed"}, "deepspeed-inference"),
        ({"engine": "ollama"}, "llama.cpp"),
        ({"engine": "ollama", "engine_version": "0.23.1"}, "llama.cpp-2025"),  # a delta rule of many operations
        ({"engine": "ollama", "engine_version": "0.24.0"}, "llama.cpp"),
        ({"engine": "llama.cpp", "engine_version": "b8123 (Vulkan)"}, "llama.cpp-2025"),
        ({"engine": "llama.cpp", "engine_version": "b9020"}, "llama.cpp"),
        ({"engine": "llama.cpp", "engine_version": "b2000", "date": "2026-01-01"}, "llama.cpp-2024"),
        ({"engine": "Deepspeed-MII"}, "deepspeed-mii"),
    ],
)
def test_engines(cells: dict[str, str], name: str) -> None:
    assert row_engine(cells, FACTS).name == name


@pytest.mark.parametrize(
    ("year", "model_type", "date", "name"),
    [
        (2020, "llama", "", "vllm-v0"),  # what is measured on old devices is of their time
        (2024, "llama", "", "vllm-v0"),
        (2025, "llama", "", "vllm-2025"),
        (2026, "llama", "", "vllm"),
        (2020, "qwen3_5_text", "", "vllm"),  # unless the model is younger
        (2020, "llama", "2026-04-06", "vllm-2026"),  # or the measurement says its date
    ],
)
def test_generations_without_a_version(year: int, model_type: str, date: str, name: str) -> None:
    cells = {"engine": "vllm", "date": date}
    assert row_engine(cells, FACTS, device_year=year, model_type=model_type).name == name


def test_dies_are_devices() -> None:
    facts = FACTS
    whole, die = facts.accelerator("MI250"), row_device({"gpu": "MI250"}, facts).accelerator
    assert die.name == "MI250-GCD"
    assert (2 * die.hbm_bytes_per_s, 2 * die.peak["bf16"]) == (whole.hbm_bytes_per_s, whole.peak["bf16"])
    assert row_device({"gpu": "MI300X"}, facts).accelerator.name == "MI300X"


def test_drawn_lengths_have_a_mean() -> None:
    cells = {"input_len": "1000", "output_len": "200"}
    assert row_lengths(_printed(**cells, notes="draws lengths uniformly in 80-100% of nominal")) == (900, 180)
    assert row_lengths(_printed(**cells, length_spread="uniform 0.8-1.0")) == (900, 180)
    assert row_lengths(_printed(**cells, length_spread="not stated: uniform by default")) == (1000, 200)
    assert row_lengths(_printed(**cells)) == (1000, 200)


def test_llama_bench_works_through_prompts_in_pieces_of_its_batch() -> None:
    cells = {
        "engine": "llama.cpp", "mode": "fixed_batch", "batch": "16", "model": "Llama-2-7b-hf", "gpu": "H100-SXM-80GB",
        "input_tokens": "128", "output_tokens": "128", "gpus": "1", "weights": "fp16",
    }  # fmt: skip
    job, _ = row_job(cells, FACTS)
    assert (job.concurrency, job.prefill_tokens) == (1, 16)


def test_batched_bench_runs_sequences_side_by_side() -> None:
    """llama-batched-bench states sequences, llama-bench prompt tokens of one step."""
    cells = {
        "engine": "llama.cpp", "mode": "fixed_batch", "concurrency": "16", "model": "Llama-2-7b-hf", "gpus": "1",
        "gpu": "H100-SXM-80GB", "input_tokens": "128", "output_tokens": "128", "weights": "fp16",
    }  # fmt: skip
    job, _ = row_job(cells, FACTS)
    assert (job.concurrency, job.prefill_tokens, job.static) == (16, None, True)


def test_an_offline_run_of_drawn_lengths_ends_with_its_longest_answers() -> None:
    """A thousand ShareGPT requests at once: most wait for a place, and the last ones run in a batch that empties.

    On average a request waits for about half of the run; alike ones are a rate of the full batch, and have no end.
    """
    cells = {
        "engine": "vllm", "mode": "offline_max_throughput", "model": "Qwen3-32B", "gpu": "A100-SXM-80GB", "gpus": "1",
        "tp": "1", "input_tokens": "217", "output_tokens": "201", "arrivals": "burst", "requests": "1000",
        "output_tokens_per_s": "1", "ttft_s": "1",
    }  # fmt: skip
    job, _ = row_job(cells | {"lengths": "sharegpt"}, FACTS)
    assert (job.requests, job.concurrency) == (1000, 1000)
    assert row_job(cells | {"lengths": "fixed"}, FACTS)[0].requests is None
    found = {p.quantity: p.predicted or 0.0 for p in predict_row(cells | {"lengths": "sharegpt"}, FACTS)}
    whole_s = 1000 * 201 / found["output_tokens_per_s"]
    assert 0.3 * whole_s < found["ttft_s"] < 0.6 * whole_s


def test_an_engine_that_is_not_known_is_refused() -> None:
    with pytest.raises(UnknownNameError):
        row_engine({"engine": "hamsterwheel (v2)"}, FACTS)


@pytest.mark.parametrize(
    ("cells", "software", "name"),
    [
        ({"precision_weights": "Q4_K_M (5.0 GB file)"}, "llama.cpp", "Q4_K_M"),
        ({"precision_weights": "fp4 (gemm=nvfp4,moe=nvfp4)"}, "vllm", "nvfp4"),
        ({"precision_weights": "fp8 (gemm=fp8,moe=fp8_block)"}, "sglang", "fp8-block"),
        ({"precision_weights": "fp16/bf16"}, "vllm", "bf16"),
        ({"model": "Qwen3-8B-Q4_K_M.gguf"}, "llama.cpp", "Q4_K_M"),
        ({"model": "org/Qwen-32B-Instruct-AWQ"}, "vllm", "awq"),
        ({"model": "gemma:q8_0"}, "llama.cpp", "Q8_0"),
        ({"model": "qwen3:8b"}, "llama.cpp", "Q4_K_M"),
        ({"model": "Llama-3.1-8B"}, "vllm", "bf16"),
    ],
)
def test_formats(cells: dict[str, str], software: str, name: str) -> None:
    assert row_format(_printed(**cells), FACTS.engine(software), FACTS).name == name


def test_the_cache_is_as_stated_or_as_the_engine_keeps_it() -> None:
    trt, vllm, fp8 = FACTS.engine("tensorrt-llm"), FACTS.engine("vllm"), FACTS.weight_format("fp8")
    assert row_cache_format(_printed(precision_kv="fp16"), trt, fp8, FACTS).name == "bf16"
    assert row_cache_format(_printed(precision_kv="auto"), vllm, fp8, FACTS).name == "bf16"
    assert row_cache_format({}, trt, fp8, FACTS).name == "fp8"
    assert row_cache_format({}, trt, BF16, FACTS).name == "bf16"
    nvfp4, before = FACTS.weight_format("nvfp4"), FACTS.engine("vllm-2025")
    assert row_cache_format({}, vllm, nvfp4, FACTS).name == "fp8"
    assert row_cache_format({}, before, nvfp4, FACTS).name == "bf16", "vLLM follows ModelOpt's checkpoints from 0.14"
    assert row_cache_format({}, vllm, nvfp4, FACTS, "mxfp4").name == "bf16", "no checkpoint of ModelOpt"
    assert row_cache_format({"kv_dtype": "bf16"}, vllm, nvfp4, FACTS).name == "bf16"
    gaudi = {"engine": "optimum-habana"}
    assert row_cache_format(gaudi, vllm, fp8, FACTS).name == "fp8", "optimum-habana's recipe leaves out lm_head alone"
    assert row_cache_format(gaudi, vllm, BF16, FACTS).name == "bf16"
    assert row_cache_format(gaudi | {"kv_dtype": "bf16"}, vllm, fp8, FACTS).name == "bf16"
    sglang, mxfp4 = FACTS.engine("sglang"), FACTS.weight_format("mxfp4")
    assert row_cache_format({}, sglang, mxfp4, FACTS, "mxfp4", "deepseek_v4").name == "fp8"
    assert row_cache_format({}, sglang, mxfp4, FACTS, "mxfp4", "gpt_oss").name == "bf16"


def _layout(cells: Mapping[str, str], model: str, software: str = "vllm") -> tuple[int, ...]:
    """tp, pp, ep, dp and replicas."""
    layout, replicas = row_layout(cells, named_model(model, FACTS), FACTS.engine(software))
    return (*(int(degree) for degree in (layout.tp, layout.pp, layout.ep, layout.dp)), replicas)


@pytest.mark.parametrize(
    ("cells", "layout"),
    [
        ({"gpus": "8", "tp": "4", "pp": "2"}, (4, 2, 1, 1, 1)),
        ({"gpus": "8", "tp": "2"}, (2, 1, 1, 1, 4)),
        ({"gpus": "4"}, (4, 1, 1, 1, 1)),
        ({"gpus": "4", "pp": "4"}, (1, 4, 1, 1, 1)),
        ({"gpus": "4", "tp": "1", "dp": "4", "ep": "4"}, (1, 1, 1, 1, 4)),
    ],
)
def test_layouts_of_a_dense_model(cells: dict[str, str], layout: tuple[int, ...]) -> None:
    assert _layout(cells, "Llama-3.1-8B") == layout


def test_attention_replicas_of_a_mixture_share_its_experts() -> None:
    assert _layout({"gpus": "4", "tp": "1", "dp": "4.0", "ep": "4"}, "Mixtral-8x7B") == (1, 1, 4, 4, 1)
    assert _layout({"gpus": "4", "tp": "4", "ep": "0"}, "Mixtral-8x7B") == (4, 1, 1, 1, 1)
    stated = _printed(n_gpus="4", tp="4", notes="attention-DP enabled; EP size not stated")
    assert _layout(stated, "Mixtral-8x7B") == (1, 1, 4, 4, 1)
    assert _layout(stated, "Llama-3.1-8B") == (4, 1, 1, 1, 1)


def test_llama_cpp_splits_by_layers() -> None:
    assert _layout({"gpus": "4"}, "Llama-3.1-8B", "llama.cpp") == (1, 4, 1, 1, 1)


def test_spellings_of_models() -> None:
    assert "Llama-3.3-70B" in model_spellings('Llama-3.3-70B (InferenceMAX "llama70b")')
    assert "qwen3-8b" in model_spellings("qwen3:8b")
    assert "Qwen2.5-Coder-32B-Instruct" in model_spellings("Qwen/Qwen2.5-Coder-32B-Instruct-AWQ")
    assert "Qwen3.5-0.8B" in model_spellings("/home/me/.cache/models/Qwen3.5-0.8B-Q8_0.gguf")


def test_throughput_is_of_output_tokens_and_of_all_gpus() -> None:
    def measured(**cells: str) -> dict[str, float]:
        return measured_quantities(_printed(**cells))

    assert measured(output_tokens_per_s_total="90", output_tokens_per_s_per_gpu="1") == {"output_tokens_per_s": 90}
    assert measured(output_tokens_per_s_per_gpu="25", n_gpus="4") == {"output_tokens_per_s": 100}
    assert measured(total_tokens_per_s="400", input_len="300", output_len="100") == {"output_tokens_per_s": 100}
    assert measured(requests_per_s="2", output_len="100") == {"output_tokens_per_s": 200}
    assert measured(ttft_ms_p50="70", itl_ms_mean="8") == {"ttft_s": 0.07, "tpot_s": 0.008}


def test_modes_set_what_is_in_flight() -> None:
    base = {"model": "Llama-3.1-8B", "gpu": "H100-SXM-80GB", "engine": "vllm", "gpus": "1", "tp": "1"}
    base |= {"input_tokens": "100", "output_tokens": "50", "concurrency": "7", "batch": "5", "arrivals_per_s": "3"}
    facts = FACTS
    jobs = {m: row_job(base | {"mode": m}, facts)[0] for m in ("fixed_batch", "serving_concurrency", "serving_qps")}
    assert (jobs["fixed_batch"].concurrency, jobs["fixed_batch"].static) == (5, True)
    assert (jobs["serving_concurrency"].concurrency, jobs["serving_concurrency"].static) == (7, False)
    assert (jobs["serving_qps"].concurrency, jobs["serving_qps"].arrivals_per_s) == (None, 3)
    offline = row_job(base | {"mode": "offline_max_throughput"}, facts)[0]
    assert (offline.concurrency, offline.arrivals_per_s) == (None, None)
    job, replicas = row_job(base | {"mode": "serving_concurrency", "gpus": "4"}, facts)
    assert (job.concurrency, replicas) == (2, 4)


def test_pools_of_their_own_for_prompts() -> None:
    """Eight devices: two replicas of two for prompts beside two that decode, of which each has one before it."""
    cells = {"model": "Llama-3.1-8B", "gpu": "H100-SXM-80GB", "engine": "sglang", "mode": "serving_concurrency"}
    cells |= {"gpus": "8", "replica_tp": "2", "input_tokens": "512", "output_tokens": "64", "concurrency": "32"}
    job, replicas = row_job(cells | {"prefill_replicas": "2", "decode_replicas": "2"}, FACTS)
    assert (int(job.layout.tp), job.techniques.prefill_gpus, replicas, job.concurrency) == (2, 2, 2, 16)
    job, replicas = row_job(cells | {"prefill_replicas": "3", "decode_replicas": "1"}, FACTS)
    assert (int(job.layout.tp), job.techniques.prefill_gpus, replicas, job.concurrency) == (2, 6, 1, 32)
    with pytest.raises(SpecError, match="1 prompt replicas and 3 decode replicas: not predicted"):
        row_job(cells | {"prefill_replicas": "1", "decode_replicas": "3"}, FACTS)


def test_layers_that_a_card_has_no_room_for_are_on_the_host() -> None:
    """Mistral-Small-24B in Q4_K_M on 8 GiB, of which llama.cpp leaves 1 GiB free: by hand, in GiB.

    A layer has 4 x 5120 x 4096 x (1 + 0.25) / 2 + 3 x 5120 x 32768 weights = 0.555e9; at 4.85 bits these are 0.313 GiB,
    and its cache of 288 tokens 288 x 2 x 8 x 128 x 2 bytes = 0.0011 GiB. Outside the layers there are
    13.34 - 40 x 0.313 = 0.81 GiB of embeddings and head, and workspace and context of 0.63 GiB:
    (7 - 1.44) / 0.314 = 17.7 layers stay.
    """
    cells = {"model": "Mistral-Small-24B-Instruct-2501", "gpu": "RTX 2080", "engine": "llama.cpp", "weights": "Q4_K_M"}
    cells |= {"mode": "single_stream_decode", "gpus": "1"}
    job, _ = row_job(cells, FACTS)
    offload = job.techniques.offload
    assert offload is not None
    assert offload.host is not None
    assert 40 - 40 * offload.frac == 17
    assert row_job(cells | {"gpu": "RTX 3090"}, FACTS)[0].techniques.offload is None
    assert row_job(cells | {"engine": "vllm", "weights": "awq"}, FACTS)[0].techniques.offload is None
    whole = row_job(cells | {"gpu": "MI250", "weights": "bf16", "model": "Mixtral-8x7B"}, FACTS)[0]
    assert whole.techniques.offload is None  # a card of two devices: the other one has room


def test_rows_with_drafts_are_not_predicted() -> None:
    cells = {"model": "Llama-3.1-8B", "gpu": "H100", "engine": "vllm", "mode": "single_stream_decode"}
    with pytest.raises(SpecError, match="speculation 'mtp': not predicted"):
        row_job(cells | {"speculation": "mtp"}, FACTS)
    assert row_job(cells | {"speculation": "off"}, FACTS)[0] == row_job(cells, FACTS)[0]


@pytest.mark.parametrize(("accept_length", "draft_tokens", "by_hand"), [
    (1.9, 1, 0.9),  # a token and the one draft, accepted nine times in ten
    (1.75, 2, 0.5),  # 1 + 1/2 + 1/4
    (1.0, 4, 0.0),
    (5.0, 4, 1.0),
    (7.0, 4, 1.0),  # more than there are
])  # fmt: skip
def test_an_acceptance_length_says_how_often_a_draft_is_right(
    accept_length: float, draft_tokens: int, by_hand: float
) -> None:
    assert acceptance_of(accept_length, draft_tokens) == pytest.approx(by_hand, abs=1e-8)


def test_rows_say_drafts_images_and_grammars_as_serve_takes_them() -> None:
    cells = {"model": "Qwen3-VL-8B", "gpu": "H100", "engine": "vllm", "mode": "serving_concurrency", "concurrency": "4"}
    cells |= {"input_tokens": "1200", "output_tokens": "100", "images": "2", "image_tokens": "400", "structured": "0.5"}
    cells |= {"speculation": "ngram", "draft_tokens": "2", "accept_length": "1.75"}
    found = row_job(cells, FACTS)[0].techniques
    served = flopwise.serve(
        "Qwen3-VL-8B", input_tokens=1200, output_tokens=100, concurrency=4, engine="vllm", gpu="h100", draft="ngram",
        draft_tokens=2, acceptance=0.5, images=2, image_tokens=400, structured=0.5,
    ).estimate.job.techniques  # fmt: skip
    assert found.speculation is not None
    assert served.speculation is not None
    assert found.speculation.acceptance == pytest.approx(served.speculation.acceptance)
    assert replace(found, speculation=served.speculation) == served
    printed = _printed(speculation="eagle3", num_speculative_tokens="3", mean_acceptance_length="2.4")
    assert (printed["draft_tokens"], printed["accept_length"]) == ("3", "2.4")


@pytest.mark.parametrize(("mode", "column", "rel"), [
    ("fixed_batch", "batch", 1e-6), ("serving_concurrency", "concurrency", 0.05),
])  # fmt: skip
def test_replicas_make_their_tokens_together_and_each_in_its_own_time(mode: str, column: str, rel: float) -> None:
    """Users behind one balancer are not spread evenly at each moment, and the last one of all of them ends the run."""
    cells = {"model": "Llama-3.1-8B", "gpu": "H100-SXM-80GB", "engine": "vllm", "mode": mode, "tp": "1"}
    cells |= {"input_tokens": "512", "output_tokens": "128"}
    one = {p.quantity: p.predicted or 0.0 for p in predict_row(cells | {"gpus": "1", column: "8"}, FACTS)}
    four = {p.quantity: p.predicted or 0.0 for p in predict_row(cells | {"gpus": "4", column: "32"}, FACTS)}
    assert four == pytest.approx(one | {"output_tokens_per_s": 4 * one["output_tokens_per_s"]}, rel=rel)


@pytest.mark.parametrize("lengths", ["", "uniform 0.8-1.0"])
def test_users_in_a_closed_loop_are_those_of_serve(lengths: str) -> None:
    """A source that does not say how lengths vary is predicted as who asks `serve` without saying so."""
    cells = {
        "model": "Llama-3.1-8B", "gpu": "H100-SXM-80GB", "gpus": "1", "engine": "vllm", "mode": "serving_concurrency",
        "input_tokens": "1000", "output_tokens": "200", "lengths": lengths, "concurrency": "16", "date": "2026-11",
    }  # fmt: skip
    drawn = {"input": "800:1000", "output": "160:200"} if lengths else {"input": 1000, "output": 200}
    answer = flopwise.serve("Llama-3.1-8B", gpu="H100-SXM-80GB", engine="vllm", concurrency=16, **drawn).estimate
    seen = {p.quantity: p.predicted for p in predict_row(cells, FACTS)}
    assert answer.output_tokens_per_s is not None
    assert answer.tpot_s is not None
    assert seen == pytest.approx({
        "output_tokens_per_s": answer.output_tokens_per_s.value, "tpot_s": answer.tpot_s.value,
        "ttft_s": answer.ttft_s.value,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("cells", "requests"),
    [
        ({"notes": "500 requests; numbers are rounded"}, "500"),
        ({"notes": "200 ShareGPT prompts; hardware printed"}, "200"),
        ({"notes": "c=32 looks noisy (400 prompts caps concurrency at 400)"}, "400"),
        ({"notes": "1,000 requests"}, "1000"),
        ({"notes": "num_requests 1000-30000"}, ""),
        ({"notes": "1000-3000 requests at high rate"}, ""),
        ({"num_requests": "320", "notes": "3 requests"}, "320"),
        ({"num_requests": "1000-30000"}, "1000-30000"),
        ({}, ""),
    ],
)
def test_how_many_requests_were_sent(cells: dict[str, str], requests: str) -> None:
    assert _printed(**cells)["requests"] == requests


def test_the_date_of_a_run_is_in_its_notes() -> None:
    assert _printed(notes="db-dump/2024-04-27")["date"] == "2024-04-27"
    assert _printed(notes="source_file=2026-04-06.csv; speculation not recorded")["date"] == "2026-04-06"


def test_a_whole_request_is_predicted_beside_its_parts() -> None:
    """Only where a row states it: first token and 127 further ones, the interval that of both together."""
    cells = {
        "model": "Llama-3.1-8B", "gpu": "H100-SXM-80GB", "engine": "vllm", "mode": "serving_concurrency", "tp": "1",
        "input_tokens": "512", "output_tokens": "128", "concurrency": "8", "ttft_s": "0.05", "tpot_s": "0.009",
    }  # fmt: skip
    assert {p.quantity for p in predict_row(cells, FACTS)} == {"ttft_s", "tpot_s"}
    found = {p.quantity: p for p in predict_row(cells | {"latency_s": "1.2"}, FACTS)}
    whole, first, each = (found[name] for name in ("latency_s", "ttft_s", "tpot_s"))
    assert (whole.measured, whole.unit, whole.band) == (1.2, "s", None)
    for end in ("predicted", "low", "high"):
        assert getattr(whole, end) == pytest.approx(getattr(first, end) + 127 * getattr(each, end))
    printed = our_columns("serving", {"n_gpus": "1", "mode": "fixed_batch", "e2e_latency_ms": "2438.06"})
    assert printed["latency_s"] == "2.43806"


def test_what_is_left_of_an_unknown_name_is_no_model_of_that_size() -> None:
    """X0_3B may be any architecture: without its first part it would be a decoder of 3B. T0_3B is a T5."""
    assert "3B" in model_spellings("X0_3B")
    with pytest.raises(UnknownNameError):
        named_model("X0_3B", FACTS)
    assert "T5" in named_model("T0_3B", FACTS).name
    assert "3B" in named_model("3B", FACTS).name
    assert named_model("ViT-H/14", FACTS).name == "ViT-H/14"  # a name of the catalog, slash and all


def test_a_power_limit_is_the_devices() -> None:
    cells = {"gpu": "H100-SXM-80", "model": "Llama-3-8B", "engine": "vllm", "mode": "serving_concurrency",
             "input_tokens": "512", "output_tokens": "128", "concurrency": "8"}  # fmt: skip
    limited, _ = row_job({**cells, "power_limit_w": "400"}, FACTS)
    free, _ = row_job(cells, FACTS)
    assert (limited.cluster.accelerator.tdp_w, free.cluster.accelerator.tdp_w) == (400.0, 700.0)
    slow, fast = (estimate(job).ttft_s.value for job in (limited, free))
    assert slow > 1.05 * fast


def test_devices_reach_each_other_as_the_row_states() -> None:
    """A ring of n sends 2 (n - 1) / n of the bytes a rank; through the host each reaches a quarter of its link.

    With peer access it is 0.37 (data/calibration): for 1 GB on four that is 0.37 / 0.25 as fast.
    """
    cells = {"gpu": "RTX 5090", "gpus": "4", "tp": "4", "model": "Llama-3-8B", "engine": "vllm",
             "mode": "serving_concurrency", "concurrency": "8"}  # fmt: skip

    def seconds(stated: str) -> float:
        job, _ = row_job(cells | {"intra_node": stated}, FACTS)
        return float(all_reduce_s(job.cluster.fabric, 1e9, 4))

    assert seconds("") == seconds("host")  # drivers of these cards have no peer access
    assert seconds("host") / seconds("pcie") == pytest.approx(0.37 / 0.25, rel=0.02)
    assert seconds("host") == pytest.approx(2 * 0.75 * 1e9 / (0.25 * 63e9), rel=0.02)
    with pytest.raises(UnknownNameError, match="intra_node"):
        row_job(cells | {"intra_node": "nvlink"}, FACTS)
    with pytest.raises(SpecError, match="no fast link"):
        row_job(cells | {"intra_node": "link"}, FACTS)


def test_settings_of_the_engine_are_those_of_the_row() -> None:
    cells = {"id": "r", "model": "Llama-3.1-8B", "gpu": "H100-SXM-80GB", "gpus": "1", "engine": "sglang"}
    cells |= {"mode": "serving_concurrency", "concurrency": "16"}
    plain, _ = row_job(cells, FACTS)
    started, _ = row_job(cells | {"recv_interval": "30", "stream_interval": "10", "eager": "true"}, FACTS)
    assert (plain.recv_interval, plain.stream_interval, plain.eager) == (None, None, False)
    assert (started.software.recv_interval, started.software.stream_interval) == (30, 10)
    assert plain.software.graphs
    assert not started.software.graphs


def test_prompts_that_the_server_has_cached_are_not_read_again() -> None:
    """vLLM issue 52884: a repeated run of random prompts has up to 86 % more throughput (H100, 1,024 + 128 tokens).

    Its concurrencies are not printed there; yuqiz7's sweep on the same device has 1 to 64 users.
    """
    cells = {"id": "r", "model": "Qwen3-8B", "gpu": "H100-SXM-80GB", "gpus": "1", "tp": "1", "engine": "vllm"}
    cells |= {"engine_version": "0.27.1", "mode": "serving_concurrency", "lengths": "fixed", "arrivals": "closed"}
    cells |= {"input_tokens": "1024", "output_tokens": "128", "weights": "bf16", "output_tokens_per_s": "1"}

    def gain(users: str) -> float:
        [cold], [warm] = (predict_row(cells | {"concurrency": users, "prefix_hit": hit}, FACTS) for hit in ("", "1"))
        assert cold.predicted is not None
        assert warm.predicted is not None
        return warm.predicted / cold.predicted

    assert gain("1") == pytest.approx(1.02, abs=0.03)
    assert gain("64") == pytest.approx(1.86, rel=0.15)


def test_offline_runs_of_tensorrt_llm_have_as_many_requests_as_its_tables_say() -> None:
    """perf-overview.md: 3,000 requests of 128 and 2,048 tokens. What a row states is taken."""
    cells = {"mode": "offline_max_throughput", "input_tokens": "128", "output_tokens": "2048"}
    trt, vllm = FACTS.engine("tensorrt-llm"), FACTS.engine("vllm")
    assert burst_requests(cells | {"requests": "1000-30000"}, trt) == 3_000
    assert burst_requests(cells | {"requests": "512"}, trt) == 512
    assert burst_requests(cells | {"output_tokens": "77"}, trt) is None
    assert burst_requests(cells, vllm) is None
    assert burst_requests(cells | {"mode": "serving_concurrency"}, trt) is None


def test_limits_that_trtllm_bench_starts_engines_with() -> None:
    """tuning.py by hand: Llama-3.1-8B in fp8 on 80e9 bytes, requests of 1,000 and 1,000 tokens.

    2 x 32 layers x 8 heads x 128 bytes a token, 95 % of what 8.03e9 bytes leave: 521 requests, 640 in steps of 128;
    two tokens a sequence and step: 1,042, at least 2,048, of which 640 are those of answers.
    """
    model, fp8 = FACTS.model("Llama-3.1-8B"), FACTS.weight_format("fp8")
    each = 0.95 * (80e9 - 8.030e9) / (2 * 32 * 8 * 128 * 2000)
    assert 512 < each < 640
    how = (fp8, FACTS.cache_format("fp8"), 80e9)
    found = BenchLimits.of(model, ServingLayout(), *how, (1000, 1000), 30_000)
    assert found[:2] == (640, 2048 - 640)
    assert found.graphs == (1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 640)
    assert BenchLimits.of(model, ServingLayout(pp=2), *how, (1000, 1000), 30_000).batch == 2 * 640  # 551 on each stage
    assert BenchLimits.of(model, ServingLayout(), *how, (5000, 500), 1_500).prompt_tokens == 5000  # whole prompts
    assert BenchLimits.of(model, ServingLayout(), *how, (128, 128), 30_000).batch == 4096  # at most
    others = (FACTS.weight_format("mxfp4"), *how[1:])
    assert BenchLimits.of(model, ServingLayout(), *others, (1000, 1000), 10)[:2] == (2048, 8192 - 10)  # not computed


def test_caches_of_trtllm_bench_leave_room_for_the_largest_graph() -> None:
    """Llama-4-Maverick in fp8 on eight H100s with attention replicas of one each, 128 and 2,048 tokens: 1,280 at once.

    The graph of so many: experts have the 1,280 of each replica, in 16 bits 16,384 elements that the first product
    makes and 8,192 that the last one reads, 503 MB; 105 MB of gathered tokens and 26 MB of a layer's own; logits of
    202,048 entries in 6 bytes, 1,552 MB. 2,186 MB, of which 500 are taken for graphs in any case, do not fit in 10 % of
    the 16.3 GB that are free, but in 15 %. On B200s 4,096 run at once: 6.5 GB are 5.6 % of the 117 GB that they leave.
    """
    cells = {
        "mode": "offline_max_throughput", "gpus": "8", "tp": "8", "attention_dp": "yes", "weights": "fp8",
        "model": "Llama-4-Maverick", "engine": "TensorRT-LLM", "engine_version": "1.0", "input_tokens": "128",
        "output_tokens": "2048",
    }  # fmt: skip
    graph = 1280 * (2 * (8 * (16_384 + 8_192) + 8 * 5120 + 2 * 5120) + 6 * 202_048)
    assert graph == pytest.approx(2.186e9, rel=1e-3)
    for gpu, batch, frac in (("H100-SXM", 1280, 0.85), ("B200", 4096, 0.9)):
        job, _ = row_job(cells | {"gpu": gpu}, FACTS)
        assert (job.graph_batches[-1], job.memory_frac) == (batch, frac)
        free = float(job_memory(job).kv_budget_bytes) / frac
        assert (1 - frac) * free >= graph * batch / 1280 - 0.5e9 > (0.95 - frac) * free  # and not at 5 % more
    assert (
        row_job(cells | {"gpu": "H100-SXM", "engine_version": "0.20"}, FACTS)[0].memory_frac == 0.95
    )  # no such graphs


def test_replicas_that_read_prompts_together_answer_a_third_more() -> None:
    """TensorRT-LLM, tech blog 10: DeepSeek-V3 on eight GB200, 16,000 requests of 803 and 3,653 tokens on average.

    25,664 tokens/s where each replica reads its prompts as they come, 34,140 where they wait for one another.
    """
    cells = {
        "mode": "offline_max_throughput", "gpus": "8", "tp": "1", "ep": "8", "dp": "8", "gpu": "GB200",
        "weights": "nvfp4", "model": "DeepSeek-V3", "engine": "TensorRT-LLM", "engine_version": "1.1",
        "input_tokens": "803", "output_tokens": "3653", "lengths": "answers end at EOS", "requests": "16000",
    }  # fmt: skip
    apart, joined = (
        sum(p.predicted or 0.0 for p in predict_row(cells | {"prefill_delayer": how}, FACTS)) for how in ("", "yes")
    )
    assert apart == pytest.approx(25_664, rel=0.2)
    assert joined == pytest.approx(34_140, rel=0.2)
    assert joined / apart == pytest.approx(34_140 / 25_664, rel=0.1)


def test_what_split_models_by_rows_before_2024_splits_them_by_layers() -> None:
    """llama.cpp pull request 4766, merged on 2024-01-12; transformers gives whole layers to each device, too."""
    cells = {"gpus": "4"}
    rows, layers = (4, 1, 1, 1, 1), (1, 4, 1, 1, 1)
    for date, layout in (
        ("2023", rows),
        ("2023-06", rows),
        ("2023-11-14", rows),
        ("2024-01-11", rows),
        ("2024-01-12", layers),
        ("2024", layers),
    ):
        assert _layout(cells | {"date": date}, "Llama-2-70B", "llama.cpp-2024") == layout
    assert _layout(cells | {"date": "2023-11-14"}, "Llama-2-70B", "hf") == layers
    assert _layout(cells | {"date": "2023-11-14"}, "Llama-2-70B", "vllm") == rows


@pytest.mark.parametrize(
    ("date", "name"), [("2026-03-01", "llama.cpp-2025"), ("2026-03-10", "llama.cpp"), ("2026", "llama.cpp")]
)
def test_a_generation_ends_on_a_day(date: str, name: str) -> None:
    assert row_engine({"engine": "llama.cpp", "date": date}, FACTS).name == name


def test_a_family_without_a_size_is_no_model_but_in_ollama() -> None:
    """Gemma 3 has 270M, 1B, 4B, 12B and 27B; `gemma3` is 4B to ollama, a file of that name may be any of them."""
    cells = {"mode": "single_stream_decode", "gpu": "RTX 4090", "gpus": "1", "model": "gemma-3.Q8_0.gguf"}
    with pytest.raises(SpecError, match=r"'gemma-3\.Q8_0\.gguf' has no size: Gemma-3 is published in 5 sizes"):
        row_job(cells | {"engine": "llamacpp"}, FACTS)
    assert row_job(cells | {"engine": "ollama"}, FACTS)[0].model.name == "Gemma-3-4B (text tower)"
    assert row_job(cells | {"engine": "llamacpp", "model": "phi-4"}, FACTS)[0].model.name == "Phi-4 14B"  # the only one


def test_a_median_of_intervals_leaves_out_the_prompts_of_others() -> None:
    """Llama-2-7B on an A100, 64 users of 2,048 + 128 tokens in step: prompts stand between a few tokens only.

    LMDeploy 0.2.0 (docs/en/benchmark/a100_fp16.md): half of all tokens come within 46 ms; all prompts take seconds.
    By hand: a step that reads 13.2e9 bytes of weights and the cache of as many sequences as fit the memory, and the
    host's time for each of them.
    """
    cells = {
        "engine": "LMDeploy", "engine_version": "0.2.0", "mode": "serving_concurrency", "model": "Llama-2-7B",
        "gpu": "A100-SXM-80GB", "gpus": "1", "weights": "fp16", "input_tokens": "2048", "output_tokens": "128",
        "lengths": "fixed", "concurrency": "64", "arrivals": "closed", "tpot_s": "0.046",
    }  # fmt: skip
    [mean] = predict_row(cells, FACTS)
    [median] = predict_row(cells | {"tpot_reading": "median interval"}, FACTS)
    cached = 2112 * 2 * 32 * 4096 * 2  # bytes of one sequence, half way through its answer
    fits = int(0.8 * (80e9 - 13.5e9) / cached)
    host_s = fits * FACTS.engine("lmdeploy").sequence_s
    assert median.predicted == pytest.approx((13.2e9 + fits * cached) / (0.8024 * 2.039e12) + host_s, rel=0.15)
    assert mean.predicted is not None
    assert mean.predicted > 1.5 * (median.predicted or 0.0)
    fixed = {"mode": "fixed_batch", "batch": "8", "tpot_reading": "median interval", "lengths": "", "requests": ""}
    [whole] = predict_row(cells | fixed, FACTS)
    assert whole.skipped is not None
    assert whole.skipped.startswith("a median interval is predicted of simulated runs alone")


@pytest.mark.parametrize(
    ("notes", "reading"),
    [
        ("tpot column = median ITL; 2026-06-28", "median interval"),
        ("per-token latency percentiles printed to 1 ms", "median interval"),
        ("mean-vs-median of TTFT/TPOT not stated", ""),
        ("", "median"),
    ],
)
def test_what_a_time_a_token_is(notes: str, reading: str) -> None:
    assert _printed(tpot_ms_p50="10", notes=notes)["tpot_reading"] == reading


def test_a_time_to_the_first_token_is_a_median_where_only_that_is_printed() -> None:
    assert _printed(ttft_ms_p50="10")["ttft_reading"] == "median"
    assert _printed(ttft_ms_p50="10", ttft_ms_mean="12")["ttft_reading"] == ""
    assert _printed(tpot_ms_p50="10", tpot_ms_mean="12")["tpot_reading"] == ""


def test_a_median_of_requests_leaves_out_those_that_queue() -> None:
    """Three requests that wait 1 s and one that waits 5: 2 s on average, 1 s at the median."""
    band = ErrorBand(name="x", low=0.5, median=1.0, high=2.0, rows=9, source="s", date="2026-01-01")
    mean = Ranged(value=4.0, low=2.0, high=8.0, band=band)
    median = median_of_requests(mean, np.array([1.0, 1.0, 5.0, 1.0]))
    assert (median.value, median.low, median.high) == (2.0, 1.0, 4.0)
    assert median_of_requests(mean, np.array([0.0, 0.0])) == mean


BALANCED = {
    "engine": "trtllm", "engine_version": "1.2.0rc6.post2", "mode": "serving_concurrency", "model": "DeepSeek-R1",
    "gpu": "B200", "gpus": "8", "tp": "1", "dp": "8", "ep": "8", "attention_dp": "yes", "weights": "nvfp4",
    "kv_dtype": "fp8", "step_tokens": "8192", "input_tokens": "1024", "output_tokens": "8192", "concurrency": "128",
    "lengths": "uniform 0.8-1.0", "arrivals": "closed", "ttft_s": "0.769", "tpot_s": "0.0193",
}  # fmt: skip
"""InferenceX's DeepSeek-R1 on TensorRT-LLM, 128 users on eight replicas: first tokens took 769 ms, 19 ms each."""


def first_and_each(**cells: str) -> list[float]:
    """Predicted seconds to the first token, and of each further one."""
    found = sorted(predict_row(BALANCED | cells, FACTS), key=lambda p: p.quantity != "ttft_s")
    return [p.predicted or 0.0 for p in found]


def test_prompts_of_attention_replicas_that_are_balanced_take_as_long_as_measured() -> None:
    assert first_and_each(prefill_delayer="yes")[0] == pytest.approx(0.769, rel=0.2)


def test_prompts_of_attention_replicas_that_are_balanced_wait_for_each_other() -> None:
    """A replica's 16 users send a prompt in 7,373 / 16 steps, so that eight of them hardly ever meet, and all go when
    the clock of 60 steps runs out, 30 later on average; but for the first of ten rounds, in which all replicas have
    prompts at once. 27 x 18 ms = 0.49 s beside what prompts wait for anyway: 15 others are always under way."""
    (first, each), (first_apart, _) = first_and_each(prefill_delayer="yes"), first_and_each()
    assert first - first_apart == pytest.approx(0.9 * 30 * each, rel=0.05)


def test_a_row_with_a_median_is_predicted_as_one() -> None:
    """Three prompts at once, two slots: read one after the other, and the third after the first answer of 200 tokens.

    By hand, with p for one prompt: p, 2p, and 3p and an answer; the middle one is two prompts' time, whatever an
    answer takes.
    """
    cells = {
        "engine": "vLLM", "engine_version": "0.10.0", "mode": "serving_qps", "model": "Llama-3.1-8B", "gpu": "L40S",
        "gpus": "1", "weights": "bf16", "input_tokens": "8192", "output_tokens": "200", "lengths": "fixed",
        "arrivals": "burst", "arrivals_per_s": "inf", "requests": "3", "max_batch": "2", "ttft_s": "2",
    }  # fmt: skip
    [alone] = predict_row(cells | {"requests": "1"}, FACTS)
    [mean] = predict_row(cells, FACTS)
    [median] = predict_row(cells | {"ttft_reading": "median"}, FACTS)
    assert alone.predicted is not None
    assert mean.predicted is not None
    assert median.predicted == pytest.approx(2 * alone.predicted, rel=0.1)
    assert mean.predicted > 1.5 * (median.predicted or 0.0)


def test_files_of_llama_cpp_in_mxfp4_have_8_bits_where_checkpoints_have_16() -> None:
    """gpt-oss-20b: 12.1 GB as llama.cpp's file type 38, 13.8 GB as it was released, and in ollama's library."""
    model = named_model("gpt-oss-20b", FACTS)
    local = FACTS.engine("llama.cpp")
    for engine, size in (("llama.cpp", 12.1e9), ("ollama", 13.8e9)):
        form = row_format({"engine": engine, "weights": "mxfp4"}, local, FACTS)
        assert weight_bytes(model, form) == pytest.approx(size, rel=0.02)
    assert row_format({"engine": "vllm", "weights": "mxfp4"}, FACTS.engine("vllm"), FACTS).name == "mxfp4"


class _Recorded(Mapping[str, str]):
    """A row that adds the columns that are asked for to `columns`."""

    def __init__(self, row: Mapping[str, str], columns: set[str]) -> None:
        self.row, self.columns = row, columns

    def __getitem__(self, name: str) -> str:
        self.columns.add(name)
        return self.row[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.row)

    def __len__(self) -> int:
        return len(self.row)


def test_every_column_of_the_measurements_is_read() -> None:
    """A setting that a row states and nobody reads would be an error without a cause."""
    with Path("benchmarks/truth/serving.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    columns_read, seen = set[str](), set[str]()
    for row in rows:
        stated = {name for name, cell in row.items() if cell} | {row["mode"]}
        if stated - seen:  # the first with a column, or a mode
            seen |= stated
            predict_row(_Recorded(row, columns_read), FACTS)
    assert rows[0].keys() - columns_read == {"study", "quality", "source"}
