"""The cells of serving measurements, in the ways that people write them."""

from __future__ import annotations

import pytest

from flopwise.backtests.names import model_spellings, named_model
from flopwise.backtests.serving import measured_quantities, row_job
from flopwise.backtests.serving_cells import (
    row_cache_format,
    row_device,
    row_format,
    row_lengths,
    row_place,
    row_requests,
)
from flopwise.backtests.serving_engines import row_engine
from flopwise.errors import UnknownNameError
from flopwise.facts.formats import BF16
from named import FACTS


@pytest.mark.parametrize(
    ("cells", "name"),
    [
        ({"engine": "vLLM"}, "vllm"),
        ({"engine": "vllm", "engine_version": "0.6.3"}, "vllm-v0"),
        ({"engine": "vllm", "engine_version": "0.19.0"}, "vllm"),
        ({"engine": "TensorRT-LLM (Triton backend)"}, "tensorrt-llm"),
        ({"engine": "NIM (TRT-LLM)", "engine_version": "1.8.0"}, "tensorrt-llm"),
        ({"engine": "TensorRT-LLM", "engine_version": "0.6.1"}, "tensorrt-llm-2023"),
        ({"engine": "TensorRT-LLM", "engine_version": "0.17 (TRT engine)"}, "tensorrt-llm-v0"),
        ({"engine": "trtllm", "engine_version": "1.2.0rc6.post2"}, "tensorrt-llm"),
        ({"engine": "vllm", "notes": "db-dump/2024-04-27"}, "vllm-v0"),
        ({"engine": "Deepspeed"}, "deepspeed-inference"),
        ({"engine": "ollama"}, "llama.cpp"),
        ({"engine": "Deepspeed-MII"}, "deepspeed-mii"),
    ],
)
def test_engines(cells: dict[str, str], name: str) -> None:
    assert row_engine(cells, FACTS).name == name


@pytest.mark.parametrize(
    ("year", "model_type", "notes", "name"),
    [
        (2020, "llama", "", "vllm-v0"),  # what is measured on old devices is of their time
        (2024, "llama", "", "vllm-v0"),
        (2025, "llama", "", "vllm"),
        (2020, "qwen3_5_text", "", "vllm"),  # unless the model is younger
        (2020, "llama", "source_file=2026-04-06.csv", "vllm"),  # or the measurement says its date
    ],
)
def test_generations_without_a_version(year: int, model_type: str, notes: str, name: str) -> None:
    cells = {"engine": "vllm", "notes": notes}
    assert row_engine(cells, FACTS, device_year=year, model_type=model_type).name == name


def test_dies_are_devices() -> None:
    facts = FACTS
    whole, die = facts.accelerator("MI250"), row_device({"gpu": "MI250"}, facts).accelerator
    assert die.name == "MI250-GCD"
    assert (2 * die.hbm_bytes_per_s, 2 * die.peak["bf16"]) == (whole.hbm_bytes_per_s, whole.peak["bf16"])
    assert row_device({"gpu": "MI300X"}, facts).accelerator.name == "MI300X"


def test_drawn_lengths_have_a_mean() -> None:
    cells = {"input_len": "1000", "output_len": "200", "notes": "draws lengths uniformly in 80-100% of nominal"}
    assert row_lengths(cells) == (900, 180)
    assert row_lengths({"input_len": "1000", "output_len": "200"}) == (1000, 200)


def test_llama_bench_works_through_prompts_in_pieces_of_its_batch() -> None:
    cells = {
        "engine": "llama.cpp", "mode": "fixed_batch", "batch": "16", "model": "Llama-2-7b-hf", "gpu": "H100-SXM-80GB",
        "input_len": "128", "output_len": "128", "n_gpus": "1", "precision_weights": "fp16",
    }  # fmt: skip
    job, _ = row_job(cells, FACTS)
    assert (job.concurrency, job.prefill_tokens) == (1, 16)


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
    assert row_format(cells, FACTS.engine(software), FACTS).name == name


def test_the_cache_is_as_stated_or_as_the_engine_keeps_it() -> None:
    trt, vllm, fp8, bf16 = FACTS.engine("tensorrt-llm"), FACTS.engine("vllm"), FACTS.weight_format("fp8"), BF16
    assert row_cache_format({"precision_kv": "fp16"}, trt, fp8, FACTS).name == "bf16"
    assert row_cache_format({"precision_kv": "auto"}, vllm, fp8, FACTS).name == "bf16"
    assert row_cache_format({}, trt, fp8, FACTS).name == "fp8"
    assert row_cache_format({}, trt, bf16, FACTS).name == "bf16"


