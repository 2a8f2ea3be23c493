"""Fit data/coverage.json: how many rows were measured on each family of devices, and what leaving families out costs.

    python benchmarks/accuracy/fit_coverage.py            report
    python benchmarks/accuracy/fit_coverage.py --write    write them

A row's distance is |log(measured / predicted) - median| over that of the end of its class's band on that side: 1 at the
end of the interval. The spread of some rows is the distance that 80 % of them keep to, a row weighing one over the
square root of its group's rows, and never less than 1. Rows of a family are also predicted by a calibration that does
not know the family, or none of its maker's: the spreads of those, over all families, are what an unmeasured device's
band is widened by. As bands do, a row counts with its error under constants that have not seen its publisher. Makers
other than the one whose measurements stand in for all others are left out.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from fit_intervals import TARGET
from rows import TRUTH, TRUTH_DATE, unseen_errors

from flopwise.backtests.kinds import KINDS
from flopwise.backtests.memory import row_method
from flopwise.backtests.memory import row_stack as memory_stack
from flopwise.backtests.prediction import Prediction, Row
from flopwise.backtests.run import measurements, run_backtest
from flopwise.backtests.training import row_stack
from flopwise.cost.rates import families
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.calibration import FEW_ROWS
from flopwise.facts.catalog import COVERAGE_FILE, Facts, load_facts
from flopwise.fitting.deployment import even_weights
from flopwise.fitting.robust import weighted_quantile
from flopwise.training.estimate import LARGE_GPUS

COVERED = ("training", "serving")
GENERAL = "NVIDIA"
LEAST_OUT = {"training": 1.6}
"""Least spread of families and makers without rows, by kind: more than that of a device whose variant is a guess (1.5),
which people have measured."""
"""The maker of the devices that most rates were measured on: without it nothing would be left to stand in."""
DATA = Path(__file__).resolve().parents[2] / "src" / "flopwise" / "data" / COVERAGE_FILE


@dataclass(frozen=True, slots=True)
class Measured:
    """One predicted row: its device, its publisher, and its distance."""

    device: Accelerator
    publisher: str
    distance: float
    classes: tuple[str, ...]  # its class of errors, and those above it
    row: Row

    @property
    def family(self) -> str:
        """The family of its device."""
        return family_of(self.device)


def family_of(chip: Accelerator) -> str:
    """The first of a device's scopes."""
    return families(chip)[0]


def distance(prediction: Prediction, facts: Facts, unseen: Mapping[tuple[str, str], float]) -> float | None:
    """How far the measured value is from the median, over the end of the class's own band on that side.

    `unseen`: predicted / measured - 1, by row and quantity, where others than the prediction's own errors count.
    """
    if prediction.band is None or not prediction.predicted or not prediction.measured:
        return None
    band, key = facts.calibration.errors[prediction.band.name], (prediction.id, prediction.quantity)
    ratio = -math.log1p(unseen[key]) if key in unseen else math.log(prediction.measured / prediction.predicted)
    if prediction.unit.startswith("tokens") and ".tpot" in band.name:  # one stream: 1 / TPOT
        ratio = -ratio
    low, high = map(math.log, prediction.band.reach)
    ratio -= min(max(ratio, low), high)
    end = band.high if ratio > math.log(band.median) else band.low
    return (ratio - math.log(band.median)) / math.log(end / band.median)


def measured_rows(
    kind: str, rows: Iterable[Row], facts: Facts, unseen: Mapping[tuple[str, str], float] | None = None
) -> list[Measured]:
    """The rows that can be predicted with `facts`; `unseen` as of `distance`."""
    found = []
    done = run_backtest(KINDS[kind], rows, facts)
    for prediction, row in zip(done.predictions, done.rows, strict=True):
        far = distance(prediction, facts, unseen or {})
        if far is not None:
            assert prediction.band is not None
            parts = (prediction.band.exact_name or prediction.band.name).split(".")
            above = tuple(".".join(parts[:count]) for count in range(1, len(parts) + 1))
            found.append(
                Measured(facts.resolve(row["gpu"]).accelerator, row.get("publisher") or row["study"], far, above, row)
            )
    return found


def without(scopes: set[str], facts: Facts) -> Facts:
    """The facts with a calibration that knows nothing of `scopes`."""
    blind = facts.calibration.without(scopes)
    return facts.with_tables(
        calibration=blind,
        accelerators={name: replace(chip, calibration=blind) for name, chip in facts.accelerators.items()},
    )


