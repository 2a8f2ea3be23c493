"""Step time and peak memory of small transformers on this machine, as rows that `flopwise backtest` reads.

    python benchmarks/measure_training.py --tiny                     # a minute on a CPU
    python benchmarks/measure_training.py --device cuda --budget-s 480
    flopwise probe -o DIR/probe.json                                 # what the machine sustains
    python benchmarks/probe_cpu.py --probe DIR/probe.json --out DIR  # of it a CPU's rates, as facts in the same folder
    flopwise backtest training DIR/training.csv --facts DIR

Writes training.csv, memory.csv, models.jsonl (the shapes, by name) and raw.json into --out.

Time: the median of whole optimizer steps (forward, backward, fused AdamW) after warm-up, the device synchronised.
Memory: on a GPU what the caching allocator says (most allocated, most reserved). On a CPU every allocation and release
that PyTorch's allocator reports to its profiler, from before the model is built to the end of the third step, summed:
exact for what PyTorch allocates, blind to what oneDNN and the C library keep for themselves.
"""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import itertools
import json
import os
import platform
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "5")
import torch

from measured_rows import SCRIPT, Case, Measured, memory_rows, training_row
from small_transformers import Shape, Transformer


def _shape(name: str, family: str, *numbers: int) -> Shape:
    """Layers, width, heads, KV heads, inner width, vocabulary, longest sequence; experts and how many a token."""
    return Shape(name, family, *numbers)


TINY = (
    _shape("tiny-gpt-256", "gpt2", 4, 256, 4, 4, 1024, 2048, 512),
    _shape("tiny-llama-256", "llama", 4, 256, 4, 2, 688, 2048, 512),
    _shape("tiny-llama-512", "llama", 2, 512, 8, 8, 1376, 4096, 512),
    _shape("tiny-moe-256", "mixtral", 2, 256, 4, 2, 512, 2048, 512, 4, 2),
)  # fmt: skip
SMALL = (
    _shape("gpt-124m", "gpt2", 12, 768, 12, 12, 3072, 50304, 4096),
    _shape("llama-350m", "llama", 24, 1024, 16, 16, 2816, 32000, 4096),
    _shape("llama-1b", "llama", 16, 2048, 32, 8, 8192, 128256, 4096),
    _shape("gpt-1.3b", "gpt2", 24, 2048, 16, 16, 8192, 50304, 4096),
    _shape("llama-3b", "llama", 26, 3072, 24, 8, 8192, 32000, 4096),
    _shape("moe-8x350m", "mixtral", 12, 1024, 16, 8, 2816, 32000, 4096, 8, 2),
)  # fmt: skip
UNDISTURBED = 0.9
"""Share of a step's time that an undisturbed process has its core."""
SLOWER = 1.2
"""Times that the product between steps may take as long as usual."""
MOST_TRIES = 4
LEAST = 3
"""Undisturbed steps that make a figure."""


class Device:
    """Where it runs: how to wait for it, and how much it held."""

    def __init__(self, kind: str) -> None:
        self.kind, self.torch = kind, torch.device(kind)
        self.name = torch.cuda.get_device_name() if kind == "cuda" else cpu_name()

    def wait(self) -> None:
        if self.kind == "cuda":
            torch.cuda.synchronize()

    def facts(self) -> dict[str, Any]:
        """What another machine may differ in."""
        found: dict[str, Any] = {
            "device": self.name, "torch": torch.__version__, "python": platform.python_version(),
            "threads": torch.get_num_threads(), "cores": os.cpu_count(), "system": platform.system(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        }  # fmt: skip
        if self.kind == "cuda":
            card = torch.cuda.get_device_properties(0)
            found |= {
                "memory_bytes": card.total_memory,
                "cuda": torch.version.cuda,
                "capability": f"{card.major}.{card.minor}",
            }
            found["driver"] = (
                getattr(torch.cuda, "driver_version", lambda: None)() if hasattr(torch.cuda, "driver_version") else None
            )
        return found


def driver_version() -> str:
    """The GPU driver's version, or why it is not known."""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=30).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError) as fault:
        return f"unknown ({type(fault).__name__})"


