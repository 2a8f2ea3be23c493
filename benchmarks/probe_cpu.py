"""Measure what this CPU sustains and write it as private facts: a row of accelerators.csv and its own calibration.

    python benchmarks/probe_cpu.py --out DIR            # about fifteen seconds
    flopwise train MODEL --gpu "NAME" --facts DIR       # NAME is printed

Single operations only, never a training step: large products, streaming copies, elementwise operations with their
backward pass, attention with its backward pass, and the fixed time of a small operation. Every figure is the best of
many runs in several turns, the usual way to keep other processes out of a rate.
"""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as PyTorch's users write it

from measure_training import cpu_name

SCRIPT = "benchmarks/probe_cpu.py"
ROWS = 512  # of the products: tokens of a small micro-batch
SIZES = (256, 512, 1024, 2048)
ATTENTION = (2, 8, 512, 64)  # batch, heads, sequence, width of a head
BACKWARD = 2.5  # operations of flash attention's backward pass over those of its forward pass
STREAMED = 1 << 26  # elements: far more than any cache holds
PASSED = 1 << 20  # elements of an elementwise operation: a layer's activations
LAST_LEVEL_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")


def best_s(run: Callable[[], Any], *, seconds: float = 0.2, least: int = 3) -> float:
    """The shortest run among those of `seconds`, and at least `least`."""
    run()
    shortest, start, count = float("inf"), time.perf_counter(), 0
    while count < least or time.perf_counter() - start < seconds:
        begun = time.perf_counter()
        run()
        shortest, count = min(shortest, time.perf_counter() - begun), count + 1
    return shortest


def product_rates(dtype: Any) -> dict[int, float]:
    """FLOP/s of ROWS x n by n x n products, by n."""
    found = {}
    for n in SIZES:
        x, w = torch.randn(ROWS, n).to(dtype), torch.randn(n, n).to(dtype)
        found[n] = 2.0 * ROWS * n * n / best_s(partial(F.linear, x, w))
    return found


def stream_bytes_per_s() -> float:
    """Bytes read and written a second by a large copy."""
    source, target = torch.zeros(STREAMED), torch.zeros(STREAMED)
    return 2 * 4 * STREAMED / best_s(lambda: target.copy_(source))


