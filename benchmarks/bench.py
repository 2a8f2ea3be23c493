"""What flopwise itself takes, against its targets: `make bench` writes benchmarks/REPORT.md.

Each command runs as a fresh process, several times: the best shows what the code costs, the median what a person sees
on this machine. Modules are compiled once, into a folder of the benchmark's own, as they are where pip installs them.
Commands that do not exist yet are left out. Time and peak memory are the process's own, from wait4.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from flopwise.cli.app import COMMANDS

ROOT = Path(__file__).parent.parent
HERE = Path(__file__).parent
REPORT = HERE / "REPORT.md"
SEARCH = HERE / "search_speed.py"
SECTIONS = {
    "Serving simulator, one core; target 3 M requests/s of a trace of a million": "simulator_speed.py",
    "Allocation of a fleet by mixed-integer programming, one core; target 10 s for 50 x 400": "fleet_speed.py",
    "Recording a run of training, steps of 50 ms; target 1 % of a step": "callback_overhead.py",
    "One look at a job, as a process; target 0.5 s": "watch_speed.py",
    "The web app on loopback, in a headless Chromium; target 0.5 s from a changed field to its plans": "web_speed.py",
}
"""What the rest of the page says, with the benchmark that measures it."""
MEMORY_TARGET_BYTES = 500e6
LAYOUTS_PER_S_TARGET = 5e6


LARGE = {
    "405B on 16,384 GPUs": (
        "Llama-3.1-405B", "--task", "pretrain", "--tokens", "15T", "--seq", "8192", "--global-batch", "2048",
        "--max-gpus", "16384", "--precision", "bf16", "--precision", "fp8",
    ),
    "DeepSeek-V3 on 16,384 GPUs": (
        "DeepSeek-V3", "--task", "pretrain", "--tokens", "14.8T", "--seq", "4096", "--global-batch", "15360",
        "--max-gpus", "16384", "--precision", "bf16", "--precision", "fp8",
    ),
}  # fmt: skip
"""Pre-training over all offers, in two precisions."""
SERVED = (
    "Llama-3.1-70B", "--task", "serve", "--rate", "20", "--input", "1000", "--output", "250", "--ttft", "p95=1s",
    "--tpot", "p95=50ms",
)  # fmt: skip
"""A service over all offers, with its finalists run through the simulator or not."""
EXPORTED = {"vllm": "3-serve-70b.yaml", "torchrun": "2-pretrain-7b.yaml", "kubernetes": "3-serve-70b.yaml"}
"""Targets, and the workload in examples/ whose plan each is timed on."""


@dataclass(frozen=True, slots=True)
class Case:
    """A command line, and the seconds that it may take as a process."""

    name: str
    argv: tuple[str, ...]
    target_s: float
    repeats: int = 10
    before: tuple[str, ...] = ()  # a command line that makes what this one reads


@dataclass(frozen=True, slots=True)
class Timing:
    """What one case took: seconds of each run, the largest resident set, and the last run's stdout."""

    case: Case
    runs_s: tuple[float, ...]
    peak_bytes: int
    out: str

    @property
    def best_s(self) -> float:
        return min(self.runs_s)

    @property
    def median_s(self) -> float:
        return statistics.median(self.runs_s)


def cases() -> list[Case]:
    """All cases whose command exists, `plan` once for each workload in examples/."""
    every = [
        Case("--help", ("--help",), 0.1, 20),
        Case("gpus", ("gpus",), 0.25),
        Case("models", ("models", "Llama-3.1-8B", "--batch", "1", "--seq", "4096"), 0.25),
        Case(
            "memory", ("memory", "Llama-3.1-8B", "--task", "train", "--gpu", "h100", "--dp", "8", "--zero", "3"), 0.25
        ),
        Case("train", ("train", "Llama-3.1-8B", "--gpu", "h100", "--gpus", "64"), 0.25),
        Case("serve", ("serve", "Llama-3.1-8B", "--gpu", "h100"), 0.25),
        Case("fit", ("fit", "Llama-3.1-8B", "--gpu", "h100", "--context", "32k"), 0.25),
        Case("roofline", ("roofline", "--flops", "1e15", "--bytes", "1e12", "--gpu", "h100"), 0.25),
    ]
    every.extend(
        Case(f"plan {workload.stem}", ("plan", str(workload), "--json"), 2.0, 5)
        for workload in sorted((ROOT / "examples").glob("[0-9]*.yaml"))
    )
    every.append(Case("plan sweep of 12", ("plan", str(ROOT / "examples" / "sweep.yaml"), "--json"), 12 * 2.0, 3))
    every.extend(Case(f"plan {name}", ("plan", *argv, "--json"), 3.0, 5) for name, argv in LARGE.items())
    every.append(Case("plan serving, whole catalog, simulated", ("plan", *SERVED, "--json"), 10.0, 5))
    every.append(Case("plan serving, whole catalog, estimated", ("plan", *SERVED, "--no-simulate", "--json"), 2.0, 5))
    scratch = Path(tempfile.gettempdir())
    for target, workload in EXPORTED.items():
        made = str(scratch / f"{target}-plan.json")
        every.append(
            Case(
                f"export {target}", ("export", target, made, "-o", str(scratch / f"{target}-files"), "--force"), 0.3,
                before=("plan", str(ROOT / "examples" / workload), "-o", made, "--json"),
            )
        )  # fmt: skip
    into = str(scratch / "textnlp-report")
    every.append(Case("assess textnlp", ("assess", str(ROOT / "examples" / "textnlp.yaml"), "-o", into), 30.0, 3))
    known = {name for section in COMMANDS.values() for name in section}
    return [case for case in every if case.argv[0] in known | {"--help"}]


