"""The published measurements in benchmarks/truth: whole, sourced, documented; twenty of them predicted as before."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from flopwise.backtests.columns import COLUMNS
from flopwise.backtests.kinds import KINDS
from flopwise.facts.catalog import load_facts

TRUTH = Path(__file__).parents[2] / "benchmarks" / "truth"
README = (TRUTH / "README.md").read_text(encoding="utf-8")
TEXT = {
    "id", "study", "publisher", "date", "model", "gpu", "gated", "task", "lora_targets", "packed_data", "zero",
    "recompute", "recompute_modules", "topology", "sequence_parallel", "attention", "precision", "software",
    "compiled", "async_tp", "quality", "source", "format", "form", "method", "base", "offload", "weights_dtype",
    "grad_dtype", "states_dtype", "adapter_dtype", "optimizer", "optimizer_in_backward", "reading", "library",
    "library_version", "op", "kernel", "dtype", "kv_dtype", "warm", "workload", "attention_dp", "weights", "engine",
    "engine_version", "eager", "prefill_delayer", "speculation", "mode", "lengths", "arrivals",
    "arrivals_per_s", "requests",
    "dispatch", "config", "double_quant", "covers", "tpot_reading", "ttft_reading", "routing", "intra_node",
}  # fmt: skip
"""Columns that hold no plain numbers."""


def _rows(kind: str) -> list[dict[str, str]]:
    with (TRUTH / f"{kind}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_each_kind_has_its_file_and_no_file_is_left_over() -> None:
    assert {path.stem for path in TRUTH.glob("*.csv")} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_named_sourced_and_measured_in_our_columns(kind: str) -> None:
    rows = _rows(kind)
    names = [row["id"] for row in rows]
    assert len(set(names)) == len(names)
    assert set(rows[0]) <= set(COLUMNS[kind])
    for row in rows:
        assert row["source"], row["id"]
        assert any(row[column] for column in (*KINDS[kind].measured, *WHOLE.get(kind, ()))), row["id"]
        for column, cell in row.items():
            if cell and column not in TEXT:
                assert float(cell) >= 0, (row["id"], column, cell)
    unused = [column for column in rows[0] if not any(row[column] for row in rows)]
    assert not unused


WHOLE = {"serving": ("latency_s",)}
"""What is measured of whole requests, composed of its parts and fitted to by nothing."""


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_counts_the_rows(kind: str) -> None:
    line = re.search(rf"^\| `{kind}\.csv` \|.*\| ([\d,]+) \|$", README, re.MULTILINE)
    assert line is not None
    assert int(line[1].replace(",", "")) == len(_rows(kind))


ANCHORS = [
    ("weights", "w049", "", -1.4),  # a file whose size is printed to a decimal
    ("memory", "mem-torchtitan-2412-llama3-8b-h100-sxm-96gb-hbm2e-500w-n8-s8192-bf16", "", -5.5),
    ("memory", "litgpt-tables-llama2-7b-lora-w16-n1-mb1-s1304", "", -6.7),
    ("memory", "mem-bigscience-a100-181b-h14336-l72-a64-n384-dp8tp4pp12-mbs2-gbs2048", "", 1.5),
    ("kernels", "k0791_G", "", 4.2),  # a large product on H100
    ("kernels", "k0249_D", "", -24.1),  # decoding of one sequence on B200
    ("kernels", "k0147_C", "", 13.3),  # an all-reduce of 1 MiB on eight H100
    ("kernels", "k1044_M", "", -5.9),  # experts in fp8
    ("training", "llm-foundry-mpt-7b-h100-sxm-80gb-n512-s2048-bf16", "", 11.4),
    ("training", "megatron-sc21-t1-gpt-1008b-a100-sxm-80gb-n3072-s2048-fp16", "", -12.6),
    ("training", "mbridge-26.04.01-deepseek-v3-671b-b200-n256-s4096-mxfp8", "", -11.2),
    ("training", "nemo-2412-ft-llama2-13b-h100-sxm-80gb-n8-s4096-fp8-2", "", -13.5),  # LoRA
    ("gpu-hours", "llama-65b", "", 15.2),
    ("serving", "s0514", "output_tokens_per_s", -10.5),  # offline, TensorRT-LLM, 70B on two H100
    ("serving", "s1361", "output_tokens_per_s", -4.3),  # a fixed batch, vLLM of 2024, 70B on four A100
    ("serving", "s1074", "output_tokens_per_s", -3.6),  # one stream, llama.cpp
    ("serving", "s2047", "tpot_s", 0.0),  # a closed loop, vLLM, a mixture on four H100
    ("serving", "s2047", "ttft_s", -19.7),
    ("serving", "s0818", "tpot_s", -7.0),  # arrivals at a rate
    ("io", "resnet50 a100", "", 5.1),
]
"""Kind, row, quantity, and the signed error of its prediction in per cent."""


@pytest.mark.parametrize(("kind", "name", "quantity", "error"), ANCHORS)
def test_anchors_are_predicted_as_before(kind: str, name: str, quantity: str, error: float) -> None:
    """A change detector, no truth: our own errors, frozen. A change of the model on purpose changes them here, too."""
    row = next(row for row in _rows(kind) if row["id"] == name)
    [found] = [p for p in KINDS[kind].predictor(load_facts())(row) if p.quantity == quantity]
    assert found.error is not None, found.skipped
    assert 100 * found.error == pytest.approx(error, abs=1.0)
