"""What a calibration is made of: probe files, CSV files as `flopwise backtest` reads them, recorded runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flopwise.backtests.columns import our_columns
from flopwise.backtests.kinds import KINDS, MeasurementKind
from flopwise.backtests.prediction import Row, number
from flopwise.backtests.run import printed_rows
from flopwise.errors import SpecError
from flopwise.facts.rows import csv_text
from flopwise.fitting.probed import ProbedFacts, probed_facts
from flopwise.probes.file import Probe
from flopwise.records.model import Run

if TYPE_CHECKING:
    from flopwise.records.store import Store

ORDER = ("kernels", "training", "serving", "memory", "gpu-hours", "io", "weights")
"""Kinds of CSV files, in the order in which one is tried: the first whose columns are there, measured ones too."""

SETTINGS = {
    "seq": "seq_len", "micro_batch": "micro_batch", "global_batch": "global_batch", "precision": "precision",
    "stack": "software", "recompute": "recompute", "attention": "attention", "zero": "zero", "tp": "tp", "pp": "pp",
    "cp": "cp", "ep": "ep", "interleave": "interleave",
}  # fmt: skip
"""Columns of a training file by the keywords of `flopwise.train`, which a run's settings are."""
FIRST = 3
"""Steps at a run's beginning that do not count: caches and compilers warm up."""


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One row of a CSV file, or one operation of a probe, in our columns."""

    kind: str
    row: Row
    source: str  # the file


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """All that was given: rows to predict, and what probes say of devices that no catalog has."""

    rows: tuple[MeasuredRow, ...]
    probed: tuple[ProbedFacts, ...]
    files: tuple[str, ...]


def read_measurements(files: Sequence[Path]) -> Measurements:
    """Read every file; a name without an ending that is no file is that of a recorded run.

    Raises:
        SpecError: one is broken, or neither a probe nor a measurement file; no file is given.
        UnknownNameError: no such run.
    """
    if not files:
        raise SpecError("no measurements are given; name a probe's file, or a CSV file as `flopwise backtest` reads it")
    rows: list[MeasuredRow] = []
    probed: list[ProbedFacts] = []
    for file in files:
        if not file.suffix and not file.exists():
            from flopwise.records.store import open_store  # noqa: PLC0415 - a database's libraries

            store = open_store(create=False)
            rows.append(MeasuredRow("training", recorded_row(store.run(str(file)), store), f"run {file}"))
        elif file.suffix.lower() == ".json":
            found = probed_facts(Probe.from_file(file))
            probed.append(found)
            rows += (MeasuredRow("kernels", row, str(file)) for row in found.rows)
        else:
            kind, own = _csv_rows(file)
            rows += (MeasuredRow(kind.name, row, str(file)) for row in own)
    return Measurements(rows=tuple(rows), probed=tuple(probed), files=tuple(map(str, files)))


def _csv_rows(file: Path) -> tuple[MeasurementKind, list[Row]]:
    csv_text(file, header_only=True)  # what is no text is told as such
    for name in ORDER:
        kind = KINDS[name]
        try:
            printed = printed_rows(kind, file)
        except SpecError as fault:
            if "column" in str(fault):
                continue
            raise
        rows = [our_columns(name, row) for row in printed]
        if any(number(row, column) for row in rows for column in kind.measured):
            return kind, rows
    kinds = "; ".join(f"{name}: {', '.join((*KINDS[name].needed, KINDS[name].measured[0]))}" for name in ORDER)
    raise SpecError(f"{file}: its columns are those of no kind of measurement ({kinds})")


def recorded_row(run: Run, store: Store) -> Row:
    """One run of training as a row: its median step after the first few.

    Raises:
        SpecError: it is no training, or too little is known of it; says what is missing.
    """
    if run.task == "serve":
        raise SpecError(f"run {run.name}: recorded serving has no row yet; give a CSV file of it")
    steps = np.asarray(store.samples(run.run_id, "step_s").value, dtype=float)[FIRST:]
    seq, batch = run.settings.get("seq"), run.settings.get("global_batch")
    known = {"model": run.model, "gpu": run.gpu, "gpus": run.gpus, "seq": seq, "global_batch": batch}
    missing = [name for name, value in known.items() if not value]
    if not len(steps) or missing:
        why = f"its {', '.join(missing)} are not recorded" if missing else f"it has no more than {FIRST} steps"
        raise SpecError(f"run {run.name}: {why}; give a CSV file of it instead")
    tokens = float(str(seq)) * float(str(batch))
    row = {SETTINGS[name]: str(value) for name, value in run.settings.items() if name in SETTINGS and value is not None}
    return row | {
        "id": run.name, "study": "recorded", "source": f"run {run.run_id[:8]}", "model": str(run.model),
        "gpu": str(run.gpu), "gpus": str(run.gpus), "task": "lora" if run.settings.get("lora") else "pretrain",
        "tokens_per_s_per_gpu": repr(tokens / float(np.median(steps)) / int(run.gpus or 1)),
    }  # fmt: skip
