"""Fit the calibrated parameters to measured kernels and collectives.

    python benchmarks/fit_kernels.py KERNELS.csv                 report errors of the shipped calibration
    python benchmarks/fit_kernels.py KERNELS.csv --fit           refit, report, write data/calibration
    python benchmarks/fit_kernels.py KERNELS.csv --leave-out H100-SXM-80GB   refit without a GPU, report on it alone
    python benchmarks/fit_kernels.py KERNELS.csv --leave-out all             the same for each GPU in turn

The page of all values, docs/calibration.md, is written by docs/generate.py.

The loss is the mean of |log(predicted / measured)|, smoothed near zero, plus a pull of every family's value towards the
value that all families share, so that a family with few rows stays near the others.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from fit_parameters import FAMILIES, FIXED, KNOBS, Knob
from flopwise.backtests.kernels import Predictor
from flopwise.backtests.kinds import KINDS
from flopwise.backtests.run import measurements
from flopwise.cost.rates import families
from flopwise.facts.calibration import Calibration, Parameter, read_parameters
from flopwise.facts.catalog import Facts, load_facts

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "src" / "flopwise" / "data" / "calibration"
PULL = 0.02  # weight of (log value - log shared value) ** 2, per family, times the number of rows of an average family
Row = Mapping[str, str]
Key = tuple[str, str]


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def knob_keys(knobs: Iterable[Knob]) -> dict[Key, Knob]:
    return {(knob.name, scope): knob for knob in knobs for scope in (*knob.scopes, *(("any",) if knob.shared else ()))}


def as_calibration(values: dict[Key, float], fitted_on: str, date: str) -> Calibration:
    fitted = [
        Parameter(
            name=name, scope=scope, value=values[name, scope], unit=knob.unit, meaning=knob.meaning,
            fitted_on=f"geometric mean of: {', '.join(knob.scopes)}" if knob.scopes and scope == "any" else fitted_on,
            source="benchmarks/fit_kernels.py", date=date,
        )
        for (name, scope), knob in knob_keys(KNOBS).items()
    ]  # fmt: skip
    return Calibration((*fitted, *FIXED))


def pooled(values: dict[Key, float], keep: Callable[[str], bool] = lambda _: True) -> None:
    """Set each shared value to the geometric mean of its families'."""
    for knob in KNOBS:
        scopes = [s for s in knob.scopes if keep(s)]
        if knob.shared and scopes:
            values[knob.name, "any"] = math.exp(sum(math.log(values[knob.name, s]) for s in scopes) / len(scopes))


class Fit:
    """Coordinate descent in log space, one parameter at a time, over the rows that it moves."""

    def __init__(self, rows: list[Row], facts: Facts, values: dict[Key, float], absent: frozenset[str]) -> None:
        self.rows, self.facts, self.values, self.absent = rows, facts, values, absent
        self.measured = [float(r["seconds"]) for r in rows]
        self.current = self.predictions(values, range(len(rows)))

    def predictions(self, values: dict[Key, float], which: Iterable[int]) -> dict[int, float]:
        predictor = Predictor(self.facts, as_calibration(values, "", "").without(self.absent))
        found = {i: predictor.predict(self.rows[i]).predicted for i in which}
        return {i: p for i, p in found.items() if p is not None}

    def loss(self, predictions: dict[int, float]) -> float:
        return sum(math.sqrt(math.log(p / self.measured[i]) ** 2 + 0.03**2) for i, p in predictions.items())

    def pull(self, key: Key, values: dict[Key, float]) -> float:
        knob = KEYS[key]
        if not knob.scopes or key[1] == "any":
            return 0.0
        if not knob.shared:
            return 0.0
        others = [math.log(values[knob.name, s]) for s in knob.scopes if s not in self.absent]
        mean = sum(others) / len(others)
        return PULL * len(self.rows) / len(FAMILIES) * sum((o - mean) ** 2 for o in others)

    def moved(self, key: Key) -> list[int]:
        other = self.predictions(self.values | {key: self.values[key] * 1.3 + 1e-12}, self.current)
        again = self.predictions(self.values | {key: self.values[key] / 1.3}, self.current)
        return [i for i, p in self.current.items() if other[i] != p or again[i] != p]

    def step(self, key: Key, which: list[int], size: float) -> bool:
        knob = KEYS[key]
        old = self.values[key]
        best = self.loss({i: self.current[i] for i in which}) + self.pull(key, self.values)
        for candidate in (old * size, old / size):
            bounded = min(max(candidate, knob.low), knob.high)
            if bounded == old:
                continue
            trial = self.values | {key: bounded}
            predictions = self.predictions(trial, which)
            if self.loss(predictions) + self.pull(key, trial) < best - 1e-9:
                self.values = trial
                self.current |= predictions
                return True
        return False

    def whole(self) -> float:
        """The loss over all rows, and every pull once."""
        firsts = {key[0]: key for key in KEYS if key[1] != "any" and key[1] not in self.absent}
        return self.loss(self.current) + sum(self.pull(key, self.values) for key in firsts.values())

    def run(self, sizes: Sequence[float]) -> dict[Key, float]:
        free = [k for k, knob in KEYS.items() if k[1] not in self.absent and not (knob.scopes and k[1] == "any")]
        rows_of = {key: self.moved(key) for key in free}
        for size in sizes:
            for _ in range(6):
                improved = [self.step(key, rows_of[key], size) for key in free if rows_of[key]]
                if sum(improved) < 0.1 * len(improved):
                    break
            pooled(self.values, lambda s: s not in self.absent)
        return self.values


