"""The store of runs: an SQLite file, or a PostgreSQL server for a team, with the same tables."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection, Select, bindparam, case, delete, func, insert, select, update

from flopwise.errors import SpecError, UnknownNameError
from flopwise.records import schema
from flopwise.records.database import Database
from flopwise.records.metrics import METRICS, counter_growth
from flopwise.records.model import Event, Expectation, MetricSummary, Run, RunStatus, Sample
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEAST_PREFIX = 4
"""Minimum number of digits that identify a run, if they are unique."""
LONGEST_TEXT = 20_000
BATCH = 100_000
"""Number of samples of a new run that are converted to rows at once."""
MOST_STEP = 2**63 - 1
_JSON_FIELDS = ("software", "settings", "expected")
SeriesKey = tuple[str, str]
"""Metric and device."""


@dataclass(frozen=True, slots=True)
class SampleColumns:
    """Samples of a metric in the order of writing; for a downsampled series the means of neighbours."""

    at_s: NDArray[np.float64]
    step: NDArray[np.int64]  # -1 where a sample has none
    value: NDArray[np.float64]
    low: NDArray[np.float64]  # of the neighbours; the value itself without downsampling
    high: NDArray[np.float64]


def open_store(where: str | Path | None = None, *, create: bool = True) -> Store:
    """The store at a path or a postgresql:// URL; None: that of FLOPWISE_RUNS, else the file in the user's data folder.

    With `create` a missing store is created; older tables are migrated.

    Raises:
        SpecError: it does not exist, is damaged, foreign or newer, or cannot be reached or written; it is not changed.
    """
    return Store(Database(where, create=create))


class Store:
    """Runs with their samples and events. Every call is one transaction, and raises SpecError if it fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def place(self) -> str:
        """Path or address of the store, without secrets."""
        return self._database.place

    def add_run(self, run: Run, samples: Sequence[Sample] = (), events: Sequence[Event] = ()) -> bool:
        """Write a new run, whole or not at all; False, without writing, if its id exists already."""
        with self._database.transaction() as connection:
            # only the dialect in use is imported; the other one takes 35 ms
            dialect = import_module(f"sqlalchemy.dialects.{connection.dialect.name}")
            new = dialect.insert(schema.runs).values(_row(run)).on_conflict_do_nothing(index_elements=["run_id"])
            if connection.execute(new.returning(schema.runs.c.number)).first() is None:
                return False
            for start in range(0, max(len(samples), 1), BATCH):
                _append(connection, run.run_id, samples[start : start + BATCH], events if start == 0 else ())
            return True

    def set_status(self, run_id: str, status: RunStatus, ended_at_s: float | None = None) -> None:
        """Set the status and end of a run. Raises UnknownNameError."""
        runs = schema.runs
        begun = runs.c.started_at_s
        # if the clock was set back, the end is not before the beginning
        end_s = None if ended_at_s is None else case((begun > ended_at_s, begun), else_=ended_at_s)
        with self._database.transaction() as connection:
            own = update(runs).where(runs.c.run_id == run_id)
            if not connection.execute(own.values(status=status, ended_at_s=end_s)).rowcount:
                raise UnknownNameError("run", run_id, [])

    def append(
        self,
        run_id: str,
        samples: Sequence[Sample] = (),
        events: Sequence[Event] = (),
        *,
        batch: tuple[str, int] | None = None,
    ) -> None:
        """Write samples and events and update their summaries, all or none.

        `batch`: the writer's id and the number of the batch; a batch that was written before is not written again.

        Raises: UnknownNameError: there is no such run, or it was deleted.
        """
        with self._database.transaction() as connection:
            _append(connection, run_id, samples, events, batch)

    def runs(
        self,
        *,
        task: str | None = None,
        model: str | None = None,
        status: str | None = None,
        since_s: float | None = None,
    ) -> list[Run]:
        """Matching runs, newest first; `model`: a part of the model's name, `since_s`: earliest beginning."""
        table = schema.runs
        query = select(table).order_by(table.c.started_at_s.desc(), table.c.number.desc())
        if task is not None:
            query = query.where(table.c.task == task)
        if status is not None:
            query = query.where(table.c.status == status)
        if model is not None:
            query = query.where(func.lower(table.c.model).contains(_text(model).lower(), autoescape=True))
        if since_s is not None:
            query = query.where(table.c.started_at_s >= since_s)
        return [_run(row) for row in self._rows(query)]

    def run(self, key: str) -> Run:
        """The run with an id, with an id that begins with `key`, or the latest run with a name.

        Raises: UnknownNameError: there is no such run. SpecError: several ids begin with `key`.
        """
        table, text = schema.runs, _text(key)
        newest = select(table).order_by(table.c.started_at_s.desc(), table.c.number.desc())
        for query in (table.c.run_id == text.lower(), table.c.name == text):
            if rows := self._rows(newest.where(query).limit(1)):
                return _run(rows[0])
        if len(text) >= LEAST_PREFIX:
            begun = self._rows(newest.where(table.c.run_id.startswith(text.lower(), autoescape=True)).limit(5))
            if len(begun) > 1:
                ids = ", ".join(row["run_id"][: len(text) + 4] for row in begun)
                raise SpecError(f"several runs have an id that begins with {text!r}: {ids}; give more digits")
            if begun:
                return _run(begun[0])
        names = [row["name"] for row in self._rows(select(table.c.name).distinct().limit(1000))]
        raise UnknownNameError("run", key, names, f"`flopwise runs list` shows those of {self.place}")

    def named_runs(self, keys: Iterable[str]) -> list[Run]:
        """The runs of these ids or names, each once. Raises as `run`."""
        return list({(run := self.run(key)).run_id: run for key in keys}.values())

    def summaries(self, run_id: str) -> dict[SeriesKey, MetricSummary]:
        """The summary of each metric and device of a run."""
        return self.all_summaries([run_id]).get(run_id, {})

    def all_summaries(self, run_ids: Sequence[str]) -> dict[str, dict[SeriesKey, MetricSummary]]:
        """The summaries of several runs by their ids."""
        runs, series = schema.runs, schema.series
        query = select(runs.c.run_id, series).join_from(series, runs, series.c.run_number == runs.c.number)
        summaries: dict[str, dict[SeriesKey, MetricSummary]] = defaultdict(dict)
        for start in range(0, len(run_ids), 500):
            some = query.where(runs.c.run_id.in_(run_ids[start : start + 500]))
            for row in self._rows(some.order_by(series.c.metric, series.c.device)):
                summaries[row["run_id"]][row["metric"], row["device"]] = _summary(row)
        return dict(summaries)

    def samples(
        self, run_id: str, metric: str, device: str = "", *, most: int | None = None, start: int = 0
    ) -> SampleColumns:
        """The samples of a metric after the first `start`; `most`: downsample to this number in the database."""
        return _columns(self.sample_rows(run_id, metric, device, most=most, start=start))

    def sample_rows(
        self, run_id: str, metric: str, device: str = "", *, most: int | None = None, start: int = 0
    ) -> list[tuple[Any, ...]]:
        """As `samples`, row by row: (time, step, value), or (time, step, mean, low, high) if downsampled.

        A missing step is None, and a value that is NaN may be None.
        """
        runs, series, samples = schema.runs, schema.series, schema.samples
        here = (runs.c.run_id == run_id, series.c.metric == metric, series.c.device == device)
        named = select(series.c.number, series.c.size).join(runs, series.c.run_number == runs.c.number).where(*here)
        rows = self._rows(named)
        if not rows:
            return []
        [one] = rows
        width = math.ceil(one["size"] / most) if most else 1
        own = (samples.c.series_number == one["number"]) & (samples.c.position >= start)
        query: Select[*tuple[Any, ...]] = select(samples.c.at_s, samples.c.step, samples.c.value)
        query = query.where(own).order_by(samples.c.position)
        if width > 1:
            bucket, value = (samples.c.position // width), samples.c.value
            query = select(
                func.avg(samples.c.at_s), func.max(samples.c.step), func.avg(value), func.min(value), func.max(value)
            )
            query = query.where(own).group_by(bucket).order_by(bucket)
        with self._database.connection() as connection:
            return [*map(tuple, connection.execute(query).all())]

    def events(self, run_id: str) -> list[Event]:
        """The events of a run, in the order of writing."""
        runs, events = schema.runs, schema.events
        query = select(events).join(runs, events.c.run_number == runs.c.number).where(runs.c.run_id == run_id)
        names = [field.name for field in fields(Event)]
        return [Event(**{name: row[name] for name in names}) for row in self._rows(query.order_by(events.c.number))]

    def delete(self, run_id: str) -> None:
        """Delete a run with all its samples and events. Raises UnknownNameError."""
        with self._database.transaction() as connection:
            number = _locked_run(connection, run_id, None)
            if number is None:
                raise UnknownNameError("run", run_id, [])
            own = select(schema.series.c.number).where(schema.series.c.run_number == number)
            connection.execute(delete(schema.samples).where(schema.samples.c.series_number.in_(own)))
            for table in (schema.series, schema.events, schema.batches):
                connection.execute(delete(table).where(table.c.run_number == number))
            connection.execute(delete(schema.runs).where(schema.runs.c.number == number))

    def _rows(self, query: Any) -> list[Mapping[str, Any]]:
        with self._database.connection() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]


