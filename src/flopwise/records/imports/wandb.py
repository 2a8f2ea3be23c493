"""CSV exports of Weights & Biases: a run's history, and the data of a chart.

Source: `Run.history()` of the public API has a column per metric, with `_step`, `_timestamp` and `_runtime`; "Export
CSV" of a chart has the column of its axis (`Step`, `Relative Time (Process)`, `Wall Time` ...) and `run - metric` for
each line, each with the `__MIN` and `__MAX` of downsampled points.
"""

from __future__ import annotations

from flopwise.errors import SpecError
from flopwise.records.imports.raw import RawRun, Source, number_of, step_of, time_of

_ENDS = ("__MIN", "__MAX")
_LINE = " - "
_STEPS = ("step", "_step", "train/global_step", "global_step", "trainer/global_step")


def recognises(source: Source) -> bool:
    """True if the file has the columns of these exports."""
    names = {*source.header}
    history = "_step" in names and bool(names & {"_timestamp", "_runtime"})
    return history or any(_LINE in name and f"{name}{end}" in names for name in names for end in _ENDS)


def read_runs(source: Source) -> list[RawRun]:
    """The runs of the file: one for a history, one per line of a chart."""
    names = {*source.header}
    return [_history(source)] if "_step" in names else _chart(source)


def _history(source: Source) -> RawRun:
    """The run of a history; without `_timestamp` the run ends at the modification time of the file."""
    run, since = RawRun(name=source.path.stem, task="train"), 0.0
    rows = [*source.rows()]
    if rows and "_timestamp" not in rows[0]:
        lengths = [number_of(row.get("_runtime")) or 0.0 for row in rows]
        since = source.changed_at_s - max(lengths, default=0.0)
        run.notes.append("the file has no dates: the run ends when the file was written")
    for row in rows:
        at_s = time_of(row.get("_timestamp"))
        runtime = number_of(row.get("_runtime"))
        if at_s is None and runtime is not None and since:
            at_s = since + runtime
        step = step_of(row.get("train/global_step") or row.get("trainer/global_step") or row.get("_step"))
        for name, cell in row.items():
            if cell and not name.startswith("_") and name not in _STEPS:
                run.add(name, cell, at_s, step)
    return run


def _chart(source: Source) -> list[RawRun]:
    """The lines of a chart by their runs.

    Raises: SpecError: the axis is neither of steps nor of time.
    """
    lines = [name for name in source.header if _LINE in name and not name.endswith(_ENDS)]
    axis = next((name for name in source.header if name and _LINE not in name), "")
    kind = axis.lower()
    if kind not in _STEPS and "time" not in kind:
        raise SpecError(
            f"{source.path}: the axis {axis!r} has neither steps nor times; export the chart over Step, or the "
            "run's history"
        )
    since = source.changed_at_s if kind.startswith("relative") else 0.0
    runs: dict[str, RawRun] = {}
    last_s = 0.0
    for row in source.rows():
        place = row[axis]
        at_s = None if kind in _STEPS else time_of(place)
        last_s = max(last_s, at_s or 0.0)
        for line in lines:
            title, _, metric = line.rpartition(_LINE)
            run = runs.setdefault(title, RawRun(name=title, task="train"))
            step = step_of(place) if kind in _STEPS else step_of(row.get(f"{title}{_LINE}_step"))
            if metric != "_step" and row[line]:
                run.add(metric, row[line], at_s, step)
    for run in runs.values():
        if since:
            run.started_at_s = since - last_s
            run.notes.append("the chart has no dates: the run ends when the file was written")
            _move(run, run.started_at_s)
        run.notes.append("the export of a chart has the points that the chart shows, which may be downsampled")
    return [run for run in runs.values() if run.series]


def _move(run: RawRun, since_s: float) -> None:
    """Convert times since the beginning of the run to seconds since 1970."""
    for name, points in run.series.items():
        moved = (point if point.at_s is None else point._replace(at_s=since_s + point.at_s) for point in points)
        run.series[name] = list(moved)