def cpu_name() -> str:
    """The processor as it calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def cases(shapes: tuple[Shape, ...], *, tiny: bool, compiled: bool, precisions: tuple[str, ...]) -> Iterator[Case]:
    """All cases, so ordered that any beginning of the list has some of everything."""
    grid = ((2, 128), (2, 256)) if tiny else ((4, 1024), (2, 4096), (16, 1024))
    ways = (("flash", False), ("eager", False), ("flash", True), ("eager", True))
    kinds = (False, True) if compiled else (False,)
    for (batch, seq), (attention, recompute), again, precision, shape in itertools.product(
        grid, ways, kinds, precisions, shapes
    ):
        yield Case(
            shape=shape,
            batch=batch,
            seq=seq,
            precision=precision,
            attention=attention,
            recompute=recompute,
            compiled=again,
        )


def precision_of(case: Case, device: Device) -> Any:
    """The surroundings of the forward pass."""
    return torch.autocast(device.kind, dtype=torch.bfloat16, enabled=case.precision == "bf16")


def built(case: Case, device: Device) -> tuple[Any, Any, Any]:
    """(model, its optimizer, the tokens)."""
    torch.manual_seed(0)
    model: Any = Transformer(case.shape, eager=case.attention == "eager", recompute=case.recompute).to(device.torch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(case.shape.vocab, (case.batch, case.seq + 1), device=device.torch)
    return (torch.compile(model) if case.compiled else model), optimizer, tokens


def one_step(model: Any, optimizer: Any, tokens: Any, case: Case, device: Device) -> None:
    """Forward, backward, optimizer."""
    optimizer.zero_grad(set_to_none=True)
    with precision_of(case, device):
        loss = model(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    optimizer.step()


def cpu_peak_bytes(case: Case, device: Device, steps: int = 3) -> int:
    """The most bytes alive at once from before the model is built to the end of `steps` steps."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        model, optimizer, tokens = built(case, device)
        for _ in range(steps):
            one_step(model, optimizer, tokens, case, device)
    return peak_of(seen)


def peak_of(seen: Any) -> int:
    """The highest running sum of the allocations and releases that a profile saw."""
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    changes = (e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))
    return max(itertools.accumulate(changes), default=0)


class BusyError(Exception):
    """Other processes left too few steps undisturbed."""


class Quiet:
    """Whether other processes leave a CPU alone: a product of a fixed size is timed between steps.

    A step counts as disturbed when the product took longer than usual before or after it, or when, on one thread, the
    process did not have its core for most of the step.
    """

    def __init__(self) -> None:
        self.left, self.right = torch.ones(512, 256), torch.ones(256, 256)
        self.usual_s = min(self.product_s() for _ in range(50))

    def product_s(self) -> float:
        """Seconds of the product, the better of two."""
        times = []
        for _ in range(2):
            start = time.perf_counter()
            torch.mm(self.left, self.right)
            times.append(time.perf_counter() - start)
        return min(times)

    def now(self) -> bool:
        """Whether the product takes no longer than usual."""
        found = self.product_s()
        self.usual_s = min(self.usual_s, found)
        return found < SLOWER * self.usual_s


def timed(step: Callable[[], None], device: Device, repeats: int, quiet: Quiet | None) -> tuple[list[float], int]:
    """(seconds of `repeats` undisturbed steps, how many were thrown away). Raises BusyError: too few."""
    clean, every = list[float](), list[float]()
    alone = torch.get_num_threads() == 1
    while len(clean) < repeats and len(every) < MOST_TRIES * repeats:
        before = quiet is None or quiet.now()
        device.wait()
        begun, start = time.process_time(), time.perf_counter()
        step()
        device.wait()
        every.append(time.perf_counter() - start)
        had_core = not alone or time.process_time() - begun > UNDISTURBED * every[-1]
        if quiet is None or (before and had_core and quiet.now()):
            clean.append(every[-1])
    if len(clean) < min(LEAST, repeats):
        raise BusyError
    return clean, len(every) - len(clean)


