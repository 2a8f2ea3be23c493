"""Recorded runs as files: JSON lines, which `runs import` reads without loss, or a folder of CSV files."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import msgspec

from flopwise.files import write_whole
from flopwise.folders import write_folder
from flopwise.records.model import Event, Run
from flopwise.records.store import SampleColumns, Store

FORMAT, VERSION = "flopwise-runs", 1
LINE_SAMPLES = 10_000
"""Maximum number of samples on one line of the file."""
RUN_COLUMNS = "run_id name task started_at_s ended_at_s status source model gpu gpus host price_usd_per_hour budget_usd"


def write_lines(store: Store, runs: Iterable[Run], file: Path | str) -> None:
    """Write runs with all recorded data to a file, whole or not at all. Raises SpecError."""
    lines = [json.dumps(line, allow_nan=False) + "\n" for line in _lines(store, runs)]
    write_whole(file, "".join(lines).encode())


def _lines(store: Store, runs: Iterable[Run]) -> Iterator[Mapping[str, Any]]:
    """The lines of the file: a header, then for each run its settings, its samples by series, its events."""
    yield {"format": FORMAT, "version": VERSION}
    for run in runs:
        yield {"run": _strict(msgspec.to_builtins(asdict(run), enc_hook=str))}
        for metric, device in store.summaries(run.run_id):
            columns = store.samples(run.run_id, metric, device)
            for start in range(0, columns.value.size, LINE_SAMPLES):
                part = slice(start, start + LINE_SAMPLES)
                rows = {"at_s": columns.at_s[part], "step": columns.step[part], "value": columns.value[part]}
                plain = {name: _strict(column.tolist()) for name, column in rows.items()}
                yield {"samples": {"metric": metric, "device": device, **plain}}
        for event in store.events(run.run_id):
            yield {"event": _strict(asdict(event))}


def write_tables(store: Store, runs: Sequence[Run], folder: Path | str) -> None:
    """Write runs.csv, samples.csv, summaries.csv and events.csv into a folder, all or none. Raises SpecError."""
    names = RUN_COLUMNS.split()
    rows: dict[str, list[Sequence[Any]]] = {
        "runs.csv": [[*names, "settings", "software"]],
        "summaries.csv": [["run_id", "metric", "device", "count", "not_finite", "mean", "low", "high", "last"]],
        "samples.csv": [["run_id", "metric", "device", "at_s", "step", "value"]],
        "events.csv": [["run_id", *(field.name for field in fields(Event))]],
    }
    for run in runs:
        texts = [json.dumps(dict(part), default=str) for part in (run.settings, run.software)]
        rows["runs.csv"].append([*(getattr(run, name) for name in names), *texts])
        for (metric, device), s in store.summaries(run.run_id).items():
            own = [run.run_id, metric, device]
            rows["summaries.csv"].append([*own, s.count, s.not_finite, s.mean, s.low, s.high, s.last])
            rows["samples.csv"] += [[*own, *row] for row in _rows(store.samples(run.run_id, metric, device))]
        rows["events.csv"] += [[run.run_id, *asdict(event).values()] for event in store.events(run.run_id)]
    write_folder(folder, {name: _csv(table) for name, table in rows.items()})


def _rows(columns: SampleColumns) -> Iterator[tuple[float, int | None, float]]:
    for at_s, step, value in zip(columns.at_s.tolist(), columns.step.tolist(), columns.value.tolist(), strict=True):
        yield at_s, None if step < 0 else step, value


def _csv(rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _strict(value: Any) -> Any:
    """Standard JSON: NaN and infinities as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _strict(part) for name, part in value.items()}
    return [_strict(part) for part in value] if isinstance(value, list | tuple) else value


WRITERS: Mapping[str, Callable[[Store, Sequence[Run], Path | str], None]] = {"jsonl": write_lines, "csv": write_tables}
"""The formats of an export."""
