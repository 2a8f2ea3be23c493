"""From this machine's own measurements to a backtest: probe, measure, predict; and what is committed of it."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from flopwise.api.backtest import backtest
from flopwise.api.calibrate import calibrate
from flopwise.cost.rates import rates
from flopwise.facts.catalog import load_facts

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MEASUREMENTS = BENCHMARKS / "measurements"
TRAININGS = sorted(p.parent for p in MEASUREMENTS.glob("*/training.csv"))
ENCODERS = sorted(MEASUREMENTS.glob("*/*-aside.csv"))


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


@pytest.mark.parametrize("folder", TRAININGS, ids=lambda folder: folder.name)
def test_committed_measurements_are_whole_and_predicted(folder: Path) -> None:
    for kind, column in (("training", "tokens_per_s_per_gpu"), ("memory", "peak_bytes")):
        with (folder / f"{kind}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert rows
        assert all(float(row[column]) > 0 for row in rows)
        done = backtest(kind, folder / f"{kind}.csv", facts=folder)
        assert done.summary.predicted_rows == len(rows)
        assert done.summary.median_abs_error is not None
        assert done.summary.median_abs_error < 0.25


@pytest.mark.parametrize("aside", ENCODERS, ids=lambda aside: f"{aside.parent.name}-{aside.stem}")
def test_committed_encoders_are_predicted_as_their_report_says(aside: Path) -> None:
    """Probes and half of the conditions make a profile; what it says of the other half is what was written down."""
    folder, engine = aside.parent, aside.stem.removesuffix("-aside")
    calibrate(*sorted(folder.glob("probe-*.json")), name="probed")
    calibrate(folder / f"{engine}.csv", name="learned", facts=folder, calibration="probed")
    done = backtest("serving", aside, facts=folder, calibration="learned").summary
    assert done.predicted_rows == done.rows == 17
    assert done.median_abs_error is not None
    assert done.p90_abs_error is not None
    assert done.coverage is not None
    shown = " | ".join(f"{100 * part:.1f} %" for part in (done.median_abs_error, done.p90_abs_error, done.coverage))
    _, _, of_engine = (folder / "REPORT.md").read_text(encoding="utf-8").partition(f"# {engine} ")
    assert f"| calibrated | {shown} |" in of_engine.partition("\n# ")[0]


def test_there_are_committed_measurements() -> None:
    assert TRAININGS
    assert ENCODERS
    assert (MEASUREMENTS / "README.md").is_file()
