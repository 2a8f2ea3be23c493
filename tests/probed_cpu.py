"""A probe of a CPU whose figures are round numbers, and runs on it that take what a known truth says."""

from __future__ import annotations

import csv
import math
import random
from pathlib import Path
from typing import Any

from flopwise.backtests.training import predict_row
from flopwise.facts.calibration import Parameter
from flopwise.facts.catalog import Facts
from flopwise.fitting.refit import with_parameters
from flopwise.probes.file import Measurement, Probe, ProbedDevice

DEVICE = ProbedDevice(
    id="cpu", kind="cpu", name="Test CPU 9000", threads=2, cores=2, memory_bytes=16 * 2**30,
    cache_bytes={"L2": 2**20, "L3": 2**25},
)  # fmt: skip
NAME, FAMILY = "Test CPU 9000 probed", "test-cpu-9000-probed-2-threads"


def measurement(name: str, unit: Any, value: float, dtype: str | None = "fp32", **shape: int) -> Measurement:
    return Measurement(
        name=name, device="cpu", unit=unit, shape=shape, dtype=dtype, value=value, best=value, low=value, high=value,
        seconds=1e-3, repeats=9,
    )  # fmt: skip


def cpu_probe() -> Probe:
    """100 GFLOP/s, 95 of small products, 20 GB/s, elementwise at half of it, attention at 35 GFLOP/s, 2 us a launch."""
    return Probe(
        date="2026-11-22T10:00:00+00:00", host="test", system="Linux", flopwise="0.2.0", versions={}, backend="torch",
        quick=True, devices=(DEVICE,),
        measurements=(
            measurement("matmul", "FLOP/s", 100e9, m=2048, n=2048, k=2048),
            measurement("matmul", "FLOP/s", 95e9, m=256, n=256, k=256),
            measurement("matmul", "FLOP/s", 10e9, m=16, n=2048, k=2048),  # waits for its weights
            measurement("matmul", "FLOP/s", 200e9, "bf16", m=2048, n=2048, k=2048),
            measurement("memory_copy", "B/s", 90e9, bytes=2**20), measurement("memory_copy", "B/s", 20e9, bytes=2**29),
            measurement("elementwise_training", "B/s", 10e9, elements=2**20, passes=23),
            measurement("attention_training", "FLOP/s", 35e9, batch=2, heads=8, kv_heads=8, seq=511, dim=64),
            measurement("launch_autograd", "s", 2e-6, None),
        ),
    )  # fmt: skip


def cpu_rows(facts: Facts, truth: dict[str, float], *, count: int = 12, noise: float = 0.0) -> list[dict[str, str]]:
    """Runs of small Llamas on the CPU, as fast as the facts say with the constants of `truth`, times seeded noise."""
    chance = random.Random(7)  # noqa: S311 - no secret
    like = {p.name: p for p in facts.calibration.parameters}
    fields = {
        n: {f: getattr(p, f) for f in ("unit", "meaning", "fitted_on", "source", "date")} for n, p in like.items()
    }
    moved = with_parameters(
        facts, [Parameter(name=name, scope=FAMILY, value=value, **fields[name]) for name, value in truth.items()]
    )
    rows = []
    for place in range(count):
        layers, width, vocab = 2 + place % 4, 128 * (1 + place % 5), (1024, 8192, 32000)[place % 3]
        row = {
            "id": f"run {place}", "study": "own", "model": f"llama {place}", "params": "", "num_layers": str(layers),
            "hidden": str(width), "num_heads": "4", "num_kv_heads": "4", "inter": str(3 * width), "gated": "yes",
            "vocab": str(vocab), "seq_len": str(64 * (1 + place % 3)), "task": "pretrain", "gpu": NAME, "gpus": "1",
            "micro_batch": str(1 + place % 4), "precision": "fp32", "software": "hf-trainer-2026",
        }  # fmt: skip
        found = predict_row(row, moved).predicted
        assert found is not None
        row["tokens_per_s_per_gpu"] = repr(found * math.exp(chance.gauss(0.0, noise)))
        rows.append(row)
    return rows


def write_rows(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path
