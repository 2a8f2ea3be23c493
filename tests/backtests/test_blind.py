"""No prediction depends on what was measured, and no cell makes a crash: for every kind."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from flopwise.backtests.columns import COLUMNS, our_columns
from flopwise.backtests.kinds import KINDS, kind_of
from flopwise.backtests.run import run_backtest
from flopwise.errors import UnknownNameError
from flopwise.facts.catalog import load_facts
from flopwise.facts.rows import each_row

EXAMPLES = Path(__file__).parents[2] / "examples"
Row = dict[str, str]
PRINTED = {
    "weights": ("bytes", "bytes_per_param"),
    "memory": ("peak_memory_gb_per_gpu", "speed_reported"),
    "kernels": ("measured_time_us", "achieved_tflops", "achieved_gbs", "frac_of_peak"),
    "training": (
        "measured_value", "peak_memory_gb_per_gpu", "reported_tokens_per_sec_per_gpu", "reported_tflops_per_gpu",
        "reported_mfu", "reported_step_time_s", "derived_tokens_per_sec_per_gpu", "derived_mfu_uniform",
    ),
    "gpu-hours": ("gpu_hours", "implied_tokens_per_sec_per_gpu", "implied_mfu_6N"),
    "io": ("computation_time_s", "samples_per_s_per_accel", "read_MB_per_s_per_accel"),
    "serving": (
        "output_tokens_per_s_total", "output_tokens_per_s_per_gpu", "total_tokens_per_s", "requests_per_s",
        "itl_ms_mean", "e2e_latency_ms", *(f"{q}_ms_{how}" for q in ("ttft", "tpot") for how in ("mean", "p50", "p99")),
    ),
}  # fmt: skip
"""Columns of published tables that measure."""
FORMS = [(kind, ours) for kind in KINDS for ours in (False, True)]
"""Every kind of file, with the columns of published tables and with ours."""


def _measured(kind: str, ours: bool) -> tuple[str, ...]:
    return KINDS[kind].measured if ours else PRINTED[kind]


def _row(**cells: Any) -> Row:
    return {name: str(value) for name, value in cells.items()}


def _rows(kind: str, ours: bool = False) -> list[Row]:
    """A few rows of each kind, with every measured column filled."""
    match kind:
        case "training" | "serving":
            rows: list[Row] = [dict(r) for r in list(each_row(EXAMPLES / f"measured-{kind}.csv", ()))]
        case "weights":
            rows = [_row(id=f, model="Llama-3.1-8B", format=f, bytes=b) for f, b in (("BF16", 16e9), ("Q4_K_M", 4.9e9))]
        case "memory":
            shared = {"model": "Llama-3.1-8B", "gpu": "A100-SXM-80GB", "memory_unit": "GiB", "memory_kind": "allocated"}
            rows = [
                _row(id=m, method=m, n_gpus=1, micro_batch=2, seq_len=2048, optimizer="adamw", **shared)
                | {"peak_memory_gb_per_gpu": "20", "parallelism": "torchtune", "notes": "rank 8"}
                for m in ("full", "lora")
            ]
        case "kernels":
            rows = [
                _row(id=n, op="gemm", gpu="H100-SXM-80GB", dtype="half", m=n, n=4096, k=4096, measured_time_us=n)
                for n in (128, 4096)
            ]
        case "io":
            rows = [
                _row(id=w, workload=w, accelerator="a100", record_bytes=n, batch_size=4, source="x")
                for w, n in (("resnet50", 114_660), ("unet3d", 146_600_628))
            ]
        case _:
            rows = [
                _row(id=m, model=m, gpu="H100-SXM-80GB", n_gpus=n, tokens_b=1000, precision="bf16", gpu_hours=1e5)
                for m, n in (("Llama-3.1-8B", 64), ("Llama-3.1-70B", 256))
            ]
    chance = random.Random(7)  # noqa: S311 - a seed, no secret
    rows = [r | {c: r.get(c) or str(chance.randrange(1, 999)) for c in PRINTED[kind]} for r in rows]
    return [dict(our_columns(kind, r)) for r in rows] if ours else rows


def _figures(kind: str, rows: list[Row]) -> list[tuple[Any, ...]]:
    done = run_backtest(KINDS[kind], rows, load_facts())
    return [(p.id, p.quantity, p.predicted, p.low, p.high, p.skipped) for p in done.predictions]


@pytest.mark.parametrize(("kind", "ours"), FORMS)
def test_predictions_do_not_change_when_measurements_are_shuffled(kind: str, ours: bool) -> None:
    rows = _rows(kind, ours)
    before = _figures(kind, rows)
    assert all(predicted for _, _, predicted, *_ in before), before
    chance = random.Random(1)  # noqa: S311 - a seed, no secret
    for _ in range(3):
        for column in _measured(kind, ours):
            cells = [row[column] for row in rows]
            chance.shuffle(cells)
            for row, cell in zip(rows, cells, strict=True):
                row[column] = f"{float(cell) * chance.uniform(0.1, 10):g}" if chance.random() < 0.9 else cell
        assert _figures(kind, rows) == before


@pytest.mark.parametrize(("kind", "ours"), FORMS)
def test_rows_that_measured_nothing_are_predicted_alike(kind: str, ours: bool) -> None:
    rows = _rows(kind, ours)
    full = {(i, q): p for i, q, p, *_ in _figures(kind, rows)}
    bare = [{c: "" if c in _measured(kind, ours) else v for c, v in row.items()} for row in rows]
    found = _figures(kind, bare)
    assert found
    assert all(full.get((i, q), p) == p for i, q, p, *_ in found)
    assert {i for i, *_ in found} == {i for i, _ in full}


@pytest.mark.parametrize(("kind", "ours"), FORMS)
def test_any_cell_may_be_wrong_and_the_row_is_skipped_or_predicted_never_a_crash(kind: str, ours: bool) -> None:
    rows = _rows(kind, ours)[:1]
    for column in rows[0]:
        for value in ("", "no-such-thing", "-1", "0", "nan", "inf", "1e400", "1e30", "💥", "1.5"):
            for prediction in run_backtest(KINDS[kind], [rows[0] | {column: value}], load_facts()).predictions:
                assert (prediction.predicted is None) == bool(prediction.skipped), (column, value, prediction)
                if prediction.predicted is not None:
                    assert prediction.predicted > 0, (column, value, prediction)
                    assert prediction.low is not None
                    assert prediction.high is not None
                    assert prediction.low <= prediction.high


@pytest.mark.parametrize("kind", KINDS)
def test_both_forms_of_a_row_are_predicted_alike(kind: str) -> None:
    assert _figures(kind, _rows(kind)) == _figures(kind, _rows(kind, ours=True))
    names = set(_rows(kind, ours=True)[0])
    assert {*KINDS[kind].needed, *KINDS[kind].measured, *KINDS[kind].classes} <= names == set(COLUMNS[kind])


def test_an_unknown_gpu_or_model_is_a_reason() -> None:
    rows = _rows("serving")[:2]
    done = run_backtest(KINDS["serving"], [rows[0] | {"gpu": "H9000"}, rows[1] | {"model": "no-model"}], load_facts())
    assert all(p.predicted is None and p.skipped for p in done.predictions)
    assert "H9000" in str(done.predictions[0].skipped)
    assert "no-model" in str(done.predictions[-1].skipped)


def test_kinds_are_named_with_a_dash_or_an_underscore_and_the_unknown_ones_are_refused() -> None:
    assert kind_of("GPU_hours") is KINDS["gpu-hours"]
    with pytest.raises(UnknownNameError, match="gpu-hours"):
        kind_of("vibes")


def test_groups_are_by_columns_and_quantities_and_add_up() -> None:
    done = run_backtest(KINDS["serving"], _rows("serving"), load_facts())
    groups = done.groups(("tp",))
    assert sum(s.rows for s in groups.values()) == done.summary.rows
    assert {key[1] for key in groups} == {"output_tokens_per_s", "tpot_s", "ttft_s", "latency_s"}
    with pytest.raises(UnknownNameError):
        done.groups(("moon phase",))
