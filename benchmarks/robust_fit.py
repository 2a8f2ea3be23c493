"""Few constants fitted to many measurements: robust loss, shrinkage to priors, errors of groups left out.

Errors are logarithms of predicted / measured. A large one counts by its size, not its square. Each constant is drawn to
its prior, so that one that only a left-out group knows goes back there. All constants are logarithms here.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
ELBOW = 0.10  # log error from which the loss grows linearly
PULL = 0.02  # weight of a squared distance from the prior, in spreads, against one row of weight one
STEP = 0.02  # of a logarithm, for derivatives


@dataclass(frozen=True)
class Knob:
    """One constant: a column of some rows, or a calibrated parameter; `spread`: how far (log) it strays freely."""

    name: str
    scopes: tuple[str, ...]
    prior: float
    low: float
    high: float
    spread: float = 0.5
    column: bool = True


def prior(knobs: Sequence[Knob]) -> Array:
    """Logarithms of the priors."""
    return np.log([k.prior for k in knobs])


def write_fitted(table: Path, values: Iterable[tuple[str, Collection[str], float]], source: str) -> None:
    """Write (column, names of records, value) into the `fitted` sections of a JSON table, with `source` and today.

    A record that is like another says only what differs from it, before and after.
    """
    records: dict[str, Any] = json.loads(table.read_text(encoding="utf-8"))
    whole: dict[str, dict[str, Any]] = {}
    for name, record in records.items():
        whole[name] = whole.get(record.get("like", ""), {}) | record.get("fitted", {})
    for column, names, value in values:
        for name in names:
            whole[name] = whole[name] | {"source": source, "date": f"{datetime.now(UTC):%Y-%m-%d}", column: value}
    for name, record in records.items():
        above = whole.get(record.get("like", ""), {})
        own = {k: v for k, v in whole[name].items() if k in ("source", "date") or above.get(k) != v}
        record.pop("fitted", None)
        if own.keys() - {"source", "date"}:
            record["fitted"] = own
    table.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def loss(knobs: Sequence[Knob], errors: Array, weight: Array, point: Array) -> float:
    """What a fit minimises."""
    robust = 2 * ELBOW**2 * (np.sqrt(1 + (errors / ELBOW) ** 2) - 1)
    pull = PULL / np.array([k.spread for k in knobs]) ** 2
    return float((weight * robust).sum() + (pull * (point - prior(knobs)) ** 2).sum())


def solved(
    knobs: Sequence[Knob], errors: Array, slopes: Array, weight: Array, point: Array, reach: float = math.inf
) -> Array:
    """The best point where errors are linear in the knobs around `point`, no further than `reach`."""
    pull = PULL / np.array([k.spread for k in knobs]) ** 2
    low = np.maximum(np.log([k.low for k in knobs]), point - reach)
    high = np.minimum(np.log([k.high for k in knobs]), point + reach)
    found = point.copy()
    for _ in range(40):
        left = errors + slopes @ (found - point)
        w = weight / np.sqrt(1.0 + (left / ELBOW) ** 2)
        new, free = found.copy(), np.ones(len(found), dtype=bool)
        for _ in range(6):  # those that run into a bound stay there
            normal = (slopes[:, free].T * w) @ slopes[:, free] + np.diag(pull[free])
            fixed = errors + slopes[:, ~free] @ (new[~free] - point[~free]) - slopes[:, free] @ point[free]
            new[free] = np.linalg.solve(normal, pull[free] * prior(knobs)[free] - (slopes[:, free].T * w) @ fixed)
            out = free & ((new < low) | (new > high))
            new = np.clip(new, low, high)
            if not out.any():
                break
            free &= ~out
        if np.abs(new - found).max() < 1e-5:
            break
        found = 0.5 * found + 0.5 * new
    return found


def even_weights(groups: Sequence[str]) -> Array:
    """One over the square root of the rows of each row's group."""
    counts = Counter(groups)
    return np.array([1 / math.sqrt(counts[g]) for g in groups])


def descended(
    knobs: Sequence[Knob],
    errors_at: Callable[[Array], Array],
    slopes_at: Callable[[Array], Array],
    weight: Array,
    start: Array,
    rounds: int,
    least_gain: float = 1e-3,
) -> tuple[Array, Array]:
    """(point, slopes there) after Gauss-Newton steps that shrink until they help, or gain less than `least_gain`."""
    point, slopes = start, slopes_at(start)
    for turn in range(rounds):
        here = errors_at(point)
        before = loss(knobs, here, weight, point)
        for reach in (0.7, 0.25, 0.08):
            new = solved(knobs, here, slopes, weight, point, reach)
            after = loss(knobs, errors_at(new), weight, new)
            if after < before:
                break
        else:
            break
        point, slopes = new, slopes_at(new)
        print(f"  round {turn + 1}: loss {after:.4f}, {told(errors_at(point))}", flush=True)
        if before - after < least_gain * before:
            break
    return point, slopes


def told(errors: Array) -> str:
    """Median and 90th percentile of the absolute relative error, and the signed median."""
    relative = np.expm1(errors)
    size = np.abs(relative)
    return (
        f"median {100 * np.median(size):5.1f} %, p90 {100 * np.quantile(size, 0.9):6.1f} %, "
        f"bias {100 * np.median(relative):+6.1f} %"
    )