@pytest.mark.parametrize(
    ("cells", "place"),
    [
        ({"n_gpus": "8", "tp": "4", "pp": "2"}, (4, 2, 1, 1, 1)),
        ({"n_gpus": "8", "tp": "2"}, (2, 1, 1, 1, 4)),
        ({"n_gpus": "4"}, (4, 1, 1, 1, 1)),
        ({"n_gpus": "4", "pp": "4"}, (1, 4, 1, 1, 1)),
        ({"n_gpus": "4", "tp": "1", "dp": "4", "ep": "4"}, (1, 1, 1, 1, 4)),
    ],
)
def test_layouts_of_a_dense_model(cells: dict[str, str], place: tuple[int, ...]) -> None:
    assert tuple(row_place(cells, named_model("Llama-3.1-8B", FACTS), FACTS.engine("vllm"))) == place


def test_attention_replicas_of_a_mixture_share_its_experts() -> None:
    model = named_model("Mixtral-8x7B", FACTS)
    cells = {"n_gpus": "4", "tp": "1", "dp": "4.0", "ep": "4"}
    assert tuple(row_place(cells, model, FACTS.engine("vllm"))) == (1, 1, 4, 4, 1)
    assert tuple(row_place({"n_gpus": "4", "tp": "4", "ep": "0"}, model, FACTS.engine("vllm"))) == (4, 1, 1, 1, 1)


def test_llama_cpp_splits_by_layers() -> None:
    model = named_model("Llama-3.1-8B", FACTS)
    assert tuple(row_place({"n_gpus": "4"}, model, FACTS.engine("llama.cpp"))) == (1, 4, 1, 1, 1)


def test_spellings_of_models() -> None:
    assert "Llama-3.3-70B" in model_spellings('Llama-3.3-70B (InferenceMAX "llama70b")')
    assert "qwen3-8b" in model_spellings("qwen3:8b")
    assert "Qwen2.5-Coder-32B-Instruct" in model_spellings("Qwen/Qwen2.5-Coder-32B-Instruct-AWQ")
    assert "Qwen3.5-0.8B" in model_spellings("/home/me/.cache/models/Qwen3.5-0.8B-Q8_0.gguf")


def test_throughput_is_of_output_tokens_and_of_all_gpus() -> None:
    assert measured_quantities({"output_tokens_per_s_total": "90", "output_tokens_per_s_per_gpu": "1"}) == {
        "output_tokens_per_s": 90
    }
    assert measured_quantities({"output_tokens_per_s_per_gpu": "25", "n_gpus": "4"}) == {"output_tokens_per_s": 100}
    both = {"total_tokens_per_s": "400", "input_len": "300", "output_len": "100"}
    assert measured_quantities(both) == {"output_tokens_per_s": 100}
    assert measured_quantities({"requests_per_s": "2", "output_len": "100"}) == {"output_tokens_per_s": 200}
    assert measured_quantities({"ttft_ms_p50": "70", "itl_ms_mean": "8"}) == {"ttft_s": 0.07, "tpot_s": 0.008}


def test_modes_set_what_is_in_flight() -> None:
    base = {"model": "Llama-3.1-8B", "gpu": "H100-SXM-80GB", "engine": "vllm", "n_gpus": "1", "tp": "1"}
    base |= {"input_len": "100", "output_len": "50", "concurrency": "7", "batch": "5", "request_rate": "3"}
    facts = FACTS
    jobs = {m: row_job(base | {"mode": m}, facts)[0] for m in ("fixed_batch", "serving_concurrency", "serving_qps")}
    assert (jobs["fixed_batch"].concurrency, jobs["fixed_batch"].static) == (5, True)
    assert (jobs["serving_concurrency"].concurrency, jobs["serving_concurrency"].static) == (7, False)
    assert (jobs["serving_qps"].concurrency, jobs["serving_qps"].arrivals_per_s) == (None, 3)
    offline = row_job(base | {"mode": "offline_max_throughput"}, facts)[0]
    assert (offline.concurrency, offline.arrivals_per_s) == (None, None)
    replicas = row_job(base | {"mode": "serving_concurrency", "n_gpus": "4"}, facts)
    assert (replicas[0].concurrency, replicas[1].replicas) == (2, 4)


@pytest.mark.parametrize(
    ("notes", "sent"),
    [
        ("500 requests; numbers are rounded", 500),
        ("200 ShareGPT prompts; hardware printed", 200),
        ("c=32 looks noisy (400 prompts caps concurrency at 400)", 400),
        ("1,000 requests", 1000),
        ("num_requests 1000-30000", None),
        ("1000-3000 requests at high rate", None),
        ("", None),
    ],
)
def test_notes_say_how_many_requests_were_sent(notes: str, sent: int | None) -> None:
    assert row_requests({"notes": notes}) == sent
