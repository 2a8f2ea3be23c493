"""What a calibration is made of: probe files, CSV files as `flopwise backtest` reads them, recorded runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flopwise.backtests.columns import our_columns
from flopwise.backtests.kinds import KINDS, MeasurementKind
from flopwise.backtests.prediction import Row, number
from flopwise.backtests.run import printed_rows
from flopwise.errors import SpecError
from flopwise.facts.rows import csv_text
from flopwise.fitting.probed import ProbedFacts, probed_facts
from flopwise.probes.file import Probe

ORDER = ("kernels", "training", "serving", "memory", "gpu-hours", "io", "weights")
"""Kinds of CSV files, in the order in which one is tried: the first whose columns are there, measured ones too."""


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
            rows += _recorded_rows(str(file))
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


def _recorded_rows(key: str) -> list[MeasuredRow]:
    """Rows of a run of the store: of its steady steps or requests, and of its memory.

    Raises:
        UnknownNameError: no such run.
        SpecError: too little of it is known; says what.
    """
    from flopwise.records.measured import run_figures  # noqa: PLC0415 - a database's libraries, for recorded runs alone
    from flopwise.records.rows import COLUMNS, rows_of  # noqa: PLC0415 - same
    from flopwise.records.store import open_store  # noqa: PLC0415 - same

    store = open_store(create=False)
    figures = run_figures(store, store.run(key))
    made = [rows_of([figures], kind) for kind in COLUMNS]
    rows = [MeasuredRow(one.kind, row, f"run {key}") for one in made for row in one.rows]
    if not rows:
        raise SpecError(next(why for one in made for why in one.missing if "a run of" not in why))
    return rows