KEYS = knob_keys(KNOBS)


def shipped_values() -> dict[Key, float]:
    values = {key: knob.start for key, knob in KEYS.items()}
    try:
        shipped = {(p.name, p.scope): p.value for p in read_parameters(DATA)}
    except Exception:  # noqa: BLE001 - a first fit has nothing shipped
        shipped = {}
    return values | {key: min(max(shipped[key], KEYS[key].low), KEYS[key].high) for key in values if key in shipped}


def errors(rows: list[Row], facts: Facts, calibration: Calibration) -> list[tuple[Row, float]]:
    predictor = Predictor(facts, calibration)
    found = [(row, predictor.predict(row)) for row in rows]
    for row, prediction in found:
        if prediction.predicted is None:
            print(f"skipped {row['id']}: {prediction.skipped}")
    return [(r, p.predicted / float(r["seconds"]) - 1) for r, p in found if p.predicted is not None]


def report(found: list[tuple[Row, float]], by: Sequence[tuple[str, ...]]) -> None:
    for columns in (("all",), *by):
        groups: dict[str, list[float]] = defaultdict(list)
        for row, error in found:
            groups[" ".join(row.get(c, "all") for c in columns)].append(error)
        print(f"\n{'by ' + ', '.join(columns):60s} rows  median |e|   p90 |e|   median e")
        for name, values in sorted(groups.items()):
            sizes = [abs(v) for v in values]
            print(
                f"{name[:60]:60s} {len(values):4d}  {quantile(sizes, 0.5):10.3f} {quantile(sizes, 0.9):9.3f}"
                f" {quantile(values, 0.5):+10.3f}"
            )


def scope_of(facts: Facts, gpu: str) -> tuple[str, str]:
    a = facts.accelerator(gpu)
    return families(a.vendor, a.architecture, a.compute_capability, a.kind)[0], (a.link or "none").lower()


def fitted(
    rows: list[Row], facts: Facts, start: dict[Key, float], absent: frozenset[str], starts: int = 1
) -> dict[Key, float]:
    """The best of several descents: the first from `start`, the others from the best so far, shaken (seeded)."""
    shake = random.Random(2026)  # noqa: S311 - no secret
    best = Fit(rows, facts, dict(start), absent)
    best.run(SIZES)
    for _ in range(starts - 1):
        shaken = {
            key: min(max(value * math.exp(shake.gauss(0.0, 0.25)), KEYS[key].low), KEYS[key].high)
            for key, value in best.values.items()
        }
        pooled(shaken, lambda s: s not in absent)
        other = Fit(rows, facts, shaken, absent)
        other.run(SIZES)
        if other.whole() < best.whole():
            best = other
    return best.values


def leave_out(rows: list[Row], facts: Facts, gpu: str, starts: int) -> list[tuple[Row, float]]:
    """Errors on `gpu` of a fit that has not seen it; its family is unknown too, unless another GPU is of it."""
    kept = [r for r in rows if r["gpu"] != gpu]
    seen = {s for g in {r["gpu"] for r in kept} for s in scope_of(facts, g)}
    absent = frozenset(s for s in scope_of(facts, gpu) if s not in seen and s != "pcie")
    start = {key: knob.start for key, knob in KEYS.items()}
    values = fitted(kept, facts, start, absent, starts)
    return errors([r for r in rows if r["gpu"] == gpu], facts, as_calibration(values, "", "").without(absent))


SIZES = (1.6, 1.25, 1.1, 1.3, 1.1, 1.03)
BY = (("op",), ("gpu",), ("op", "dtype"), ("op", "gpu"), ("library",), ("op", "library"))


def write(calibration: Calibration) -> None:
    names = {"collectives.json": ("link_",), "software.json": ("wrapper_", "host_")}
    files: dict[str, list[dict[str, object]]] = {"kernels.json": [], **{name: [] for name in names}}
    for p in calibration.parameters:
        target = next((file for file, start in names.items() if p.name.startswith(start)), "kernels.json")
        row = {f: getattr(p, f) for f in ("name", "scope", "value", "unit", "meaning", "fitted_on", "source", "date")}
        row["value"] = float(f"{p.value:.4g}")
        files[target].append(row)
    for file, entries in files.items():
        (DATA / file).write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--seed", action="store_true", help="start from the starting values, not the shipped ones")
    parser.add_argument("--starts", type=int, default=1, help="descents; all but the first from shaken values")
    parser.add_argument("--leave-out", metavar="GPU")
    parser.add_argument("--date", default="2026-11-21")
    arguments = parser.parse_args()
    if arguments.file is not None:
        rows = measurements(KINDS["kernels"], arguments.file)
        facts = load_facts()
        if arguments.leave_out:
            gpus = sorted({r["gpu"] for r in rows}) if arguments.leave_out == "all" else [arguments.leave_out]
            report([e for gpu in gpus for e in leave_out(rows, facts, gpu, arguments.starts)], (("gpu",), ("op",)))
        else:
            if arguments.fit:
                start = {k: knob.start for k, knob in KEYS.items()} if arguments.seed else shipped_values()
                values = fitted(rows, facts, start, frozenset(), arguments.starts)
                said = f"{len(rows)} published kernels and collectives (aiconfigurator, vidur)"
                write(as_calibration(values, said, arguments.date))
            report(errors(rows, facts, Calibration(tuple(read_parameters(DATA)))), BY)


if __name__ == "__main__":
    main()
