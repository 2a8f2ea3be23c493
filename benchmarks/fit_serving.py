"""Fit the few constants of serving engines to published results.

    python benchmarks/fit_serving.py FILE             report errors: plain, with each source and each GPU left out
    python benchmarks/fit_serving.py FILE --write     write the values to data/engines.csv and data/calibration

Each constant is a column of data/engines.csv that several engines share, or a parameter of data/calibration; none
belongs to a row or a source. A row weighs one over the square root of the rows of its source and quantity. Times to a
first token count where memory holds all requests: beyond that they are waiting, which throughput decides.
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

from fit_serving_knobs import KNOBS
from flopwise.backtests.kinds import KINDS
from flopwise.backtests.run import measurements
from flopwise.backtests.serving import STREAM, measured_quantities, row_job
from flopwise.cost.rates import Rates, rates
from flopwise.errors import FlopwiseError
from flopwise.facts.calibration import load_calibration
from flopwise.facts.catalog import load_facts
from flopwise.facts.software import Engine, engine, engine_names
from flopwise.serving.assisted import request_work
from flopwise.serving.estimate import ServeJob, check, job_memory, runner, steady_state
from flopwise.serving.iteration import Runner
from flopwise.serving.memory import ServingMemory, generates
from flopwise.serving.steady import closed_loop
from robust_fit import STEP, Array, Knob, descended, even_weights, prior, solved, told, write_cells

DATA = Path(__file__).resolve().parents[1] / "src" / "flopwise" / "data"
LEFT_OUT = Path(__file__).resolve().parent / "accuracy" / "serving_left_out.csv"
"""Predicted / measured - 1 of every figure by constants that have not seen its source, and its GPU."""
BUSY = 0.8
"""Share of what a replica sustains from which a queue without end is near, and its length is anyone's guess."""
TTFT_WEIGHT = 0.5
"""Of a time to the first token against another figure: two runs of the same point differ by as much again."""


@dataclass(frozen=True)
class Run:
    """One published row: what it measured, and all of its prediction that no knob moves."""

    id: str
    source: str
    mode: str
    mixture: bool
    job: ServeJob
    memory: ServingMemory
    machine: Runner
    replicas: int
    measured: Mapping[str, float]


@dataclass(frozen=True)
class Figure:
    """One measured quantity of a run."""

    run: Run
    quantity: str

    @property
    def kind(self) -> str:
        """What it is called in reports."""
        name = {"output_tokens_per_s": "throughput", "tpot_s": "TPOT", "ttft_s": "TTFT"}[self.quantity]
        return f"{name} {self.run.mode}"


def runs(file: Path) -> list[Run]:
    """All rows that can be predicted."""
    facts, found = load_facts(), []
    for row in measurements(KINDS["serving"], file):
        measured = measured_quantities(row)
        try:
            job, replicas = row_job(row, facts)
            check(job)
            memory = job_memory(job)
            machine = runner(job)
        except FlopwiseError:
            continue
        if not measured or not generates(job.model):
            continue
        if _waiting(job, memory, machine):
            measured.pop("ttft_s", None)
        found.append(
            Run(row["id"], row["study"], row["mode"], job.model.has_experts, job, memory, machine, replicas, measured)
        )
    return found


def _waiting(job: ServeJob, memory: ServingMemory, machine: Runner) -> bool:
    """Whether requests wait for others to end: for memory, or because they come nearly as fast as can be served."""
    most, ranks = float(np.ravel(memory.max_concurrency)[0]), int(job.layout.dp)
    if job.arrivals_per_s is None:
        return bool(job.concurrency and most < job.concurrency / ranks)
    full = closed_loop(machine, job.layout, max(most, 1.0), *request_work(job))
    return job.arrivals_per_s / ranks > BUSY * float(np.ravel(full.requests_per_s)[0])


def predicted(run: Run, machine: Runner) -> dict[str, float]:
    """The run's quantities on an engine and rates."""
    steady, waiting_s = steady_state(run.job, machine, run.memory)
    ttft, tpot, rate = (float(np.ravel(v)[0]) for v in (steady.ttft_s, steady.tpot_s, steady.output_tokens_per_s))
    tokens = 1 / tpot if run.mode == STREAM else rate * int(run.job.layout.dp) * run.replicas
    return {"ttft_s": ttft + waiting_s, "tpot_s": tpot, "output_tokens_per_s": tokens}


