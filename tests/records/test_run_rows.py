"""Runs as rows: `backtest` reads and predicts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from imported_runs import stored

import flopwise
from flopwise.backtests.kinds import KINDS
from flopwise.errors import UnknownNameError
from flopwise.records.rows import COLUMNS, rows_of
from named import train_answer

TRAINING: dict[str, Any] = {
    "model": "Llama-3.2-1B", "gpu": "a100-80gb", "gpus": 2,
    "settings": {
        "seq": 2048, "global_batch": 64, "micro_batch": 4, "zero": 1, "precision": "bf16", "recompute": "none",
    },
}  # fmt: skip


def test_a_training_run_is_predicted_by_backtest(tmp_path: Path) -> None:
    found = stored(tmp_path / "runs.db", {"step_s": [4.0] * 20, "peak_memory_bytes@0": [3e10, 3.5e10]}, **TRAINING)
    made = rows_of([found], "training")
    assert made.missing == ()
    assert made.rows[0]["tokens_per_s_per_gpu"] == "16384"  # 2048 x 64 tokens in 4 s on two accelerators
    (tmp_path / "training.csv").write_text(made.csv)
    [prediction] = flopwise.backtest("training", tmp_path / "training.csv").predictions
    estimate = train_answer(
        "Llama-3.2-1B", gpu="a100-80gb", gpus=2, seq=2048, global_batch=64, micro_batch=4, dp=2, zero=1
    ).estimate
    assert prediction.measured == 16384.0
    assert prediction.predicted == pytest.approx(estimate.tokens_per_s_per_gpu, rel=0.25)  # the row's own defaults
    made = rows_of([found], "memory")
    assert (made.rows[0]["reading"], made.rows[0]["peak_bytes"]) == ("allocated", "3.5e+10")
    (tmp_path / "memory.csv").write_text(made.csv)
    [prediction] = flopwise.backtest("memory", tmp_path / "memory.csv").predictions
    assert prediction.measured == 3.5e10
    assert prediction.predicted is not None


def test_adapters_are_said(tmp_path: Path) -> None:
    how = TRAINING | {"settings": TRAINING["settings"] | {"qlora": True, "lora": 8}, "task": "finetune"}
    found = stored(tmp_path / "runs.db", {"step_s": [4.0] * 20, "reserved_memory_bytes@0": [2e10]}, **how)
    [row] = rows_of([found], "training").rows
    assert (row["task"], row["lora_rank"]) == ("qlora", "8")
    [row] = rows_of([found], "memory").rows
    assert (row["method"], row["base"], row["reading"]) == ("qlora", "nf4", "reserved")


def test_a_serving_run_is_predicted_by_backtest(tmp_path: Path) -> None:
    series = {"ttft_s": [0.1] * 5, "itl_s": [0.01] * 5, "e2e_s": [1.0] * 5, "tokens_per_s": [800.0]}
    found = stored(
        tmp_path / "runs.db", series, task="serve", model="Llama-3.1-8B", gpu="h100", gpus=1,
        settings={"input_tokens": 512, "output_tokens": 128, "concurrency": 8, "engine": "vllm"},
    )  # fmt: skip
    made = rows_of([found], "serving")
    assert made.missing == ()
    assert (made.rows[0]["mode"], made.rows[0]["requests"]) == ("serving_concurrency", "5")
    (tmp_path / "serving.csv").write_text(made.csv)
    done = flopwise.backtest("serving", tmp_path / "serving.csv").predictions
    assert {p.quantity: p.measured for p in done} == {"output_tokens_per_s": 800.0, "tpot_s": 0.01, "ttft_s": 0.1}
    assert all(p.predicted is not None for p in done)


def test_what_a_run_lacks_is_the_reason_why_it_makes_no_row(tmp_path: Path) -> None:
    bare = stored(tmp_path / "runs.db", {"step_s": [4.0] * 20}, name="bare", gpu="h100")
    slow = stored(tmp_path / "runs.db", {"loss": [4.0]}, name="slow", **TRAINING)
    serving = stored(tmp_path / "runs.db", {"ttft_s": [4.0]}, name="serves", task="serve", model="x", gpu="h100")
    made = rows_of([bare, slow, serving], "training")
    assert made.rows == ()
    assert list(made.missing) == [
        "bare: its throughput is not known: it was not measured, and seq or global_batch is missing",
        "slow: its throughput is not known: it was not measured, and seq or global_batch is missing",
        "serves: it is a serving run",
    ]
    assert rows_of([slow], "memory").missing == ("slow: no memory peak was measured",)
    named = stored(tmp_path / "runs.db", {"peak_memory_bytes@0": [4.0]}, name="named", gpu="h100")
    assert rows_of([named], "memory").missing == ("named: its model is not known",)
    reason = "serves: neither its concurrency nor its request rate is known"
    assert rows_of([serving], "serving").missing == (reason,)
    with pytest.raises(UnknownNameError, match="Allowed: training, memory, serving"):
        rows_of([], "kernels")


def test_every_column_is_one_that_backtest_reads() -> None:
    from flopwise.backtests.columns import COLUMNS as READ

    for kind, columns in COLUMNS.items():
        assert set(columns) <= set(READ[kind]), kind
        assert set(KINDS[kind].needed) <= set(columns), kind
        assert set(KINDS[kind].measured) <= set(columns), kind
