"""What recording a run takes of a step of 50 ms: `python benchmarks/callback_overhead.py` writes a report.

The calls that the training loop makes are timed one by one, in a loop whose steps take 50 ms, so that the threads that
sample and write do what they do in a real run. A second figure is the whole: seconds of the same loop with and without.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flopwise.callbacks import record

REPORT = Path(__file__).parent / "measurements" / "callback-overhead.json"
STEP_S = 0.05
TARGET_FRAC = 0.01


def work(seconds: float) -> None:
    """The step itself: the processor is busy."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def call_times(steps: int, folder: Path) -> list[float]:
    """Seconds of each call of `step`, with a loss, a norm, tokens and a price; the first ones left out."""
    taken = []
    with record(
        "Llama-3.2-1B", store=folder / "calls.db", seq=4096, peak="1e12", price_usd_per_hour=10, total_steps=steps
    ) as run:
        for number in run.data(range(steps)):
            work(STEP_S)
            start = time.perf_counter()
            run.step(tokens=65_536, loss=2.0 + 1.0 / (number + 1), grad_norm=1.0, learning_rate=1e-4)
            taken.append(time.perf_counter() - start)
    return taken[5:]


def loop_s(steps: int, folder: Path, *, recorded: bool) -> float:
    """Seconds of a loop over a fixed amount of work, recorded or not."""
    context: Any = nullcontext()
    if recorded:
        context = record("Llama-3.2-1B", store=folder / "loop.db", seq=4096, peak="1e12", price_usd_per_hour=10)
    with context as run:
        start = time.perf_counter()
        for _ in range(steps):
            sum(range(1_000_000))
            if run is not None:
                run.step(tokens=65_536, loss=2.0, grad_norm=1.0)
        return time.perf_counter() - start


def measured(steps: int, pairs: int) -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        calls = call_times(steps, folder)
        loops = [
            (loop_s(steps // 2, folder, recorded=False), loop_s(steps // 2, folder, recorded=True))
            for _ in range(pairs)
        ]  # fmt: skip
    mean = statistics.fmean(calls)
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": platform.processor() or platform.machine(),
        "step_s": STEP_S,
        "steps": steps,
        "call_mean_s": mean,
        "call_median_s": statistics.median(calls),
        "call_p99_s": sorted(calls)[int(0.99 * len(calls))],
        "overhead_frac": mean / STEP_S,
        "loops": [{"plain_s": plain, "recorded_s": recorded} for plain, recorded in loops],
        "loops_median_more_frac": statistics.median(recorded / plain - 1 for plain, recorded in loops),
        "target_frac": TARGET_FRAC,
        "met": mean / STEP_S < TARGET_FRAC,
    }  # fmt: skip


def table() -> list[str]:
    """Lines of the report of `make bench`."""
    figures = measured(200, 3)
    return [
        "| what | measured | target |",
        "|---|---:|---:|",
        f"| a call of `run.step`, mean | {1e6 * figures['call_mean_s']:.0f} us | |",
        f"| of a step of 50 ms | {figures['overhead_frac']:.2%} | {TARGET_FRAC:.0%} |",
        f"| the whole loop against one that is not recorded | {figures['loops_median_more_frac']:+.1%} | |",
    ]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--pairs", type=int, default=7, help="pairs of loops with and without")
    parser.add_argument("-o", "--output", type=Path, default=REPORT)
    given = parser.parse_args()
    figures = measured(given.steps, given.pairs)
    given.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
