"""What recording a run takes of a step of 50 ms: `python benchmarks/callback_overhead.py` writes a report.

Two figures, both of which have to be below the target. The calls that the training loop makes are timed one by one, in
a loop whose steps take 50 ms. The loop itself is timed with and without: threads that sample and write hold the
interpreter's lock now and then, from which a loop of pure Python suffers most. Of it the processor time of the whole
process stands beside the clock's: other programs on the machine do not disturb it.
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
WORK = 5_000_000
"""Numbers that are added up in a step of the loop: about 50 ms."""
LOOP_STEPS = 100
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


def loop_times(steps: int, folder: Path, *, recorded: bool) -> tuple[float, float]:
    """Seconds of a step of a fixed amount of work, recorded or not: by the clock, and of all threads' processors."""
    context: Any = nullcontext()
    if recorded:
        context = record("Llama-3.2-1B", store=folder / "loop.db", seq=4096, peak="1e12", price_usd_per_hour=10)
    with context as run:
        start, used = time.perf_counter(), time.process_time()
        for _ in range(steps):
            sum(range(WORK))
            if run is not None:
                run.step(tokens=65_536, loss=2.0, grad_norm=1.0)
        return (time.perf_counter() - start) / steps, (time.process_time() - used) / steps


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
            times = {recorded: loop_times(LOOP_STEPS, folder, recorded=recorded) for recorded in order}
            loops.append((times[False], times[True]))
    mean = statistics.fmean(calls)
    more = [[recorded[kind] - plain[kind] for plain, recorded in loops] for kind in (0, 1)]
    longer_s, longer_used_s = map(statistics.median, more)
    shares = {"call_frac": mean / STEP_S, "loop_frac": longer_s / STEP_S, "loop_processor_frac": longer_used_s / STEP_S}
    errors = {f"{name}_error": median_error(taken) / STEP_S
              for name, taken in zip(("loop_frac", "loop_processor_frac"), more, strict=True)}  # fmt: skip
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": platform.processor() or platform.machine(),
        "step_s": STEP_S,
        "steps": steps,
        "call_mean_s": mean,
        "call_median_s": statistics.median(calls),
        "call_p99_s": sorted(calls)[int(0.99 * len(calls))],
        "loops": [{"plain_step_s": plain[0], "recorded_step_s": recorded[0]} for plain, recorded in loops],
        "loop_longer_s": longer_s,
        "loop_longer_processor_s": longer_used_s,
        **shares,
        **errors,
        "target_frac": TARGET_FRAC,
        "met": all(share + errors.get(f"{name}_error", 0.0) < TARGET_FRAC for name, share in shares.items())
        and max(errors.values()) < TARGET_FRAC,  # else the machine drifts too much to tell
    }  # fmt: skip


def table() -> list[str]:
    """Lines of the report of `make bench`."""
    figures = measured(200, 9)
    return [
        "| what | measured | target |",
        "|---|---:|---:|",
        f"| a call of `run.step`, mean | {1e6 * figures['call_mean_s']:.0f} us | |",
        f"| of a step of 50 ms | {figures['call_frac']:.2%} | {TARGET_FRAC:.0%} |",
        *(
            f"| {what} | {figures[name]:+.2%} (+- {figures[f'{name}_error']:.2%}) | {TARGET_FRAC:.0%} |"
            for name, what in (
                ("loop_frac", "by which a step of the whole loop is longer, of 50 ms"),
                ("loop_processor_frac", "the same in processor time"),
            )
        ),
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