class Model:
    """Log errors of all figures as a function of the knobs' logarithms; only runs of moved engines are computed."""

    def __init__(self, held: Sequence[Run]) -> None:
        """Keep the runs and their figures."""
        self.runs = held
        self.figures = [Figure(r, q) for r in held for q in r.measured]
        self.known: dict[tuple[str, bytes], dict[str, float]] = {}

    def errors(self, point: Array) -> Array:
        """log(predicted / measured) of every figure."""
        values = dict(zip(KNOBS, np.exp(point), strict=True))
        rows = {name: _engine(engine(name), values) for name in engine_names()}
        calibrated = {(k.name, s): v for k, v in values.items() for s in k.scopes if not k.column}
        table = load_calibration().replaced(calibrated) if calibrated else None
        chips: dict[str, Rates] = {}
        out: list[float] = []
        for run in self.runs:
            row, chip = rows[run.machine.engine.name], run.job.cluster.accelerator
            if table is not None and chip.name not in chips:
                chips[chip.name] = rates(chip, table)
            key = (run.id, repr((row, sorted(calibrated.items()))).encode())
            if key not in self.known:
                own = replace(row, prefill_tokens=run.machine.engine.prefill_tokens)
                machine = replace(run.machine, engine=own, rates=chips.get(chip.name, run.machine.rates))
                self.known[key] = predicted(run, machine)
            found = self.known[key]
            out.extend(math.log(found[q] / v) for q, v in run.measured.items())
        return np.array(out)

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

    def weights(self) -> Array:
        """By source and quantity."""
        even = even_weights([f"{f.run.source} {f.quantity}" for f in self.figures])
        weights: Array = even * np.array([TTFT_WEIGHT if f.quantity == "ttft_s" else 1.0 for f in self.figures])
        return weights


def _engine(row: Engine, values: Mapping[Knob, float]) -> Engine:
    own: dict[str, Any] = {k.name: float(v) for k, v in values.items() if k.column and row.name in k.scopes}
    return replace(row, **own)


def left_out(model: Model, point: Array, slopes: Array, groups: Sequence[str]) -> Array:
    """Log errors of every figure under constants that have not seen its group."""
    errors, weight = model.errors(point), model.weights()
    out, names = np.zeros(len(errors)), np.array(groups)
    for name in dict.fromkeys(groups):
        own = names == name
        found = solved(KNOBS, errors[~own], slopes[~own], weight[~own], point)
        held = Model(list({f.run.id: f.run for f, o in zip(model.figures, own, strict=True) if o}.values()))
        out[own] = held.errors(found)
    return out


def report(model: Model, columns: Mapping[str, Array]) -> None:
    """Errors by quantity and mode, then by engine, plain and unseen."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, figure in enumerate(model.figures):
        kind = "mixtures" if figure.run.mixture else "dense"
        groups[figure.kind].append(index)
        groups[f"  {figure.kind} {figure.run.machine.engine.name} {kind}"].append(index)
    for name in sorted(groups, key=lambda n: (n.strip().split()[:2], n)):
        members = groups[name]
        for label, errors in columns.items():
            print(f"{name if label == 'plain' else '':62s} {len(members):4d} {label:12s} {told(errors[members])}")


def write(model: Model, point: Array, columns: Mapping[str, Array]) -> None:
    """Put the values where the package reads them, and the errors of left-out groups where the report does."""
    names = [n for n in columns if n != "plain"]
    lines = [f"id,quantity,{','.join(n.replace(' ', '_') for n in names)}"]
    for i, f in enumerate(model.figures):
        lines.append(f"{f.run.id},{f.quantity}," + ",".join(f"{math.expm1(columns[n][i]):.4f}" for n in names))
    LEFT_OUT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    values = dict(zip(KNOBS, np.exp(point), strict=True))
    for file in (DATA / "calibration").glob("*.json"):
        rows = json.loads(file.read_text(encoding="utf-8"))
        before = json.dumps(rows)
        for knob, value in values.items():
            for row in rows:
                if not knob.column and row["name"] == knob.name and row["scope"] in knob.scopes:
                    row |= {"value": float(f"{value:.4g}"), "date": f"{datetime.now(UTC):%Y-%m-%d}"}
        if json.dumps(rows) != before:
            file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    write_cells(DATA / "engines.csv", [(k.name, k.scopes, f"{value:.3g}") for k, value in values.items() if k.column])


def now(knob: Knob) -> float:
    """The shipped value."""
    if knob.column:
        return max(float(getattr(engine(knob.scopes[0]), knob.name)), knob.low)
    return max(load_calibration().find(knob.name, knob.scopes[:1]).value, knob.low)


def main() -> None:
    """Fit, report, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--fresh", action="store_true", help="start from the priors, not from the present values")
    given = parser.parse_args()
    model = Model(runs(given.file))
    start = prior(KNOBS) if given.fresh else np.log([now(k) for k in KNOBS])
    start = np.clip(start, np.log([k.low for k in KNOBS]), np.log([k.high for k in KNOBS]))
    print(f"{len(model.figures)} figures, {len(KNOBS)} constants; start {told(model.errors(start))}", flush=True)
    point, slopes = descended(KNOBS, model.errors, model.slopes, model.weights(), start, given.rounds)
    for knob, value in zip(KNOBS, np.exp(point), strict=True):
        print(f"  {knob.name:20s} {','.join(knob.scopes)[:50]:50s} {value:.4g} (prior {knob.prior:.4g})")
    columns = {
        "plain": model.errors(point),
        "source out": left_out(model, point, slopes, [f.run.source for f in model.figures]),
        "GPU out": left_out(model, point, slopes, [f.run.job.cluster.accelerator.name for f in model.figures]),
    }
    report(model, columns)
    if given.write:
        write(model, point, columns)


if __name__ == "__main__":
    main()
