"""Fit the error bands in data/intervals.json to measurements.

    python benchmarks/accuracy/fit_intervals.py            report what the bands would be and how they cover
    python benchmarks/accuracy/fit_intervals.py --write    write them

A band is the 10, 50 and 90 % quantile of measured / predicted in one class of predictions. A row weighs one over the
square root of its source's rows in the class, so that a source with many rows does not decide alone. Bands are judged
on sources that they have not seen: each source is left out in turn, and one factor on the spread of all bands of a kind
is set so that 80 % of what was left out lies inside. Where constants were fitted to the rows themselves, a row counts
with its error under constants that have not seen its source, or its GPU where that is worse; rows that are younger than
the fit were never seen.

Bands know nothing of data/coverage.json: its spreads of families of devices are measured against them afterwards. The
bias of few sources is nobody else's: where a class has fewer than `MANY_SOURCES`, its band holds the estimate itself.
What is known worse (`WORSE`) says nothing of what it stands beside, and is never surer than that.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rows import KINDS, TRUTH_DATE, Case, cases, unseen_errors

from flopwise.backtests.memory import row_method, row_stack
from flopwise.facts.calibration import FEW_SOURCES
from flopwise.facts.catalog import load_facts
from flopwise.fitting.deployment import even_weights
from flopwise.fitting.robust import Array, weighted_quantile
from flopwise.training.memory import memory_class

TARGET = 0.8
FLOOR = {"weights": 0.003, "memory": 0.05}
"""Least distance of either end from the median, as a logarithm; `OTHER_FLOOR` for the kinds that are not here."""
OTHER_FLOOR = 0.08
WIDEST = 4.0
FEW_POINTS = 20
"""Points from which their tenth part is that of a further one, too, but for what the points themselves leave open: a
class with fewer has no band of its own."""
FACTS = load_facts()
BY_CLASS, LEAST_FACTOR, MOST_INSIDE = ("training", "memory"), 0.3, 0.92
"""Kinds whose classes hold by themselves: what nobody stated may make a band wider than errors beyond it ask for."""
MANY_SOURCES = 8
"""Sources from which the coverage of a class left out says enough to set its own factor, in every kind; with
`FEW_POINTS` rows in it, `SOME_SOURCES` do."""
SOME_SOURCES = 3
"""Of two sources one alone would judge the other."""
WORSE = (".far", ".ported", ".replicas", ".unseen")
"""Classes that are known worse than the class whose name they extend."""
DATA = Path(__file__).resolve().parents[2] / "src" / "flopwise" / "data" / "intervals.json"


class Point(NamedTuple):
    """One measurement: its class, source and log(measured / predicted).

    Of a row with inputs that nobody stated, the logarithm is what is left beyond their ends.
    """

    name: str
    source: str
    log_ratio: float


class Band(NamedTuple):
    """Logarithms of the three quantiles."""

    low: float
    median: float
    high: float


def points_of(scored: Sequence[Case]) -> list[Point]:
    """The measurements of cases that were predicted; by constants that have not seen their source, where there are."""
    points = []
    unseen = worse_unseen_errors(scored[0].kind) if scored else {}
    measured = measured_software(scored) if scored and scored[0].kind == "memory" else {}
    for case in scored:
        band, ratio = case.prediction.band, case.ratio
        if case.key in unseen:
            ratio = 1.0 / (1.0 + unseen[case.key])
        if band is not None and ratio is not None:
            inverse = case.prediction.unit.startswith("tokens") and ".tpot" in band.name  # one stream: 1 / TPOT
            sign, name = -1 if inverse else 1, band.exact_name or band.name
            far = sign * math.log(ratio)
            far -= min(max(far, math.log(band.reach[0])), math.log(band.reach[1]))
            if case.kind == "memory":
                name = unseen_class(case, measured)
            points.append(Point(name, case.publisher, far))
    return points


def worse_unseen_errors(kind: str) -> dict[tuple[str, str], float]:
    """By row and quantity the farther of two errors: of constants without its source, and of those without its GPU."""
    without_gpu = unseen_errors(kind, "GPU")
    return {
        key: max(error, without_gpu.get(key, error), key=lambda one: abs(math.log1p(one)))
        for key, error in unseen_errors(kind).items()
    }


Software = dict[str, dict[str, int]]
"""By publisher, the rows of each "stack method"."""


def measured_software(scored: Sequence[Case]) -> Software:
    """What software each publisher measured the memory of."""
    found: Software = defaultdict(lambda: defaultdict(int))
    for case in scored:
        if case.ratio is not None:
            found[case.publisher][f"{row_stack(case.row)} {row_method(case.row)}"] += 1
    return found


def unseen_class(case: Case, measured: Software) -> str:
    """The class of a row's memory for those who have the rows of other publishers alone."""
    others: Counter[str] = Counter()
    for publisher, rows in measured.items():
        if publisher != case.publisher:
            others.update(rows)
    return memory_class(FACTS.stack(row_stack(case.row)), row_method(case.row), others)


