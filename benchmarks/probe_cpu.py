"""A CPU's own rates as private facts: what `flopwise probe` measures, as a row of accelerators.csv and its calibration.

    python benchmarks/probe_cpu.py --out DIR            # about half a minute; --probe FILE takes one that was written
    flopwise train MODEL --gpu "NAME" --facts DIR       # NAME is printed

Single operations only, never a training step. Every figure is the fastest of many repetitions, the usual way to keep
other processes out of a rate.
"""

from __future__ import annotations

import argparse
import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flopwise.api.probe import probe as run_probe
from flopwise.probes.file import Probe

SCRIPT = "benchmarks/probe_cpu.py"
ROWS = 512  # of the products: tokens of a small micro-batch
SIZES = (256, 512, 1024, 2048)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRates:
    """What a probe says of the processor."""

    fp32: dict[int, float]  # FLOP/s of products by their width
    bf16: dict[int, float]
    streamed: float  # bytes/s of a large copy
    passed: float  # bytes/s of elementwise operations
    attended: float  # FLOP/s of attention
    operation_s: float
    threads: int
    cache_bytes: int
    ram_bytes: int
    torch: str

    @property
    def peak(self) -> float:
        """The best fp32 product, in FLOP/s."""
        return max(self.fp32.values())


def rates_of(probe: Probe) -> CpuRates:
    """The fastest repetitions of the operations that the calibration needs."""
    chip = probe.device("cpu")

    def fastest(name: str, dtype: str | None = None, **shape: int) -> float:
        return next(
            one.best
            for one, _ in probe.values(name, "cpu", dtype)
            if one.best is not None and all(one.shape[key] == size for key, size in shape.items())
        )

    def products(dtype: str) -> dict[int, float]:
        found = [one for one, _ in probe.values("matmul", "cpu", dtype) if one.shape["m"] == ROWS and one.best]
        return {one.shape["n"]: one.best or 0.0 for one in found if one.shape["n"] in SIZES}

    copies = {one.shape["bytes"]: one.best or 0.0 for one, _ in probe.values("memory_copy", "cpu")}
    return CpuRates(
        fp32=products("fp32"), bf16=products("bf16"), streamed=copies[max(copies)],
        passed=fastest("elementwise_training", elements=1 << 20),
        attended=fastest("attention_training", "fp32", seq=512),
        operation_s=fastest("launch_autograd"), threads=chip.threads or 1,
        cache_bytes=max(chip.cache_bytes.values(), default=0), ram_bytes=chip.memory_bytes or 0,
        torch=probe.versions["torch"],
    )  # fmt: skip


def row_of(probe: CpuRates, name: str, scope: str, date: str) -> dict[str, Any]:
    """The row of accelerators.csv."""
    return {
        "name": name,
        "vendor": name.split(maxsplit=1)[0],
        "architecture": scope,
        "kind": "cpu",
        "marketed_memory": f"{probe.ram_bytes / 2**30:.0f} GiB RAM",
        "hbm_bytes": probe.ram_bytes,
        "hbm_bytes_reported": "true",
        "hbm_bytes_per_s": f"{probe.streamed:.4g}",
        "fp32_flops_per_s": f"{probe.peak:.4g}",
        "bf16_flops_per_s": f"{max(probe.bf16.values()):.4g}",
        "l2_bytes": probe.cache_bytes or "",
        "num_sms": probe.threads,
        "source": SCRIPT,
        "date": date,
        "confidence": "medium",
        "notes": f"measured with {probe.threads} threads of PyTorch {probe.torch}; rates are achieved ones",
    }


def parameters_of(probe: CpuRates, scope: str, date: str) -> list[dict[str, Any]]:
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
    parser.add_argument("--probe", type=Path, help="a file of `flopwise probe -o`, instead of measuring now")
    parser.add_argument("--quick", action="store_true", help="measure for less time")
    parser.add_argument("--threads", type=int, help="threads to use (default: as PyTorch chooses)")
    asked = parser.parse_args()
    kinds = ["matmul", "memory", "attention", "elementwise", "launch"]
    measured = (
        Probe.from_file(asked.probe)
        if asked.probe
        else run_probe(device=["cpu"], only=kinds, quick=asked.quick, threads=asked.threads)
    )
    name, date = asked.name or f"{measured.device('cpu').name} probed", measured.date[:10]
    probe = rates_of(measured)
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
