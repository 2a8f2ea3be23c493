"""What `flopwise watch --once --json` takes as a process; target 0.5 s.

`python benchmarks/watch_speed.py [--prometheus URL] [--plan PLAN.json]`: from recorded runs of one hour and of seven,
made here, and from a server where one is given. Best and median of several processes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from flopwise.records.model import Run, Sample
from flopwise.records.store import open_store

ROOT = Path(__file__).parent.parent
TARGET_S = 0.5
TIMES = 9
HOURS = (1, 7)
"""Of the runs that are recorded."""


def rows(more: Sequence[Sequence[str]] = ()) -> list[tuple[str, float, float]]:
    """(what, best seconds, median seconds) of each source."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "runs.db"
        for hours in HOURS:
            _record(store, hours)
        runs = [(f"recorded run, {hours} h", "--run", f"bench-{hours}", "--store", str(store)) for hours in HOURS]
        cases = [*runs, *(tuple(one) for one in more)]
        return [(case[0], *_times(case[1:])) for case in cases]


def _record(path: Path, hours: int) -> None:
    """A run on 8 devices, a sample of each metric every 10 s."""
    now, seconds = time.time(), 3600 * hours
    run = Run(
        run_id=f"{hours:032}", name=f"bench-{hours}", task="pretrain", started_at_s=now - seconds, ended_at_s=now,
        status="finished",
    )  # fmt: skip
    store = open_store(path)
    store.add_run(run)
    samples = [
        Sample(metric, now - seconds + 10 * n, 0.5, n, device)
        for n in range(seconds // 10)
        for metric, device in [("step_s", ""), ("tokens_per_s", ""), ("mfu_frac", ""),
                               *(("utilization_frac", str(i)) for i in range(8))]
    ]  # fmt: skip
    store.append(run.run_id, samples)


def _times(arguments: Sequence[str]) -> tuple[float, float]:
    command = [sys.executable, "-m", "flopwise", "watch", "--once", "--json", *arguments]
    seconds = []
    for _ in range(TIMES):
        begin = time.perf_counter()
        done = subprocess.run(
            command, capture_output=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}
        )
        seconds.append(time.perf_counter() - begin)
        assert done.returncode in (0, 1), done.stderr.decode()
    return min(seconds), statistics.median(seconds)


def table(more: Sequence[Sequence[str]] = ()) -> list[str]:
    """The rows as Markdown."""
    head = [f"| `watch --once --json` | best | median | best / {TARGET_S} s |", "|---|---:|---:|---:|"]
    found = rows(more)
    return head + [
        f"| {what} | {best:.2f} s | {median:.2f} s | {best / TARGET_S:.2f} |" for what, best, median in found
    ]


def main() -> None:
    """Print the table."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--prometheus")
    reader.add_argument("--plan")
    given = reader.parse_args()
    more: list[Sequence[str]] = []
    if given.prometheus:
        more.append(("Prometheus", "--prometheus", given.prometheus))
        if given.plan:
            more.append(("Prometheus, with a plan", "--prometheus", given.prometheus, "--plan", given.plan))
    print("\n".join(table(more)))


if __name__ == "__main__":
    main()
