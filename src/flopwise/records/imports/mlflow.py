"""Metric histories of MLflow as CSV: one value per line, with key, value, timestamp (milliseconds) and step.

Source: `mlflow.entities.Metric` and its history (`MlflowClient.get_metric_history`), as pandas writes it.
"""

from __future__ import annotations

from flopwise.records.imports.raw import RawRun, Source, step_of, time_of

_KEYS, _RUNS = ("key", "metric", "metric_key"), ("run_id", "run_uuid", "Run ID", "run")


def recognises(source: Source) -> bool:
    """True if the file has these columns."""
    names = {*source.header}
    return {"value", "timestamp", "step"} <= names and bool(names & {*_KEYS})


def read_runs(source: Source) -> list[RawRun]:
    """The runs of the file by id; one run if it has no column of ids."""
    key = next(name for name in _KEYS if name in source.header)
    owner = next((name for name in _RUNS if name in source.header), None)
    runs: dict[str, RawRun] = {}
    for row in source.rows():
        title = source.path.stem if owner is None else row[owner]
        run = runs.setdefault(title, RawRun(name=title, task="train"))
        run.add(row[key], row["value"], time_of(row["timestamp"]), step_of(row["step"]))
    return [*runs.values()]