def timed(case: Case, quick: bool) -> Timing:
    """Run the case; a run that does not answer (exit 0, or 1 for no feasible plan) ends the benchmark."""
    runs, peak, out = [], 0, ""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env.setdefault("PYTHONPYCACHEPREFIX", str(Path(tempfile.gettempdir()) / "flopwise-bench"))
    if case.before:
        subprocess.run([sys.executable, "-m", "flopwise", *case.before], env=env, check=True, capture_output=True)
    for _ in range(2 if quick else case.repeats):
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            start = time.perf_counter()
            running = subprocess.Popen(
                [sys.executable, "-m", "flopwise", *case.argv], stdout=stdout, stderr=stderr, env=env
            )
            _, status, usage = os.wait4(running.pid, 0)
            runs.append(time.perf_counter() - start)
            running.returncode = os.waitstatus_to_exitcode(status)
            stdout.seek(0)
            stderr.seek(0)
            out = stdout.read().decode()
            if running.returncode not in {0, 1}:
                raise SystemExit(f"{case.name}: exit {running.returncode}: {stderr.read().decode()}")
        peak = max(peak, usage.ru_maxrss * 1024)
    return Timing(case, tuple(runs), peak, out)


def layouts_per_s(timings: list[Timing]) -> list[tuple[str, int, float]]:
    """(plan, layouts evaluated, layouts per second) from the plans' own count and search time."""
    found = []
    for timing in timings:
        if timing.case.argv[0] == "plan" and timing.out.startswith("{"):
            plan = json.loads(timing.out)
            if plan.get("evaluated") and plan.get("elapsed_s"):
                found.append((timing.case.name, plan["evaluated"], plan["evaluated"] / plan["elapsed_s"]))
    return found


def report(timings: list[Timing]) -> Iterator[str]:
    """The page, section by section: each is measured when it is asked for."""
    day = datetime.now(tz=UTC).date().isoformat()
    lines = [
        "# Speed",
        "",
        f"Measured {day} on {os.cpu_count()} cores ({platform.machine()}) with Python {platform.python_version()}, by",
        "`make bench`. Processes start fresh each time; below 1 a ratio meets its target.",
        "",
        "| command | target | best | median | best / target | peak memory |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for t in timings:
        target = t.case.target_s
        lines.append(
            f"| `{t.case.name}` | {1e3 * target:,.0f} ms | {1e3 * t.best_s:,.0f} ms | {1e3 * t.median_s:,.0f} ms "
            f"| {t.best_s / target:.2f} | {t.peak_bytes / 1e6:,.0f} MB |"
        )
    lines += ["", f"Peak memory target: {MEMORY_TARGET_BYTES / 1e6:,.0f} MB each."]
    search = layouts_per_s(timings)
    if search:
        lines += [
            "",
            f"Search, full cost model, one core; target {LAYOUTS_PER_S_TARGET / 1e6:,.0f} M layouts/s:",
            "",
            "| search | layouts | layouts/s | of target |",
            "|---|---:|---:|---:|",
            *(
                f"| {s.what} | {s.layouts:,} | {s.layouts / s.seconds / 1e6:,.2f} M "
                f"| {s.layouts / s.seconds / LAYOUTS_PER_S_TARGET:.2f} |"
                for s in runpy.run_path(str(SEARCH))["speeds"]()
            ),
            *(
                f"| `{n}` | {count:,} | {rate / 1e6:,.2f} M | {rate / LAYOUTS_PER_S_TARGET:.2f} |"
                for n, count, rate in search
            ),
            "",
            "A plan counts from its start: reading facts and timing the kernels of every device are in its rate.",
        ]
    yield "\n".join(lines) + "\n"
    for title, program in SECTIONS.items():
        table = runpy.run_path(str(HERE / program))["table"]()
        yield "\n".join(["", f"{title}:", "", *table]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two runs of each, and no report is written")
    quick = parser.parse_args().quick
    sections = []
    for section in report([timed(case, quick) for case in cases()]):
        print(section, end="", flush=True)  # what is measured stays, should a later section fail
        sections.append(section)
    if not quick:
        REPORT.write_text("".join(sections), encoding="utf-8")


if __name__ == "__main__":
    main()
