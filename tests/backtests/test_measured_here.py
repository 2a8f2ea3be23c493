"""From this machine's own measurements to a backtest: probe, measure, predict; and what is committed of it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from flopwise.api.backtest import backtest
from flopwise.cost.rates import rates
from flopwise.facts.catalog import load_facts

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FOLDERS = sorted(p.parent for p in (BENCHMARKS / "measurements").glob("*/raw.json"))


def _run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), "--threads", "1", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.oracle
def test_probe_measure_and_predict_end_to_end(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert "GFLOP/s" in _run("probe_cpu.py", "--out", str(tmp_path), "--name", "this machine", "--quick")
    told = _run(
        "measure_training.py", "--tiny", "--device", "cpu", "--gpu", "this machine", "--only",
        "256-b2-s128-fp32-flash-keep",
        "--warmup", "1", "--repeats", "3", "--budget-s", "90", "--busy", "--out", str(tmp_path),
    )  # fmt: skip
    assert "skipped" in told
    chip = load_facts(tmp_path).accelerator("this machine")
    assert rates(chip).value["kernel_s"] < 1e-4  # its own, not a GPU's
    assert not any("stands in" in line and "kernel_s" in line for line in rates(chip).assumptions)

    speed = backtest("training", tmp_path / "training.csv", facts=tmp_path)
    assert speed.summary.predicted_rows == speed.summary.rows >= 2
    for prediction in speed.predictions:  # a machine under test may be busy with anything: the order of magnitude
        assert prediction.error is not None
        assert 1 / 20 < 1 + prediction.error < 20, prediction
    memory = backtest("memory", tmp_path / "memory.csv", facts=tmp_path)
    assert memory.summary.predicted_rows == memory.summary.rows >= 2
    assert memory.summary.median_abs_error is not None
    assert memory.summary.median_abs_error < 0.15  # bytes do not depend on who else is busy


@pytest.mark.oracle
def test_the_profiler_counts_what_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from torch.profiler import ProfilerActivity, profile

    from measure_training import peak_of

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        first = torch.empty(1 << 20, dtype=torch.uint8)
        second = torch.empty(2 << 20, dtype=torch.uint8)
        del first
        third = torch.empty(1 << 19, dtype=torch.uint8)
        del second, third
    assert peak_of(seen) == 3 << 20


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_committed_measurements_are_whole_and_predicted(folder: Path) -> None:
    raw = json.loads((folder / "raw.json").read_text(encoding="utf-8"))
    for kind, column in (("training", "tokens_per_s_per_gpu"), ("memory", "peak_bytes")):
        with (folder / f"{kind}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) >= len(raw["measured"]) > 0
        assert all(float(row[column]) > 0 for row in rows)
        done = backtest(kind, folder / f"{kind}.csv", facts=folder)
        assert done.summary.predicted_rows == len(rows)
        assert done.summary.median_abs_error is not None
        assert done.summary.median_abs_error < 0.25


def test_there_is_a_committed_measurement() -> None:
    assert FOLDERS
    assert (BENCHMARKS / "measurements" / "README.md").is_file()
