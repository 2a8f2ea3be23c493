from __future__ import annotations

import pytest

from flopwise.backtests import memory, weights
from flopwise.facts.catalog import load_facts

FACTS = load_facts()
ROW = {
    "id": "x", "source": "torchtune README", "source_key": "torchtune", "year": "2025", "model": "Llama3.2-3B",
    "params_b": "3.2", "method": "full", "trainable_params_m": "", "gpu": "A100", "n_gpus": "1", "param_dtype": "bf16",
    "base_weight_quant": "", "optimizer": "AdamW", "micro_batch": "2", "seq_len": "4096",
    "activation_checkpointing": "true", "flash_attention": "true", "torch_compile": "true",
    "parallelism": "none", "offload": "none",
    "peak_memory_gb_per_gpu": "24.9", "memory_unit": "GiB", "memory_kind": "torch peak active", "notes": "",
}  # fmt: skip
LITGPT = {
    "source": "litgpt tables", "source_key": "litgpt", "method": "lora", "trainable_params_m": "4.194304",
    "model": "Llama2-7B", "seq_len": "1304", "micro_batch": "1", "activation_checkpointing": "false",
    "torch_compile": "", "memory_unit": "GB", "memory_kind": "torch max allocated", "notes": "rank 8 on q,v",
}  # fmt: skip
PUBLISHED = [  # peaks that their sources print
    {},  # torchtune, full fine-tuning with recompute and chunked loss
    {
        "activation_checkpointing": "false", "torch_compile": "false", "peak_memory_gb_per_gpu": "60.0",
        "notes": "+packed (cumulative)",
    },
    {"optimizer": "AdamW8bit, fused in backward", "offload": "activations to CPU", "peak_memory_gb_per_gpu": "17.6"},
    {**LITGPT, "peak_memory_gb_per_gpu": "21.3"},
    {**LITGPT, "micro_batch": "2", "peak_memory_gb_per_gpu": "29.07"},
    {
        "id": "bigscience-176b-h14336-l70-a64-gbs2048", "source": "", "source_key": "bigscience",
        "model": "BLOOM-proto-176B",
        "method": "pretrain", "n_gpus": "384", "param_dtype": "bf16 + fp32 master", "seq_len": "2048",
        "activation_checkpointing": "full", "flash_attention": "false", "torch_compile": "",
        "parallelism": "dp8 tp4 pp12 cp1 zero1", "peak_memory_gb_per_gpu": "59", "memory_unit": "GB",
        "memory_kind": "nvidia-smi style",
    },
]  # fmt: skip


@pytest.mark.parametrize("changes", PUBLISHED)
def test_published_peaks_are_met(changes: dict[str, str]) -> None:
    found = memory.predict_row(ROW | changes, FACTS)
    assert found.skipped is None
    assert found.error == pytest.approx(0, abs=0.15)
    assert found.low is not None
    assert found.high is not None
    assert found.predicted is not None
    assert found.low < found.predicted < found.high


def test_measured_columns_are_no_input() -> None:
    one = memory.predict_row(ROW, FACTS)
    other = memory.predict_row(ROW | {"peak_memory_gb_per_gpu": "99", "speed_reported": "1"}, FACTS)
    assert one.predicted == other.predicted


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"memory_unit": "buckets"}, "neither gb nor gib"),
        ({"model": "no such model at all"}, "unknown"),
        ({"memory_kind": "capacity limit (largest that fits)"}, "capacity limit"),
        ({"method": "lora", "base_weight_quant": "q99"}, "unknown weight format"),
    ],
)
def test_what_cannot_be_predicted_is_skipped_with_a_reason(changes: dict[str, str], reason: str) -> None:
    found = memory.predict_row(ROW | changes, FACTS)
    assert found.predicted is None
    assert reason in (found.skipped or "").lower()


@pytest.mark.parametrize(
    ("model", "form", "published"),
    [  # checkpoints' index files and file listings
        ("Llama-3.1-8B", "BF16", 16_060_522_496),
        ("Mixtral-8x7B-v0.1", "BF16", 93_405_585_408),
        ("Llama-3.1-70B (Nemotron)", "GGUF Q4_K_S", 40_350_000_000),
        ("gpt-oss-20b", "mxfp4", 13_760_000_000),
        ("Qwen2.5-72B-Instruct", "GGUF Q4_K_M", 47_405_701_530),
    ],
)
def test_published_sizes_are_met(model: str, form: str, published: int) -> None:
    row = {"id": "w", "model": model, "format": form, "bytes": str(published)}
    found = weights.predict_row(row, FACTS)
    assert found.error == pytest.approx(0, abs=0.002)


def test_a_size_of_an_unknown_format_is_skipped() -> None:
    found = weights.predict_row({"id": "w", "model": "Llama-3.1-8B", "format": "Q99", "bytes": "1"}, FACTS)
    assert "format" in (found.skipped or "")


@pytest.mark.parametrize(
    ("printed", "meant"),
    [
        ("adamw bf16", "adamw"), ("pagedadamw8bit + optimizer_in_bwd", "paged-adamw-8bit"), ("adafactor", "adafactor"),
        ("sgd with momentum", "sgd-momentum"), ("adamw-8bit", "adamw-8bit"), ("muon", "muon"),
    ],
)  # fmt: skip
def test_printed_optimizers_are_rows_of_the_table(printed: str, meant: str) -> None:
    assert memory.row_optimizer(printed) == meant
    assert FACTS.optimizer(meant).name == meant


def test_every_software_word_is_a_stack() -> None:
    assert {name for _, name in memory.STACK_WORDS} <= set(FACTS.stacks)
