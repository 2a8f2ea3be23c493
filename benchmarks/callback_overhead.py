"""What recording a run takes of a step of 50 ms: `python benchmarks/callback_overhead.py` writes a report.

Two figures, both of which have to be below the target. The calls that the training loop makes are timed one by one, in
a loop whose steps take 50 ms. The loop itself is timed with and without: threads that sample and write hold the
interpreter's lock now and then, from which a loop of pure Python suffers most. A step is 50 ms of the loop's own
processor time, so that it is as much work on a machine whose clock drifts.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flopwise.callbacks import record

REPORT = Path(__file__).parent / "measurements" / "callback-overhead.json"
STEP_S = 0.05
LOOP_STEPS = 200
SETTLE_S = 2.0
"""Until the store is open: before a run's first step a framework is imported and a model is loaded."""
TARGET_FRAC = 0.01


def work(seconds: float) -> None:
    """The step itself: this thread computes."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
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


def loop_step_s(steps: int, folder: Path, *, recorded: bool) -> float:
    """Seconds of a step of a fixed amount of work, recorded or not, by the clock."""
    context: Any = nullcontext()
    if recorded:
        context = record("Llama-3.2-1B", store=folder / "loop.db", seq=4096, peak="1e12", price_usd_per_hour=10)
    with context as run:
        work(SETTLE_S)
        start = time.perf_counter()
        for _ in range(steps):
            work(STEP_S)
            if run is not None:
                run.step(tokens=65_536, loss=2.0, grad_norm=1.0)
        return (time.perf_counter() - start) / steps


def median_error(values: Sequence[float]) -> float:
    """Standard error of a median: by how much that of further pairs would differ.

    Source: that of a mean of normal values times 1.253; their spread as 1.4826 of the median absolute deviation.
    """
    middle = statistics.median(values)
    return 1.253 * 1.4826 * statistics.median(abs(one - middle) for one in values) / math.sqrt(len(values))


def measured(steps: int, pairs: int) -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        calls = call_times(steps, folder)
        loops = []
        for number in range(pairs):  # each goes first in turn: a clock that falls with the heat favours neither
            order = (number % 2 == 1, number % 2 == 0)
            times = {recorded: loop_step_s(LOOP_STEPS, folder, recorded=recorded) for recorded in order}
            loops.append((times[False], times[True]))
    mean = statistics.fmean(calls)
    more = [recorded - plain for plain, recorded in loops]
    longer_s, error = statistics.median(more), median_error(more) / STEP_S
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": platform.processor() or platform.machine(),
        "step_s": STEP_S,
        "steps": steps,
        "call_mean_s": mean,
        "call_median_s": statistics.median(calls),
        "call_p99_s": sorted(calls)[int(0.99 * len(calls))],
        "loops": [{"plain_step_s": plain, "recorded_step_s": recorded} for plain, recorded in loops],
        "loop_longer_s": longer_s,
        "call_frac": mean / STEP_S,
        "loop_frac": longer_s / STEP_S,
        "loop_frac_error": error,
        "target_frac": TARGET_FRAC,
        "met": mean / STEP_S < TARGET_FRAC and longer_s / STEP_S + error < TARGET_FRAC,
    }  # fmt: skip


def table() -> list[str]:
    """Lines of the report of `make bench`."""
    figures = measured(200, 9)
    loop = f"{figures['loop_frac']:+.2%} (+- {figures['loop_frac_error']:.2%})"
    return [
        "| what | measured | target |",
        "|---|---:|---:|",
        f"| a call of `run.step`, mean | {1e6 * figures['call_mean_s']:.0f} us | |",
        f"| of a step of 50 ms | {figures['call_frac']:.2%} | {TARGET_FRAC:.0%} |",
        f"| by which a step of the whole loop is longer, of 50 ms | {loop} | {TARGET_FRAC:.0%} |",
        f"| met | {'yes' if figures['met'] else 'no'} | |",
    ]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400, help="whose calls are timed")
    parser.add_argument("--pairs", type=int, default=21, help="pairs of loops with and without")
    parser.add_argument("-o", "--output", type=Path, default=REPORT)
    given = parser.parse_args()
    figures = measured(given.steps, given.pairs)
    given.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