def source_weights(points: Sequence[Point]) -> Array:
    """One over the square root of the rows of each point's source."""
    return even_weights([p.source for p in points])


def tail_share(count: int) -> float:
    """The share of a kind's `count` points at whose quantile a further one lies below with a chance of 10 % or less.

    Few points give a quantile between two of them no ground: it is the farther one.

    Source: Weibull 1939, plotting positions: the i-th of n exceeds a further point with a chance of i / (n + 1).
    """
    share = (1.0 - TARGET) / 2.0
    return share if count >= FEW_POINTS else (max(math.floor(share * (count + 1.0)), 1) - 0.5) / count


def fit(points: Sequence[Point], floor: float) -> Band:
    """The band of some points."""
    ratios, weights = np.array([p.log_ratio for p in points]), source_weights(points)
    tail = (1.0 - TARGET) / 2.0 if "." in points[0].name else tail_share(len(points))  # parts share their kind's factor
    low, median, high = (weighted_quantile(ratios, weights, quantile) for quantile in (tail, 0.5, 1.0 - tail))
    return Band(min(low, median - floor), median, max(high, median + floor))


def members(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Points of every class and of the classes above it; what is known worse counts in its own class alone."""
    groups: dict[str, list[Point]] = defaultdict(list)
    for p in points:
        for name in [p.name] if p.name.endswith(WORSE) else above(p.name):
            groups[name].append(p)
    return dict(sorted(groups.items()))


def above(name: str) -> list[str]:
    """The names of a class and of those above it, the topmost first."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def classes(points: Sequence[Point]) -> dict[str, list[Point]]:
    """As `members`; a class that is known worse and has few points has those of all such classes near it."""
    groups, worse = members(points), [p for p in points if p.name.endswith(WORSE)]
    for name in [name for name in groups if name.endswith(WORSE)]:
        wider = ([p for p in worse if p.name.startswith(f"{one}.")] for one in reversed(above(name)[:-1]))
        groups[name] = next((some for some in (groups[name], *wider) if enough(some)), worse)
    return groups


def enough(points: Sequence[Point]) -> bool:
    """Whether a class has a band of its own; with less it takes that of the class above it."""
    return len(points) >= FEW_POINTS and len({p.source for p in points}) >= FEW_SOURCES


def bands(points: Sequence[Point], floor: float) -> dict[str, Band]:
    """Bands of the classes that have points enough; the topmost always."""
    return {name: fit(own, floor) for name, own in classes(points).items() if enough(own) or "." not in name}


def nearest(fitted: Collection[str], name: str) -> str | None:
    """The nearest class at or above `name` that has a band."""
    return next((one for one in reversed(above(name)) if one in fitted), None)


def inside(fitted: dict[str, Band], points: Sequence[Point], factor: float) -> list[bool]:
    """Whether each point lies in its band, with the spread multiplied."""
    out = []
    for p in points:
        name = nearest(fitted, p.name)
        if name is not None:
            band = fitted[name]
            low, high = widened(band, factor)
            out.append(low <= p.log_ratio <= high)
    return out


def left_out(points: Sequence[Point], floor: float) -> list[tuple[dict[str, Band], list[Point]]]:
    """For each source the bands of the others, and its own points."""
    sources = sorted({p.source for p in points})
    if len(sources) < 2:
        return [(bands(points, floor), list(points))]
    return [(bands([p for p in points if p.source != s], floor), [p for p in points if p.source == s]) for s in sources]


Folds = Sequence[tuple[dict[str, Band], list[Point]]]
"""For each source left out the bands of the others, and its own points."""


def unseen_coverage(folds: Folds, factor: float) -> float:
    """Mean coverage of points that the bands have not seen; a source weighs as the square root of its rows."""
    points = [p for _, own in folds for p in own]
    hits = [hit for fitted, own in folds for hit in inside(fitted, own, factor)]
    return float(np.average(hits, weights=source_weights(points)))


def distance(band: Band, point: Point) -> float:
    """How far a point lies from the band's median, over the distance of the end on its side."""
    away = point.log_ratio - band.median
    return away / ((band.high if away > 0 else band.low) - band.median)


def factor_for(folds: Folds, least: float = 1.0, most_inside: float = 1.0) -> float:
    """The factor on all spreads that holds the target's share of unseen points, from `least` to `WIDEST`.

    It is the quantile of their distances, linear between points as those of bands are: the first factor that reaches
    the target would be too wide by up to the weight of one point, which in a class of few sources is much. Of the
    points by themselves, however they weigh, it holds no more than the share `most_inside`.
    """
    points = [p for _, own in folds for p in own]
    near = [(nearest(fitted, p.name), fitted, p) for fitted, own in folds for p in own]
    far = np.array([distance(fitted[name], p) for name, fitted, p in near if name])
    factor = max(weighted_quantile(far, source_weights(points), TARGET), least)
    held = math.floor(most_inside * len(far))
    if len(far) >= FEW_POINTS and held < len(far):
        factor = min(factor, float(np.mean(np.sort(far)[held - 1 : held + 1])))
    return min(factor, WIDEST)


def class_factors(kind: str, folds: Folds) -> dict[str, float]:
    """The factor on the spread of each class: its own where classes must hold by themselves, or it has many sources."""
    names = sorted({name for _, points in folds for name in members(points)})
    out = {} if kind in BY_CLASS else dict.fromkeys(names, factor_for(folds))
    for name in names:
        own = [(fitted, members(points).get(name, [])) for fitted, points in folds]
        own = [(fitted, points) for fitted, points in own if points]
        rows = [point for _, points in own for point in points]
        many = len(own) >= (SOME_SOURCES if len(rows) >= FEW_POINTS else MANY_SOURCES)
        if name.endswith(WORSE) and not enough(rows):  # it has the rows of others
            out[name] = factor_for(folds)
        elif kind in BY_CLASS or many:
            out[name] = factor_for(own, LEAST_FACTOR, MOST_INSIDE) if kind in BY_CLASS else factor_for(own)
    return out


def widened(band: Band, factor: float) -> tuple[float, float]:
    """The band's ends with its spread multiplied."""
    return band.median + (band.low - band.median) * factor, band.median + (band.high - band.median) * factor


def outside(band: tuple[float, float, float], near: dict[str, float | int]) -> tuple[float, float, float]:
    """The band of what is known worse than its neighbour `near`, never narrower on either side of its median."""
    low, median, high = band
    beside, middle, above = (math.log(near[end]) for end in ("low", "median", "high"))
    return min(low, median - (middle - beside)), median, max(high, median + (above - middle))


def _place(name: str) -> tuple[int, str]:
    """Where a class stands in the file: by kind, then by name."""
    return [kind.replace("-", "_") for kind in KINDS].index(name.split(".", maxsplit=1)[0]), name


def main() -> None:
    """Fit, report, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="others keep what they have")
    given = parser.parse_args()
    refitted = tuple(kind.replace("-", "_") for kind in given.kinds)
    before: dict[str, dict[str, float | int]] = json.loads(DATA.read_text(encoding="utf-8"))["bands"]
    out = {name: band for name, band in before.items() if name.split(".")[0] not in refitted}
    for kind in given.kinds:
        points = points_of(cases(kind))
        floor = FLOOR.get(kind, OTHER_FLOOR)
        folds = left_out(points, floor)
        factors = class_factors(kind, folds)
        fitted, own = bands(points, floor), classes(points)
        print(f"{kind}: {len(points)} rows, {len(folds)} sources; inside, sources left out, and factor on the spread:")
        for name, band in fitted.items():
            if name == "serving":  # times and rates together say nothing
                continue
            factor = factors[name]
            low, high = widened(band, factor)
            if len({p.source for p in own[name]}) < MANY_SOURCES:
                low, high = min(low, 0.0), max(high, 0.0)
            median = band.median
            if name.endswith(WORSE):
                beside = nearest(out, name.rpartition(".")[0]) or kind
                low, median, high = outside((low, median, high), out[beside])
            ends = zip(("low", "median", "high"), (low, median, high), strict=True)
            out[name] = {end: round(math.exp(value), 4) for end, value in ends} | {"rows": len(own[name])}
            shown = (f"{out[name][q]:.3f}" for q in ("low", "median", "high"))
            print(f"  {name:38} {len(own[name]):5} x {factor:.2f}", *shown)
    if given.write:
        document = {
            "source": "quantiles of measured / predicted in backtests, sources left out in turn (benchmarks/accuracy)",
            "date": TRUTH_DATE,
            "bands": dict(sorted(out.items(), key=lambda item: _place(item[0]))),
        }
        DATA.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