def measured(case: Case, device: Device, quiet: Quiet | None, *, warmup: int, repeats: int) -> Measured:
    """Run one case."""
    reserved: int | None = None
    allocated = cpu_peak_bytes(case, device) if device.kind == "cpu" else 0
    if device.kind == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model, optimizer, tokens = built(case, device)
    for _ in range(warmup):
        one_step(model, optimizer, tokens, case, device)
    times, disturbed = timed(partial(one_step, model, optimizer, tokens, case, device), device, repeats, quiet)
    if device.kind == "cuda":
        allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return Measured(
        case=case,
        parameters=sum(p.numel() for p in model.parameters()),
        steps_s=tuple(times),
        disturbed=disturbed,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
    )


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """One table; of no rows, an empty file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_all(out: Path, done: list[Measured], skipped: list[str], device: Device, gpu: str, date: str) -> None:
    """The four files; called after every case, so that an interrupted run leaves what it has."""
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "training.csv", [training_row(m, gpu, date) for m in done])
    write_csv(out / "memory.csv", [row for m in done for row in memory_rows(m, gpu, date)])
    shapes = {m.case.shape.name: m.case.shape for m in done}
    lines = [{"name": s.name, "source": SCRIPT, "date": date, "config": s.config} for s in shapes.values()]
    (out / "models.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    raw = {"date": date, "machine": device.facts(), "skipped": skipped, "measured": [asdict(m) for m in done]}
    (out / "raw.json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    made.add_argument("--out", type=Path, help="folder to write to (default: benchmarks/measurements/DATE-DEVICE)")
    made.add_argument("--tiny", action="store_true", help="models of a few million parameters (the default on a CPU)")
    made.add_argument("--gpu", help="the device's name in the facts (default: what it calls itself)")
    made.add_argument("--precision", choices=("fp32", "bf16"), action="append", help="repeatable (default: both)")
    made.add_argument("--compile", action="store_true", help="measure every case with torch.compile as well")
    made.add_argument("--only", default="", help="cases whose name contains this")
    made.add_argument("--budget-s", type=float, help="start no case after so many seconds (default: 45 tiny, else 450)")
    made.add_argument("--busy", action="store_true", help="on a CPU, take steps whatever else is running")
    made.add_argument("--warmup", type=int, default=2)
    made.add_argument("--repeats", type=int, default=5)
    made.add_argument("--threads", type=int, help="threads of a CPU (default: as PyTorch chooses)")
    return made


def main() -> None:
    """Measure, write, say so."""
    asked = parser().parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        sys.exit("no GPU that PyTorch can use; --device cpu --tiny runs anywhere")
    if asked.warmup < 1 or asked.repeats < 1:
        sys.exit("--warmup and --repeats: 1 or more")
    if asked.threads:
        torch.set_num_threads(asked.threads)
    device, date = Device(asked.device), dt.datetime.now(tz=dt.UTC).date().isoformat()
    tiny = asked.tiny or asked.device == "cpu"
    gpu = asked.gpu or (device.name if device.kind == "cuda" else f"{device.name} probed")
    slug = "-".join("".join(c if c.isalnum() else " " for c in device.name.lower()).split())
    out = asked.out or Path(__file__).parent / "measurements" / f"{date}-{slug}"
    precisions = tuple(asked.precision or (("fp32",) if device.kind == "cpu" else ("bf16", "fp32")))
    budget_s = asked.budget_s or (45.0 if tiny else 450.0)
    every = cases(TINY if tiny else SMALL, tiny=tiny, compiled=asked.compile, precisions=precisions)
    wanted = deque(case for case in every if asked.only in case.name)
    quiet = Quiet() if device.kind == "cpu" and not asked.busy else None
    start, done, skipped = time.perf_counter(), list[Measured](), list[str]()
    tried = set[Case]()
    while wanted and time.perf_counter() - start < budget_s:
        case = wanted.popleft()
        try:
            found = measured(case, device, quiet, warmup=asked.warmup, repeats=asked.repeats)
        except torch.OutOfMemoryError:
            skipped.append(f"{case.name}: out of memory")
            continue
        except BusyError:  # later, then
            tried.add(case)
            wanted.append(case)
            continue
        done.append(found)
        print(f"{case.name}: {found.step_s * 1e3:.1f} ms, {found.allocated_bytes / 2**20:.1f} MiB", flush=True)
        write_all(out, done, skipped, device, gpu, date)
    skipped += [f"{c.name}: {'other processes were busy' if c in tried else 'out of time'}" for c in wanted]
    if not done:
        sys.exit(f"nothing measured: {'; '.join(skipped) or 'no case has that name'}")
    write_all(out, done, skipped, device, gpu, date)
    print(f"{len(done)} cases, {len(skipped)} skipped; wrote {out}")


if __name__ == "__main__":
    main()
