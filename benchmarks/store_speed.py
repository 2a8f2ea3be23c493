"""How fast the store of runs is: a million samples written, listed, shown, and what recording costs a training loop."""

from __future__ import annotations

import platform
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from flopwise.records.model import Run, Sample
from flopwise.records.store import open_store
from flopwise.records.writer import Writer

REPORT = Path(__file__).parent / "store-speed.md"
RUNS, STEPS = 10, 25_000
METRICS = ("step_s", "loss", "grad_norm", "tokens_per_s")
TARGET_S, TARGET_SHARE, STEP_S = 1.0, 0.01, 0.05


def _run(name: str) -> Run:
    return Run(run_id=secrets.token_hex(16), name=name, task="pretrain", started_at_s=time.time(), model="gpt2")


def fill(where: str) -> float:
    """Seconds to write a million samples of ten runs."""
    store, taken_s = open_store(where), 0.0
    for number in range(RUNS):
        run = _run(f"run-{number}")
        store.add_run(run)
        samples = [Sample(metric, 1e9 + step, float(step), step) for step in range(STEPS) for metric in METRICS]
        start_s = time.perf_counter()
        store.append(run.run_id, samples)
        taken_s += time.perf_counter() - start_s
    return taken_s


def process_s(*argv: str) -> float:
    """Median seconds of five processes."""
    times = []
    for _ in range(5):
        start_s = time.perf_counter()
        subprocess.run([sys.executable, "-m", "flopwise", *argv], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start_s)
    return statistics.median(times)


def add_s(where: str) -> tuple[float, float]:
    """Median and 99th percentile of the seconds that `add` takes, ten metrics each, while the writer writes."""
    writer = Writer(where, _run("overhead"))
    values = dict.fromkeys((*METRICS, "mfu_frac", "tokens", "cost_usd", "eta_s", "energy_joules", "learning_rate"), 1.0)
    times = []
    for step in range(3000):
        start_s = time.perf_counter()
        writer.add(None, values, step=step)
        times.append(time.perf_counter() - start_s)
        time.sleep(0.001)
    writer.end()
    ordered = sorted(times)
    return ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]


def table() -> list[str]:
    """The lines of the report."""
    with tempfile.TemporaryDirectory() as folder:
        where = str(Path(folder) / "runs.db")
        count, fill_s = RUNS * STEPS * len(METRICS), fill(where)
        listing, showing = (process_s("runs", *argv, "--store", where) for argv in (("list",), ("show", "run-3")))
        store = open_store(where)
        run_id = store.run("run-3").run_id
        start_s = time.perf_counter()
        store.samples(run_id, "loss", most=500)
        thin_s = time.perf_counter() - start_s
        median_s, tail_s = add_s(where)
        size = Path(where).stat().st_size
    return [
        "| what | measured | target |",
        "|---|---:|---:|",
        f"| {count:,} samples written | {fill_s:.2f} s, {count / fill_s / 1e3:,.0f} k/s, {size / 1e6:.0f} MB | |",
        f"| `runs list` of them, as a process | {listing:.2f} s | {TARGET_S:.0f} s |",
        f"| `runs show` of one of ten, as a process | {showing:.2f} s | {TARGET_S:.0f} s |",
        f"| {STEPS:,} samples thinned to 500 for a chart | {1e3 * thin_s:.0f} ms | |",
        f"| `Writer.add` of ten metrics, median | {1e6 * median_s:.1f} us | {1e6 * TARGET_SHARE * STEP_S:.0f} us |",
        f"| the same, 99th percentile | {1e6 * tail_s:.1f} us | |",
    ]


def main() -> None:
    day = datetime.now(tz=UTC).date().isoformat()
    head = [
        f"# Speed of the store of runs ({day}, {platform.machine()}, Python {platform.python_version()}, SQLite)",
        "",
    ]
    page = "\n".join([*head, *table(), ""])
    print(page)
    REPORT.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