def spread(members: Sequence[tuple[str, float]], *, once: bool = False) -> float:
    """The distance that 80 % of (group, distance) keep to, at least 1; `once`: every group counts the same."""
    groups, far = zip(*members, strict=True)
    weights = even_weights(groups)
    return round(max(1.0, float(weighted_quantile(np.array(far), weights**2 if once else weights, TARGET))), 2)


def coverage(kind: str, facts: Facts) -> dict[str, Any]:
    """The families of one kind of prediction, and the spreads of those left out."""
    by_family: dict[str, list[Measured]] = defaultdict(list)
    for one in measured_rows(kind, measurements(KINDS[kind], TRUTH / f"{kind}.csv"), facts, unseen_errors(kind)):
        by_family[one.family].append(one)
    family_out: list[tuple[str, float]] = []
    maker_out: list[tuple[str, float]] = []
    for family, own in by_family.items():
        rows, vendor = list({one.row["id"]: one.row for one in own}.values()), own[0].device.vendor
        family_out += [(family, m.distance) for m in measured_rows(kind, rows, without({family}, facts))]
        if vendor != GENERAL:
            blind = without({family, vendor.lower()}, facts)
            maker_out += [(family, m.distance) for m in measured_rows(kind, rows, blind)]
    every = [m for own in by_family.values() for m in own]
    # a family without rows is no surer than four of five that have some
    known = {family: spread([(m.publisher, m.distance) for m in own]) for family, own in by_family.items()}
    usual = spread([(f, known[f]) for f, own in by_family.items() if len(own) >= FEW_ROWS], once=True)
    foreign = spread([(f, known[f]) for f, own in by_family.items() if own[0].device.vendor != GENERAL], once=True)
    of_training = kind == "training" and {
        "stacks": dict(sorted(Counter(row_stack(m.row) for m in every).items())),
        "large": spread([(m.publisher, m.distance) for m in every if float(m.row["gpus"]) > LARGE_GPUS]),
    }
    return (of_training or {}) | {
        "families": {
            family: {
                "maker": f"{own[0].device.vendor} {own[0].device.kind}", "rows": len({m.row["id"] for m in own}),
                "sources": len({m.publisher for m in own}), "spread": known[family],
                "classes": dict(sorted(Counter(name for m in own for name in m.classes).items())),
            }
            for family, own in sorted(by_family.items())
        },
        "family_out": max(usual, spread(family_out, once=True), LEAST_OUT.get(kind, 1.0)),
        "maker_out": max(foreign, spread(maker_out, once=True), LEAST_OUT.get(kind, 1.0)),
    }  # fmt: skip


def memory_coverage() -> dict[str, Any]:
    """The software whose memory was measured, by what it trained; devices have no part in it."""
    rows = measurements(KINDS["memory"], TRUTH / "memory.csv")
    counts = Counter(f"{memory_stack(row)} {row_method(row)}" for row in rows)
    return {"stacks": dict(sorted(counts.items())), "families": {}, "family_out": 1.0, "maker_out": 1.0}


def main() -> None:
    """Fit, report, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    every = (*COVERED, "memory")
    parser.add_argument("--kinds", nargs="+", choices=every, default=every, help="others keep what they have")
    given = parser.parse_args()
    facts, kinds = load_facts(), dict[str, Any](json.loads(DATA.read_text(encoding="utf-8"))["kinds"])
    for kind in given.kinds:
        if kind == "memory":
            kinds[kind] = memory_coverage()
            print(*(f"memory: {name} {rows}" for name, rows in kinds[kind]["stacks"].items()), sep="\n")
            continue
        kinds[kind] = coverage(kind, facts)
        print(f"{kind}: families left out {kinds[kind]['family_out']}, makers left out {kinds[kind]['maker_out']}")
        for family, own in kinds[kind]["families"].items():
            print(
                f"  {family:18} {own['maker']:14} {own['rows']:5} rows {own['sources']:3} sources {own['spread']:5.2f}"
            )
    if given.write:
        document = {
            "source": "rows of benchmarks/truth by family of devices, and families left out of the calibration "
            "(benchmarks/accuracy/fit_coverage.py)",
            "date": TRUTH_DATE,
            "kinds": kinds,
        }
        DATA.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
