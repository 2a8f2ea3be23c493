"""A CPU's own rates as private facts: what `flopwise probe` measures, as a row of accelerators.csv and its calibration.

    python benchmarks/probe_cpu.py --out DIR            # about a minute; --probe FILE... takes those that were written
    flopwise train MODEL --gpu "NAME" --facts DIR       # NAME is printed

Single operations only, never a training step; `flopwise calibrate` makes a profile of the same.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

from flopwise.api.probe import probe as run_probe
from flopwise.facts.calibration import FIELDS
from flopwise.fitting.measured import pooled_probe, probed_facts
from flopwise.probes.file import Probe

KINDS = ("matmul", "memory", "attention", "elementwise", "launch")


def main() -> None:
    """Measure, write, say so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="facts folder to write to")
    parser.add_argument("--name", help='the device\'s name in the facts (default: what it calls itself, and "probed")')
    parser.add_argument("--probe", type=Path, nargs="+", help="files of `flopwise probe -o`, instead of measuring now")
    parser.add_argument("--quick", action="store_true", help="measure for less time")
    parser.add_argument("--threads", type=int, help="threads to use (default: as PyTorch chooses)")
    asked = parser.parse_args()
    measured: Probe = (
        pooled_probe([Probe.from_file(file) for file in asked.probe])
        if asked.probe
        else run_probe(device=["cpu"], only=KINDS, quick=asked.quick, threads=asked.threads)
    )
    if not asked.probe:
        asked.out.mkdir(parents=True, exist_ok=True)
        measured.write(asked.out / "probe.json")
    found = probed_facts(measured)
    if not found.devices:
        parser.error(f"no processor in it that a row can be made of; {'; '.join(found.notes)}")
    row = {**found.devices[0], **({"name": asked.name} if asked.name else {})}
    folder = asked.out / "calibration"
    folder.mkdir(parents=True, exist_ok=True)
    with (asked.out / "accelerators.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, row, lineterminator="\n")
        writer.writeheader()
        writer.writerow(row)
    parameters = [{name: getattr(one, name) for name in FIELDS} for one in found.parameters]
    (folder / "cpu.json").write_text(json.dumps(parameters, indent=1) + "\n", encoding="utf-8")
    rate, moved = float(row["fp32_flops_per_s"]) / 1e9, float(row["hbm_bytes_per_s"]) / 1e9
    print(f"{row['name']}: {rate:.0f} GFLOP/s fp32, {moved:.1f} GB/s; wrote {asked.out}")


if __name__ == "__main__":
    main()
