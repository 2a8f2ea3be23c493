"""What `flopwise watch --once --json` takes as a process; target 0.5 s.

`python benchmarks/watch_speed.py [--prometheus URL] [--plan PLAN.json]`: from a recorded run of an hour, made here, and
from a server where one is given. Best and median of several processes.
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


def rows(more: Sequence[Sequence[str]] = ()) -> list[tuple[str, float, float]]:
    """(what, best seconds, median seconds) of each source."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "runs.db"
        _record(store)
        cases = [("recorded run", "--run", "bench", "--store", str(store)), *(tuple(one) for one in more)]
        return [(case[0], *_times(case[1:])) for case in cases]


def _record(path: Path) -> None:
    """An hour of a run on 8 devices, a sample of each metric every 10 s."""
    now = time.time()
    run = Run(
        run_id="0" * 32, name="bench", task="pretrain", started_at_s=now - 3600, ended_at_s=now, status="finished"
    )
    store = open_store(path)
    store.add_run(run)
    samples = [
        Sample(metric, now - 3600 + 10 * n, 0.5, n, device)
        for n in range(360)
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