def _append(
    connection: Connection, run_id: str, samples: Sequence[Sample], events: Sequence[Event],
    batch: tuple[str, int] | None = None,
) -> None:  # fmt: skip
    groups: dict[SeriesKey, list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.metric, _text(sample.device)].append(sample)
    latest = max((one.at_s for part in (samples, events) for one in part), default=None)
    number = _locked_run(connection, run_id, latest)
    if number is None:
        raise UnknownNameError("run", run_id, [])
    if batch is not None and not _is_new(connection, number, *batch):
        return
    if groups:
        _append_samples(connection, number, groups)
    if events:
        connection.execute(insert(schema.events), [_event_row(number, one) for one in events])


def _locked_run(connection: Connection, run_id: str, latest_s: float | None) -> int | None:
    """The number of a run, whose row is locked until the end of the transaction; None if there is no such run."""
    runs = schema.runs
    before = runs.c.last_at_s
    seen = before if latest_s is None else case((before > latest_s, before), else_=latest_s)
    changed = update(runs).where(runs.c.run_id == run_id).values(last_at_s=seen).returning(runs.c.number)
    number: int | None = connection.execute(changed).scalar()
    return number


def _is_new(connection: Connection, run_number: int, writer: str, number: int) -> bool:
    """Record the batch of a writer; False if it was written before."""
    batches = schema.batches
    own = batches.c.writer == writer
    last = connection.execute(select(batches.c.batch).where(own)).scalar()
    if last is None:
        connection.execute(insert(batches).values(writer=writer, run_number=run_number, batch=number))
    elif last < number:
        connection.execute(update(batches).where(own).values(batch=number))
    return last is None or last < number


