"""Fit the few constants of a training step to published runs.

    python benchmarks/fit_training.py FILE             report errors, plain and with each source left out
    python benchmarks/fit_training.py FILE --write     write the values to data/calibration/training.json and stacks.csv

Each constant is a parameter of data/calibration/training.json or a column of data/stacks.csv that several stacks share;
none belongs to a row, a source or one model of GPU. Errors are logarithms of predicted / measured under a robust loss.
A row weighs one over the square root of its source's rows. Each constant is drawn to where it started (its `prior`), so
that one that only a single source knows goes back there when that source is left out.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fit_training_knobs import KNOBS
from flopwise.backtests.kinds import KINDS
from flopwise.backtests.prediction import number
from flopwise.backtests.run import measurements
from flopwise.backtests.training import row_job
from flopwise.cost.rates import Rates, rates
from flopwise.errors import FlopwiseError
from flopwise.facts.calibration import load_calibration
from flopwise.facts.catalog import load_facts
from flopwise.facts.software import Stack, stack, stack_names
from flopwise.training.estimate import TrainJob, single_parts, single_table
from robust_fit import STEP, Array, Knob, descended, even_weights, solved, told, write_cells

DATA = Path(__file__).resolve().parents[1] / "src" / "flopwise" / "data"
LEFT_OUT = Path(__file__).resolve().parent / "accuracy" / "training_left_out.csv"
"""Predicted / measured - 1 of every run by constants that have not seen its source."""
ROUNDS = 8
LEAST_GAIN = 2e-4  # of the loss, for another round


@dataclass(frozen=True)
class Run:
    """One published run."""

    id: str
    source: str
    job: TrainJob
    measured: float
    mixture: bool


def runs(file: Path) -> list[Run]:
    """All runs of a file that can be predicted."""
    facts, found = load_facts(), []
    for row in measurements(KINDS["training"], file):
        measured = number(row, "tokens_per_s_per_gpu")
        try:
            job = row_job(row, facts)
        except FlopwiseError:
            continue
        if measured:
            found.append(Run(row["id"], row["study"], job, measured, job.model.has_experts))
    return found


class Model:
    """Log errors of all runs as a function of the knobs' logarithms; equal arguments are computed once."""

    def __init__(self, held: Sequence[Run]) -> None:
        """Keep the runs."""
        self.runs = held
        self.known: dict[bytes, Array] = {}

    def errors(self, point: Array) -> Array:
        """log(predicted / measured) of every run."""
        key = np.round(point, 9).tobytes()
        if key not in self.known:
            self.known[key] = np.array(self._errors(point))
        return self.known[key]

    def _errors(self, point: Array) -> list[float]:
        values = dict(zip(KNOBS, np.exp(point), strict=True))
        table = load_calibration().replaced(
            {(k.name, scope): v for k, v in values.items() for scope in k.scopes if not k.column}
        )
        stacks = {name: _stack(stack(name), values) for name in stack_names()}
        chips: dict[str, Rates] = {}
        out = []
        for run in self.runs:
            job = run.job
            chip = job.cluster.accelerator
            if chip.name not in chips:
                chips[chip.name] = rates(chip, table)
            moved = replace(job, cluster=replace(job.cluster, rates=chips[chip.name]))
            software = stacks[stack(job.recipe.stack).name]
            step_s = sum(single_parts(single_table(moved, software), job.layout).values())
            tokens = job.recipe.global_batch * job.recipe.seq_len
            out.append(math.log(tokens / step_s / int(job.layout.num_gpus) / run.measured))
        return out

    def slopes(self, point: Array) -> Array:
        """Derivatives of the errors, one column a knob."""
        here = self.errors(point)
        columns = []
        for index, knob in enumerate(KNOBS):
            sign = -1.0 if point[index] + STEP > math.log(knob.high) else 1.0
            moved = point.copy()
            moved[index] += sign * STEP
            columns.append((self.errors(moved) - here) / (sign * STEP))
        return np.column_stack(columns)


def _stack(row: Stack, values: Mapping[Knob, float]) -> Stack:
    own: dict[str, Any] = {k.name: v for k, v in values.items() if k.column and row.name in k.scopes}
    return replace(row, **own)


def fit(model: Model, start: Array, rounds: int) -> tuple[Array, Array]:
    """(point, slopes there) after Gauss-Newton steps that shrink until they help."""
    weight = even_weights([r.source for r in model.runs])
    return descended(KNOBS, model.errors, model.slopes, weight, start, rounds, LEAST_GAIN)


def left_out(model: Model, point: Array, slopes: Array) -> Array:
    """Log errors of every run under constants that have not seen its source."""
    errors, weight = model.errors(point), even_weights([r.source for r in model.runs])
    out = np.zeros(len(errors))
    sources = np.array([r.source for r in model.runs])
    for source in dict.fromkeys(sources.tolist()):
        own = sources == source
        found = solved(KNOBS, errors[~own], slopes[~own], weight[~own], point)
        held = [r for r, o in zip(model.runs, own, strict=True) if o]
        out[own] = Model(held).errors(found)
    return out


def report(model: Model, plain: Array, unseen: Array) -> None:
    """Errors by source, plain and unseen."""
    print("plain:", told(plain))
    print("sources left out:", told(unseen))
    groups: dict[str, list[int]] = defaultdict(list)
    for index, run in enumerate(model.runs):
        groups[run.source].append(index)
        groups["mixtures" if run.mixture else "dense"].append(index)
    for name, members in groups.items():
        print(f"  {name:26s} {len(members):4d}  plain {told(plain[members])}; left out {told(unseen[members])}")


def write(model: Model, point: Array, unseen: Array) -> None:
    """Put the values where the package reads them, and the errors of left-out sources where the report does."""
    lines = ["id,error", *(f"{r.id},{math.expm1(e):.4f}" for r, e in zip(model.runs, unseen, strict=True))]
    LEFT_OUT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    values = dict(zip(KNOBS, np.exp(point), strict=True))
    file = DATA / "calibration" / "training.json"
    rows = json.loads(file.read_text(encoding="utf-8"))
    for knob, value in values.items():
        for row in rows:
            if not knob.column and row["name"] == knob.name and row["scope"] in knob.scopes:
                row |= {"value": float(f"{value:.4g}"), "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    write_cells(DATA / "stacks.csv", [(k.name, k.scopes, f"{value:.4g}") for k, value in values.items() if k.column])


def main() -> None:
    """Fit, report, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--fresh", action="store_true", help="start from the priors, not from the present values")
    given = parser.parse_args()
    model = Model(runs(given.file))
    start = np.log([k.prior if given.fresh else now(k) for k in KNOBS])
    start = np.clip(start, np.log([k.low for k in KNOBS]), np.log([k.high for k in KNOBS]))
    print(f"{len(model.runs)} runs, {len(KNOBS)} constants; start {told(model.errors(start))}", flush=True)
    point, slopes = fit(model, start, given.rounds)
    for knob, value in zip(KNOBS, np.exp(point), strict=True):
        print(f"  {knob.name:28s} {','.join(knob.scopes)[:40]:40s} {value:.4g} (prior {knob.prior:.4g})")
    unseen = left_out(model, point, slopes)
    report(model, model.errors(point), unseen)
    if given.write:
        write(model, point, unseen)


def now(knob: Knob) -> float:
    """The shipped value."""
    if knob.column:
        return max(float(getattr(stack(knob.scopes[0]), knob.name)), knob.low)
    return max(load_calibration().find(knob.name, knob.scopes[:1]).value, knob.low)


if __name__ == "__main__":
    main()
