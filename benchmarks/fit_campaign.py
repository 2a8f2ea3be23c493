"""Fit the share that steps have of the GPU-hours of a published pre-training, and judge it on sources left out.

    python benchmarks/fit_campaign.py FILE             report
    python benchmarks/fit_campaign.py FILE --write     write the value to data/calibration/training.json

FILE has the columns of training_gpu_hours.csv. One constant for all rows, a weighted median: a row weighs one over the
square root of its source's rows.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flopwise.backtests.gpu_hours import CAMPAIGN, campaign_frac, predict_row
from flopwise.backtests.kinds import KINDS
from flopwise.backtests.run import measurements
from flopwise.facts.catalog import load_facts

Array = NDArray[np.float64]
ROOT = Path(__file__).resolve().parents[1]
VALUES = ROOT / "src" / "flopwise" / "data" / "calibration" / "training.json"
LEFT_OUT = ROOT / "benchmarks" / "accuracy" / "gpu_hours_left_out.csv"
"""Predicted / measured - 1 of every row by a constant that has not seen its source."""


def shares(file: Path) -> tuple[list[str], list[str], Array]:
    """Names, sources and (hours of the steps / published hours) of all rows that can be predicted."""
    facts, names, sources, found = load_facts(), [], [], []
    for row in measurements(KINDS["gpu-hours"], file):
        one = predict_row(row, facts)
        if one.predicted and one.measured:
            names.append(one.id)
            sources.append(row["source"])
            found.append(one.predicted * campaign_frac(facts.calibration) / one.measured)
    return names, sources, np.array(found)


def middle(values: Array, sources: list[str]) -> float:
    """The weighted median of `values`."""
    counts = Counter(sources)
    weight = np.array([counts[s] ** -0.5 for s in sources])
    order = np.argsort(values)
    below = np.cumsum(weight[order]) - 0.5 * weight[order]
    return float(np.exp(np.interp(0.5 * weight.sum(), below, np.log(values[order]))))


def unseen(values: Array, sources: list[str]) -> Array:
    """Errors of every row under the constant of the other sources."""
    out = np.empty(len(values))
    for i, source in enumerate(sources):
        others = [j for j, s in enumerate(sources) if s != source]
        out[i] = values[i] / middle(values[others], [sources[j] for j in others]) - 1
    return out


def told(errors: Array) -> str:
    """Median and 90th percentile of the absolute error, and the signed median."""
    size = np.abs(errors)
    return (
        f"median {100 * np.median(size):.1f} %, p90 {100 * np.quantile(size, 0.9):.1f} %, "
        f"bias {100 * np.median(errors):+.1f} %"
    )


def main() -> None:
    """Fit, report, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    names, sources, values = shares(given.file)
    share, left = middle(values, sources), unseen(values, sources)
    print(f"{len(values)} rows of {len(set(sources))} sources: {CAMPAIGN} {share:.3g}")
    print("plain:", told(values / share - 1))
    print("sources left out:", told(left))
    if given.write:
        rows = json.loads(VALUES.read_text(encoding="utf-8"))
        for row in rows:
            if row["name"] == CAMPAIGN:
                row |= {"value": float(f"{share:.3g}"), "date": f"{datetime.now(UTC):%Y-%m-%d}"}
        VALUES.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        lines = ["id,error", *(f"{n},{e:.4f}" for n, e in zip(names, left, strict=True))]
        LEFT_OUT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