def _append_samples(connection: Connection, run_number: int, groups: Mapping[SeriesKey, Sequence[Sample]]) -> None:
    """Write samples and update summaries; the run's row is locked, so no other transaction writes these."""
    series = schema.series
    known = {
        (row["metric"], row["device"]): row
        for row in map(dict, connection.execute(select(series).where(series.c.run_number == run_number)).mappings())
    }
    changed, new, sizes = list[dict[str, Any]](), list[dict[str, Any]](), dict[SeriesKey, tuple[int, int]]()
    for key, group in groups.items():
        row = known.get(key)
        after = _with_samples(key, None if row is None else _summary(row), group)
        columns = {name: _null_if_nan(getattr(after, name)) for name in ("count", "low", "high", "last", "last_at_s")}
        columns |= {"total": after.total, "size": after.count + after.not_finite}
        if row is None:
            new.append({"run_number": run_number, "metric": key[0], "device": key[1], **columns})
        else:
            sizes[key] = row["number"], row["size"]
            changed.append({"key": row["number"], **columns})
    if changed:
        later = update(series).where(series.c.number == bindparam("key"))
        names = [name for name in changed[0] if name != "key"]
        later = later.values({name: bindparam(f"new_{name}") for name in names})
        connection.execute(later, [{"key": row["key"], **{f"new_{n}": row[n] for n in names}} for row in changed])
    if new:
        made = insert(series).returning(series.c.metric, series.c.device, series.c.number)
        sizes |= {(metric, device): (number, 0) for metric, device, number in connection.execute(made, new)}
    rows = [
        (number, position, float(one.at_s), _step(one.step), _null_if_nan(float(one.value)))
        for key, group in groups.items()
        for number, size in [sizes[key]]
        for position, one in enumerate(group, start=size)
    ]
    if connection.dialect.name == "sqlite":
        _insert_in_few_statements(connection, rows)
    else:
        arrays = "unnest(%s::bigint[], %s::bigint[], %s::float8[], %s::bigint[], %s::float8[])"
        connection.exec_driver_sql(
            f"INSERT INTO samples SELECT * FROM {arrays}",  # noqa: S608 - our own words
            tuple(map(list, zip(*rows, strict=True))),
        )


ROWS_A_STATEMENT = 199
"""Rows of five values per statement: SQLite before 3.32 binds at most 999 values."""