def pass_bytes_per_s() -> float:
    """Bytes a second of a chain of usual elementwise operations, each reading and writing its tensors once."""
    width = 256
    x = torch.randn(PASSED // width, width, requires_grad=True)
    ones, weight = torch.ones(PASSED // width, width), torch.ones(width, requires_grad=True)

    def run() -> None:
        y = F.rms_norm(x, (width,), weight)
        z = F.silu(y) * x + x
        torch.autograd.grad(z, (x, weight), ones)

    passes = 2 + 2 + 3 + 3  # norm, activation, product, sum forward
    passes += 3 + 3 + 5 + 2  # and backward
    return passes * 4 * PASSED / best_s(run)


def attention_rate(dtype: Any) -> float:
    """Causal FLOP/s of attention, forward and backward together."""
    batch, heads, seq, dim = ATTENTION
    q, k, v = (torch.randn(batch, heads, seq, dim).to(dtype).requires_grad_() for _ in range(3))
    ones = torch.ones(batch, heads, seq, dim).to(dtype)

    def run() -> None:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.autograd.grad(out, (q, k, v), ones)

    pairs = seq * (seq + 1) / 2
    return (1 + BACKWARD) * batch * heads * pairs * 4.0 * dim / best_s(run)


def operation_s() -> float:
    """Fixed time of a small operation that autograd follows, its backward pass included, for each of the two."""
    x = torch.zeros(8, requires_grad=True)
    one = torch.ones(8)

    def run() -> None:
        y = x
        for _ in range(20):
            y = y + one
        torch.autograd.grad(y, x, one)

    return best_s(run) / 40


def ram_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cache_bytes() -> int:
    """The last-level cache; 0 where the system does not say."""
    try:
        text = LAST_LEVEL_CACHE.read_text(encoding="ascii").strip()
        return int(text.removesuffix("K")) * 1024
    except (OSError, ValueError):
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What was measured."""

    fp32: dict[int, float]  # FLOP/s of products by their width
    bf16: dict[int, float]
    streamed: float  # bytes/s of a large copy
    passed: float  # bytes/s of elementwise operations
    attended: float  # FLOP/s of attention
    operation_s: float
    threads: int

    @property
    def peak(self) -> float:
        """The best fp32 product, in FLOP/s."""
        return max(self.fp32.values())


def best_of(first: Probe, second: Probe) -> Probe:
    """The better figure of the two, each for itself."""
    return Probe(
        fp32={n: max(rate, second.fp32[n]) for n, rate in first.fp32.items()},
        bf16={n: max(rate, second.bf16[n]) for n, rate in first.bf16.items()},
        streamed=max(first.streamed, second.streamed),
        passed=max(first.passed, second.passed),
        attended=max(first.attended, second.attended),
        operation_s=min(first.operation_s, second.operation_s),
        threads=first.threads,
    )


def probed_once() -> Probe:
    """This machine, measured once."""
    return Probe(
        fp32=product_rates(torch.float32),
        bf16=product_rates(torch.bfloat16),
        streamed=stream_bytes_per_s(),
        passed=pass_bytes_per_s(),
        attended=attention_rate(torch.float32),
        operation_s=operation_s(),
        threads=torch.get_num_threads(),
    )


def probed(rounds: int) -> Probe:
    """This machine, measured in turns: what disturbs one turn may spare the next."""
    return reduce(best_of, (probed_once() for _ in range(rounds)))


def row_of(probe: Probe, name: str, scope: str, date: str) -> dict[str, Any]:
    """The row of accelerators.csv."""
    return {
        "name": name,
        "vendor": cpu_name().split()[0],
        "architecture": scope,
        "kind": "cpu",
        "marketed_memory": f"{ram_bytes() / 2**30:.0f} GiB RAM",
        "hbm_bytes": ram_bytes(),
        "hbm_bytes_reported": "true",
        "hbm_bytes_per_s": f"{probe.streamed:.4g}",
        "fp32_flops_per_s": f"{probe.peak:.4g}",
        "bf16_flops_per_s": f"{max(probe.bf16.values()):.4g}",
        "l2_bytes": cache_bytes() or "",
        "num_sms": probe.threads,
        "source": SCRIPT,
        "date": date,
        "confidence": "medium",
        "notes": f"measured with {probe.threads} threads of PyTorch {torch.__version__}; rates are achieved ones",
    }


def parameters_of(probe: Probe, scope: str, date: str) -> list[dict[str, Any]]:
    """The calibration that goes with the row: fractions of what is achieved already, so mostly 1 and 0."""
    small, fixed = min(SIZES), probe.operation_s
    lost_s = max(0.0, 2.0 * ROWS * small * small * (1 / probe.fp32[small] - 1 / probe.peak))
    fill_s = lost_s * probe.threads / (ROWS / 128 * small / 128)
    share, seconds = "fraction of peak", "s"
    figures = (
        ("matmul_frac.bf16", 1.0, share, "The peak of the row is itself the best product."),
        ("tile_knee", 0.0, "FLOP a byte", "No cost of small tiles beyond the next."),
        ("tile_fill_s", fill_s, seconds, f"Time that a product of {small} columns loses, an output tile."),
        ("wave_tail", 0.0, "fraction", "Threads share the last round."),
        ("overlap_loss", 0.0, "fraction", "Prefetching hides the shorter of computing and moving."),
        ("overlap_loss.attention", 0.0, "fraction", "As overlap_loss."),
        ("misaligned_frac", 1.0, "fraction", "Vector code does not mind."),
        ("dram_frac", 1.0, share, "The bandwidth of the row is itself a streaming copy."),
        (
            "pointwise_frac",
            probe.passed / probe.streamed,
            "fraction",
            "Norms and activations with backward over a copy.",
        ),
        ("kernel_s", fixed, seconds, "Fixed time of one operation."),
        ("attention_frac", probe.attended / probe.peak, share, "Flash attention, forward and backward."),
        ("attention_tail", 0.0, "fraction", "As wave_tail."),
        ("attention_s", fixed, seconds, "As kernel_s."),
        ("attention_block_s", 0.0, seconds, "Contained in attention_frac."),
        ("grouped_s", fixed, seconds, "As kernel_s, for each expert."),
        ("grouped_frac", probe.fp32[small] / probe.peak, "fraction", "An expert's product is a small one."),
        ("grouped_passes", 4.0, "passes", "Gathered, scaled, scattered, and back: counted, not measured."),
        ("train_attention_frac.fa2", probe.attended / probe.peak, share, "As attention_frac."),
        ("train_grouped_frac", probe.fp32[small] / probe.peak, "fraction", "As grouped_frac."),
        ("train_grouped_passes", 4.0, "passes", "As grouped_passes."),
        ("train_contention", 0.0, "fraction", "No messages."),
    )
    said = {"fitted_on": f"one machine, {date}", "source": SCRIPT, "date": date}
    return [
        {"name": name, "scope": scope, "value": float(f"{value:.4g}"), "unit": unit, "meaning": meaning, **said}
        for name, value, unit, meaning in figures
    ]


def main() -> None:
    """Measure, write, say so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="facts folder to write to")
    parser.add_argument("--name", help='the device\'s name in the facts (default: what it calls itself, and "probed")')
    parser.add_argument("--rounds", type=int, default=3, help="turns to take the best of (default: 3)")
    parser.add_argument("--threads", type=int, help="threads to use (default: as PyTorch chooses)")
    asked = parser.parse_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    name, date = asked.name or f"{cpu_name()} probed", dt.datetime.now(tz=dt.UTC).date().isoformat()
    probe = probed(asked.rounds)
    scope = "-".join(f"{name} {probe.threads} threads".lower().split())
    row, parameters = row_of(probe, name, scope, date), parameters_of(probe, scope, date)
    folder = asked.out / "calibration"
    folder.mkdir(parents=True, exist_ok=True)
    with (asked.out / "accelerators.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, row, lineterminator="\n")
        writer.writeheader()
        writer.writerow(row)
    (folder / "cpu.json").write_text(json.dumps(parameters, indent=1) + "\n", encoding="utf-8")
    print(f"{name}: {probe.peak / 1e9:.0f} GFLOP/s fp32, {probe.streamed / 1e9:.1f} GB/s; wrote {asked.out}")


if __name__ == "__main__":
    main()