def _insert_in_few_statements(connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    """Write rows to SQLite, many per statement.

    The driver releases the interpreter lock around each statement: if another thread computes without a pause, this
    thread then waits 5 ms for the lock each time, and interrupts the other thread as often.
    """
    for first in range(0, len(rows), ROWS_A_STATEMENT):
        some = rows[first : first + ROWS_A_STATEMENT]
        places = ", ".join(["(?, ?, ?, ?, ?)"] * len(some))
        statement = f"INSERT INTO samples VALUES {places}"  # noqa: S608 - our own words
        connection.exec_driver_sql(statement, tuple(chain.from_iterable(some)))


def _with_samples(key: SeriesKey, before: MetricSummary | None, group: Sequence[Sample]) -> MetricSummary:
    """The summary with further samples in it."""
    finite = [float(one.value) for one in group if math.isfinite(one.value)]
    nan = float("nan")
    old = before or MetricSummary(
        metric=key[0], device=key[1], count=0, total=0.0, low=nan, high=nan, last=0.0, last_at_s=0.0
    )
    ends = [*finite, *(end for end in (old.low, old.high) if math.isfinite(end))]
    if METRICS[key[0]].cumulative:
        last = old.last if math.isfinite(old.last) else old.high if old.count else 0.0
        total = math.fsum(counter_growth(*pair) for pair in pairwise([last, *finite]))
    else:
        total = math.fsum(finite)
    return replace(
        old,
        count=old.count + len(finite),
        not_finite=old.not_finite + len(group) - len(finite),
        total=old.total + total,
        low=min(ends, default=nan),
        high=max(ends, default=nan),
        last=group[-1].value,
        last_at_s=group[-1].at_s,
    )


def _row(run: Run) -> dict[str, Any]:
    """A run as the columns of its row."""
    row = {field.name: getattr(run, field.name) for field in fields(run)}
    row = {name: _text(value) if isinstance(value, str) else value for name, value in row.items()}
    expected = None
    if (expectation := run.expected) is not None:
        figures = {metric: msgspec.to_builtins(figure) for metric, figure in expectation.figures.items()}
        expected = {
            "figures": figures,
            "terms": dict(expectation.terms),
            "question": expectation.question,
            "version": expectation.version,
        }
    texts = {"software": dict(run.software), "settings": dict(run.settings), "expected": expected}
    return row | {name: None if value is None else _json(value) for name, value in texts.items()}


def _run(row: Mapping[str, Any]) -> Run:
    """A run of its row."""
    columns = {field.name: row[field.name] for field in fields(Run)}
    json_columns = {name: json.loads(columns[name] or "null") for name in _JSON_FIELDS}
    if json_columns["expected"] is not None:
        json_columns["expected"] = msgspec.convert(json_columns["expected"], Expectation)
    return Run(**(columns | json_columns))


def _json(value: Any) -> str:
    """JSON for the database: other types as text, NaN as Python writes it."""
    return json.dumps(value, default=str, skipkeys=True)


def _summary(row: Mapping[str, Any]) -> MetricSummary:
    columns: dict[str, Any] = {name: row[name] for name in ("metric", "device", "count", "total", "last_at_s")}
    columns |= {name: float("nan") if row[name] is None else row[name] for name in ("low", "high", "last")}
    return MetricSummary(**columns, not_finite=row["size"] - row["count"])


def _event_row(run_number: int, one: Event) -> dict[str, Any]:
    row = {"kind": _text(one.kind), "text": _text(one.text), "device": _text(one.device)}
    return {"run_number": run_number, "at_s": one.at_s, "step": _step(one.step), **row}


def _columns(rows: Sequence[tuple[Any, ...]]) -> SampleColumns:
    """The columns of (time, step, value) or (time, step, mean, low, high)."""
    import numpy as np  # noqa: PLC0415 - a writer, or a watcher of one reading, does without

    at_s, steps, *values = zip(*rows, strict=True) if rows else ((), (), ())
    mean, *ends = (np.array(column, dtype=np.float64) for column in values)  # None becomes NaN
    low, high = ends or (mean, mean)
    step = np.array([-1 if one is None else one for one in steps], dtype=np.int64)
    return SampleColumns(np.array(at_s, dtype=np.float64), step, mean, low, high)


def _text(value: str) -> str:
    """Text that both databases accept: without NUL and lone surrogates, and of limited length."""
    return value.encode("utf-8", "replace").decode("utf-8").replace("\0", "")[:LONGEST_TEXT]


def _step(step: int | None) -> int | None:
    return None if step is None or abs(step) > MOST_STEP else int(step)


def _null_if_nan(value: Any) -> Any:
    return None if value != value else value  # noqa: PLR0124 - NaN alone differs from itself
